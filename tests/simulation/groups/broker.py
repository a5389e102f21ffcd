"""A broker that coordinates groups, in the simulation: the real claims, machine, loop and offsets over a ZooKeeper in
simulated time. It has no log and leads nothing; what it knows of the cluster it reads now and then.

Rule: only what is in ZooKeeper goes from one life into the next. Each request runs on a thread of its own, as others go
on while one waits for ZooKeeper.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.requests import (
    AlterGroupOffsetsRequest,
    CommitOffsetsRequest,
    FetchOffsetsRequest,
    FindCoordinatorRequest,
    GroupHeartbeatRequest,
    RemoveGroupMembersRequest,
)
from broker_runtime.groups.claims import Claims
from broker_runtime.groups.coordinator import GroupCoordinator
from broker_runtime.groups.group import Limits
from broker_runtime.groups.hosted import HostedGroup, HostedGroups
from broker_runtime.groups.member import Partition
from broker_runtime.groups.offsets import OffsetStore
from broker_runtime.groups.removal import GroupRemoval
from broker_runtime.services.caller import Caller
from broker_runtime.services.groups import GroupService
from broker_runtime.zookeeper.cluster_state import ClusterState, read_cluster
from broker_runtime.zookeeper.membership import BrokerIdentity, Membership, deregister, register
from broker_runtime.zookeeper.session import SessionState, ZNodeError
from tests.callers import CLIENT
from tests.simulation.groups.ensemble import Client, Ensemble
from tests.simulation.simulator.scheduler import MS, Crashed, Event, Scheduler
from tests.simulation.simulator.trace import Trace

_LIMITS = Limits(min_session_ms=1_000, max_session_ms=60_000, max_members=20)
_LOOK_US = 250 * MS
_STEP_US = 400 * MS
_SUPERVISOR = "supervisor"
_STEP_PAUSE_US = 30 * MS  # so that members that join together are planned for together
_METHODS: dict[type[msgspec.Struct], str] = {
    GroupHeartbeatRequest: "group_heartbeat",
    CommitOffsetsRequest: "commit_offsets",
    FetchOffsetsRequest: "fetch_offsets",
    FindCoordinatorRequest: "find_coordinator",
    RemoveGroupMembersRequest: "remove_group_members",
    AlterGroupOffsetsRequest: "alter_group_offsets",
}
EPOCH_MS = 1_700_000_000_000


class LoopCoordinator(GroupCoordinator):
    """The real one; nobody waits in it; ``on_wake`` is called when somebody should."""

    on_wake: Callable[[], None] = staticmethod(lambda: None)

    def wake(self) -> None:
        super().wake()
        self.on_wake()


class NestedLock:
    """A lock on the one thread of the simulation: whoever has it waits below on the stack, so it is not waited for."""

    def __init__(self) -> None:
        self._is_taken = False

    def acquire(self, timeout: float = -1) -> bool:
        """Whether nobody has it."""
        if self._is_taken:
            return False
        self._is_taken = True
        return True

    def release(self) -> None:
        """The next may have it."""
        self._is_taken = False


class NestedEvent(threading.Event):
    """An event on the one thread: whoever is to set it waits below on the stack, so it is not waited for."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


class Life:
    """What one process has in memory."""

    def __init__(self, broker: Broker, client: Client) -> None:
        self.client = client
        self.membership: Membership | None = None
        self.cluster = ClusterState()
        client.listen(self._on_session)
        self.claims = Claims(
            client,
            membership=lambda: self.membership,
            brokers=lambda: self.cluster.brokers,
            refuses=broker.probe,
            steady_ms=broker.steady_ms,
        )
        self.groups = HostedGroups(
            client, self.claims, _LIMITS, membership=lambda: self.membership, steady_ms=broker.steady_ms
        )
        self.groups._loading = [NestedLock()] * len(self.groups._loading)  # type: ignore[list-item]
        self.coordinator = LoopCoordinator(
            client,
            self.groups,
            lambda: self.cluster,
            broker_id=broker.broker_id,
            steady_ms=broker.steady_ms,
            wall_ms=broker.wall_ms,
        )
        self.coordinator.on_wake = broker.step_soon
        store = OffsetStore(client)
        removal = GroupRemoval(
            client, self.claims, self.groups, store, broker_id=broker.broker_id, retention_ms=86_400_000,
            steady_ms=broker.steady_ms, believed_ms=broker.wall_ms,
        )  # fmt: skip
        self.service = GroupService(
            client,
            lambda: self.cluster,
            claims=self.claims,
            coordinator=self.coordinator,
            removal=removal,
            store=store,
            wall_ms=broker.wall_ms,
        )
        self.is_step_due = False
        self.next_step_us = 0

    def _on_session(self, news: SessionState) -> None:
        if news is SessionState.LOST:
            self.membership = None


class Broker:
    """See the module. ``refuses``: whether another broker's port refuses, asked over the network."""

    def __init__(
        self,
        broker_id: int,
        scheduler: Scheduler,
        trace: Trace,
        zookeeper: Ensemble,
        refuses: Callable[[str, int], bool],
    ) -> None:
        self.broker_id = broker_id
        self.actor = f"b{broker_id}"
        self.life: Life | None = None
        self.refuses_connections = False  # new ones; those that there are go on
        self._scheduler = scheduler
        self._trace = trace
        self._zookeeper = zookeeper
        self._refuses = refuses
        self._steady_offset_ms = scheduler.rng.randrange(1_000_000)
        self._lives = 0
        self._restart_us = 0

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self, delay_us: int = 0) -> None:
        """A process is started, if none is there."""
        self._scheduler.after(delay_us, _SUPERVISOR, self._launch)

    def kill(self) -> None:
        """The process ends where it stands."""
        if self.life is not None:
            self._scheduler.end_life(self.actor)
            self._zookeeper.process_died(self.actor)
            self.life = None

    def restart(self, delay_us: int) -> None:
        """The process ends in order, so its groups are others' at once; another is started in ``delay_us``, or when
        this one has ended if that takes longer."""
        self._restart_us = self._scheduler.now_us + delay_us
        self._scheduler.after(0, self.actor, self._stop, thread="member")
        self.start(delay_us)

    def pause(self, duration_us: int) -> None:
        """The process stands still."""
        self._scheduler.pause(self.actor, duration_us)
        self._zookeeper.silent_for(self.actor, duration_us)

    def run(self, event: Event) -> None:
        """Runs an event of this broker."""
        try:
            event.action()
        except Crashed:
            return

    def steady_ms(self) -> int:
        """The broker's steady clock."""
        return self._scheduler.now_us // MS + self._steady_offset_ms

    def wall_ms(self) -> int:
        """The time of day."""
        return EPOCH_MS + self._scheduler.now_us // MS

    def probe(self, host: str, port: int) -> bool:
        """Whether the other broker's port refuses."""
        self._scheduler.block(self._scheduler.between(200, 2 * MS))
        return self._refuses(self.actor, port)

    def step_soon(self) -> None:
        """The groups' loop has something to do."""
        life = self.life
        if life is not None and not life.is_step_due:
            life.is_step_due = True
            self._scheduler.after(
                max(0, life.next_step_us - self._scheduler.now_us), self.actor, self._step, thread="groups"
            )

    def coordinates(self, group_id: str) -> bool:
        """Whether it takes itself for the group's coordinator."""
        return self.life is not None and self.life.groups.find(group_id) is not None

    def waits_for_release(self, group_id: str, partition: Partition) -> bool:
        """Whether it wants a member of the group to release the partition, and the member has not done so yet."""
        groups = [each.group for each in self.hosted if each.group_id == group_id]
        return any(partition in member.releasing for group in groups for member in group._members.values())

    def epoch_of(self, group_id: str) -> int:
        """Of the claim under which it has the group in memory; -1: it has not."""
        return next((each.claim.version for each in self.hosted if each.group_id == group_id), -1)

    @property
    def hosted(self) -> list[HostedGroup]:
        """The groups that it has in memory."""
        return [] if self.life is None else list(self.life.groups._groups.values())

    # --- requests -------------------------------------------------------------------------------------------------

    def answer(self, request: msgspec.Struct) -> object:
        """The answer to a request of a client. Raises `PylogError`."""
        life = self.life
        assert life is not None
        method: Callable[[Caller, msgspec.Struct], object] = getattr(life.service, _METHODS[type(request)])
        return method(CLIENT, request)

    # --- within ---------------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        if self.life is not None:
            return
        self._lives += 1
        self.life = Life(self, self._zookeeper.connect(self.actor))
        self._trace.line(self.actor, f"starts, life {self._lives}")
        self._scheduler.after(0, self.actor, self._member_step, thread="member")
        self._scheduler.after(0, self.actor, self._look, thread="groups")

    def _member_step(self) -> None:
        life = self.life
        if life is None:
            return
        self._scheduler.after(_STEP_US, self.actor, self._member_step, thread="member")
        try:
            self._be_registered(life)
            life.cluster = read_cluster(life.client)
        except (PylogError, ZNodeError) as error:
            self._trace.line(self.actor, f"does not know the cluster: {type(error).__name__}")

    def _be_registered(self, life: Life) -> None:
        session = life.client.session_id
        if life.membership is None or life.membership.session != session:
            identity = BrokerIdentity(
                broker_id=self.broker_id, host=self.actor, port=self.broker_id, instance=self.actor, pid=self._lives,
                boot_id="", software_version="simulated", was_clean=True,
            )  # fmt: skip
            found = register(life.client, identity, now_ms=self.wall_ms())
            if life.client.session_id == found.session:
                life.membership = found

    def _look(self) -> None:
        self._scheduler.after(_LOOK_US, self.actor, self._look, thread="groups")
        self.step_soon()

    def _step(self) -> None:
        life = self.life
        assert life is not None
        life.is_step_due = False
        life.coordinator.step()
        life.next_step_us = self._scheduler.now_us + _STEP_PAUSE_US

    def _stop(self) -> None:
        life = self.life
        if life is None:
            return
        try:
            life.groups.give_up()
            if life.membership is not None:
                deregister(life.client, life.membership)
        except (PylogError, ZNodeError) as error:
            self._trace.line(self.actor, f"could not leave: {type(error).__name__}")
        life.client.close()
        self.kill()
        if self._scheduler.now_us >= self._restart_us:
            self.start()  # the other was to be started while this one still ran
