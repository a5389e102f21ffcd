"""`pylog cluster health`: what a person on call must know, on one screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import typer

from pyspark_log.cli.exit_status import UNHEALTHY
from pyspark_log.cli.invocation import Invocation
from pyspark_log.cli.output import Column, OutputFormat, counted, print_rows

if TYPE_CHECKING:
    from broker_runtime.contract.model import TopicPartition
    from pyspark_log.client.admin.health import ClusterHealth
    from pyspark_log.client.admin.overview import BrokerState, ClusterOverview, DirectoryRoom

_CHECK_COLUMNS = [Column("check", "CHECK"), Column("status", "STATUS"), Column("found", "FOUND")]
_PROBLEM_COLUMNS = [
    Column("partition", "PARTITION"),
    Column("problem", "PROBLEM"),
    Column("leader", "LEADER"),
    Column("replicas", "REPLICAS"),
    Column("isr", "ISR"),
]
_TABLES = {None, OutputFormat.TABLE, OutputFormat.WIDE}
_MOST_NAMED: Final = 5
_MOST_PROBLEMS: Final = 20  # a table with more is no screen; -o wide and the formats for programs have all
_UNKNOWN: Final = "unknown"

Status = Literal["ok", "note", "bad", "unknown"]


def health(invocation: Invocation) -> None:
    """Check the health of the cluster; exit status 5 if it is not healthy.

    It is unhealthy without a controller, if a broker is missing, silent or without ZooKeeper, if partitions lack a
    leader or replicas, if logs are damaged or disks fail, or if a transaction that should have ended holds readers
    back. Lag, moves and disks that are nearly full are shown, and change nothing.
    """
    with invocation.admin() as admin:
        seen = admin.overview()
    found = seen.health
    problems = _problem_rows(found)
    if invocation.output in _TABLES:
        invocation.say(_verdict(seen))
        print_rows(_checks(seen), _CHECK_COLUMNS, invocation.output, name="check")
        shown = problems if invocation.output is OutputFormat.WIDE else problems[:_MOST_PROBLEMS]
        if shown:
            typer.echo()
            print_rows(shown, _PROBLEM_COLUMNS, invocation.output, name="partition")
        if len(shown) < len(problems):
            invocation.say(f"{len(problems) - len(shown):,} more: pylog cluster health -o wide")
        for row in shown:
            if row["advice"]:
                invocation.say(row["advice"])
        for remark in found.remarks:
            invocation.say(remark)
    elif invocation.output in {OutputFormat.NAME, OutputFormat.JSONL}:
        print_rows(problems, _PROBLEM_COLUMNS, invocation.output, name="partition")
    else:
        print_rows([_whole(seen, problems)], _PROBLEM_COLUMNS, invocation.output, name="healthy", one=True)
    if not seen.is_healthy:
        raise typer.Exit(UNHEALTHY)


def _checks(seen: ClusterOverview) -> list[dict[str, Any]]:
    """One row for each subject: how it is, and what was found."""
    rows: list[tuple[str, Status, str]] = [
        ("brokers", *_brokers(seen)),
        ("controller", *_controller(seen)),
        ("ZooKeeper", *_zookeeper(seen)),
        ("partitions", *_partitions(seen)),
        ("directories", *_directories(seen)),
        ("moves", *_moves(seen)),
        ("transactions", *_transactions(seen)),
        ("groups", *_groups(seen)),
    ]
    return [{"check": check, "status": status, "found": text} for check, status, text in rows]


def _brokers(seen: ClusterOverview) -> tuple[Status, str]:
    missing, silent = seen.health.missing_brokers, seen.silent_brokers
    versions = sorted({each.software_version for each in seen.brokers.values() if each.software_version is not None})
    parts = [f"{counted(len(seen.brokers), 'broker')} registered"]
    parts += [f"version {' and '.join(versions)}"] if versions else []
    parts += [f"down: {_listed(missing)}"] if missing else []
    parts += [f"registered and silent: {_listed(silent)}"] if silent else []
    return "bad" if missing or silent else "note" if len(versions) > 1 else "ok", "; ".join(parts)


def _controller(seen: ClusterOverview) -> tuple[Status, str]:
    found = seen.health.cluster.controller_id
    return ("bad", "there is none") if found is None else ("ok", f"broker {found}")


def _zookeeper(seen: ClusterOverview) -> tuple[Status, str]:
    if seen.without_zookeeper:
        return "bad", f"not reached by {_listed(seen.without_zookeeper)}"
    answering = [each for each in seen.brokers.values() if each.silent is None]
    untold = [each.broker_id for each in answering if each.reaches_zookeeper is None]
    if untold or not answering:
        return _UNKNOWN, f"{_listed(untold) or 'every broker'} did not say whether it is reached"
    return "ok", "reached by every broker" + ("" if len(answering) == len(seen.brokers) else " that answers")


def _partitions(seen: ClusterOverview) -> tuple[Status, str]:
    found = seen.health
    if not found.problems:
        return "ok", f"{counted(found.partitions, 'partition')}, all replicas in sync"
    parts = []
    for kind, count in Counter(found.problems.values()).items():
        named = [at for at, problem in sorted(found.problems.items()) if problem == kind]
        parts.append(f"{count:,} of {found.partitions:,} {kind} ({_named(named)})")
    return "bad", "; ".join(parts)


def _directories(seen: ClusterOverview) -> tuple[Status, str]:
    bad = [*seen.health.disks, *seen.unreadable_directories]
    rooms = _rooms(seen.brokers.values())
    low = [f"broker {state.broker_id}: {room.path} has {_size(room.left_bytes)} left" for state, room in rooms
           if room.is_nearly_full]  # fmt: skip
    untold = [each.broker_id for each in seen.brokers.values() if each.directories is None]
    unknown = [f"{_listed(untold)} did not say"] if untold else []
    if bad or low:
        return "bad" if bad else "note", "; ".join([*bad, *low, *unknown])
    if not rooms:
        return _UNKNOWN, "; ".join(unknown) or "nobody said"
    state, room = min(rooms, key=lambda each: each[1].left_bytes)
    least = f"the least room is {_size(room.left_bytes)}, on broker {state.broker_id} at {room.path}"
    return _UNKNOWN if unknown else "ok", "; ".join(
        [f"{len(rooms):,} {'directory' if len(rooms) == 1 else 'directories'}", least, *unknown]
    )


def _moves(seen: ClusterOverview) -> tuple[Status, str]:
    if seen.moves is None:
        return _UNKNOWN, "the controller did not say"
    parts = [f"{counted(len(seen.moves), 'partition')} on the way ({_named(sorted(seen.moves))})"] if seen.moves else []
    parts += [f"being emptied: {_listed(seen.draining)}"] if seen.draining else []
    return "note" if parts else "ok", "; ".join(parts) or "none"


def _transactions(seen: ClusterOverview) -> tuple[Status, str]:
    waited_for, silent = seen.health.transactions, seen.health.silent
    hanging = [each for each in waited_for if each.hangs]
    parts = [f"{len(hanging):,} hanging ({_ids(each.opened.transactional_id for each in hanging)})"] if hanging else []
    others = [each.opened.transactional_id for each in waited_for if not each.hangs]
    parts += [f"{len(others):,} open for long ({_ids(others)})"] if others else []
    parts += [f"{_listed(silent)} did not say what is open"] if silent else []
    status: Status = "bad" if hanging else "note" if others else _UNKNOWN if silent else "ok"
    return status, "; ".join(parts) or "none is open for long"


def _groups(seen: ClusterOverview) -> tuple[Status, str]:
    if seen.groups is None:
        return _UNKNOWN, "nobody said"
    parts = [f"{counted(len(seen.groups) + seen.unread_groups, 'group')}"]
    behind = [f"{each.group_id} {each.lag:,} (most in {_name(each.worst)})" for each in seen.groups[:_MOST_NAMED]
              if each.worst is not None]  # fmt: skip
    parts += [f"furthest behind: {', '.join(behind)}"] if behind else []
    parts += [f"of {seen.unread_groups:,} the offsets are unknown"] if seen.unread_groups else []
    return _UNKNOWN if seen.unread_groups else "ok", "; ".join(parts)


def _whole(seen: ClusterOverview, problems: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = seen.health
    return {
        "healthy": seen.is_healthy,
        "verdict": _verdict(seen),
        "checks": _checks(seen),
        "controller": found.cluster.controller_id,
        "brokers": sorted(found.cluster.brokers),
        "missing_brokers": list(found.missing_brokers),
        "silent_brokers": list(seen.silent_brokers),
        "brokers_without_zookeeper": list(seen.without_zookeeper),
        "versions": {str(each.broker_id): each.software_version for each in seen.brokers.values()},
        "disks": list(found.disks),
        "directories": [
            {
                "broker": state.broker_id,
                "path": room.path,
                "log_bytes": room.log_bytes,
                "left_bytes": room.left_bytes,
                "nearly_full": room.is_nearly_full,
            }
            for state, room in _rooms(seen.brokers.values())
        ],
        "unreadable_directories": list(seen.unreadable_directories),
        "moves": None
        if seen.moves is None
        else {_name(at): list(move.target) for at, move in sorted(seen.moves.items())},
        "decommissioned": None if seen.draining is None else list(seen.draining),
        "groups": None
        if seen.groups is None
        else [
            {"group_id": each.group_id, "lag": each.lag, "worst": None if each.worst is None else _name(each.worst)}
            for each in seen.groups
        ],
        "unread_groups": seen.unread_groups,
        "remarks": list(found.remarks),
        "transactions": [
            {
                "transactional_id": each.opened.transactional_id,
                "batch_id": each.opened.batch_id,
                "partition": f"{each.opened.topic}:{each.opened.partition}",
                "first_offset": each.opened.first_offset,
                "open_s": each.opened.open_ms // 1000,
                "limit_s": None if each.timeout_ms is None else each.timeout_ms // 1000,
                "is_decided": each.decided_ms is not None,
                "hangs": each.hangs,
            }
            for each in found.transactions
        ],
        "partitions": found.partitions,
        "problems": problems,
    }


def _problem_rows(found: ClusterHealth) -> list[dict[str, Any]]:
    from pyspark_log.client.admin.health import advice

    return [
        {
            "partition": f"{at.topic}:{at.partition}",
            "problem": found.problems[at],
            "leader": partition.leader,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "lost": list(partition.lost),
            "eligible": list(partition.eligible),
            "damaged": list(partition.damaged),
            "advice": advice(at, partition, found.transactions),
        }
        for at, partition in sorted(found.described.items())
    ]


def _verdict(seen: ClusterOverview) -> str:
    found = seen.health
    partitions = counted(found.partitions, "partition")
    if seen.is_healthy:
        brokers = counted(len(found.cluster.brokers), "broker")
        return f"Healthy: {brokers}, controller {found.cluster.controller_id}, {partitions} healthy"
    bad = len(found.problems)
    problems = [f"{bad} of {partitions} {'is' if bad == 1 else 'are'} not healthy"] if bad else []
    if found.cluster.controller_id is None:
        problems.append("there is no controller")
    if found.missing_brokers:
        problems.append(f"down: {_listed(found.missing_brokers)}")
    if seen.silent_brokers:
        problems.append(f"registered and silent: {_listed(seen.silent_brokers)}")
    if seen.without_zookeeper:
        problems.append(f"without ZooKeeper: {_listed(seen.without_zookeeper)}")
    problems += [*found.disks, *seen.unreadable_directories]
    return f"Not healthy: {'; '.join(problems)}"


def _rooms(brokers: Iterable[BrokerState]) -> list[tuple[BrokerState, DirectoryRoom]]:
    return [(state, room) for state in brokers for room in state.directories or ()]


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(f"broker {broker_id}" for broker_id in brokers)


def _named(partitions: Sequence[TopicPartition]) -> str:
    return ", ".join([*map(_name, partitions[:_MOST_NAMED]), *(["…"] if len(partitions) > _MOST_NAMED else [])])


def _name(at: TopicPartition) -> str:
    return f"{at.topic}:{at.partition}"


def _ids(transactional_ids: Iterable[str]) -> str:
    found = sorted(set(transactional_ids))
    return ", ".join([*found[:_MOST_NAMED], *(["…"] if len(found) > _MOST_NAMED else [])])


def _size(size_bytes: int) -> str:
    for unit, one in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if size_bytes >= one:
            return f"{size_bytes / one:,.1f} {unit}"
    return f"{size_bytes:,} bytes"
