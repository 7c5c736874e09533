"""Dashboards, rules, runbooks and autoscalers: a real Prometheus scrapes a fleet under load and answers every query of theirs."""

import concurrent.futures
import itertools
import json
import math
import re
import subprocess
import sys

import pytest

from dashboards import ROOT, RULES, queries, watched_fleet
from server import wait_until

AUTOSCALING = ROOT / "deploy/helm/tandem/files/autoscaling.yaml"
METRIC = re.compile(r"\b(?:tandem|vllm)[_:][a-z0-9_:]+")
ON_GPUS = {"tandem_device_memory_bytes"}  # The fleet here has none: test_devices.py asks workers that have.


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """Asks one that scrapes a loaded fleet and holds the rules, each evaluated every second."""
    with watched_fleet(tmp_path_factory.mktemp("prometheus")) as (server, watcher):
        new = itertools.count(1)

        def load(known):
            prompt = [3] * 64 if known else [next(new) % 250, *range(64)]
            return server.complete(prompt, max_tokens=8)

        def served_for_a_while(pool):
            list(pool.map(load, [True, False] * 4))
            seen = watcher.ask("query", query="max(count_over_time(tandem:slow_first_tokens:ratio_rate6h[1m]))")["result"]
            return seen and float(seen[0]["value"][1]) >= 3

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            wait_until(lambda: served_for_a_while(pool), 60, "three evaluations of the rules see requests")
        yield watcher.ask


def test_every_panel_has_data(prometheus):
    empty = []
    for dashboard, panel, query in queries():
        if ON_GPUS & set(METRIC.findall(query)):
            continue
        values = [float(sample["value"][1]) for sample in prometheus("query", query=query)["result"]]
        if not any(map(math.isfinite, values)):
            empty.append((dashboard, panel, query))
    assert not empty, empty


def test_every_metric_that_is_asked_for_exists(prometheus):
    known = set(prometheus("label/__name__/values"))
    asked = {name for _, _, query in queries() for name in METRIC.findall(query)}
    asked |= {name for path in [*RULES, AUTOSCALING] for line in path.read_text().splitlines() if not line.lstrip().startswith("#")
              for name in METRIC.findall(line)}
    assert asked - known == ON_GPUS
    assert ON_GPUS <= set(METRIC.findall((ROOT / "docs/metrics.md").read_text()))


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


def test_a_panel_tells_workers_with_cuda_from_those_without(tmp_path):
    query, = (query for _, panel, query in queries() if panel == "Processes by version and CUDA")
    processes = [("router", "0.1.0", ""), ("a", "0.1.0", ""), ("b", "0.1.0", "13.0 for sm_90a"), ("c", "0.2.0", "13.0 for sm_90a")]
    (tmp_path / "test.yaml").write_text(json.dumps({"tests": [{
        "input_series": [{"series": f'tandem_build_info{{worker="{worker}",version="{version}",cuda="{cuda}"}}', "values": "1"}
                         for worker, version, cuda in processes],
        "promql_expr_test": [{"expr": query, "eval_time": "0s", "exp_samples": [
            {"labels": '{version="0.1.0",cuda="none"}', "value": 2},
            {"labels": '{version="0.1.0",cuda="13.0 for sm_90a"}', "value": 1},
            {"labels": '{version="0.2.0",cuda="13.0 for sm_90a"}', "value": 1}]}]}]}))
    ended = subprocess.run(["promtool", "test", "rules", tmp_path / "test.yaml"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_dashboards_are_what_their_tool_writes():
    ended = subprocess.run([sys.executable, ROOT / "tools/dev/make_dashboards", "--check"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
