"""How far a partition is committed: a pure function of what its replicas hold.

Kafka's rule (`Partition.maybeIncrementLeaderHW`), over durable ends instead of log ends where ``flush.mode=ack``:
the high watermark is the minimum over the maximal in-sync set, and never goes back within one leadership.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def advanced_high_watermark(
    current: int, replicated_ends: Mapping[int, int], in_sync: Collection[int], *, min_in_sync: int = 1
) -> int:
    """The high watermark after what is now known; ``current`` where nothing lets it advance.

    ``replicated_ends``: broker id → the offset up to which that replica holds the log (its durable end under
    ``flush.mode=ack``, else its log end), the leader included. A replica of ``in_sync`` that has not told its end
    holds the high watermark where it is; so does an in-sync set below ``min_in_sync``.
    """
    if not in_sync or len(in_sync) < min_in_sync:
        return current
    if any(broker_id not in replicated_ends for broker_id in in_sync):
        return current
    return max(current, min(replicated_ends[broker_id] for broker_id in in_sync))
