"""How far a log goes, as of one moment."""

from __future__ import annotations

from typing import NamedTuple


class LogExtent(NamedTuple):
    """Offsets of one log, taken under its lock.

    ``log_start`` ≤ ``high_watermark`` ≤ ``log_end``; ``durable_end`` ≤ ``log_end``. ``leader_epochs``: (epoch, first
    offset) of all in the log, rising.
    """

    log_start: int
    high_watermark: int
    durable_end: int
    log_end: int
    leader_epochs: tuple[tuple[int, int], ...]
