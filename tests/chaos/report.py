"""The actions, measurements and findings of a chaos run, in lines for people."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

from tests.chaos.history import Partition

_SHOWN_FAILURES: Final = 8


def end_on_sigterm() -> None:
    """From now on SIGTERM ends the run like an exception, so that everything open is closed."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


@dataclass
class Report:
    """Covers all rounds of a run. ``wrong``: a line for each violation."""

    alone: Counter[str] = field(default_factory=Counter)
    paired: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    ensembles: Counter[int] = field(default_factory=Counter)
    acknowledged: int = 0
    consumed: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    longest_silence_s: float = 0.0
    longest_silence_of_one: tuple[float, Partition | None] = (0.0, None)
    longest_without_leader: tuple[float, Partition | None] = (0.0, None)
    rounds: int = 0
    never: list[str] = field(default_factory=list)  # faults for which there was no time or opportunity
    wrong: list[str] = field(default_factory=list)

    def note_faults(self, names: Sequence[str]) -> None:
        """Records faults that were active together: one alone, or a pair."""
        (self.paired if len(names) > 1 else self.alone).update(names)

    @property
    def faults(self) -> int:
        """The number of faults."""
        return self.alone.total() + self.paired.total()

    def lines(self) -> list[str]:
        """The report for people."""
        width = max(map(len, (*self.alone, *self.paired)), default=0)
        ensembles = ", ".join(f"{count} with {servers}" for servers, count in sorted(self.ensembles.items()))
        failed = "".join(f"\n    {count} x {text}" for text, count in self.failed.most_common(_SHOWN_FAILURES))
        return [
            f"rounds {self.rounds} (ZooKeeper servers: {ensembles}); faults {self.faults}: alone / as part of a pair",
            *(
                f"    {name:<{width}}  {self.alone[name]:>4} / {self.paired[name]}"
                for name in sorted({*self.alone, *self.paired})
            ),
            *(f"left out: {text}" for text in self.left_out),
            *([f"never happened: {', '.join(self.never)}"] if self.never else []),
            f"records acknowledged {self.acknowledged:,}, read {self.consumed:,}; given up: {failed or 'none'}",
            f"longest time without a leader {_time_of(self.longest_without_leader)}",
            f"longest time without an acknowledgement {self.longest_silence_s:.1f} s; "
            f"of one partition {_time_of(self.longest_silence_of_one)}",
            *(self.wrong or ["nothing lost, duplicated, reordered, skipped or made up; replicas identical"]),
        ]


def _time_of(found: tuple[float, Partition | None]) -> str:
    longest_s, at = found
    return f"{longest_s:.1f} s" + (f" ({at[0]}-{at[1]})" if at is not None else "")
