"""``examples/monitoring``: up to date, about metrics that exist, and understood by Prometheus.

That brokers really say each of these metrics is tests/integration/broker/test_monitoring.py.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from broker_runtime.contract.errors import PylogError
from broker_runtime.metrics.table import METRICS, Definition
from docs.reference import metrics as metrics_page
from examples.monitoring import alerts, dashboards
from examples.monitoring.__main__ import FOLDER, expressions, files

PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}
TARGET = {"job", "instance", "le", "alertname"}
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metrics_in(expression: str) -> list[tuple[Definition, str]]:
    """Each metric that is asked for, and its label selector. Fails for one that is not in the table."""
    series = {
        f"{each.series}{end}": each
        for each in METRICS.values()
        for end in (("_bucket", "_count", "_sum") if each.kind == "histogram" else ("",))
    }
    named = re.findall(r"\b(pylog_\w+)(\{[^}]*\})?", expression)
    assert named or re.search(r"\b(up|process_\w+)\b", expression), expression
    unknown = set(re.findall(r"\bprocess_\w+", expression)) - PROCESS
    assert unknown == set()
    return [(series[name], selector) for name, selector in named]


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_what_is_written_is_up_to_date(path: Path) -> None:
    """``python -m examples.monitoring`` writes it again."""
    assert path.read_text() == files()[path]


def test_nothing_is_left_of_what_was_written_before() -> None:
    """Each file is written, or writes."""
    there = {path for path in FOLDER.iterdir() if path.suffix not in (".py", "") and path.is_file()}
    assert there == set(files())


@pytest.mark.parametrize("expression", expressions())
def test_expressions_ask_for_metrics_and_labels_that_exist(expression: str) -> None:
    """A panel that stays empty and an alert that never fires look as if all were well."""
    for metric, selector in metrics_in(expression):
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\"", selector):
            assert label in {*metric.labels, *TARGET}, (metric.name, label)
    known = {label for metric, _ in metrics_in(expression) for label in metric.labels} | TARGET
    for labels in re.findall(r"\bby \(([^)]*)\)", expression):
        assert set(labels.split(", ")) <= known, labels
    codes = {error.code for error in _all_errors(PylogError)}
    for listed in re.findall(r'code=~"([^"]*)"', expression):
        assert set(listed.split("|")) <= codes


def _all_errors(error: type[PylogError]) -> list[type[PylogError]]:
    return [error, *(each for kind in error.__subclasses__() for each in _all_errors(kind))]


def test_legends_name_labels_that_their_queries_keep() -> None:
    """A legend with an empty name says nothing."""
    for panel in (*dashboards.BROKERS, *dashboards.TOPICS_AND_GROUPS):
        for legend, expression in panel.queries.items():
            kept = {label for labels in re.findall(r"\bby \(([^)]*)\)", expression) for label in labels.split(", ")}
            if not kept:
                kept = {label for metric, _ in metrics_in(expression) for label in metric.labels} | TARGET
            assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= kept, (panel.title, legend)


def test_panels_do_not_overlap() -> None:
    """And each has an id of its own, as Grafana needs it."""
    for name in ("brokers.json", "topics_and_groups.json"):
        panels = json.loads((FOLDER / name).read_text())["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)


def test_every_metric_is_on_a_dashboard_or_in_an_alert() -> None:
    """One that nobody looks at need not be said."""
    asked = {metric.name for expression in expressions() for metric, _ in metrics_in(expression)}
    assert METRICS.keys() - asked == set()


def test_alerts_are_about_what_operators_of_kafka_are_woken_for() -> None:
    """Each is named once, and the page of metrics marks what they look at."""
    names = [alert.name for alert in alerts.ALERTS]
    assert len(set(names)) == len(names)
    marked = set(re.findall(r"^\| `(\w+)`(?: \(histogram\))? ⚑", metrics_page.page(), re.MULTILINE))
    assert {
        "offline_partitions", "under_min_isr_partitions", "under_replicated_partitions", "controller",
        "directory_stalled", "directory_failed_partitions", "directory_usable_bytes", "group_lag_seconds",
        "zookeeper_connected", "request_errors_total", "oldest_transaction_seconds",
    } <= marked  # fmt: skip


@needs_promtool
def test_prometheus_takes_rules_and_configuration() -> None:
    """As they are."""
    assert f"{len(alerts.ALERTS)} rules found" in promtool("check", "rules", FOLDER / "alerts.yml")
    promtool("check", "config", FOLDER / "prometheus.yml")


@needs_promtool
def test_alerts_fire_when_they_must_and_only_then() -> None:
    """Each by series that make it fire, not before its time, and not by series beside the bound."""
    promtool("test", "rules", FOLDER / "alerts.test.yml")


@needs_promtool
def test_prometheus_takes_the_queries_of_dashboards(tmp_path: Path) -> None:
    """As recording rules, with Grafana's variables replaced."""
    queries = [query.replace("$__rate_interval", "5m") for query in expressions()]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(queries)} rules found" in promtool("check", "rules", path)
