"""The topics, one topic, and what can be done with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker_runtime.contract.errors import OptionError
from broker_runtime.contract.model import PartitionDescription, TopicDescription, TopicPartition
from broker_runtime.contract.requests import LogDirInfo
from broker_runtime.contract.schema import parse_schema
from broker_runtime.contract.settings import settings_of
from pyspark_log.client.admin.health import Problem, advice, health_of
from pyspark_log.console import formats
from pyspark_log.console.visit import Done, Page, Visit, ask, number_of, portion, whole

_SORTS: Final = {"name": "Name", "size": "Size on disk", "partitions": "Partitions", "state": "State"}
_MOST_PARTITIONS_AT_ONCE: Final = 200
_WORST_FIRST: Final = (
    "log-missing", "offline", "damaged", "under-min-isr", "under-replicated", "transaction-hangs", "healthy"
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """A topic in the list. ``disk_bytes``: of all its replicas, None: not known. ``problems``: how many of its
    partitions have one. ``records``: -1: not known."""

    name: str
    partitions: int
    replicas: int
    columns: int
    state: str
    problems: int
    disk_bytes: int | None
    records: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """A partition on its topic's page. ``disk_bytes``: of the leader's replica."""

    described: PartitionDescription
    state: str
    advice: str | None
    disk_bytes: int | None

    @property
    def records(self) -> int:
        """How many offsets the log holds; -1: not known."""
        each = self.described
        return each.high_watermark - each.log_start if each.high_watermark >= 0 else -1


def topics(visit: Visit) -> Page:
    """All topics, a page of the table at a time. Asks for all of them at once, whatever their number."""
    admin = visit.connection.admin
    wanted, sort = visit.query.get("q", "").strip().lower(), visit.query.get("sort", "name")
    if sort not in _SORTS:
        raise OptionError(f"sort: {sort[:40]!r} must be one of {', '.join(_SORTS)}")
    described = admin.describe_topics()
    found = [each for each in described if wanted in each.name.lower()]
    health = health_of(admin.describe_cluster(), found)
    sizes = ask(admin.describe_log_dirs)
    of_topics = None if sizes.value is None else bytes_of_topics(sizes.value)
    rows = _ordered([_row(each, health.problems, of_topics) for each in found], sort)
    shown = portion(rows, visit.number("page", 1, least=1))
    offsets = ask(lambda: admin.describe_topics([row.name for row in shown.rows], with_offsets=True))
    records = {each.name: _records(each) for each in offsets.value or ()}
    return Page(
        template="topics.html",
        title="Topics",
        section="/topics",
        every_s=5,
        values={
            "shown": shown, "records": records, "total": len(described), "wanted": visit.query.get("q", "").strip(),
            "sort": sort, "sorts": _SORTS, "sizes_why": sizes.why,
        },
    )  # fmt: skip


def _row(
    topic: TopicDescription, problems: Mapping[TopicPartition, Problem], sizes: Mapping[str, int] | None
) -> TopicRow:
    mine = [found for each in topic.partitions if (found := problems.get(TopicPartition(topic.name, each.partition)))]
    return TopicRow(
        name=topic.name,
        partitions=len(topic.partitions),
        replicas=len(topic.partitions[0].replicas) if topic.partitions else 0,
        columns=len(topic.schema.names) if topic.schema is not None else 0,
        state=min(mine, key=_WORST_FIRST.index, default="healthy"),
        problems=len(mine),
        disk_bytes=None if sizes is None else sizes.get(topic.name, 0),
    )


def _ordered(rows: list[TopicRow], sort: str) -> list[TopicRow]:
    if sort == "size":
        return sorted(rows, key=lambda row: (-(row.disk_bytes or 0), row.name))
    if sort == "partitions":
        return sorted(rows, key=lambda row: (-row.partitions, row.name))
    if sort == "state":
        return sorted(rows, key=lambda row: (_WORST_FIRST.index(row.state), row.name))
    return rows


def _records(topic: TopicDescription) -> int:
    known = [each.high_watermark - each.log_start for each in topic.partitions if each.high_watermark >= 0]
    return sum(known) if len(known) == len(topic.partitions) else -1


def bytes_of_topics(told: Mapping[int, Iterable[LogDirInfo]]) -> dict[str, int]:
    """What each topic's replicas take on all disks that could be asked."""
    found: dict[str, int] = {}
    for directories in told.values():
        for each in directories:
            for at, taken in each.partitions.items():
                name = at.rpartition("-")[0]
                found[name] = found.get(name, 0) + taken
    return found


def topic(visit: Visit) -> Page:
    """One topic: its partitions, columns and settings, and the forms that change it."""
    name = visit.parts["topic"]
    admin = visit.connection.admin
    described = admin.describe_topic(name)
    health = health_of(admin.describe_cluster(), [described])
    sizes = ask(admin.describe_log_dirs)
    by_replica = {
        (broker_id, at): taken
        for broker_id, directories in (sizes.value or {}).items()
        for each in directories
        for at, taken in each.partitions.items()
    }
    rows = [
        PartitionRow(
            described=each,
            state=health.problems.get(TopicPartition(name, each.partition), "healthy"),
            advice=advice(TopicPartition(name, each.partition), each),
            disk_bytes=None if each.leader is None else by_replica.get((each.leader, f"{name}-{each.partition}")),
        )
        for each in described.partitions
    ]
    of_topic = [taken for (_, at), taken in by_replica.items() if at.rpartition("-")[0] == name]
    states = [row.state for row in rows]
    return Page(
        template="topic.html",
        title=name,
        section="/topics",
        every_s=3,
        values={
            "topic": described,
            "shown": portion(rows, visit.number("page", 1, least=1), _MOST_PARTITIONS_AT_ONCE),
            "state": min(states, key=_WORST_FIRST.index, default="healthy"),
            "problems": sum(state != "healthy" for state in states),
            "records": _records(described),
            "disk_bytes": sum(of_topic) if sizes.value is not None else None,
            "settings": ask(lambda: admin.describe_config(name)),
            "known_settings": settings_of("topic"),
        },
    )


def new_topic(visit: Visit) -> Page:
    """The form that makes one."""
    return Page(
        template="topic_new.html",
        title="Create a topic",
        section="/topics",
        values={"known_settings": settings_of("topic")},
    )


def create(visit: Visit) -> Done:
    """Makes a topic."""
    form = visit.form
    name = form.get("name", "").strip()
    schema = " ".join(form.get("schema", "").split()) or None
    partitions = number_of(form.get("partitions", ""), "partitions", 0, most=100_000)
    replicas = number_of(form.get("replicas", ""), "replicas", 0, most=1_000)
    made = visit.connection.admin.create_topic(
        name,
        partitions=partitions or None,
        replication_factor=replicas or None,
        schema=schema,
        key=form.get("key", "").strip() or None,
        config=_lines_of_settings(form.get("config", "")),
    )
    return Done(_path(name), f"Created topic {name} with {formats.counted(len(made.partitions), 'partition')}.")


def alter(visit: Visit) -> Done:
    """Sets one of the topic's settings, or removes it."""
    name, setting, value = visit.parts["topic"], visit.form.get("name", ""), visit.form.get("value", "").strip()
    if setting not in settings_of("topic"):
        raise OptionError(f"setting: {setting[:80]!r} must be one of {', '.join(settings_of('topic'))}")
    is_removed = visit.form.get("do") == "remove"
    if not is_removed and not value:
        raise OptionError(f"{setting}: give a value, or remove the setting")
    visit.connection.admin.alter_config(name, {setting: None if is_removed else value})
    return Done(_path(name), f"Removed {setting}." if is_removed else f"Set {setting} to {value}.")


def add_partitions(visit: Visit) -> Done:
    """Adds partitions."""
    name, total = visit.parts["topic"], whole("partitions", visit.form.get("total", ""))
    visit.connection.admin.create_partitions(name, total)
    return Done(_path(name), f"Topic {name} has {formats.counted(total, 'partition')} now.")


def add_columns(visit: Visit) -> Done:
    """Adds columns to a typed topic."""
    name, text = visit.parts["topic"], visit.form.get("columns", "").strip()
    if not text:
        raise OptionError("columns: must be given, for example: gate string, taxi_minutes int32")
    added = parse_schema(text)
    visit.connection.admin.add_columns(name, added)
    return Done(_path(name), f"Added {', '.join(added.names)}.")


def delete(visit: Visit) -> Done:
    """Deletes the topic, if its name was typed."""
    name = visit.parts["topic"]
    if visit.form.get("confirm", "").strip() != name:
        raise OptionError(f"type the topic's name, {name}, to delete it")
    visit.connection.admin.delete_topic(name)
    return Done("/topics", f"Deleted topic {name}.")


def _lines_of_settings(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = line.partition("=")
        if not equals:
            raise OptionError(f"settings: {line[:80]!r} must be NAME=VALUE, for example retention.ms=7d")
        found[name.strip()] = value.strip()
    return found


def _path(name: str) -> str:
    return f"/topics/{formats.segment(name)}"
