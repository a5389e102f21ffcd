"""Frames found by a read, not loaded yet.

Rule: what is damaged is never given out (slice_check.py). A slice holds its file: retention, deletion and truncation of
the log change nothing in what `load` returns, as files are unlinked or replaced, never shortened or written where a
slice points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

import pyarrow as pa

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import HEADER_BYTES
from broker_runtime.log.files import FileSystem
from broker_runtime.log.open_files import HeldFile
from broker_runtime.log.projected_read import ProjectedRead
from broker_runtime.log.slice_check import SliceCheck


class LogSlice:
    """Whole frames [start_offset, next_offset), ``size_bytes`` of one segment. Close it, or use ``with``.

    ``start_offset`` is the first frame's and may lie before the offset asked for. One thread at a time.
    """

    __slots__ = (
        "_check", "_fail", "_files", "_held", "_is_closed", "_is_verified", "_position", "next_offset", "size_bytes",
        "start_offset",
    )  # fmt: skip

    def __init__(
        self,
        files: FileSystem,
        held: HeldFile,
        *,
        position: int,
        size_bytes: int,
        start_offset: int,
        next_offset: int,
        fail: Callable[[str, OSError], NoReturn],
        check: SliceCheck,
        is_verified: bool,
    ) -> None:
        """Takes over one hold of ``held``. ``fail`` turns an `OSError` into the log's `LogStorageError`.
        ``is_verified``: this process did so when it appended the frames."""
        self._files = files
        self._held = held
        self._position = position
        self._fail = fail
        self._check = check
        self._is_verified = is_verified
        self._is_closed = False
        self.start_offset = start_offset
        self.next_offset = next_offset
        self.size_bytes = size_bytes

    def __repr__(self) -> str:
        return f"LogSlice({self.start_offset}..{self.next_offset} bytes={self.size_bytes} of {self._held.path.name})"

    def load(self) -> pa.Buffer:
        """The frames, in memory of their own; they end, and `next_offset` is, before the first that is damaged.

        Blocks on the disk. Raises `CorruptRecordError` where the first one is, or the file ends early,
        `LogStorageError`.
        """
        return self._load(is_verified=self._is_verified)

    def load_projected(self, column_ids: Iterable[int]) -> pa.Buffer:
        """The frames pruned to the chunks of ``column_ids``, in memory of their own; the rest is not read.

        A frame whose columns share one chunk comes whole, and so may all before a damaged one. Blocks on the disk.
        Raises as `load`.
        """
        assert not self._is_closed, "a closed slice may read another file's bytes"
        end = self._position + self.size_bytes
        try:
            answer = ProjectedRead(self._files, self._held, column_ids).load(self._position, end, self.start_offset)
        except OSError as error:
            self._fail(f"read {self._held.path}", error)
        except CorruptRecordError:
            return self._load(is_verified=False)  # what is sound, as it is
        return answer if self._is_verified else self._sound_part(answer)

    def load_head(self) -> memoryview:
        """The first frame's header as it is on the disk, nothing verified; `load` looks whether it is damaged.

        Blocks on the disk. Raises `CorruptRecordError` where the file ends early, `LogStorageError`.
        """
        head = memoryview(bytearray(HEADER_BYTES))
        self._read_into([head], self._position)
        return head

    def close(self) -> None:
        """Gives the file back. Again is fine."""
        if not self._is_closed:
            self._is_closed = True
            self._held.release()

    def __enter__(self) -> LogSlice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self, *, is_verified: bool) -> pa.Buffer:
        buffer = pa.allocate_buffer(self.size_bytes)
        self._read_into([memoryview(buffer).cast("B")], self._position)
        return buffer if is_verified else self._sound_part(buffer)

    def _sound_part(self, frames: pa.Buffer) -> pa.Buffer:
        frames, self.next_offset = self._check.sound_part(frames, self.start_offset, self.next_offset)
        return frames

    def _read_into(self, buffers: list[memoryview], position: int) -> None:
        assert not self._is_closed, "a closed slice may read another file's bytes"
        wanted = sum(buffer.nbytes for buffer in buffers)
        try:
            got = self._files.read_into(self._held.descriptor, buffers, position)
        except OSError as error:
            self._fail(f"read {self._held.path}", error)
        if got != wanted:
            damage = CorruptRecordError(
                f"{self._held.path} ends at position {position + got}, offsets "
                f"{self.start_offset} to {self.next_offset - 1} need it to {position + wanted}"
            )
            self._check.suspect(damage, self.start_offset)
            raise damage
