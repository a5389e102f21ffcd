"""Calls that have begun and said nothing yet: each holds a thread of gRPC's, and no stream knows of it.

    call begins ── start_call: counted ──▶ first message ──▶ the handler runs: `opened` ──▶ a stream, or an action
                        └─ too many: refused, without a thread            └─ ended before: `call_completed`

Rule: only calls whose first message comes after their beginning count (DoPut, DoExchange); gRPC reads the request of
all others before it gives them a thread. Other brokers, which prove who they are in a header, are never refused: a
broker that is flooded still feeds its followers. Who a silent call is of is not known here; `StreamTable` finds
connections that have nothing else to show, and cuts them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyarrow import flight

from broker_runtime.contract.errors import BrokerUnavailableError, TooManyStreamsError
from broker_runtime.contract.flight import to_flight_error

MIDDLEWARE: Final = "openings"
_SILENT_METHODS: Final = frozenset({flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_EXCHANGE})
_LEAST: Final = 32
_PATIENCE_S: Final = 8.0
_PATIENCE_WHEN_MANY_S: Final = 2.0

Headers = Mapping[str, Sequence[Any]]


class OpeningCall(flight.ServerMiddleware):
    """One call, from its beginning to its end. ``since_s`` None: it is not, or no longer, counted."""

    def __init__(self, openings: Openings, since_s: float | None) -> None:
        super().__init__()
        self._openings = openings
        self.since_s = since_s

    def opened(self) -> None:
        """Its first message has come."""
        self._openings.forget(self)

    def call_completed(self, exception: Any) -> None:
        """It has ended, however."""
        self._openings.forget(self)


class Openings(flight.ServerMiddlewareFactory):
    """All of them. Thread-safe."""

    def __init__(
        self,
        max_streams: int,
        *,
        is_broker: Callable[[Headers], bool] = lambda headers: False,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``max_streams``: ``max.connections``; a quarter of it may be opening at a time, at least `_LEAST`.
        ``is_broker``: whether a call's headers prove that it is another broker's; must not block nor raise."""
        super().__init__()
        self.limit = max(_LEAST, max_streams // 4)
        self._is_broker = is_broker
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._waiting: dict[OpeningCall, None] = {}  # in the order of their beginning

    def __len__(self) -> int:
        return len(self._waiting)

    def start_call(self, info: Any, headers: Headers) -> OpeningCall:
        """Counts the call, or refuses it. Raises Flight errors only: any other would show the peer a traceback."""
        try:
            is_counted = info.method in _SILENT_METHODS and not self._is_broker(headers)
            call = OpeningCall(self, self._monotonic_s() if is_counted else None)
            if not is_counted:
                return call
            with self._lock:
                if len(self._waiting) < self.limit:
                    self._waiting[call] = None
                    return call
        except Exception as error:  # noqa: BLE001 - the boundary of a call that has no other yet
            raise to_flight_error(BrokerUnavailableError(f"the call cannot begin ({type(error).__name__})")) from None
        raise to_flight_error(TooManyStreamsError(f"{self.limit} calls wait for their first message already"))

    def forget(self, call: OpeningCall) -> None:
        """The call is no longer silent. Again is fine."""
        with self._lock:
            self._waiting.pop(call, None)
            call.since_s = None

    def patience_s(self) -> float | None:
        """How long a silent connection may stay now; None: none of the silent calls has waited for that long."""
        with self._lock:
            if not self._waiting:
                return None
            since_s = next(iter(self._waiting)).since_s
            is_much = len(self._waiting) > self.limit // 2
        limit_s = _PATIENCE_WHEN_MANY_S if is_much else _PATIENCE_S
        return limit_s if since_s is not None and self._monotonic_s() - since_s >= limit_s else None


def opened(context: Any) -> None:
    """The call of this handler has had its first message."""
    call = context.get_middleware(MIDDLEWARE)
    if call is not None:
        call.opened()
