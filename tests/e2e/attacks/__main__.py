import argparse
import sys
import tempfile

from attacks import all_attacks
from attacks.harness import HEADER, run


def main():
    parser = argparse.ArgumentParser(prog="attack")
    parser.add_argument("--list", action="store_true", help="name the attacks and exit")
    parser.add_argument("--full", action="store_true", help="at full size")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    attacks = all_attacks()
    if arguments.list:
        for name, attack in attacks.items():
            print(f"{name:28} {attack.__doc__.splitlines()[0]}")
        return 0
    unknown = set(arguments.names) - set(attacks)
    if unknown:
        parser.error(f"no such attack: {', '.join(sorted(unknown))}")
    failed = 0
    print(HEADER)
    for name in arguments.names or attacks:
        with tempfile.TemporaryDirectory() as folder, attacks[name].fleet(folder) as fleet:
            report = run(fleet, attacks[name], arguments.full)
        print(report, flush=True)
        failed += not report.ok
    return 1 if failed else 0


sys.exit(main())
