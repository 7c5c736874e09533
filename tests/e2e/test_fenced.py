"""A worker whose device memory is elsewhere (kernels/fenced) beside one on the CPU: the same tokens, whoever
computes the prompt, and after kills."""

import concurrent.futures

import pytest

from fleet import Router, Worker
from server import BIN, wait_until
from test_faults import AT_ONCE, Load, ask, mixed_requests
from test_mixed_machines import fingerprint

FENCED = BIN.parent / "tests" / "fenced_worker"
RESUMES = 10


def worker(folder, name, *flags):
    fenced = {"program": FENCED} if name.startswith("fenced") else {}
    return Worker(folder, name, *flags, **fenced)


@pytest.mark.parametrize("transport", ["ucx", "grpc"])
@pytest.mark.parametrize("prefill, decode", [("fenced", "cpu"), ("cpu", "fenced")])
def test_blocks_move_across_the_fence(tmp_path, hybrid, transport, prefill, decode):
    requests = mixed_requests(seed=41, count=6)
    want = [ask(hybrid, request) for request in requests]
    workers = [worker(tmp_path, prefill, "--role=prefill", f"--transport={transport}"),
               worker(tmp_path, decode, "--role=decode", f"--transport={transport}")]
    with workers[0], workers[1], Router(tmp_path, workers, "--disaggregate=always") as router:
        assert fingerprint(router) == fingerprint(hybrid)
        assert [ask(router, request) for request in requests] == want
        wait_until(lambda: router.total("tandem_kv_transfer_bytes_total") > 0, 10, "blocks have moved")


def test_streams_survive_kills_on_both_sides_of_the_fence(tmp_path, hybrid):
    requests = mixed_requests(seed=42, count=10)
    want = [ask(hybrid, request) for request in requests]
    workers = [worker(tmp_path, "fenced"), worker(tmp_path, "cpu")]
    with workers[0], workers[1], Router(tmp_path, workers) as router:
        router.wait_alive("hybrid", 2)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            load = Load(pool, router, requests, want)
            while router.total("tandem_stream_resumes_total") < RESUMES:
                for victim in workers:
                    before = router.total("tandem_generated_tokens_total")
                    wait_until(lambda: load.go_on() or router.total("tandem_generated_tokens_total") > before + 300,
                               60, "300 more tokens are generated")
                    victim.kill()
                    victim.start()
                    router.wait_alive("hybrid", 2)
            load.end()
        router.wait_idle(30)
