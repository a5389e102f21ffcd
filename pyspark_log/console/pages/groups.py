"""Consumer groups: their lag and its causes, and resetting a group's offsets."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from broker_runtime.contract.errors import GroupIdNotFoundError, NonEmptyGroupError, OptionError, PylogError
from broker_runtime.contract.model import GroupDescription, GroupListing, GroupOffset, TopicPartition
from pyspark_log.cli.records.ranges import partitions_of
from pyspark_log.cli.reset import Shift, parse_target, resolve, within_log
from pyspark_log.client.admin.overview import GroupLag
from pyspark_log.console import formats
from pyspark_log.console.browsing import in_utc
from pyspark_log.console.lag_history import LagSample, Pace, pace_of, sample_of
from pyspark_log.console.visit import Done, Page, Visit, ask, portion

_TREND_OVER_S: Final = 30.0
_SPARK_POINTS: Final = 60
_MOST_TIMES: Final = 20  # each is a frame that a broker reads, again and again while somebody looks


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group in the list. ``lag`` None: not known. ``spark``: the points of a small chart of its lag."""

    listing: GroupListing
    lag: int | None
    worst: TopicPartition | None
    trend: str
    spark: str

    @property
    def state(self) -> str:
        """One of the states in ``macros.html``."""
        if self.listing.coordinator is None:
            return "no-coordinator"
        if self.lag and not self.listing.members:
            return "no-members"
        return self.listing.state


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """A partition of a group. ``waits_s``: how old the oldest record is that the group has not read."""

    at: TopicPartition
    offset: GroupOffset | None
    member: str
    waits_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a reset would do to a partition."""

    at: TopicPartition
    old: int | None
    new: int
    start: int
    end: int


def groups(visit: Visit) -> Page:
    """All groups, the furthest behind first."""
    admin, history = visit.connection.admin, visit.connection.lag
    listed = admin.list_groups()
    told = ask(lambda: visit.connection.answers.ask("lags", admin.list_group_lags))
    lags: dict[str, GroupLag] = {each.group_id: each for each in (told.value or ((), 0))[0]}
    now_s = time.time()
    for name, each in lags.items():
        history.add(name, LagSample(at_s=now_s, lag=each.lag))
    wanted = visit.query.get("q", "").strip().lower()
    rows = [
        _row(each, lags.get(each.group_id), history.of(each.group_id))
        for each in listed
        if wanted in each.group_id.lower()
    ]
    rows.sort(key=lambda row: (-(row.lag or 0), row.listing.group_id))
    return Page(
        template="groups.html",
        title="Consumer groups",
        section="/groups",
        every_s=3,
        values={
            "shown": portion(rows, visit.number("page", 1, least=1)),
            "total": len(listed),
            "wanted": visit.query.get("q", "").strip(),
            "unread": (told.value or ((), 0))[1],
            "why": told.why,
        },
    )


def _row(listing: GroupListing, lag: GroupLag | None, samples: list[LagSample]) -> GroupRow:
    return GroupRow(
        listing=listing,
        lag=None if lag is None else lag.lag,
        worst=None if lag is None else lag.worst,
        trend=trend_of(samples),
        spark=spark_points(samples),
    )


def trend_of(samples: list[LagSample]) -> str:
    """Whether the lag grows: rising, falling, steady, or "" where that is not known yet."""
    if len(samples) < 2:
        return ""
    last = samples[-1]
    first = next(each for each in samples if last.at_s - each.at_s <= _TREND_OVER_S)
    if first is last:
        return ""
    if abs(last.lag - first.lag) <= max(1, first.lag // 50):
        return "steady"
    return "rising" if last.lag > first.lag else "falling"


def spark_points(samples: list[LagSample], width: int = 96, height: int = 22) -> str:
    """The points of an SVG polyline; "" where there are too few."""
    shown = samples[-_SPARK_POINTS:]
    if len(shown) < 2 or shown[-1].at_s <= shown[0].at_s:
        return ""
    most = max(each.lag for each in shown) or 1
    span_s = shown[-1].at_s - shown[0].at_s
    return " ".join(
        f"{1 + (width - 2) * (each.at_s - shown[0].at_s) / span_s:.1f},"
        f"{height - 2 - (height - 4) * each.lag / most:.1f}"
        for each in shown
    )


def group(visit: Visit) -> Page:
    """One group: its lag over time, its partitions, its members."""
    group_id = visit.parts["group"]
    admin, history = visit.connection.admin, visit.connection.lag
    described = admin.describe_group(group_id)
    offsets = admin.list_group_offsets(group_id)
    history.add(group_id, sample_of(offsets, time.time()))
    samples = history.of(group_id)
    late = sorted((at for at, each in offsets.items() if each.lag > 0), key=lambda at: -offsets[at].lag)[:_MOST_TIMES]
    waits = ask(lambda: admin.timestamps_at({at: offsets[at].committed for at in late})) if late else None
    rows = _partition_lags(described, offsets, (waits.value if waits is not None else None) or {})
    known = [each for each in offsets.values() if each.lag >= 0]
    pace = pace_of(samples)
    return Page(
        template="group.html",
        title=group_id,
        section="/groups",
        every_s=2,
        values={
            "group": described,
            "shown": portion(rows, visit.number("page", 1, least=1), 100),
            "lag": sum(each.lag for each in known),
            "unknown": len(offsets) - len(known),
            "waits_s": max((row.waits_s for row in rows if row.waits_s is not None), default=None),
            "pace": pace,
            "findings": findings(described, rows, pace),
            "trend": trend_of(samples),
            "series": [[round(each.at_s, 1) for each in samples], [each.lag for each in samples]],
            "topics": sorted({at.topic for at in offsets}),
        },
    )


def _partition_lags(
    described: GroupDescription,
    offsets: dict[TopicPartition, GroupOffset],
    waits: dict[TopicPartition, datetime | None],
) -> list[PartitionLag]:
    holders = {at: each.client_id or each.member_id for each in described.members for at in each.partitions}
    now = datetime.now(UTC)
    rows = [
        PartitionLag(
            at=at,
            offset=offsets.get(at),
            member=holders.get(at, ""),
            waits_s=None if (since := waits.get(at)) is None else max(0.0, (now - since).total_seconds()),
        )
        for at in {*offsets, *holders}
    ]
    return sorted(rows, key=lambda row: (-(row.offset.lag if row.offset is not None else 0), row.at))


def findings(described: GroupDescription, rows: list[PartitionLag], pace: Pace | None) -> list[str]:
    """The diagnosis in sentences, the cause first."""
    lags = {row.at: row.offset.lag for row in rows if row.offset is not None and row.offset.lag > 0}
    lag, members = sum(lags.values()), described.members
    found: list[str] = []
    if described.coordinator is None:
        found.append("The group has no coordinator, so its members cannot commit.")
    if lag and not members:
        found.append(
            f"The group has no members and a lag of {formats.counted(lag, 'record')}. Start its consumers, or reset "
            "the group to the end if these records need not be read."
        )
    if members and described.state == "assigning":
        found.append("The group is rebalancing: the lag may fall when that is done.")
    quiet = [each for each in members if each.heard_ms_ago * 2 > each.session_timeout_ms]
    for each in quiet[:3]:
        heard, ends = formats.duration(each.heard_ms_ago / 1000), formats.duration(each.session_timeout_ms / 1000)
        found.append(
            f"{each.client_id or each.member_id} on {each.host} sent its last heartbeat {heard} ago. After "
            f"{ends} its partitions are assigned to other members."
        )
    orphans = [row.at for row in rows if members and row.at in lags and not row.member]
    if orphans:
        found.append(f"{_named(orphans)} {'is' if len(orphans) == 1 else 'are'} not assigned to any member.")
    worst = max(lags, key=lambda at: lags[at], default=None)
    if worst is not None and len(rows) > 1 and lags[worst] * 2 > lag:
        holder = next((row.member for row in rows if row.at == worst), "")
        share = round(100 * lags[worst] / lag)
        found.append(
            f"{share} % of the lag is in {worst.topic}:{worst.partition}"
            + (f", which is assigned to {holder}." if holder else ".")
        )
    if members and lag and pace is not None:
        found.append(_about_pace(pace, lag, len(members), len(rows)))
    if not found:
        found.append("The group keeps up." if not lag else "The group is behind. Its trend will show in a few seconds.")
    return found


def _about_pace(pace: Pace, lag: int, members: int, partitions: int) -> str:
    if pace.catches_up_s is not None:
        return f"The group is catching up: at this rate the lag is gone in about {formats.duration(pace.catches_up_s)}."
    if not pace.consumed:
        return "Its members have not committed anything for a while: check their logs."
    if pace.produced > pace.consumed:
        remedy = (
            f"It has {formats.counted(members, 'member')} for {formats.counted(partitions, 'partition')}: add members."
            if members < partitions
            else "There is already a member for each partition: make the members faster, or add partitions."
        )
        consumed, produced = formats.rate(pace.consumed), formats.rate(pace.produced)
        return f"The group consumes {consumed} while {produced} are produced. {remedy}"
    return f"The lag of {formats.counted(lag, 'record')} is not shrinking."


def _named(partitions: list[TopicPartition]) -> str:
    shown = ", ".join(f"{at.topic}:{at.partition}" for at in sorted(partitions)[:5])
    return shown + (f" and {len(partitions) - 5:,} more" if len(partitions) > 5 else "")


def reset_form(visit: Visit) -> Page:
    """The form for a reset, and a preview of its changes."""
    group_id = visit.parts["group"]
    admin = visit.connection.admin
    offsets = admin.list_group_offsets(group_id)
    try:
        described = admin.describe_group(group_id)
    except GroupIdNotFoundError:
        described = None
    given = visit.form if visit.failed else visit.query
    target, topics = given.get("to", "").strip(), given.get("topics", "").strip()
    changes: list[Change] = []
    messages: list[str] = []
    preview_error = ""
    if target:
        try:
            changes, messages = _changes(visit, group_id, target, topics)
        except (PylogError, ValueError) as error:
            preview_error = getattr(error, "message", str(error))
    return Page(
        template="reset.html",
        title=f"Reset {group_id}",
        section="/groups",
        status=400 if preview_error else 200,
        values={
            "group_id": group_id, "members": described.members if described is not None else (), "to": target,
            "topics_text": topics, "topics": sorted({at.topic for at in offsets}), "changes": changes,
            "messages": messages, "preview_error": preview_error,
        },
    )  # fmt: skip


def apply_reset(visit: Visit) -> Done:
    """Sets the offsets that were shown: those of the form, not what the target means by now."""
    group_id = visit.parts["group"]
    new: dict[TopicPartition, int] = {}
    for text in visit.lists.get("offset", []):
        topic, _, rest = text.partition(":")
        partition, _, offset = rest.partition(":")
        if not (partition.isdecimal() and offset.isdecimal() and len(partition) < 10 and len(offset) < 19):
            raise OptionError(f"offset: {text[:80]!r} must be TOPIC:PARTITION:OFFSET")
        new[TopicPartition(topic, int(partition))] = int(offset)
    if not new:
        raise OptionError("there is nothing to change: choose where to reset the group to, and preview the changes")
    admin = visit.connection.admin
    try:
        members = admin.describe_group(group_id).members
    except GroupIdNotFoundError:
        members = ()
    if members:
        who = ", ".join(f"{each.client_id or each.member_id} on {each.host}" for each in members[:5])
        raise NonEmptyGroupError(f"group {group_id!r} has members ({who}). Stop them first, then reset its offsets")
    admin.alter_group_offsets(group_id, new)
    return Done(_path(group_id), f"Reset {formats.counted(len(new), 'partition')} of group {group_id}.")


def _changes(visit: Visit, group_id: str, text: str, topics: str) -> tuple[list[Change], list[str]]:
    admin = visit.connection.admin
    target = parse_target(in_utc(text), now_ms=round(time.time() * 1000), option="to")
    old = {at: each.committed for at, each in admin.list_group_offsets(group_id).items()}
    named = topics.replace(",", " ").split() or sorted({at.topic for at in old})
    if not named:
        raise OptionError(f"group {group_id!r} has no offsets: name the topics")
    if isinstance(target, Shift) and not old:
        raise OptionError(f"group {group_id!r} has no offsets to add to or subtract from: begin with earliest")
    partitions = partitions_of(admin, named)
    wanted = resolve(admin, target, partitions, old)  # before the ends: the logs may grow in between
    starts = {at: each.offset for at, each in admin.list_offsets(dict.fromkeys(partitions, "earliest")).items()}
    ends = {at: each.offset for at, each in admin.list_offsets(dict.fromkeys(partitions, "latest")).items()}
    new, messages = within_log(wanted, starts, ends)
    found = [Change(at=at, old=old.get(at), new=new[at], start=starts[at], end=ends[at]) for at in sorted(new)]
    return found, messages


def remove_members(visit: Visit) -> Done:
    """Takes members out of the group; a process that still runs may join again."""
    group_id, members = visit.parts["group"], visit.lists.get("member", [])
    if not members:
        raise OptionError("choose the members to remove")
    visit.connection.admin.remove_group_members(group_id, members)
    return Done(_path(group_id), f"Removed {formats.counted(len(members), 'member')}.")


def delete(visit: Visit) -> Done:
    """Deletes the group, if its id was typed."""
    group_id = visit.parts["group"]
    if visit.form.get("confirm", "").strip() != group_id.strip():
        raise OptionError(f"type the group's id, {group_id}, to delete it")
    visit.connection.admin.delete_group(group_id)
    return Done("/groups", f"Deleted group {group_id}.")


def _path(group_id: str) -> str:
    return f"/groups/{formats.segment(group_id)}"
