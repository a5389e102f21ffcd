"""What is committed in one partition, as far as anybody could have seen it, and whether a log or an answer agrees.

Pure: nothing here knows of brokers, disks or time. The invariants go by their numbers in `invariants`. Rule: what
was committed once stays, at its offset, with its bytes; so this only grows, but for what is lost rightly (`count_as`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from broker_runtime.contract.model import TopicPartition
from tests.simulation.partitions.log_view import StoredFrame
from tests.simulation.simulator.outcome import ViolationError


class Committed:
    """One partition of one topic id."""

    def __init__(self, at: TopicPartition) -> None:
        self.at = at
        self.end = 0
        self.log_start = 0  # what is below was deleted, rightly
        self.given_up: set[int] = set()  # the bodies of what was lost, rightly, and did not come again
        self.frames: list[StoredFrame] = []
        self._bases: list[int] = []
        self._where: dict[int, int] = {}  # body → base offset
        self._next_sequence: dict[tuple[int, int], int] = {}

    def extend(self, frames: Iterable[StoredFrame], high_watermark: int) -> None:
        """A leader's high watermark passed these frames of its log. Raises for invariants 1 and 3, and if some lack."""
        for frame in frames:
            header = frame.header
            if frame.base_offset != self.end:
                raise ViolationError(
                    2, f"{self.at}: committed up to {self.end}, the next frame begins with {frame.base_offset}"
                )
            if frame.body in self._where:
                raise ViolationError(
                    1, f"{self.at}: one batch is at offset {self._where[frame.body]} and again at {frame.base_offset}"
                )
            if header.producer_id >= 0 and not header.is_control:
                key = (header.producer_id, header.producer_epoch)
                expected = self._next_sequence.get(key, 0)
                if header.base_sequence != expected:
                    raise ViolationError(
                        3,
                        f"{self.at}: producer {header.producer_id} has sequence {header.base_sequence} at offset "
                        f"{frame.base_offset}, {expected} comes next",
                    )
                self._next_sequence[key] = expected + header.record_count
            self._where[frame.body] = frame.base_offset
            self.given_up.discard(frame.body)
            self.frames.append(frame)
            self._bases.append(frame.base_offset)
            self.end = frame.next_offset
        if self.end < high_watermark:
            raise ViolationError(
                5, f"{self.at}: high watermark {high_watermark}, but the leader's log ends at {self.end}"
            )

    def count_as(self, frames: Sequence[StoredFrame]) -> list[StoredFrame]:
        """A log with these frames is the log from now on: what was committed behind the part that both share is lost,
        rightly. Returns that."""
        kept = list(self.frames)
        for number, frame in enumerate(self.frames):
            if frame.base_offset >= self.log_start and missing([frame], frames) is not None:
                kept = self.frames[:number]
                break
        lost = self.frames[len(kept) :]
        self.given_up.update(frame.body for frame in lost)
        self.frames, self._bases, self._where, self._next_sequence, self.end = [], [], {}, {}, 0
        self.extend(kept, 0)
        return lost

    def reached_by(self, frames: Sequence[StoredFrame]) -> int:
        """Up to where a log with these frames has what is committed and not deleted."""
        lacks = (each for each in self.frames if each.base_offset >= self.log_start and missing([each], frames))
        return next((each.base_offset for each in lacks), self.end)

    def between(self, start: int, end: int) -> Sequence[StoredFrame]:
        """The frames that begin in the range."""
        return self.frames[bisect_left(self._bases, start) : bisect_left(self._bases, end)]

    def frame_at(self, offset: int) -> StoredFrame | None:
        """The frame that begins there."""
        position = bisect_left(self._bases, offset)
        found = self.frames[position : position + 1]
        return found[0] if found and found[0].base_offset == offset else None

    def offset_of(self, body: int) -> int | None:
        """Where a batch is."""
        return self._where.get(body)

    def missing_in(self, frames: Sequence[StoredFrame], start: int, end: int) -> str | None:
        """What a log with these frames lacks of the committed ones in the range, or has otherwise; None: nothing."""
        return missing(self.between(max(start, self.log_start), end), frames)


def missing(wanted: Sequence[StoredFrame], frames: Sequence[StoredFrame]) -> str | None:
    """What a log with ``frames`` lacks of those wanted, or has otherwise; None: nothing."""
    bases = [frame.base_offset for frame in frames]
    for each in wanted:
        position = bisect_left(bases, each.base_offset)
        if position == len(frames) or bases[position] != each.base_offset:
            return f"offset {each.base_offset} (epoch {each.header.leader_epoch}) is not there"
        if frames[position].content != each.content:
            epoch = frames[position].header.leader_epoch
            return f"offset {each.base_offset} is another frame: epoch {epoch} instead of {each.header.leader_epoch}"
    return None
