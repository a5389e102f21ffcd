"""Where two replicas' logs diverge, by leader epochs: KIP-101, 279, 320. Pure.

Every frame carries the epoch of the leader that wrote it, and an epoch has one leader. So two logs whose last records
before an offset are of the same epoch are equal up to that offset. The high watermark proves nothing of that kind.

``epochs``: (epoch, first offset) of all epochs that a log has records of, rising.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from broker_runtime.contract.errors import UnknownLeaderEpochError

Epochs = Sequence[tuple[int, int]]
NO_EPOCH = -1


def diverging_point(
    epochs: Epochs, *, leader_epoch: int, log_end: int, last_fetched_epoch: int, offset: int
) -> tuple[int, int] | None:
    """What a leader in ``leader_epoch`` answers a follower whose log ends at ``offset`` with ``last_fetched_epoch``.

    None: the follower's log is a prefix of the leader's. Otherwise (the largest epoch that the leader knows up to the
    follower's last, where that epoch ended). Raises `UnknownLeaderEpochError` for a follower with records of a newer
    epoch.
    """
    if last_fetched_epoch == NO_EPOCH:
        return None
    if last_fetched_epoch > leader_epoch:
        raise UnknownLeaderEpochError(
            f"the follower has records of leader epoch {last_fetched_epoch}, the leader is in {leader_epoch}"
        )
    # The current epoch is not in the log until its first record is.
    known = list(epochs)
    if not known or known[-1][0] < leader_epoch:
        known.append((leader_epoch, log_end))
    behind = bisect_right(known, last_fetched_epoch, key=lambda entry: entry[0])
    if behind == 0:  # older than all epochs that are left here: it ended before they began
        epoch, end = last_fetched_epoch, known[0][1]
    else:
        epoch = known[behind - 1][0]
        end = known[behind][1] if behind < len(known) else log_end
    return None if epoch == last_fetched_epoch and offset <= end else (epoch, end)


def truncation_offset(epochs: Epochs, *, log_end: int, diverging: tuple[int, int]) -> int:
    """The offset to which a follower truncates its log after a leader's ``diverging``; below ``log_end`` if that
    answers the follower's own last epoch and end.

    If the leader names an epoch that the follower does not have, the follower goes back to the end of its own largest
    epoch below, and asks again.
    """
    epoch, end = diverging
    behind = bisect_right(epochs, epoch, key=lambda entry: entry[0])
    own_end = epochs[behind][1] if behind < len(epochs) else log_end
    if behind > 0 and epochs[behind - 1][0] != epoch:
        return min(own_end, log_end)
    return min(own_end, end, log_end)


def newest_epoch(epochs: Epochs, log_end: int) -> int:
    """The newest epoch up to whose beginning a log is the one of its leader: that of its last record, even if that
    record was deleted, or one that began at the log's end; `NO_EPOCH` where none is known."""
    return next((epoch for epoch, start in reversed(epochs) if start <= log_end), NO_EPOCH)


def last_epoch(epochs: Epochs, log_end: int) -> int:
    """The epoch of the last record of a log; `NO_EPOCH` where there is none."""
    return next((epoch for epoch, start in reversed(epochs) if start < log_end), NO_EPOCH)
