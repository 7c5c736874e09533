"""Clients of a service: OpenAI's, whose every answer is compared, and ghz over gRPC on connections that last."""
import contextlib
import dataclasses
import json
import random
import ssl
import subprocess
import threading
import time

import httpx
import openai

TOKENS = 120
GHZ_SECONDS = 10  # How long a run of ghz is, each with two connections.


@dataclasses.dataclass
class Target:
    host: str
    key: str
    authority: str  # A PEM file's path.

    def client(self):
        """It repeats nothing by itself."""
        context = ssl.create_default_context(cafile=self.authority)
        return openai.OpenAI(base_url=f"https://{self.host}:8000/v1", api_key=self.key, max_retries=0, timeout=120,
                             http_client=httpx.Client(verify=context, timeout=120))


def ask(client, prompt, streamed):
    answer = client.completions.create(model="default", prompt=prompt, max_tokens=TOKENS, temperature=0,
                                       stream=streamed, extra_body={"ignore_eos": True})
    return "".join(chunk.choices[0].text for chunk in answer if chunk.choices) if streamed else answer.choices[0].text


class Load:
    """Goes on from its making to end(). `expected`: answers by prompt."""

    def __init__(self, target, expected, ghz, proto, seed, clients=4):
        self.target, self.expected, self.ghz, self.proto = target, expected, ghz, proto
        self.finished, self.failures, self.over_grpc = 0, [], 0
        self._lock, self._ending = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._ask_http, args=(random.Random(f"{seed}.{index}"),))
                         for index in range(clients)] + [threading.Thread(target=self._ask_grpc)]
        for thread in self._threads:
            thread.start()

    def _ask_http(self, draw):
        client = self.target.client()
        while not self._ending.is_set():
            prompt, streamed = draw.choice(sorted(self.expected)), draw.random() < 0.7
            began = time.strftime("%H:%M:%S")
            try:
                text = ask(client, list(prompt), streamed)
                problem = None if text == self.expected[prompt] else f"another answer: {text!r}"
            except Exception as raised:
                problem = f"{type(raised).__name__}: {raised} ({raised.__cause__!r})"
            with self._lock:
                self.finished += 1
                if problem:
                    self.failures.append(f"{began}, {'streamed' if streamed else 'whole'}: {problem}")

    def _ask_grpc(self):
        request = {"model": "default", "token_ids": {"ids": list(min(self.expected))}, "temperature": 0,
                   "stopping": {"max_new_tokens": 20}}
        while not self._ending.is_set():
            ended = subprocess.run(
                [self.ghz, "--cacert", self.target.authority, "--call", "tandem.v1.Inference/Generate",
                 "--duration", f"{GHZ_SECONDS}s", "--duration-stop", "wait", "--concurrency", "2", "--connections", "2",
                 "--proto", self.proto / "tandem/v1/inference.proto", "--import-paths", self.proto,
                 "--metadata", json.dumps({"authorization": f"Bearer {self.target.key}"}),
                 "-d", json.dumps(request), "-O", "json", f"{self.target.host}:9000"], capture_output=True, text=True)
            report = json.loads(ended.stdout) if ended.returncode == 0 else {}
            codes = report.get("statusCodeDistribution", {})
            with self._lock:
                self.over_grpc += codes.pop("OK", 0)
                if codes or ended.returncode != 0:
                    self.failures.append(f"ghz: {codes} {report.get('errorDistribution')} {ended.stderr}")

    def end(self):
        self._ending.set()
        for thread in self._threads:
            thread.join()

    @contextlib.contextmanager
    def phase(self, tell, what):
        """Says whether no request failed in the meantime, and how many there were."""
        with self._lock:
            before, over_grpc, known = self.finished, self.over_grpc, len(self.failures)
        yield
        # One more answer for each client, and a whole run of ghz.
        with self._lock:
            after, grpc_after = self.finished + len(self._threads), self.over_grpc
        end = time.monotonic() + 120
        while time.monotonic() < end and (self.finished < after or self.over_grpc == grpc_after):
            time.sleep(0.1)
        with self._lock:
            asked, failures = self.finished - before, self.failures[known:]
            over_grpc = self.over_grpc - over_grpc
        tell(f"{what}: {asked} answers over HTTP, {over_grpc} over gRPC, {len(failures)} failed",
             asked > len(self._threads) and over_grpc and not failures, "; ".join(failures[:5]))
