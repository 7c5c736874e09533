"""Memory of the router, over HTTP."""

import concurrent.futures
import socket

from attacks.harness import LIMIT, MiB, attack, close, connect, send, status_of

# Beside what is charged: threads, the text of requests that are being parsed, what the kernel's and
# the allocator's pages hold beyond it.
SLACK = 48 * MiB
BODY_BYTES = 4 * MiB


def crowd(fleet, size, speak, outcomes):
    """`size` connections that each say something; those that could be opened."""
    def one(number):
        client = connect(fleet.http)
        if client is not None:
            speak(client, number)
        return client
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        clients = [client for client in pool.map(one, range(size)) if client is not None]
    outcomes["connections"] = len(clients)
    return clients


def post(length):
    return (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\n\r\n").encode()


def posted(fleet, size, bodies, outcomes):
    """`size` connections that post the bodies in turn; counts what they are answered."""
    def speak(client, number):
        body = bodies[number % len(bodies)]
        send(client, post(len(body)) + body)
    clients = crowd(fleet, size, speak, outcomes)
    yield
    for client in clients:
        outcomes[f"status {status_of(client)}"] += 1
    close(clients)


CHUNKED = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
           b"Transfer-Encoding: chunked\r\n\r\n")


@attack(growth=SLACK)
def chunk_extension(fleet, full, outcomes):
    """One chunk extension of 200 MB."""
    client = connect(fleet.http)
    send(client, CHUNKED + b"1;")
    sent, piece = 0, b"a" * MiB
    while sent < 200 * MiB and send(client, piece):
        sent += len(piece)
    outcomes["MiB sent"] = sent // MiB
    yield
    outcomes["status"] = status_of(client)
    client.close()


@attack(growth=LIMIT + SLACK)
def endless_trailers(fleet, full, outcomes):
    """Trailers without an end on many connections."""
    def speak(client, _):
        send(client, CHUNKED + b"1\r\nx\r\n0\r\n")
        for _ in range(64):
            if not send(client, b"T: " + b"t" * 1020 + b"\r\n"):
                return
    clients = crowd(fleet, 2000 if full else 400, speak, outcomes)
    yield
    close(clients)


@attack(growth=LIMIT + SLACK)
def unfinished_heads(fleet, full, outcomes):
    """Heads that lack their last line."""
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(
        b"X-%d: %s\r\n" % (i, b"x" * 150) for i in range(95))
    clients = crowd(fleet, 10000 if full else 2000, lambda client, _: send(client, head), outcomes)
    yield
    close(clients)


@attack(growth=LIMIT + SLACK)
def silent_connections(fleet, full, outcomes):
    """Connections that say nothing."""
    clients = crowd(fleet, 15000 if full else 6000, lambda client, _: None, outcomes)
    yield
    close(clients)


@attack(growth=LIMIT + SLACK)
def unfinished_bodies(fleet, full, outcomes):
    """150 bodies of 4 MiB that lack one byte."""
    body = b" " * (BODY_BYTES - 1)
    clients = crowd(fleet, 150, lambda client, _: send(client, post(BODY_BYTES) + body), outcomes)
    yield
    close(clients)


@attack(growth=LIMIT + SLACK)
def long_texts(fleet, full, outcomes):
    """Whole bodies of 4 MiB of numbers, or of lists in lists beside a message's content."""
    def chat(value):
        return (b'{"messages":[{"role":"user","content":"a","x":[' + value * ((BODY_BYTES - 64) // len(value)) +
                b"0]}]}")
    bodies = [b'{"prompt":[' + b"7," * (BODY_BYTES // 2 - 32) + b"7]}", chat(b"[[[[[[[[]]]]]]]],"), chat(b"[],")]
    yield from posted(fleet, 300 if full else 60, bodies, outcomes)


@attack(growth=LIMIT + SLACK, only_full=True)
def values_to_parse(fleet, full, outcomes):
    """1,000 bodies, each with as many values as may be parsed, or rendered."""
    lists = b'{"max_tokens":1,"messages":[{"role":"user","content":"a","x":[' + b"[[[[[[[[]]]]]]]]," * 5000 + b"0]}]}"
    bodies = [b'{"prompt":[' + b"7," * 200000 + b"7]}", lists]
    yield from posted(fleet, 1000, bodies, outcomes)


def completion(text, size):
    """The body of one whose prompt is `text` again and again."""
    start, end = b'{"max_tokens":1,"prompt":"', b'"}'
    return start + text * ((size - len(start) - len(end)) // len(text)) + end


# The model's context of 8,192 tokens would have room for more than a quarter of the limit has.
LONGEST_TEXT = 40 << 10


@attack(growth=LIMIT + SLACK)
def texts_of_4_mib(fleet, full, outcomes):
    """Texts of 4 MiB: words, one word, one letter to a piece."""
    bodies = [completion(text, BODY_BYTES) for text in (b"In the beginning ", b"a", b"a!", b"1a ")]
    yield from posted(fleet, 300 if full else 60, bodies, outcomes)


@attack(growth=LIMIT + SLACK, only_full=True)
def texts_to_encode(fleet, full, outcomes):
    """1,000 texts, each as long as one may be that cannot be cut."""
    yield from posted(fleet, 1000, [completion(b"a!", LONGEST_TEXT)], outcomes)


@attack(growth=LIMIT + SLACK)
def unread_answers(fleet, full, outcomes):
    """Pages that are asked for again and again and never read."""
    requests = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200

    def speak(client, _):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        send(client, requests)
    clients = crowd(fleet, 150 if full else 30, speak, outcomes)
    yield
    close(clients)


@attack(growth=LIMIT + SLACK)
def sent_ahead(fleet, full, outcomes):
    """Requests sent ahead of an answer that takes its time."""
    body = b'{"model":"default","prompt":"a","max_tokens":1500,"ignore_eos":true}'

    def speak(client, _):
        client.settimeout(1)
        send(client, post(len(body)) + body + b"GET /health HTTP/1.1\r\nX: " + b"y" * (256 << 10))
    clients = crowd(fleet, 60 if full else 40, speak, outcomes)
    yield
    close(clients)


@attack(growth=LIMIT + SLACK, only_full=True)
def whole_answers(fleet, full, outcomes):
    """Answers that are not streamed and hold, all together, twice the limit."""
    body = (b'{"model":"default","prompt":"a","n":128,"max_tokens":100,"logprobs":20,"ignore_eos":true,'
            b'"temperature":1,"seed":3}')

    def speak(client, _):
        client.settimeout(300)
        send(client, post(len(body)) + body)
    clients = crowd(fleet, 12, speak, outcomes)
    yield
    for client in clients:
        outcomes[f"status {status_of(client)}"] += 1
    close(clients)
