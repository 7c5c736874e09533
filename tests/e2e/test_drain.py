"""SIGTERM of a router under load: no request is lost, none that has begun to come is refused, nobody holds it up."""

import collections
import contextlib
import json
import select
import signal
import socket
import threading

import httpx
import pytest

from fleet import Router, Worker
from server import DEMO_MODEL, Server, wait_until

WAIT_S = 60  # For what takes no time, on a machine that has none.
BODY = json.dumps({"model": "default", "prompt": [5, 6, 7], "max_tokens": 3}).encode()
LONG = {"model": "default", "prompt": [5, 6, 7], "max_tokens": 7000, "temperature": 0, "ignore_eos": True}


def request(body=BODY):
    return (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)) + body


def connect(router):
    host, port = router.http.split(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def read_answer(connection):
    """Status and fields, in lower case; None: it ended before."""
    received = b""
    while b"\r\n\r\n" not in received:
        more = connection.recv(65536)
        if not more:
            return None
        received += more
    head, _, body = received.partition(b"\r\n\r\n")
    first, *rest = head.decode().lower().split("\r\n")
    fields = dict(line.split(": ", 1) for line in rest)
    while len(body) < int(fields["content-length"]):
        body += connection.recv(65536)
    return int(first.split()[1]), fields


def draining(router):
    return '"draining"' in router.log()


def ask_with_a_pool(router, other, seen, ending):
    """As a client of two routers does: it goes on elsewhere only if nobody took its connection."""
    with httpx.Client(timeout=WAIT_S) as pool:
        while not ending.is_set():
            for url in (router.url, other.url):
                with contextlib.suppress(httpx.ConnectError):
                    answer = pool.post(f"{url}/v1/completions", content=BODY, headers={"Content-Type": "application/json"})
                    seen[answer.status_code, url == router.url] += 1
                    break


def ask_on_one_connection(router, seen):
    """Until its answer says that it is the last. A request that is sent on a connection that stands must be answered."""
    with connect(router) as connection:
        while True:
            if select.select([connection], [], [], 0)[0]:
                seen["closed while it asked nothing"] += 1
                return
            connection.sendall(request())
            status, fields = read_answer(connection)
            seen[status] += 1
            if fields.get("connection") == "close":
                seen["told"] += 1
                return


def test_sigterm_of_one_of_two_routers_loses_no_request(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with Worker(tmp_path, "worker") as worker, Router(tmp_path / "two", [worker]) as other, \
            Router(tmp_path / "one", [worker]) as router:
        pooled, raw, ending, failures = collections.Counter(), collections.Counter(), threading.Event(), []

        def run(ask, *arguments):
            try:
                ask(*arguments)
            except Exception as failure:
                failures.append(failure)

        clients = [threading.Thread(target=run, args=(ask_with_a_pool, router, other, pooled, ending)) for _ in range(4)]
        clients += [threading.Thread(target=run, args=(ask_on_one_connection, router, raw)) for _ in range(8)]
        for client in clients:
            client.start()
        try:
            wait_until(lambda: pooled[200, True] > 50 and raw[200] > 50, WAIT_S, "all are busy")
            router.process.send_signal(signal.SIGTERM)
            assert router.process.wait(WAIT_S) == 0
            before = pooled[200, False]
            wait_until(lambda: pooled[200, False] > before + 20, WAIT_S, "those with a pool go on at the other")
        finally:
            ending.set()
            for client in clients:
                client.join(WAIT_S)
        assert failures == []
        assert set(pooled) == {(200, True), (200, False)}
        assert set(raw) == {200, "told"} and raw["told"] == 8


@pytest.mark.parametrize("part", [0, 20, len(request()) - 20, len(request()) - 1])
def test_a_request_that_has_begun_to_come_is_served(tmp_path, part):
    with Worker(tmp_path, "worker") as worker, Router(tmp_path, [worker]) as router, connect(router) as connection:
        connection.sendall(request()[:part])
        wait_until(lambda: router.total("tandem_http_connections") >= 2, WAIT_S, "it is taken")
        router.process.send_signal(signal.SIGTERM)
        wait_until(lambda: draining(router), WAIT_S, "it drains")
        connection.sendall(request()[part:])
        status, fields = read_answer(connection)
        assert (status, fields["connection"]) == (200, "close")
        assert connection.recv(1) == b""
        assert router.process.wait(WAIT_S) == 0


def test_a_stream_that_began_before_comes_to_its_end(tmp_path):
    body = json.dumps(LONG | {"max_tokens": 300, "stream": True}).encode()
    with Worker(tmp_path, "worker") as worker, Router(tmp_path, [worker]) as router, connect(router) as connection:
        connection.sendall(request(body))
        received = connection.recv(65536)
        router.process.send_signal(signal.SIGTERM)
        while not received.endswith(b"0\r\n\r\n"):
            more = connection.recv(65536)
            assert more, "the body has an end"
            received += more
        assert b"[DONE]" in received
        connection.sendall(request())  # It was not told otherwise.
        assert read_answer(connection)[1]["connection"] == "close"
        assert router.process.wait(WAIT_S) == 0


def test_at_its_end_a_drain_tells_who_still_waits(tmp_path):
    """The time is a flag; a stream that nobody reads, and a request that never comes as a whole, do not stretch it."""
    with Worker(tmp_path, "worker") as worker, Router(tmp_path, [worker], "--drain-seconds=3") as router, \
            connect(router) as running, connect(router) as unread, connect(router) as half:
        running.sendall(request(json.dumps(LONG).encode()))
        unread.sendall(request(json.dumps(LONG | {"stream": True}).encode()))
        half.sendall(request()[:-1])
        wait_until(lambda: router.total("tandem_requests_in_flight") == 2, WAIT_S, "both run")
        router.process.send_signal(signal.SIGTERM)
        for connection in (running, half):
            status, fields = read_answer(connection)
            assert status == 503 and fields["connection"] == "close"
        assert router.process.wait(WAIT_S) == 0
        assert '"draining","seconds":3' in router.log() and '"ended","drained":false' in router.log()


def test_a_second_sigterm_ends_it_at_once(tmp_path):
    with Worker(tmp_path, "worker") as worker, Router(tmp_path, [worker], "--drain-seconds=3600") as router, \
            connect(router) as running:
        running.sendall(request(json.dumps(LONG | {"stream": True}).encode()))
        running.recv(1)
        router.process.send_signal(signal.SIGTERM)
        wait_until(lambda: draining(router), WAIT_S, "it drains")
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(WAIT_S) == 0
        assert '"ended","drained":false' in router.log()


def test_who_ends_tandem_serve_at_once_cuts_nobody_off_without_a_word(tmp_path):
    with Server(tmp_path, DEMO_MODEL, "--hybrid=1", "--drain-seconds=3600") as server:
        def ends():
            server.process.send_signal(signal.SIGTERM)
            return server.process.poll() is not None

        with server.client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            wait_until(ends, WAIT_S, "it was asked more than once")
            assert any("shutting down" in line for line in lines)
