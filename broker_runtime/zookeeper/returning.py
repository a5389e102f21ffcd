"""What a broker that comes back does to the in-sync sets that count on it, before it registers.

    its log is gone                      it leaves the set; if no other member is left that has its log, it stays,
    (another disk, an older one)         marked as ``lost``: it cannot be elected, and nobody leads
    the log that was missed is back      the mark is removed
    it was not stopped in order          it leaves the set if another member is registered, serves and is not stopping,
                                         and has not reported that its log has failed: that one certainly has all that
                                         was acknowledged. Otherwise it stays, and may lead
    and its machine lost power           the same, but if it leaves it is one of the ``last_known_eligible``. If it
                                         stays it is marked as ``unproven``, and the ``eligible`` are in sync again:
                                         unproven members lead only if no other can, and then the one whose log goes
                                         furthest (`controller.unproven`)
    a disk error ended the log           it leaves the set to the other proven members, even if none is back, or to the
                                         ``eligible``, and is one of the ``last_known_eligible`` then. If there are only
                                         unproven ones and such as this, it is unproven, too. Without any it stays
    one that was eligible lost power     it is one of the ``last_known_eligible``

After a stop that was not in order, a disk has all that was acknowledged if ``flush.mode`` is ``ack`` or the machine did
not stop: then staying in the set is safe. Otherwise (power lost, ``interval`` or ``os``) the disk may lack some. A log
was written under the mode that its own mark on the disk says; the topic's setting may be newer than that. With
``interval`` and ``os`` it may also lack what an fsync failed to write, which a kernel need not keep in memory. In any
case, a member that is registered but does not answer may be dead, its session not timed out yet, and may have
lost its power as well; and a member that is itself unproven has no more than this one, as far as is known.

Rules: states change by compare-and-set. Each transaction is checked against the broker's new epoch, so that only its
newest life does this, and against the registration of the member to which it leaves the set: no set becomes empty, and
of the brokers that come back after all were gone the first one stays. If the leader changes the set in between, that
is read, and the broker leaves the changed set. A set in which it stays is not looked at again: who comes into it just
then is in sync with a log that has everything, or that is marked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from broker_runtime.contract.errors import InvalidConfigError, ZooKeeperUnavailableError
from broker_runtime.contract.events import event
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.settings import resolve
from broker_runtime.zookeeper.cluster_state import TopicState, VersionedState, read_topics
from broker_runtime.zookeeper.disks import DiskNews, Disks
from broker_runtime.zookeeper.guarded import in_parts, write, write_most
from broker_runtime.zookeeper.session import ANY_VERSION, Check, Operation, Set, ZNodeError, ZooKeeperClient
from broker_runtime.zookeeper.znodes import (
    TOPICS,
    BrokerRegistration,
    DiskTroubles,
    PartitionState,
    announcing,
    broker_path,
    broker_unwritable_path,
    from_json,
    partition_state_path,
    to_json,
)

_logger = logging.getLogger(__name__)

_ROUNDS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """A broker that comes back. ``epoch``: the check of its new one. ``has_lost_power``: the machine was stopped since
    the last registration, or may have been. ``answers``: whether a broker serves at an address now."""

    broker_id: int
    epoch: Check
    session: int
    was_clean: bool
    has_lost_power: bool
    disks: Disks | None
    news: DiskNews
    troubles: DiskTroubles
    answers: Callable[[str, int], bool]

    @property
    def changes_nothing(self) -> bool:
        """Whether the broker has every log that it was in sync with, and none that it had missed."""
        disks, news = self.disks, self.news
        has_news = disks is not None and (disks.missing or disks.put_back or disks.has_lost_names)
        has_news = has_news or self.troubles.failed != {}
        return self.was_clean and not (has_news or news.lost or news.outdated or news.returned or news.sought)


@dataclass(frozen=True, slots=True)
class _Change:
    topic: str
    partition: int
    state: PartitionState
    version: int
    reason: str
    other: Check | None = None

    @property
    def write(self) -> Set:
        return Set(partition_state_path(self.topic, self.partition), to_json(self.state), self.version)

    def is_about(self, path: str) -> bool:
        return path == self.write.path or (self.other is not None and path == self.other.path)


def leave_in_sync_sets(client: ZooKeeperClient, broker: Return) -> None:
    """Returns when no partition counts on this broker any more that must not.

    Raises `BadVersionError` of the epoch's path if a later life of the broker has begun, `ZooKeeperUnavailableError`,
    `OSError` if a disk cannot be read.
    """
    if broker.changes_nothing:
        return
    found_again: set[TopicPartition] = set()

    def send(changes: Sequence[_Change]) -> list[int]:
        others = dict.fromkeys(change.other for change in changes if change.other is not None)
        announcement = announcing(change.topic for change in changes)
        operations: list[Operation] = [broker.epoch, *others, *(change.write for change in changes), announcement]
        return write(client, operations, session=broker.session)[1 + len(others) : -1]

    def leave_out(changes: Sequence[_Change], refusal: ZNodeError) -> None:
        if refusal.path == broker.epoch.path:
            raise refusal
        event(_logger, "look at in-sync sets again", znode=refusal.path, partitions=len(changes))

    for _ in range(_ROUNDS):
        changes = list(_Look(client, broker, found_again).changes())
        if not changes:
            return
        for some in in_parts(changes):
            written = write_most(some, send, concerns=_Change.is_about, leave_out=leave_out)
            _log_changes(broker.broker_id, [change for change, _ in written])
    raise ZooKeeperUnavailableError(
        f"broker {broker.broker_id} could not leave the in-sync sets it was in before it stopped: they keep changing"
    )


def missed_logs(client: ZooKeeperClient, broker_id: int) -> list[tuple[TopicPartition, bytes]]:
    """The partitions that miss the log which the broker had (`PartitionState.lost`), and their topic ids. Reads all
    topics. Raises `ZooKeeperUnavailableError`."""
    return [
        (TopicPartition(topic.name, number), topic.record.topic_id)
        for topic in read_topics(client, client.children(TOPICS))
        for number, present in enumerate(topic.partitions)
        if present is not None and broker_id in present.state.lost
    ]


@dataclass(frozen=True, slots=True)
class _Member:
    """Another broker that is registered: the version of that znode, whether it serves now, and what it reports of its
    disks."""

    version: int
    is_stopping: bool
    answers: bool
    disks: DiskTroubles


class _Look:
    """One look at all the topics."""

    def __init__(self, client: ZooKeeperClient, broker: Return, found_again: set[TopicPartition]) -> None:
        self._client = client
        self._found_again = found_again  # their marks were removed during this start
        self._broker = broker
        self._own_id = broker.broker_id
        self._registered: dict[int, _Member | None] = {}

    def changes(self) -> Iterator[_Change]:
        for topic in read_topics(self._client, self._client.children(TOPICS)):
            for number, present in enumerate(topic.partitions):
                if present is not None and self._own_id in _who_count(present.state):
                    change = self._change(topic, number, present)
                    if change is not None:
                        yield change

    def _change(self, topic: TopicState, number: int, present: VersionedState) -> _Change | None:
        state, own_id, broker = present.state, self._own_id, self._broker
        at, is_marked = TopicPartition(topic.name, number), own_id in state.lost
        if broker.disks is not None and (is_marked or at not in self._found_again):
            has_log = broker.news.has_log(broker.disks, at, topic.record.topic_id, is_marked=is_marked)
            if is_marked != has_log:
                pass  # as when the broker last came back
            elif has_log:
                self._found_again.add(at)
                found = msgspec.structs.replace(state, lost=tuple(b for b in state.lost if b != own_id))
                return _Change(topic.name, number, found, present.version, "the log is back")
            else:
                return _Change(topic.name, number, _without_log(state, own_id), present.version, "the log is missing")
        if is_marked:
            return None
        if broker.troubles.has_failed(topic.name, number) and not self._is_flushed(topic, at):
            left = state.left_by_doubtful(own_id)
            return None if left == state else _Change(topic.name, number, left, present.version, "disk failed")
        if broker.was_clean:
            return None
        may_lack = broker.has_lost_power and not self._is_flushed(topic, at)
        if own_id not in state.isr:
            if not may_lack or own_id not in state.eligible:
                return None
            return _Change(topic.name, number, state.left_by_doubtful(own_id), present.version, "power lost")
        other = self._other(at, state, may_stop=may_lack)
        if other is None:
            if not may_lack or own_id in state.unproven:
                return None
            if state.eligible:
                state = msgspec.structs.replace(state, isr=(*state.isr, *state.eligible), eligible=())
            elif state.isr == (own_id,) and not state.last_known_eligible:
                return None
            return _Change(topic.name, number, _unproven(state, own_id), present.version, "power lost")
        left = state.without(own_id, whole=(own_id,))
        if may_lack:  # not eligible, but it may have more than the others, if their disks fail before it has caught up
            left = left.with_last_known_eligible({*left.last_known_eligible, own_id})
        return _Change(topic.name, number, left, present.version, "unclean stop", other)

    def _is_flushed(self, topic: TopicState, at: TopicPartition) -> bool:
        """Whether what was acknowledged is on the disk: the topic's setting says so, and the log was not written under
        another one, from which not everything has been flushed."""
        try:
            if resolve("topic", topic.config).flush_mode != "ack":
                return False
        except InvalidConfigError:
            return False
        disks = self._broker.disks
        place = None if disks is None else disks.place_of(at, topic.record.topic_id)
        return place is None or not place.is_unflushed

    def _other(self, at: TopicPartition, state: PartitionState, *, may_stop: bool) -> Check | None:
        """Proof of the registration of another member to which the set can be left; None: there is none. ``may_stop``:
        that member may be stopping."""
        out = {self._own_id, *state.lost, *state.unproven}
        members = [each for each in state.isr if each not in out]
        for member in sorted(members, key=lambda each: each != state.leader):
            found = self._registration(member)
            if found is not None and found.disks.has_failed(at.topic, at.partition):
                continue
            if found is not None and found.answers and (may_stop or not found.is_stopping):
                return Check(broker_path(member), ANY_VERSION if may_stop else found.version)
        return None

    def _registration(self, broker_id: int) -> _Member | None:
        if broker_id not in self._registered:
            path = broker_path(broker_id)
            node = self._client.find(path)
            found = None
            if node is not None:
                other = from_json(node.data, BrokerRegistration, path)
                answers = self._broker.answers(other.host, other.port)
                found = _Member(node.version, other.is_stopping, answers, self._disks(broker_id, other.epoch))
            self._registered[broker_id] = found
        return self._registered[broker_id]

    def _disks(self, broker_id: int, epoch: int) -> DiskTroubles:
        path = broker_unwritable_path(broker_id)
        node = self._client.find(path)
        reported = None if node is None else from_json(node.data, DiskTroubles, path)
        return DiskTroubles(epoch=epoch) if reported is None or reported.epoch != epoch else reported


def _who_count(state: PartitionState) -> tuple[int, ...]:
    """The brokers whose logs matter to the partition."""
    return (*state.isr, *state.lost, *state.eligible, *state.last_known_eligible)


def _without_log(state: PartitionState, broker_id: int) -> PartitionState:
    if broker_id not in state.isr:
        return _not_eligible(state, broker_id)
    marked = msgspec.structs.replace(state, lost=tuple(sorted({*state.lost, broker_id}))).not_led_by(broker_id)
    if any(member not in marked.lost for member in state.isr):
        return marked.without(broker_id)
    return msgspec.structs.replace(marked, unproven=())


def _not_eligible(state: PartitionState, broker_id: int) -> PartitionState:
    state = state.with_eligible([member for member in state.eligible if member != broker_id])
    return state.with_last_known_eligible([member for member in state.last_known_eligible if member != broker_id])


def _unproven(state: PartitionState, broker_id: int) -> PartitionState:
    marked = msgspec.structs.replace(state, unproven=tuple(sorted({*state.unproven, broker_id})))
    return marked.not_led_by(broker_id)


def _log_changes(broker_id: int, changes: list[_Change]) -> None:
    missed = [change for change in changes if broker_id in change.state.lost and broker_id in change.state.isr]
    for change in missed:
        event(
            _logger,
            "leave partition without a leader",
            level=logging.ERROR,
            topic=change.topic,
            partition=change.partition,
            broker=broker_id,
            error="the only in-sync replica came back without its log. Put the disk or the directory back and start "
            "the broker again, or choose another replica: "
            f"pylog partition elect --election unclean {change.topic}:{change.partition}",
        )
    for reason in dict.fromkeys(change.reason for change in changes):
        count = sum(change.reason == reason for change in changes)
        event(_logger, "change in-sync sets", broker=broker_id, cause=reason, partitions=count)
