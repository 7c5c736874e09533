"""Memory of the router and the workers, over gRPC."""

import struct

from attacks.harness import (CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, LIMIT, WINDOW_UPDATE, MiB, attack,
                             close, frame, grpc_message, header_block, open_http2, proto, send)
from server import challenge_of, proof

# Beside what is charged: threads, and what the allocator's pages hold beyond it.
SLACK = 16 * MiB
WAITING = 32 * MiB  # Calls that only sent their headers.
STREAMS = 125  # On one connection; the router allows 128...
PEER_STREAMS = 62  # ...and a worker 64.


def call(stream, path, message=None, more=None):
    """The frames of a call, whole if there is a message."""
    frames = frame(HEADERS, stream, header_block(path, more), END_HEADERS)
    return frames if message is None else frames + frame(DATA, stream, grpc_message(message), END_STREAM)


def crowd(address, connections, streams, outcomes, make_call, window=None):
    """`connections` of `streams` calls each, of which nothing is read."""
    clients = []
    for _ in range(connections):
        client = open_http2(address, window)
        if client is None:
            break
        send(client, b"".join(make_call(2 * i + 1) for i in range(streams)))
        clients.append(client)
    outcomes["calls"] += len(clients) * streams
    return clients


@attack(growth=WAITING)
def grpc_headers_only(fleet, full, outcomes):
    """20,000 calls that only send their headers."""
    clients = crowd(fleet.grpc, 160, STREAMS, outcomes,
                    lambda stream: call(stream, "/tandem.v1.Inference/Generate"))
    yield
    close(clients)


@attack(growth=WAITING, only_full=True)
def grpc_headers_only_of_streams(fleet, full, outcomes):
    """The same of a method that streams, and of the health service."""
    clients = []
    for path in "/tandem.v1.Inference/GenerateStream", "/grpc.health.v1.Health/Watch":
        clients += crowd(fleet.grpc, 80, STREAMS, outcomes, lambda stream: call(stream, path))
    yield
    close(clients)


@attack(growth=SLACK)
def grpc_endless_header(fleet, full, outcomes):
    """100 header fields that do not end."""
    clients = []
    for _ in range(100):
        client = open_http2(fleet.grpc)
        if client is None:
            break
        # A field of 4 MiB, as the length of its value says (RFC 7541, 5.1).
        field = b"\0\1x" + b"\x7f" + b"\x81\xff\xff\x01"
        send(client, frame(HEADERS, 1, field + b"a" * 8192))
        for _ in range(512 if full else 64):
            if not send(client, frame(CONTINUATION, 1, b"a" * 8192)):
                break
        clients.append(client)
    outcomes["fields"] = len(clients)
    yield
    close(clients)


@attack(growth=LIMIT + SLACK, only_full=True)
def grpc_unread_answers(fleet, full, outcomes):
    """20,000 answers that nobody reads."""
    clients = crowd(fleet.grpc, 160, STREAMS, outcomes,
                    lambda stream: call(stream, "/tandem.v1.Control/GetServerInfo", b""), window=0)
    yield
    close(clients)


@attack(growth=LIMIT + SLACK)
def grpc_unread_streams(fleet, full, outcomes):
    """Streams of tokens that nobody reads."""
    request = proto([(4, proto([(1, 20), (1, 21)])), (6, proto([(1, 16)])), (8, proto([(1, 1000), (6, 1)]))])
    clients = crowd(fleet.grpc, 1, 16 if full else 4, outcomes,
                    lambda stream: call(stream, "/tandem.v1.Inference/GenerateStream", request), window=0)
    yield
    close(clients)


@attack(growth=LIMIT + 2 * SLACK)
def grpc_unfinished_messages(fleet, full, outcomes):
    """150 messages of 4 MiB that lack one byte."""
    clients = []
    for _ in range(150):
        size = 4 * MiB - 64
        client = open_http2(fleet.grpc)
        if client is None:
            break
        client.settimeout(0.2)
        send(client, call(1, "/tandem.v1.Inference/Generate") + frame(DATA, 1, b"\0" + struct.pack(">I", size)))
        # More than the window is a fault of flow control, so as far as it goes.
        room = take_windows(client, 65535 - 5)
        while size > 1 and room > 0:
            piece = min(room, size - 1, 16384)
            if not send(client, frame(DATA, 1, b"a" * piece)):
                break
            room, size = room - piece, size - piece
            if room == 0:
                room = take_windows(client, 0)
        clients.append(client)
    outcomes["messages"] = len(clients)
    yield
    close(clients)


def take_windows(client, room):
    """Adds what the server says may be sent; only what both windows allow counts."""
    streams = connection = 0
    try:
        data = client.recv(1 << 16)
    except OSError:
        return room
    while len(data) >= 9:
        length, kind = int.from_bytes(data[:3], "big"), data[3]
        stream, payload = int.from_bytes(data[5:9], "big"), data[9:9 + length]
        if kind == WINDOW_UPDATE and len(payload) == 4:
            if stream == 0:
                connection += int.from_bytes(payload, "big")
            else:
                streams += int.from_bytes(payload, "big")
        data = data[9 + length:]
    return room + min(streams, connection)


# ---- Workers ----


@attack(process="decode-0", growth=WAITING)
def worker_strangers(fleet, full, outcomes):
    """20,000 calls to a worker by somebody who does not know the secret."""
    address = fleet.worker_address("decode-0")
    clients = []
    for path in "/tandem.v1.Worker/Control", "/tandem.v1.Worker/Session", "/tandem.v1.Fleet/Challenge":
        clients += crowd(address, 110, PEER_STREAMS, outcomes, lambda stream: call(stream, path))
    yield
    close(clients)


@attack(process="decode-0", growth=LIMIT + SLACK, only_full=True)
def worker_strangers_that_do_not_read(fleet, full, outcomes):
    """Calls that anybody may make, and whose answers nobody reads."""
    address = fleet.worker_address("decode-0")
    clients = []
    for path in "/tandem.v1.Fleet/Challenge", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch":
        clients += crowd(address, 110, PEER_STREAMS, outcomes, lambda stream: call(stream, path, b""), window=0)
        clients += crowd(address, 55, PEER_STREAMS, outcomes, lambda stream: call(stream, path))
    yield
    close(clients)


@attack(process="decode-0", growth=LIMIT + SLACK)
def worker_peers(fleet, full, outcomes):
    """Calls to a worker that only send their headers, by somebody who knows the secret."""
    address = fleet.worker_address("decode-0")
    challenge, secret = challenge_of(address), fleet.secret("decode-0")
    clients = []
    for path in "/tandem.v1.Worker/Control", "/tandem.v1.Worker/Watch", "/tandem.v1.Worker/Session":
        clients += crowd(address, 110 if full else 20, PEER_STREAMS, outcomes, lambda stream: call(
            stream, path, more={"tandem-proof-bin": proof(challenge, address, path, secret)}))
    yield
    close(clients)


# gRPC takes more for a call with its message and its first events than is charged for it.
@attack(process="decode-0", growth=2 * LIMIT, only_full=True)
def worker_watches_unread(fleet, full, outcomes):
    """Watches of a worker that nobody reads."""
    address, path = fleet.worker_address("decode-0"), "/tandem.v1.Worker/Watch"
    challenge, secret = challenge_of(address), fleet.secret("decode-0")
    watch = proto([(1, b"attack"), (2, 1), (3, 1)])
    clients = crowd(address, 20, PEER_STREAMS, outcomes, lambda stream: call(
        stream, path, watch, {"tandem-proof-bin": proof(challenge, address, path, secret)}), window=0)
    yield
    close(clients)
