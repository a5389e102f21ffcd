"""Where the next frames are in which a row can match: found by heads alone, which are kept."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.predicate import parse_predicate
from broker_runtime.contract.predicate.frames import METADATA_IDS, FrameTest, frame_test
from broker_runtime.log import PartitionLog
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.log.frame_heads import FrameHeads
from tests.unit.log.log_samples import append, fill, flip, frame, open_directory, open_log, segment_path


def where(text: str) -> FrameTest:
    return FrameTest(frame_test(parse_predicate(text, {}), METADATA_IDS.get))


def runs(log: PartitionLog, text: str, *, start: int = 0, max_bytes: int = 1 << 20) -> list[tuple[int, int]]:
    """All runs of frames that may match, up to the end."""
    found = []
    at, end = start, log.log_end_offset
    while at < end:
        first, last = log.next_match(at, where(text), max_bytes=max_bytes, upto=end, stop=end)
        assert at <= max(first, at) <= last <= end
        if first < last:
            found.append((first, last))
        assert last > at
        at = last
    return found


def test_runs_end_with_segments_frames_that_cannot_match_and_bytes() -> None:
    """S8: two records a frame, some ten frames a segment of 8 KiB."""
    log = open_log(open_directory())
    fill(log, 40, rows=2, size=300)
    ends = [base for base in log.segment_base_offsets if base]
    assert len(ends) >= 2
    assert runs(log, "_metadata.offset < 3 OR _metadata.offset IN (9, 10)") == [(0, 4), (8, 12)]
    assert runs(log, "_metadata.offset >= 0") == list(zip([0, *ends], [*ends, 80], strict=True))
    assert runs(log, "_metadata.offset > 99") == []
    assert runs(log, "_metadata.offset >= 0", max_bytes=1)[:3] == [(0, 2), (2, 4), (4, 6)]
    assert runs(log, "_metadata.offset < 3", start=1) == [(0, 4)]


def test_search_ends_where_it_may_read_and_where_it_was_asked_to() -> None:
    """Frames that end behind ``upto`` are not committed; nothing that begins at ``stop`` or behind is looked for."""
    log = open_log(open_directory())
    fill(log, 10, rows=2)
    late = where("_metadata.offset >= 12")
    assert log.next_match(0, late, max_bytes=1 << 20, upto=13, stop=20) == (12, 12)
    assert log.next_match(0, late, max_bytes=1 << 20, upto=14, stop=20) == (12, 14)
    assert log.next_match(0, late, max_bytes=1 << 20, upto=20, stop=8) == (8, 8)
    assert log.next_match(0, late, max_bytes=1 << 20, upto=20, stop=20, limit_s=-1.0) == (2, 2)  # one head at least


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.integers(1, 20_000), st.randoms())
@settings(max_examples=60)
def test_runs_hold_every_matching_frame_and_no_other(wanted: list[int], max_bytes: int, rng: random.Random) -> None:
    """As if each frame were looked at alone, from any offset, whatever is known already."""
    log = open_log(open_directory())
    fill(log, 21, rows=3, size=400)
    text = f"_metadata.offset IN ({', '.join(str(3 * number + 1) for number in wanted)})"
    for start in rng.sample(range(63), 3):
        found = runs(log, text, start=start, max_bytes=max_bytes)
        covered = {offset // 3 for first, last in found for offset in range(first, last)}
        assert covered == {number for number in wanted if number >= start // 3}


def test_heads_are_read_once_for_each_thing_that_is_asked_of_them() -> None:
    """A search through a log that was searched before reads no head again."""
    files = FaultyFiles()
    log = open_log(open_directory(files))
    fill(log, 30, rows=2)
    reads: list[int] = []
    read = files.read
    files.read = lambda descriptor, size, position: reads.append(position) or read(descriptor, size, position)  # type: ignore[method-assign,func-returns-value]
    assert runs(log, "_metadata.offset > 99") == []
    first = len(reads)
    assert first >= 30
    assert runs(log, "_metadata.offset > 98") == []
    assert len(reads) - first < 10  # the index, and the header at which a search begins
    before = len(reads)
    assert runs(log, "_metadata.timestamp < TIMESTAMP '1970-01-01 00:00:01Z'") == []
    assert len(reads) - before >= 30
    before = len(reads)
    assert runs(log, "_metadata.offset = 7 AND _metadata.timestamp > TIMESTAMP '1970-01-01 00:00:00Z'") == [(6, 8)]
    assert len(reads) - before < 15


def test_log_that_was_shortened_is_searched_anew() -> None:
    """Other frames lie where the old ones were."""
    log = open_log(open_directory())
    early, late = frame(2, timestamps=1_000), frame(2, timestamps=3_000_000)
    for _ in range(4):
        append(log, early, commit=False)
    text = "_metadata.timestamp > TIMESTAMP '1970-01-01 00:30:00Z'"
    assert runs(log, text) == []
    log.truncate_to(4)
    append(log, late, late, commit=False)
    assert runs(log, text) == [(4, 8)]


def test_damaged_head_is_left_to_the_reader() -> None:
    """The search never passes over damage, which reading reports."""
    files = FaultyFiles()
    log = open_log(open_directory(files))
    fill(log, 5, rows=2)
    log.flush()
    flip(files, segment_path(0), 2 * len(frame(2)) + 70)
    assert log.next_match(0, where("_metadata.offset > 99"), max_bytes=1 << 20, upto=10, stop=10)[0] == 4
    with pytest.raises(CorruptRecordError), log.read(4, max_bytes=1 << 20, upto=10) as found:  # type: ignore[union-attr]
        found.load_projected([], where("_metadata.offset > 99"))


def test_few_heads_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The segments that were searched last, of all logs together."""
    monkeypatch.setattr("broker_runtime.log.directory.FrameHeads", lambda: heads)
    heads = FrameHeads(most=40)
    directory = open_directory()
    logs = [open_log(directory, partition=number) for number in range(3)]
    for log in logs:
        fill(log, 30)
        assert runs(log, "_metadata.offset > 99") == []
        assert len(heads) <= 40
    assert len(heads) > 0


def test_search_of_a_long_log_takes_no_longer_than_allowed() -> None:
    """It says how far it is."""
    log = open_log(open_directory())
    fill(log, 200)
    began = time.monotonic()
    at, end = log.next_match(0, where("_metadata.offset > 999"), max_bytes=1, upto=200, stop=200, limit_s=0.0)
    assert at == end >= 1
    assert time.monotonic() - began < 10
