"""How long a broker throttles a stream, because the client is over a quota.

Rule: all responses during one wait report what is left of it, and each second of it counts once. The first wait of a
stream is logged, so that a throttled client says so once and not with every response.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker_runtime.contract.events import event
from broker_runtime.contract.waiting import CLOCK, Clock

_logger = logging.getLogger(__name__)


class StreamThrottle:
    """The throttling of one stream. For the thread that reads its responses."""

    __slots__ = ("_broker_id", "_client_id", "_clock", "_count", "_kind", "_until_s", "_was_logged")

    def __init__(
        self, kind: str, broker_id: int, client_id: str, count: Callable[[float], object], *, clock: Clock = CLOCK
    ) -> None:
        """``kind``: of the stream, as in brokers' logs. ``count`` is called with the seconds of each wait."""
        self._kind = kind
        self._broker_id = broker_id
        self._client_id = client_id
        self._count = count
        self._clock = clock
        self._until_s = 0.0
        self._was_logged = False

    def note(self, throttle_ms: int) -> None:
        """Call with the ``throttle_ms`` of each response (0: the stream is not throttled)."""
        if throttle_ms <= 0:
            return
        if not self._was_logged:
            self._was_logged = True
            event(
                _logger,
                "throttle stream",
                kind=self._kind,
                broker=self._broker_id,
                client_id=self._client_id,
                throttle_ms=throttle_ms,
            )
        now_s = self._clock.now_s()
        end_s = now_s + throttle_ms / 1000
        if end_s > self._until_s:
            self._count(end_s - max(now_s, self._until_s))
            self._until_s = end_s
