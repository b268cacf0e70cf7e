"""Writes what an operator's monitoring needs from the programs' metrics: `make monitoring`.

`docs/metrics.md` lists the metrics, `deploy/grafana.json` is a dashboard, `deploy/alerts.yml` holds
Prometheus' rules. tests/unit/test_monitoring.py holds them against the registries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml
from prometheus_client import CollectorRegistry, Metric

from config import PROJECT_ROOT
from core.metrics import GatewayMetrics, WorkerMetrics
from core.schemas.export.pages import table

COUNTER_SUFFIX: Final = "_total"  # what the text format appends to a counter's name


@dataclass(frozen=True)
class Panel:
    """One chart of the dashboard; a series is legend and expression."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Alert:
    """A rule that fires after `minutes` without a break."""

    name: str
    expression: str
    minutes: int
    severity: str
    summary: str


def _quantile(share: float, histogram: str, by: str) -> str:
    rate = f"sum by (le, {by}) (rate({histogram}_bucket[5m]))"
    return f"histogram_quantile({share}, {rate})"


def _rate(counter: str, by: str) -> str:
    return f"sum by ({by}) (rate({counter}_total[5m]))"


UNIT_P99: Final = _quantile(0.99, "omni_gateway_unit_seconds", "mode")
NAMED: Final = " * on (instance) group_left (worker) omni_worker_info"  # else by address
LATE: Final = "sum(rate(omni_worker_late_units_total[5m]))"

PANELS: Final = (
    Panel("Conversations", "none", (("{{mode}}", "sum by (mode) (omni_gateway_sessions)"),)),
    Panel("Waiting", "none", (("requests", "omni_gateway_queue_length"),)),
    Panel(
        "Wait for a worker, 90 %",
        "s",
        (("{{mode}}", _quantile(0.9, "omni_gateway_queue_wait_seconds", "mode")),),
    ),
    Panel("Workers", "none", (("{{status}}", "sum by (status) (omni_gateway_workers)"),)),
    Panel("A unit of duplex, 99 %", "s", (("{{mode}}", UNIT_P99),)),
    Panel("Late units", "ops", (("late", LATE),)),
    Panel(
        "Stages of a unit, mean",
        "s",
        (
            (
                "{{stage}}",
                "sum by (stage) (rate(omni_worker_unit_stage_seconds_sum[5m])) / "
                "sum by (stage) (rate(omni_worker_unit_stage_seconds_count[5m]))",
            ),
        ),
    ),
    Panel(
        "First piece of a reply, 90 %",
        "s",
        (("{{mode}}", _quantile(0.9, "omni_worker_first_chunk_seconds", "mode")),),
    ),
    Panel(
        "Work of the model's thread",
        "percentunit",
        (("{{worker}}", f"rate(omni_worker_engine_seconds[5m]){NAMED}"),),
    ),
    Panel("Capacity", "none", (("{{worker}}", f"omni_worker_capacity{NAMED}"),)),
    Panel(
        "Window of conversations", "none", (("{{worker}}", f"omni_worker_window_tokens{NAMED}"),)
    ),
    Panel("Errors over WebSockets", "ops", (("{{code}}", _rate("omni_gateway_errors", "code")),)),
    Panel("HTTP answers", "ops", (("{{status}}", _rate("omni_gateway_requests", "status")),)),
)

ALERTS: Final = (
    Alert(
        "NoWorker",
        "(sum(omni_worker_model_loaded) or vector(0)) < 1",
        2,
        "critical",
        "No worker has its model loaded.",
    ),
    Alert(
        "WorkersOffline",
        'omni_gateway_workers{status="offline"} > 0',
        5,
        "warning",
        "A worker does not answer the gateway.",
    ),
    Alert(
        "WorkersNotServing",
        # One that fails at each start is offline, loading and failed in turn.
        'sum by (instance) (omni_gateway_workers{status=~"offline|loading|error"}) > 0',
        15,
        "warning",
        "A worker is still loading, or fails and restarts again and again; its log says why.",
    ),
    Alert(
        "UnitsLate",
        f"{LATE} > 0.1",
        5,
        "warning",
        "Units of duplex take longer than they last; callers hear gaps.",
    ),
    Alert(
        "LongQueue",
        "omni_gateway_queue_length > 50",
        10,
        "warning",
        "Many have waited for ten minutes: more workers, or fewer conversations.",
    ),
    Alert(
        "UnitsSlow",
        f"{UNIT_P99} > 0.8",
        10,
        "warning",
        "One unit in a hundred takes over 0.8 s of the second that it lasts.",
    ),
    Alert(
        "InternalErrors",
        'sum(rate(omni_gateway_requests_total{status=~"5.."}[5m])) > 0.1',
        5,
        "warning",
        "The gateway answers with server errors.",
    ),
)


def metrics() -> Iterator[tuple[str, Metric]]:
    for program, kind in (("gateway", GatewayMetrics), ("worker", WorkerMetrics)):
        registry = CollectorRegistry()
        kind(registry)
        for metric in registry.collect():
            yield program, metric


def page() -> str:
    rows = (
        (f"`{m.name}{COUNTER_SUFFIX if m.type == 'counter' else ''}`", m.type, m.documentation)
        for _, m in metrics()
    )
    return (
        "# Metrics\n\n<!-- Written by `make monitoring`; do not edit. -->\n\n"
        "`GET /metrics` of the gateway and of each worker, in Prometheus' text format.\n\n"
        + table(("metric", "kind", "meaning"), rows)
        + "\n"
    )


def dashboard() -> str:
    source = {"type": "prometheus", "uid": "${source}"}
    panels = [_panel(number, panel, source) for number, panel in enumerate(PANELS)]
    variable = {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}
    board: dict[str, Any] = {
        "title": "minicpmo-live",
        "uid": "minicpmo-live",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [variable]},
        "panels": panels,
    }
    return json.dumps(board, indent=2) + "\n"


def _panel(number: int, panel: Panel, source: dict[str, str]) -> dict[str, Any]:
    width, height = 12, 8  # of the dashboard's 24 columns
    targets = [
        {"refId": chr(ord("A") + n), "expr": expression, "legendFormat": legend}
        for n, (legend, expression) in enumerate(panel.series)
    ]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {"x": number % 2 * width, "y": number // 2 * height, "w": width, "h": height},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def alerts() -> str:
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expression,
            "for": f"{alert.minutes}m",
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary},
        }
        for alert in ALERTS
    ]
    groups = {"groups": [{"name": "minicpmo-live", "rules": rules}]}
    return yaml.safe_dump(groups, sort_keys=False, width=100)


FILES: Final = {
    "docs/metrics.md": page,
    "deploy/grafana.json": dashboard,
    "deploy/alerts.yml": alerts,
}

if __name__ == "__main__":
    for path, text in FILES.items():
        (PROJECT_ROOT / path).write_text(text(), encoding="utf8")
