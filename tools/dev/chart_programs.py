"""What the programs themselves say to the flags that the chart takes and to the command lines that it makes.

Each check is a generator of problems.
"""
import pathlib
import re
import subprocess

from chart_checks import ROOT, flags_of

BIN = ROOT / "build/release/bin"


def refusal(program, *flags):
    """What it has against them; empty: nothing."""
    ended = subprocess.run([BIN / program, *flags, "--print-config"], capture_output=True, text=True, timeout=60)
    return ended.stderr.strip() if ended.returncode else ""


def bounds_are_those_of(program, schema, definitions):
    """Types, choices and bounds in a schema of flags."""
    kinds = flags_of(program)
    for name, allowed in schema.items():
        kind, allowed = kinds[name], definitions[allowed["$ref"].rsplit("/", 1)[1]] if "$ref" in allowed else allowed
        if "|" in kind:
            wanted, said = kind.split("|"), [str(choice) for choice in allowed.get("enum", [])]
        elif kind == "BYTES":
            wanted, said = True, allowed["type"] == "string"
            for unit in ("", "B", "K", "M", "G", "KB", "MB", "GB", "Ki", "Mi", "Gi", "KiB", "MiB", "GiB", "TiB"):
                value = f"{2**25}{unit}"
                if re.search(allowed["pattern"], value) and f"--{name}" in refusal(program, f"--{name}={value}"):
                    yield f"{program} does not take --{name}={value}"
        elif kind in ("", "URL,..."):
            wanted, said = {"": "boolean", "URL,...": "array"}[kind], allowed["type"]
        else:
            span = re.search(r"want a number from (\S+) to ([^,\s]+)", refusal(program, f"--{name}=x"))
            whole = "number" in refusal(program, f"--{name}=1.5")
            wanted = ["integer" if whole else "number", *map(float, span.groups())] if span else "no answer"
            said = [allowed["type"], allowed.get("minimum"), allowed.get("maximum")]
        if said != wanted:
            yield f"--{name} of {program} is {wanted}, the schema has {said}"
