"""Makes the Grafana dashboards and the Prometheus rules of this folder from metrics.toml.

    python3 deploy/monitoring/generate.py

A test compares the committed files with what this program makes.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TITLES = {
    "ps": "parameter servers",
    "hub": "hubs",
    "serve": "servers of predictions",
    "trainer": "trainers",
    "cluster": "clusters",
    "keeper": "keepers",
    "run": "training runs",
}
# A metric that every process of the role has: it names the instances of a dashboard.
OF_ROLE = {
    "ps": "sanderling_info",
    "hub": "sanderling_hub_uptime_seconds",
    "serve": "sanderling_serve_ready",
    "trainer": "sanderling_feed_uptime_seconds",
    "cluster": "sanderling_group_server",
    "keeper": "sanderling_keeper_info",
    "run": "sanderling_train_examples_total",
}
COLUMNS, WIDTH, HEIGHT = 2, 12, 8


def read() -> dict[str, Any]:
    """Panels and alerts."""
    return tomllib.loads((HERE / "metrics.toml").read_text())


def expression(alert: dict[str, Any]) -> str:
    """The expression of an alert."""
    return f"({alert['value']}) {alert['limit']}"


def dashboard(role: str, panels: list[dict[str, Any]]) -> str:
    """The JSON of a dashboard, as Grafana imports it."""
    source = {"type": "prometheus", "uid": "${source}"}
    made = []
    for at, panel in enumerate(panels):
        row, column = divmod(at, COLUMNS)
        targets = [
            {"refId": chr(ord("A") + number), "datasource": source, "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(panel["queries"])
        ]
        made.append(
            {
                "id": at + 1,
                "type": "timeseries",
                "title": panel["title"],
                "description": panel["text"],
                "datasource": source,
                "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
                "fieldConfig": {"defaults": {"unit": panel["unit"], "min": 0}, "overrides": []},
                "options": {"tooltip": {"mode": "multi"}, "legend": {"displayMode": "list", "placement": "bottom"}},
                "targets": targets,
            }
        )
    instances = {
        "name": "instance",
        "type": "query",
        "datasource": source,
        "query": f"label_values({OF_ROLE[role]}, instance)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
    page = {
        "uid": f"sanderling-{role}",
        "title": f"Sanderling: {TITLES[role]}",
        "tags": ["sanderling"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus"}, instances]},
        "panels": made,
    }
    return json.dumps(page, indent=1, ensure_ascii=False) + "\n"


def rules(alerts: list[dict[str, Any]]) -> str:
    """The file of alerts, as Prometheus reads it."""
    lines = ["# Made by generate.py from metrics.toml: change that file.", "groups:"]
    for role in dict.fromkeys(alert["role"] for alert in alerts):
        lines += [f"  - name: sanderling-{role}", "    rules:"]
        for alert in (alert for alert in alerts if alert["role"] == role):
            lines += [
                f"      - alert: {alert['name']}",
                f"        expr: {json.dumps(expression(alert))}",
                f"        for: {alert['for']}",
                "        labels:",
                f"          severity: {alert['severity']}",
                "        annotations:",
                f"          summary: {json.dumps(alert['summary'])}",
                f"          runbook: {json.dumps(alert['runbook'])}",
            ]
    return "\n".join(lines) + "\n"


def files() -> dict[str, str]:
    """What this program makes: text by the name of the file."""
    listed = read()
    made = {
        f"sanderling-{role}.json": dashboard(role, [panel for panel in listed["panel"] if panel["role"] == role])
        for role in TITLES
    }
    return made | {"alerts.yml": rules(listed["alert"])}


if __name__ == "__main__":
    for name, text in files().items():
        (HERE / name).write_text(text)
