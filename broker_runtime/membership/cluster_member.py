"""Keeps one broker in its cluster: its session, its registration, the claim to be the controller, and what it hosts.

    watches, session changes, suspicions ──▶ flags ──▶ step(): end roles · register again · claim · read what changed
                                                       · decide, if controller · remove logs · host
                                                       · leave what is damaged

Rules: watches and listeners only raise flags; everything else happens in `step`, on one thread, and in the changes that
the topic service makes, one at a time under one lock. One znode (``/changes``) names what changed; if some of that was
missed, everything is read again. A lost session ends the roles first; the broker then takes part only in a new
registration. While ZooKeeper is away nothing changes: leaders continue to serve, decisions wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from broker_runtime.contract.errors import LogStorageError, PylogError, SetupError, ZooKeeperUnavailableError
from broker_runtime.contract.events import event
from broker_runtime.contract.requests import LogEndsRequest, LogEndsResponse
from broker_runtime.contract.waiting import Backoff
from broker_runtime.controller.controller import Controller
from broker_runtime.controller.decisions import Decisions, in_sync_with_others
from broker_runtime.controller.election import Electorate
from broker_runtime.controller.movement import MovementWriter
from broker_runtime.controller.suspicion import Probe, Suspicions
from broker_runtime.controller.topics import TopicWriter
from broker_runtime.controller.unproven import AskLogEnds, RunAll, in_line
from broker_runtime.membership.damaged_replicas import DamagedReplicas
from broker_runtime.membership.hosting import Hosting
from broker_runtime.membership.news import NewsBoard
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.zookeeper.cluster_state import (
    ChangeFeed,
    ClusterState,
    TopicState,
    logs_are_removed,
    read_cluster,
    read_deleted_logs,
    read_topic,
)
from broker_runtime.zookeeper.membership import BrokerIdentity, Membership, deregister, mark_stopping, register
from broker_runtime.zookeeper.session import SessionState, ZNodeError, ZooKeeperClient, require_connection
from broker_runtime.zookeeper.znodes import PERMANENT, BrokerRegistration, broker_path, from_json

_logger = logging.getLogger(__name__)

_PREDECESSOR_LOOK_S: Final = 0.5
_FIRST_RETRY_S: Final = 0.25  # while the cluster cannot be read or written
_LONGEST_RETRY_S: Final = 1.0
_CHANGE_LIMIT_S: Final = 20.0
_AGAIN_MS: Final = 1_000


class ClusterMember:
    """One broker's membership. `join` once, then `step` in a loop on one thread; the rest on any thread."""

    def __init__(
        self,
        client: ZooKeeperClient,
        identity: BrokerIdentity,
        hosting: Hosting,
        *,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int] | None = None,
        probe: Probe = lambda host, port: False,
        answers: Probe | None = None,
        report: Callable[[int], None] = lambda broker_id: None,
        ask_log_ends: AskLogEnds = lambda broker_id, request: None,
        run_all: RunAll = in_line,
        rebalances_leaders: bool = True,
        meters: Meters = NO_METERS,
    ) -> None:
        """``now_ms``: the wall clock; ``steady_ms``: one that never jumps (None: the same). ``probe``: see `suspicion`.
        ``answers(host, port)``: whether a broker serves there now (None: yes, unless ``probe`` says that its port
        refuses). ``report``: reports a broker whose port refuses to the controller, where that is another broker.
        ``ask_log_ends``: asks a broker, this one too; ``run_all``: asks several at once; see `unproven`.
        ``rebalances_leaders``: ``auto.leader.rebalance.enable``."""
        self.controller = Controller(client, on_deposed=lambda: self._board.add(has_changes=True), meters=meters)
        self.topics = TopicWriter(client, self.controller)
        self.movements = MovementWriter(self.controller)
        self._client = client
        self._identity = identity
        self._hosting = hosting
        self._now_ms = now_ms
        self._steady_ms = steady_ms or now_ms
        self._report = report
        self._refuses = probe
        self._answers: Probe = answers or (lambda host, port: not probe(host, port))
        self._disks = identity.disks
        self._suspicions = Suspicions(identity.broker_id, probe, self._steady_ms)
        self._run_all = run_all
        self._counted_on: frozenset[tuple[int, int]] | None = None  # who was alive at the last decisions, and its epoch
        self._decisions = Decisions(
            client,
            self.controller,
            self.topics,
            self.movements,
            self._suspicions,
            ask_log_ends=ask_log_ends,
            run_all=run_all,
            rebalances_leaders=rebalances_leaders,
        )
        self._damaged = DamagedReplicas(client, hosting.release)
        self._feed = ChangeFeed(client)
        self._membership: Membership | None = None
        self._state = ClusterState()
        self._due_ms: int | None = None  # when there will be something to decide although nothing changes
        # Held during calls to ZooKeeper; nobody waits for a partition's lock while holding it (see `RoleLock`).
        self._changing = threading.RLock()
        self._board = NewsBoard()
        self._backoff = Backoff(first_s=_FIRST_RETRY_S, limit_s=_LONGEST_RETRY_S)
        self._has_left = False  # for good; guarded by _changing

    @property
    def state(self) -> ClusterState:
        """The cluster as last read. Never waits."""
        return self._state

    @property
    def broker_epoch(self) -> int:
        """Of the present registration; -1 without one."""
        membership = self._membership
        return -1 if membership is None else membership.epoch

    @property
    def broker_secret(self) -> str:
        """Of the present registration; empty without one."""
        membership = self._membership
        return "" if membership is None else membership.secret

    @property
    def membership(self) -> Membership | None:
        """The present registration; None without one. Never waits."""
        return self._membership

    def join(self, *, patience_s: float = 0.0) -> None:
        """Registers, becomes the controller if there is none, and hosts what the cluster says.

        ``patience_s``: how long to wait for the session of a killed predecessor to end, whose registration has this id,
        another disk, and a port that refuses. Raises `SetupError` if another broker has the id,
        `ZooKeeperUnavailableError`, `OSError` if a disk cannot be read.
        """
        self._client.listen(self._on_session)
        for path in PERMANENT:
            self._client.ensure_path(path)
        deadline_ms = self._steady_ms() + int(patience_s * 1_000)
        while True:
            try:
                with self._changing:
                    self._register()
                    self._look(everything=True)
                return
            except SetupError as error:
                if self._steady_ms() >= deadline_ms or not self._is_predecessor_dead():
                    raise
                event(_logger, "wait for predecessor's session to end", level=logging.WARNING, error=error)
                self._board.pause(_PREDECESSOR_LOOK_S)

    def step(self, timeout_s: float) -> None:
        """Waits up to ``timeout_s`` (0: not at all) for changes and deals with all of them. What fails is tried again
        later; a partition that could not be opened, once per step.

        Raises `SetupError` if another broker took the id while this one's session had ended; then this one has left for
        good.
        """
        due_ms = self._due_ms
        due_s = timeout_s if due_ms is None else (due_ms - self._steady_ms()) / 1_000
        news = self._board.take(min(timeout_s, due_s))
        is_due = due_ms is not None and self._steady_ms() >= due_ms
        if news.is_lost:
            with self._changing:
                self._end_roles()
        if not self._client.is_connected:
            return  # when it is connected again, a flag is raised
        if not (news.is_any or is_due):
            self._retry_failed()
            return
        try:
            with self._changing:
                if not self._has_left:
                    self._look(everything=news.is_lost or news.is_stale)
            self._backoff.reset()
        except SetupError:
            # Trying again would only wait for the other broker's end, and take its place with other logs.
            self._has_left = True
            raise
        except (PylogError, ZNodeError, OSError) as error:
            event(_logger, "apply cluster state", level=logging.WARNING, error=error)
            self._board.add(is_stale=True)
            # Not at once: whatever made it fail has to pass. A lost session ends the pause.
            self._board.pause(min(timeout_s, self._backoff.next_s()))

    def wake(self) -> None:
        """Ends a waiting `step` soon, so that its thread can end."""
        self._board.add(has_changes=True)

    # --- brokers that are dead ----------------------------------------------------------------------------------

    def suspect(self, broker_id: int) -> None:
        """Finds out whether a broker is dead, whose connection broke or was refused, and acts upon it.

        On any thread. Blocks for one connection attempt, and for ``report``.
        """
        if not self._suspicions.look(broker_id):
            return
        self._board.add(has_changes=True)
        controller = self._state.controller
        if controller is None or controller.broker_id in {broker_id, self._identity.broker_id}:
            return
        if broker_id in self._suspicions.dead:
            self._report(broker_id)

    def probe_peers(self) -> bool:
        """Probes other brokers' ports: all of them on the controller, elsewhere the controller's and the suspects'.
        Returns whether one of them may be just starting. Call it every half second, and sooner after that: its
        partitions go to others meanwhile. Blocks for as many connection attempts."""
        if self.controller.is_active:
            changed = self._suspicions.look_at_all()
        else:
            controller = self._state.controller
            broker_ids = self._suspicions.dead.keys() | ({controller.broker_id} if controller is not None else set())
            looks = [self._suspicions.look(broker_id) for broker_id in broker_ids]
            changed = any(looks)
        if changed:
            self._board.add(has_changes=True)
        return bool(self._suspicions.doubtful)

    def log_ends(self, request: LogEndsRequest) -> LogEndsResponse:
        """How far the logs here go, for the controller. On any thread. Blocks as `Hosting.log_ends`."""
        # The epoch is read before the logs: an answer that takes long must not count for a later registration.
        return LogEndsResponse(broker_epoch=self.broker_epoch, partitions=self._hosting.log_ends(request.partitions))

    # --- changes of topics --------------------------------------------------------------------------------------

    @contextmanager
    def changing(self) -> Iterator[ClusterState]:
        """Lets one change of topics through at a time, with the cluster as it is then.

        Raises `NotControllerError` if this broker is not the controller; `ZooKeeperUnavailableError` without a session,
        or if other changes take too long.
        """
        require_connection(self._client, "changes of topics")
        if not self._changing.acquire(timeout=_CHANGE_LIMIT_S):
            raise ZooKeeperUnavailableError(f"another change of topics has not ended within {_CHANGE_LIMIT_S:g} s")
        try:
            self.controller.require_claim()
            yield self._state
        finally:
            self._changing.release()

    def refresh_topic(self, name: str) -> TopicState | None:
        """Reads a topic that was changed, elects its leaders, hosts it here; None: it is gone.

        Only inside `changing`. Raises as `Controller.write`.
        """
        topic = read_topic(self._client, name, known=self._state.topics.get(name))
        if topic is None:
            self._hosting.forget_topic(name)
            self._state = self._state.without_topic(name)
            return None
        topic = self.controller.elect_topic(topic, self.electorate)
        self._state = self._state.with_topic(topic)
        self._hosting.apply_topic(topic, self.broker_epoch)
        return topic

    def failures(self, name: str) -> Mapping[int, str]:
        """The topic's partitions that could not be opened here at the last try, and why. Only inside `changing`."""
        return self._hosting.failures(name)

    def finish_deletion(self, name: str) -> None:
        """Takes a topic whose deletion is decided out of service and finishes the deletion. Only inside `changing`.

        Raises as `TopicWriter.finish_deletion`; the loop then continues it. Logs that cannot be removed now are removed
        later.
        """
        self._state = self._state.without_topic(name)
        self._hosting.forget_topic(name)
        self._board.add(is_stale=True)  # so that the loop continues it if this fails
        self.topics.finish_deletion(name)
        self._state = replace(self._state, deleted_logs=read_deleted_logs(self._client))
        self._remove_deleted_logs()

    @property
    def electorate(self) -> Electorate:
        """The brokers that can lead, as far as is known now."""
        brokers = self._state.brokers
        dead = self._suspicions.dead
        return Electorate(
            {broker_id: broker.epoch for broker_id, broker in brokers.items()},
            stopping=frozenset(broker_id for broker_id, broker in brokers.items() if broker.is_stopping),
            suspects=frozenset(b for b, epoch in dead.items() if b in brokers and brokers[b].epoch == epoch),
            doubtful=self._suspicions.doubtful,
            disks=self._state.disks,
        )

    # --- the end ------------------------------------------------------------------------------------------------

    def begin_stopping(self) -> None:
        """Announces that this broker is stopping: the controller moves its leaderships to others, and takes it out of
        the in-sync sets that have other members. It continues to serve meanwhile. Does nothing without ZooKeeper."""
        membership = self._membership
        if membership is None:
            return
        try:
            mark_stopping(self._client, membership)
        except (PylogError, ZNodeError) as error:
            event(_logger, "hand over leaderships", level=logging.WARNING, error=error)

    @property
    def led_for_others(self) -> int:
        """How many partitions this broker leads that another live and in-sync broker could lead."""
        brokers, own_id = self.electorate, self._identity.broker_id
        return sum(
            present is not None
            and present.state.leader == own_id
            and any(
                member != own_id and brokers.can_lead(member)
                for member in {*present.state.isr}.difference(
                    present.state.unproven, brokers.at(topic.name, number).failed
                )
            )
            for topic in self._state.topics.values()
            for number, present in enumerate(topic.partitions)
        )

    def wait_until_handed_over(self, limit_s: float) -> int:
        """Blocks until others lead what they can, ZooKeeper is away, or ``limit_s`` has passed; returns how many
        partitions are left. `step` continues meanwhile, on its thread."""
        self._board.wait_for(
            lambda: self._has_left or not self._client.is_connected or not self.led_for_others, limit_s
        )
        return self.led_for_others

    def leave(self) -> None:
        """Ends the roles and removes the registration, so that others need not wait for the session's end.

        This is for good: later steps change nothing.
        """
        with self._changing:
            self._has_left = True
            membership = self._membership
            try:
                self.controller.release()
                if membership is not None:
                    deregister(self._client, membership)
            except PylogError as error:
                # The end of the session does the same a little later.
                event(_logger, "deregister broker", level=logging.WARNING, error=error)
            self._end_roles()

    # --- private: flags -----------------------------------------------------------------------------------------

    def _on_session(self, news: SessionState) -> None:
        event(_logger, "change session state", state=news.value, session=f"{self._client.session_id:#x}")
        self._board.add(is_lost=news is SessionState.LOST, is_stale=news is SessionState.CONNECTED)

    def _on_change(self, path: str) -> None:
        self._board.add(has_changes=True)

    # --- private; all with _changing held -----------------------------------------------------------------------

    def _end_roles(self) -> None:
        self.controller.resign()
        self._hosting.step_down_all()
        self._membership = None

    def _register(self) -> Membership:
        self._end_roles()
        self._membership = register(self._client, self._identity, now_ms=self._now_ms(), answers=self._answers)
        # From now on the logs are this process's: the end of a session takes nothing from them.
        self._identity = replace(self._identity, was_clean=True)
        if self._disks is not None:
            self._disks.settled()
        return self._membership

    def _is_predecessor_dead(self) -> bool:
        path = broker_path(self._identity.broker_id)
        node = self._client.find(path)
        if node is None:
            return True
        other = from_json(node.data, BrokerRegistration, path)
        return self._refuses(other.host, other.port)

    def _look(self, *, everything: bool) -> None:
        """After a failure, the next look must be at everything."""
        self._look_once(everything=everything)
        self._board.looked()

    def _look_once(self, *, everything: bool) -> None:
        membership = self._membership
        if membership is None or membership.session != self._client.session_id:
            membership, everything = self._register(), True
        if not self.controller.is_active and self.controller.try_claim(membership, suspects=self._suspicions.dead):
            everything = True  # what the last controller decided must be known before anything is decided
        changed = self._feed.take(self._on_change)
        self._state = read_cluster(
            self._client, known=self._state, changed=None if everything else changed, watch=self._on_change
        )
        own = self._state.brokers.get(membership.broker_id)
        if own is None or own.epoch != membership.epoch:
            event(
                _logger, "lose registration", level=logging.WARNING, broker=membership.broker_id, epoch=membership.epoch
            )
            self._register()
            self._board.add(is_stale=True)
            return
        self._see_controller()
        self._suspicions.registered(self._state.brokers)
        self._due_ms = None
        if self.controller.is_active:
            self._find_all_dead()
            if self._suspicions.dead:
                self._suspicions.found_in_sync(in_sync_with_others(self._state))
            self._state, self._due_ms = self._decisions.make(self._state, self.electorate, self._steady_ms())
        else:
            self._counted_on = None
        self._remove_deleted_logs()
        self._hosting.apply(self._state, membership.epoch)
        self._leave_damaged(membership)

    def _find_all_dead(self) -> None:
        """Where a broker has gone since the last decisions, or these are the first, all others are probed before
        anything is decided: those that died together leave in-sync sets together, and none as long as the other lives
        in ZooKeeper only. Blocks for one connection attempt."""
        if self._counted_on is None or not self._counted_on <= self._alive():
            self._run_all(
                {
                    f"probe broker {broker_id}": partial(self._suspicions.look, broker_id)
                    for broker_id in sorted(self._suspicions.known)
                }
            )
        self._counted_on = self._alive()

    def _alive(self) -> frozenset[tuple[int, int]]:
        dead = self._suspicions.dead
        return frozenset(
            (broker_id, broker.epoch) for broker_id, broker in self._state.brokers.items() if broker_id not in dead
        )

    def _see_controller(self) -> None:
        found = self._state.controller
        if self.controller.is_active and (found is None or found.epoch != self.controller.require_claim().epoch):
            self.controller.resign()
        if found is None:
            self._board.add(has_changes=True)  # it went just now: the next step claims its place

    def _remove_deleted_logs(self) -> None:
        own_id = self._identity.broker_id
        for topic_id, record in self._state.deleted_logs.items():
            if own_id not in record.brokers:
                continue
            try:
                self._hosting.remove_logs(record.name, topic_id)
            except (LogStorageError, OSError) as error:
                event(
                    _logger, "remove logs", level=logging.ERROR, topic=record.name, topic_id=topic_id.hex(), error=error
                )
                self._look_again_soon()
                continue
            logs_are_removed(self._client, topic_id, own_id)

    def _retry_failed(self) -> None:
        with self._changing:
            if self._membership is not None and not self._has_left:
                self._hosting.retry_failed(self._state, self._membership.epoch)
                self._leave_damaged(self._membership)

    def _leave_damaged(self, membership: Membership) -> None:
        damaged = self._hosting.damaged_replicas()
        if not damaged:
            return
        try:
            is_done = self._damaged.leave(damaged, membership)
        except (PylogError, ZNodeError) as error:
            event(_logger, "leave in-sync sets", level=logging.WARNING, partitions=len(damaged), error=error)
            is_done = False
        if not is_done:
            self._look_again_soon()

    def _look_again_soon(self) -> None:
        retry_ms = self._steady_ms() + _AGAIN_MS
        self._due_ms = retry_ms if self._due_ms is None else min(self._due_ms, retry_ms)
