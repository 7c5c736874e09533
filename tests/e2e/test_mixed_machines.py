"""Old and new machines in one fleet: workers with different instruction sets share KV blocks and continue
each other's streams, and nobody can tell."""

import concurrent.futures
import itertools
import random

import cpu_paths
import pytest

from fleet import Router, Worker
from server import DEMO_MODEL, Server, wait_until
from test_faults import AT_ONCE, Load, ask, mixed_requests

STREAMS = 40


@pytest.fixture(scope="module")
def pair():
    """The two paths that differ most."""
    paths = cpu_paths.here()
    if len(paths) < 2:
        pytest.skip("fewer than two paths of a class are on this machine")
    return paths[0], paths[-1]


@pytest.fixture(scope="module")
def hybrid_int8(tmp_path_factory):
    """The reference of fleets whose matrices are kept in 8 bits."""
    with Server(tmp_path_factory.mktemp("int8"), DEMO_MODEL, "--hybrid=1", "--weights=int8") as server:
        yield server


def fingerprint(server):
    body = {"model": "default", "prompt": [5, 6, 7], "max_tokens": 1}
    return server.post("/v1/completions", body).json()["system_fingerprint"]


def test_streams_move_between_instruction_sets(tmp_path, pair, hybrid):
    requests = mixed_requests(seed=31, count=10)
    want = [ask(hybrid, request) for request in requests]
    workers = [Worker(tmp_path, f"hybrid-{isa}", f"--isa={isa}") for isa in pair]
    with workers[0], workers[1], Router(tmp_path, workers) as router:
        assert fingerprint(router) == fingerprint(hybrid)
        router.wait_alive("hybrid", 2)
        rng = random.Random(17)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            load = Load(pool, router, requests, want)
            for victim in itertools.cycle(workers):
                load.go_on()
                if router.total("tandem_stream_resumes_total") >= STREAMS:
                    break
                # Everybody has got further since the last one, as nobody knows who killed them.
                before = router.total("tandem_generated_tokens_total")
                enough = rng.randrange(200, 600)
                wait_until(lambda: load.go_on() or router.total("tandem_generated_tokens_total") > before + enough,
                           60, f"{enough} more tokens are generated")
                victim.kill()
                victim.start()
                router.wait_alive("hybrid", 2)
            load.end()
        router.wait_idle(30)


@pytest.mark.parametrize("weights", ["auto", "int8"])
def test_blocks_move_between_instruction_sets(tmp_path, pair, hybrid, hybrid_int8, weights):
    requests = mixed_requests(seed=32, count=5)
    reference, other = (hybrid, hybrid_int8) if weights == "auto" else (hybrid_int8, hybrid)
    want = [ask(reference, request) for request in requests]
    assert fingerprint(reference) != fingerprint(other)
    for prefill_isa, decode_isa in (pair, pair[::-1]):
        folder = tmp_path / prefill_isa
        folder.mkdir()
        prefill = Worker(folder, "prefill", "--role=prefill", f"--isa={prefill_isa}", f"--weights={weights}")
        decode = Worker(folder, "decode", "--role=decode", f"--isa={decode_isa}", f"--weights={weights}")
        with prefill, decode, Router(folder, [prefill, decode], "--disaggregate=always") as router:
            assert [ask(router, request) for request in requests] == want
            assert fingerprint(router) == fingerprint(reference)
            wait_until(lambda: router.total("tandem_kv_transfer_bytes_total") > 0, 10, "blocks have moved")
