"""Which frames of an idempotent producer may leave, under which number, and what their failures mean for the others.

    a frame comes back …                          its number            the frames behind it
    no answer, or one that leaves it open         stays; `is_doubtful`  wait, then go again in order
    refused, surely not appended, for good        is void               are numbered anew
    a gap before it, frames before it are open    stays                 wait for those
    a gap before it, nothing before it is open    void; numbered anew   likewise
      … but it is doubtful                        it fails by name      find out by themselves

Rule: a frame is given another number only if it is certain that it is in no log under its old one and will never be:
it was never sent, or every try was answered with a refusal, or it lies behind such a frame. Else it goes again as it
is, or fails, and its error says that it may be there. Before the first frame of a new epoch leaves, all of the old one
have come back.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_runtime.contract.errors import PylogError
from pyspark_log.client.partition_queue import Outgoing, PartitionQueue


class Numbering:
    """Of one producer. Not thread-safe: the accumulator's lock guards it."""

    def __init__(self) -> None:
        self.on_id_wanted: Callable[[], object] = lambda: None
        self.trouble: PylogError | None = None  # why there is no id yet
        self._producer_id = -1  # for partitions that begin
        self._waiting: dict[PartitionQueue, None] = {}

    @property
    def wants_id(self) -> bool:
        """Whether a new producer id should be fetched."""
        return self._producer_id < 0

    def provide(self, producer_id: int) -> list[PartitionQueue]:
        """An id that nobody had. Returns the partitions that waited for it."""
        self._producer_id = producer_id
        self.trouble = None
        waiting, self._waiting = list(self._waiting), {}
        return waiting

    def give_up_id(self) -> None:
        """Partitions that begin from now on do so under another id: they may be of a topic that was sent to before."""
        self._producer_id = -1
        self.on_id_wanted()

    def number(self, outgoing: Outgoing) -> bool:
        """Sees to it that a frame which is about to leave has a number. False: it may not leave yet.

        It may when what is in flight has come back, or when an id is provided.
        """
        queue, sequence = outgoing.queue, outgoing.queue.sequence
        if outgoing.number is not None:
            if sequence.holds(outgoing.number, outgoing.serial):
                return True
            outgoing.number = None
            outgoing.is_doubtful = False
        if sequence.begins_anew and queue.in_flight:
            return False
        if sequence.needs_id:
            if self._producer_id == sequence.producer_id:
                self._producer_id = -1
            if self._producer_id < 0:
                self._waiting[queue] = None
                self.on_id_wanted()
                return False
            sequence.begin(self._producer_id)
        outgoing.number = sequence.take(outgoing.delivery.count)
        return True

    def failed(self, outgoing: Outgoing) -> None:
        """The frame goes nowhere any more."""
        number = outgoing.number
        if number is not None and not outgoing.is_doubtful and outgoing.queue.sequence.holds(number, outgoing.serial):
            outgoing.queue.sequence.void_from(outgoing.serial)

    def goes_again(self, outgoing: Outgoing, *, is_oldest: bool) -> bool:
        """Whether a frame before which the broker found a gap may be sent again. False: whether it is there is unknown.

        ``is_oldest``: no earlier frame of the partition is still to be acknowledged.
        """
        assert outgoing.number is not None
        sequence = outgoing.queue.sequence
        if not is_oldest or not sequence.holds(outgoing.number, outgoing.serial):
            return True
        if outgoing.is_doubtful:
            return False
        sequence.void_from(outgoing.serial)
        return True
