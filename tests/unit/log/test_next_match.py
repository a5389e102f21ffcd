"""Where the next frames are in which a row can match: found by heads alone, which are kept."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.frame import TransactionEnd, encode_control, parse_directory, parse_header
from broker_runtime.contract.predicate import parse_predicate
from broker_runtime.contract.predicate.frames import (
    METADATA_IDS,
    UNKNOWN_BOUNDS,
    Bounds,
    FrameTest,
    Step,
    bounds_in_frame,
    frame_test,
)
from broker_runtime.log import PartitionLog
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.log.frame_heads import FrameHeads
from tests.topic_settings import topic_settings
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


_SEARCHES = st.lists(
    st.tuples(
        st.sampled_from(["offset", "timestamp", "both", "either"]),
        st.integers(0, 41),
        st.integers(0, 41),
        st.integers(0, 83),
    ),
    min_size=1,
    max_size=8,
)


@given(st.lists(st.integers(0, 40), min_size=42, max_size=42), _SEARCHES, st.sampled_from([1, 3_000, 1 << 20]))
@settings(max_examples=150)
def test_runs_hold_every_matching_frame_and_no_other(
    seconds: list[int], searches: list[tuple[str, int, int, int]], max_bytes: int
) -> None:
    """S8: as if each frame were looked at alone, from any offset, whatever earlier searches have left behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("broker_runtime.log.frame_heads.RUN_BYTES", 2_000)  # some five frames
        log = open_log(open_directory())
        for second in seconds:
            append(log, frame(2, timestamps=second * 1000), now_ms=50_000, commit=False)
        for kind, number, second, start in searches:
            by_offset, by_time = (
                f"_metadata.offset >= {2 * number}",
                f"_metadata.timestamp = '1970-01-01 00:00:{second:02}Z'",
            )
            text = {"offset": by_offset, "timestamp": by_time, "both": f"{by_offset} AND {by_time}"}.get(
                kind, f"{by_offset} OR {by_time}"
            )
            covered = {
                offset // 2
                for first, last in runs(log, text, start=start, max_bytes=max_bytes)
                for offset in range(first, last)
            }
            tests = [(index >= number, each == second) for index, each in enumerate(seconds)]
            matching = {
                index
                for index, (late, on_time) in enumerate(tests)
                if {"offset": late, "timestamp": on_time, "both": late and on_time}.get(kind, late or on_time)
            }
            assert covered == {index for index in matching if index >= start // 2}


def test_search_passes_over_whole_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was searched once costs a look per run, and its frames are not looked at."""
    monkeypatch.setattr("broker_runtime.log.frame_heads.RUN_BYTES", 2_000)
    log = open_log(open_directory())
    fill(log, 40, rows=2)
    assert runs(log, "_metadata.offset > 99") == []
    looked: list[int] = []
    may_match = FrameTest.may_match
    monkeypatch.setattr(FrameTest, "may_match", lambda test, bounds: looked.append(1) or may_match(test, bounds))  # type: ignore[func-returns-value]
    assert runs(log, "_metadata.offset > 98") == []
    assert len(looked) < 20
    assert runs(log, "_metadata.offset = 51") == [(50, 52)]


def test_run_claims_nothing_that_only_some_of_its_frames_were_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two searches looked at times and offsets of the run's end, the third at the offsets of all its frames."""
    monkeypatch.setattr("broker_runtime.log.frame_heads.RUN_BYTES", 2_000)
    log = open_log(open_directory())
    for second in (7, 1, 1, 1, 1, 1, 1, 1):
        append(log, frame(2, timestamps=second * 1000), now_ms=50_000)
    at_one, at_seven = (f"_metadata.timestamp = '1970-01-01 00:00:0{second}Z'" for second in (2, 7))
    assert runs(log, at_one, start=2) == []
    assert runs(log, "_metadata.offset > 99", start=2) == []
    assert runs(log, "_metadata.offset > 99") == []
    assert runs(log, at_seven) == [(0, 2)]


def test_search_never_passes_what_may_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not committed may be replaced by other records."""
    monkeypatch.setattr("broker_runtime.log.frame_heads.RUN_BYTES", 2_000)
    log = open_log(open_directory())
    fill(log, 20, rows=2)
    assert runs(log, "_metadata.offset > 99") == []
    for upto in range(1, 41):
        found = log.next_match(0, where("_metadata.offset > 99"), max_bytes=1, upto=upto, stop=40)
        assert found == (upto // 2 * 2, upto // 2 * 2)


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
        found.load()


def test_statistics_that_cannot_be_read_say_nothing() -> None:
    """S8: damaged or missing statistics keep a frame. The checksum holds: a producer wrote them so."""
    sound = frame(40)
    header = parse_header(sound)
    directory = parse_directory(memoryview(sound), header)
    test = FrameTest([Step(what="null", column=1)])
    key = (1, 0, 0)
    assert bounds_in_frame(test.keys, header, directory, 0) == {key: Bounds(has_nulls=False, has_nan=False)}
    broken = directory._replace(data=memoryview(b"\xff" * len(directory.data)))
    assert bounds_in_frame(test.keys, header, broken, 0) == {key: UNKNOWN_BOUNDS}


def test_few_bounds_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the segments that were searched last, of all logs together, however many columns are asked for."""
    monkeypatch.setattr("broker_runtime.log.directory.FrameHeads", lambda: heads)
    heads = FrameHeads(most=150)
    directory = open_directory()
    logs = [open_log(directory, partition=number) for number in range(3)]
    for log in logs:
        fill(log, 30)
        assert runs(log, "_metadata.offset > 99") == []
        assert len(heads) <= 150
    assert len(heads) > 60
    for number in range(40):
        steps = [Step(what="null", column=column) for column in range(number, number + 12)]
        test = FrameTest([*steps, Step(what="and", parts=12)])
        logs[0].next_match(0, test, max_bytes=1, upto=30, stop=30)
        assert len(heads) <= 150
    wide = FrameTest([*(Step(what="null", column=column) for column in range(400)), Step(what="and", parts=400)])
    before = len(heads)
    logs[0].next_match(0, wide, max_bytes=1, upto=30, stop=30)
    assert len(heads) <= before


def test_control_frames_end_no_run() -> None:
    """Or each transaction would be an answer of its own."""
    log = open_log(open_directory())
    append(log, frame(2))
    append(
        log, encode_control(TransactionEnd(transactional_id="x", epoch=0, batch_id=0, last_stable_offset=3), now_ms=1)
    )
    append(log, frame(2))
    end = log.log_end_offset
    assert log.next_match(0, where("_metadata.offset < 99"), max_bytes=1 << 20, upto=end, stop=end) == (0, end)


def test_times_are_the_brokers_where_the_topic_says_so() -> None:
    """LogAppendTime: what the producer's clock said does not count."""
    log = open_log(open_directory(), topic_settings(message_timestamp_type="LogAppendTime"))
    append(log, frame(2, timestamps=9_000_000), now_ms=1_000)
    assert runs(log, "_metadata.timestamp < TIMESTAMP '1970-01-01 00:00:02Z'") == [(0, 2)]
    assert runs(log, "_metadata.timestamp > TIMESTAMP '1970-01-01 00:10:00Z'") == []


def test_search_of_a_long_log_takes_no_longer_than_allowed() -> None:
    """It says how far it is."""
    log = open_log(open_directory())
    fill(log, 200)
    began = time.monotonic()
    at, end = log.next_match(0, where("_metadata.offset > 999"), max_bytes=1, upto=200, stop=200, limit_s=0.0)
    assert at == end >= 1
    assert time.monotonic() - began < 10
