"""Workers on two hosts: one is a network namespace, KV goes over UCX on the interface between them."""

import concurrent.futures
import random

import pytest

from hosts import fleet_on_two_hosts, on_host
from server import wait_until

KILLS = 6


def prompts(seed, count):
    rng = random.Random(seed)
    return [[rng.randrange(16, 4000) for _ in range(rng.randrange(100, 1500))] for _ in range(count)]


@pytest.fixture
def fleet(tmp_path, other_host):
    with fleet_on_two_hosts(tmp_path, other_host, "ucx") as fleet:
        yield fleet


def kv_bytes(router):
    return router.total("tandem_kv_transfer_bytes_total", transport="ucx")


def ask_until_blocks_move(router, pool, seed):
    """Asks until prompts cross hosts; they do not while the prefill worker is paused after a cut.

    Returns the last prompts, 8 of them, and their answers, which may be on their way.
    """
    rng = random.Random(seed)

    def moved():
        nonlocal asked, answers
        if kv_bytes(router) > before:
            return True
        if all(answer.done() for answer in answers):
            asked = prompts(rng.random(), count=8)
            answers = [pool.submit(router.complete, prompt, max_tokens=4) for prompt in asked]
        return False

    before, asked, answers = kv_bytes(router), [], []
    wait_until(moved, 60, "blocks move")
    return asked, answers


def test_blocks_cross_hosts_and_survive_their_workers(fleet, hybrid):
    router, prefill, decode = fleet
    asked = prompts(seed=5, count=12)
    want = [hybrid.complete(prompt) for prompt in asked]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(router.complete, asked)) == want
        assert kv_bytes(router) > 0
        assert '"path":"ucx message"' in decode.log_path.read_text()

        # The one that is left must neither die with its peer nor give a token away.
        for kill in range(KILLS):
            fresh, answers = ask_until_blocks_move(router, pool, seed=100 + kill)
            victim = (prefill, decode)[kill % 2]
            victim.kill()
            victim.start()
            got = [answer.result() for answer in answers]
            assert got == [hybrid.complete(prompt, max_tokens=4) for prompt in fresh]
            router.wait_alive("prefill", 1)
            router.wait_alive("decode", 1)
    router.wait_idle()


def test_a_cut_between_hosts_loses_no_token(fleet, other_host, hybrid):
    router, _, _ = fleet
    _, ours, _ = other_host
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for cut in range(2):
            fresh, answers = ask_until_blocks_move(router, pool, seed=200 + cut)
            on_host("ip", "link", "set", ours, "down")
            wait_until(lambda: router.total("tandem_workers", role="prefill", state="healthy") == 0, 30,
                       "the cut is noticed")
            got = [answer.result() for answer in answers]
            on_host("ip", "link", "set", ours, "up")
            assert got == [hybrid.complete(prompt, max_tokens=4) for prompt in fresh]
            router.wait_alive("prefill", 1, seconds=60)
    router.wait_idle(30)
