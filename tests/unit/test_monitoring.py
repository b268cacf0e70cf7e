"""What monitoring is given agrees with what the programs measure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from core.schemas.worker import WorkerStatus
from gateway_modules.queue.worker_connection import OUT_OF_SERVICE
from scripts import monitoring
from tests.source_tree import ROOT

NAME = re.compile(r"\bomni_\w+")
SERIES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
}


def statuses_in(alert: monitoring.Alert) -> set[str]:
    found = re.findall(r'omni_gateway_workers\{status=~?"([\w|]+)"', alert.expression)
    return {status for part in found for status in part.split("|")}


@pytest.mark.parametrize("name", monitoring.FILES)
def test_the_committed_files_are_those_that_are_made(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf8") == monitoring.FILES[name](), (
        "run `make monitoring`"
    )


def test_every_metric_of_dashboard_and_alerts_exists() -> None:
    found = {m.name + suffix for _, m in monitoring.metrics() for suffix in SERIES[m.type]}
    panels = [expression for panel in monitoring.PANELS for _, expression in panel.series]
    named = set(NAME.findall(" ".join([*panels, *(a.expression for a in monitoring.ALERTS)])))
    assert named and named <= found


def test_statuses_of_workers_exist() -> None:
    named = set().union(*map(statuses_in, monitoring.ALERTS))
    assert named and named <= {status.value for status in WorkerStatus}


def test_a_worker_that_fails_at_each_start_is_reported() -> None:
    # Its status alternates, so an alert for one of them would never last long enough.
    assert any(set(OUT_OF_SERVICE) <= statuses_in(alert) for alert in monitoring.ALERTS)


def test_prometheus_reads_the_rules_that_are_written() -> None:
    path: Path = ROOT / "deploy" / "prometheus.yml"
    config = yaml.safe_load(path.read_text(encoding="utf8"))
    assert all((path.parent / name).is_file() for name in config["rule_files"])
