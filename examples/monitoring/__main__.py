"""Writes the alerts, the dashboards and Prometheus' configuration again.

python -m examples.monitoring
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml

from examples.monitoring import alerts, dashboards

FOLDER: Final = Path(__file__).parent
RULES: Final = "alerts.yml"
_MADE: Final = "# Written by `python -m examples.monitoring`: change what it reads, not this.\n"
_PROMETHEUS: Final = {
    "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
    "rule_files": [RULES],
    "scrape_configs": [
        # The alerts and dashboards take the job for the cluster.
        {"job_name": "pylog", "static_configs": [{"targets": ["127.0.0.1:9193"]}]}
    ],
}


def files() -> dict[Path, str]:
    """All that is written, and what is to be in it."""
    return {
        FOLDER / RULES: _yaml(alerts.rules()),
        FOLDER / "alerts.test.yml": _yaml(alerts.rule_tests(RULES)),
        FOLDER / "prometheus.yml": _yaml(_PROMETHEUS),
        FOLDER / "brokers.json": _json(dashboards.dashboard("pylog: brokers", "pylog-brokers", dashboards.BROKERS)),
        FOLDER / "topics_and_groups.json": _json(
            dashboards.dashboard("pylog: topics and groups", "pylog-topics", dashboards.TOPICS_AND_GROUPS)
        ),
    }


def expressions() -> list[str]:
    """What the alerts and the dashboards ask Prometheus for."""
    panels = [*dashboards.BROKERS, *dashboards.TOPICS_AND_GROUPS]
    return [*(alert.expression for alert in alerts.ALERTS), *dashboards.expressions(panels)]


def _yaml(content: dict[str, Any]) -> str:
    return _MADE + yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content)
