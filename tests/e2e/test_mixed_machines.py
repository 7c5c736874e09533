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


# What workers of a fleet are told to keep numbers in.
FORMATS = {"auto": [], "weights of 8 bits": ["--weights=int8"], "KV of 8 bits": ["--kv-dtype=int8g8"],
           "4 and 8 bits": ["--weights=int4", "--kv-dtype=int8"], "8-bit floats": ["--kv-dtype=fp8"]}


@pytest.fixture(scope="module", params=FORMATS)
def in_format(request, tmp_path_factory):
    """The reference of fleets in a format, and what its workers are told."""
    flags = FORMATS[request.param]
    with Server(tmp_path_factory.mktemp("format"), DEMO_MODEL, "--hybrid=1", *flags) as server:
        yield server, flags


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


def test_blocks_move_between_instruction_sets(tmp_path, pair, hybrid, in_format):
    requests = mixed_requests(seed=32, count=5)
    reference, flags = in_format
    want = [ask(reference, request) for request in requests]
    assert (fingerprint(reference) == fingerprint(hybrid)) == (flags == [])
    for prefill_isa, decode_isa in (pair, pair[::-1]):
        folder = tmp_path / prefill_isa
        folder.mkdir()
        prefill = Worker(folder, "prefill", "--role=prefill", f"--isa={prefill_isa}", *flags)
        decode = Worker(folder, "decode", "--role=decode", f"--isa={decode_isa}", *flags)
        with prefill, decode, Router(folder, [prefill, decode], "--disaggregate=always") as router:
            assert [ask(router, request) for request in requests] == want
            assert fingerprint(router) == fingerprint(reference)
            wait_until(lambda: router.total("tandem_kv_transfer_bytes_total") > 0, 10, "blocks have moved")
