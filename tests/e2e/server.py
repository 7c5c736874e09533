"""A running `tandem serve`: its addresses, its processes, its metrics."""

import base64
import contextlib
import hmac
import json
import os
import pathlib
import random
import re
import signal
import socket
import struct
import subprocess
import time

import httpx

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build/release/bin"
TOOLS = ROOT / "build/e2e-tools"
DEMO_MODEL = ROOT / "tests/data/demo_model"

SAMPLE = re.compile(r'^([\w:]+)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


given_ports = set()


def free_port():
    """A port that nobody has, that was not given to a process that is still to bind it, and that the kernel gives to no
    connection in between, nor to who listens anywhere."""
    first_of_kernel = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(max(1024, first_of_kernel - 12_000), first_of_kernel)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in given_ports:
            given_ports.add(port)
            return port


def grpcurl(target, method, data=None, flags=()):
    """One call; `method` may be "list", too."""
    message = [] if data is None else ["-d", json.dumps(data)]
    return subprocess.run([TOOLS / "grpcurl", "-plaintext", *flags, *message, target, method],
                          capture_output=True, text=True, timeout=60)


def prove(target, method, secret):
    """The metadata, as grpcurl's flags, of a call by somebody who knows the fleet's secret (docs/protocol.md, "Who
    may speak")."""
    return ["-H", "tandem-proof-bin: " + proof(challenge_of(target), target, method, secret)]


def challenge_of(target):
    asked = grpcurl(target, "tandem.v1.Fleet/Challenge")
    assert asked.returncode == 0, asked.stderr
    return base64.b64decode(json.loads(asked.stdout)["challenge"])


def proof(challenge, target, method, secret):
    """Of one call."""
    nonce = os.urandom(16)
    return base64.b64encode(challenge + nonce + digest("caller", challenge, nonce, method, target, secret)).decode()


def digest(side, challenge, nonce, method, target, secret):
    """What only somebody who knows the secret can say of a call; `side`, "caller" or "called", is who says it."""
    words = [f"tandem-rpc-v1 {side}".encode(), challenge, nonce, method.encode(), target.rpartition(":")[2].encode()]
    text = b"".join(struct.pack("<I", len(word)) + word for word in words)
    return hmac.digest(secret.encode(), text, "sha256")


def wait_until(condition, seconds, what):
    """Polls until `condition()` is true; fails with `what` otherwise. Returns its value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


class Server:
    environment = None  # This process's own.

    def __init__(self, folder, model, *flags, tls=None):
        """`tls`: the context of its client, where the flags make it speak TLS."""
        self.http = f"127.0.0.1:{free_port()}"
        self.grpc = f"127.0.0.1:{free_port()}"
        self.url = f"https://{self.http}" if tls else f"http://{self.http}"
        self.tls = tls or False  # As httpx' `verify`.
        # httpx.get() and its like would each read the certificates of all authorities first: 40 ms of a CPU.
        self.client = httpx.Client(base_url=self.url, verify=self.tls, timeout=120,
                                   limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))
        self.log_path = pathlib.Path(folder) / "serve.log"
        self.command = [str(BIN / "tandem"), "serve", str(model), f"--http={self.http}",
                        f"--grpc={self.grpc}", *flags]

    def __enter__(self):
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, env=self.environment)
        try:
            self.wait_ready()
        except BaseException:
            self.process.terminate()
            self.process.wait(60)
            raise
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert status == 0, f"serve ended with {status}; the end of its log:\n{self.log()[-3000:]}"

    def wait_ready(self, seconds=60):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"serve ended with {self.process.returncode}:\n{self.log()[-3000:]}")
            try:
                return self.client.get("/ready", timeout=5).status_code == 200
            except httpx.TransportError:
                return False
        wait_until(ready, seconds, f"{self.url}/ready is 200; see {self.log_path}")

    def wait_alive(self, role, count, seconds=30):
        wait_until(lambda: self.total("tandem_workers", role=role, state="healthy") == count, seconds,
                   f"{count} {role} workers are healthy; see {self.log_path}")

    def log(self):
        return self.log_path.read_text(errors="replace")

    def pid(self, name):
        """The latest process of that name ("prefill-0", "decode-1", "router")."""
        found = None
        for line in self.log().splitlines():
            if line.startswith("{") and '"started"' in line:
                entry = json.loads(line)
                if entry.get("child") == name:
                    found = entry["pid"]
        return found

    def arguments(self, name):
        """What the latest process of that name was started with."""
        return pathlib.Path(f"/proc/{self.pid(name)}/cmdline").read_text().split("\0")

    def worker_address(self, name):
        """Where the latest process of that name listens."""
        return value_of("--listen", self.arguments(name))

    def secret(self, name):
        """The fleet's, as the latest process of that name was told it."""
        environment = pathlib.Path(f"/proc/{self.pid(name)}/environ").read_text().split("\0")
        return value_of("TANDEM_FLEET_SECRET", environment)

    def kill(self, name, signal_number=signal.SIGKILL):
        """Signals the process and proves that it arrived."""
        pid = self.pid(name)
        os.kill(pid, signal_number)
        if signal_number == signal.SIGKILL:
            wait_until(lambda: self.pid(name) != pid, 30, f"{name} (pid {pid}) is restarted")
        elif signal_number == signal.SIGSTOP:
            wait_until(lambda: process_state(pid) == "T", 5, f"{name} (pid {pid}) is stopped")
        return pid

    def scrape(self):
        return self.client.get("/metrics", timeout=10).text

    def metrics(self):
        """{(name, frozenset of (label, value)): value} of one scrape."""
        samples = {}
        for line in self.scrape().splitlines():
            match = SAMPLE.match(line)
            if match and not line.startswith("#"):
                labels = frozenset(LABEL.findall(match[2] or ""))
                samples[match[1], labels] = float(match[3])
        return samples

    def total(self, name, **labels):
        """The sum over all samples of that name with those labels."""
        wanted = set(labels.items())
        return sum(value for (sample, sample_labels), value in self.metrics().items()
                   if sample == name and wanted <= set(sample_labels))

    def busy_blocks(self):
        """Blocks that some sequence or transfer still holds, over all workers."""
        return sum(self.total("tandem_kv_blocks", state=state)
                   for state in ("held", "in_flight", "quarantined"))

    def wait_idle(self, seconds=10):
        wait_until(lambda: self.busy_blocks() == 0, seconds, "no block is held, in flight or quarantined")

    def post(self, path, body, timeout=120):
        return self.client.post(path, json=body, timeout=timeout)

    @contextlib.contextmanager
    def events(self, body):
        """The events of one completion, as they come."""
        with self.client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
            assert answer.status_code == 200, f"{answer.status_code}: {answer.read()[:300]}"
            yield (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {"))

    def complete(self, prompt, **parameters):
        """token_ids of every choice of one completion."""
        body = {"model": "default", "prompt": prompt, "return_token_ids": True,
                "temperature": 0, "max_tokens": 32} | parameters
        response = self.post("/v1/completions", body)
        assert response.status_code == 200, response.text
        return [choice["token_ids"] for choice in response.json()["choices"]]


def value_of(name, settings):
    """Of the one that is NAME=VALUE."""
    return next(setting.partition("=")[2] for setting in settings if setting.startswith(f"{name}="))


def process_state(pid):
    """The state letter of /proc/PID/stat; None if there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None
