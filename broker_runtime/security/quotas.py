"""Enforces client quotas: how much a client may take, and how long one that took more waits before its next request.

    QuotaTable   which quota applies to a client (pure)
    Quotas       what clients have taken of this broker
    Allowance    what one stream, or one action, may still take

Rule: a client over its quota is throttled and never disconnected: the broker carries out and answers what the client
sent, and the response says for how long it will take nothing more from that stream. No request waits longer than
`LONGEST_WAIT_S`, which is less than the default ``request.timeout.ms``; so a client whose requests each need more than
that exceeds its quota. During a wait no other client waits, no lock is held and no shared budget is taken. Other
brokers have no quotas.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from broker_runtime.contract.errors import TooManyStreamsError
from broker_runtime.contract.quotas import (
    CONSUMER_BYTE_RATE,
    DEFAULT,
    MAX_CONNECTIONS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Quota,
)
from broker_runtime.contract.requests import HEARTBEAT_INTERVAL_S
from broker_runtime.contract.waiting import CLOCK, Clock
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.rates import RateLimit

LONGEST_WAIT_S: Final = 20.0
_LONGEST_ACTION_WAIT_S: Final = 1.0  # an action holds a thread, and clients give up an attempt after 2 s
_MOST_WAITING_ACTIONS: Final = 50
_MOST_WAITING_ACTIONS_OF_ONE: Final = 25  # per quota: one that is exceeded must not keep others out
_MOST_HELD_BYTES: Final = 64 << 20  # of requests that were read and are held back
_MOST_RATES: Final = 10_000  # clients choose their client ids
_PER_S: Final[Mapping[str, float]] = {PRODUCER_BYTE_RATE: 1.0, CONSUMER_BYTE_RATE: 1.0, REQUEST_PERCENTAGE: 10.0}
"""For each limit that is a rate: how many units per second a limit of 1 grants. Processor time is counted in ms."""

Rates = Mapping[str, tuple[RateLimit, float]]
"""For each limit: the rate limit, and how much it grants per second."""


class Share(NamedTuple):
    """The clients that share a limit: those of ``user``, with ``client_id``; None: any."""

    user: str | None
    client_id: str | None


class QuotaTable:
    """A snapshot of all quotas. Immutable."""

    def __init__(self, quotas: Iterable[Quota] = ()) -> None:
        self._limits = {(each.entity.user, each.entity.client_id): each.limits for each in quotas}

    def __bool__(self) -> bool:
        return bool(self._limits)

    def find(self, limit: str, user: str, client_id: str) -> tuple[Share, float] | None:
        """A client's limit, and the clients that share it; None: there is no limit."""
        both, of_user, of_id = Share(user, client_id), Share(user, None), Share(None, client_id)
        for entity, share in (
            ((user, client_id), both),
            ((user, DEFAULT), both),
            ((user, None), of_user),
            ((DEFAULT, client_id), both),
            ((DEFAULT, DEFAULT), both),
            ((DEFAULT, None), of_user),
            ((None, client_id), of_id),
            ((None, DEFAULT), of_id),
        ):
            value = self._limits.get(entity, {}).get(limit)
            if value is not None:
                return share, value
        return None


class Quotas:
    """What clients have taken of this broker. Thread-safe."""

    def __init__(self, table: Callable[[], QuotaTable], *, meters: Meters = NO_METERS, clock: Clock = CLOCK) -> None:
        """``table`` returns the current quotas: a new object whenever they have changed."""
        self.table = table
        self.meters = meters
        self.clock = clock
        self._lock = threading.Lock()
        self._rates: OrderedDict[tuple[str, Share], tuple[RateLimit, float]] = OrderedDict()
        self._open: Counter[tuple[str, str]] = Counter()  # streams, by principal and client id
        self._held_bytes = 0
        self._is_over = False
        self._waiting_actions: Counter[Share] = Counter()

    def of(self, principal: str, client_id: str, limits: Iterable[str]) -> Allowance:
        """What a stream of this client may take under these limits. It starts with the client's debt, so opening
        another stream does not evade a quota."""
        return Allowance(self, principal, client_id, limits)

    def begin_action(self, principal: str, client_id: str, *, is_broker: bool = False) -> Allowance:
        """The allowance for an action's processor time. Blocks while the client is over its quota, at most
        `_LONGEST_ACTION_WAIT_S`. Raises `TooManyStreamsError`, which clients retry, if too many are already waiting."""
        table = self.table()
        found = None if is_broker or not table else table.find(REQUEST_PERCENTAGE, principal, client_id)
        if found is None:
            return UNLIMITED
        allowance = Allowance(self, principal, client_id, (REQUEST_PERCENTAGE,))
        if allowance.throttle_ms():
            with self._one_more_waiting_action(found[0]):
                allowance.wait(at_most_s=_LONGEST_ACTION_WAIT_S)
        return allowance

    @contextmanager
    def _one_more_waiting_action(self, share: Share) -> Iterator[None]:
        with self._lock:
            waiting, of_share = self._waiting_actions.total(), self._waiting_actions[share]
            if waiting >= _MOST_WAITING_ACTIONS or of_share >= _MOST_WAITING_ACTIONS_OF_ONE:
                raise TooManyStreamsError(f"{waiting} actions of clients over their quotas are already waiting")
            self._waiting_actions[share] += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting_actions[share] -= 1
                if not self._waiting_actions[share]:
                    del self._waiting_actions[share]

    @contextmanager
    def streaming(self, principal: str, client_id: str, *, is_broker: bool = False) -> Iterator[None]:
        """Counts a stream while it is open. Raises `TooManyStreamsError` if the client has as many as `MAX_CONNECTIONS`
        allows; its open streams stay."""
        if is_broker:
            yield
            return
        client = (principal, client_id)
        with self._lock:
            table = self.table()
            found = table.find(MAX_CONNECTIONS, principal, client_id)
            refused = found is not None and self._streams_of(found[0], table) >= found[1]
            if not refused:
                self._open[client] += 1
        if refused:
            assert found is not None
            self.meters.throttled(MAX_CONNECTIONS, 0.0)
            raise TooManyStreamsError(
                f"the quota of {_describe(found[0])} is max_connections={found[1]:g}, and that many streams are open"
            )
        try:
            yield
        finally:
            with self._lock:
                self._open[client] -= 1
                if not self._open[client]:
                    del self._open[client]

    def _streams_of(self, share: Share, table: QuotaTable) -> int:
        """The open streams of clients to which this limit applies, and no more specific one. Call under the lock."""
        return sum(
            count
            for (user, client_id), count in self._open.items()
            if share.user in (None, user)
            and share.client_id in (None, client_id)
            and (found := table.find(MAX_CONNECTIONS, user, client_id)) is not None
            and found[0] == share
        )

    def end_waits(self) -> None:
        """For a broker that stops: all waits end within `HEARTBEAT_INTERVAL_S`, and no new one begins."""
        self._is_over = True

    @property
    def is_over(self) -> bool:
        """Whether `end_waits` was called."""
        return self._is_over

    @property
    def has_room(self) -> bool:
        """Whether another request may be read and held back."""
        return self._held_bytes < _MOST_HELD_BYTES

    @contextmanager
    def holding(self, size_bytes: int) -> Iterator[None]:
        """Counts a request of ``size_bytes`` while it is held back."""
        with self._lock:
            self._held_bytes += size_bytes
        try:
            yield
        finally:
            with self._lock:
                self._held_bytes -= size_bytes

    def rates_of(self, principal: str, client_id: str) -> tuple[QuotaTable, Rates]:
        """The quotas now, and the rate limits of a client. The debt under a quota that has changed is cleared."""
        found = {}
        with self._lock:
            table = (
                self.table()
            )  # under the lock: a later caller cannot see an older table, so all share the same rates
            for limit, unit in _PER_S.items():
                at = table.find(limit, principal, client_id)
                if at is None:
                    continue
                share, value = at
                key, per_s = (limit, share), value * unit
                known = self._rates.get(key)
                if known is None or known[1] != per_s:
                    known = self._rates[key] = RateLimit(per_s, most_debt_s=LONGEST_WAIT_S), per_s
                    if len(self._rates) > _MOST_RATES:
                        self._rates.popitem(last=False)
                self._rates.move_to_end(key)
                found[limit] = known
        return table, found


class Allowance:
    """What one stream may still take. Any thread may spend; only one may wait."""

    __slots__ = ("_because", "_client_id", "_limits", "_principal", "_quotas", "_seen", "_until_ms")

    def __init__(
        self, quotas: Quotas | None, principal: str = "", client_id: str = "", limits: Iterable[str] = ()
    ) -> None:
        """``quotas`` None: unlimited. ``limits``: those that the stream counts against and waits for."""
        self._quotas = quotas
        self._principal = principal
        self._client_id = client_id
        self._limits = frozenset(limits)
        self._seen: tuple[QuotaTable | None, Rates] = (None, {})  # together: any thread may look
        self._until_ms = 0
        self._because = ""

    def limits(self, limit: str) -> bool:
        """Whether this limit is set for the client now."""
        return limit in self._look()

    def most_in_one_second(self, limit: str, most: int) -> int:
        """What the client may take in one second, at most ``most``: a larger piece would make it wait longer."""
        found = self._look().get(limit)
        return most if found is None else max(1, min(most, int(found[1])))

    def spend(self, limit: str, amount: float) -> None:
        """Counts ``amount`` against the limit, for this stream and all that share the limit."""
        found = self._look().get(limit)
        if found is None or not amount:
            return
        assert self._quotas is not None
        now_ms = _ms(self._quotas.clock)
        found[0].spend(amount, now_ms)
        self._note_debt(limit, found[0], now_ms)

    def throttle_ms(self) -> int:
        """How long the broker takes no further request from the stream."""
        if not self._look() or not self._until_ms:
            return 0
        assert self._quotas is not None
        return max(0, self._until_ms - _ms(self._quotas.clock))

    def wait(
        self,
        still_waiting: Callable[[], None] = lambda: None,
        *,
        holding_bytes: int = 0,
        at_most_s: float = LONGEST_WAIT_S,
    ) -> None:
        """Blocks until the stream may take more. ``still_waiting`` is called every `HEARTBEAT_INTERVAL_S`; an
        exception from it ends the wait, and so does a change of the quotas. ``holding_bytes``: the size of the request
        that the caller holds back."""
        if not self.throttle_ms():
            return
        assert self._quotas is not None
        because = self._because
        with self._quotas.holding(holding_bytes):
            waited_s = self._wait(still_waiting, lambda: False, at_most_s)
        self._quotas.meters.throttled(because, waited_s)

    def wait_for_room(self, still_waiting: Callable[[], None]) -> None:
        """Call before reading a request that would be held back: blocks while held requests use up their memory, but no
        longer than the throttle lasts. Until it returns, the stream does not notice that its client has gone."""
        if self.throttle_ms() and self._quotas is not None:
            self._wait(still_waiting, lambda: self._quotas is None or self._quotas.has_room, LONGEST_WAIT_S)

    def _wait(self, still_waiting: Callable[[], None], is_over: Callable[[], bool], at_most_s: float) -> float:
        """Returns how many seconds it waited."""
        assert self._quotas is not None
        began_ms = _ms(self._quotas.clock)
        end_ms = began_ms + int(at_most_s * 1000)
        while (left_ms := min(self.throttle_ms(), end_ms - _ms(self._quotas.clock))) > 0:
            if is_over() or self._quotas.is_over:
                break
            self._quotas.clock.sleep(min(left_ms / 1000, HEARTBEAT_INTERVAL_S))
            if left_ms >= HEARTBEAT_INTERVAL_S * 1000:
                still_waiting()
        return (_ms(self._quotas.clock) - began_ms) / 1000

    def _look(self) -> Rates:
        """Picks up changed quotas. Returns the rate limits of this client now."""
        table, rates = self._seen
        if self._quotas is not None and self._quotas.table() is not table:
            before = rates
            table, known = self._quotas.rates_of(self._principal, self._client_id)
            rates = {limit: rate for limit, rate in known.items() if limit in self._limits}
            self._seen = table, rates
            if rates != before:  # a change of others' quotas clears no debt
                self._until_ms = 0
                for limit, (rate, _) in rates.items():
                    self._note_debt(limit, rate, _ms(self._quotas.clock))
        return rates

    def _note_debt(self, limit: str, rate: RateLimit, now_ms: int) -> None:
        until_ms = now_ms + rate.wait_ms(now_ms)
        if until_ms > max(self._until_ms, now_ms):
            self._until_ms, self._because = until_ms, limit


UNLIMITED: Final = Allowance(None)
"""For other brokers, and for actions without a quota."""


class ProcessorTime:
    """Counts the processor time of the thread that created it against an allowance. Only that thread may use it."""

    __slots__ = ("_allowance", "_since_s")

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._since_s: float | None = None
        self.spend()

    def spend(self) -> None:
        """Counts what the thread has used since the last call."""
        if not self._allowance.limits(REQUEST_PERCENTAGE):
            self._since_s = None
            return
        now_s = time.thread_time()
        if self._since_s is not None:
            self._allowance.spend(REQUEST_PERCENTAGE, (now_s - self._since_s) * 1000)
        self._since_s = now_s


_NO_TABLE: Final = QuotaTable()
NO_QUOTAS: Final = Quotas(lambda: _NO_TABLE)


def _ms(clock: Clock) -> int:
    return int(clock.now_s() * 1000)


def _describe(share: Share) -> str:
    named = (("user", share.user), ("client id", share.client_id))
    return " with ".join(f"{what} {name!r:.260}" for what, name in named if name is not None)
