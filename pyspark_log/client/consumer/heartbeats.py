"""The thread that sends a consumer's heartbeats to its group's coordinator, and the lock around its `Membership`.

Rule: it never calls the user back and never touches partitions; what it learns waits in the machine until the caller
polls. The caller waits for the thread only where a method says so, and then for a bounded time.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.requests import GroupHeartbeatResponse
from broker_runtime.contract.settings import ConsumerSettings
from broker_runtime.contract.waiting import Worker
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.coordinator import Coordinator
from pyspark_log.client.connection.offsets import Signature
from pyspark_log.client.consumer.membership import Membership, Phase, Stay, TargetAssignment

_JOIN_LIMIT_S = 6.0
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_s() -> float:
    """Never goes back, and advances while the machine sleeps, as leases do."""
    return time.clock_gettime(_CLOCK)


class Polling:
    """See `Heartbeats.polling`. (A generator would take 0.6 µs more of each call.)"""

    __slots__ = ("_clock", "_machine")

    def __init__(self, machine: Membership, clock: Callable[[], float]) -> None:
        self._machine = machine
        self._clock = clock

    def __enter__(self) -> None:
        self._machine.is_polling = True

    def __exit__(self, *_: object) -> None:
        self._machine.polled_s = self._clock()
        self._machine.is_polling = False


class Heartbeats:
    """One consumer's. Thread-safe. Without a group it never joins, and its `Membership` stays out."""

    def __init__(
        self,
        cluster: Cluster,
        stay: Stay,
        *,
        on_news: Callable[[], object],
        on_failure: Callable[[BaseException], object],
        clock: Callable[[], float] = steady_s,
    ) -> None:
        """``on_news`` is called when the caller has something to carry out, ``on_failure`` with what ended the thread.

        Both are called on the thread.
        """
        self._cluster = cluster
        self._stay = stay
        self._coordinator = Coordinator(stay.group_id)
        self._on_news = on_news
        self._on_failure = on_failure
        self._clock = clock
        self._condition = threading.Condition()  # guards the machine; notified of every answer
        self._machine = Membership(stay)
        self._worker: Worker | None = None

    # --- the caller's membership ------------------------------------------------------------------------------

    def join(self, topics: Collection[str]) -> None:
        """Joins the group."""
        with self._condition:
            self._machine.join(topics, self._clock())
            self._nudge()

    def rejoin(self) -> None:
        """Joins again, as another member, if everything is lost. The caller no longer holds anything."""
        with self._condition:
            self._machine.rejoin(self._clock())
            self._nudge()

    def subscribe_to(self, topics: Collection[str]) -> None:
        """Changes the subscription."""
        with self._condition:
            self._machine.subscribe_to(topics, self._clock())
            self._nudge()

    def carried_out(self, target: TargetAssignment) -> bool:
        """See `Membership.carried_out`."""
        with self._condition:
            is_newest = self._machine.carried_out(target, self._clock())
            self._nudge()
            return is_newest

    def leave(self) -> None:
        """Leaves the group, if it is in one. The caller no longer holds anything.

        Blocks until the coordinator has answered, a bounded time.
        """
        with self._condition:
            machine = self._machine
            if machine.phase is Phase.OUT:
                return
            machine.leave(self._clock())
            self._nudge()
            self._condition.wait_for(lambda: machine.phase is not Phase.LEAVING, machine.request_limit_s + 1.0)
            machine.give_up_leaving()

    def signature(self) -> Signature | None:
        """See `Membership.signature`."""
        with self._condition:
            return self._machine.signature()

    def identity(self) -> tuple[str, int]:
        """See `Membership.identity`."""
        with self._condition:
            return self._machine.identity

    # --- what the caller has to know -------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether there is something for the caller to carry out, or to learn. Takes no lock."""
        return self._machine.has_news

    @property
    def machine(self) -> Membership:
        """The membership, to be looked at."""
        return self._machine

    def loss(self) -> PylogError | str | None:
        """Why what the caller holds is no longer its own: a refusal, or how it was lost. None: it still is."""
        with self._condition:
            machine = self._machine
            machine.check(self._clock())
            if machine.phase is Phase.REFUSED:
                return machine.refusal
            return machine.why if machine.phase is Phase.LOST else None

    def pending(self) -> TargetAssignment | None:
        """The assignment that the caller has to carry out, if there is one."""
        with self._condition:
            return self._machine.pending

    def is_valid(self) -> bool:
        """Whether records may be delivered at this moment. Takes no lock while they may.

        Once they may not, they never may again, until the caller has dropped everything.
        """
        return self._clock() < self._machine.lease_until_s or self.loss() is None

    def goes_on(self) -> bool:
        """Whether a loop may deliver its next record: the lease lasts and there is no news. Takes no lock.

        Being asked counts as a poll of the caller's.
        """
        machine = self._machine
        machine.polled_s = now_s = self._clock()
        return now_s < machine.lease_until_s and not machine.has_news

    def polling(self) -> Polling:
        """Around every call in which the caller waits for records: meanwhile ``max.poll.interval.ms`` does not run."""
        return Polling(self._machine, self._clock)

    def wait(self, timeout_s: float) -> None:
        """Blocks until there is news or another answer of the coordinator, at most ``timeout_s``."""
        with self._condition:
            if not self._machine.has_news:
                self._condition.wait(timeout_s)

    # --- the thread -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread if there is something for it to do and it does not run."""
        with self._condition:
            if self._machine.phase is not Phase.OUT and self._running is None:
                self._start_thread()

    def stop(self) -> None:
        """After `leave`: waits for the thread's end, a bounded time."""
        worker = self._worker
        if worker is not None:
            worker.wake()
            worker.join(_JOIN_LIMIT_S)

    def forget_parent(self) -> None:
        """In a child after ``os.fork``: the member is the parent."""
        self._condition = threading.Condition()
        self._machine = Membership(self._stay)
        self._worker = None

    def step(self) -> float | None:
        """Sends what is due, and takes the answer.

        Returns for how long there is nothing to do; None: the consumer is out of the group, and nothing is left to do.
        """
        machine = self._machine
        with self._condition:
            now_s = self._clock()
            sent = machine.next_request(now_s)
            is_over = sent is None and machine.phase is Phase.OUT
            wait_s = machine.wait_s(now_s)
        if sent is None:
            self._tell_news()
            return None if is_over else wait_s
        try:
            answer = self._cluster.call(
                "group_heartbeat",
                sent.request,
                GroupHeartbeatResponse,
                to=self._coordinator,
                timeout_s=machine.request_limit_s,
            )
        except PylogError as error:
            with self._condition:
                machine.failed(sent, error, self._clock())
                self._condition.notify_all()
        else:
            with self._condition:
                is_believed = machine.answered(sent, answer, self._clock())
                self._condition.notify_all()
            if not is_believed:
                self._cluster.forget_coordinator(self._coordinator)
        self._tell_news()
        return 0.0

    # --- private ----------------------------------------------------------------------------------------------

    @property
    def _running(self) -> Worker | None:
        """The thread, if there is one that does not end."""
        worker = self._worker
        return worker if worker is not None and worker.is_running and not worker.is_stopping else None

    def _nudge(self) -> None:
        """Something changed. With the lock held."""
        worker = self._running
        if worker is None:
            self._start_thread()
        else:
            worker.wake()
        self._condition.notify_all()

    def _start_thread(self) -> None:
        self._worker = Worker("pylog-heartbeat", self._step_or_end, on_defect=self._on_failure)
        self._worker.start()

    def _step_or_end(self) -> float | None:
        pause_s = self.step()
        if pause_s is None:
            with self._condition:
                # Whoever joins again sees, under the same lock, that this thread ends, and starts another.
                if self._machine.phase is Phase.OUT and self._worker is not None:
                    self._worker.stop()
        return pause_s

    def _tell_news(self) -> None:
        if self._machine.has_news:
            self._on_news()


def stay_of(settings: ConsumerSettings) -> Stay:
    """What a consumer's settings say of the member. Without a group: of one that never joins."""
    return Stay(
        group_id=settings.group_id or "",
        instance_id=settings.group_instance_id,
        client_id=settings.client_id,
        client_host=socket.gethostname(),
        session_timeout_ms=settings.session_timeout_ms,
        max_poll_interval_ms=settings.max_poll_interval_ms,
    )
