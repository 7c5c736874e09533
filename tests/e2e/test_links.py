"""Workers on two hosts whose link is slow, or takes everything and gives nothing."""

import concurrent.futures
import subprocess

import pytest

from hosts import fleet_on_two_hosts, on_host
from server import wait_until
from test_hosts import prompts

REQUESTS = 12


@pytest.fixture(params=["grpc", "ucx"])
def fleet(request, tmp_path, other_host):
    with fleet_on_two_hosts(tmp_path, other_host, request.param) as fleet:
        yield fleet


@pytest.fixture
def shape(other_host):
    """shape("tbf", ...) makes the link so, in both directions, until the test ends."""
    there, ours, theirs = other_host

    def apply(*discipline):
        for device, where in ((ours, ()), (theirs, there)):
            on_host("tc", "qdisc", "replace", "dev", device, "root", *discipline, there=where)
    yield apply
    for device, where in ((ours, ()), (theirs, there)):
        subprocess.run([*where, "tc", "qdisc", "del", "dev", device, "root"], capture_output=True)


def answers(router, asked):
    with concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(lambda prompt: router.complete(prompt, max_tokens=4), asked))


def same_processes(router, prefill, decode):
    assert prefill.process.poll() is None and decode.process.poll() is None
    assert router.process.poll() is None


@pytest.mark.parametrize("mbit", [200, 20])
def test_what_arrives_late_is_not_computed_again(fleet, shape, hybrid, mbit):
    router, prefill, decode = fleet
    asked = prompts(seed=mbit, count=REQUESTS)
    want = [hybrid.complete(prompt, max_tokens=4) for prompt in asked]
    router.complete(asked[0][:40], max_tokens=1)  # They know each other.
    computed = router.total("tandem_worker_prompt_tokens_total")
    shape("tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "100ms")
    assert answers(router, asked) == want
    # Each prompt was asked of a worker once, and each block came that was promised.
    assert router.total("tandem_worker_prompt_tokens_total") - computed == sum(map(len, asked))
    assert router.total("tandem_stream_resumes_total") == 0
    assert router.total("tandem_prefill_pauses_total") == 0
    same_processes(router, prefill, decode)
    router.wait_idle()


def test_a_link_that_swallows_everything_costs_no_token(fleet, shape, hybrid):
    router, prefill, decode = fleet
    asked = prompts(seed=9, count=REQUESTS)
    want = [hybrid.complete(prompt, max_tokens=4) for prompt in asked]
    router.complete(asked[0][:40], max_tokens=1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        shape("tbf", "rate", "20mbit", "burst", "64kb", "latency", "100ms")
        before = router.total("tandem_kv_transfer_bytes_total")
        got = pool.submit(answers, router, asked)
        wait_until(lambda: router.total("tandem_kv_transfer_bytes_total") > before, 30, "blocks move")
        shape("tbf", "rate", "8bit", "burst", "64", "limit", "64")  # No packet of ours fits.
        assert got.result() == want
    assert router.total("tandem_prefill_pauses_total", reason="lost") > 0
    shape("tbf", "rate", "1gbit", "burst", "1mb", "latency", "100ms")
    router.wait_alive("prefill", 1, seconds=60)
    same_processes(router, prefill, decode)
    router.wait_idle(30)
