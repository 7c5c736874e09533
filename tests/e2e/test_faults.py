"""Workers are killed and stopped while their requests run: clients see the same tokens."""

import concurrent.futures
import os
import random
import signal
import time

import cpu_paths
import pytest

from fleet import UnequalFleet
from server import DEMO_MODEL, Server, process_state, wait_until

# Long enough that a kill finds them running.
PROMPT_TOKENS, OUTPUT_TOKENS, AT_ONCE = 600, 250, 6


def mixed_requests(seed, count):
    rng = random.Random(seed)
    kinds = [{"temperature": 0}, {"temperature": 1.0, "seed": 1}, {"temperature": 1.0, "seed": 2, "n": 4},
             {"temperature": 0, "logprobs": 2}, {"temperature": 0.9, "seed": 4, "stop": ["zebra", " the Lord"]},
             {"temperature": 0, "logit_bias": {str(token): -100 for token in range(20, 320)}},
             {"temperature": 1.0, "seed": 5, "n": 2, "logit_bias": {"50": 4, "900": -100, "2000": 3.5}}]
    return [dict(prompt=[rng.randrange(16, 4000) for _ in range(PROMPT_TOKENS)],
                 max_tokens=OUTPUT_TOKENS, ignore_eos=True, **kinds[i % len(kinds)])
            for i in range(count)]


def ask(server, request):
    """What a client keeps of an answer: ids, text, logprobs and why it ended."""
    body = {"model": "default", "return_token_ids": True} | request
    response = server.post("/v1/completions", body, timeout=300)
    assert response.status_code == 200, response.text
    return [(choice["token_ids"], choice["text"], choice["logprobs"], choice["finish_reason"])
            for choice in response.json()["choices"]]


@pytest.fixture(scope="module")
def fault_free(hybrid):
    requests = mixed_requests(seed=9, count=14)
    return requests, [ask(hybrid, request) for request in requests]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("fleet"), DEMO_MODEL, "--prefill=2", "--decode=2",
                "--disaggregate=always", "--threads=1") as server:
        yield server


class Load:
    """AT_ONCE of `requests` at any time, again and again, each of which must be answered as `want` has it."""

    def __init__(self, pool, server, requests, want):
        self.pool, self.server, self.requests, self.want = pool, server, requests, want
        self.asked, self.running = 0, {}

    def go_on(self):
        """Looks at the answers that are there, and asks as many again."""
        for future in [future for future in self.running if future.done()]:
            self.check(future, self.running.pop(future))
        while len(self.running) < AT_ONCE:
            index = self.asked % len(self.requests)
            self.asked += 1
            self.running[self.pool.submit(ask, self.server, self.requests[index])] = index

    def end(self):
        for future, index in self.running.items():
            self.check(future, index)

    def check(self, future, index):
        assert future.result() == self.want[index], f"request {index} changed its answer"


def run_faults(server, requests, want, faults, inject, workers=2):
    """Keeps AT_ONCE requests running and injects faults, one at a time, until all were counted.

    A fault counts once it moved a stream: tandem_stream_resumes_total went up after it. It does not
    wait for a whole fleet: workers may be lost faster than they come back.
    """
    rng = random.Random(123)
    counted = 0
    names = [f"{role}-{i}" for role in ("prefill", "decode") for i in range(workers)]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        load = Load(pool, server, requests, want)
        end = time.monotonic() + 30 * faults + 120
        while counted < faults:
            assert time.monotonic() < end, f"only {counted} of {faults} faults met a running stream"
            load.go_on()
            before = server.total("tandem_stream_resumes_total")
            inject(server, rng.choice(names), rng)
            load.go_on()
            if server.total("tandem_stream_resumes_total") > before:
                counted += 1
        load.end()
    server.wait_idle(30)
    print(f"{counted} counted faults, {load.asked} requests, "
          f"{server.total('tandem_stream_resumes_total'):.0f} resumed streams")


def kill(server, name, rng):
    time.sleep(rng.uniform(0.1, 0.5))  # Which phase it hits is the point, not a synchronisation.
    server.kill(name)


def stop(server, name, rng):
    time.sleep(rng.uniform(0.0, 0.3))
    pid = server.kill(name, signal.SIGSTOP)
    # It goes on once its streams have moved, or would have, had it any.
    def given_up():
        return server.total("tandem_stream_resumes_total"), server.log().count("the worker is silent")
    before, end = given_up(), time.monotonic() + 6
    while given_up() == before and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: process_state(pid) in ("S", "R", "D", None), 5, f"{name} goes on")


def test_killed_workers_lose_no_token(fleet, fault_free, full):
    run_faults(fleet, *fault_free, faults=200 if full else 8, inject=kill)


OTHER_ISA = (cpu_paths.here() or ["generic"])[-1]
# In context, batch, size of blocks and instruction set. The last one of each role holds no request of
# these whole.
UNEQUAL = {"prefill-0": ["--max-model-len=900", "--max-num-seqs=4"],
           "prefill-1": ["--max-model-len=1500", f"--isa={OTHER_ISA}"],
           "prefill-2": ["--max-model-len=300"],
           "decode-0": ["--max-model-len=900", "--max-num-seqs=8", f"--isa={OTHER_ISA}"],
           "decode-1": ["--max-model-len=1500", "--block-size=32"],
           "decode-2": ["--max-model-len=700"]}


def test_unequal_workers_lose_no_token(tmp_path, fault_free, full):
    with UnequalFleet(tmp_path, UNEQUAL, "--disaggregate=always") as fleet:
        fleet.wait_alive("decode", 3)
        run_faults(fleet, *fault_free, faults=200 if full else 4, inject=kill)
        if full:
            run_faults(fleet, *fault_free, faults=50, inject=stop)


def test_a_killed_unequal_pair_loses_no_token(tmp_path, fault_free, full):
    pair = {"prefill-0": UNEQUAL["prefill-1"], "decode-0": UNEQUAL["decode-0"]}
    with UnequalFleet(tmp_path, pair, "--disaggregate=always") as fleet:
        fleet.wait_alive("decode", 1)
        run_faults(fleet, *fault_free, faults=100 if full else 3, inject=kill, workers=1)


def test_a_killed_pair_loses_no_token(tmp_path, fault_free, full):
    with Server(tmp_path, DEMO_MODEL, "--prefill=1", "--decode=1", "--disaggregate=always",
                "--threads=1") as server:
        run_faults(server, *fault_free, faults=100 if full else 4, inject=kill, workers=1)


def test_kills_that_come_faster_than_a_prompt_computes_end_no_request(tmp_path, full):
    """However slow the machine: four workers in a row are lost long before a prompt is computed."""
    rng = random.Random(5)
    requests = [{"prompt": [rng.randrange(16, 4000) for _ in range(1200)], "max_tokens": 10,
                 "temperature": 0, "ignore_eos": True} for _ in range(3)]
    with Server(tmp_path, DEMO_MODEL, "--prefill=1", "--decode=1", "--disaggregate=always",
                "--threads=1", "--isa=generic") as server:
        began = time.monotonic()
        want = [ask(server, request) for request in requests]
        prompt_seconds = (time.monotonic() - began) / len(requests)

        def kill_one_of(*names):
            server.kill(rng.choice(names))
            server.wait_alive("prefill", 1)
            server.wait_alive("decode", 1)

        kill_one_of("prefill-0")  # And with it what it has cached, then the other's.
        kill_one_of("decode-0")
        least, most = (60, 200) if full else (12, 40)
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
            running, answers, kills, resumed = [], [], 0, 0
            # Where processes start slowly a request may end between two kills: then others take their place.
            while kills < least or (resumed <= 8 and kills < most):
                if all(future.done() for future in running):
                    answers += running
                    running = [pool.submit(ask, server, request) for request in requests]
                time.sleep(rng.uniform(0.1, 0.3) * prompt_seconds)
                kill_one_of("prefill-0", "decode-0")
                kills += 1
                resumed = server.total("tandem_stream_resumes_total")
            answers += running
            assert [future.result() for future in answers] == want * (len(answers) // len(want))
        print(f"{kills} kills, a prompt takes {prompt_seconds:.2f} s, {resumed:.0f} resumed streams")
        assert resumed > 8, "too few kills met a running stream to tell anything"
        assert server.total("tandem_requests_total", outcome="poison") == 0


def test_stopped_workers_lose_no_token(fleet, fault_free, full):
    run_faults(fleet, *fault_free, faults=50 if full else 3, inject=stop)
