"""The invariants, looked at after every step: what brokers believe, what lies on their disks, what ZooKeeper says.

By number, as tests name them ("invariant 5"); 9 to 11 are of transactions and groups, which are not built yet:

1. Every record acknowledged with ``acks=all`` is exactly once in the final log, unless it was deleted rightly.
2. One (topic id, partition, offset) has one content, for all readers, replicas and times.
3. An idempotent producer's committed sequences rise with the offset in a partition, with no gap and no repeat.
4. No consumer receives an offset at or above the minimum durable end over the maximal in-sync set, and no follower
   takes for committed what its own device has not.
5. The log of each in-sync replica equals the leader's, byte by byte, up to the leader's high watermark.
6. Each leader epoch of a partition has at most one leader, elected by the newest controller, and it wrote all frames
   of that epoch.
7. Whoever is elected holds every committed record and was in sync under its current broker epoch. A leader changes the
   in-sync set only while it is registered. After all in sync lost their power without flush.mode=ack, records are lost
   that no disk has left, and no others: the one leads whose log goes furthest.
8. Leader epoch, log start and the `latest` that is served never decrease; the high watermark never within one epoch.
12. After any crash a log is opened as a prefix with all that was durable; what is made of its frames, and what is saved
   for the next start, agrees with them.
13. Who waits for an acknowledgement is answered by the time limit of the request; where the leadership ended, at once,
    but for who does the fsync that all wait for.
14. The high watermark rises only while ``min.insync.replicas`` are in sync, as far as its leader itself has written.
15. After all brokers ended, whoever of those in sync comes back first, with its disk, leads soon. Who comes back leaves
    its place in sync only to one that is registered and served meanwhile.
16. Who is eligible (`PartitionState.eligible`) has all that is committed.

Rule: looks and never touches: no log is opened or loaded by it, nothing runs because of it. Every complaint is a
`ViolationError` that names the invariant. It is about all that could have been seen from outside: an answer counts from
the moment it leaves the broker, even if the network loses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.frame import iter_frames, verify_frame
from broker_runtime.contract.model import EARLIEST, LATEST, TopicPartition
from broker_runtime.contract.requests import ErrorInfo, ListOffsetsRequest, ListOffsetsResponse
from broker_runtime.contract.streams import FetchRequest, ProduceRequest, ProduceResponse
from broker_runtime.replication import Partition
from tests.simulation.partitions.broker.disk import LOG_SUFFIX
from tests.simulation.partitions.broker.node import Node
from tests.simulation.partitions.broker.serving import Fetched
from tests.simulation.partitions.committed import Committed, missing
from tests.simulation.partitions.derived import disagreement_in_memory, disagreements_on_disk, is_locked
from tests.simulation.partitions.history import Acknowledgement, Batch, History, body_of
from tests.simulation.partitions.log_view import LogView, StoredFrame
from tests.simulation.partitions.states import StateChange
from tests.simulation.simulator.outcome import ViolationError

Key = tuple[bytes, int]
_NEWS_LIMIT_US = 3_000_000  # by then a controller knows who has registered


class Invariants:
    """The checker of one run."""

    def __init__(
        self,
        nodes: dict[int, Node],
        history: History,
        looking: Callable[[], AbstractContextManager[None]] = nullcontext,
        situation: Callable[[str], None] = lambda name: None,
    ) -> None:
        """``looking``: inside of what it gives, looking at a broker waits for none of its locks. ``situation``
        counts one that arises."""
        self._looking = looking
        self._situation = situation
        self.on_written: Callable[[Node, Key, StoredFrame], None] = lambda node, key, frame: None
        """Called with each frame when the first broker has written it."""
        self.on_committed: Callable[[Key, StoredFrame], None] = lambda key, frame: None
        """Called with each frame when a leader's high watermark has passed it."""
        self._loaded: dict[tuple[int, TopicPartition], tuple[int, int]] = {}  # (life, changes) when last compared
        self._shown: dict[tuple[int, TopicPartition], tuple[int, int]] = {}
        """Damaged log → where it is, and up to where whole frames behind say that it is committed."""
        self._written_by: dict[Key, str] = {}  # the last state, by which actor
        self._nodes = nodes
        self._history = history
        self.committed: dict[Key, Committed] = {}
        self.in_sync: dict[Key, tuple[int, ...]] = {}  # as ZooKeeper has it
        self._unproven: dict[Key, tuple[int, ...]] = {}  # likewise
        self._eligible: dict[Key, tuple[int, ...]] = {}  # likewise
        self._joined_us: dict[tuple[int, Key], int] = {}  # when it came into the in-sync set
        self.is_durable_by_ack = True  # flush.mode=ack
        self.damaged: set[tuple[int, TopicPartition]] = set()
        """Logs that a fault has damaged: they need not hold anything."""
        self.may_lack: set[tuple[int, TopicPartition]] = set()
        """Logs that lost their power, or what a failed fsync had not written, without flush.mode=ack, until they are in
        sync again."""
        self.decided: set[Key] = set()
        """Partitions for which an operator wants whoever is there to lead: what that one lacks may be lost."""
        self._left_by_power_loss: dict[Key, dict[int, Sequence[StoredFrame]]] = {}
        """Partitions whose replicas in sync all lost their power without flush.mode=ack, until one of them leads: what
        the disk of each has left."""
        self._cut_short: set[tuple[Key, int]] = set()
        # Who was away when records were lost rightly may come back with a high watermark of before.
        self._known_before_loss: dict[tuple[int, Key], int] = {}
        """Producers of a partition of whom acknowledged records are lost, rightly."""
        self._was_damaged: set[tuple[int, TopicPartition]] = set()  # at any time
        self.without_log: set[tuple[int, TopicPartition]] = set()
        """Logs that went with their disk, until they are in sync again."""
        self._registered_in: dict[int, int] = {}  # broker → life
        self._registered_at_us: dict[int, int] = {}
        self._died_at_us: dict[int, int] = {}
        self._leaders: dict[tuple[Key, int], tuple[int, int]] = {}
        self._leading: dict[Partition, int] = {}  # the epoch in which it leads, as of the last look
        self._names: dict[Partition, TopicPartition] = {}
        self._marks: dict[Partition, tuple[int, bool, int]] = {}  # high watermark, role, epoch as of the last look
        self._high_watermarks: dict[tuple[Key, int], int] = {}
        self._seen: dict[Key, set[tuple[int, int]]] = {}
        self._views: dict[tuple[int, TopicPartition], tuple[int, int, int]] = {}
        """(changes, frames, end) as of the last look."""
        self._cut: dict[tuple[int, TopicPartition], tuple[int, int]] = {}  # (life, changes) when its end was cut off
        self._last_epochs: dict[tuple[int, TopicPartition], int] = {}
        self._deleted: dict[Key, dict[int, int]] = {}  # by epoch: everything below was deleted for good
        self._listed_offsets: dict[tuple[Key, int], dict[int, int]] = {}  # (partition, earliest or latest) → by epoch

    # --- after every step -----------------------------------------------------------------------------------------

    def observe(self, node: Node) -> None:
        """A broker did something."""
        with self._looking():
            self._observe(node)

    def _observe(self, node: Node) -> None:
        life = node.life
        hosted = life.registry.hosted() if life is not None else []
        for partition in hosted:
            if partition.is_leader and self._leading.get(partition) != partition.leader_epoch:
                self._look_at_leader(node, partition)
                self._leading[partition] = partition.leader_epoch
        if node.files.written_from:
            for at in node.disk.refresh():
                self._look_at_log(node, at)
        if node.files.replaced:
            self._look_at_saved(node)
        for partition in hosted:
            state = partition.log._state
            if state.damage is not None:
                self._look_at_damage(node, partition)
            if state.is_loaded and state.offline is None:
                self._look_at_loaded(node, partition)
                mark = (state.high_watermark, partition.is_leader, partition.leader_epoch)
                if self._marks.get(partition) != mark:
                    self._marks[partition] = mark
                    self._look_at_high_watermark(node, partition, mark[0])

    def is_newest_leader(self, key: Key, leader_epoch: int) -> bool:
        """Whether nobody has led the partition in a later epoch."""
        return all(epoch <= leader_epoch for of, epoch in self._leaders if of == key)

    def _look_at_leader(self, node: Node, partition: Partition) -> None:
        key = (partition.topic_id, partition.partition)
        who = (node.broker_id, node.lives)
        first = self._leaders.setdefault((key, partition.leader_epoch), who)
        if first != who:
            raise ViolationError(
                6,
                f"{partition} is led in epoch {partition.leader_epoch} by broker {who[0]} (life {who[1]}), and was by "
                f"broker {first[0]} (life {first[1]})",
            )

    def _look_at_log(self, node: Node, at: TopicPartition) -> None:
        view = node.disk.logs[at]
        changes, count, end = self._views.get((node.broker_id, at), (0, 0, 0))
        is_rewritten = changes != view.changes
        if is_rewritten and view.frames and view.end < end:
            self._cut[node.broker_id, at] = (node.lives, view.changes)
        if is_rewritten and len(view.frames) < count:
            self._look_at_cut(node, at, view)
        elif len({frame.segment for frame in view.frames[count:]}) > 1:
            self._situation("roll in the middle of an append")
        if view.frames:
            self._last_epochs[node.broker_id, at] = view.frames[-1].header.leader_epoch
        self._views[node.broker_id, at] = (view.changes, len(view.frames), view.end)
        for frame in view.frames if is_rewritten else view.frames[count:]:
            key = (frame.topic_id, at.partition)
            seen = self._seen.setdefault(key, set())
            if (frame.base_offset, frame.content) in seen:
                continue
            seen.add((frame.base_offset, frame.content))
            writer = self._leaders.get((key, frame.header.leader_epoch))
            if writer is not None and (writer[0], at) in self.damaged:
                continue
            if writer is None or writer[0] != node.broker_id:
                raise ViolationError(
                    6,
                    f"{at}: broker {node.broker_id} wrote offset {frame.base_offset} in epoch "
                    f"{frame.header.leader_epoch}, which {'nobody' if writer is None else f'broker {writer[0]}'} leads",
                )
            self.on_written(node, key, frame)
        if is_rewritten and view.frames:
            key = (view.frames[-1].topic_id, at.partition)
            if node.broker_id in self.in_sync.get(key, ()):
                self._require(5, node, at, key, 0, self.of(key, at).end)

    def _look_at_saved(self, node: Node) -> None:
        for at, lack in disagreements_on_disk(node.files, node.disk):
            if (node.broker_id, at) not in self.damaged:
                raise ViolationError(12, f"{at}: broker {node.broker_id}: {lack}")

    def _look_at_cut(self, node: Node, at: TopicPartition, view: LogView) -> None:
        last_epoch = view.frames[-1].header.leader_epoch if view.frames else -1
        if last_epoch < self._last_epochs.get((node.broker_id, at), -1):
            self._situation("log cut below the beginning of a leader epoch")
        if node.life is not None and node.life.serving.acknowledging.get((at.topic, at.partition)):
            self._situation("log cut while an acknowledgement is waited for")

    def _look_at_damage(self, node: Node, partition: Partition) -> None:
        """A log is refused for what a fault has done to it, and not for what its broker has written itself."""
        at = TopicPartition(partition.topic, partition.partition)
        damage = partition.log._state.damage
        logs = (self.damaged, self.may_lack, self.without_log)
        if not self.is_durable_by_ack or damage is None or any((node.broker_id, at) in each for each in logs):
            return
        if "records up to offset" in damage.message and (node.broker_id, at) not in self._was_damaged:
            raise ViolationError(12, f"{at}: nothing has damaged the log of broker {node.broker_id}: {damage.message}")

    def _look_at_loaded(self, node: Node, partition: Partition) -> None:
        """What was made of a log's frames agrees with them: after it was loaded, and after it was cut."""
        at = self._names.get(partition)
        if at is None:
            at = self._names[partition] = TopicPartition(partition.topic, partition.partition)
        view, state = node.disk.logs.get(at), partition.log._state
        if view is None or state.damage is not None:
            return
        before, now = self._loaded.get((node.broker_id, at), (0, 0)), (node.lives, view.changes)
        if before == now or is_locked(state.lock):
            return
        self._loaded[node.broker_id, at] = now
        bad, shown = self._shown.pop((node.broker_id, at), (-1, 0))
        if state.segments.end_offset == bad:  # else it was set aside, and another begun
            raise ViolationError(
                12, f"{at}: broker {node.broker_id} opened a damaged log up to {state.segments.end_offset}, though "
                f"what lies behind says that all below {shown} is committed",
            )  # fmt: skip
        if (node.broker_id, at) not in self.damaged and view.is_whole:
            was_cut = before[0] == node.lives and self._cut.get((node.broker_id, at)) == now  # and not by its recovery
            lack = disagreement_in_memory(state, view.frames, node.files, was_cut=was_cut)
            if lack is not None:
                raise ViolationError(12, f"{at}: broker {node.broker_id}: {lack}")

    def _look_at_high_watermark(self, node: Node, partition: Partition, high_watermark: int) -> None:
        at = TopicPartition(partition.topic, partition.partition)
        key = (partition.topic_id, partition.partition)
        committed = self.of(key, at)
        if not partition.is_leader:
            durable_end = partition.log._state.commit.durable_end_offset
            if self.is_durable_by_ack and high_watermark > durable_end:
                raise ViolationError(
                    4, f"{at}: broker {node.broker_id} follows, its high watermark is {high_watermark}, and only what "
                    f"is below {durable_end} is on its device",
                )  # fmt: skip
            known_before = self._known_before_loss.get((node.broker_id, key), 0)
            if high_watermark <= committed.end:
                self._known_before_loss.pop((node.broker_id, key), None)
            elif high_watermark > known_before:
                raise ViolationError(
                    4,
                    f"{at}: broker {node.broker_id}'s high watermark is {high_watermark}, committed {committed.end}",
                )
            return
        epoch = partition.leader_epoch
        before = self._high_watermarks.get((key, epoch), 0)
        if high_watermark < before:
            raise ViolationError(8, f"{at}: the high watermark fell from {before} to {high_watermark} in epoch {epoch}")
        self._high_watermarks[key, epoch] = high_watermark
        if high_watermark <= committed.end:
            return
        in_sync = self.in_sync.get(key, ())
        if self._written_by.get(key) == node.actor and len(in_sync) < partition.min_in_sync_replicas:
            raise ViolationError(
                14, f"{at}: the high watermark rises to {high_watermark} with {in_sync} in sync, as broker "
                f"{node.broker_id} itself has written; min.insync.replicas is {partition.min_in_sync_replicas}",
            )  # fmt: skip
        start = committed.end
        frames = self._frames_upto(node, at, key, high_watermark)
        new = [frame for frame in frames if start <= frame.base_offset < high_watermark]
        committed.extend(new, high_watermark)
        for frame in new:
            self.on_committed(key, frame)
        for broker_id in self.in_sync.get(key, ()):
            self._require(4, self._nodes[broker_id], at, key, start, high_watermark)
        for broker_id in self._eligible.get(key, ()):
            self._require_eligible(broker_id, at, key, start, high_watermark)

    def _frames_upto(self, node: Node, at: TopicPartition, key: Key, end: int) -> Sequence[StoredFrame]:
        """A leader's log; where that is damaged, one in sync that shows more of it."""
        holders = [node.broker_id]
        if (node.broker_id, at) in self.damaged:
            holders += self.in_sync.get(key, ())
        views = [self._nodes[broker_id].disk.logs.get(at) for broker_id in holders]
        found = [view.frames for view in views if view is not None]
        return next((frames for frames in found if frames and frames[-1].next_offset >= end), found[0] if found else ())

    # --- what ZooKeeper says --------------------------------------------------------------------------------------

    def state_changed(self, change: StateChange) -> None:
        """A partition's state was written."""
        key, at, before, after = change.key, change.at, change.before, change.after
        committed = self.of(key, at)
        if not set(after.isr) <= set(change.replicas) or (after.leader is not None and after.leader not in after.isr):
            raise ViolationError(5, f"{at}: leader {after.leader}, in-sync {after.isr}, replicas {change.replicas}")
        if before is not None and after.leader_epoch < before.leader_epoch:
            raise ViolationError(8, f"{at}: the leader epoch fell from {before.leader_epoch} to {after.leader_epoch}")
        if (
            before is not None
            and after.leader != before.leader
            and after.leader is not None
            and after.leader_epoch == before.leader_epoch
        ):
            raise ViolationError(6, f"{at}: another leader in the same epoch {after.leader_epoch}")
        is_decided = False
        is_chosen = before is not None and (after.leader not in before.isr or after.leader in before.lost)
        if is_chosen and self._is_rightly_eligible(change):
            is_chosen = False
            self._situation("eligible one leads, as nobody in sync is there")
        if before is not None and after.leader is not None and is_chosen and key in self.decided:
            is_decided = True
            self.decided.discard(key)
            self.without_log.discard((after.leader, at))  # what it has counts, and be it nothing
            self._require_eligible_chosen(change, after.leader)
            self._lost_rightly(key, committed, self._on_the_device(self._nodes[after.leader], at))
        self._look_at_first_after_power_loss(change, committed)
        # As the controller a broker does not inform itself, as a leader, sooner than others; and one that gave its
        # leadership up learns of that as others do.
        self._written_by[key] = "" if change.is_decision or after.leader is None else change.writer
        self._require_right_writer(change)
        if before is not None and after.leader != before.leader and before.leader is not None:
            if self._nodes[before.leader].files.is_syncing(str(at)):
                self._situation("change of leader while an fsync is under way")
            if change.is_moving:
                self._situation("leader lost during a move")
        if before is not None and any(
            change.writer == f"b{left}" and self._nodes[left].was_unclean for left in set(before.isr) - set(after.isr)
        ):
            self._situation("unclean stop of one in sync with others")
        self._require_left_to_somebody(change)
        joined = set(after.isr) - set(() if before is None else before.isr)
        self.in_sync[key] = after.isr
        self._unproven[key] = after.unproven
        self._look_at_eligible(change, committed.end, is_decided)
        were_eligible = () if before is None else before.eligible
        for broker_id in sorted(joined):
            self._joined_us[broker_id, key] = self._nodes[broker_id].scheduler.now_us
            if (broker_id, at) in self.without_log and broker_id in were_eligible:
                continue  # it is dead, and will be found out when it comes back
            if before is not None and broker_id not in change.registered and broker_id not in were_eligible:
                raise ViolationError(
                    7, f"{at}: broker {broker_id} was taken into the in-sync set, and is not registered"
                )
            if self._takes_part(broker_id):
                self.without_log.discard((broker_id, at))
                self.may_lack.discard((broker_id, at))  # else it joins by what it reported before it lost its power
            self._require(5, self._nodes[broker_id], at, key, 0, committed.end)
        if after.leader is not None and (before is None or after.leader_epoch > before.leader_epoch):
            is_there = self._takes_part(after.leader)
            if before is not None and before.unproven and after.leader not in before.unproven and is_there:
                self._situation("who kept its power leads, others in sync lost it")
            self._elected(change, is_decided)

    @staticmethod
    def _require_furthest(committed: Committed, leader: int, left: Mapping[int, Sequence[StoredFrame]]) -> None:
        """All that may be lost is what no disk has left: who leads has as much of what is committed as anybody."""
        ends = {broker_id: committed.reached_by(frames) for broker_id, frames in left.items()}
        if leader not in ends or ends[leader] < max(ends.values()):
            raise ViolationError(
                7, f"{committed.at}: broker {leader} was elected after all in sync lost their power; committed up to "
                f"{committed.end} was what the disk of each had up to {ends}"
            )  # fmt: skip

    @staticmethod
    def _on_the_device(node: Node, at: TopicPartition) -> Sequence[StoredFrame]:
        """What of a log no power failure takes."""
        view = node.disk.logs.get(at)
        durable_end = 0 if view is None else view.durable_end(node.files)
        return () if view is None else [frame for frame in view.frames if frame.next_offset <= durable_end]

    def _require_eligible_chosen(self, change: StateChange, leader: int) -> None:
        """An operator's choice loses nothing as long as somebody is there who has all."""
        eligible = () if change.before is None else change.before.eligible
        there = [each for each in eligible if self._takes_part(each) and self._nodes[each].is_up]
        if there and leader not in there:
            raise ViolationError(7, f"{change.at}: broker {leader} was elected by choice, and {there} have all")

    def _lost_rightly(self, key: Key, committed: Committed, frames: Sequence[StoredFrame]) -> None:
        """What the log with these frames lacks is lost, and what follows from that is right as well."""
        away = [broker_id for broker_id, node in self._nodes.items() if not node.is_up]
        self._known_before_loss.update({(broker_id, key): committed.end for broker_id in away})
        lost = committed.count_as(frames)
        acknowledged = [frame for frame in lost if frame.body in self._history.acknowledged]
        self._cut_short.update((key, frame.header.producer_id) for frame in acknowledged)
        by_epoch = self._listed_offsets.get((key, LATEST), {})
        by_epoch.update({epoch: min(offset, committed.end) for epoch, offset in by_epoch.items()})
        if acknowledged:
            self._situation("acknowledged records lost, rightly")

    def _look_at_first_after_power_loss(self, change: StateChange, committed: Committed) -> None:
        before, leader = change.before, change.after.leader
        if leader is None or (before is not None and change.after.leader_epoch == before.leader_epoch):
            return
        if (
            self._takes_part(leader) and change.key in self._left_by_power_loss
        ):  # else it is dead itself, and never leads
            left = self._left_by_power_loss.pop(change.key)
            self._require_furthest(committed, leader, left)
            self._lost_rightly(change.key, committed, left[leader])

    def _require_left_to_somebody(self, change: StateChange) -> None:
        before, at = change.before, change.at
        for broker_id in set(() if before is None else before.isr) - set(change.after.isr):
            node = self._nodes[broker_id]
            if change.writer != node.actor or self._takes_part(broker_id):
                continue  # others say so, or it did not just come back
            if (
                (broker_id, at) in self.without_log
                or (broker_id, at) in self.damaged
                or broker_id in change.after.last_known_eligible
            ):
                continue  # it has nothing to stay for
            others = change.registered.intersection(change.after.isr)
            if not any(self._has_served_since(each, node.started_us) for each in others):
                raise ViolationError(
                    15, f"{at}: broker {broker_id} came back and left the in-sync set to {change.after.isr}, of whom "
                    f"{sorted(others)} are registered, and none has served since",
                )  # fmt: skip

    def _has_served_since(self, broker_id: int, since_us: int) -> bool:
        node = self._nodes[broker_id]
        return node.is_up or node._is_stopping or self._died_at_us.get(broker_id, -1) >= since_us

    def _look_at_eligible(self, change: StateChange, committed_end: int, is_decided: bool) -> None:
        before, after = change.before, change.after
        were_eligible = () if before is None else before.eligible
        is_other_set = before is not None and not set(before.isr) & set(after.isr)
        if set(were_eligible) & set(after.isr) and is_other_set and not is_decided:
            self._situation("log of the only one in sync damaged, and others had all")
        if were_eligible and not after.eligible and change.writer == f"b{after.leader}":
            self._situation("leader rules the eligible out")
        self._eligible[change.key] = after.eligible
        for broker_id in set(after.eligible) - set(were_eligible):
            if (broker_id, change.at) in self.may_lack and self._takes_part(broker_id):
                raise ViolationError(16, f"{change.at}: broker {broker_id} lost its power, and is made eligible")
            self._require_eligible(broker_id, change.at, change.key, 0, committed_end)

    def _require_eligible(self, broker_id: int, at: TopicPartition, key: Key, start: int, end: int) -> None:
        if (broker_id, at) not in self.without_log:
            self._require(16, self._nodes[broker_id], at, key, start, end)

    def _require_right_writer(self, change: StateChange) -> None:
        before, after = change.before, change.after
        if after.leader is not None and (before is None or after.leader != before.leader):
            if after.controller_epoch != change.controller_epoch:
                raise ViolationError(
                    6, f"{change.at}: broker {after.leader} was elected by the controller of epoch "
                    f"{after.controller_epoch}, and there is one of epoch {change.controller_epoch}",
                )  # fmt: skip
        elif (
            before is not None
            and change.writer == f"b{after.leader}"
            and after.leader not in change.registered
            and after.isr != before.isr
        ):
            raise ViolationError(
                7, f"{change.at}: broker {after.leader} changed the in-sync set to {after.isr}, and is not registered "
                "any more",
            )  # fmt: skip

    def _elected(self, change: StateChange, is_decided: bool) -> None:
        leader = change.after.leader
        assert leader is not None
        is_due = is_decided or self._is_rightly_eligible(change) or self._has_rightly_most(change)
        if change.before is not None and leader not in change.before.isr and not is_due:
            raise ViolationError(7, f"{change.at}: broker {leader} was elected, in-sync were {change.before.isr}")
        node = self._nodes[leader]
        if self._takes_part(leader):
            self.may_lack.discard((leader, change.at))  # else it is not known yet to have died
        self._require(7, node, change.at, change.key, 0, self.of(change.key, change.at).end)

    def _has_rightly_most(self, change: StateChange) -> bool:
        """Whether the new leader was asked with those in sync that may lack something, and no other of them is there.
        That it holds all that is committed is looked at for every leader."""
        before = change.before
        if before is None or not before.unproven or change.after.leader in before.lost:
            return False
        proven = set(before.isr).difference(before.unproven, before.lost)
        return not any(self._takes_part(each) and self._nodes[each].is_up for each in proven)

    def _is_rightly_eligible(self, change: StateChange) -> bool:
        """Whether the new leader had all that is committed, and nobody in sync was there, as far as a controller can
        have known, or is missed for its log. One that has just registered again may not be known to have."""
        before = change.before
        if before is None or change.after.leader not in before.eligible:
            return False
        writer = self._nodes[int(change.writer[1:])]
        looked_us = writer.scheduler.now_us if writer.held_since_us is None else writer.held_since_us
        known = {each for each in change.registered if looked_us - self._registered_at_us[each] > _NEWS_LIMIT_US}
        return not set(before.isr) & {*known, *before.lost, *before.unproven}

    def _takes_part(self, broker_id: int) -> bool:
        """Whether its present life has registered."""
        node = self._nodes[broker_id]
        return node.life is not None and self._registered_in.get(broker_id) == node.lives

    def registered(self, broker_id: int) -> None:
        """A broker's registration was made."""
        node = self._nodes[broker_id]
        self._registered_in[broker_id] = node.lives
        self._registered_at_us[broker_id] = node.scheduler.now_us
        for key, in_sync in self.in_sync.items():
            at = self.of(key, self.committed[key].at).at
            if (broker_id, at) in self.without_log and broker_id in in_sync and len(in_sync) > 1:
                raise ViolationError(
                    7, f"{at}: broker {broker_id} registered without the log that it was in sync with, still in sync "
                    f"with {in_sync}",
                )  # fmt: skip
        if not node.was_unclean:
            return
        for in_sync in self.in_sync.values():
            if in_sync == (broker_id,):
                self._situation("unclean stop of the only one in sync")
        for key, in_sync in self.in_sync.items():
            # One that came into the set after the broker has looked at it was no reason to leave. The broker itself, if
            # it was eligible, has all that was acknowledged, and need not know that it is in sync again by now.
            new = {each for each in in_sync if self._joined_us.get((each, key), -1) >= node.started_us}
            others = set(in_sync) - {broker_id, *self._unproven.get(key, ()), *new}
            stayed = [each for each in sorted(others) if self._has_stayed(each, node, self.committed[key].at)]
            if broker_id in in_sync and stayed and broker_id not in new:
                raise ViolationError(
                    7,
                    f"{self.committed[key].at}: broker {broker_id} registered after an unclean stop, still in sync "
                    f"with {stayed}, who were registered all the time",
                )

    def _has_stayed(self, broker_id: int, returned: Node, at: TopicPartition) -> bool:
        """Whether the broker was registered, and served, all the time in which ``returned`` came back, does not stop,
        and its log has not failed. (The port of one that is registered and does not serve yet refuses, as that of a
        dead one.)"""
        other = self._nodes[broker_id]
        if not self._takes_part(broker_id) or other.life is None or not other.is_well or other._is_stopping:
            return False
        if broker_id in returned.unanswered:  # it may be dying, for all that can be seen
            return False
        if at in {TopicPartition(each.topic, each.partition) for each in other.life.hosting.failed_logs()}:
            return False
        membership = other.life.member.membership
        is_registered = membership is not None and membership.session == other.life.client.session_id
        since_us = max(self._registered_at_us[broker_id], other.served_us)
        return is_registered and other.is_up and since_us < returned.started_us

    # --- what brokers answer --------------------------------------------------------------------------------------

    def acknowledged(self, broker_id: int, request: ProduceRequest, frame: pa.Buffer, answer: ProduceResponse) -> None:
        """See `Observer`."""
        self.observe(self._nodes[broker_id])
        batch = self._history.batches[body_of(frame)]
        acknowledgement = Acknowledgement(
            batch=batch, base_offset=answer.base_offset, broker_id=broker_id, leader_epoch=answer.leader_epoch
        )
        if batch.acks == -1:
            assert request.topic_id is not None
            self._require_committed(acknowledgement, self.of((request.topic_id, request.partition), batch.at))
        self._history.acknowledge(acknowledgement)

    def _require_committed(self, acknowledged: Acknowledgement, committed: Committed) -> None:
        batch, offset = acknowledged.batch, acknowledged.base_offset
        where = committed.offset_of(batch.body)
        if where is None:
            raise ViolationError(
                1,
                f"{committed.at}: broker {acknowledged.broker_id} acknowledged {batch} at offset {offset}, "
                f"committed is only what is below {committed.end}",
            )
        if offset not in {where, -1}:
            raise ViolationError(1, f"{committed.at}: {batch} was acknowledged at offset {offset}, it is at {where}")

    def served(self, broker_id: int, request: FetchRequest, answer: Fetched) -> None:
        """See `Observer`."""
        self.observe(self._nodes[broker_id])
        ids = {(each.topic, each.partition): each.topic_id for each in request.partitions}
        for each in answer.response.partitions:
            at = TopicPartition(each.topic, each.partition)
            end = self.of((ids[at.topic, at.partition], at.partition), at).end
            if each.row >= 0 and each.next_offset > end:
                raise ViolationError(
                    4,
                    f"{at}: broker {broker_id} served up to {each.next_offset}, committed is only what is below {end}",
                )

    def offsets_listed(self, broker_id: int, request: ListOffsetsRequest, answer: ListOffsetsResponse) -> None:
        """See `Observer`."""
        for query, listed in zip(request.queries, answer.answers, strict=True):
            if listed.error is not None or query.timestamp not in {EARLIEST, LATEST}:
                continue
            assert query.at.topic_id is not None
            key = (query.at.topic_id, query.at.partition)
            by_epoch = self._listed_offsets.setdefault((key, query.timestamp), {})
            if query.timestamp == EARLIEST:
                # Another replica may have kept more; but not what was deleted for good.
                what, known = "log start", by_epoch.get(listed.leader_epoch, 0)
                known = max(known, _highest(self._deleted.get(key, {}), listed.leader_epoch))
            else:
                what, known = "latest", _highest(by_epoch, listed.leader_epoch)
            if listed.offset < known:
                raise ViolationError(
                    8,
                    f"{query.at.topic}-{query.at.partition}: {what} {listed.offset} told by broker {broker_id} "
                    f"in epoch {listed.leader_epoch}, {known} was told before",
                )
            by_epoch[listed.leader_epoch] = max(listed.offset, by_epoch.get(listed.leader_epoch, 0))

    def deleted(self, topic_id: bytes, at: TopicPartition, log_start: int, epoch: int) -> None:
        """The leader of that epoch answered a deletion of records: they are gone, whoever leads from then on."""
        by_epoch = self._deleted.setdefault((topic_id, at.partition), {})
        by_epoch[epoch] = max(log_start, by_epoch.get(epoch, 0))

    # --- what clients see -----------------------------------------------------------------------------------------

    def consumed(self, name: str, at: TopicPartition, topic_id: bytes, position: int, cell: pa.Buffer) -> int:
        """A consumer got frames for its position; its next one. Damaged ones are not taken: its checks find them."""
        committed = self.of((topic_id, at.partition), at)
        for _, piece in iter_frames(cell):
            try:
                header = verify_frame(piece, topic_id=topic_id, partition=at.partition)
            except PylogError as error:
                if any(damaged == at for _, damaged in self.damaged):
                    return position
                raise ViolationError(2, f"{at}: {name} got a damaged frame at {position}: {error}") from None
            wanted = committed.frame_at(header.base_offset)
            if wanted is None or wanted.content != crc32c(piece):
                raise ViolationError(2, f"{at}: {name} got another frame at {header.base_offset} than was committed")
            if not header.base_offset <= position < header.next_offset:
                raise ViolationError(
                    2, f"{at}: {name} at {position} got offsets {header.base_offset} to {header.last_offset}"
                )
            self._history.records_consumed += header.next_offset - position
            position = header.next_offset
        return position

    def fell_out(self, at: TopicPartition, position: int, name: str, topic_id: bytes) -> int:
        """A consumer was told that its position is out of range; where it may go on."""
        committed = self.of((topic_id, at.partition), at)
        if position > committed.end:  # it has read what is lost, rightly: nothing else was ever given to it
            return committed.end
        if position >= committed.log_start:
            held = f"committed are {committed.log_start} to {committed.end}"
            raise ViolationError(1, f"{at}: {name} at {position} is told it is out of range, {held}")
        return committed.log_start

    def refused_first(self, batch: Batch, producer_id: int, error: ErrorInfo) -> None:
        """A batch before which everything was acknowledged was refused for its sequence. That is right only where the
        producer is forgotten, because all that it ever sent was deleted, or where some of it was lost, rightly."""
        kept = [
            frame
            for key, committed in self.committed.items()
            if committed.at == batch.at
            for frame in committed.frames
            if frame.header.producer_id == producer_id and frame.next_offset > committed.log_start
        ]
        if any((key, producer_id) in self._cut_short for key, each in self.committed.items() if each.at == batch.at):
            return
        if kept or error.code != "UNKNOWN_PRODUCER_ID":
            raise ViolationError(
                3, f"{batch.at}: {batch} is the first that is not acknowledged, and refused: {error.message}"
            )

    # --- damage ---

    def damaged_by_fault(self, node: Node, path: Path, position: int) -> None:
        """A byte of a file in a log's directory was damaged while its broker was down."""
        topic, _, number = path.parent.name.rpartition("-")
        at = TopicPartition(topic, int(number))
        is_first = (node.broker_id, at) not in self.damaged
        self.damaged.add((node.broker_id, at))
        self._was_damaged.add((node.broker_id, at))
        view = node.disk.logs.get(at)
        if view is None or path.suffix != LOG_SUFFIX:
            return
        if not is_first:  # a second one may have hit what bears witness of the first
            self._shown.pop((node.broker_id, at), None)
            return
        hit = next((f for f in view.frames if f.segment == path and f.end_position > position), None)
        behind = [] if hit is None else [f for f in view.frames if f.base_offset > hit.base_offset]
        shown = max((frame.header.high_watermark for frame in behind), default=0)
        if hit is not None and shown > hit.base_offset > 0:  # a log that is set aside starts again at 0
            self._situation("bit flip that frames behind it bear witness of")
            self._shown[node.broker_id, at] = (hit.base_offset, shown)

    def lost(self, node: Node, directories: Sequence[str]) -> frozenset[tuple[int, TopicPartition]]:
        """The disk of a broker that is down lost these directories, or is as it once was. Returns the logs that were
        whole until then; for `put_back`."""
        gone = {(node.broker_id, at) for at in node.disk.logs if str(at) in directories}
        whole = gone.difference(self.may_lack, self.without_log)
        self.may_lack |= gone
        self._was_damaged |= gone
        self.without_log |= gone
        return frozenset(whole)

    def put_back(self, node: Node, directories: Sequence[str], whole: frozenset[tuple[int, TopicPartition]]) -> None:
        """Instead of these directories the disk of a broker that is down has the logs again that `lost` returned. Those
        that were in sync meanwhile, with what took their place, are older than that."""
        same = whole & self.without_log
        self.lost(node, directories)
        self.without_log -= same
        self.may_lack -= same

    def is_recovering(self) -> bool:
        """Whether some log lacks what it once had: lost with the power, or damaged and not fetched again yet."""
        for broker_id, at in sorted(self.damaged):
            node = self._nodes[broker_id]
            self.observe(node)
            view = node.disk.logs.get(at)
            key = next((key for key, committed in self.committed.items() if committed.at == at), None)
            if view is None or key is None or node.life is None or broker_id not in self.in_sync.get(key, ()):
                continue
            if not view.is_whole:
                continue  # damaged behind what is committed, and nobody has met it yet
            if self.committed[key].missing_in(view.frames, 0, self.committed[key].end) is None:
                self.damaged.discard((broker_id, at))
        return bool(self.may_lack or self.damaged)

    # --- restarts -------------------------------------------------------------------------------------------------

    def died(self, node: Node) -> None:
        """A broker's process ended; its disk is as it will find it."""
        self._died_at_us[node.broker_id] = node.scheduler.now_us
        if not self.is_durable_by_ack:
            lacking = [at for at in node.disk.logs if node.has_lost_power or str(at) in node.forgotten]
            self.may_lack.update((node.broker_id, at) for at in lacking)
            return
        before = {at: view.frames for at, view in node.disk.logs.items()}
        node.disk.refresh_all()
        self.observe(node)
        for at, claimed in node.claimed_durable.items():
            kept = [frame for frame in before.get(at, ()) if frame.next_offset <= claimed]
            lack = missing(kept, node.disk.logs[at].frames) if kept else None
            if lack is not None and (node.broker_id, at) not in self.damaged:
                raise ViolationError(12, f"{at}: broker {node.broker_id} was durable up to {claimed}: {lack}")

    def all_lost_power(self) -> None:
        """All brokers have just lost their power, all replicas in sync, without flush.mode=ack: what is lost by that is
        lost rightly."""
        for node in self._nodes.values():
            node.disk.refresh_all()
            node.disk.refresh()
        for key, in_sync in self.in_sync.items():
            at = self.of(key, self.committed[key].at).at
            views = {broker_id: self._nodes[broker_id].disk.logs.get(at) for broker_id in in_sync}
            self._left_by_power_loss[key] = {
                broker_id: () if view is None else tuple(view.frames) for broker_id, view in views.items()
            }

    def require_everything(self, node: Node) -> None:
        """Healed and quiet: every replica in sync holds everything."""
        for key, in_sync in self.in_sync.items():
            if node.broker_id in in_sync and key in self.committed:
                committed = self.committed[key]
                self._require(5, node, committed.at, key, 0, committed.end)

    # --- within ---------------------------------------------------------------------------------------------------

    def of(self, key: Key, at: TopicPartition) -> Committed:
        """What is committed in a partition."""
        found = self.committed.get(key)
        if found is None:
            found = self.committed[key] = Committed(at)
        return found

    def _require(self, number: int, node: Node, at: TopicPartition, key: Key, start: int, end: int) -> None:
        """That a broker's log holds what is committed in the range, on the device under flush.mode=ack."""
        if (node.broker_id, at) in self.damaged or (node.broker_id, at) in self.may_lack:
            return
        committed = self.committed[key]
        if not committed.between(start, end):
            return
        if node.files.written_from:
            self.observe(node)
        view = node.disk.logs.get(at)
        frames: Sequence = () if view is None else view.frames
        lack = committed.missing_in(frames, start, end)
        if lack is None and self.is_durable_by_ack and view is not None:
            durable_end = max(view.durable_end(node.files), committed.log_start)
            if durable_end < end:
                lack = f"only what is below {durable_end} is on the device"
        if lack is not None:
            raise ViolationError(
                number, f"{at}: broker {node.broker_id} must hold what is committed, {start} to {end}: {lack}"
            )


def _highest(by_epoch: Mapping[int, int], epoch: int) -> int:
    """Of what was listed in that epoch or before it. A leader of an older one may not know what came later."""
    return max((offset for each, offset in by_epoch.items() if each <= epoch), default=0)
