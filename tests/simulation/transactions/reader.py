"""A consumer that reads committed records alone, and shows the checker what it got."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.streams import FetchedPartition
from tests.simulation.partitions.broker.serving import Fetched
from tests.simulation.partitions.clients import Consumer
from tests.simulation.transactions import situations

if TYPE_CHECKING:
    from tests.simulation.transactions.world import World


class Reader(Consumer):
    """See the module. ``read_committed`` is what a fetch asks for where it says nothing else."""

    world: World

    def _fetched(self, at: TopicPartition, each: FetchedPartition, answer: Fetched) -> None:
        if each.error is None and each.leader_epoch >= self._epochs[at]:
            if each.row >= 0:
                self.world.checker.delivered(
                    self.name,
                    (self.metadata.topic_ids[at.topic], at.partition),
                    self.positions[at],
                    answer.cells[each.row],
                    aborted=each.aborted,
                    next_offset=each.next_offset,
                    last_stable_offset=each.last_stable_offset,
                )
            elif each.last_stable_offset == self.positions[at] < each.high_watermark:
                self.world.trace.situation(situations.READER_HELD_BACK)
        super()._fetched(at, each, answer)
