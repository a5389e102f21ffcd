"""Which leader epoch began at which offset: the file ``leader-epoch-checkpoint`` (KIP-101).

One entry per epoch: ``<epoch> <start offset>``, in a checkpoint file (checkpoint.py). Every frame carries its epoch,
so the file can be rebuilt from the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from broker_runtime.contract.errors import FencedLeaderEpochError
from broker_runtime.log.checkpoint import encode_entries, read_entries
from broker_runtime.log.files import FileSystem, replace_file

EPOCHS_NAME = "leader-epoch-checkpoint"
UNDEFINED = -1


class LeaderEpochs:
    """The epochs of one log. Not thread-safe: the log's lock guards it."""

    def __init__(self, files: FileSystem, path: Path, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._files = files
        self._path = path
        # Invariant: epochs rise strictly, start offsets never fall.
        self._entries: tuple[tuple[int, int], ...] = tuple(entries)

    @classmethod
    def load(cls, files: FileSystem, path: Path) -> LeaderEpochs | None:
        """None where the file is missing or damaged. Raises `OSError`."""
        rows = read_entries(files, path, field_count=2)
        if rows is None:
            return None
        entries = [(int(epoch), int(start)) for epoch, start in rows]
        if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(entries)):
            return None
        return cls(files, path, entries)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset), rising."""
        return self._entries

    @property
    def latest(self) -> int:
        """The newest epoch, or -1."""
        return self._entries[-1][0] if self._entries else UNDEFINED

    def assign(self, epoch: int, start_offset: int) -> None:
        """``epoch`` begins at ``start_offset``. Durable when it returns. The current epoch changes nothing.

        Raises `FencedLeaderEpochError` for an epoch older than the newest, `OSError`.
        """
        if epoch == self.latest:
            return
        if epoch < self.latest:
            raise FencedLeaderEpochError(f"leader epoch {epoch} is older than {self.latest}, the newest in the log")
        self._write((*(entry for entry in self._entries if entry[1] < start_offset), (epoch, start_offset)))

    def truncate_from_end(self, end_offset: int) -> None:
        """Forgets epochs that began at or after ``end_offset``. Raises `OSError`."""
        kept = tuple(entry for entry in self._entries if entry[1] < end_offset)
        if len(kept) != len(self._entries):
            self._write(kept)

    def truncate_from_start(self, start_offset: int) -> None:
        """Forgets epochs that ended at or before ``start_offset``; the one at ``start_offset`` begins there.

        Raises `OSError`.
        """
        behind = [entry for entry in self._entries if entry[1] > start_offset]
        before = [entry for entry in self._entries if entry[1] <= start_offset]
        kept = ((before[-1][0], start_offset), *behind) if before else tuple(behind)
        if kept != self._entries:
            self._write(kept)

    def replace(self, entries: Iterable[tuple[int, int]]) -> None:
        """Makes ``entries`` the content, durably. Raises `OSError`."""
        entries = tuple(entries)
        if entries != self._entries:
            self._write(entries)

    def _write(self, entries: tuple[tuple[int, int], ...]) -> None:
        replace_file(self._files, self._path, encode_entries(entries))
        self._entries = entries
