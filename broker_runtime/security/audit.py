"""Lines of the log about who was refused what, for whoever looks for intruders.

    deny request   no ACL allows it: principal, address, operation, resource
    refuse login   nobody was proved: listener, why

Rule: whoever is refused again and again fills no disk: of each principal, and of each listener, a few lines every ten
seconds; the next one says how many were left out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from typing import Final, NamedTuple

from broker_runtime.contract.events import event

_logger = logging.getLogger(__name__)

_WINDOW_S: Final = 10.0
_MOST_IN_WINDOW: Final = 20
_MOST_KEYS: Final = 1_000


class _Window(NamedTuple):
    since_s: float
    lines: int
    omitted: int


class Audit:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: OrderedDict[tuple[str, str], _Window] = OrderedDict()

    def denied(self, *, principal: str, address: str, operation: str, resource: str) -> None:
        """A request was not allowed. What comes from the network is cut and escaped by `event`."""
        may, omitted = self._may_log(("deny", principal))
        if may:
            event(
                _logger,
                "deny request",
                level=logging.WARNING,
                principal=principal,
                address=address,
                operation=operation,
                resource=resource,
                omitted=omitted or None,
            )

    def refused_login(self, *, listener: str, error: BaseException) -> None:
        """A call proved nobody. Where it came from is not known: gRPC says so only to calls that begin."""
        may, omitted = self._may_log(("login", listener))
        if may:
            event(
                _logger, "refuse login", level=logging.WARNING, listener=listener, error=error, omitted=omitted or None
            )

    def _may_log(self, key: tuple[str, str]) -> tuple[bool, int]:
        """Whether there may be another line, and how many were left out before it."""
        now_s = time.monotonic()
        with self._lock:
            window = self._windows.pop(key, None)
            if window is None or now_s - window.since_s >= _WINDOW_S:
                found, window = (True, 0 if window is None else window.omitted), _Window(now_s, 1, 0)
            elif window.lines < _MOST_IN_WINDOW:
                found, window = (True, 0), window._replace(lines=window.lines + 1)
            else:
                found, window = (False, 0), window._replace(omitted=window.omitted + 1)
            self._windows[key] = window
            if len(self._windows) > _MOST_KEYS:
                self._windows.popitem(last=False)
        return found
