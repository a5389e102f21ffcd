"""The thread that speaks for a consumer in its group, and the lock around what it knows (`membership`).

Rule: it never calls the user back and never touches partitions; what it learns waits in the machine until the caller
comes by. The caller never waits for it, but where it says so, and then for a bounded time.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.requests import GroupHeartbeatResponse
from broker_runtime.contract.settings import ConsumerSettings
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.coordinator import Coordinator
from pyspark_log.client.consumer.membership import Membership, Phase, Signature, Stay, Told

_JOIN_LIMIT_S = 6.0
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_s() -> float:
    """Never goes back, and goes on while the machine sleeps: leases do, too."""
    return time.clock_gettime(_CLOCK)


class Heartbeats:
    """One consumer's. Thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        stay: Stay,
        *,
        on_news: Callable[[], object],
        on_failure: Callable[[Exception], object],
        clock: Callable[[], float] = steady_s,
    ) -> None:
        """``on_news``: the caller has something to carry out. ``on_failure``: what broke the thread."""
        self._cluster = cluster
        self._stay = stay
        self._coordinator = Coordinator(stay.group_id)
        self._on_news = on_news
        self._on_failure = on_failure
        self._clock = clock
        self._condition = threading.Condition()  # guards the machine; told of every answer
        self._machine = Membership(stay)
        self._thread: threading.Thread | None = None

    # --- the caller's membership ------------------------------------------------------------------------------

    def join(self, topics: Collection[str]) -> None:
        """Begins a stay in the group."""
        with self._condition:
            self._machine.join(topics, self._clock())
            self._nudge()

    def join_anew(self) -> None:
        """Begins another stay, if all is lost. The caller holds nothing any more."""
        with self._condition:
            self._machine.join_anew(self._clock())
            self._nudge()

    def subscribe_to(self, topics: Collection[str]) -> None:
        """The subscription is another from now on."""
        with self._condition:
            self._machine.subscribe_to(topics, self._clock())
            self._nudge()

    def carried_out(self, told: Told) -> bool:
        """See `Membership.carried_out`."""
        with self._condition:
            is_newest = self._machine.carried_out(told, self._clock())
            self._nudge()
            return is_newest

    def leave(self) -> None:
        """The caller holds nothing any more. Blocks until the group knows, a bounded time."""
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
        """Member id and the epoch told last; empty and -1 of who is no member at present."""
        with self._condition:
            return self._machine.identity

    # --- what there is for the caller -------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether the caller has something to carry out, or to be told. Without a lock."""
        return self._machine.has_news

    @property
    def machine(self) -> Membership:
        """To be looked at."""
        return self._machine

    def loss(self) -> PylogError | str | None:
        """Why nothing that the caller holds is its own any more: a refusal, or how it was lost; None: it is."""
        with self._condition:
            machine = self._machine
            machine.check(self._clock())
            if machine.phase is Phase.REFUSED:
                return machine.refusal
            return machine.why if machine.phase is Phase.LOST else None

    def pending(self) -> Told | None:
        """What the caller has to carry out."""
        with self._condition:
            return self._machine.pending

    def is_valid(self) -> bool:
        """Whether something may be handed out at this moment. Takes no lock where it may."""
        return self._clock() < self._machine.lease_until_s or self.loss() is None

    def goes_on(self) -> bool:
        """The caller is there; whether it may simply go on: nothing has changed and the lease lasts. Without a lock."""
        machine = self._machine
        machine.polled_s = now_s = self._clock()
        return now_s < machine.lease_until_s and not machine.has_news

    @contextmanager
    def polling(self) -> Iterator[None]:
        """While the caller is inside a poll it is not away."""
        machine = self._machine
        machine.is_polling = True
        try:
            yield
        finally:
            machine.polled_s = self._clock()
            machine.is_polling = False

    def wait(self, timeout_s: float) -> None:
        """For news or another answer of the coordinator."""
        with self._condition:
            if not self._machine.has_news:
                self._condition.wait(timeout_s)

    # --- the thread -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread if there is something to do for it and it does not run."""
        with self._condition:
            if self._machine.phase is not Phase.OUT:
                self._nudge()

    def stop(self) -> None:
        """After `leave`: waits for the thread's end, a bounded time."""
        thread = self._thread
        if thread is not None:
            with self._condition:
                self._condition.notify_all()
            thread.join(_JOIN_LIMIT_S)

    def forget_parent(self) -> None:
        """In a child after ``os.fork``: the member is the parent."""
        self._condition = threading.Condition()
        self._machine = Membership(self._stay)
        self._thread = None

    def step(self) -> float | None:
        """Sends what is due, and takes the answer. Returns how long there is nothing to do; None: it is over."""
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

    def _nudge(self) -> None:
        """With the lock held."""
        if self._thread is None or not self._thread.is_alive():
            self._start_thread()
        self._condition.notify_all()

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._run, name="pylog-heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        condition = self._condition
        try:
            while True:
                wait_s = self.step()
                with condition:
                    if wait_s is None:
                        if self._machine.phase is Phase.OUT:
                            self._thread = None
                            return
                    elif wait_s > 0:
                        # What changed since was before this lock was taken: look again.
                        wait_s = min(wait_s, self._machine.wait_s(self._clock()))
                        condition.wait(wait_s)
        except Exception as error:  # noqa: BLE001 - the thread's edge: a defect must not leave the caller in silence
            self._on_failure(error)

    def _tell_news(self) -> None:
        if self._machine.has_news:
            self._on_news()


def stay_of(settings: ConsumerSettings) -> Stay:
    """What a consumer's settings say of the member."""
    assert settings.group_id is not None
    return Stay(
        group_id=settings.group_id,
        instance_id=settings.group_instance_id,
        client_id=settings.client_id[:255],
        client_host=socket.gethostname()[:255],
        session_timeout_ms=settings.session_timeout_ms,
        max_poll_interval_ms=settings.max_poll_interval_ms,
    )
