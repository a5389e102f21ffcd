"""An in-sync set as its leader, broker 1, knows it, with the marks of its log."""

from __future__ import annotations

from broker_runtime.replication import FollowerFetch, InSyncSet, LogMarks
from tests.unit.replication.replicas import led_by

LAG_MS = 30_000


class Led:
    """The state machine, and the marks of its log."""

    def __init__(
        self, *, in_sync=(1, 2, 3), replicas=(1, 2, 3), eligible=(), log_end=100, high_watermark=100, epoch_start=0
    ):
        self.machine = InSyncSet(
            led_by(1, 5, replicas=replicas, in_sync=in_sync, version=7, eligible=eligible),
            topic="t",
            partition=0,
            broker_id=1,
            now_ms=0,
        )
        self.marks = LogMarks(epoch_start=epoch_start, high_watermark=high_watermark, log_end=log_end)

    def reports(self, broker_id, end, *, now_ms=0, broker_epoch=1, durable_end=None, log_start=-1):
        fetch = FollowerFetch(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            offset=end,
            durable_end=end if durable_end is None else durable_end,
            leader_epoch=5,
            last_fetched_epoch=4,
            log_start=log_start,
        )
        self.machine.require_replica(broker_id, broker_epoch)
        self.machine.reported(fetch, self.marks, now_ms)
        self.advance()

    def advance(self, min_in_sync=1):
        before = self.marks.high_watermark
        after = self.machine.advanced(before, self.marks.log_end, min_in_sync=min_in_sync)
        self.marks = self.marks._replace(high_watermark=after)
        return after

    def grows_to(self, log_end):
        self.marks = self.marks._replace(log_end=log_end)

    def propose(self, now_ms=0, min_in_sync=1):
        return self.machine.propose(self.marks, now_ms, LAG_MS, min_in_sync=min_in_sync)

    def hears(self, in_sync, version, replicas=(1, 2, 3)):
        return self.machine.heard(led_by(1, 5, replicas=replicas, in_sync=in_sync, version=version))
