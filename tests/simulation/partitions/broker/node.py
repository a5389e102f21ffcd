"""One broker in the simulation: the real log, partitions, membership and services, and the events that drive them.

A node has one disk and many lives. Rule: only what is on the disk and in ZooKeeper goes from one life into the next.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import LogEndsRequest, LogEndsResponse
from broker_runtime.contract.settings import BrokerSettings, resolve
from broker_runtime.contract.streams import FetchHello, FetchRequest
from broker_runtime.services.caller import Caller, admit_replica
from broker_runtime.zookeeper.session import ZNodeError
from tests.simulation.partitions.broker.disk import SimFiles
from tests.simulation.partitions.broker.life import DATA, LAG_LIMIT_MS, Life, NodeObserver, Peers
from tests.simulation.partitions.log_view import DiskView
from tests.simulation.simulator.scheduler import MS, SECOND, Crashed, Event
from tests.simulation.simulator.stacks import StackScheduler
from tests.simulation.simulator.trace import Trace
from tests.simulation.simulator.zookeeper import SimClient, SimZooKeeper

EPOCH_MS = 1_700_000_000_000
_CHECKPOINT_US = 5 * SECOND
_MEMBER_STEP_US = 2 * SECOND
_FLUSH_US = 500 * MS
_PROBE_US = SECOND
_HAND_OVER_US = 3 * SECOND
_RESTART_US = (500 * MS, 3 * SECOND)
_SUPERVISOR = "supervisor"  # whatever starts processes on the brokers' hosts


class Node:
    """See the module. Calls that change its state come from events of the simulation."""

    def __init__(
        self,
        broker_id: int,
        *,
        scheduler: StackScheduler,
        trace: Trace,
        zookeeper: SimZooKeeper,
        observer: NodeObserver,
        topic_ids: dict[str, list[bytes]],
        peers: Peers,
        make_life: type[Life] = Life,
    ) -> None:
        self.broker_id = broker_id
        self.actor = f"b{broker_id}"
        self.scheduler = scheduler
        self.rng = scheduler.rng
        self.trace = trace
        self.observer = observer
        self.peers = peers
        self._make_life = make_life
        self.settings = resolve("broker", {"broker.id": str(broker_id), "log.dirs": str(DATA)})
        assert isinstance(self.settings, BrokerSettings)
        self.files = SimFiles(self._wait_for_disk, self._crash_by_disk)
        self.disk = DiskView(self.files, topic_ids)
        self.life: Life | None = None  # None: no process
        self.is_up = False  # whether it serves
        self.lives = 0
        self.started_us = 0
        self.served_us = 0  # since when, if it is up
        self.held_since_us: int | None = None  # as the controller, between its look and its write: goes by what it saw
        self.boots = 0
        self.clock_offset_ms = 0
        self.usual_sync_us = (100, 600)
        self.sync_us = self.usual_sync_us
        self.stall_us = 0  # the next fsync takes so much longer
        self.stalled_until_us = 0
        self.refuses_until_us = 0  # its port does, though it runs
        self.unanswered: set[int] = set()  # the brokers that did not answer this one in its present life
        self.should_run = False
        self.was_unclean = False
        self.has_lost_power = False  # at the end of the last life
        self.forgotten: set[str] = set()  # the logs of which it then lost what a failed fsync had not written
        self.is_retired = False
        self._is_stopping = False
        self._is_closing = False  # its logs, with a clean mark at the end
        self.claimed_durable: dict[TopicPartition, int] = {}
        """What the last life said was on the device when it ended."""
        self._zookeeper = zookeeper

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self, delay_us: int = 0) -> None:
        """A process is started, as soon as the one that stops has ended, and again whenever it does not come up."""
        self.should_run = True
        self.scheduler.after(delay_us, _SUPERVISOR, self._launch)

    def kill(self, *, power_lost: bool, memory_lost: bool = False) -> None:
        """The process ends where it stands; with the power what was not fsynced may go, with the memory what a failed
        fsync left in it."""
        if self.life is None and not self.files.is_dead and not self.should_run:
            return
        self.observer.observe(self)
        self.claimed_durable = self._claims()
        self.scheduler.end_life(self.actor)
        self._zookeeper.process_died(self.actor)
        self.files.die(self.rng, power_lost=power_lost)
        self.forgotten = {path.parent.name for path in self.files.forget()} if memory_lost else set()
        self.boots += power_lost
        self.was_unclean = self.was_unclean or self.life is not None  # else it had stopped in order before
        self.life = None
        self.is_up = False
        self.should_run = False
        self.has_lost_power = power_lost
        self.observer.died(self)

    def stop(self, *, hand_over: bool = False) -> None:
        """The process is stopped in order, ``hand_over``: when others lead what it led, or after a while."""
        self.should_run = False
        self._is_stopping = True
        if hand_over:
            self.scheduler.after(0, self.actor, self._begin_stopping, thread="member")
        else:
            self.scheduler.after(0, self.actor, self._stop, thread="member")

    def pause(self, duration_us: int) -> None:
        """The process stands still."""
        self.scheduler.pause(self.actor, duration_us)
        self._zookeeper.silent_for(self.actor, duration_us)

    def now_ms(self) -> int:
        """The broker's own clock."""
        return EPOCH_MS + self.scheduler.now_us // MS + self.clock_offset_ms

    def run(self, event: Event) -> None:
        """Runs an event of this broker."""
        try:
            event.action()
        except Crashed:
            return

    def after_event(self) -> None:
        """What one of its events has set off."""
        if self.life is not None:
            self.life.serving.after_event()
            self.life.followers.after_event()

    @property
    def is_well(self) -> bool:
        """Whether it runs, and reaches ZooKeeper."""
        is_connected = self.life is not None and self.life.client.is_connected
        return is_connected and not self.scheduler.is_paused(self.actor)

    @property
    def has_offline_logs(self) -> bool:
        """Whether it needs to be restarted, after an error of its disk."""
        return self.life is not None and any(log.is_offline and not log.is_damaged for log in self.life.directory.logs)

    def look_at_disk(self) -> None:
        """Looks whether its disk has room, as a broker does each second."""

        def look() -> None:
            if self.life is None:
                return
            self.life.hosting.look_at_disk(self.life.directory)
            if any(trouble == "full" for trouble, _ in self.life.hosting.troubles().values()):
                self.trace.situation("disk refuses records for want of room")

        self.scheduler.after(0, self.actor, look, thread="periodic")

    # --- other brokers --------------------------------------------------------------------------------------------

    def ask_leader(
        self,
        leader: int,
        request: FetchRequest,
        session: str,
        hello: FetchHello | None,
        on_answer: Callable[[object], None],
        on_failure: Callable[[str], None],
        timeout_us: int,
    ) -> None:
        """A follower's fetch in a session; ``hello``: the first, which opens it."""

        def handle(life: Life, reply: Callable[[object], None]) -> None:
            if hello is not None:
                caller = Caller(client_id=hello.client_id, address=self.actor)
                life.followers.open(session, admit_replica(caller, hello, life.member.state.brokers))
            life.followers.fetch(session, request, reply)

        self.peers.call(
            self.actor,
            leader,
            handle,
            on_answer=on_answer,
            on_failure=on_failure,
            timeout_us=timeout_us,
            reply_thread=f"fetch {leader}",
            what="fetch",
        )

    def probe(self, host: str, port: int) -> bool:
        """Whether the other broker's port refuses."""
        self.scheduler.block(self.scheduler.between(200, 2 * MS))
        return self.peers.refuses(self.actor, port)

    def answers(self, host: str, port: int) -> bool:
        """Whether the other broker serves."""
        self.scheduler.block(self.scheduler.between(200, 2 * MS))
        if not self.peers.answers(self.actor, port):
            self.unanswered.add(port)
            return False
        return True

    def suspect(self, broker_id: int) -> None:
        """A connection to the other broker broke, or somebody says so."""
        if self.life is not None:
            self.life.member.suspect(broker_id)
            self._step_soon()

    def diverges(self, is_by_epoch_alone: bool) -> None:
        """A leader says that a log here parts from its own."""
        if is_by_epoch_alone:
            self.trace.situation("epochs part where offsets do not")

    def found_damage(self) -> None:
        """A log turned out to be damaged."""
        self.trace.situation("log refused as damaged")
        if self.life is not None:
            self.life.member.wake()
            self.life.isr_updater.wake()
            self._step_soon()

    def report(self, broker_id: int) -> None:
        """Reports a broker whose port refuses to the controller."""
        controller = None if self.life is None else self.life.member.state.controller
        if controller is not None and controller.broker_id != self.broker_id:
            self.peers.call(
                self.actor,
                controller.broker_id,
                lambda life, reply: reply(life.suspect(broker_id)),
                on_answer=lambda answer: None,
                on_failure=lambda reason: None,
                timeout_us=SECOND,
                thread="probe",
            )

    def ask_log_ends(self, broker_id: int, request: LogEndsRequest) -> LogEndsResponse | None:
        """Asks a broker how far its logs go, another one over the network; None: no answer in a second."""
        if broker_id == self.broker_id:
            return None if self.life is None else self.life.member.log_ends(request)
        answers: list[object] = []
        self.peers.call(
            self.actor,
            broker_id,
            lambda life, reply: reply(life.member.log_ends(request)),
            on_answer=answers.append,
            on_failure=lambda reason: answers.append(None),
            timeout_us=SECOND,
            thread="log ends",
        )
        deadline_us = self.scheduler.now_us + SECOND
        while not answers and self.scheduler.now_us < deadline_us:
            self.scheduler.block(MS)
        answer = answers[0] if answers else None
        assert answer is None or isinstance(answer, LogEndsResponse)
        return answer

    def update_in_sync_soon(self) -> None:
        """An in-sync set can change."""
        life = self.life
        if life is None or life.is_updating:
            return
        life.is_updating = True

        def step() -> None:
            life.is_updating = False
            life.isr_updater.wait(0)
            life.isr_updater.step(self.scheduler.now_us // MS)

        self.scheduler.after(self.scheduler.between(0, 20 * MS), self.actor, step, thread="in-sync")

    # --- within ---------------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        """Not in the broker's own life: what it has still to do ends with it."""
        if not self.should_run:
            return
        if self.life is None:
            self.scheduler.after(0, self.actor, self._start, thread="*")
        elif self._is_stopping:
            self.scheduler.after(_RESTART_US[0], _SUPERVISOR, self._launch)

    def _start(self) -> None:
        if self.life is not None or not self.should_run:
            return
        self._is_stopping = False
        self.files.revive()
        self.lives += 1
        self.started_us = self.scheduler.now_us
        self.unanswered.clear()
        if self.files.has_failed_sync:
            self.files.has_failed_sync = False
            self.trace.situation("failed fsync, then a restart")
        self.trace.line(self.actor, f"start, life {self.lives}")
        client = self._zookeeper.connect(self.actor)
        try:
            life = self.life = self._make_life(self, client)
            if self._is_closing and life.directory.was_clean:
                self.was_unclean = False  # the last life ended behind its clean mark
            self._is_closing = False
            life.client.on_news = self._step_soon
            life.member.join()
        except (PylogError, ZNodeError, OSError) as error:
            self.trace.line(self.actor, f"cannot start: {error}")
            self._restart(client)
            return
        self.was_unclean = False
        self.is_up = True
        self.served_us = self.scheduler.now_us
        self.trace.line(self.actor, "serves")
        self._step_soon()
        self._every(_CHECKPOINT_US, self._checkpoint, "periodic")
        self._every(_FLUSH_US, self._flush, "periodic")
        self._every(_MEMBER_STEP_US, self._step, "member")
        self._every(LAG_LIMIT_MS * MS // 2, self.update_in_sync_soon, "in-sync")
        self._every(_PROBE_US, self._probe, "probe")
        life.serve(self)

    def _restart(self, client: SimClient) -> None:
        client.close()
        self.claimed_durable = self._claims()
        self.was_unclean = self.was_unclean or self.life is not None
        self.life = None
        self.is_up = False
        self.files.kill()
        self.scheduler.end_life(self.actor)
        self.scheduler.after(self.scheduler.between(*_RESTART_US), self.actor, self._start, thread="*")

    def _begin_stopping(self) -> None:
        life = self.life
        if life is None or not self._is_stopping:  # another life than was to be stopped
            return
        life.member.begin_stopping()
        deadline_us = self.scheduler.now_us + _HAND_OVER_US

        def look() -> None:
            if self.life is life:
                life.member.step(0)
                if life.member.led_for_others == 0 or self.scheduler.now_us >= deadline_us:
                    self._stop()
                else:
                    self.scheduler.after(100 * MS, self.actor, look, thread="member")

        look()

    def _stop(self) -> None:
        life = self.life
        if life is None or not self._is_stopping:
            return
        self.trace.line(self.actor, "stops")
        self.is_up = False
        life.member.leave()
        self._is_closing = True
        try:
            life.directory.close()
            self.claimed_durable = {}
            self.was_unclean = self._is_closing = False
        except (PylogError, OSError) as error:
            self.trace.line(self.actor, f"stops without a clean mark: {error}")
            self.claimed_durable = self._claims()
            self.was_unclean = True
        life.client.close()
        self.files.kill()
        self.life = None
        self.scheduler.end_life(self.actor)

    def _step_soon(self) -> None:
        life = self.life
        if life is None or life.is_stepping:
            return
        life.is_stepping = True

        def step() -> None:
            life.is_stepping = False
            self._step()

        self.scheduler.after(self.scheduler.between(0, 5 * MS), self.actor, step, thread="member")

    def _step(self) -> None:
        if self.life is not None:
            self.life.member.step(0)

    def _probe(self) -> None:
        if self.life is not None:
            self.life.member.probe_peers()
            self._step_soon()

    def _every(self, interval_us: int, action: Callable[[], None], thread: str) -> None:
        def run() -> None:
            action()
            self.scheduler.after(interval_us, self.actor, run, thread=thread)

        self.scheduler.after(self.rng.randrange(interval_us), self.actor, run, thread=thread)

    def _checkpoint(self) -> None:
        if self.life is not None:
            try:
                self.life.directory.checkpoint()
            except (PylogError, OSError) as error:
                self.trace.line(self.actor, f"cannot save checkpoints: {error}")
            delay_us = self.scheduler.between(0, _CHECKPOINT_US)
            self.scheduler.after(delay_us, self.actor, self._tell_generations, thread="generations")

    def _tell_generations(self) -> None:
        if self.life is not None:
            self.life.generations.report(self.life.member.membership)

    def _flush(self) -> None:
        if self.life is not None:
            self.life.directory.maybe_flush(self.now_ms())
            try:
                self.life.directory.maybe_checkpoint()
            except (PylogError, OSError) as error:
                self.trace.line(self.actor, f"cannot save checkpoints: {error}")

    def _claims(self) -> dict[TopicPartition, int]:
        if self.life is None:
            return self.claimed_durable
        claims = dict(self.claimed_durable)
        # Without the directory's lock: who crashes may be inside of what holds it.
        for log in list(self.life.directory._logs.values()):
            at = TopicPartition(log.topic, log.partition)
            if log.is_loaded and not log.is_offline:
                claims[at] = log.start_state().recovery_point
            elif log.is_loaded and at in claims:
                # It failed in this life, and claims nothing more; but it may have been truncated before, and what an
                # earlier life claimed beyond that is gone rightly.
                claims[at] = min(claims[at], log.start_state().recovery_point)
        return claims

    def _wait_for_disk(self, path: Path) -> None:
        stall_us, self.stall_us = self.stall_us, 0
        if stall_us or self.sync_us[1] > 100 * MS:
            self.stalled_until_us = max(self.stalled_until_us, self.scheduler.now_us + stall_us + self.sync_us[1])
        duration_us = self.scheduler.between(*self.sync_us) + stall_us
        if self.life is None:
            self.scheduler.block(duration_us)
            return
        with self.life.serving.fsync("" if path.parent == DATA else path.parent.name, duration_us):
            self.scheduler.block(duration_us)

    def _crash_by_disk(self) -> None:
        self.trace.fault("crash at a write", self.actor)
        self.kill(power_lost=True)
        self.start(self.scheduler.between(*_RESTART_US))
