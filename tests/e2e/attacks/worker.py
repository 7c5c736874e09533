"""A worker that knows the fleet's secret and means harm, before a real router."""

import base64
import contextlib
import os
import socket
import struct
import threading
import time

import hpack

from attacks.harness import (DATA, END_HEADERS, END_STREAM, HEADERS, INITIAL_WINDOW_SIZE, LIMIT, SETTINGS,
                             WINDOW_UPDATE, MiB, attack, frame, grpc_message, proto)
from fleet import SECRET, Router, Worker
from server import digest, wait_until

SLACK = 16 * MiB
PING, RST_STREAM, ACK = 6, 3, 1
HASHES = 1 << 17  # As many as a router takes in one message.


def fixed64(number, value):
    return bytes([number << 3 | 1]) + struct.pack("<Q", value)


class Gone(Exception):
    """The router has ended the call, or its connection."""


class Call:
    def __init__(self, connection, stream, headers):
        self.connection, self.stream, self.headers = connection, stream, headers
        self.room = connection.initial_room
        self.ended = False

    def begin(self, *more):
        self.connection.send_headers(self.stream, [(":status", "200"), ("content-type", "application/grpc"), *more])

    def say(self, message):
        """As fast as the router takes it."""
        data = grpc_message(message)
        while data:
            room = self.connection.take_room(self, len(data))
            self.connection.send(frame(DATA, self.stream, data[:room]))
            data = data[room:]

    def end(self, status=0):
        self.connection.send_headers(self.stream, [("grpc-status", str(status))], END_STREAM)


class Connection:
    """HTTP/2, as far as gRPC's clients use it."""

    def __init__(self, client, serve):
        self.client, self.serve = client, serve
        self.reader = client.makefile("rb")
        self.calls = {}
        self.room, self.initial_room = 65535, 65535
        self.changed, self.sending = threading.Condition(), threading.Lock()
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()
        self.gone = False

    def run(self):
        try:
            self.reader.read(24)
            self.send(frame(SETTINGS, 0))
            while len(head := self.reader.read(9)) == 9:
                payload = self.reader.read(int.from_bytes(head[:3], "big"))
                self.take(head[3], head[4], int.from_bytes(head[5:9], "big") & 0x7fffffff, payload)
        except OSError:
            pass
        with self.changed:
            self.gone = True
            self.changed.notify_all()

    def take(self, kind, flags, stream, payload):
        if kind == HEADERS:
            call = self.calls[stream] = Call(self, stream, dict(self.decoder.decode(payload)))
            threading.Thread(target=self.serve_one, args=[call], daemon=True).start()
        elif kind == DATA and payload:
            for window in 0, stream:
                self.send(frame(WINDOW_UPDATE, window, struct.pack(">I", len(payload))))
        elif kind == PING and not flags & ACK:
            self.send(frame(PING, 0, payload, ACK))
        elif kind == SETTINGS and not flags & ACK:
            self.send(frame(SETTINGS, 0, flags=ACK))
            with self.changed:
                for at in range(0, len(payload), 6):
                    key, value = struct.unpack(">HI", payload[at:at + 6])
                    if key == INITIAL_WINDOW_SIZE:
                        for call in self.calls.values():
                            call.room += value - self.initial_room
                        self.initial_room = value
                self.changed.notify_all()
        elif kind in (WINDOW_UPDATE, RST_STREAM):
            with self.changed:
                if kind == RST_STREAM and stream in self.calls:
                    self.calls.pop(stream).ended = True
                elif kind == WINDOW_UPDATE and stream == 0:
                    self.room += int.from_bytes(payload, "big")
                elif kind == WINDOW_UPDATE and stream in self.calls:
                    self.calls[stream].room += int.from_bytes(payload, "big")
                self.changed.notify_all()

    def serve_one(self, call):
        with contextlib.suppress(Gone, OSError):
            self.serve(call)

    def take_room(self, call, wanted):
        with self.changed:
            while not (self.gone or call.ended) and min(self.room, call.room) <= 0:
                self.changed.wait()
            if self.gone or call.ended:
                raise Gone
            room = min(self.room, call.room, wanted, 16384)
            self.room, call.room = self.room - room, call.room - room
            return room

    def send(self, data):
        with self.sending:
            self.client.sendall(data)

    def send_headers(self, stream, headers, flags=0):
        with self.sending:
            self.client.sendall(frame(HEADERS, stream, self.encoder.encode(headers), END_HEADERS | flags))


class HostileWorker:
    """Registers as a worker of another model, and behaves until `harm` is one of its methods' names."""

    def __init__(self):
        self.challenge = os.urandom(16)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.harm = None
        self.watches = self.sessions = self.messages = 0
        self.clients = []

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.leave()

    def leave(self):
        """Every connection ends; those to come behave."""
        self.harm = None
        for client in self.clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.clients.append(client)
                threading.Thread(target=Connection(client, self.serve).run, daemon=True).start()

    def serve(self, call):
        method = call.headers[":path"]
        if method == "/tandem.v1.Fleet/Challenge":
            call.begin()
            call.say(proto([(1, self.challenge)]))
            return call.end()
        call.begin(("tandem-proof-bin", self.proof(call, method)))
        {"Watch": self.watch, "Session": self.session, "Control": self.control}[method.rpartition("/")[2]](call)

    def proof(self, call, method):
        given = call.headers["tandem-proof-bin"]
        nonce = base64.b64decode(given + "=" * (-len(given) % 4))[16:32]
        return base64.b64encode(digest("called", self.challenge, nonce, method, self.target, SECRET)).decode()

    def registration(self, name, model=b"another"):
        """Of every protocol there is: a router that refuses it would not be attacked."""
        worker = proto([(1, name)]) + fixed64(2, 7)
        return proto([(1, proto([(1, worker), (2, 3), (3, model), (4, b"class"), (5, b"numerics"), (6, 1), (7, 1000),
                                 (8, 16), (9, 1024), (10, 8), (11, 64), (12, 4096), (13, b"grpc"), (18, 1)]))])

    HEARTBEAT = proto([(2, proto([(2, 0)]))])
    NO_EVENTS = proto([(3, proto([(2, 1)]))])

    def watch(self, call):
        self.watches += 1
        if self.harm:
            return getattr(self, self.harm)(call)
        call.say(self.registration(b"hostile"))
        call.say(self.NO_EVENTS)
        while not self.harm:
            call.say(self.HEARTBEAT)
            time.sleep(0.1)
        call.end()

    def session(self, call):
        self.sessions += 1
        call.say(fixed64(1, 7))
        while self.harm != "floods_sessions":
            if call.ended or call.connection.gone:
                return
            time.sleep(0.05)
        attempt = proto([(1, fixed64(1, 7) + proto([(2, 1 << 20)])), (2, 1)])
        event = proto([(2, proto([(5, proto([(1, attempt), (2, 2)]))]))])
        while self.harm:
            self.messages += 1
            for count in 1000, 20_000, 200_000:
                call.say(fixed64(1, 7) + event * count)

    def control(self, call):
        # Other labels each time.
        label = proto([(1, b"kind"), (2, os.urandom(8).hex().encode() * 32)])
        sample = proto([(1, label)])
        families = proto([(1, proto([(1, b"hostile_total"), (2, b"x"), (3, 1), (4, sample)]))]) * 300
        call.say(proto([(2, families)]) if self.harm else b"\x12\x00")
        call.end()

    # ---- What may be done to a router ----

    def floods_watches(self, call):
        call.say(self.registration(b"hostile"))
        while self.harm:
            call.say(proto([(3, proto([(2, 1), (3, os.urandom(16 * HASHES))]))]))
            for _ in range(100):
                call.say(self.HEARTBEAT)
            self.messages += 101

    def floods_sessions(self, call):
        call.say(self.registration(b"hostile"))
        while self.harm:
            call.say(self.HEARTBEAT)
            time.sleep(0.1)

    def renames(self, call):
        call.say(self.registration(os.urandom(128).hex().encode(), os.urandom(2048).hex().encode()))
        call.say(self.NO_EVENTS)
        time.sleep(0.3)  # Long enough to be asked for its metrics now and then.
        self.messages += 1
        call.end()

    def says_what_nobody_knows(self, call):
        """A message whose fields this build does not know takes many times its bytes."""
        call.say(self.registration(b"hostile"))
        self.messages += 1
        call.say(proto([(99, 1)]) * (3 * MiB))


class HostileFleet(Router):
    """Two workers and a router, made by hand, and a third worker that is hostile."""

    def __init__(self, folder):
        self.hostile = HostileWorker()
        self.workers = [*(Worker(folder, f"{role}-0", f"--role={role}", "--transport=grpc")
                          for role in ("prefill", "decode")), self.hostile]
        super().__init__(folder, self.workers, "--disaggregate=always", f"--memory-limit={LIMIT}")

    def __enter__(self):
        with contextlib.ExitStack() as entering:
            for each in self.workers:
                entering.enter_context(each)
            super().__enter__()
            wait_until(lambda: self.hostile.sessions, 30, "the router takes the hostile worker for one of its own")
            self.running = entering.pop_all()
        return self

    def __exit__(self, *failure):
        super().__exit__(*failure)
        self.running.__exit__(*failure)

    def pid(self, name):
        assert name == "router"
        return self.process.pid


def harm(fleet, outcomes, how, messages):
    fleet.hostile.harm = how
    wait_until(lambda: fleet.hostile.messages >= messages, 300, "the router hears it")
    yield
    outcomes["messages"], outcomes["watches"] = fleet.hostile.messages, fleet.hostile.watches
    fleet.hostile.leave()


@attack(growth=LIMIT + SLACK, fleet=HostileFleet)
def hostile_worker_watches(fleet, full, outcomes):
    """A worker that says as much of its cache, and of its load, as the connection carries."""
    yield from harm(fleet, outcomes, "floods_watches", 100_000 if full else 10_000)


@attack(growth=LIMIT + SLACK, only_full=True, fleet=HostileFleet)
def hostile_worker_sessions(fleet, full, outcomes):
    """The same with batches of up to 200,000 events that belong to nobody."""
    yield from harm(fleet, outcomes, "floods_sessions", 200 if full else 20)


@attack(growth=LIMIT + SLACK, only_full=True, fleet=HostileFleet)
def hostile_worker_names(fleet, full, outcomes):
    """A worker of ever new names, models and metrics."""
    yield from harm(fleet, outcomes, "renames", 200 if full else 20)


@attack(growth=LIMIT + SLACK, fleet=HostileFleet)
def hostile_worker_messages(fleet, full, outcomes):
    """Messages that take many times their bytes when they are parsed."""
    yield from harm(fleet, outcomes, "says_what_nobody_knows", 40 if full else 10)
