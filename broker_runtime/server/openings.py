"""Calls that have begun and sent nothing yet: each holds a thread of gRPC's, and no stream is known for it.

    call begins ── start_call: counted ──▶ first message ──▶ the handler runs: `opened` ──▶ a stream, or an action
                        └─ too many: refused, without a thread            └─ ended before: `call_completed`

Rule: only calls whose first message comes after their beginning count (DoPut, DoExchange); gRPC reads the request of
all others before it gives them a thread. Other brokers, which prove who they are in a header, are never refused: a
broker that is flooded still feeds its followers. Which connection a silent call belongs to is not known here;
`StreamTable` cuts connections, the least active first, until there are few silent calls (`Patience`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from pyarrow import flight

from broker_runtime.contract.errors import (
    BrokerOverloadedError,
    BrokerUnavailableError,
    PylogError,
    TooManyStreamsError,
)
from broker_runtime.contract.flight import CLIENT_HEADER, to_flight_error
from broker_runtime.contract.quotas import REQUEST_PERCENTAGE
from broker_runtime.contract.waiting import CLOCK, Clock
from broker_runtime.security.credentials import NO_PROOF, Proof
from broker_runtime.security.quotas import UNLIMITED

MIDDLEWARE: Final = "openings"
_SILENT_METHODS: Final = frozenset({flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_EXCHANGE})
_LEAST: Final = 32
_PATIENCE_S: Final = 8.0
_PATIENCE_WHEN_MANY_S: Final = 2.0
_STUCK_S: Final = 12.0  # by then every connection without a stream has been cut

_TOO_MANY_CALLS: Final = "more calls come than this broker can serve"

Headers = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a connection that may be the one of the silent calls may stay, and what excuses it."""

    limit_s: float
    actions_excuse: bool
    """There are few silent calls: an action shows that a client is healthy."""
    streams_excuse: bool
    """False: there are many, and they stayed when all connections without streams were cut."""

    @staticmethod
    def least(patiences: Iterable[Patience | None]) -> Patience | None:
        """One that has no more than any of these. None: all are None."""
        given = [each for each in patiences if each is not None]
        if not given:
            return None
        return Patience(
            min(each.limit_s for each in given),
            actions_excuse=all(each.actions_excuse for each in given),
            streams_excuse=all(each.streams_excuse for each in given),
        )


class OpeningCall(flight.ServerMiddleware):
    """One call, from its beginning to its end. ``since_s`` None: it is not, or no longer, counted. ``client_id``: the
    client's own name in the call's headers, "" if there is none. ``proof``: what the headers prove.

    ``allowance``: from which the processor time of the call is spent, when it has ended (gRPC begins and ends a call on
    one thread)."""

    def __init__(self, openings: Openings, since_s: float | None, client_id: str, proof: Proof = NO_PROOF) -> None:
        super().__init__()
        self._openings = openings
        self.since_s = since_s
        self.client_id = client_id
        self.proof = proof
        self.allowance = UNLIMITED
        self._began_s = time.thread_time()

    def opened(self) -> None:
        """Its first message has come."""
        self._openings.forget(self)

    def call_completed(self, exception: Any) -> None:
        """It has ended, however."""
        self.allowance.spend(REQUEST_PERCENTAGE, max(0.0, time.thread_time() - self._began_s) * 1000)
        self._openings.forget(self)


class Openings:
    """All silent calls of the broker. Thread-safe."""

    def __init__(
        self,
        max_streams: int,
        *,
        is_broker: Callable[[Headers], bool] = lambda headers: False,
        is_full: Callable[[], bool] = lambda: False,
        clock: Clock = CLOCK,
    ) -> None:
        """``max_streams``: ``max.connections``; a quarter of it may be opening at a time, at least `_LEAST`.
        ``is_broker``: whether a call's headers prove that it is another broker's; must not block nor raise.
        ``is_full``: whether calls of any method are to be refused at present; likewise."""
        self.limit = self.limit_of(max_streams)
        self._is_broker = is_broker
        self._is_full = is_full
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[OpeningCall, None] = {}  # in the order of their beginning
        self._has_refused = False  # since `patience` was asked last
        self._crowded_s: float | None = None  # since when there were many, or one was refused, whenever it was asked

    @staticmethod
    def limit_of(max_streams: int) -> int:
        """How many calls may be silent at a time."""
        return max(_LEAST, max_streams // 4)

    def __len__(self) -> int:
        return len(self._waiting)

    def start_call(self, info: Any, headers: Headers, authenticate: Callable[[Headers], Proof] | None = None) -> Any:
        """Counts the call, or refuses it. Raises Flight errors only: any other would show the peer a traceback.

        ``authenticate``: what the headers prove; raises `SaslAuthenticationError` if that is not enough.
        """
        try:
            is_broker = self._is_broker(headers)
            if self._is_full() and not is_broker:
                raise to_flight_error(BrokerOverloadedError(_TOO_MANY_CALLS))
            is_counted = info.method in _SILENT_METHODS and not is_broker
            call = OpeningCall(self, self._clock.now_s() if is_counted else None, _client_id_in(headers))
            if is_counted and not self._count(call):  # before it may take time to see who it is
                raise to_flight_error(TooManyStreamsError(f"{self.limit} calls wait for their first message already"))
            try:
                if is_broker:
                    call.proof = Proof(is_broker=True)
                elif authenticate is not None:
                    call.proof = authenticate(headers)
            except BaseException:  # whatever it was: nobody else would take it out of the count
                self.forget(call)
                raise
            return call
        except flight.FlightError:
            raise
        except PylogError as error:
            raise to_flight_error(error) from None
        except Exception as error:  # noqa: BLE001 - the boundary of a call that has no other yet
            raise to_flight_error(BrokerUnavailableError(f"the call cannot begin ({type(error).__name__})")) from None

    def _count(self, call: OpeningCall) -> bool:
        with self._lock:
            if len(self._waiting) < self.limit:
                self._waiting[call] = None
                return True
            self._has_refused = True
            return False

    def forget(self, call: OpeningCall) -> None:
        """The call is no longer silent. Idempotent."""
        with self._lock:
            self._waiting.pop(call, None)
            call.since_s = None

    def patience(self) -> Patience | None:
        """What is to be done about silent calls now; None: nothing. Something is to be done when some have been silent
        for long, or when there have been many for long, even if each was soon given up for another. To be called
        regularly."""
        many = self.limit // 2
        now_s = self._clock.now_s()
        with self._lock:
            are_many = len(self._waiting) > many
            is_crowded, self._has_refused = are_many or self._has_refused, False
            if not is_crowded:
                self._crowded_s = None
            elif self._crowded_s is None:
                self._crowded_s = now_s
            crowded_s = 0.0 if self._crowded_s is None else now_s - self._crowded_s
            oldest_s = self._age_s(0, now_s) if self._waiting else 0.0
            are_stuck = are_many and self._age_s(many, now_s) >= _STUCK_S
        if crowded_s >= _PATIENCE_WHEN_MANY_S or (are_many and oldest_s >= _PATIENCE_WHEN_MANY_S):
            return Patience(_PATIENCE_WHEN_MANY_S, actions_excuse=False, streams_excuse=not are_stuck)
        return Patience(_PATIENCE_S, actions_excuse=True, streams_excuse=True) if oldest_s >= _PATIENCE_S else None

    def _age_s(self, position: int, now_s: float) -> float:
        since_s = next(islice(self._waiting, position, None)).since_s
        return 0.0 if since_s is None else now_s - since_s


def opened(context: Any) -> None:
    """The call of this handler has had its first message."""
    call = context.get_middleware(MIDDLEWARE)
    if call is not None:
        call.opened()


def _client_id_in(headers: Headers) -> str:
    return next((value for value in headers.get(CLIENT_HEADER, ()) if isinstance(value, str)), "")
