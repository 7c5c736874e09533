"""The attacks of tests/e2e/attack: the fleet's memory holds, and other streams go on."""

from attacks import all_attacks
from attacks.harness import HEADER, run


def pytest_generate_tests(metafunc):
    full = metafunc.config.getoption("--full")
    metafunc.parametrize("name", [name for name, attack in all_attacks().items() if full or not attack.only_full])


def test_the_fleet_holds_under(name, tmp_path, full):
    with all_attacks()[name].fleet(tmp_path) as fleet:
        report = run(fleet, all_attacks()[name], full)
    print(HEADER)
    print(report)
    assert report.ok, report.problems
