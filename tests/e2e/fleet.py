"""Workers and routers started one by one, as an operator without `tandem serve` would."""

import contextlib
import os
import pathlib
import secrets
import signal
import subprocess

from server import BIN, DEMO_MODEL, Server, free_port, process_state, wait_until


SECRET = secrets.token_hex(32)  # Every fleet's here that says nothing else.


def environment(secret):
    """With that fleet secret, or none."""
    kept = {name: value for name, value in os.environ.items() if name != "TANDEM_FLEET_SECRET"}
    return kept | ({"TANDEM_FLEET_SECRET": secret} if secret else {})


class Worker:
    """`tandem-worker`, or another `program`, for the demo model; `prefix` is put before the command."""

    def __init__(self, folder, name, *flags, address="127.0.0.1", prefix=(), secret=SECRET,
                 program=BIN / "tandem-worker"):
        self.target = f"{address}:{free_port()}"
        self.log_path = pathlib.Path(folder) / f"{name}.log"
        self.environment = environment(secret)
        self.command = [*prefix, str(program), f"--model={DEMO_MODEL}", f"--name={name}",
                        f"--listen={self.target}", "--kv-memory=64000000", "--threads=1", *flags]

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, failure, *_):
        if failure:
            self.kill()
            return
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        assert status == 0, f"{self.command} ended with {status}:\n{self.log_path.read_text()[-3000:]}"

    def start(self, *flags):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen([*self.command, *flags], stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, env=self.environment)

    def kill(self):
        self.process.kill()
        self.process.wait()


class SupervisedWorker(Worker):
    """Told, as `tandem serve` does it, that its lives before were ended from outside."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.lives = []

    def start(self):
        ended = ",".join(f"{life}:outside" for life in self.lives[-64:])
        self.lives.append(secrets.randbits(62) + 1)
        super().start(f"--incarnation={self.lives[-1]}", *([f"--ended={ended}"] if ended else []))


class Router(Server):
    """`tandem-router` in front of `workers`."""

    def __init__(self, folder, workers, *flags, secret=SECRET, tls=None):
        super().__init__(folder, DEMO_MODEL, tls=tls)
        self.environment = environment(secret)
        self.command = [str(BIN / "tandem-router"), f"--model={DEMO_MODEL}", f"--http={self.http}",
                        f"--grpc={self.grpc}", *flags]
        if workers:
            self.command.append("--workers=" + ",".join(worker.target for worker in workers))


class UnequalFleet(Router):
    """`workers`, by name, of which each is another kind; who is killed starts again."""

    def __init__(self, folder, kinds, *flags):
        self.workers = {name: SupervisedWorker(folder, name, f"--role={name.split('-')[0]}", *kind)
                        for name, kind in kinds.items()}
        super().__init__(folder, list(self.workers.values()), *flags)

    def __enter__(self):
        self.running = contextlib.ExitStack()
        for worker in self.workers.values():
            self.running.enter_context(worker)
        return super().__enter__()

    def __exit__(self, *failure):
        super().__exit__(*failure)
        self.running.__exit__(*failure)

    def kill(self, name, signal_number=signal.SIGKILL):
        worker = self.workers[name]
        pid = worker.process.pid
        os.kill(pid, signal_number)
        if signal_number == signal.SIGKILL:
            worker.process.wait()
            worker.start()
        elif signal_number == signal.SIGSTOP:
            wait_until(lambda: process_state(pid) == "T", 5, f"{name} (pid {pid}) is stopped")
        return pid
