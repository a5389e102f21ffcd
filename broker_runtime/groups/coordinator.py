"""The coordinator of one broker's groups: it answers from memory, and one loop writes what changes.

    heartbeat, leave, commit's end ──▶ touched groups ──▶ step(): plan ──▶ write members ──▶ adopt; then announced
    topics that changed, deadlines ──▶ all groups a few times a second

Rules: a heartbeat costs no call to ZooKeeper. Whatever is announced to members is in ZooKeeper first, written in a
transaction that checks the claim. A write whose outcome is unknown is read back; what was planned and not written is
planned again. Members that joined together are planned for together. No lock is held during a call to ZooKeeper.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from broker_runtime.contract.errors import (
    GroupIdNotFoundError,
    InvalidRequestError,
    PylogError,
    UnknownMemberIdError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.requests import (
    JOINS,
    DescribeGroupResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    GroupInfo,
)
from broker_runtime.contract.waiting import Backoff, Signal
from broker_runtime.groups.group import REST_MS, Plan
from broker_runtime.groups.hosted import HostedGroup, HostedGroups
from broker_runtime.groups.shares import TopicShape
from broker_runtime.zookeeper.cluster_state import ClusterState
from broker_runtime.zookeeper.guarded import Guard, GuardFailedError, Planned, change
from broker_runtime.zookeeper.session import Create, Operation, Set, ZooKeeperClient
from broker_runtime.zookeeper.znodes import group_members_path, to_compact_json

_logger = logging.getLogger(__name__)

VERIFY_MS: Final = 2_000
LOOK_MS: Final = 250
"""How often every group is checked for deadlines that passed and topics that changed."""
_FORGET_MS: Final = 10_000
_FIRST_RETRY_S: Final = 0.25  # while ZooKeeper is away
_LONGEST_RETRY_S: Final = 1.0
_TOO_LARGE_MS: Final = 10_000
_DEFECT_MS: Final = 10_000
_REST_MS_FOR_EACH: Final = 5

PartitionOf = tuple[str, bytes | None, int]
"""Topic, its id (None: whichever topic has the name), partition."""


class GroupCoordinator:
    """See the module. `step` on one thread; the rest from any."""

    def __init__(
        self,
        client: ZooKeeperClient,
        groups: HostedGroups,
        cluster: Callable[[], ClusterState],
        *,
        broker_id: int,
        steady_ms: Callable[[], int],
        wall_ms: Callable[[], int],
    ) -> None:
        """``cluster``: as this broker knows it. ``steady_ms``: a clock that never jumps."""
        self._client = client
        self._groups = groups
        self._cluster = cluster
        self._broker_id = broker_id
        self._steady_ms = steady_ms
        self._wall_ms = wall_ms
        self._lock = threading.Lock()  # guards _touched; no other lock is taken with it
        self._touched: set[str] = set()
        self._signal = Signal()
        # Used by the loop alone.
        self._backoff = Backoff(first_s=_FIRST_RETRY_S, limit_s=_LONGEST_RETRY_S)
        self._verify_at_ms = self._look_at_ms = self._forget_at_ms = self._write_at_ms = steady_ms()
        self._resting: dict[str, int] = {}  # groups that cannot be written, and until when they rest
        self._known: tuple[ClusterState, Mapping[str, TopicShape]] = (ClusterState(), {})

    # --- requests ---------------------------------------------------------------------------------------------

    def heartbeat(self, request: GroupHeartbeatRequest) -> GroupHeartbeatResponse:
        """See `Group.heartbeat`. Waits for ZooKeeper only if the group has to be loaded first.

        Raises as `Group.heartbeat` and `HostedGroups.load`, and `CoordinatorNotAvailableError` while it is unknown
        whether this broker still is the coordinator: no lease is extended then.
        """
        hosted = self._groups.load(request.group_id, creates=request.member_epoch == JOINS)
        if hosted is None:
            raise _no_member(request.group_id, request.member_id)
        with hosted.lock:
            now_ms = self._steady_ms()
            hosted.require_standing(now_ms)
            response = hosted.group.heartbeat(request, now_ms)
        if request.member_epoch < 0 or not response.is_settled:
            self._touch(hosted)
        return response

    @contextmanager
    def committing(
        self, group_id: str, member_id: str, member_epoch: int, sequence: int, partitions: Sequence[PartitionOf]
    ) -> Iterator[tuple[list[PylogError | None], Guard]]:
        """For the time in which a commit is written: which partitions' offsets may be written (None), and under which
        guard. Meanwhile no other member gets a partition of this one.

        Raises as `Group.begin_commit` and `heartbeat`.
        """
        hosted = self._groups.load(group_id, creates=not member_id)
        if hosted is None:
            raise _no_member(group_id, member_id)
        with hosted.lock:
            now_ms = self._steady_ms()
            hosted.require_standing(now_ms)
            refusals = hosted.group.begin_commit(member_id, member_epoch, sequence, partitions, now_ms)
            hosted.commits_under_way += 1
        try:
            yield refusals, hosted.claim.guard
        finally:
            with hosted.lock:
                hosted.commits_under_way -= 1
                hosted.group.end_commit(member_id, partitions)
                is_due = hosted.group.is_due(self._steady_ms())
            if is_due:
                self._touch(hosted)

    def guard(self, group_id: str) -> Guard | None:
        """The guard for a read that must return the group's latest offsets; None: there is no such group. Raises as
        `HostedGroups.load`."""
        hosted = self._groups.load(group_id, creates=False)
        if hosted is None:
            return None
        with hosted.lock:
            hosted.require_standing(self._steady_ms())
            return hosted.claim.guard

    def describe(self, group_id: str) -> DescribeGroupResponse:
        """The group as its coordinator sees it. Raises `GroupIdNotFoundError`, and as `HostedGroups.load`."""
        hosted = self._groups.load(group_id, creates=False)
        if hosted is None:
            raise GroupIdNotFoundError(f"no group {group_id!r}")
        shapes = self._shapes()
        with hosted.lock:
            now_ms = self._steady_ms()
            hosted.require_standing(now_ms)
            members = tuple(hosted.group.members(now_ms, shapes))
            return DescribeGroupResponse(group=self._info(hosted), epoch=hosted.group.epoch, members=members)

    def known(self, group_id: str) -> GroupInfo | None:
        """The group, if this broker coordinates it and has it in memory. Never waits for ZooKeeper."""
        hosted = self._groups.find(group_id)
        if hosted is None:
            return None
        with hosted.lock:
            return self._info(hosted)

    def remove_members(self, group_id: str, members: Sequence[str]) -> None:
        """See `Group.remove`. Raises as that and `HostedGroups.load`."""
        hosted = self._groups.load(group_id, creates=False)
        if hosted is None:
            raise GroupIdNotFoundError(f"no group {group_id!r}")
        with hosted.lock:
            hosted.require_standing(self._steady_ms())
            hosted.group.remove(members)
        self._touch(hosted)

    # --- the loop ---------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Ends a `wait` at once. Never blocks."""
        self._signal.set()

    def wait(self) -> None:
        """Blocks until there is something to do, for `LOOK_MS` at most."""
        self._signal.wait(LOOK_MS / 1_000)

    def step(self) -> None:
        """Verifies the claims, then writes the next state of each group touched since the last step, and of all groups
        once per `LOOK_MS`. Blocks on ZooKeeper for a bounded time; a later step tries again what fails."""
        now_ms = self._steady_ms()
        with self._lock:
            touched, self._touched = self._touched, set()
        if not self._client.is_connected or now_ms < self._write_at_ms:
            self._touch_again(touched)
            return
        try:
            self._maybe_verify()
            for hosted in self._due(touched, now_ms):
                self._maybe_verify()
                self._update_or_rest(hosted)
                touched.discard(hosted.group_id)
            self._backoff.reset()
        except ZooKeeperUnavailableError as error:
            event(_logger, "write groups", level=logging.WARNING, error=error)
            self._write_at_ms = self._steady_ms() + round(self._backoff.next_s() * 1_000)
            self._touch_again(touched)
        if now_ms >= self._forget_at_ms:
            self._forget_at_ms = now_ms + _FORGET_MS
            self._groups.forget_idle()
            self._resting = {name: until for name, until in self._resting.items() if until > now_ms}

    # --- private ----------------------------------------------------------------------------------------------

    def _info(self, hosted: HostedGroup) -> GroupInfo:
        group = hosted.group
        return GroupInfo(
            group_id=hosted.group_id,
            state=group.state,
            kind=group.kind,
            members=len(group.present),
            coordinator=self._broker_id,
        )

    def _touch(self, hosted: HostedGroup) -> None:
        self._touch_again({hosted.group_id})
        self.wake()

    def _touch_again(self, group_ids: set[str]) -> None:
        with self._lock:
            self._touched |= group_ids

    def _due(self, touched: set[str], now_ms: int) -> list[HostedGroup]:
        if now_ms >= self._look_at_ms:
            self._look_at_ms = now_ms + LOOK_MS
            groups = self._groups.all()
            # At rest, all members together send this broker at most 200 heartbeats a second.
            rest_ms = max(REST_MS, _REST_MS_FOR_EACH * sum(hosted.group.size for hosted in groups))
            for hosted in groups:
                hosted.group.rest_ms = rest_ms
            return groups
        found = [self._groups.find(group_id) for group_id in sorted(touched)]
        return [hosted for hosted in found if hosted is not None]

    def _maybe_verify(self) -> None:
        now_ms = self._steady_ms()
        if now_ms >= self._verify_at_ms:
            self._verify_at_ms = now_ms + VERIFY_MS
            self._groups.verify()

    def _shapes(self) -> Mapping[str, TopicShape]:
        cluster = self._cluster()
        known, shapes = self._known
        if cluster is not known:
            shapes = {
                name: TopicShape(topic.record.topic_id, len(topic.record.assignment))
                for name, topic in cluster.topics.items()
            }
            if shapes == self._known[1]:
                shapes = self._known[1]  # the same object: nothing that matters to groups has changed
            self._known = cluster, shapes
        return shapes

    def _update_or_rest(self, hosted: HostedGroup) -> None:
        """A defect that one group triggers stops changes of this group for a while, and not those of all groups of this
        broker and of its successors."""
        try:
            self._update(hosted)
        except PylogError:
            raise
        except Exception as error:  # noqa: BLE001 - a loop's boundary: the traceback goes to the log
            event(
                _logger,
                "plan group",
                level=logging.ERROR,
                exc_info=error,
                group=hosted.group_id,
                again_ms=_DEFECT_MS,
                error=error,
            )
            self._resting[hosted.group_id] = self._steady_ms() + _DEFECT_MS

    def _update(self, hosted: HostedGroup) -> None:
        now_ms = self._steady_ms()
        if now_ms < self._resting.get(hosted.group_id, now_ms):
            return
        shapes = self._shapes()
        with hosted.lock:
            if hosted.is_dropped or hosted.is_being_removed:
                return
            if not hosted.group.is_due(now_ms) and hosted.planned_with is shapes:
                return
            plan = hosted.group.plan(shapes, now_ms)
        if plan is None or self._write(hosted, plan):
            # Not earlier: what was planned and not written is planned again, whatever it was for.
            hosted.planned_with = shapes
        else:
            self._touch(hosted)

    def _write(self, hosted: HostedGroup, plan: Plan) -> bool:
        """Writes the plan and adopts it; False: it has to be planned again."""
        record = plan.record
        if not record.members:
            record = msgspec.structs.replace(record, empty_since_ms=self._wall_ms())
        path, data, is_first = group_members_path(hosted.group_id), b"", True

        def plan_write() -> Planned[int | None]:
            nonlocal is_first
            if is_first:
                is_first, version = False, hosted.members_version
                operation: Operation = Create(path, data) if version is None else Set(path, data, version)
                return Planned(0 if version is None else version + 1, [operation])
            # It may have been written, or was refused because of an earlier write whose answer was lost. No member
            # knows of that one, and the next plan replaces it.
            node = self._client.find(path)
            hosted.members_version = None if node is None else node.version
            return Planned(hosted.members_version if node is not None and node.data == data else None)

        try:
            data = to_compact_json(record, path)
            # Two attempts, and no wait for a connection: the next step tries again with a plan that is up to date.
            version = change(self._client, plan_write, what=path, guard=hosted.claim.guard, attempts=2)
        except GuardFailedError:
            self._groups.drop(hosted)
            return True
        except InvalidRequestError as error:
            event(_logger, "write members", level=logging.ERROR, group=hosted.group_id, error=error)
            self._resting[hosted.group_id] = self._steady_ms() + _TOO_LARGE_MS
            return False
        if version is None:
            return False
        hosted.members_version = version
        return self._adopt(hosted, plan)

    def _adopt(self, hosted: HostedGroup, plan: Plan) -> bool:
        with hosted.lock:
            hosted.group.adopt(plan)
        self._touch(hosted)
        return True


def _no_member(group_id: str, member_id: str) -> UnknownMemberIdError:
    return UnknownMemberIdError(f"group {group_id!r} has no member {member_id!r} at present")
