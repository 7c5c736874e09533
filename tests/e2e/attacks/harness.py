"""What an attack is run with: a fleet, a look at its memory, and clients that mind their own business."""

import collections
import contextlib
import json
import pathlib
import socket
import struct
import subprocess
import threading
import time

import httpx

from server import DEMO_MODEL, ROOT, Server, grpcurl, wait_until

MiB = 1 << 20
LIMIT = 64 * MiB
# What a process may keep of an attack once it is over.
MAX_LEFT = 32 * MiB
ATTACKER = "127.0.0.2"  # Not the address of the clients that are not to notice.

ATTACKS = {}


def attack(process="router", growth=LIMIT, only_full=False, fleet=None):
    """Registers an attack: `growth` is by how many bytes it may make `process` grow; `only_full`, whether
    it is left out of ./tools/test, which has a minute for all of them; `fleet`, what is attacked, if not a Fleet.

    The function gets the fleet, whether to be at full size, and a Counter of outcomes; it is
    a generator: what it does up to its `yield` is the attack, and it lets go of everything after it.
    """
    def register(function):
        function.process, function.growth, function.only_full = process, growth, only_full
        function.fleet = fleet or Fleet
        ATTACKS[function.__name__] = function
        return function
    return register


class Fleet(Server):
    """One prefill and one decode worker and a router, with the smallest default memory limit."""

    def __init__(self, folder):
        super().__init__(folder, DEMO_MODEL, "--prefill=1", "--decode=1", "--transport=grpc",
                         "--disaggregate=always", f"--memory-limit={LIMIT}")


def rss(fleet, process):
    for line in pathlib.Path(f"/proc/{fleet.pid(process)}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"{process} has ended")


def connect(address):
    """From the attacker's address. None if it is refused."""
    client = socket.socket()
    try:
        client.bind((ATTACKER, 0))
        client.settimeout(10)
        host, port = address.split(":")
        client.connect((host, int(port)))
        return client
    except OSError:
        client.close()
        return None


def send(client, data):
    """As much of it as the other side takes; whether that was all."""
    try:
        client.sendall(data)
        return True
    except OSError:
        return False


def status_of(client):
    """Of the HTTP answer that is there or comes; None if the connection ends without."""
    try:
        line = client.recv(4096).split(b"\r\n", 1)[0]
    except OSError:
        return None
    return int(line.split()[1]) if line.startswith(b"HTTP/1.") else None


def close(clients):
    for client in clients:
        client.close()


# ---- HTTP/2, frame by frame: to say what no library would ----

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, WINDOW_UPDATE, CONTINUATION = 0, 1, 4, 8, 9
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4


def frame(kind, stream, payload=b"", flags=0):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header_block(path, more=None):
    """Of a gRPC call, every field a literal that is not indexed."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "attack",
              "te": "trailers", "content-type": "application/grpc", **(more or {})}
    block = b""
    for name, value in fields.items():
        block += b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return block


def open_http2(address, window=None):
    """A connection that has said hello; `window` is how much of each stream it takes unread."""
    client = connect(address)
    if client is None:
        return None
    settings = b"" if window is None else struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
    send(client, PREFACE + frame(SETTINGS, 0, settings))
    return client


def grpc_message(payload=b""):
    return b"\0" + struct.pack(">I", len(payload)) + payload


def proto(fields):
    """A message of (number, int or bytes) pairs."""
    def varint(value):
        out = b""
        while value > 127:
            out, value = out + bytes([value & 127 | 128]), value >> 7
        return out + bytes([value])
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


# ---- The others ----

class Bystanders:
    """Clients of another address, of HTTP and of gRPC, whose requests run on: every answer must be what it always
    is."""

    PROMPT = list(range(20, 60))
    BODY = {"model": "default", "prompt": PROMPT, "max_tokens": 48, "temperature": 0, "return_token_ids": True,
            "ignore_eos": True}

    def __init__(self, fleet, count=2):
        self.fleet = fleet
        self.gaps, self.failures = [], []
        self.answers = {self.ask_http: 0, self.ask_grpc: 0}
        self.stop = threading.Event()
        self.reference = self.ask_http()
        self.gaps.clear()
        self.threads = [threading.Thread(target=self.repeat, args=[ask])
                        for ask in [self.ask_http] * count + [self.ask_grpc]]

    def ask_grpc(self):
        request = {"model": "default", "token_ids": {"ids": self.PROMPT}, "temperature": 0,
                   "stopping": {"max_new_tokens": self.BODY["max_tokens"], "ignore_eos": True},
                   "response": {"output_token_ids": True}}
        answer = grpcurl(self.fleet.grpc, "tandem.v1.Inference/Generate", request,
                         ["-import-path", ROOT / "proto", "-proto", "tandem/v1/inference.proto"])
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)["outputs"][0]["tokenIds"]

    def ask_http(self):
        tokens, last = [], time.monotonic()
        with self.fleet.events(self.BODY) as events:
            for event in events:
                now = time.monotonic()
                self.gaps.append(now - last)
                last = now
                assert "error" not in event, event
                for choice in event["choices"]:
                    tokens += choice.get("token_ids") or []
        assert len(tokens) == self.BODY["max_tokens"], f"{len(tokens)} tokens"
        return tokens

    def repeat(self, ask):
        while not self.stop.is_set():
            try:
                answer = ask()
                self.answers[ask] += 1
                if answer != self.reference:
                    self.failures.append("other tokens than before")
            except (AssertionError, httpx.HTTPError, subprocess.TimeoutExpired) as failure:
                self.failures.append(repr(failure))

    def wait(self, count):
        """Until all of them have so many answers more."""
        before = dict(self.answers)
        wait_until(lambda: self.failures or all(self.answers[ask] >= before[ask] + count for ask in before), 120,
                   "the others' requests run on")

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def p99(self):
        gaps = sorted(self.gaps)
        return gaps[int(len(gaps) * 0.99)] if gaps else 0.0


class Watch:
    """The highest resident size of a process while it lasts."""

    def __init__(self, fleet, process):
        self.fleet, self.process, self.peak = fleet, process, 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.look)

    def look(self):
        while not self.stop.wait(0.02):
            self.peak = max(self.peak, rss(self.fleet, self.process))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


HEADER = (f"{'attack':28} {'process':9} {'RSS before':>10} {'peak':>7} {'held':>7} {'allowed':>8} {'after':>7} MiB "
          f"{'refused':>8} {'cut':>6} {'others p99 before':>18} {'during':>8} ms  verdict")


class Report:
    def __init__(self, name, process):
        self.name, self.process = name, process
        self.problems = []

    @property
    def ok(self):
        return not self.problems

    def __str__(self):
        outcomes = ", ".join(f"{key}: {value}" for key, value in sorted(self.outcomes.items()))
        return (f"{self.name:28} {self.process:9} {self.before / MiB:10.0f} {self.peak / MiB:7.0f} {self.held / MiB:7.0f} "
                f"{self.allowed / MiB:8.0f} {self.after / MiB:7.0f}     {self.refused:8.0f} {self.cut:6.0f} "
                f"{self.p99_before * 1e3:18.1f} {self.p99_during * 1e3:8.1f}     "
                f"{'held' if self.ok else 'FAILED: ' + '; '.join(self.problems)}"
                f"{'  (' + outcomes + ')' if outcomes else ''}")


def run(fleet, function, full=False):
    process = function.process
    report = Report(function.__name__, process)
    with Bystanders(fleet) as calm:
        calm.wait(3)
    report.p99_before = calm.p99()
    report.before = rss(fleet, process)
    report.allowed = report.before + function.growth
    report.outcomes = collections.Counter()
    pid = fleet.pid(process)
    with Bystanders(fleet) as others, Watch(fleet, process) as watch:
        with contextlib.contextmanager(function)(fleet, full, report.outcomes):
            others.wait(3)
            report.held = rss(fleet, process)
    report.p99_during, report.peak = others.p99(), watch.peak
    report.refused = fleet.total("tandem_memory_refusals_total", how="refused")
    report.cut = fleet.total("tandem_memory_refusals_total", how="cut")
    if others.failures:
        report.problems.append(f"{len(others.failures)} other requests failed, the first: {others.failures[0]}")
    if fleet.pid(process) != pid:
        report.problems.append(f"{process} was restarted")
    if report.peak > report.allowed:
        report.problems.append("more memory than allowed")
    try:
        wait_until(lambda: rss(fleet, process) <= report.before + MAX_LEFT, 20, "memory is given back")
    except AssertionError:
        report.problems.append(f"more than {MAX_LEFT / MiB:.0f} MiB are kept")
    try:
        fleet.wait_idle(20)
    except AssertionError:
        report.problems.append("blocks are still held")
    report.after = rss(fleet, process)
    return report
