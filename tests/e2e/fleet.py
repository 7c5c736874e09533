"""Workers and routers started one by one, as an operator without `tandem serve` would."""

import pathlib
import signal
import subprocess

from server import BIN, DEMO_MODEL, Server, free_port


class Worker:
    """`tandem-worker` for the demo model; `prefix` is put before the command."""

    def __init__(self, folder, name, *flags, address="127.0.0.1", prefix=()):
        self.target = f"{address}:{free_port()}"
        self.log_path = pathlib.Path(folder) / f"{name}.log"
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
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self):
        self.process.kill()
        self.process.wait()


class Router(Server):
    """`tandem-router` in front of `workers`."""

    def __init__(self, folder, workers, *flags):
        super().__init__(folder, DEMO_MODEL)
        self.command = [str(BIN / "tandem-router"), f"--model={DEMO_MODEL}", f"--http={self.http}",
                        f"--grpc={self.grpc}", "--workers=" + ",".join(worker.target for worker in workers),
                        *flags]
