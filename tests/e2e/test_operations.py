"""What an operator does: look at metrics, kill processes, stop the server, run the tools."""

import json
import os
import signal
import subprocess

import httpx
import pytest

from fleet import SECRET, Router, Worker, environment
from server import BIN, DEMO_MODEL, Server, free_port, grpcurl, prove, wait_until

METRICS = ["tandem_kv_transfer_bytes_total", "tandem_kv_blocks", "tandem_requests_total",
           "tandem_ttft_seconds_count", "tandem_itl_seconds_count"]


def test_metrics_are_well_formed_and_complete(disaggregated):
    disaggregated.complete([31, 32, 33] * 20, max_tokens=8)
    text = disaggregated.client.get("/metrics").text
    # Endpoint pickers ask for names that promtool does not like.
    ours = "".join(line for line in text.splitlines(keepends=True) if "vllm:" not in line)
    checked = subprocess.run(["promtool", "check", "metrics"], input=ours, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    names = {name for name, _ in disaggregated.metrics()}
    assert set(METRICS) <= names
    states = {dict(labels)["state"] for name, labels in disaggregated.metrics() if name == "tandem_kv_blocks"}
    assert states == {"free", "held", "cached", "in_flight", "quarantined"}
    workers = {dict(labels).get("worker") for _, labels in disaggregated.metrics()}
    assert {"prefill-0", "decode-0", "decode-1"} <= workers


def test_admin_addresses_have_probes_and_metrics_of_their_process(tmp_path):
    def get(address, path):
        return httpx.get(f"http://{address}{path}", verify=False, trust_env=False)

    def ready(address):
        try:
            return get(address, "/ready").status_code == 200
        except httpx.TransportError:
            return False

    worker_admin, router_admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with Worker(tmp_path, "only", f"--admin={worker_admin}") as worker:
        with Router(tmp_path, [worker], f"--admin={router_admin}") as router:
            router.complete([1, 2, 3], max_tokens=2)
            wait_until(lambda: ready(worker_admin) and ready(router_admin), 10, "both are ready")
            of_worker, of_router, of_fleet = (get(address, path).text for address, path in (
                (worker_admin, "/metrics"), (router_admin, "/metrics"), (router_admin, "/metrics/fleet")))
            assert 'tandem_worker_generated_tokens_total{worker="only"} 2' in of_worker
            assert "tandem_requests_total" not in of_worker
            assert 'tandem_requests_total{outcome="done"} 1' in of_router and "worker=" not in of_router
            assert "tandem_requests_total" in of_fleet and "tandem_worker_generated_tokens_total" in of_fleet
            assert router.client.get("/metrics").status_code == 404, "they have moved"
            assert router.client.get("/ready").status_code == 200
            assert get(worker_admin, "/health").json()["status"] == "ok"
            assert get(worker_admin, "/v1/models").status_code == get(router_admin, "/v1/models").status_code == 404
            worker.kill()
            wait_until(lambda: not ready(router_admin), 30, "nobody is left to decode")
            worker.start()
            wait_until(lambda: ready(router_admin), 30, "it is back")
    refused = subprocess.run([BIN / "tandem-worker", f"--model={DEMO_MODEL}", "--admin=nowhere"], capture_output=True,
                             text=True, timeout=60, env=environment(SECRET))
    assert refused.returncode == 2 and "--admin" in refused.stderr and "nowhere" in refused.stderr


def test_endpoint_pickers_find_what_they_ask_for(disaggregated):
    def labels(name):
        return [dict(found) for sample, found in disaggregated.metrics() if sample == name]

    assert len(labels("vllm:cache_config_info")) == 3
    for found in labels("vllm:cache_config_info"):
        blocks = disaggregated.total("tandem_kv_blocks", worker=found["worker"])
        assert found["block_size"] == "16" and int(found["num_gpu_blocks"]) == blocks > 0
    assert {(found["worker"], found["role"]) for found in labels("tandem_worker_info")} == {
        ("prefill-0", "prefill"), ("decode-0", "decode"), ("decode-1", "decode")}
    assert len({found["numerics_id"] for found in labels("tandem_worker_info")}) == 1
    disaggregated.wait_idle()
    assert disaggregated.total("vllm:num_requests_running") == disaggregated.total("vllm:kv_cache_usage_perc") == 0
    body = {"model": "default", "prompt": [41, 42, 43, 44] * 20, "max_tokens": 8000, "ignore_eos": True, "temperature": 0}
    with disaggregated.events(body) as events:
        next(events)
        wait_until(lambda: disaggregated.total("vllm:num_requests_running") == 1, 5, "it runs")
        assert disaggregated.total("vllm:num_requests_waiting") == 0
        assert 0 < disaggregated.total("vllm:kv_cache_usage_perc") < 1


def test_answers_carry_request_id_and_cached_tokens(disaggregated):
    body = {"model": "default", "prompt": [41, 42, 43, 44] * 20, "max_tokens": 2, "temperature": 0}
    for _ in range(4):  # Until each decode worker has seen it.
        answer = disaggregated.client.post("/v1/completions", json=body, headers={"x-request-id": "mine"})
        assert answer.headers["x-request-id"] == "mine"
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64


def test_debug_lines_follow_a_request_and_are_switched_on_while_it_serves(tmp_path):
    file = tmp_path / "log.yaml"
    file.write_text("log-level: info\n")
    secret_text = "Zanzibar quartz"

    def lines(**wanted):
        entries = [json.loads(line) for line in server.log().splitlines()]
        return [entry for entry in entries if wanted.items() <= entry.items()]

    def ask(name):
        answer = server.client.post("/v1/completions", headers={"x-request-id": name},
                                    json={"model": "default", "prompt": secret_text * 40, "max_tokens": 2})
        assert answer.status_code == 200, answer.text

    with Server(tmp_path, DEMO_MODEL, "--prefill=1", "--decode=1", "--disaggregate=always",
                f"--log-level-file={file}") as server:
        ask("before")
        file.write_text("log-level: debug\n")
        wait_until(lambda: len(lines(message="the log's level changes", now="debug")) == 4, 30, "all have heard of it")
        ask("after")
        wait_until(lambda: lines(message="request ends", request_id="after"), 5, "its end is told")
        begun, = lines(message="request begins")
        assert begun["request_id"] == "after" and begun["level"] == "debug" and begun["process"] == "router"
        sent, = lines(message="attempt sent", attempt=f"{begun['request']}-1")
        assert sent["worker"] == "decode-0" and sent["prefill_worker"] == "prefill-0"
        for message in ("attempt comes", "prompt computed", "choice ends"):
            told, = lines(message=message, process="decode-0")
            assert told["attempt"] == sent["attempt"]
        ended, = lines(message="request ends")
        assert ended["request"] == begun["request"] and ended["code"] == "OK" and ended["completion_tokens"] == 2
        assert 0 <= ended["waited_ms"] <= ended["took_ms"]
        assert secret_text.split()[0] not in server.log()


def test_a_dead_workers_counters_are_kept(tmp_path):
    with Server(tmp_path, DEMO_MODEL, "--prefill=1", "--decode=1", "--disaggregate=always") as server:
        server.complete([51, 52, 53] * 40, max_tokens=4)
        before = server.total("tandem_kv_transfer_bytes_total")
        assert before > 0
        server.kill("decode-0")
        server.wait_alive("decode", 1)
        server.wait_ready()  # Without a session with it, the prefill worker would do all of the next request.
        assert server.total("tandem_kv_transfer_bytes_total") == before
        server.complete([61, 62, 63] * 40, max_tokens=4)
        wait_until(lambda: server.total("tandem_kv_transfer_bytes_total") == 2 * before, 5,
                   "the new process adds to what the old one had counted")


def test_sigterm_lets_running_streams_end(tmp_path):
    with Server(tmp_path, DEMO_MODEL, "--prefill=1", "--decode=1", "--disaggregate=always") as server:
        body = {"model": "default", "prompt": [71, 72, 73] * 10, "max_tokens": 300, "temperature": 0,
                "ignore_eos": True, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert server.process.wait(60) == 0
        for name in ("prefill-0", "decode-0", "router"):
            assert f'"child":"{name}"' in server.log()


def test_a_drained_worker_ends_and_is_replaced(tmp_path):
    with Server(tmp_path, DEMO_MODEL, "--prefill=1", "--decode=1", "--disaggregate=always") as server:
        prompt = [81, 82, 83] * 40
        before = server.complete(prompt, max_tokens=8)
        for name in ("prefill-0", "decode-0"):
            pid = server.pid(name)
            target = server.worker_address(name)
            drained = grpcurl(target, "tandem.v1.Worker/Control", {"drain": {}},
                              prove(target, "/tandem.v1.Worker/Control", server.secret(name)))
            assert drained.returncode == 0, drained.stderr
            wait_until(lambda: server.pid(name) != pid, 30, f"{name} (pid {pid}) is restarted")
            assert f'"child":"{name}","how":"exit status 0"' in server.log()
        server.wait_alive("prefill", 1)
        server.wait_alive("decode", 1)
        assert server.complete(prompt, max_tokens=8) == before


def test_ready_follows_the_workers(tmp_path):
    with Server(tmp_path, DEMO_MODEL, "--hybrid=1") as server:
        assert server.client.get("/health").status_code == 200
        assert server.client.get("/version").json()["version"]
        os.kill(server.pid("hybrid-0"), signal.SIGSTOP)
        wait_until(lambda: server.client.get("/ready").status_code == 503, 10, "a stopped worker is noticed")
        os.kill(server.pid("hybrid-0"), signal.SIGCONT)
        server.wait_ready()


def test_bench_reports_percentiles_and_goodput(disaggregated):
    ended = subprocess.run(
        [BIN / "tandem", "bench", "--target", disaggregated.url, "--requests=40", "--connections=8",
         "--prompt-tokens=50-100", "--output-tokens=10", "--rate=200", "--targets=ttft=30,itl=30", "--json"],
        capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["requests_completed"] == 40 and report["output_tokens"] == 400
    assert 0 < report["ttft_seconds"]["p50"] <= report["ttft_seconds"]["p99"]
    assert report["goodput_requests_per_second"] == pytest.approx(report["requests_per_second"])


def test_bench_fails_unless_everything_was_completed(tmp_path):
    """As a check of a deployment it must not take a refusal for an answer."""
    worker = Worker(tmp_path, "none")  # Nobody starts it.
    router = Router(tmp_path, [worker])
    router.wait_ready = lambda: wait_until(lambda: '"listening"' in router.log(), 30, "it listens")
    bench = [BIN / "tandem", "bench", "--requests=1", "--connections=1", "--prompt-tokens=4", "--output-tokens=1"]
    with router:
        for more, status in ([], 1), (["--may-be-refused"], 0):
            ended = subprocess.run([*bench, f"--target={router.url}", *more], capture_output=True, text=True, timeout=60)
            assert ended.returncode == status and "0 completed, 1 rejected, 0 failed" in ended.stdout, ended


def test_chat_streams_an_answer(disaggregated):
    ended = subprocess.run(
        [BIN / "tandem", "chat", "--target", disaggregated.url, "--message", "And God said", "--seed=1"],
        capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and ended.stdout.strip(), ended.stderr
