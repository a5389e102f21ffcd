"""The claim to be the controller, and the one way that every controller's write goes.

Rules (Kafka's, `KafkaZkClient.registerControllerAndIncrementControllerEpoch`): the claim and the rise of
``/controller_epoch`` are one transaction; every later write is a transaction that checks that znode's version and names
the session of the claim. So a broker that lost the claim, knowingly or not, changes nothing. An unknown outcome is read
back before any decision depends on it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import Final, TypeVar

from broker_runtime.contract.errors import CorruptRecordError, NotControllerError
from broker_runtime.contract.events import event
from broker_runtime.contract.settings import find_setting
from broker_runtime.controller.election import Electorate, elect, election_kind
from broker_runtime.controller.partition_ranges import partition_ranges
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.zookeeper.cluster_state import ClusterState, TopicState, VersionedState, read_topics
from broker_runtime.zookeeper.guarded import (
    Guard,
    GuardFailedError,
    Planned,
    change,
    has_happened,
    in_parts,
    version_over,
    write,
    write_most,
)
from broker_runtime.zookeeper.membership import Membership
from broker_runtime.zookeeper.session import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    NoNodeError,
    Operation,
    Set,
    ZNodeError,
    ZooKeeperClient,
)
from broker_runtime.zookeeper.znodes import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    ControllerClaim,
    PartitionState,
    announcing,
    from_json,
    partition_path,
    partition_state_path,
    to_json,
)

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Proof of being the controller: for as long as the session lives and the epoch's znode has this version."""

    epoch: int
    epoch_version: int
    session: int

    @property
    def guard(self) -> Guard:
        """For every write of this controller."""
        return Guard(Check(CONTROLLER_EPOCH, self.epoch_version), self.session)


@dataclass(frozen=True, slots=True)
class Decision:
    """A partition's next state, and what it is to replace: None for a new partition."""

    topic: str
    partition: int
    present: VersionedState | None
    state: PartitionState

    @property
    def replaced(self) -> PartitionState | None:
        """The state that it replaces."""
        return None if self.present is None else self.present.state

    def operations(self) -> list[Operation]:
        path = partition_state_path(self.topic, self.partition)
        if self.present is not None:
            return [Set(path, to_json(self.state), self.present.version)]
        return [Create(partition_path(self.topic, self.partition)), Create(path, to_json(self.state))]

    def touches(self, path: str) -> bool:
        return path in {
            partition_path(self.topic, self.partition), partition_state_path(self.topic, self.partition)
        }  # fmt: skip


class Controller:
    """A broker as the controller, or as a broker that can become it. Thread-safe."""

    def __init__(
        self,
        client: ZooKeeperClient,
        *,
        on_deposed: Callable[[], None] = lambda: None,
        meters: Meters = NO_METERS,
    ) -> None:
        """``on_deposed``: a write showed that the claim no longer counts, so somebody has to find out who is the
        controller. Called on the thread that wrote; must not block."""
        self._client = client
        self._on_deposed = on_deposed
        self._meters = meters
        self._claim: Claim | None = None
        self._lock = threading.Lock()  # guards _claim; never held during a call to ZooKeeper

    @property
    def is_active(self) -> bool:
        """Whether this broker believes that it is the controller; only a write shows whether it is."""
        return self._claim is not None

    def require_claim(self) -> Claim:
        """The claim. Raises `NotControllerError` without one."""
        with self._lock:
            claim = self._claim
        if claim is None:
            raise NotControllerError("this broker is not the controller; ask the one that is")
        return claim

    def resign(self) -> None:
        """Stops believing so. The znode goes with the session or by `release`, or `try_claim` takes it again."""
        with self._lock:
            had, self._claim = self._claim, None
        if had is not None:
            event(_logger, "resign as controller", epoch=had.epoch)

    def release(self) -> None:
        """Gives the claim up, so that another can take it at once. Raises `ZooKeeperUnavailableError`."""
        with self._lock:
            claim, self._claim = self._claim, None
        if claim is not None:
            try:
                write(self._client, [Delete(CONTROLLER)], guard=claim.guard)
            except (GuardFailedError, NoNodeError):  # another has it, or may have it now
                return
            event(_logger, "release controller", epoch=claim.epoch)

    def try_claim(self, membership: Membership, *, suspects: Mapping[int, int] | None = None) -> bool:
        """Claims to be the controller if nobody is, or if the present one counts as dead: its broker id and epoch are
        in ``suspects``. Returns whether this broker is the controller now. Raises `ZooKeeperUnavailableError`.

        A controller that was wrongly taken for dead can no longer write, and learns that from its next write.
        """
        claim = change(
            self._client,
            lambda: self._plan_claim(membership, suspects or {}),
            what="the claim to be the controller",
            session=membership.session,
        )
        with self._lock:
            had, self._claim = self._claim, claim
        if claim is not None and claim != had:
            event(_logger, "become controller", broker=membership.broker_id, epoch=claim.epoch)
            self._meters.became_controller()
        return claim is not None

    def write(self, operations: Sequence[Operation], *, is_done: Callable[[], bool] | None = None) -> list[int]:
        """Carries out a controller's transaction. ``is_done`` reads back whether it happened, if that is unknown; None:
        `has_happened` does.

        Raises `NotControllerError` if another broker is the controller now, `ZooKeeperUnavailableError` if it did not
        happen or that cannot be read, and the `ZNodeError` of an operation. After a success that was read back the
        versions returned are -1.
        """
        claim = self.require_claim()
        try:
            return write(
                self._client,
                operations,
                guard=claim.guard,
                is_done=partial(has_happened, self._client, operations) if is_done is None else is_done,
            )
        except GuardFailedError:
            raise self._deposed() from None

    def change_topic(
        self,
        topic: TopicState,
        plan: Callable[[TopicState], tuple[Sequence[Operation], _T]],
        *,
        refreshed: Callable[[], TopicState],
    ) -> _T:
        """Writes what ``plan`` makes of the topic, and returns its answer. If another writer was quicker, it is planned
        again from what ``refreshed`` reads. Without operations there is nothing to write.

        Raises `NotControllerError`, `ZooKeeperUnavailableError` (as `write`, or the topic keeps changing), and what
        ``plan`` and ``refreshed`` raise.
        """
        known: TopicState | None = topic

        def planned() -> Planned[_T]:
            nonlocal known
            present, known = known, None
            operations, result = plan(refreshed() if present is None else present)
            return Planned(result, operations, partial(has_happened, self._client, operations))

        try:
            return change(self._client, planned, what=topic.name, guard=self.require_claim().guard)
        except GuardFailedError:
            raise self._deposed() from None

    def elect_all(self, cluster: ClusterState, brokers: Electorate) -> ClusterState:
        """Gives every partition the leader and the in-sync set that `elect` decides; returns the cluster as it is then.

        Raises as `carry_out`.
        """
        return self.carry_out(cluster, self._elections(cluster.topics.values(), brokers))

    def elect_topic(self, topic: TopicState, brokers: Electorate) -> TopicState:
        """As `elect_all`, for one topic."""
        cluster = ClusterState(topics={topic.name: topic})
        return self.carry_out(cluster, self._elections([topic], brokers)).topics.get(topic.name, topic)

    def carry_out(self, cluster: ClusterState, decisions: Sequence[Decision]) -> ClusterState:
        """Writes the states; returns the cluster as it is then. Raises as `write`.

        One write takes many partitions of any topics. If another writer changed a state meanwhile, or the outcome is in
        doubt, the topic is read again; what then remains to be decided is left to the next look, which the other
        writer's announcement triggers.
        """
        if not decisions:
            return cluster
        partitions = {name: list(cluster.topics[name].partitions) for name in {d.topic for d in decisions}}
        doubtful: set[str] = set()
        for some in in_parts(decisions):
            for decision, version in self._write_decisions(some):
                kind = None if version is None else election_kind(decision.replaced, decision.state)
                if kind is not None:
                    self._meters.elected(kind)
                if version is None or version == ANY_VERSION:
                    doubtful.add(decision.topic)
                else:
                    partitions[decision.topic][decision.partition] = VersionedState(
                        state=decision.state, version=version
                    )
        _log_decisions(decisions, doubtful)
        written = {name: replace(cluster.topics[name], partitions=tuple(states)) for name, states in partitions.items()}
        again = {topic.name: topic for topic in read_topics(self._client, sorted(doubtful), known=cluster.topics)}
        return replace(cluster, topics={**cluster.topics, **written, **again})

    def _elections(self, topics: Iterable[TopicState], brokers: Electorate) -> list[Decision]:
        epoch = self.require_claim().epoch
        decided: list[Decision] = []
        for topic in sorted(topics, key=attrgetter("name")):
            is_unclean_allowed = _allows_unclean_election(topic)
            for number, replicas in enumerate(topic.record.assignment):
                present = topic.partitions[number]
                current = None if present is None else present.state
                there = brokers.at(topic.name, number)
                state = elect(current, replicas, there, epoch, is_unclean_allowed=is_unclean_allowed)
                if state is not None:
                    decided.append(Decision(topic.name, number, present, state))
        return decided

    def _write_decisions(self, decided: Sequence[Decision]) -> list[tuple[Decision, int | None]]:
        """Writes them in one transaction; returns the version of each, None if it was not written.

        A state that another writer changed meanwhile is left out, and the others are written without it.
        """
        left_out: list[Decision] = []

        def send(some: Sequence[Decision]) -> list[int]:
            operations = [operation for decision in some for operation in decision.operations()]
            versions = self.write([*operations, announcing(decision.topic for decision in some)])
            # The last operation of each writes its state.
            return [versions[end - 1] for end in accumulate(len(decision.operations()) for decision in some)]

        def leave_out(changed: Sequence[Decision], refusal: ZNodeError) -> None:
            event(_logger, "put off election", znode=refusal.path)
            left_out.extend(changed)

        written = write_most(decided, send, concerns=Decision.touches, leave_out=leave_out)
        return [*written, *((decision, None) for decision in left_out)]

    def _deposed(self) -> NotControllerError:
        self.resign()
        self._on_deposed()
        return NotControllerError("another controller was elected; nothing was changed")

    def _plan_claim(self, membership: Membership, suspects: Mapping[int, int]) -> Planned[Claim | None]:
        session = membership.session
        epoch_node = self._client.find(CONTROLLER_EPOCH)
        if epoch_node is None:
            self._client.create(CONTROLLER_EPOCH, b"0")
            epoch_node = self._client.get(CONTROLLER_EPOCH)
        known_epoch = _epoch_in(epoch_node.data)
        operations: list[Operation] = []
        there = self._client.find(CONTROLLER)
        other = None
        if there is not None:
            other = from_json(there.data, ControllerClaim, CONTROLLER)
            if other.broker_id == membership.broker_id and other.broker_epoch == membership.epoch:
                if other.epoch == known_epoch:  # our own earlier write, whose outcome was unknown
                    return Planned(Claim(epoch=other.epoch, epoch_version=epoch_node.version, session=session))
                event(
                    _logger,
                    "replace own claim",
                    level=logging.WARNING,
                    broker=other.broker_id,
                    epoch=other.epoch,
                    found=known_epoch,
                )
            elif other.broker_id == membership.broker_id:
                event(_logger, "replace claim of an earlier life", broker=other.broker_id, epoch=other.epoch)
            elif suspects.get(other.broker_id) == other.broker_epoch:
                event(
                    _logger,
                    "replace claim of a dead controller",
                    level=logging.WARNING,
                    broker=other.broker_id,
                    epoch=other.epoch,
                )
            else:
                return Planned(None)
            operations.append(Delete(CONTROLLER, there.version))
        epoch = max(known_epoch, -1 if other is None else other.epoch) + 1
        claim = ControllerClaim(broker_id=membership.broker_id, broker_epoch=membership.epoch, epoch=epoch)
        operations.append(Set(CONTROLLER_EPOCH, b"%d" % epoch, epoch_node.version))
        operations.append(Create(CONTROLLER, to_json(claim), ephemeral=True))
        return Planned(Claim(epoch=epoch, epoch_version=version_over(epoch_node), session=session), operations)


def _epoch_in(data: bytes) -> int:
    """Raises `CorruptRecordError` where it is no epoch."""
    try:
        epoch = int(data)
    except ValueError:
        epoch = -1
    if epoch < 0:
        raise CorruptRecordError(f"{CONTROLLER_EPOCH} is {data[:32]!r}, not the number of a controller's epoch")
    return epoch


def _allows_unclean_election(topic: TopicState) -> bool:
    value = topic.config.get(_UNCLEAN_ELECTION)
    return value is not None and find_setting("topic", _UNCLEAN_ELECTION).parse(value) is True


def _log_decisions(decided: Sequence[Decision], doubtful: Collection[str]) -> None:
    """One line per topic and outcome; none for new partitions."""
    changed: dict[tuple[str, str, PartitionState], list[int]] = {}
    for decision in decided:
        if decision.present is not None and decision.topic not in doubtful:
            is_elected = decision.state.leader_epoch != decision.present.state.leader_epoch
            what = "elect leader" if is_elected else "shrink in-sync set"
            changed.setdefault((what, decision.topic, decision.state), []).append(decision.partition)
    for (what, topic, state), numbers in changed.items():
        event(
            _logger,
            what,
            topic=topic,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=state.isr,
            partitions=partition_ranges(numbers),
        )
