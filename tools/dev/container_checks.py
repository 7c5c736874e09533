"""What the checks of containers share: their outcome, and an answer of the demo model's to compare with."""
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request

from container_images import ROOT, WORK

MODEL = ROOT / "tests/data/demo_model"
MODEL_BODY = {"model": "default", "prompt": list(range(5, 105)), "temperature": 0, "ignore_eos": True}
counts = {True: 0, False: 0}


def tell(what, ok, why=""):
    counts[bool(ok)] += 1
    print(f"{'PASSED' if ok else 'FAILED'} {what}" + ("" if ok else f" - {why}"), flush=True)


def end(name):
    """Of a check: the last line, and the exit status."""
    print(f"{name}: {counts[True]} passed, {counts[False]} failed")
    sys.exit(1 if counts[False] else 0)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, seconds, what):
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.05)
    return value


def post(address, body, stream=True):
    """The answer's text."""
    request = urllib.request.Request(f"http://{address}/v1/completions", json.dumps(body | {"stream": stream}).encode(),
                                     {"Content-Type": "application/json"})
    text = ""
    with urllib.request.urlopen(request, timeout=120) as answer:
        if not stream:
            return json.load(answer)["choices"][0]["text"]
        for line in answer:
            if line.startswith(b"data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
        assert line.strip() == b"" and text
    return text


def ready(address):
    try:
        return urllib.request.urlopen(f"http://{address}/ready", timeout=5).status == 200
    except OSError:
        return False


def expected(max_tokens):
    """What `tandem serve` of the same build says, without containers."""
    address = f"127.0.0.1:{free_port()}"
    with open(WORK / "serve.log", "wb") as log:
        serve = subprocess.Popen([ROOT / "build/release/bin/tandem", "serve", MODEL, "--hybrid=1", f"--http={address}",
                                  "--grpc=127.0.0.1:0"], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: ready(address), 60, f"tandem serve is ready; see {WORK}/serve.log")
        return post(address, MODEL_BODY | {"max_tokens": max_tokens})
    finally:
        serve.send_signal(signal.SIGTERM)
        serve.wait(60)
