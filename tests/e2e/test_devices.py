"""Workers whose memory is elsewhere beside one on the CPU: the same tokens, whoever computes the prompt, and after
kills. Their devices are kernels/fenced, once with the KV pool on this side of the fence and once beyond it, and an
emulated GPU (kernels/cuda/emulated), which runs the kernels of GPUs and takes seconds for what they do at once."""

import concurrent.futures
import json
import signal
import time

import pytest

from fleet import Router, Worker
from server import BIN, wait_until
from test_faults import AT_ONCE, Load, ask, mixed_requests
from test_mixed_machines import fingerprint

RESUMES = 10
EXIT_TO_BE_REPLACED = 3
KERNELS_HANG, KERNELS_FAIL = signal.SIGUSR1, signal.SIGUSR2  # of the emulated GPU
PATIENT = "--liveness-scale=10"  # With who computes for seconds.
UCX = ["--transport=ucx", "--ucx-devices=lo"]  # No peer maps anything of a device's pool.


def worker(folder, name, *flags):
    """On the device that the name begins with."""
    programs = {"fenced": "fenced_worker", "beyond": "fenced_pool_worker", "gpu": "emulated_worker"}
    program = programs.get(name.split("-")[0])
    return Worker(folder, name, *flags, **({"program": BIN.parent / "tests" / program} if program else {}))


def short_requests(seed, count):
    """Of one block and a part, and few tokens."""
    return [request | {"prompt": request["prompt"][:24], "max_tokens": 6} for request in mixed_requests(seed, count)]


@pytest.mark.parametrize("device, flags, transport",
                         [("fenced", [], "ucx"), ("fenced", [], "grpc"), ("beyond", [], "grpc"),
                          ("gpu", ["--isa=fma", PATIENT], "grpc")])
@pytest.mark.parametrize("device_role, cpu_role", [("prefill", "decode"), ("decode", "prefill")])
def test_blocks_move_from_and_to_a_device(tmp_path, hybrid, device, flags, transport, device_role, cpu_role):
    patience = [flag for flag in flags if flag == PATIENT]
    requests = short_requests(41, 3) if device == "gpu" else mixed_requests(seed=41, count=6)
    want = [ask(hybrid, request) for request in requests]
    workers = [worker(tmp_path, device, f"--role={device_role}", f"--transport={transport}", *flags),
               worker(tmp_path, "cpu", f"--role={cpu_role}", f"--transport={transport}", *patience)]
    with workers[0], workers[1], Router(tmp_path, workers, "--disaggregate=always", *patience) as router:
        for role in (device_role, cpu_role):
            router.wait_alive(role, 1)
        assert fingerprint(router) == fingerprint(hybrid)
        assert [ask(router, request) for request in requests] == want
        wait_until(lambda: router.total("tandem_kv_transfer_bytes_total") > 0, 10, "blocks have moved")


# What stands in for NCCL reaches memory beyond the fence alone (tests/support/fake_nccl.h). UCX is what it is, and takes
# the memory of both devices for the host's.
@pytest.mark.parametrize("device, flags, path",
                         [("beyond", ["--transport=nccl"], "nccl"), ("beyond", UCX, "ucx device memory"),
                          ("gpu", [*UCX, "--isa=fma", PATIENT], "ucx device memory")],
                         ids=["nccl", "ucx", "ucx-gpu"])
@pytest.mark.parametrize("victim_role", ["prefill", "decode"])
def test_blocks_move_between_devices_and_again_after_a_kill(tmp_path, hybrid, device, flags, path, victim_role):
    patience = [flag for flag in flags if flag == PATIENT]
    requests = short_requests(44, 2) if device == "gpu" else mixed_requests(seed=44, count=6)
    want = [ask(hybrid, request) for request in requests]
    workers = [worker(tmp_path, f"{device}-{role}", f"--role={role}", *flags) for role in ("prefill", "decode")]
    with workers[0], workers[1], Router(tmp_path, workers, "--disaggregate=always", *patience) as router:
        for role in ("prefill", "decode"):
            router.wait_alive(role, 1)
        for _ in range(2):  # The second time over links with another life of the one that was killed.
            before = router.total("tandem_kv_transfer_bytes_total")
            assert [ask(router, request) for request in requests] == want
            wait_until(lambda: router.total("tandem_kv_transfer_bytes_total") > before, 10, "blocks have moved")
            assert router.total("tandem_kv_link_bytes_per_second", path=path) > 0
            victim = workers[["prefill", "decode"].index(victim_role)]
            victim.kill()
            victim.start()
            router.wait_alive(victim_role, 1)


@pytest.mark.parametrize("device, other, transport",
                         [("fenced", "cpu", "grpc"), ("beyond", "cpu", "grpc"), ("beyond-0", "beyond-1", "nccl"),
                          ("beyond-0", "beyond-1", "ucx")])
def test_streams_survive_kills_on_both_sides_of_the_fence(tmp_path, hybrid, device, other, transport):
    requests = mixed_requests(seed=42, count=10)
    want = [ask(hybrid, request) for request in requests]
    flags = UCX if transport == "ucx" else [f"--transport={transport}"]
    # Hybrid workers alone move no blocks.
    roles = ("prefill", "decode") if device == "beyond-0" else ("hybrid", "hybrid")
    workers = [worker(tmp_path, name, f"--role={role}", *flags) for name, role in zip((device, other), roles)]
    with workers[0], workers[1], Router(tmp_path, workers) as router:
        for role in roles:
            router.wait_alive(role, roles.count(role))
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            load = Load(pool, router, requests, want)
            while router.total("tandem_stream_resumes_total") < RESUMES:
                for victim, role in zip(workers, roles):
                    before = router.total("tandem_generated_tokens_total")
                    wait_until(lambda: load.go_on() or router.total("tandem_generated_tokens_total") > before + 300,
                               60, "300 more tokens are generated")
                    victim.kill()
                    victim.start()
                    router.wait_alive(role, roles.count(role))
            load.end()
        router.wait_idle(30)
        assert (router.total("tandem_kv_transfer_bytes_total") > 0) == ("hybrid" not in roles)


def test_a_worker_says_which_gpu_it_has(tmp_path):
    """By the names that the kernel's log, nvidia-smi and exporters have for it."""
    flags = [PATIENT, "--transport=grpc"]
    gpu = worker(tmp_path, "gpu", "--device=cuda:1", *flags)
    with gpu, worker(tmp_path, "cpu", *flags) as cpu, Router(tmp_path, [gpu, cpu], PATIENT) as router:
        router.wait_alive("hybrid", 2)
        found = [dict(labels) for name, labels in router.metrics() if name == "tandem_worker_info"]
        assert router.total("tandem_device_memory_bytes", worker="gpu") == 8 << 30
        assert router.total("tandem_device_memory_bytes", worker="gpu", state="taken") > 64_000_000  # KV
        assert router.total("tandem_device_memory_bytes", worker="cpu") == 0
        info = {labels["worker"]: labels for labels in found}
        said = [json.loads(line) for line in gpu.log_path.read_text().splitlines()]
    uuid = "GPU-00000000-0000-0000-0000-000000000001"
    assert [(line["uuid"], line["pci_address"]) for line in said if line["message"] == "GPU"] == [(uuid, "0000:3c:00.0")]
    assert (info["gpu"]["device"], info["gpu"]["isa"], info["gpu"]["gpu_uuid"]) == ("cuda", "sm_90-tensor-wgmma", uuid)
    assert (info["cpu"]["device"], info["cpu"]["gpu_uuid"]) == ("cpu", "")


def test_a_fleet_of_gpus_loses_no_token(tmp_path):
    """On the tensor cores, a class of bits of its own; the decode worker is killed with all streams on it."""
    requests = [request | {"max_tokens": 4} for request in short_requests(43, 2)]
    flags = [PATIENT, "--transport=grpc"]
    workers = [worker(tmp_path, f"gpu-{role}", f"--role={role}", *flags) for role in ("prefill", "decode")]
    with workers[0], workers[1], Router(tmp_path, workers, "--disaggregate=always", PATIENT) as router:
        for role in ("prefill", "decode"):
            router.wait_alive(role, 1)
        want = [ask(router, request) for request in requests]
        assert router.total("tandem_kv_transfer_bytes_total") > 0
        before = router.total("tandem_generated_tokens_total")
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
            answers = pool.map(lambda request: ask(router, request), requests)
            wait_until(lambda: router.total("tandem_generated_tokens_total") > before, 300, "a stream has begun")
            workers[1].kill()
            workers[1].start()
            assert list(answers) == want
        assert router.total("tandem_stream_resumes_total") > 0
        router.wait_idle(60)


class StandsStill:
    """Whether no token has come for three seconds, where a step takes a fraction of one."""

    def __init__(self, router):
        self.router, self.tokens, self.since = router, None, 0

    def __call__(self):
        tokens = self.router.total("tandem_generated_tokens_total")
        if tokens != self.tokens:
            self.tokens, self.since = tokens, time.monotonic()
        return time.monotonic() > self.since + 3


def ask_until_one_ends(router, requests, ends, stand_in, *signals):
    """The answers; once a stream has begun on `ends`, it gets the signals. It ends by itself, and `stand_in` takes its
    place."""
    before = router.total("tandem_generated_tokens_total")
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        answers = pool.map(lambda request: ask(router, request), requests)
        wait_until(lambda: router.total("tandem_generated_tokens_total") > before, 300, "a stream has begun")
        for number in signals:
            ends.process.send_signal(number)
            if number == KERNELS_HANG:  # Between two steps nobody would wait for a kernel yet.
                wait_until(StandsStill(router), 60, "a step has no end")
        assert ends.process.wait(60) == EXIT_TO_BE_REPLACED
        stand_in.start()
        return list(answers)


def test_a_gpu_whose_kernels_hang_is_left_and_its_streams_go_on(tmp_path, hybrid):
    """The worker ends itself; nobody kills it. The router, which is patient, has moved nothing before."""
    requests = short_requests(45, 2)
    want = [ask(hybrid, request) for request in requests]
    gpu = worker(tmp_path, "gpu", "--isa=fma", "--liveness-scale=0.3", "--transport=grpc")  # Hung after 18 s.
    other = worker(tmp_path, "cpu", "--transport=grpc")
    with other, gpu, Router(tmp_path, [gpu, other], PATIENT) as router:
        router.wait_alive("hybrid", 2)
        other.kill()
        router.wait_alive("hybrid", 1)
        assert ask_until_one_ends(router, requests, gpu, other, KERNELS_HANG) == want
        assert "a step has no end" in gpu.log_path.read_text()
        assert router.total("tandem_stream_resumes_total") > 0
        gpu.start()
        router.wait_alive("hybrid", 2)


def test_a_gpu_whose_kernels_hang_ends_when_it_is_asked_to(tmp_path, hybrid):
    """Within the time that it was given, though its engine waits for a kernel."""
    requests = short_requests(46, 2)
    want = [ask(hybrid, request) for request in requests]
    gpu = worker(tmp_path, "gpu", "--isa=fma", "--drain-seconds=3", PATIENT, "--transport=grpc")
    other = worker(tmp_path, "cpu", PATIENT, "--transport=grpc")
    with other, gpu, Router(tmp_path, [gpu, other], PATIENT) as router:
        router.wait_alive("hybrid", 2)
        other.kill()
        router.wait_alive("hybrid", 1)
        assert ask_until_one_ends(router, requests, gpu, other, KERNELS_HANG, signal.SIGTERM) == want
        assert "something that it waits for has no end" in gpu.log_path.read_text()
        gpu.start()
        router.wait_alive("hybrid", 2)


@pytest.mark.parametrize("signals", [[KERNELS_FAIL], [signal.SIGTERM, KERNELS_FAIL]], ids=["serving", "draining"])
def test_a_gpu_that_is_lost_ends_at_once_and_its_streams_go_on_in_its_next_process(tmp_path, hybrid, signals):
    """There is no other worker: a second step on the dead device would be an attempt of all streams for nothing. Whoever
    asked for a drain hears that it was no good end."""
    requests = short_requests(47, 2)
    want = [ask(hybrid, request) for request in requests]
    gpu = worker(tmp_path, "gpu", "--isa=fma", PATIENT, "--transport=grpc")
    with gpu, Router(tmp_path, [gpu], PATIENT) as router:
        router.wait_alive("hybrid", 1)
        assert ask_until_one_ends(router, requests, gpu, gpu, *signals) == want
        log = gpu.log_path.read_text()
        assert log.count("a step failed") <= 2  # Another may have been begun behind the first.
        assert "no step succeeds here any more" in log
        assert router.total("tandem_stream_resumes_total") > 0


def test_a_gpu_that_is_lost_while_nobody_asks_ends_too(tmp_path):
    gpu = worker(tmp_path, "gpu", "--role=hybrid", "--isa=fma", PATIENT)
    with gpu, Router(tmp_path, [gpu], PATIENT) as router:
        router.wait_alive("hybrid", 1)
        gpu.process.send_signal(KERNELS_FAIL)
        assert gpu.process.wait(60) == EXIT_TO_BE_REPLACED
        gpu.start()
        router.wait_alive("hybrid", 1)


def test_a_gpu_that_is_lost_while_idle_ends_with_the_first_block_that_it_cannot_take(tmp_path, hybrid):
    """Not after a row of healthy prefill workers that it has blamed: no step of its own would say what is wrong."""
    request, = short_requests(48, 1)
    want = ask(hybrid, request)
    gpu = worker(tmp_path, "gpu", "--role=decode", "--isa=fma", PATIENT, "--transport=grpc")
    prefill = worker(tmp_path, "cpu", "--role=prefill", PATIENT, "--transport=grpc")
    with prefill, gpu, Router(tmp_path, [prefill, gpu], "--disaggregate=always", PATIENT) as router:
        for role in ("prefill", "decode"):
            router.wait_alive(role, 1)
        gpu.process.send_signal(KERNELS_FAIL)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask, router, request)
            assert gpu.process.wait(60) == EXIT_TO_BE_REPLACED
            gpu.start()
            assert answer.result() == want
        assert gpu.log_path.read_text().count("a step failed") == 0
