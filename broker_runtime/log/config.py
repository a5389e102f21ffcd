"""The settings of one partition's log, as values. Who may set them, and their defaults, is contract/settings.py's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from broker_runtime.contract.errors import InvalidConfigError


class FlushMode(StrEnum):
    """When an append counts as durable."""

    ACK = "ack"  # acknowledgements wait for an fdatasync, which they share
    INTERVAL = "interval"  # an fdatasync every flush.ms; a power failure loses up to that much
    OS = "os"  # whenever the operating system writes it back


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Topic settings the log acts on. Sizes in bytes, times in ms; -1: no limit, for the two retentions."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 86_400_000
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 86_400_000
    retention_bytes: int = -1
    max_message_bytes: int = 16 << 20
    flush_mode: FlushMode = FlushMode.ACK
    flush_ms: int = 1000
    is_log_append_time: bool = False

    def __post_init__(self) -> None:
        for name in ("segment_bytes", "segment_ms", "index_interval_bytes", "max_message_bytes", "flush_ms"):
            if getattr(self, name) < 1:
                raise InvalidConfigError(f"{name} is {getattr(self, name)}, allowed are values from 1 on")
        if self.segment_bytes > _LARGEST_SEGMENT_BYTES:
            raise InvalidConfigError(f"segment_bytes is {self.segment_bytes}, at most {_LARGEST_SEGMENT_BYTES} allowed")

    @property
    def max_frame_bytes(self) -> int:
        """The largest frame this log takes: ``max.message.bytes``, and never above a whole segment."""
        return min(self.max_message_bytes, self.segment_bytes)


_LARGEST_SEGMENT_BYTES = (1 << 31) - 1  # positions in the offset index are u32, relative offsets as well
