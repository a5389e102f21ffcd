"""Comparing replicas byte by byte: `pylog log verify --compare`."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.log.inspect import compare_replicas
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import SMALL, TOPIC_ID, append, fill, frame, open_directory, open_log, read_frames

LEADER, FOLLOWER = Path("/leader"), Path("/follower")
OTHER_SEGMENTS = topic_settings(segment_bytes=3 << 10, index_interval_bytes=1 << 10)


def _replicas(files: FaultyFiles, frames: int, held: int, *, committed: int | None = None) -> None:
    """A leader with that many frames, and a follower with the first ``held`` of them, in other segments."""
    leader = open_log(open_directory(files, LEADER))
    fill(leader, frames, rows=2)
    with open_directory(files, FOLLOWER) as directory:
        follower = open_log(directory, OTHER_SEGMENTS)
        for _, data in read_frames(leader)[:held]:
            follower.append_as_follower(data)
        follower.flush()
        follower.set_high_watermark(held * 2 if committed is None else committed)


def test_replicas_with_other_segments_are_the_same() -> None:
    """W11: replicas are byte-identical, but each has its own segment boundaries."""
    files = FaultyFiles()
    _replicas(files, 50, 50)
    found = compare_replicas([LEADER / "t-0", FOLLOWER / "t-0"], files=files)
    assert (found.difference, found.start, found.end, found.frames) == (None, 0, 100, 50)


def test_replica_that_lacks_records_is_compared_up_to_its_end() -> None:
    """W11: records that a follower has yet to fetch are no difference."""
    files = FaultyFiles()
    _replicas(files, 50, 30)
    found = compare_replicas([LEADER / "t-0", FOLLOWER / "t-0"], files=files)
    assert (found.difference, found.end, found.log_ends) == (None, 60, (100, 60))


def test_uncommitted_records_may_differ() -> None:
    """W11: replicas are equal up to the high watermark, no further."""
    files = FaultyFiles()
    with open_directory(files, LEADER) as one, open_directory(files, FOLLOWER) as other:
        for log, seed in ((open_log(one), 7), (open_log(other), 8)):
            append(log, frame(2, seed=1))
            append(log, frame(2, seed=seed), commit=False)
            log.flush()
    found = compare_replicas([LEADER / "t-0", FOLLOWER / "t-0"], files=files)
    assert (found.difference, found.end, found.log_ends) == (None, 2, (4, 4))


def test_difference_names_both_replicas_and_the_offset() -> None:
    """W11: one different byte is found."""
    files = FaultyFiles()
    with open_directory(files, LEADER) as one, open_directory(files, FOLLOWER) as other:
        for log, seed in ((open_log(one), 7), (open_log(other), 8)):
            append(log, frame(2, seed=1))
            append(log, frame(2, seed=seed))
    found = compare_replicas([LEADER / "t-0", FOLLOWER / "t-0"], files=files)
    assert found.difference is not None
    assert found.difference.startswith("/leader/t-0 and /follower/t-0 differ at offset 2")


def test_damage_below_the_high_watermark_is_a_difference() -> None:
    """A flipped bit in one replica is found."""
    files = FaultyFiles()
    _replicas(files, 50, 50)
    path = next(Path("/follower/t-0") / name for name in files.list(Path("/follower/t-0")) if name.endswith(".log"))
    data = bytearray(files.content(path))
    data[len(data) // 2] ^= 1
    files.overwrite(path, bytes(data))
    found = compare_replicas([LEADER / "t-0", FOLLOWER / "t-0"], files=files)
    assert found.difference is not None
    assert "/follower/t-0 has no good frame with offset" in found.difference


def test_replicas_of_another_topic_id_are_refused() -> None:
    """Bad input: a recreated topic is another one."""
    files = FaultyFiles()
    with open_directory(files, LEADER) as one, open_directory(files, FOLLOWER) as other:
        append(open_log(one), frame())
        append(other.log("t", 0, uuid.UUID(int=5), SMALL), frame())
    with pytest.raises(CorruptRecordError, match=f"of {TOPIC_ID}: they are not replicas of one partition"):
        compare_replicas([LEADER / "t-0", FOLLOWER / "t-0"], files=files)
