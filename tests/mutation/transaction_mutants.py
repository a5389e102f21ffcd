"""Mutants of transactions. See `mutants`."""

from __future__ import annotations

from typing import Final

from tests.mutation.harness import Mutant

TRANSACTIONS: Final = (
    Mutant(
        name="open_transaction_is_stable",
        file="broker_runtime/log/transactions.py",
        old="return min(high_watermark, first, self._first_open(high_watermark))",
        new="return min(high_watermark, first)",
        breaks="Nothing at or above the first offset of an open transaction is stable.",
        tests=(
            "tests/unit/transactions/test_ending.py",
            "tests/unit/transactions/test_transactional_id.py",
            "tests/unit/log/test_transactions.py",
        ),
    ),
    Mutant(
        name="end_is_stable_before_it_is_committed",
        file="broker_runtime/log/transactions.py",
        old="return min(high_watermark, first, self._first_open(high_watermark))",
        new="return min(high_watermark, self._first_open(high_watermark))",
        breaks="A transaction ends for readers when its end is committed, not when it is appended.",
        tests=(
            "tests/unit/transactions/test_ending.py",
            "tests/unit/transactions/test_transactional_id.py",
            "tests/unit/log/test_transactions.py",
        ),
    ),
    Mutant(
        name="decided_batch_stays_open",
        file="broker_runtime/log/transactions.py",
        old="            or begin.batch_id <= self.batch_id\n",
        new="",
        breaks="A decision ends all transactions of its batch.",
        tests=(
            "tests/unit/transactions/test_ending.py",
            "tests/unit/transactions/test_transactional_id.py",
            "tests/unit/log/test_transactions.py",
        ),
    ),
    Mutant(
        name="decided_batch_begins_again",
        file="broker_runtime/log/transactions.py",
        old="        if begin.batch_id <= known.batch_id:",
        new="        if False:",
        breaks="No transaction begins in a batch that has ended.",
        tests=(
            "tests/unit/transactions/test_ending.py",
            "tests/unit/transactions/test_transactional_id.py",
            "tests/unit/log/test_transactions.py",
        ),
    ),
    Mutant(
        name="full_end_ends_the_batch",
        file="broker_runtime/log/transactions.py",
        old="batch_id=outcomes.batch_id if ends_all else -1",
        new="batch_id=outcomes.batch_id",
        breaks="An end that has not room for all does not say that the batch is over.",
        tests=(
            "tests/unit/transactions/test_ending.py",
            "tests/unit/transactions/test_transactional_id.py",
            "tests/unit/log/test_transactions.py",
        ),
    ),
    Mutant(
        name="end_forgets_what_stays_open",
        file="broker_runtime/log/transactions.py",
        old="min((self.open[each].first_offset for each in kept), default=offset + 1)",
        new="offset + 1",
        breaks="An end names the last stable offset beside what stays open.",
        tests=(
            "tests/unit/transactions/test_ending.py",
            "tests/unit/transactions/test_transactional_id.py",
            "tests/unit/log/test_transactions.py",
        ),
    ),
    Mutant(
        name="superseded_run_decides",
        file="broker_runtime/transactions/transactional_id.py",
        old="    if run_id != record.run_id or epoch != record.epoch:\n        raise _fenced",
        new="    if epoch != record.epoch:\n        raise _fenced",
        breaks="A run that was taken over from decides nothing.",
        tests=(
            "tests/unit/transactions/test_ending.py",
            "tests/unit/transactions/test_transactional_id.py",
            "tests/unit/log/test_transactions.py",
        ),
    ),
    Mutant(
        name="aborted_transaction_is_committed",
        file="broker_runtime/transactions/transactional_id.py",
        old="    if is_commit and any(overlap(ids, record.aborted)):",
        new="    if False:",
        breaks="What was aborted because of its time limit cannot be committed.",
        tests=(
            "tests/unit/transactions/test_ending.py",
            "tests/unit/transactions/test_transactional_id.py",
            "tests/unit/log/test_transactions.py",
        ),
    ),
    Mutant(
        name="decided_transaction_is_aborted_late",
        file="broker_runtime/transactions/transactional_id.py",
        old="if not any(overlap([(each, each)], committed))]",
        new="]",
        breaks="A time limit changes no decision.",
        tests=(
            "tests/unit/transactions/test_ending.py",
            "tests/unit/transactions/test_transactional_id.py",
            "tests/unit/log/test_transactions.py",
        ),
    ),
    Mutant(
        name="earlier_decisions_are_forgotten",
        file="broker_runtime/transactions/transactional_id.py",
        old=("committed=tuple(merged(each for decision in _decisions(record) for each in decision.producer_ids)),"),
        new="committed=() if record.last is None else record.last.producer_ids,",
        breaks="A decision is kept until all its partitions know it.",
        tests=(
            "tests/unit/transactions/test_ending.py",
            "tests/unit/transactions/test_transactional_id.py",
            "tests/unit/log/test_transactions.py",
        ),
    ),
    Mutant(
        name="transaction_without_a_time_limit",
        file="broker_runtime/transactions/ending.py",
        old="not over.ends(each) and self._age_ms(partition, each) > record.timeout_ms",
        new="self._age_ms(partition, each) > record.timeout_ms + 10**12",
        breaks="A transaction that is open for too long is aborted.",
        tests=(
            "tests/unit/transactions/test_ending.py",
            "tests/unit/transactions/test_transactional_id.py",
            "tests/unit/log/test_transactions.py",
        ),
    ),
    Mutant(
        name="clock_set_back_keeps_transactions_open",
        file="broker_runtime/transactions/ending.py",
        old="return max(self._wall_ms() - opened.began_ms, (self._clock.now_s() - known_since_s) * 1000)",
        new="return self._wall_ms() - opened.began_ms",
        breaks="A transaction ends within its time limit, though a clock was set back.",
        tests=("tests/unit/transactions/test_ending.py",),
    ),
    Mutant(
        name="run_that_begun_before_takes_over",
        file="broker_runtime/transactions/transactional_id.py",
        old="(run_id in record.earlier_runs or epoch >= 0)",
        new="run_id in record.earlier_runs",
        breaks="A run that has begun before takes over from nobody, however long ago that was.",
        tests=("tests/unit/transactions/test_transactional_id.py",),
    ),
    Mutant(
        name="control_frame_that_cannot_be_read_is_written",
        file="broker_runtime/contract/frame/control.py",
        old="        _DECODERS[_NUMBERS[type(control)]].decode(body)",
        new="        pass",
        breaks="A control frame that cannot be read gets into no log.",
        tests=("tests/unit/log/test_transactions.py",),
    ),
    Mutant(
        name="records_of_open_transactions_are_deleted",
        file="broker_runtime/replication/partition.py",
        old="if offset is not None and offset > stable:",
        new="if False:",
        breaks="Records are deleted up to the last stable offset, and no further.",
        tests=("tests/unit/transactions/test_ending.py",),
    ),
    Mutant(
        name="clock_that_is_behind_makes_an_id_unused",
        file="broker_runtime/transactions/transactional_id.py",
        old="    used_at_ms = max(now_ms, record.used_at_ms)\n",
        new="    used_at_ms = now_ms\n",
        breaks="The time at which a transactional id was last used never falls.",
        tests=("tests/unit/transactions/test_ending.py",),
    ),
    Mutant(
        name="end_that_followers_lack_is_finished",
        file="broker_runtime/transactions/ending.py",
        old="            has_ended and partition is not None and self._complete(partition, deadline)",
        new="            has_ended and partition is not None",
        breaks="A decision is finished when all in-sync replicas have its end.",
        tests=(
            "tests/unit/transactions/test_ending.py",
            "tests/unit/transactions/test_transactional_id.py",
            "tests/unit/log/test_transactions.py",
        ),
    ),
    Mutant(
        name="offsets_outside_the_decision",
        file="broker_runtime/transactions/coordination.py",
        old="return Planned(result, [own, *beside()])",
        new="return Planned(result, [own])",
        breaks="A group's offsets are committed with the decision, or not at all.",
        tests=(
            "tests/unit/transactions/test_ending.py",
            "tests/unit/transactions/test_transactional_id.py",
            "tests/unit/log/test_transactions.py",
        ),
    ),
    Mutant(
        name="decision_read_from_a_server_behind",
        file="broker_runtime/transactions/coordination.py",
        old="            barrier(self._client)\n",
        new="",
        breaks="A leader that is told of a decision reads at least that one.",
        tests=(
            "tests/unit/transactions/test_ending.py",
            "tests/unit/transactions/test_transactional_id.py",
            "tests/unit/log/test_transactions.py",
        ),
    ),
)
