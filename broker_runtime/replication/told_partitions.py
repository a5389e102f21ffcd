"""What a leader knows of its follower's partitions in one fetch session, and of which it is to be told next.

Rule: nothing is lost: a partition is told when it comes to be followed, when its log has moved since it was told, when
it may be asked for again after a failure, and every `RETELL_MS` although nothing happened: leaders go by how long ago
a follower was heard of, and hear that way of what no message told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from broker_runtime.contract.model import TopicPartition

RETELL_MS: Final = 2_000
_SMALLEST_SHARE: Final = 16

_Asked = TypeVar("_Asked")


@dataclass(slots=True)
class _Told(Generic[_Asked]):
    asked: _Asked
    at_ms: int


class ToldPartitions(Generic[_Asked]):
    """One session's. Not thread-safe. ``_Asked``: what was told of a partition."""

    def __init__(self) -> None:
        self._told: dict[TopicPartition, _Told[_Asked]] = {}  # the one that was told longest ago comes first
        self.unsaid: dict[TopicPartition, None] = {}  # of these there is, or may be, something to tell

    def __len__(self) -> int:
        return len(self._told)

    def get(self, at: TopicPartition) -> _Asked | None:
        """What the leader knows of it; None: nothing."""
        known = self._told.get(at)
        return None if known is None else known.asked

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._told)

    def say(self, at: TopicPartition, asked: _Asked, now_ms: int) -> None:
        """The next request tells this of it."""
        self._told.pop(at, None)
        self._told[at] = _Told(asked, now_ms)

    def forget(self, at: TopicPartition) -> bool:
        """The leader is to leave it out; whether it knew of it."""
        return self._told.pop(at, None) is not None

    def take_unsaid(self, now_ms: int) -> dict[TopicPartition, None]:
        """What is to be looked at for the next request: the unsaid, and a share of what was told long ago."""
        unsaid, self.unsaid = self.unsaid, {}
        share = max(_SMALLEST_SHARE, len(self._told) // 4)
        for (at, known), _ in zip(self._told.items(), range(share), strict=False):
            if now_ms - known.at_ms < RETELL_MS:
                break
            unsaid[at] = None
        return unsaid
