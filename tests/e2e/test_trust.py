"""Neighbours on the machine and pages in a browser: who may not speak, and who still may."""

import json
import subprocess

import httpx
import pytest

from fleet import Router, Worker, environment
from server import BIN, DEMO_MODEL, Server, free_port, grpcurl, wait_until

OLD, NEW = "o" * 40, "n" * 40
BODY = {"model": "default", "prompt": [41, 42, 43] * 30, "max_tokens": 4, "temperature": 0}
HELLO = {"hello": {"protocolMin": 1, "protocolMax": 1, "transportAddress": "/////w=="}}


@pytest.mark.parametrize("method, message", [
    ("Worker/Watch", {"protocolMin": 1, "protocolMax": 1}), ("Worker/Session", {}), ("Worker/Control", {"drain": {}}),
    ("Worker/Control", {"metrics": {}}), ("Prefill/Session", HELLO),
])
def test_any_local_user_is_refused_by_workers(disaggregated, method, message):
    for name in ("prefill-0", "decode-0"):
        pid = disaggregated.pid(name)
        ended = grpcurl(disaggregated.worker_address(name), f"tandem.v1.{method}", message)
        assert ended.returncode != 0 and "Unauthenticated" in ended.stderr, ended.stdout + ended.stderr
        assert disaggregated.pid(name) == pid
    assert disaggregated.post("/v1/completions", BODY).status_code == 200


def test_frames_are_refused_too(tmp_path):
    with Server(tmp_path, DEMO_MODEL, "--prefill=1", "--decode=1", "--disaggregate=always",
                "--transport=grpc") as server:
        ended = grpcurl(server.worker_address("prefill-0"), "tandem.v1.Kv/Frames",
                        {"token": "AAAAAAAAAAAAAAAAAAAAAA=="})
        assert "Unauthenticated" in ended.stderr, ended.stdout + ended.stderr
        server.complete([1, 2, 3] * 40)
        assert server.total("tandem_kv_transfer_bytes_total") > 0


def test_serves_secret_is_its_own_and_on_no_command_line(disaggregated, hybrid):
    ours = {disaggregated.secret(name) for name in ("router", "prefill-0", "decode-0", "decode-1")}
    assert len(ours) == 1 and ours != {hybrid.secret("hybrid-0")}
    text = ours.pop()
    assert len(text) == 64 and text not in disaggregated.log()
    for name in ("router", "prefill-0", "decode-0", "decode-1"):
        assert text not in " ".join(disaggregated.arguments(name))


def test_a_secret_is_replaced_while_the_fleet_serves(tmp_path, hybrid):
    file = tmp_path / "secret"
    file.touch(0o600)

    def worker(name, role):
        return Worker(tmp_path, name, f"--role={role}", f"--fleet-secret-file={file}", secret=None)

    file.write_text(OLD + "\n")
    prefill, decode = worker("prefill", "prefill"), worker("decode", "decode")
    with prefill, decode:
        router = Router(tmp_path, [prefill, decode], "--disaggregate=always", f"--fleet-secret-file={file}",
                        secret=None)
        with router:
            want = hybrid.complete([7, 8, 9] * 40)
            assert router.complete([7, 8, 9] * 40) == want
            # Each process starts again, one by one, with what is valid by then.
            for text in (f"{OLD}\n{NEW}\n", f"{NEW}\n{OLD}\n"):
                file.write_text(text)
                for each in (prefill, decode):
                    each.kill()
                    each.start()
                    router.wait_alive("prefill", 1)
                    router.wait_alive("decode", 1)
                    assert router.complete([7, 8, 9] * 40) == want
            assert router.total("tandem_kv_transfer_bytes_total") > 0


def test_processes_of_two_secrets_do_not_trust_each_other(tmp_path):
    with Worker(tmp_path, "worker", secret=OLD) as worker:
        router = Router(tmp_path, [worker], secret=NEW)
        router.wait_ready = lambda: None  # It never is.
        with router:
            wait_until(lambda: "do not trust each other" in router.log(), 30, "the router says why")
            assert router.client.get("/ready").status_code == 503
        assert '"refused"' in worker.log_path.read_text() or "is refused" in worker.log_path.read_text()


def test_what_is_no_worker_is_named_in_the_log(tmp_path, hybrid):
    router = Router(tmp_path, [], f"--workers={hybrid.grpc}", secret=None)  # The address of another router.
    router.wait_ready = lambda: None
    with router:
        wait_until(lambda: "a worker refuses this router" in router.log(), 30, "the router says so")
        assert hybrid.grpc in router.log() and "no method of this name" in router.log()


def test_without_a_secret_loopback_warns_and_the_network_is_refused(tmp_path):
    with Worker(tmp_path, "worker", secret=None) as worker, Router(tmp_path, [worker], secret=None) as router:
        assert router.post("/v1/completions", BODY).status_code == 200
        assert "no fleet secret" in worker.log_path.read_text() and "no fleet secret" in router.log()
    public = [str(BIN / "tandem-worker"), f"--model={DEMO_MODEL}", f"--listen=0.0.0.0:{free_port()}"]
    ended = subprocess.run(public, capture_output=True, text=True, timeout=60, env=environment(None))
    assert ended.returncode == 2 and "--fleet-tls-cert" in ended.stderr
    shared = tmp_path / "readable"
    shared.write_text(OLD)
    shared.chmod(0o644)
    ended = subprocess.run([*public, "--insecure-public-listen", f"--fleet-secret-file={shared}"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "chmod 600" in ended.stderr


def curl(server, *arguments):
    ended = subprocess.run(["curl", "-sS", "-w", "\n%{http_code}", f"{server.url}/v1/completions",
                            "-d", json.dumps(BODY), *arguments], capture_output=True, text=True, timeout=60)
    body, _, status = ended.stdout.rpartition("\n")
    return int(status), body


def test_pages_of_other_sites_are_refused_and_curl_is_told_what_to_add(hybrid):
    status, body = curl(hybrid)
    assert status == 415 and "-H 'Content-Type: application/json'" in json.loads(body)["error"]["message"]
    as_json = ("-H", "Content-Type: application/json")
    assert curl(hybrid, *as_json)[0] == 200
    assert curl(hybrid, *as_json, "-H", "Origin: https://evil.example")[0] == 403
    assert curl(hybrid, *as_json, "-H", "Host: evil.example")[0] == 403
    answer = hybrid.client.get("/v1/models", headers={"Origin": "https://evil.example"})
    assert answer.status_code == 200 and not any(name.startswith("access-control") for name in answer.headers)
    assert hybrid.client.get("/metrics", headers={"Host": "rebound.example:8000"}).status_code == 403


def test_configured_names_and_pages_are_let_in(tmp_path):
    page = {"Origin": "https://chat.example"}
    with Server(tmp_path, DEMO_MODEL, "--hybrid=1", "--allowed-host=box.example,other.example",
                "--cors-origin=https://chat.example") as server:
        assert server.client.get("/health", headers={"Host": "Box.example:80"}).status_code == 200
        assert server.client.get("/health", headers={"Host": "evil.example"}).status_code == 403
        asked = server.client.options("/v1/completions",
                                      headers=page | {"Access-Control-Request-Method": "POST",
                                                      "Access-Control-Request-Headers": "content-type"})
        assert asked.status_code == 200 and "content-type" in asked.headers["access-control-allow-headers"]
        for stream in (False, True):
            answer = server.client.post("/v1/completions", json=BODY | {"stream": stream}, headers=page)
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == "https://chat.example"


@pytest.mark.parametrize("address, aborted", [("127.0.0.1", True), ("127.0.0.2", False)])
def test_a_request_is_aborted_by_its_own_client_alone(hybrid, address, aborted):
    transport = httpx.HTTPTransport(local_address=address)
    body = BODY | {"max_tokens": 1500, "ignore_eos": True, "stream": True}
    with httpx.Client(transport=transport, timeout=120) as client, \
            client.stream("POST", f"{hybrid.url}/v1/completions", json=body,
                          headers={"x-request-id": "req-1"}) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: {")
        ended = grpcurl(hybrid.grpc, "tandem.v1.Control/Abort", {"request_ids": ["req-1"]})
        assert ended.returncode == 0, ended.stderr
        rest = [line for line in lines if line]
    assert (rest[-1] != "data: [DONE]" or "error" in rest[-2]) == aborted, rest[-3:]
