"""A follower's fetch of one partition, and the leader's answer, as values."""

from __future__ import annotations

from dataclasses import dataclass

from broker_runtime.log import LogSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerFetch:
    """What a follower says of its log, and with that what it wants: all from ``offset`` on."""

    broker_id: int
    broker_epoch: int  # of the follower's registration
    offset: int  # its log's end
    durable_end: int  # ≤ offset; all below counts as durable there, as ``flush.mode`` says
    leader_epoch: int  # in which it follows
    last_fetched_epoch: int  # of its last record; -1: it has none
    log_start: int = -1  # of its log; -1: it does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerAnswer:
    """What the leader says. The caller closes ``found``.

    ``diverging``: (epoch, end): the follower has records that the leader has not; epoch is the largest the leader
    knows up to the follower's last, end where it ended. Then there is nothing else for it.
    """

    found: LogSlice | None
    high_watermark: int
    log_start: int
    log_end: int
    leader_epoch: int
    diverging: tuple[int, int] | None = None
