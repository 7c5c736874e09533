"""SIGTERM at any moment of a start, a log that nobody reads, and what cannot start at all, and flags from everywhere."""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess

import pytest

from fleet import Router, Worker
from server import BIN, DEMO_MODEL, Server, free_port, wait_until

WAIT_S = 60  # For what takes no time, on a machine that has none.


class StartingWorker:
    """A worker whose log is read line by line."""

    def __init__(self, cache, transport="grpc"):
        self.process = subprocess.Popen(
            [BIN / "tandem-worker", f"--model={DEMO_MODEL}", "--name=w", f"--listen=127.0.0.1:{free_port()}",
             "--kv-memory=64000000", "--threads=1", f"--cache-dir={cache}", f"--transport={transport}"],
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.lines = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def read_until(self, message):
        for line in self.process.stderr:
            self.lines.append(json.loads(line)["message"])
            if self.lines[-1] == message:
                return
        raise AssertionError(f"it ended without {message!r}: {self.lines}")

    def stop(self):
        """Its exit status, and the rest of its log."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(WAIT_S)
        self.lines += [json.loads(line)["message"] for line in self.process.stderr]
        return status


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A folder with the packed weights of the demo model."""
    folder = tmp_path_factory.mktemp("cache")
    with StartingWorker(folder) as worker:
        worker.read_until("serving")
        assert worker.stop() == 0
    assert list(folder.glob("*.packed"))
    return folder


@contextlib.contextmanager
def being_packed(cache):
    """The weights are not there, and somebody else is packing them."""
    for image in cache.glob("*.packed"):
        image.unlink()
    with contextlib.ExitStack() as held:
        locks = list(cache.glob("*.lock"))
        assert locks
        for path in locks:
            lock = held.enter_context(open(path, "rb+"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def waits_for_a_lock(pid):
    with open("/proc/locks") as locks:
        return any(line.split()[1] == "->" and int(line.split()[5]) == pid for line in locks)


def test_a_worker_that_waits_for_packed_weights_ends(cache):
    with being_packed(cache), StartingWorker(cache) as worker:
        wait_until(lambda: waits_for_a_lock(worker.process.pid), WAIT_S, "the worker waits for the weights")
        assert worker.stop() == 0
        assert "asked to stop while starting" in worker.lines
        assert "model loaded" not in worker.lines


@pytest.mark.parametrize("transport", ["grpc", "ucx"])
def test_a_worker_that_has_just_loaded_ends(cache, transport):
    with StartingWorker(cache, transport) as worker:
        worker.read_until("model loaded")
        assert worker.stop() == 0


def test_a_log_whose_reader_is_gone_ends_nothing(cache):
    with StartingWorker(cache) as worker:
        worker.read_until("serving")
        worker.process.stderr.close()
        worker.process.send_signal(signal.SIGTERM)  # It writes of that.
        assert worker.process.wait(WAIT_S) == 0


def test_a_worker_that_has_just_begun_ends(cache):
    with StartingWorker(cache) as worker:
        # Before its first line of code the default applies: the signal itself ends it.
        assert worker.stop() in (0, -signal.SIGTERM)
        assert "drained" not in worker.lines


def test_a_router_that_has_just_begun_ends():
    router = subprocess.Popen(
        [BIN / "tandem-router", f"--model={DEMO_MODEL}", f"--workers=127.0.0.1:{free_port()}",
         "--http=127.0.0.1:0", "--grpc=127.0.0.1:0"],
        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    router.send_signal(signal.SIGTERM)
    _, log = router.communicate(timeout=WAIT_S)
    assert router.returncode in (0, -signal.SIGTERM)
    assert b'"listening"' not in log


def test_serve_ends_while_its_workers_start(cache, tmp_path):
    server = Server(tmp_path, DEMO_MODEL, "--prefill=1", "--decode=1", f"--cache-dir={cache}")
    with being_packed(cache), open(server.log_path, "wb") as log:
        process = subprocess.Popen(server.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            for name in ("prefill-0", "decode-0"):
                wait_until(lambda: server.pid(name) and waits_for_a_lock(server.pid(name)), WAIT_S,
                           f"{name} waits for the weights")
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
            process.wait()
    ended = {entry["child"]: entry["how"] for entry in map(json.loads, server.log().splitlines())
             if entry["message"] == "ended" and "child" in entry}
    # By themselves: nobody had to kill them.
    assert set(ended) == {"prefill-0", "decode-0", "router"}
    assert not any("SIGKILL" in how or "signal 9" in how for how in ended.values()), ended


def pools(pid):
    """The folders in shared memory that a process has mapped something of."""
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    return {pathlib.Path(found) for found in re.findall(r"/dev/shm/tandem\.\w+", maps)}


def test_serve_leaves_no_pool_of_a_worker_that_had_no_time_to_remove_it(cache, tmp_path):
    server = Server(tmp_path, DEMO_MODEL, "--hybrid=2", "--kv-memory=64MiB", f"--cache-dir={cache}")
    made = {}
    with open(server.log_path, "wb") as log:
        process = subprocess.Popen(server.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        for name in ("hybrid-0", "hybrid-1"):
            wait_until(lambda name=name: server.pid(name) and pools(server.pid(name)), WAIT_S, "the worker has a folder")
            made[name] = pools(server.pid(name))
        for name in made:
            os.kill(server.pid(name), signal.SIGSTOP)  # Serve has to kill them in the end.
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
        process.wait(WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert not [folder for folders in made.values() for folder in folders if folder.exists()]


def fill(pipe):
    """Until nothing more fits. Its other users go on with descriptors that block."""
    own = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(own, b"x" * 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(own, b"x")
    os.close(own)


def test_a_worker_whose_log_nobody_reads_keeps_serving(tmp_path):
    reader, writer = os.pipe()
    fill(writer)
    worker = Worker(tmp_path, "mute")
    worker.process = subprocess.Popen(worker.command, stdout=writer, stderr=writer, stdin=subprocess.DEVNULL,
                                      env=worker.environment)
    os.close(writer)
    try:
        with Router(tmp_path, [worker]) as router:
            assert len(router.complete([5, 6, 7], max_tokens=9)[0]) == 9
            wait_until(lambda: router.total("tandem_log_lines_dropped_total", worker="mute") >= 3, WAIT_S,
                       "the lines of its start are counted")
            text = b""
            os.set_blocking(reader, False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    text += os.read(reader, 65536)
            os.set_blocking(reader, True)
            assert len(router.complete([8, 9, 10], max_tokens=9)[0]) == 9
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(WAIT_S) == 0
        with os.fdopen(reader, "rb") as rest:
            text += rest.read()
        lines = [json.loads(line) for line in text.lstrip(b"x").splitlines()]
        dropped = [line for line in lines if line["message"].startswith("log lines were dropped")]
        assert len(dropped) == 1 and dropped[0]["lines"] >= 3
        assert lines[-1]["message"] == "drained"
    finally:
        worker.process.kill()
        worker.process.wait()


@pytest.mark.parametrize("command", [["tandem-worker", "--model=/nonexistent"],
                                     ["tandem-router", "--model=/nonexistent", "--workers=127.0.0.1:1"]])
def test_a_start_that_fails_waits_for_no_reader(command):
    reader, writer = os.pipe()
    fill(writer)
    process = subprocess.Popen([BIN / command[0], *command[1:]], stdout=writer, stderr=writer,
                               stdin=subprocess.DEVNULL)
    os.close(writer)
    try:
        assert process.wait(WAIT_S) in (1, 2)
    finally:
        process.kill()
        process.wait()
        os.close(reader)


def last_words(command, **options):
    """What a command says that does not start, and that it ends with an error."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, stdin=subprocess.DEVNULL, **options)
    assert ended.returncode in (1, 2), ended.stderr
    return ended.stderr


@pytest.mark.parametrize("flag, why", [
    ("--workers=127.0.0.1:99999", "a port of 1 to 65535"),
    ("--workers=127.0.0.1:0", "a port of 1 to 65535"),
    ("--workers=127.0.0.1:7000,127.0.0.1:7000", "there twice"),
    ("--workers=,", "names no address"),
    ("--workers-dns=workers:http", "a port of 1 to 65535"),
])
def test_workers_that_nobody_can_reach_are_refused(flag, why):
    said = last_words([BIN / "tandem-router", f"--model={DEMO_MODEL}", flag])
    assert flag.partition("=")[0] in said and why in said


@pytest.mark.parametrize("command", [["tandem", "serve", DEMO_MODEL],
                                     ["tandem-worker", f"--model={DEMO_MODEL}", "--listen=127.0.0.1:0"],
                                     ["tandem-router", f"--model={DEMO_MODEL}", "--workers=127.0.0.1:1"]])
def test_too_few_descriptors_are_an_error_with_the_numbers(command, tmp_path):
    said = last_words(["prlimit", "--nofile=64:64", BIN / command[0], *command[1:]],
                      env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
    assert "64 files and sockets" in said and "at least 512" in said


def machine_bytes():
    with open("/proc/meminfo") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith("MemTotal:"))


# Each worker would fit alone.
@pytest.mark.parametrize("flag", ["kv-memory", "memory-limit"])
def test_workers_that_do_not_fit_together_are_refused_before_any_starts(flag, tmp_path):
    said = last_words([BIN / "tandem", "serve", DEMO_MODEL, "--hybrid=2", "--transport=grpc", "--http=127.0.0.1:0",
                       "--grpc=127.0.0.1:0", f"--cache-dir={tmp_path}", f"--{flag}={machine_bytes() * 6 // 10}"])
    line, = map(json.loads, said.splitlines())
    assert line["process"] == "serve" and line["why"].startswith(f"--{flag}: "), line
    assert "2 workers" in line["why"] and "run fewer workers here" in line["why"]


# A window spares a worker blocks, but not one that computes prompts for others.
def test_serve_looks_at_its_prefill_workers_before_any_starts(tmp_path):
    model = tmp_path / "windowed"
    model.mkdir()
    config = json.loads((DEMO_MODEL / "config.json").read_text())
    config.update(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=48)
    (model / "config.json").write_text(json.dumps(config))
    command = [BIN / "tandem", "serve", model, "--load-format=dummy", "--transport=grpc", "--kv-memory=8MiB",
               "--http=127.0.0.1:0", "--grpc=127.0.0.1:0", f"--cache-dir={tmp_path}"]
    line, = map(json.loads, last_words(command).splitlines())
    assert line["process"] == "serve" and line["why"].startswith("--kv-memory: 8.00 MiB gives "), line


@pytest.mark.parametrize("limit, why", [("1KiB", "1.00 KiB, want at least 32.00 MiB"), ("100TiB", "100.00 TiB, but the machine")])
def test_a_router_holds_no_more_than_there_is(limit, why):
    said = last_words([BIN / "tandem-router", f"--model={DEMO_MODEL}", "--workers=127.0.0.1:1", f"--memory-limit={limit}"])
    assert f"--memory-limit: {why}" in said


@pytest.mark.parametrize("program, listen", [("tandem-worker", "--listen"), ("tandem-router", "--http")])
def test_both_programs_say_alike_what_is_wrong(program, listen, tmp_path):
    command = [BIN / program, f"--model={DEMO_MODEL}"]
    if program == "tandem-router":
        command.append("--workers=127.0.0.1:1")
    for flags, why in [([f"{listen}=nowhere"], f"{listen}: "), (["--no-such"], "--no-such"), (["stray"], "stray"),
                       ([f"--fleet-secret-file={tmp_path}/none"], "/none"), (["--fleet-tls-name=x"], "--fleet-tls-ca")]:
        for more in ([], ["--print-config"]):
            ended = subprocess.run([*command, *flags, *more], capture_output=True, text=True, timeout=WAIT_S)
            first, second = ended.stderr.splitlines()
            assert ended.returncode == 2 and not ended.stdout, ended
            assert first.startswith(f"{program}: ") and why in first and second == "Try --help.", ended


def test_flags_come_from_the_command_line_the_environment_and_a_file(tmp_path):
    file = tmp_path / "tandem.yaml"
    file.write_text("threads: 1\nkv-memory: 64MiB\nmax-num-seqs: 7\n")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TANDEM_CONFIG": str(file),
                   "TANDEM_MAX_NUM_SEQS": "9", "TANDEM_NAME": "of another program"}
    command = [BIN / "tandem", "serve", DEMO_MODEL, "--hybrid=1", f"--http=127.0.0.1:{free_port()}", "--grpc=127.0.0.1:0"]
    printed = subprocess.run([*command, "--print-config"], env=environment, capture_output=True, text=True, check=True,
                             timeout=WAIT_S).stdout
    assert "hybrid: 1  # command line\n" in printed and "max-num-seqs: 9  # TANDEM_MAX_NUM_SEQS\n" in printed
    assert "prefill: 0  # default\n" in printed and "decode: 0  # default\n" in printed, "what will run"
    assert f"threads: 1  # {file}\n" in printed and "block-size: 16  # default\n" in printed
    serving = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    try:
        lines = []
        for line in serving.stderr:
            lines.append(json.loads(line))
            if lines[-1]["message"] == "serving":
                break
        assert lines[-1]["process"] == "hybrid-0" and lines[-1]["max_sequences"] == 9
        assert [line["variable"] for line in lines if "variable" in line] == ["TANDEM_NAME"]
        serving.terminate()
        serving.stderr.read()
        assert serving.wait(WAIT_S) == 0
    finally:
        serving.kill()
        serving.wait()
        serving.stderr.close()


def niceness_of_threads(pid):
    """Above that of the process's first thread, by name."""
    nice = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # It has ended.
            stat = (task / "stat").read_text().rpartition(")")[2].split()
            nice[task.name] = ((task / "comm").read_text().strip(), int(stat[16]))
    first = nice[str(pid)][1]
    return [(name, level - first) for name, level in nice.values()]


def test_threads_that_compute_prompts_let_those_that_decode_go_first(disaggregated):
    for worker, levels in (("prefill-0", 8), ("decode-0", 0), ("decode-1", 0)):
        threads = niceness_of_threads(disaggregated.pid(worker))
        computing = [level for name, level in threads if name.startswith("kernel-")]
        assert set(computing) <= {levels}, (worker, threads)
        assert computing or levels == 0, (worker, threads)
        assert {level for name, level in threads if not name.startswith("kernel-")} == {0}, (worker, threads)
