"""The machine of one transactional id: who may begin, and the one decision about each batch."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker_runtime.contract.errors import (
    CheckpointBehindSinkError,
    ConcurrentTransactionsError,
    InvalidRequestError,
    InvalidTxnStateError,
    ProducerFencedError,
    ReplayDiffersError,
)
from broker_runtime.contract.frame import TransactionBegin
from broker_runtime.contract.transactions import NEXT_BATCH
from broker_runtime.log import OpenTransaction
from broker_runtime.transactions import transactional_id as machine
from broker_runtime.transactions.transactional_id import BatchState, Begun, Decided
from broker_runtime.zookeeper.znodes import DecidedPartitions, TransactionRecord

PARTITIONS = (DecidedPartitions(topic="t", topic_id=bytes(16), partitions=(0, 1)),)
DAY_MS = 86_400_000


def begin(
    record: TransactionRecord | None, run_id: str = "r1", batch_id: int = NEXT_BATCH, *, now_ms: int = 0
) -> Begun:
    return machine.begin(record, "a", run_id=run_id, batch_id=batch_id, timeout_ms=1000, keep_ms=DAY_MS, now_ms=now_ms)


def decide(record: TransactionRecord | None, batch_id: int, ids: list[tuple[int, int]], **changes: Any) -> Decided:
    given: dict[str, Any] = {
        "run_id": "r1",
        "epoch": 0 if record is None else record.epoch,
        "batch_id": batch_id,
        "is_commit": True,
        "producer_ids": ids,
        "partitions": PARTITIONS,
        "rows": 10,
        "payload_bytes": 100,
        "keeps_first": False,
        "now_ms": 0,
    }
    return machine.decide(record, "a", **{**given, **changes})


def decided(*batches: int, run_id: str = "r1") -> TransactionRecord:
    """A record in which these batches were committed, each by the producer id of its number, and are finished."""
    record = begin(None, run_id).record
    for batch_id in batches:
        record = machine.finish(decide(record, batch_id, [(batch_id, batch_id)], run_id=run_id).record, batch_id)
    return record


def is_over(record: TransactionRecord, batch_id: int, producer_id: int, *, epoch: int = 0) -> bool | None:
    """None: a transaction is not over by the record; else whether it is committed."""
    opened = OpenTransaction(
        producer_id=producer_id,
        first_offset=0,
        began_ms=0,
        begin=TransactionBegin(transactional_id="a", epoch=epoch, batch_id=batch_id),
    )
    outcomes = machine.outcomes("a", record)
    return outcomes.commits(producer_id) if outcomes.ends(opened) else None


def test_first_run_begins_with_the_first_batch() -> None:
    begun = begin(None)
    assert (begun.record.epoch, begun.record.run_id, begun.batch_id, begun.is_decided) == (0, "r1", 0, False)


def test_next_batch_is_the_one_after_the_last_that_was_decided() -> None:
    assert begin(decided(0, 1, 5)).batch_id == 6


def test_attempts_of_one_run_write_nothing_more() -> None:
    """200 tasks of a batch that begin at once cost one write in all."""
    record = begin(None).record
    assert begin(record, batch_id=3).record == record


def test_new_run_takes_over() -> None:
    """Everything of the run before is over, except for what was decided."""
    record = decide(begin(None).record, 0, [(7, 7)]).record
    taken = begin(record, "r2").record
    assert (taken.epoch, taken.run_id, taken.earlier_runs) == (1, "r2", ("r1",))
    assert is_over(taken, 1, 8) is False
    assert is_over(taken, 0, 7) is True
    assert is_over(taken, 1, 9, epoch=1) is None


def test_run_that_was_taken_over_is_refused() -> None:
    record = begin(begin(None).record, "r2").record
    with pytest.raises(ProducerFencedError, match="no longer that of run r1: run r2 has ended it"):
        begin(record, "r1")
    with pytest.raises(ProducerFencedError, match="no longer that of run r1"):
        decide(record, 0, [(1, 1)], epoch=0)


def test_run_that_has_begun_before_takes_over_from_nobody_however_long_ago_that_was() -> None:
    """Those that are remembered are the last ones; whoever knows its epoch is not new."""
    record = begin(None, "zombie").record
    for number in range(machine.EARLIER_RUNS + 1):
        record = begin(record, f"r{number}").record
    assert "zombie" not in record.earlier_runs
    with pytest.raises(ProducerFencedError):
        machine.begin(
            record, "a", run_id="zombie", batch_id=NEXT_BATCH, epoch=0, timeout_ms=1000, keep_ms=DAY_MS, now_ms=0
        )
    assert begin(record, "new").record.epoch == record.epoch + 1


def test_two_runs_that_alternate_do_not_take_over_from_each_other() -> None:
    """Two live drivers on one copied checkpoint: the second one has it, and the first one learns that at once."""
    record = begin(begin(None, "r1").record, "r2").record
    for _ in range(3):
        with pytest.raises(ProducerFencedError):
            begin(record, "r1")
        record = begin(record, "r2").record
    assert record.epoch == 1


def test_batch_that_was_decided_may_be_begun_and_nothing_written() -> None:
    """S6: Spark replays the last batch after a stop; a refusal would fail that restart for ever."""
    begun = begin(decided(0, 1), "r2", 1)
    assert (begun.is_decided, begun.record.run_id) == (True, "r2")


def test_batch_before_the_last_one_is_an_error_and_takes_nothing_over() -> None:
    """A rewound checkpoint must not fence the query that is alive."""
    record = decided(0, 1, 2)
    with pytest.raises(
        CheckpointBehindSinkError, match="batch 1 of transactional id 'a' is written again after batch 2"
    ):
        begin(record, "r2", 1)
    with pytest.raises(CheckpointBehindSinkError):
        decide(record, 1, [(1, 1)])


def test_same_decision_again_is_a_success() -> None:
    """Its reply was lost."""
    first = decide(begin(None).record, 0, [(1, 1), (2, 4)])
    again = decide(first.record, 0, [(1, 4)])
    assert (again.record, again.is_replay, first.is_replay) == (first.record, False, False)


def test_same_decision_again_is_a_success_after_another_run_took_over() -> None:
    first = decide(begin(None).record, 0, [(1, 1)])
    taken = begin(first.record, "r2").record
    assert decide(taken, 0, [(1, 1)], epoch=0).decision == first.decision


@pytest.mark.parametrize("ids", [[], [(9, 9)]])
def test_replay_keeps_the_first_decision(ids: list[tuple[int, int]]) -> None:
    record = begin(decide(begin(None).record, 0, [(1, 1)]).record, "r2", 0).record
    replay = decide(record, 0, ids, run_id="r2")
    assert (replay.is_replay, replay.decision.producer_ids, replay.record) == (True, ((1, 1),), record)
    assert is_over(replay.record, 0, 9, epoch=1) is False


@pytest.mark.parametrize("other", [{"rows": 11}, {"payload_bytes": 99}])
def test_replay_with_other_contents_is_an_error_unless_the_first_ones_are_kept(other: dict[str, int]) -> None:
    record = begin(decide(begin(None).record, 0, [(1, 1)]).record, "r2", 0).record
    with pytest.raises(ReplayDiffersError, match=r"10 rows and 100 bytes.*pylog\.replay\.differs=keep"):
        decide(record, 0, [], run_id="r2", **other)
    assert decide(record, 0, [], run_id="r2", keeps_first=True, **other).decision.rows == 10


def test_decision_commits_exactly_those_it_names() -> None:
    record = decide(begin(None).record, 3, [(4, 4), (6, 7)]).record
    assert [is_over(record, 3, producer_id) for producer_id in range(3, 9)] == [False, True, False, True, True, False]
    assert is_over(record, 2, 1) is False
    assert is_over(record, 4, 20) is None


def test_abort_is_a_decision_that_commits_nobody() -> None:
    record = decide(begin(None).record, 0, [(1, 1)], is_commit=False).record
    assert is_over(record, 0, 1) is False
    assert begin(record).batch_id == 1
    assert decide(record, 0, [(1, 1)], is_commit=False).record == record
    with pytest.raises(InvalidTxnStateError, match="was aborted"):
        decide(record, 0, [(1, 1)])


def test_committed_batch_cannot_be_aborted() -> None:
    record = decide(begin(None).record, 0, [(1, 1)]).record
    with pytest.raises(InvalidTxnStateError, match="was committed"):
        decide(record, 0, [(1, 1)], is_commit=False)


def test_decision_is_kept_until_all_partitions_know_it() -> None:
    """Losing one would abort what it committed, wherever it is still open."""
    record = begin(None).record
    for batch_id in range(machine.MOST_UNFINISHED):
        record = decide(record, batch_id, [(batch_id, batch_id)]).record
    assert all(is_over(record, batch_id, batch_id) is True for batch_id in range(machine.MOST_UNFINISHED))
    with pytest.raises(ConcurrentTransactionsError, match="5 decisions"):
        decide(record, 5, [(5, 5)])
    assert machine.state_of(record, 2) is BatchState.DECIDED
    record = machine.finish(record, 2)
    assert machine.state_of(record, 2) is BatchState.COMPLETED
    assert machine.state_of(record, 5) is BatchState.OPEN
    decide(record, 5, [(5, 5)])


def test_last_decision_is_kept_though_it_is_finished() -> None:
    """It answers replays."""
    record = decided(0, 1)
    assert (record.unfinished, is_over(record, 1, 1)) == ((), True)
    assert decide(record, 1, [(1, 1)]).is_replay is False


def test_producer_that_was_aborted_cannot_be_committed() -> None:
    """D6: the query fails, and Spark replays the batch."""
    record = machine.abort_producers(begin(None).record, [5, 6])
    assert (is_over(record, 0, 5), is_over(record, 0, 7)) == (False, None)
    with pytest.raises(ProducerFencedError, match="was aborted before it could be committed"):
        decide(record, 0, [(6, 8)])
    assert decide(record, 0, [(7, 8)]).record.aborted == ()


def test_time_limit_changes_no_decision() -> None:
    record = decide(begin(None).record, 0, [(5, 5)]).record
    assert machine.abort_producers(record, [5]).aborted == ()
    assert is_over(machine.abort_producers(record, [5]), 0, 5) is True


def test_very_many_aborted_producers_end_the_run() -> None:
    record = machine.abort_producers(begin(None).record, range(0, 4 * machine.MOST_ABORTED, 2))
    assert (record.epoch, record.aborted, is_over(record, 0, 7)) == (1, (), False)


def test_run_that_was_ended_begins_nothing_and_the_next_one_does() -> None:
    record = begin(None).record
    ended = machine.abort_run(record, "r1")
    assert ended is not None
    assert is_over(ended, 0, 1) is False
    with pytest.raises(ProducerFencedError):
        begin(ended, "r1")
    assert begin(ended, "r2").record.epoch == 2
    assert machine.abort_run(record, "another") is None
    assert machine.abort_run(None) is None


def test_unknown_id_of_open_transactions_is_aborted() -> None:
    """An absent record is no decision."""
    assert is_over(machine.unknown(4, 0), 7, 1, epoch=4) is False


def test_partition_lets_begin_what_may_begin() -> None:
    record = machine.abort_producers(decided(0, 1), [9])
    machine.may_begin(record, "a", epoch=0, batch_id=2, producer_id=8)
    for epoch, batch_id, producer_id, error in [
        (1, 2, 8, ProducerFencedError),
        (0, 1, 8, InvalidTxnStateError),
        (0, 2, 9, ProducerFencedError),
    ]:
        with pytest.raises(error):
            machine.may_begin(record, "a", epoch=epoch, batch_id=batch_id, producer_id=producer_id)


def test_id_is_forgotten_when_it_has_not_been_used_for_long() -> None:
    record = begin(None).record
    assert not machine.is_forgotten(record, DAY_MS)
    assert machine.is_forgotten(record, DAY_MS + 1)
    assert not machine.is_forgotten(decide(record, 0, [(1, 1)]).record, 2 * DAY_MS)


def test_use_is_written_now_and_then() -> None:
    record = begin(None).record
    assert begin(record, now_ms=DAY_MS // 8).record == record
    assert begin(record, now_ms=DAY_MS // 2).record.used_at_ms == DAY_MS // 2


def test_nothing_is_decided_of_an_id_that_has_begun_nothing() -> None:
    with pytest.raises(InvalidTxnStateError, match="has begun nothing"):
        decide(None, 0, [(1, 1)])


@pytest.mark.parametrize("ids", [[(3, 2)], [(-1, 4)]])
def test_range_that_is_none_is_refused(ids: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidRequestError, match="no range of producer ids"):
        decide(begin(None).record, 0, ids)


@pytest.mark.parametrize("seed", range(40))
def test_outcome_of_a_producer_never_changes(seed: int) -> None:
    """S6: whatever runs, batches, aborts and replays follow, in any order, while its decision may be needed."""
    rng = random.Random(seed)
    record: TransactionRecord | None = None
    ids = iter(range(10**6))
    opened: list[tuple[int, int, int]] = []  # epoch, batch, producer
    outcome: dict[int, bool] = {}
    runs = 0
    for _ in range(120):
        what = rng.randrange(6)
        try:
            if record is None or what == 0:
                runs += 1
                begun = begin(record, f"r{runs}", rng.choice([NEXT_BATCH, machine.last_batch(record) if record else 0]))
                record = begun.record
            elif what <= 2:
                begun = begin(record, record.run_id or "none")
                record = begun.record
                if not begun.is_decided:
                    opened.append((record.epoch, begun.batch_id, next(ids)))
            elif what == 3 and opened:
                _, batch_id, _ = rng.choice(opened)
                chosen = [p for e, b, p in opened if (e, b) == (record.epoch, batch_id) and rng.random() < 0.6]
                run = rng.choice([record.run_id, f"r{max(1, runs - 1)}"])
                made = decide(record, batch_id, [(p, p) for p in chosen], run_id=run, is_commit=rng.random() < 0.8)
                record = made.record
            elif what == 4 and opened:
                record = machine.abort_producers(record, [rng.choice(opened)[2]])
            elif record.unfinished:
                record = machine.finish(record, record.unfinished[0].batch_id)
                opened = [each for each in opened if each[2] not in outcome]  # all partitions know
        except (
            CheckpointBehindSinkError,
            ConcurrentTransactionsError,
            InvalidTxnStateError,
            ProducerFencedError,
            ReplayDiffersError,
        ):
            pass
        assert record is not None
        for epoch, batch_id, producer_id in opened:
            now = is_over(record, batch_id, producer_id, epoch=epoch)
            if now is not None:
                assert outcome.setdefault(producer_id, now) is now
            else:
                assert producer_id not in outcome


def test_record_that_was_created_anew_commits_nothing_from_before() -> None:
    """Its epochs begin at 0 again, so they do not tell."""
    first, second = begin(None, now_ms=5).record, begin(None, now_ms=DAY_MS + 6).record
    assert (first.epoch, first.run_id) == (second.epoch, second.run_id)
    with pytest.raises(ProducerFencedError, match="'a' was out of use for so long that it was forgotten"):
        decide(second, 0, [(1, 1)], created_at_ms=first.created_at_ms)
    for known in (second.created_at_ms, -1):
        assert decide(second, 0, [(1, 1)], created_at_ms=known).decision.is_commit
