"""The offsets to which a group is reset, as people type them."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_runtime.contract.errors import InvalidPartitionsError, InvalidTopicError, OptionError
from broker_runtime.contract.model import TopicPartition
from pyspark_log.cli.arguments import EARLIEST, LATEST, AtOffset, AtTime
from pyspark_log.cli.reset import Shift, parse_offsets_file, parse_target, parse_topics, read_offsets_file, within_log

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", AtOffset(EARLIEST)), ("latest", AtOffset(LATEST)), ("42", AtOffset(42)), ("+10", Shift(10)),
        ("-10", Shift(-10)), ("1h", AtTime(6_400_000)), ("1970-01-01T00:00:05+00:00", AtTime(5_000)),
    ],
)  # fmt: skip
def test_target_is_a_position_or_a_shift_from_the_committed_offset(text: str, target: object) -> None:
    """W27: a target is earliest, latest, N, +N, -N, a time or an age."""
    assert parse_target(text, now_ms=10_000_000) == target


@pytest.mark.parametrize("text", ["", "yesterday", "+", "--1", "1.5", "+1h"])
def test_invalid_target_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(OptionError, match=r"--to.*earliest, latest.*\+10"):
        parse_target(text, now_ms=0)


def test_topics_are_given_whole_or_with_partitions() -> None:
    """``-t`` may be repeated; a whole topic wins over some of its partitions."""
    assert parse_topics(["a", "b:0,2", "b:1,2"]) == {"a": None, "b": [0, 2, 1]}
    assert parse_topics(["a:1", "a"]) == parse_topics(["a", "a:1"]) == {"a": None}


@pytest.mark.parametrize("text", ["a,b", "a:", "a:x", "a:1,", "a:-1", "a:1,b:2", "a:" + "1" * 5_000])
def test_invalid_topics_are_refused(text: str) -> None:
    with pytest.raises(InvalidPartitionsError, match="flights:0,2"):
        parse_topics([text])


def test_topics_must_be_names() -> None:
    with pytest.raises(InvalidTopicError):
        parse_topics(["a/b:0"])


def test_offsets_file_may_have_a_heading() -> None:
    """W27: the file is an export of another group's offsets."""
    assert parse_offsets_file(["topic,partition,offset", "a,0,5", "", " a , 1 , 7 "], name="f") == {A0: 5, A1: 7}
    assert parse_offsets_file(["a,0,5"], name="f") == {A0: 5}


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["a,0"], "f, line 1"), (["a,0,5", "a,0,x"], "f, line 2"), (["a,0,-5"], "f, line 1"),
        (["a,0,5", "a,0,6"], "line 2: a:0 occurs twice"), ([], "f has no line"),
        (["topic,partition,offset"], "f has no line"), (["", "a,0," + "1" * 5_000], "f, line 2"),
        (["a,0,5", "a,1," + "1" * 200_000], "f, line 2: field larger"),
    ],
)  # fmt: skip
def test_offsets_file_with_other_lines_is_refused_by_line(lines: list[str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse_offsets_file(lines, name="f")


def test_offsets_file_may_begin_as_a_spreadsheet_writes_it(tmp_path: Path) -> None:
    """W27: a CSV file in UTF-8 may begin with the byte order mark that some programs write."""
    file = tmp_path / "offsets.csv"
    file.write_bytes(b"\xef\xbb\xbftopic,partition,offset\r\na,0,5\r\n")
    assert read_offsets_file(file) == {A0: 5}


def test_offsets_file_in_another_encoding_is_refused_by_name(tmp_path: Path) -> None:
    """W27: the error names the file and the encoding it must have."""
    file = tmp_path / "offsets.csv"
    file.write_bytes("a,0,5\n".encode("utf-16"))
    with pytest.raises(OptionError, match=r"offsets\.csv.*UTF-8"):
        read_offsets_file(file)


def test_offsets_outside_the_log_are_moved_into_it_and_reported() -> None:
    """W27: a reset never sets an offset outside the log."""
    new, remarks = within_log({A0: 3, A1: 99}, {A0: 5, A1: 0}, {A0: 9, A1: 8})
    assert new == {A0: 5, A1: 8}
    assert remarks == ["Some offsets are outside the log; the nearest offset is used: a:0 has 5 to 9, a:1 has 0 to 8."]
    assert within_log({A0: 99, A1: 99}, {A0: 5, A1: 0}, {A0: 9, A1: 8})[1] == [
        "Offset 99 is outside the log; the nearest offset is used: a:0 has 5 to 9, a:1 has 0 to 8."
    ]
    assert within_log({A0: 9, A1: 0}, {A0: 5, A1: 0}, {A0: 9, A1: 8}) == ({A0: 9, A1: 0}, [])
