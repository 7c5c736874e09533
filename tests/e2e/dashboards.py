"""Grafana's dashboards, asked as a Grafana would ask them, and a Prometheus that scrapes a fleet and answers."""

import contextlib
import json
import pathlib
import re
import subprocess

import httpx

from certificates import Authority, client_flags, context
from server import DEMO_MODEL, Server, free_port, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = sorted((ROOT / "deploy/prometheus").glob("*.yaml"))
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))


def expression(dashboard, target, rate_interval):
    """A panel's query with what Grafana puts in the variables' places where All is chosen."""
    query = target["expr"].replace("$__rate_interval", rate_interval)
    for variable in dashboard["templating"]["list"]:
        query = query.replace(f"${variable['name']}", variable.get("allValue", ""))
    assert "$" not in query, query
    return query


def queries(rate_interval="15s"):
    """(dashboard, panel, query) of them all."""
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield path.name, panel["title"], expression(dashboard, target, rate_interval)


class Prometheus:
    """Scrapes a server, and evaluates our rules, every so many seconds."""

    def __init__(self, folder, server, ca_file, seconds=1):
        self.folder, self.address = pathlib.Path(folder), f"127.0.0.1:{free_port()}"
        self.client = httpx.Client(base_url=f"http://{self.address}/api/v1", verify=False)
        every = f"{seconds}s"
        for path in RULES:
            (self.folder / path.name).write_text(re.sub(r"interval: \d+s", f"interval: {every}", path.read_text()))
        (self.folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": every, "evaluation_interval": every},
            "rule_files": [path.name for path in RULES],
            "scrape_configs": [{"job_name": "tandem", "scheme": "https", "tls_config": {"ca_file": str(ca_file)},
                                "static_configs": [{"targets": [server.http]}]}]}))

    def __enter__(self):
        log = self.folder / "prometheus.log"
        with open(log, "wb") as written:
            self.process = subprocess.Popen(["prometheus", f"--config.file={self.folder / 'prometheus.yml'}",
                                             f"--storage.tsdb.path={self.folder / 'data'}",
                                             f"--web.listen-address={self.address}"],
                                            stdout=written, stderr=written, stdin=subprocess.DEVNULL)
        try:
            wait_until(lambda: "Server is ready" in log.read_text(), 60, "Prometheus serves")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)

    def ask(self, path, **parameters):
        answer = self.client.get(path, params=parameters).json()
        assert answer["status"] == "success", f"{parameters}: {answer}"
        return answer["data"]


@contextlib.contextmanager
def watched_fleet(folder, *flags, seconds=1):
    """One prefill and two decode workers behind TLS, every prompt prefilled elsewhere; and its Prometheus."""
    authority = Authority(folder)
    files = authority.issue("front", "127.0.0.1", days=90)
    with Server(folder, DEMO_MODEL, "--prefill=1", "--decode=2", "--disaggregate=always", *flags,
                *client_flags(files, asks=False), tls=context(authority)) as server:
        with Prometheus(folder, server, f"{files}.ca", seconds) as prometheus:
            yield server, prometheus
