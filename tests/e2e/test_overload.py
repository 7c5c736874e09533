"""More than a fleet takes at once: everybody is served in turn, and nobody is asked in vain."""

import concurrent.futures
import random
import socket

from fleet import Router, Worker
from server import DEMO_MODEL, Server

CALLS, PROMPTS = 14, 128  # More in all than a worker's queue holds.


def test_few_submits_are_refused_and_nobody_is_called_lost(tmp_path):
    prefill = Worker(tmp_path, "prefill", "--role=prefill", "--max-num-seqs=8")
    decode = Worker(tmp_path, "decode", "--role=decode", "--max-num-seqs=8")
    with prefill, decode, Router(tmp_path, [prefill, decode], "--disaggregate=always") as router:
        router.wait_alive("decode", 1)
        router.wait_alive("prefill", 1)
        rng = random.Random(5)

        def ask(_):
            prompts = [[rng.randrange(16, 4000) for _ in range(33)] for _ in range(PROMPTS)]
            body = {"model": "default", "prompt": prompts, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
            return len(router.post("/v1/completions", body, timeout=300).json()["choices"])

        lost = 0
        with concurrent.futures.ThreadPoolExecutor(CALLS) as pool:
            answers = [pool.submit(ask, call) for call in range(CALLS)]
            while any(not answer.done() for answer in answers):
                lost += router.total("tandem_workers", state="lost")
                concurrent.futures.wait(answers, timeout=0.1)
            assert [answer.result() for answer in answers] == [PROMPTS] * CALLS
        assert lost == 0
        requests = router.total("tandem_requests_total", outcome="done")
        assert requests == CALLS * PROMPTS
        assert router.total("tandem_worker_refusals_total") <= requests / 10
        assert router.total("tandem_stream_resumes_total") == 0
        # Every prompt was computed where it belongs: what the decode worker computed is one token each, and more.
        frames = router.total("tandem_kv_frames_total", outcome="verified")
        assert frames == 3 * requests, "three blocks of every prompt have travelled"


def test_kept_connections_leave_descriptors_for_others(tmp_path):
    server = Server(tmp_path, DEMO_MODEL)
    server.command = ["prlimit", "--nofile=512:512", *server.command]
    host, port = server.http.split(":")
    kept = []
    with server:
        try:
            for _ in range(600):  # One client's, each with an answer, so that it may stay for long.
                kept.append(socket.create_connection((host, int(port)), 60, source_address=("127.0.0.2", 0)))
                kept[-1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert kept[-1].recv(4096).startswith(b"HTTP/1.1 200")
            assert len(server.complete([41, 42, 43], max_tokens=4)) == 1
        finally:
            for connection in kept:
                connection.close()
