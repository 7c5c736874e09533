"""Starts `tandem serve` for the tests and knows its processes, as an operator would."""

import pathlib
import sys

import pytest

from hosts import linked_host
from server import DEMO_MODEL, Server

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools/dev"))


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="the long runs: every kill and stop")


@pytest.fixture(scope="session")
def full(request):
    return request.config.getoption("--full")


@pytest.fixture(scope="session")
def disaggregated(tmp_path_factory):
    """One prefill and two decode workers, every prompt prefilled elsewhere, KV over UCX."""
    with Server(tmp_path_factory.mktemp("disaggregated"), DEMO_MODEL,
                "--prefill=1", "--decode=2", "--disaggregate=always") as server:
        yield server


@pytest.fixture(scope="session")
def hybrid(tmp_path_factory):
    """The same model in one worker that does both phases: the reference for equal tokens."""
    with Server(tmp_path_factory.mktemp("hybrid"), DEMO_MODEL, "--hybrid=1") as server:
        yield server


@pytest.fixture(scope="session")
def other_host():
    """One for all tests: the kernel takes the link of a host that is gone away in its own time."""
    with linked_host() as host:
        yield host
