"""Workers and routers started one by one, as an operator without `tandem serve` would."""

import os
import pathlib
import secrets
import signal
import subprocess

from server import BIN, DEMO_MODEL, Server, free_port


SECRET = secrets.token_hex(32)  # Of every fleet here that says nothing else.


def environment(secret):
    """With that fleet secret, or none."""
    kept = {name: value for name, value in os.environ.items() if name != "TANDEM_FLEET_SECRET"}
    return kept | ({"TANDEM_FLEET_SECRET": secret} if secret else {})


class Worker:
    """`tandem-worker` for the demo model; `prefix` is put before the command."""

    def __init__(self, folder, name, *flags, address="127.0.0.1", prefix=(), secret=SECRET):
        self.target = f"{address}:{free_port()}"
        self.log_path = pathlib.Path(folder) / f"{name}.log"
        self.environment = environment(secret)
        self.command = [*prefix, str(BIN / "tandem-worker"), f"--model={DEMO_MODEL}", f"--name={name}",
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

    def start(self):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, env=self.environment)

    def kill(self):
        self.process.kill()
        self.process.wait()


class Router(Server):
    """`tandem-router` in front of `workers`."""

    def __init__(self, folder, workers, *flags, secret=SECRET):
        super().__init__(folder, DEMO_MODEL)
        self.environment = environment(secret)
        self.command = [str(BIN / "tandem-router"), f"--model={DEMO_MODEL}", f"--http={self.http}",
                        f"--grpc={self.grpc}", *flags]
        if workers:
            self.command.append("--workers=" + ",".join(worker.target for worker in workers))
