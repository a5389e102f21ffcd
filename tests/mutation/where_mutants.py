"""Mutants of predicates: what brokers leave out by them, and what readers do with the rest. See `mutants`."""

from __future__ import annotations

from typing import Final

from tests.mutation.harness import Mutant

_SEARCH = ("tests/unit/log/test_next_match.py",)
_PREDICATE = ("tests/unit/predicate/test_predicates.py",)
_SERVICE = ("tests/unit/services/test_produce_and_fetch.py", "tests/unit/services/test_partition_read.py")
_CONSUMER = (
    "tests/unit/client/test_fetcher.py",
    "tests/unit/client/test_records.py",
    "tests/integration/client/test_where.py",
)

WHERE: Final = (
    Mutant(
        name="search_goes_on_behind_the_range",
        file="broker_runtime/log/reading.py",
        old="while at < end and at < stop:",
        new="while at < end and (found is not None or at < stop):",
        breaks="A small range before much else costs what is in it.",
        tests=_SERVICE,
    ),
    Mutant(
        name="read_goes_on_behind_the_range",
        file="broker_runtime/log/partition_log.py",
        old="if stop is not None and offset < stop < upto:",
        new="if False:",
        breaks="A small range before much else costs what is in it.",
        tests=_SERVICE,
    ),
    Mutant(
        name="frame_that_ends_behind_the_range_is_not_read",
        file="broker_runtime/log/partition_log.py",
        old="            if found is not None or not at_least_one:\n                return found\n",
        new="            return found\n",
        breaks="All of a range is read.",
        tests=_SERVICE,
    ),
    Mutant(
        name="run_claims_what_some_of_its_frames_were_asked",
        file="broker_runtime/log/frame_heads.py",
        old="            for key in self._keys:\n",
        new="            for key in head.bounds:\n",
        breaks="A run of frames is passed over only if no row of any of them can match.",
        tests=_SEARCH,
    ),
    Mutant(
        name="search_passes_the_readable_end",
        file="broker_runtime/log/reading.py",
        old="if head is None or head.next_offset > end or _may_match(test, head) is not False:",
        new="if head is None or _may_match(test, head) is not False:",
        breaks="No search goes beyond what is committed: other records may take that place.",
        tests=_SEARCH,
    ),
    Mutant(
        name="runs_nulls_are_those_of_all_frames",
        file="broker_runtime/contract/predicate/frames.py",
        old="has_nulls=one.has_nulls or other.has_nulls",
        new="has_nulls=one.has_nulls and other.has_nulls",
        breaks="A frame with a NULL is found by IS NULL.",
        tests=_PREDICATE,
    ),
    Mutant(
        name="bound_itself_is_no_match",
        file="broker_runtime/contract/predicate/frames.py",
        old="        true, false = low <= 0, high > 0\n",
        new="        true, false = low < 0, high > 0\n",
        breaks="A frame whose smallest value is the one asked for matches.",
        tests=_PREDICATE,
    ),
    Mutant(
        name="nan_is_no_larger_than_a_number",
        file="broker_runtime/contract/predicate/frames.py",
        old="        has_nan=known.kind == Kind.FLOAT and known.nan_count != 0,\n",
        new="        has_nan=False,\n",
        breaks="NaN is larger than all numbers, so a frame that may have one matches x > 5.",
        tests=_PREDICATE,
    ),
    Mutant(
        name="absent_column_is_unknown_to_the_range",
        file="broker_runtime/contract/predicate/spans.py",
        old="        return _common(parts) if isinstance(node, And) != is_negated else _hull(parts)\n",
        new="        return _common(parts) if isinstance(node, And) else _hull(parts)\n",
        breaks="NOT (a OR b) narrows a range as NOT a AND NOT b does, and no further.",
        tests=_PREDICATE,
    ),
    Mutant(
        name="long_search_is_silent",
        file="broker_runtime/services/read.py",
        old="                if position == plan.end or silence.expired:\n",
        new="                if position == plan.end:\n",
        breaks="A reader hears of a long search, or it takes the broker for dead.",
        tests=_SERVICE,
    ),
    Mutant(
        name="fetch_forgets_how_far_it_searched",
        file="broker_runtime/services/partition_read.py",
        old="        next_offset = max(next_offset, read.searched_to)\n",
        new="        pass\n",
        breaks="A stretch without matches is searched once per consumer, not with every fetch.",
        tests=_SERVICE,
    ),
    Mutant(
        name="part_of_a_batch_goes_on_behind_all_of_it",
        file="pyspark_log/client/records.py",
        old="next_offset=self.next_offset if stop == rows else self._end_of(start, stop)",
        new="next_offset=self.next_offset if stop else self._end_of(start, stop)",
        breaks="A position is behind what was delivered, and not behind what comes next.",
        tests=_CONSUMER,
    ),
    Mutant(
        name="stretches_without_matches_pile_up",
        file="pyspark_log/client/consumer/fetcher.py",
        old="            state.completed_fetches.pop()  #",
        new="            pass  #",
        breaks="What a consumer has fetched ahead is bounded, however little of it matches.",
        tests=_CONSUMER,
    ),
)
