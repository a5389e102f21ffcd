"""Record numbers: which records are in the log, in the form that `--skip` takes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_runtime.contract.errors import OptionError
from pyspark_log.cli.records.skip import RecordNumbers, Skipper, parse_skip, skip_argument


@given(st.sets(st.integers(1, 300)), st.randoms(use_true_random=False))
def test_reported_records_are_the_skipped_ones(numbers: set[int], random: object) -> None:
    """Any set of records survives the round trip through the argument, short or as a file."""
    given_numbers = RecordNumbers()
    order = sorted(numbers)
    random.shuffle(order)  # type: ignore[attr-defined]
    for number in order:
        given_numbers.add(number)
    assert len(given_numbers) == len(numbers)
    assert list(given_numbers) == sorted(numbers)
    argument = skip_argument(given_numbers)
    skipper = Skipper(parse_skip(argument))
    assert {number for number in range(1, 302) if skipper.skips(number)} == numbers
    if argument.startswith("@"):
        Path(argument[1:]).unlink()


def test_argument_for_a_prefix_is_its_length() -> None:
    """People type the number of records to skip."""
    assert skip_argument(parse_skip("1-5")) == "5"
    assert skip_argument(parse_skip("5")) == "5"
    assert skip_argument(parse_skip("0")) == "0"
    assert skip_argument(parse_skip("1-5,7-7")) == "1-5,7-7"
    assert parse_skip("1-5,7-7").first_missing == 6
    assert parse_skip("2-5").first_missing == 1


@pytest.mark.parametrize("text", ["", "x", "-1", "5-3", "0-3", "1,2", "1-2,", "1.5", "@/nowhere", "9" * 30])
def test_invalid_record_numbers_are_refused(text: str) -> None:
    """The exit status is 2, usage."""
    with pytest.raises(OptionError, match="--skip"):
        parse_skip(text)
