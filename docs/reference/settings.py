"""The settings of a scope."""

from __future__ import annotations

from broker_runtime.contract.settings import Scope, reference_table
from docs.reference.markdown import sections

_INTRODUCTION: dict[Scope, str] = {
    "topic": "What may be set for a topic: `pylog topic create NAME --config name=value`, `pylog topic alter`, "
    "`Admin.create_topic(…, config={…})`. A topic without a setting has the default.",
    "broker": "What stands in the file of `pylog broker start --config broker.toml`; see "
    "[Operations](../guides/operations.md) and [Security](../guides/security.md).",
    "producer": "What `Producer(…)` takes, as keywords (`linger_ms=5`) or by dotted name in `config={…}`; see "
    "[Python](../guides/python.md). [Spark's sink](spark-options.md#writing) takes some of them as options.",
    "consumer": 'What `Consumer(…)` takes, as keywords (`group_id="team"`) or by dotted name in `config={…}`; see '
    "[Python](../guides/python.md). [Spark's source](spark-options.md#reading) takes some of them as options.",
    "admin": "What `Admin(…)` takes. All clients have these settings.",
}


def page(scope: Scope) -> str:
    """The page."""
    return sections(
        f"# {scope.capitalize()} settings",
        _INTRODUCTION[scope],
        "Sizes and durations are numbers or texts like `16MiB` and `7d`. An unknown name is refused with the nearest "
        "known one. Where a default differs from that of Kafka 4, it says so (a broker's addresses and directories "
        "aside).",
        reference_table(scope),
    )
