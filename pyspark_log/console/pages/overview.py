"""The cluster at a glance: its health, problems, groups that are behind; and its brokers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from broker_runtime.contract.errors import OptionError
from broker_runtime.contract.model import TopicDescription, TopicPartition
from broker_runtime.contract.requests import LogDirInfo
from pyspark_log.client.admin.health import ClusterHealth, advice
from pyspark_log.client.admin.overview import BrokerState, ClusterOverview, DirectoryRoom
from pyspark_log.console.visit import Answer, Page, Visit, ask, whole

_MOST_PROBLEMS: Final = 10
_MOST_GROUPS: Final = 8
_GRAVE: Final = frozenset({"log-missing", "offline"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """A broker as the pages list it. ``leads``, ``holds``: partitions."""

    broker_id: int
    address: str | None
    is_controller: bool
    is_draining: bool
    state: BrokerState | None
    leads: int
    holds: int
    disks: dict[str, str]

    @property
    def status(self) -> str:
        """One of the states in ``macros.html``."""
        if self.address is None:
            return "down"
        if self.state is not None and self.state.silent is not None:
            return "silent"
        if self.disks:
            return "disk"
        if self.state is not None and self.state.reaches_zookeeper is False:
            return "without-zookeeper"
        return "draining" if self.is_draining else "up"

    @property
    def rooms(self) -> tuple[DirectoryRoom, ...]:
        """Its data directories; empty where it did not say."""
        return (self.state.directories or ()) if self.state is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A partition with a problem."""

    at: TopicPartition
    kind: str
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    advice: str | None

    @property
    def is_grave(self) -> bool:
        """Whether it can be neither read nor written."""
        return self.kind in _GRAVE


def overview(visit: Visit) -> Page:
    """Everything that a person on call must know."""
    admin = visit.connection.admin
    found = visit.connection.answers.ask("overview", admin.overview)
    topics = admin.describe_topics()
    problems = problems_of(found.health)
    return Page(
        template="overview.html",
        title="Overview",
        section="/",
        every_s=3,
        values={
            "overview": found,
            "topics": len(topics),
            "partitions": found.health.partitions,
            "problems": problems[:_MOST_PROBLEMS],
            "more_problems": max(0, len(problems) - _MOST_PROBLEMS),
            "offline": sum(each.is_grave for each in problems),
            "degraded": sum(not each.is_grave for each in problems),
            "brokers": broker_rows(found, topics),
            "groups": (found.groups or ())[:_MOST_GROUPS],
            "lagging": sum(each.lag > 0 for each in found.groups or ()),
            "worst": max((each.lag for each in found.groups or ()), default=0),
            "moves": sorted((found.moves or {}).items()),
            "log_bytes": sum(room.log_bytes for each in found.brokers.values() for room in each.directories or ()),
        },
    )


def problems_of(health: ClusterHealth) -> list[Problem]:
    """The grave ones first."""
    found = [
        Problem(
            at=at,
            kind=kind,
            isr=tuple(health.described[at].isr),
            replicas=tuple(health.described[at].replicas),
            advice=advice(at, health.described[at], health.transactions),
        )
        for at, kind in health.problems.items()
    ]
    return sorted(found, key=lambda each: (not each.is_grave, each.at))


def broker_rows(found: ClusterOverview, topics: list[TopicDescription]) -> list[BrokerRow]:
    """All brokers: those that are registered, and those that are down but have replicas."""
    leads: dict[int, int] = {}
    holds: dict[int, int] = {}
    for topic in topics:
        for each in topic.partitions:
            if each.leader is not None:
                leads[each.leader] = leads.get(each.leader, 0) + 1
            for broker_id in each.replicas:
                holds[broker_id] = holds.get(broker_id, 0) + 1
    cluster = found.health.cluster
    return [
        BrokerRow(
            broker_id=broker_id,
            address=cluster.brokers[broker_id].address if broker_id in cluster.brokers else None,
            is_controller=broker_id == cluster.controller_id,
            is_draining=broker_id in (found.draining or ()),
            state=found.brokers.get(broker_id),
            leads=leads.get(broker_id, 0),
            holds=holds.get(broker_id, 0),
            disks=dict(cluster.brokers[broker_id].disks) if broker_id in cluster.brokers else {},
        )
        for broker_id in sorted({*cluster.brokers, *found.health.missing_brokers})
    ]


def brokers(visit: Visit) -> Page:
    """All brokers."""
    admin = visit.connection.admin
    found = _brokers_of(visit)
    return Page(
        template="brokers.html",
        title="Brokers",
        section="/brokers",
        every_s=3,
        values={"overview": found, "brokers": broker_rows(found, admin.describe_topics())},
    )


def _brokers_of(visit: Visit) -> ClusterOverview:
    admin = visit.connection.admin
    return visit.connection.answers.ask("brokers", lambda: admin.overview(with_groups=False))


def broker(visit: Visit) -> Page:
    """One broker: its directories, what it holds, its settings."""
    broker_id = whole("broker", visit.parts["broker"])
    admin = visit.connection.admin
    found = _brokers_of(visit)
    row = next((each for each in broker_rows(found, admin.describe_topics()) if each.broker_id == broker_id), None)
    if row is None:
        raise OptionError(f"there is no broker {broker_id}; there are {', '.join(map(str, sorted(found.brokers)))}")
    settings = ask(lambda: admin.describe_config(broker_id)) if row.status not in {"down", "silent"} else _NOT_ASKED
    directories = ask(lambda: admin.describe_log_dirs().get(broker_id, ()))
    return Page(
        template="broker.html",
        title=f"Broker {broker_id}",
        section="/brokers",
        values={"row": row, "settings": settings, "directories": directories, "largest": _largest(directories)},
    )


def _largest(directories: Answer) -> list[tuple[str, int]]:
    found: tuple[LogDirInfo, ...] = directories.value or ()
    sizes: list[tuple[str, int]] = [item for each in found for item in each.partitions.items()]
    return sorted(sizes, key=lambda item: (-item[1], item[0]))[:20]


_NOT_ASKED: Any = Answer(value=None, why="The broker does not answer.")
