"""What an operator hears of workers that are lost, and of those that have nobody to compute for."""

import contextlib
import json
import signal

from fleet import Router, Worker
from server import wait_until

WAIT_S = 60  # For what takes no time, on a machine that has none.


def lines(router, message):
    return [line for line in map(json.loads, router.log().splitlines()) if line["message"] == message]


def test_who_is_lost_is_named_and_told_once(tmp_path):
    workers = [Worker(tmp_path, name, "--role=decode") for name in ("stays", "dies", "leaves")]
    stays, dies, leaves = workers
    with contextlib.ExitStack() as running:
        for worker in workers:
            running.enter_context(worker)
        router = running.enter_context(Router(tmp_path, workers))
        assert router.client.get("/ready").json()["lost"] == 0
        leaves.process.send_signal(signal.SIGTERM)
        assert leaves.process.wait(WAIT_S) == 0
        wait_until(lambda: any(line["worker"] == "leaves" for line in lines(router, "watch ended")), WAIT_S,
                   "the router knows that it has left")
        dies.kill()
        answer = wait_until(lambda: (got := router.client.get("/ready").json())["lost"] and got, WAIT_S, "one is lost")
        lost, = answer["lost_workers"]
        assert (lost["name"], lost["address"], lost["role"]) == ("dies", dies.target, "decode") and lost["why"]
        for worker in (dies, leaves):  # For the end of the test.
            worker.start()
        router.wait_alive("decode", 3)
        assert router.client.get("/ready").json()["lost"] == 0
        told, = lines(router, "a worker is lost")
        assert (told["level"], told["worker"], told["address"], told["role"]) == ("warning", "dies", dies.target, "decode")


def test_a_router_that_leaves_loses_nobody(tmp_path):
    with Worker(tmp_path, "worker") as worker, Router(tmp_path, [worker]) as router:
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(WAIT_S) == 0
        assert lines(router, "ended") and not lines(router, "a worker is lost")


def test_a_prefill_worker_that_pairs_with_nobody_is_told_in_what_they_differ(tmp_path):
    with Worker(tmp_path, "decode", "--role=decode") as decode, \
            Worker(tmp_path, "prefill", "--role=prefill", "--block-size=32") as prefill, \
            Router(tmp_path, [decode, prefill]) as router:
        told, = wait_until(lambda: lines(router, "a prefill worker computes for nobody: no decode worker can take its blocks"),
                           WAIT_S, "it is told")
        assert (told["worker"], told["nearest"], told["decode_workers"], told["differs"]) == \
            ("prefill", "decode", 1, "kv_class, block size")
        assert "--block-size: it has 32, the decode worker 16" in told["why"]
