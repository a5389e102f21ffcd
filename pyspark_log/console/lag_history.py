"""Groups' lag over time, for as long as pages show it.

Rule: each rendering of a page that shows a group adds a sample; there is no background sampling. The number of groups
and of samples is bounded.
Pure. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from broker_runtime.contract.model import GroupOffset, TopicPartition

_MOST_GROUPS: Final = 200
_MOST_SAMPLES: Final = 900  # half an hour of samples, two seconds apart
_LEAST_APART_S: Final = 0.9  # two tabs that show one group add no more samples than one
_RATE_OVER_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LagSample:
    """A group at one time. ``lag``, ``committed``, ``end``: summed over its partitions whose leaders answered. The last
    two are -1 where they are not known."""

    at_s: float
    lag: int
    committed: int = -1
    end: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Records per second, over the last half minute. ``catches_up_s``: seconds until the lag is gone at these rates;
    None: it does not shrink."""

    produced: float
    consumed: float
    catches_up_s: float | None


@dataclass(slots=True)
class LagHistory:
    """The samples of each group, the oldest first."""

    _samples: OrderedDict[str, deque[LagSample]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, group_id: str, sample: LagSample) -> None:
        """Keeps a sample, unless the last one is hardly older."""
        with self._lock:
            kept = self._samples.setdefault(group_id, deque(maxlen=_MOST_SAMPLES))
            self._samples.move_to_end(group_id)
            if not kept or sample.at_s - kept[-1].at_s >= _LEAST_APART_S:
                kept.append(sample)
            while len(self._samples) > _MOST_GROUPS:
                self._samples.popitem(last=False)

    def of(self, group_id: str) -> list[LagSample]:
        """The samples of a group, the oldest first."""
        with self._lock:
            return list(self._samples.get(group_id, ()))


def sample_of(offsets: Mapping[TopicPartition, GroupOffset], at_s: float) -> LagSample:
    """A sample from a group's offsets."""
    known = [each for each in offsets.values() if each.lag >= 0]
    return LagSample(
        at_s=at_s,
        lag=sum(each.lag for each in known),
        committed=sum(each.committed for each in known),
        end=sum(each.end for each in known),
    )


def pace_of(samples: list[LagSample]) -> Pace | None:
    """How fast a group consumes, and producers produce; None: there are too few samples."""
    known = [each for each in samples if each.end >= 0]
    if len(known) < 2:
        return None
    last = known[-1]
    first = next(each for each in known if last.at_s - each.at_s <= _RATE_OVER_S)
    seconds = last.at_s - first.at_s
    if seconds < 1 or last.end < first.end:  # the ends of some partitions are not known now
        return None
    produced = (last.end - first.end) / seconds
    consumed = max(0.0, (last.committed - first.committed) / seconds)
    gained = consumed - produced
    return Pace(
        produced=produced,
        consumed=consumed,
        catches_up_s=last.lag / gained if last.lag and gained > 0 else None,
    )
