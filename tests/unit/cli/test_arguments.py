"""Positions, durations and partitions as people type them."""

from __future__ import annotations

import datetime

import pytest

from broker_runtime.contract import model
from broker_runtime.contract.errors import InvalidConfigError, InvalidPartitionsError, InvalidTopicError, OptionError
from pyspark_log.cli import arguments
from pyspark_log.cli.arguments import (
    EARLIEST,
    LATEST,
    AtOffset,
    AtTime,
    FromEnd,
    parse_partition,
    parse_place,
    parse_settings,
    parse_timeout_s,
    parse_topic_and_partition,
)

NOW_MS = 1_700_000_000_000


def place(text: str) -> object:
    return parse_place(text, now_ms=NOW_MS, option="--from")


def test_arguments_use_the_protocols_values_for_the_logs_ends() -> None:
    """The constants that keep pyarrow out of `pylog --help` equal the model's."""
    assert (arguments.EARLIEST, arguments.LATEST) == (model.EARLIEST, model.LATEST)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", AtOffset(EARLIEST)),
        ("latest", AtOffset(LATEST)),
        ("end", AtOffset(LATEST)),
        ("42", AtOffset(42)),
        ("0", AtOffset(0)),
        ("-10", FromEnd(10)),
        ("1h", AtTime(NOW_MS - 3_600_000)),
        ("500ms", AtTime(NOW_MS - 500)),
        ("7d", AtTime(NOW_MS - 7 * 86_400_000)),
        ("2023-11-14T22:13:20Z", AtTime(NOW_MS)),
        ("2023-11-14T23:13:20+01:00", AtTime(NOW_MS)),
        ("1900-01-01", AtTime(0)),
    ],
)
def test_position_is_read_as_typed(text: str, expected: object) -> None:
    """--from earliest|latest|N|-N|1h|ISO."""
    assert place(text) == expected


def test_position_without_zone_is_local_time() -> None:
    """A time without a zone is local time."""
    local = datetime.datetime(2026, 1, 31, 12, 0).astimezone()
    assert place("2026-01-31T12:00") == AtTime(round(local.timestamp() * 1000))


@pytest.mark.parametrize(
    "text", ["", "soon", "1y", "--5", "1.5", "12345678901234567890", "2026-13-01", "٣", "0001-01-01", "9" * 20 + "w"]
)
def test_position_is_refused_by_name_with_what_is_allowed(text: str) -> None:
    """Errors name the value and what is allowed."""
    with pytest.raises(OptionError) as refused:
        place(text)
    assert repr(text) in refused.value.message
    assert "earliest, latest" in refused.value.message


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10.0), ("0.5", 0.5), ("500ms", 0.5), ("2m", 120.0), ("1h", 3600.0)]
)
def test_timeout_is_seconds_or_a_duration(text: str, seconds: float) -> None:
    """Timeouts in seconds; durations have units."""
    assert parse_timeout_s(text) == seconds


@pytest.mark.parametrize("text", ["0", "-1", "never", "2d", "1e3", ""])
def test_invalid_timeout_is_refused(text: str) -> None:
    """A wait has a bound and is longer than zero."""
    with pytest.raises(ValueError, match="must be"):
        parse_timeout_s(text)


def test_partition_is_topic_and_number() -> None:
    """`flights:0` names a partition; a topic's name has no colon."""
    assert parse_partition("flights:0") == model.TopicPartition("flights", 0)
    assert parse_topic_and_partition("flights") == ("flights", None)
    assert parse_topic_and_partition("a.b-c:12") == ("a.b-c", 12)


@pytest.mark.parametrize("text", ["flights", "flights:", "flights:x", "flights:-1", ":0"])
def test_invalid_partition_is_refused(text: str) -> None:
    """Text that names no partition is refused."""
    with pytest.raises((InvalidPartitionsError, InvalidTopicError)):
        parse_partition(text)


def test_settings_are_names_and_values() -> None:
    """`-c name=value` sets a setting; the value may contain `=`."""
    assert parse_settings(["retention.ms=7d", "a=b=c"], option="-c", example="") == {"retention.ms": "7d", "a": "b=c"}
    for wrong in ("retention", "=7d", ""):
        with pytest.raises(InvalidConfigError) as refused:
            parse_settings([wrong], option="-c", example="retention.ms=7d", error=InvalidConfigError)
        assert refused.value.message == f"-c {wrong!r}: must be NAME=VALUE, for example -c retention.ms=7d"
