"""Dashboards, rules, runbooks and autoscalers: a real Prometheus scrapes a fleet under load and answers every query of theirs."""

import concurrent.futures
import itertools
import json
import math
import pathlib
import re
import subprocess
import sys

import httpx
import pytest

from certificates import Authority, client_flags, context
from server import DEMO_MODEL, Server, free_port, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = sorted((ROOT / "deploy/prometheus").glob("*.yaml"))
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
AUTOSCALING = ROOT / "deploy/helm/tandem/files/autoscaling.yaml"
METRIC = re.compile(r"\b(?:tandem|vllm)[_:][a-z0-9_:]+")
# What Grafana puts in their places.
VARIABLES = {"$__rate_interval": "15s", "$namespace": ".*", "$worker": ".*"}


def queries():
    """(dashboard, panel, query) of them all."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                query = target["expr"]
                for name, value in VARIABLES.items():
                    query = query.replace(name, value)
                yield path.name, panel["title"], query


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """Asks one that scrapes a loaded fleet and holds the rules, each evaluated every second."""
    folder = tmp_path_factory.mktemp("prometheus")
    address = f"127.0.0.1:{free_port()}"
    for path in RULES:
        (folder / path.name).write_text(re.sub(r"interval: \d+s", "interval: 1s", path.read_text()))
    authority = Authority(folder)
    files = authority.issue("front", "127.0.0.1")
    with Server(folder, DEMO_MODEL, "--prefill=1", "--decode=2", "--disaggregate=always",
                *client_flags(files, asks=False), tls=context(authority)) as server:
        (folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [path.name for path in RULES],
            "scrape_configs": [{"job_name": "tandem", "scheme": "https", "tls_config": {"ca_file": f"{files}.ca"},
                                "static_configs": [{"targets": [server.http]}]}]}))
        with open(folder / "prometheus.log", "wb") as log:
            process = subprocess.Popen(["prometheus", f"--config.file={folder / 'prometheus.yml'}",
                                        f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"],
                                       stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        client = httpx.Client(base_url=f"http://{address}/api/v1", verify=False)

        def ask(path, **parameters):
            answer = client.get(path, params=parameters).json()
            assert answer["status"] == "success", f"{parameters}: {answer}"
            return answer["data"]

        new = itertools.count(1)

        def load(known):
            prompt = [3] * 64 if known else [next(new) % 250, *range(64)]
            return server.complete(prompt, max_tokens=8)

        def served_for_a_while(pool):
            list(pool.map(load, [True, False] * 4))
            seen = ask("query", query="max(count_over_time(tandem:slow_first_tokens:ratio_rate6h[1m]))")["result"]
            return seen and float(seen[0]["value"][1]) >= 3

        try:
            wait_until(lambda: "Server is ready" in (folder / "prometheus.log").read_text(), 60, "Prometheus serves")
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                wait_until(lambda: served_for_a_while(pool), 60, "three evaluations of the rules see requests")
            yield ask
        finally:
            process.terminate()
            process.wait(30)


def test_every_panel_has_data(prometheus):
    empty = []
    for dashboard, panel, query in queries():
        values = [float(sample["value"][1]) for sample in prometheus("query", query=query)["result"]]
        if not any(map(math.isfinite, values)):
            empty.append((dashboard, panel, query))
    assert not empty, empty


def test_every_metric_that_is_asked_for_exists(prometheus):
    known = set(prometheus("label/__name__/values"))
    asked = {name for _, _, query in queries() for name in METRIC.findall(query)}
    asked |= {name for path in [*RULES, AUTOSCALING] for line in path.read_text().splitlines() if not line.lstrip().startswith("#")
              for name in METRIC.findall(line)}
    assert asked - known == set()


def test_rules_hold_and_a_healthy_fleet_calls_nobody(prometheus):
    rules = [rule for group in prometheus("rules")["groups"] for rule in group["rules"]]
    assert [rule for rule in rules if rule["health"] != "ok"] == []
    alerts = [rule for rule in rules if rule["type"] == "alerting"]
    assert len(alerts) > 10
    assert {rule["name"] for rule in alerts if rule["state"] != "inactive"} == set()
    for rule in alerts:
        page = ROOT / rule["annotations"]["runbook_url"]
        assert rule["name"] in page.read_text().splitlines()[0], page
        assert rule["name"] in (ROOT / "docs/runbooks/README.md").read_text(), rule["name"]


def test_promtool_finds_every_alert_right():
    for command in (["check", "rules", *RULES], ["test", "rules", *(ROOT / "deploy/prometheus/tests").glob("*.yaml")]):
        ended = subprocess.run(["promtool", *command], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    tested = "\n".join(path.read_text() for path in (ROOT / "deploy/prometheus/tests").glob("*.yaml"))
    for name in re.findall(r"alert: (\w+)", (ROOT / "deploy/prometheus/alerts.yaml").read_text()):
        assert re.search(rf"alertname: {name}\n\s+exp_alerts:", tested), f"no test in which {name} fires"


def test_dashboards_are_what_their_tool_writes():
    ended = subprocess.run([sys.executable, ROOT / "tools/dev/make_dashboards", "--check"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
