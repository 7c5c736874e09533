"""Requests and clients take turns: nobody waits for all the choices, or all the requests, of another."""

import http.client
import itertools
import json
import threading

import pytest

from server import DEMO_MODEL, Server, wait_until

CHOICES = 128
TOKENS = 150
POOL_BYTES = 20_000_000


@pytest.fixture(scope="module")
def small_batches(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("fairness"), DEMO_MODEL, "--hybrid=1", "--max-num-seqs=8",
                "--kv-memory=400000000") as server:
        yield server


def test_a_request_of_one_token_does_not_wait_for_128_choices(small_batches):
    server = small_batches
    body = {"model": "default", "max_tokens": TOKENS, "ignore_eos": True, "n": CHOICES,
            "prompt": [100 + i for i in range(20)], "temperature": 1.0, "seed": 5}
    newcomer = {"model": "default", "max_tokens": 1, "prompt": [77, 78, 79], "temperature": 0}
    begun = {"model": "default", "max_tokens": 2, "prompt": [55] * 30, "temperature": 0}
    received = 0
    with server.events(body) as events:
        while received < 3 * CHOICES:  # Every choice runs.
            received += len(next(events)["choices"])
        for request in [newcomer, begun]:
            before = server.total("tandem_generated_tokens_total")
            answer = server.post("/v1/completions", request, timeout=600)
            assert answer.status_code == 200, answer.text
            after = server.total("tandem_generated_tokens_total")
            # Steps of eight tokens: of 2,400 some that pass while HTTP does its part.
            assert after - before < CHOICES * TOKENS / 8
        received += sum(len(event["choices"]) for event in events)
    assert received >= CHOICES * TOKENS
    assert server.total("tandem_preemptions_total") == 0
    server.wait_idle()


def test_a_client_does_not_wait_behind_hundreds_of_requests_of_another(small_batches):
    server = small_batches
    queued = 240
    body = {"model": "default", "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0,
            "prompt": [[100 + i, 7, 8] for i in range(queued)]}
    answers = []

    def flood():
        address, port = server.http.split(":")
        connection = http.client.HTTPConnection(address, int(port), timeout=600, source_address=("127.0.0.2", 0))
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answers.append(json.load(connection.getresponse()))

    def done():
        return server.total("tandem_requests_total", outcome="done")

    before = done()
    thread = threading.Thread(target=flood)
    thread.start()
    try:
        wait_until(lambda: server.total("tandem_queue_depth") > queued * 3 / 4, 60, "most of them to wait")
        newcomer = {"model": "default", "max_tokens": 1, "prompt": [77, 78, 80], "temperature": 0}
        answer = server.post("/v1/completions", newcomer, timeout=600)
        waiting = server.total("tandem_queue_depth")
        assert answer.status_code == 200, answer.text
        assert waiting > queued / 2, "most of what the other asked for still waits"
    finally:
        thread.join()
    assert len(answers[0]["choices"]) == queued
    assert done() - before == queued + 1
    server.wait_idle()


@pytest.fixture(scope="module", params=["hybrid", "disaggregated"])
def small_pool(request, tmp_path_factory):
    fleet = ["--hybrid=1"] if request.param == "hybrid" else ["--prefill=1", "--decode=1", "--disaggregate=always"]
    with Server(tmp_path_factory.mktemp(request.param), DEMO_MODEL, *fleet, f"--kv-memory={POOL_BYTES}",
                "--max-model-len=1024") as server:
        yield server


def test_a_newcomer_gets_blocks_though_choices_fill_the_pool(small_pool):
    server = small_pool
    body = {"model": "default", "max_tokens": TOKENS, "ignore_eos": True, "n": 64,
            "prompt": [100 + i for i in range(400)], "temperature": 1.0, "seed": 6}
    newcomer = {"model": "default", "max_tokens": 20, "ignore_eos": True, "prompt": list(range(200, 500)),
                "temperature": 0}
    alone = server.post("/v1/completions", newcomer, timeout=600).json()
    newcomer["prompt"] = newcomer["prompt"][1:]  # Not cached.
    finished = 0
    with server.events(body) as events:
        while server.total("tandem_preemptions_total") == 0:  # The pool is full.
            for event in itertools.islice(events, 64):
                finished += sum(choice["finish_reason"] is not None for choice in event["choices"])
            assert finished == 0
        before = server.total("tandem_generated_tokens_total")
        answer = server.post("/v1/completions", newcomer, timeout=600)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"] == 20
        after = server.total("tandem_generated_tokens_total")
        # Who waits for the choices' blocks waits for all that they still have to generate.
        assert after - before < (64 * TOKENS - before) * 0.8
        for event in events:
            finished += sum(choice["finish_reason"] is not None for choice in event["choices"])
    assert finished == 64
    server.wait_idle()
