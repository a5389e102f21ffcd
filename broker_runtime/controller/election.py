"""Who leads a partition and who is in sync: a pure function of its state, its replicas and the brokers.

Kafka's rules (`PartitionLeaderElectionAlgorithms`), with the brokers in the order of the assignment:

    offline              the first that lives and is in sync; nobody outside the in-sync set, unless the topic allows an
                         unclean election: then the first that lives, and it alone is in sync
    controlled shutdown  as if a stopping broker were dead, wherever another one lives and is in sync
    preferred            the first replica, where it lives and is in sync (`prefer`)

A broker whose disk takes no records of the partition comes last: it leads only if no other in-sync replica can. Before
it comes one that has not answered yet. One whose log has failed (`DiskTroubles.failed`) does not lead: the log is
offline, and may have less when it is opened again.

Beyond Kafka's rules:

- A replica that has lost its log (`PartitionState.lost`) is elected only if an operator asks for an unclean election
  and no other replica lives. If it is the only one in sync, the partition has no leader.
- When a single replica remains in sync, those that left with all that is committed are `PartitionState.eligible`
  (KIP-966). When nobody in sync is registered any more, the first eligible replica that lives leads, and it alone is in
  sync; those that were in sync are then eligible. If the log of the only one in sync turns out to be damaged, the
  eligible are in sync again; if it is known to be gone, an operator's choice prefers them, and loses nothing.
- A leader counts only in the registration (broker epoch) in which it was elected. When it has registered again, it is
  elected again, in a higher leader epoch.
- A member whose machine lost power may lack acknowledged records (`PartitionState.unproven`): another leads if one is
  registered. Otherwise `elect` leaves the partition without a leader, and `unproven` finds out whose log goes furthest
  (`elect_most_complete`), theirs or that of another replica. Until then nobody leaves that in-sync set: its apparent
  leader may have lost power, too.
- Dead or stopping brokers leave the in-sync sets of partitions that others lead, so that commits need not wait until
  the leader finds that they lag. The leader epoch does not change then. So do those whose logs have failed, as in Kafka
  when a log directory goes offline; they are eligible then, until the leader commits something.
- Nobody leaves a set to members whose logs have all failed: if those that would leave come back first, they lead. (A
  leader whose log has failed hands over by itself.)
- Nobody leaves a set to members none of which has answered yet (`Electorate.doubtful`). All may have died together, and
  only their sessions still live: then nothing was committed without those that would leave, and whichever of them comes
  back first may lead.

Invariants: leader ∈ isr ⊆ replicas; leader ∉ lost; leader ∉ unproven; the in-sync set never becomes empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import msgspec

from broker_runtime.zookeeper.znodes import DiskTroubles, PartitionState


class LogReach(NamedTuple):
    """How far a log goes; see `LogEnd`."""

    leader_epoch: int
    log_end: int
    log_start: int = 0


ELECTION_KINDS: Final = ("new", "clean", "preferred", "unclean")
"""See `election_kind`."""
NOTHING: Final = LogReach(-1, 0)
"""How far a log goes that never had a record."""


@dataclass(frozen=True, slots=True)
class Electorate:
    """The registered brokers (``live``: the epoch of each), and what is known of some of them.

    ``stopping``: they lead and are in sync only if nobody else can. ``suspects``: probably dead. They lead nothing new,
    and lose what another broker can take over; the rest is left to them, in case they live. ``doubtful``: their ports
    refuse, perhaps because they are just starting. ``disks``: what brokers report of disks that take no records;
    ``unfit``: those of the partition's brokers that reported one (see `at`). ``failed``: those of them that reported
    that the partition's log has failed; ``perhaps_failed``: those of these that had too many to name.
    """

    live: Mapping[int, int]
    stopping: frozenset[int] = frozenset()
    suspects: frozenset[int] = frozenset()
    doubtful: frozenset[int] = frozenset()
    disks: Mapping[int, DiskTroubles] = field(default_factory=dict)
    unfit: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    perhaps_failed: frozenset[int] = frozenset()

    def at(self, topic: str, partition: int) -> Electorate:
        """The brokers as they count for this partition."""
        failed = frozenset(broker_id for broker_id, disks in self.disks.items() if disks.has_failed(topic, partition))
        full = frozenset(broker_id for broker_id, disks in self.disks.items() if disks.concerns(topic, partition))
        perhaps_failed = frozenset(broker_id for broker_id in failed if self.disks[broker_id].failed is None)
        if (full | failed, failed, perhaps_failed) == (self.unfit, self.failed, self.perhaps_failed):
            return self
        return replace(self, unfit=full | failed, failed=failed, perhaps_failed=perhaps_failed)

    def first(self, candidates: Sequence[int]) -> int:
        """The one of them that leads: the first whose disk takes records and that answers, otherwise the first whose
        disk takes records, otherwise the first whose log has not failed, otherwise the first."""
        return min(candidates, key=lambda each: (each in self.failed, each in self.unfit, each in self.doubtful))

    def is_led(self, state: PartitionState) -> bool:
        """Whether the leader is registered in the epoch in which it was elected."""
        return state.leader is not None and self.live.get(state.leader) == state.leader_broker_epoch

    def can_lead(self, broker_id: int) -> bool:
        """Whether the broker lives and is not stopping."""
        return broker_id in self.live and broker_id not in self.suspects and broker_id not in self.stopping

    def of(self, broker_ids: Sequence[int]) -> tuple[int, ...]:
        """Those of the brokers that can lead; if none can, those that are stopping."""
        return tuple(b for b in broker_ids if self.can_lead(b)) or tuple(
            b for b in broker_ids if b in self.live and b not in self.suspects
        )


def elect(
    current: PartitionState | None,
    replicas: Sequence[int],
    brokers: Electorate,
    controller_epoch: int,
    *,
    is_unclean_allowed: bool = False,
    is_loss_accepted: bool = False,
) -> PartitionState | None:
    """The partition's next state; None if it does not change.

    ``current`` None: a new partition; all its live replicas are in sync. ``is_unclean_allowed``:
    ``unclean.leader.election.enable``, or an operator. ``is_loss_accepted``: then even one that has lost its log, if no
    other lives. If nobody can be elected, the partition has no leader, and its in-sync set stays.
    """
    if current is None:
        in_sync = brokers.of(replicas)
        if not in_sync:
            return None
        leader = brokers.first(in_sync)
        return PartitionState(
            leader=leader,
            leader_epoch=0,
            isr=in_sync,
            controller_epoch=controller_epoch,
            leader_broker_epoch=brokers.live[leader],
        )
    with_log = [broker_id for broker_id in replicas if broker_id not in current.lost]
    intact = [broker_id for broker_id in with_log if broker_id not in brokers.failed]
    proven = [broker_id for broker_id in with_log if broker_id not in current.unproven]
    sound = [broker_id for broker_id in intact if broker_id not in current.unproven]
    candidates = brokers.of([broker_id for broker_id in sound if broker_id in current.isr])
    if candidates and len(candidates) < len(current.isr) and brokers.doubtful.issuperset(candidates):
        return None
    if brokers.is_led(current):
        assert current.leader is not None
        hands_over = current.leader in brokers.failed and brokers.can_lead(current.leader)
        if not candidates or hands_over:
            return None
        if current.leader in candidates:
            # One that may not have failed would only be taken into the set again.
            staying = {*candidates, *(b for b in brokers.perhaps_failed.intersection(proven) if brokers.can_lead(b))}
            in_sync = tuple(broker_id for broker_id in current.isr if broker_id in staying)
            if in_sync == current.isr or current.unproven:
                return None
            left = _left_to(in_sync, current, proven, brokers)
            return msgspec.structs.replace(left, controller_epoch=controller_epoch)
    if candidates:
        left = current if current.unproven else _left_to(candidates, current, proven, brokers)
        return led_by(brokers.first(candidates), left, brokers, controller_epoch)
    eligible = brokers.of([broker_id for broker_id in sound if broker_id in current.eligible])
    eligible = (brokers.first(eligible),) if eligible else ()
    if eligible and _is_left_by_all_in_sync(current, brokers):
        left = current.with_in_sync(eligible, whole=proven)
        return led_by(eligible[0], left, brokers, controller_epoch)
    if is_loss_accepted:
        known = _best_known(current, intact, brokers) or _best_known(current, with_log, brokers)
        candidates = known or brokers.of(with_log)[:1] or brokers.of(replicas)[:1]
    elif is_unclean_allowed and not brokers.of(current.unproven):
        candidates = _best_known(current, intact, brokers) or brokers.of(intact)[:1]
    if candidates:
        return _alone(candidates[0], current, brokers, controller_epoch)
    if current.leader is None:
        return None
    return msgspec.structs.replace(current.not_led_by(current.leader), controller_epoch=controller_epoch)


def elect_most_complete(
    current: PartitionState,
    replicas: Sequence[int],
    brokers: Electorate,
    controller_epoch: int,
    ends: Mapping[int, LogReach],
) -> PartitionState | None:
    """The state in which the one leads, and is alone in sync, whose log goes furthest of the unproven members, the
    last known eligible ones, and the other replicas in ``ends``; None: none lives.

    ``ends``: how far each log goes; one without an entry has nothing. Of two logs the one with the higher pair of
    leader epoch and end holds everything that either knew to be committed (`replication.divergence`). But a log that
    ends below another's start lacks what was committed, and deleted there: it does not lead, or offsets would be given
    again. (Its epoch may be higher: a replica that begins at its leader's start knows none.) Of equals those lead that
    are unproven or last known eligible, in the usual order.
    """
    doubtful = {*current.unproven, *current.last_known_eligible}
    with_log = [broker_id for broker_id in replicas if broker_id in {*doubtful, *ends} - {*current.lost}]
    candidates = brokers.of(sorted(with_log, key=lambda broker_id: broker_id not in doubtful))
    if not candidates:
        return None
    known = {broker_id: ends.get(broker_id, NOTHING) for broker_id in candidates}
    deleted = max(reach.log_start for reach in known.values())
    pairs = {b: (reach.leader_epoch, reach.log_end) for b, reach in known.items() if reach.log_end >= deleted}
    most = max(pairs.values())
    leader = brokers.first([broker_id for broker_id, pair in pairs.items() if pair == most])
    return _alone(leader, current, brokers, controller_epoch)


def prefer(
    current: PartitionState | None, replicas: Sequence[int], brokers: Electorate, controller_epoch: int
) -> PartitionState | None:
    """The state in which the first replica leads; None if it already does, is not live and in sync, is stopping, is
    unproven, or has a disk that takes no records."""
    if current is None or not brokers.is_led(current) or current.leader == replicas[0]:
        return None
    if replicas[0] not in current.isr or replicas[0] in current.unproven:
        return None
    if replicas[0] in brokers.unfit or not brokers.can_lead(replicas[0]):
        return None
    return led_by(replicas[0], current, brokers, controller_epoch)


def led_by(leader: int, current: PartitionState, brokers: Electorate, controller_epoch: int) -> PartitionState:
    """The state under a new leader, which lives and is in sync: the next leader epoch."""
    return msgspec.structs.replace(
        current,
        leader=leader,
        leader_epoch=current.leader_epoch + 1,
        controller_epoch=controller_epoch,
        leader_broker_epoch=brokers.live[leader],
        lost=tuple(broker_id for broker_id in current.lost if broker_id not in current.isr),
        unproven=tuple(broker_id for broker_id in current.unproven if broker_id != leader),
    )


def election_kind(before: PartitionState | None, after: PartitionState) -> str | None:
    """What kind of election led from one state to the other: that of a ``new`` partition; ``unclean``, of a replica
    that may lack committed records; ``preferred``, away from a leader that stays in sync; or ``clean``. None: nobody
    was elected."""
    if after.leader is None or (before is not None and after.leader_epoch == before.leader_epoch):
        return None
    if before is None:
        return "new"
    if after.leader in before.lost or after.leader not in {*before.isr, *before.eligible, *before.last_known_eligible}:
        return "unclean"
    is_change = before.leader not in (None, after.leader)
    return "preferred" if is_change and before.leader in after.isr else "clean"


def _is_left_by_all_in_sync(current: PartitionState, brokers: Electorate) -> bool:
    """Whether nobody in sync is registered with a log that has not failed, or known to have come back without its log
    or after a power loss.

    A leader commits nothing while others are eligible. So all that a replica in sync has beyond the eligible was never
    committed, and was acknowledged with ``acks=1`` at most.
    """
    present = {*current.lost, *current.unproven, *(brokers.live.keys() - brokers.failed)}
    return present.isdisjoint(current.isr)


def _left_to(
    in_sync: tuple[int, ...], current: PartitionState, proven: Sequence[int], brokers: Electorate
) -> PartitionState:
    """The state when the other members leave the in-sync set. Those whose logs have failed are eligible, however many
    stay: these may have lost their power just before."""
    left = current.with_in_sync(in_sync, whole=proven)
    failed = {each for each in brokers.failed.intersection(proven, current.isr) if each not in in_sync}
    return left.with_eligible({*left.eligible, *failed}) if failed else left


def _best_known(current: PartitionState, replicas: Sequence[int], brokers: Electorate) -> tuple[int, ...]:
    """The one of these replicas that lives and is most likely to have all; none if nothing is known of any."""
    for known in (current.eligible, current.isr, current.last_known_eligible):
        there = brokers.of([broker_id for broker_id in replicas if broker_id in known])
        if there:
            return (brokers.first(there),)
    return ()


def _alone(leader: int, current: PartitionState, brokers: Electorate, controller_epoch: int) -> PartitionState:
    """The state under a leader that may lack what others had: its log counts, and it alone is in sync."""
    lost = tuple(broker_id for broker_id in current.lost if broker_id != leader)
    chosen = msgspec.structs.replace(
        current, isr=(leader,), lost=lost, unproven=(), eligible=(), last_known_eligible=()
    )
    return led_by(leader, chosen, brokers, controller_epoch)
