"""Transactions in a log: what is open, what is stable, what is aborted, against a naive reading of all frames."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from broker_runtime.contract.errors import (
    CorruptRecordError,
    InvalidRequestError,
    InvalidTxnStateError,
    ProducerFencedError,
    UnknownProducerIdError,
)
from broker_runtime.contract.frame import (
    EndedTransaction,
    FrameHeader,
    TransactionBegin,
    TransactionEnd,
    encode_control,
    iter_frames,
    number_frame,
    parse_control,
    parse_header,
    verify_frame,
    visible_frames,
)
from broker_runtime.contract.transactions import TransactionIdentity
from broker_runtime.log import Outcomes, PartitionLog
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.log.files import read_file
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import ROOT, frame, open_directory, open_log, read_frames, segment_path

TINY = topic_settings(segment_bytes=4 << 10, index_interval_bytes=512)
LOG = ROOT / "t-0"


def begin(transactional_id: str = "a", batch_id: int = 0, *, epoch: int = 0, run_id: str = "r") -> TransactionBegin:
    return TransactionBegin(transactional_id=transactional_id, epoch=epoch, batch_id=batch_id, run_id=run_id, attempt=1)


def transactional(producer_id: int, sequence: int = 0, *, rows: int = 1, seed: int = 0) -> bytes:
    data = bytearray(frame(rows, seed=seed))
    number_frame(data, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True)
    return bytes(data)


def append(log: PartitionLog, data: bytes, opening: TransactionBegin | None = None, *, now_ms: int = 1000) -> int:
    """The first offset of the records; appended, durable and committed."""
    result = log.append_as_leader([data], leader_epoch=0, now_ms=now_ms, begin=opening)
    commit(log)
    return result.base_offset


def commit(log: PartitionLog) -> None:
    log.set_high_watermark(log.flush())


def end(log: PartitionLog, outcomes: Outcomes, *, now_ms: int = 1000) -> bool:
    result = log.end_transactions(outcomes, leader_epoch=0, now_ms=now_ms)
    commit(log)
    return result is not None


def write_and_abort(log: PartitionLog, batch_id: int) -> None:
    append(log, transactional(7 + batch_id), begin("a", batch_id))
    assert end(log, Outcomes(transactional_id="a", epoch=0, batch_id=batch_id))


def controls(log: PartitionLog) -> list[tuple[FrameHeader, TransactionBegin | TransactionEnd]]:
    return [(header, parse_control(data)) for header, data in read_frames(log) if header.is_control]


def visible(log: PartitionLog, start: int | None = None) -> list[int]:
    """The offsets that a reader of committed records gets, read in pieces."""
    found: list[int] = []
    offset = log.log_start_offset if start is None else start
    stable = log.last_stable_offset
    while (piece := log.read(offset, max_bytes=1500, upto=stable)) is not None:
        with piece:
            aborted = log.aborted_transactions(piece.start_offset, piece.next_offset)
            for header, _ in visible_frames(piece.load(), aborted):
                found += range(max(header.base_offset, offset), header.next_offset)
            offset = piece.next_offset
    return found


def test_transaction_begins_before_its_first_frame_and_ends_with_one() -> None:
    """D6: the first frame in a partition is a control frame with the transaction's identity."""
    with open_directory() as directory:
        log = open_log(directory)
        assert append(log, transactional(7), begin("sink", 4)) == 1
        assert append(log, transactional(7, 1), begin("sink", 4)) == 2
        assert end(log, Outcomes(transactional_id="sink", epoch=0, batch_id=4, committed=[(7, 7)]))
        (first, opening), (last, ending) = controls(log)
    assert (first.base_offset, first.producer_id, opening) == (0, 7, begin("sink", 4))
    assert last.base_offset == 3
    assert ending == TransactionEnd(
        transactional_id="sink",
        epoch=0,
        batch_id=4,
        last_stable_offset=4,
        ended=(EndedTransaction(producer_id=7, first_offset=0, is_committed=True),),
    )


def test_open_transaction_holds_the_last_stable_offset_back() -> None:
    """D8 (4): nothing at or above the first offset of an open transaction is stable."""
    with open_directory() as directory:
        log = open_log(directory)
        append(log, frame(3))
        append(log, transactional(7, rows=2), begin())
        append(log, frame(4))
        assert (log.last_stable_offset, log.high_watermark, visible(log)) == (3, 10, [0, 1, 2])
        assert [each.first_offset for each in log.open_transactions()] == [3]
        end(log, Outcomes(transactional_id="a", epoch=0, batch_id=0, committed=[(7, 7)]))
        assert log.last_stable_offset == log.high_watermark == 11
        assert visible(log) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_end_that_is_not_committed_yet_keeps_its_transaction_unstable() -> None:
    """D8 (8): otherwise the last stable offset would fall when the end is truncated by another leader."""
    with open_directory() as directory:
        log = open_log(directory)
        append(log, transactional(7), begin())
        log.end_transactions(
            Outcomes(transactional_id="a", epoch=0, batch_id=0, committed=[(7, 7)]), leader_epoch=0, now_ms=1
        )
        log.flush()
        assert (log.open_transactions(), log.last_stable_offset) == ([], 0)
        log.set_high_watermark(2)
        assert log.last_stable_offset == 0
        log.set_high_watermark(3)
        assert log.last_stable_offset == 3


@pytest.mark.parametrize("how", ["orderly", "killed"])
@pytest.mark.parametrize("rolls", [False, True])
def test_end_that_is_not_committed_yet_keeps_its_transaction_unstable_after_a_restart(how: str, rolls: bool) -> None:
    """The snapshot of producers knows what is open, and not what was committed when the log was closed."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory, TINY)
    append(log, frame(3))
    append(log, transactional(7), begin())
    log.end_transactions(
        Outcomes(transactional_id="a", epoch=0, batch_id=0, committed=[(7, 7)]), leader_epoch=0, now_ms=1
    )
    for seed in range(30 if rolls else 0):
        log.append_as_leader([frame(seed=seed, size=200)], leader_epoch=0, now_ms=1)
    log.flush()
    if how == "orderly":
        directory.close()
    else:
        files.kill()
    with open_directory(files) as directory:
        log = open_log(directory, TINY)
        assert (log.high_watermark, log.last_stable_offset) == (5, 3)
        assert len(log.segment_base_offsets) > 2 or not rolls
        log.set_high_watermark(6)
        assert log.last_stable_offset == 6


def test_end_that_is_not_committed_yet_keeps_its_transaction_unstable_after_a_truncation() -> None:
    """The end stays in the log; the snapshot that the truncated log begins with is one from behind it."""
    with open_directory() as directory:
        log = open_log(directory, TINY)
        append(log, transactional(7), begin())
        log.end_transactions(
            Outcomes(transactional_id="a", epoch=0, batch_id=0, committed=[(7, 7)]), leader_epoch=0, now_ms=1
        )
        for seed in range(30):
            log.append_as_leader([frame(seed=seed, size=200)], leader_epoch=0, now_ms=1)
        log.flush()
        log.truncate_to(log.log_end_offset - 1)
        assert (log.high_watermark, log.last_stable_offset) == (2, 0)
        log.set_high_watermark(3)
        assert log.last_stable_offset == 3


def test_transaction_that_is_over_and_not_committed_is_aborted() -> None:
    """D6: one end lists who is committed, and aborts all others of its scope."""
    with open_directory() as directory:
        log = open_log(directory)
        for producer_id, batch_id, transactional_id in [(1, 0, "a"), (2, 0, "a"), (3, 1, "a"), (4, 0, "b")]:
            append(log, transactional(producer_id), begin(transactional_id, batch_id))
        assert end(log, Outcomes(transactional_id="a", epoch=0, batch_id=0, committed=[(2, 2)]))
        assert [each.producer_id for each in log.open_transactions()] == [3, 4]
        assert log.aborted_transactions(0, 8) == [(1, 0, 8)]
        assert not end(log, Outcomes(transactional_id="a", epoch=0, batch_id=0, committed=[(2, 2)])), "once is enough"
        assert end(log, Outcomes(transactional_id="a", epoch=0, aborted=[(3, 3)]))
        assert end(log, Outcomes(transactional_id="b", epoch=1))
        assert log.open_transactions() == []
        assert visible(log) == [3]


def test_frame_of_a_transaction_that_has_ended_is_refused() -> None:
    """D6: an unknown producer id is accepted only behind its beginning, and forgotten after its end."""
    with open_directory() as directory:
        log = open_log(directory)
        append(log, transactional(7), begin("a", 3))
        end(log, Outcomes(transactional_id="a", epoch=0, batch_id=3, committed=[(7, 7)]))
        size = log.log_end_offset
        with pytest.raises(InvalidTxnStateError, match="has ended, or never began"):
            append(log, transactional(7, 1))
        with pytest.raises(InvalidTxnStateError, match="everything up to batch 3 was decided"):
            append(log, transactional(7), begin("a", 3))
        with pytest.raises(UnknownProducerIdError):
            append(log, transactional(8, 5), begin("a", 4))
        assert log.log_end_offset == size


def test_frame_of_an_earlier_run_is_refused() -> None:
    """D6: a zombie is refused at the partition, by what a later run began or ended there."""
    with open_directory() as directory:
        log = open_log(directory)
        append(log, transactional(7), begin("a", 3, epoch=5))
        with pytest.raises(ProducerFencedError, match="'a' is in epoch 5, the transaction in 4"):
            append(log, transactional(8), begin("a", 4, epoch=4))
        end(log, Outcomes(transactional_id="a", epoch=6))
        with pytest.raises(ProducerFencedError, match="in epoch 6"):
            append(log, transactional(8), begin("a", 4, epoch=5))
        append(log, transactional(9), begin("b", 0))


def test_frame_outside_of_the_open_transaction_is_refused() -> None:
    """Each producer id serves one transaction, and nothing else."""
    with open_directory() as directory:
        log = open_log(directory)
        append(log, transactional(7), begin("a", 3))
        with pytest.raises(InvalidTxnStateError, match="outside of it"):
            append(log, frame(producer_id=7, producer_epoch=0, base_sequence=1))
        with pytest.raises(InvalidTxnStateError, match="another transaction"):
            append(log, transactional(7, 1), begin("a", 4))
        with pytest.raises(InvalidTxnStateError, match="never began"):
            append(log, transactional(8))


def test_first_frame_sent_again_is_a_duplicate() -> None:
    """W9: a retry that carries the beginning as well begins nothing."""
    with open_directory() as directory:
        log = open_log(directory)
        first = log.append_as_leader([transactional(7)], leader_epoch=0, now_ms=1, begin=begin())
        again = log.append_as_leader([transactional(7)], leader_epoch=0, now_ms=2, begin=begin())
        assert (again.is_duplicate, again.base_offset, first.base_offset) == (True, 1, 1)
        assert log.log_end_offset == 2


def test_retention_keeps_what_an_open_transaction_may_still_need() -> None:
    """D2: retention never passes the last stable offset."""
    with open_directory() as directory:
        log = open_log(directory, topic_settings(segment_bytes=4 << 10, retention_bytes=1, retention_ms=-1))
        append(log, frame(size=1500))
        append(log, transactional(7), begin())
        for number in range(20):
            append(log, frame(size=1500, seed=number))
        assert log.apply_retention(10**12) == 0
        end(log, Outcomes(transactional_id="a", epoch=0, batch_id=0))
        assert log.apply_retention(10**12) > 0


def test_records_of_an_open_transaction_may_be_deleted() -> None:
    """An administrator may delete up to the high watermark, and the last stable offset never lies below the start."""
    with open_directory() as directory:
        log = open_log(directory, TINY)
        append(log, transactional(7), begin())
        for number in range(20):
            append(log, frame(size=1500, seed=number))
        log.delete_records(10)
        assert log.last_stable_offset == 10
        assert end(log, Outcomes(transactional_id="a", epoch=0, batch_id=0))
        assert log.last_stable_offset == log.log_end_offset
        assert visible(log) == list(range(10, 22))


def test_control_frames_have_no_time() -> None:
    """W20: a search by time finds records, never the frames in between."""
    with open_directory() as directory:
        log = open_log(directory)
        append(log, frame(timestamps=50), now_ms=50)
        append(log, transactional(7), begin(), now_ms=9_000)
        end(log, Outcomes(transactional_id="a", epoch=0, batch_id=0), now_ms=9_000)
        append(log, frame(timestamps=2000), now_ms=9_000)
        assert log.offset_for_timestamp(60) == (2, 1000)
        assert log.offset_for_timestamp(1001) == (4, 2000)
        assert log.max_timestamp_ms() == 2000


def test_follower_has_the_same_transactions() -> None:
    """W11: state and index follow from the leader's bytes."""
    with open_directory() as directory, open_directory(FaultyFiles()) as other:
        log, follower = open_log(directory, TINY), open_log(other, TINY)
        run = Run(log, random.Random(5))
        for _ in range(80):
            run.step()
        follower.append_as_follower(b"".join(data for _, data in read_frames(log)))
        follower.set_high_watermark(follower.flush())
        assert follower.open_transactions() == log.open_transactions()
        assert follower.last_stable_offset == log.last_stable_offset
        assert visible(follower) == visible(log) == run.visible()


@pytest.mark.parametrize(
    "control",
    [
        TransactionBegin(transactional_id="a", epoch=0, batch_id=0, attempt=-2),
        TransactionBegin(transactional_id="a" * 2000, epoch=0, batch_id=0),
        TransactionBegin(transactional_id="a", epoch=2**63, batch_id=0),
        TransactionEnd(transactional_id="a", epoch=0, batch_id=-2, last_stable_offset=0),
    ],
)
def test_control_frame_that_could_not_be_read_is_not_written(control: TransactionBegin | TransactionEnd) -> None:
    """One in a log would make all of it unreadable."""
    with pytest.raises(InvalidRequestError, match="cannot be a control frame"):
        encode_control(control, now_ms=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempt": -2},
        {"epoch": -1},
        {"batch_id": -1},
        {"transactional_id": "a\U0001f680"},
        {"transactional_id": "a\n"},
        {"transactional_id": "a/b"},
    ],
)
def test_request_names_no_transaction_that_no_frame_can_have(wrong: dict[str, Any]) -> None:
    fields = {"transactional_id": "a", "epoch": 0, "batch_id": 0, "run_id": "r", "attempt": -1}
    identity = msgspec.convert(fields, TransactionIdentity)
    assert identity.attempt == -1
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields | wrong, TransactionIdentity)


def test_damaged_control_frame_of_a_leader_is_refused() -> None:
    """A follower never stores what it cannot read."""
    data = bytearray(encode_control(begin(), now_ms=1, producer_id=3, producer_epoch=0))
    header = parse_header(data)
    for wrong in (b"\x01\0\0\0\xff\xff\0\0", b"\x09\0\0\0\x01\0\0\0", b"\x01\0\0\0\x04\0\0\0nope"):
        mutant = bytearray(data)
        mutant[header.head_bytes : header.head_bytes + len(wrong)] = wrong
        with pytest.raises(CorruptRecordError):
            verify_frame(mutant)
        with pytest.raises(CorruptRecordError, match="control frame at offset"):
            parse_control(mutant)


# --- against a naive reading of everything ----------------------------------------------------------------------------


@dataclass
class Run:
    """Random transactions of a few producers in one log, and what should come of them."""

    log: PartitionLog
    random: random.Random
    next_producer: int = 0
    open: dict[int, tuple[TransactionBegin, int]] = field(default_factory=dict)  # producer id: identity, next sequence
    batches: dict[str, int] = field(default_factory=dict)
    records: dict[int, int | None] = field(default_factory=dict)  # offset: producer id, None without a transaction
    outcome: dict[int, bool] = field(default_factory=dict)  # producer id: committed

    def step(self) -> None:
        kind = self.random.choices(["plain", "begin", "more", "end"], [2, 3, 6, 3])[0]
        if kind == "plain":
            self.records[append(self.log, frame(seed=len(self.records), size=200))] = None
        elif kind == "begin":
            name = self.random.choice("abc")
            opening = begin(name, self.batches.get(name, -1) + 1 + self.random.randrange(2))
            self.next_producer += 1
            at = append(self.log, transactional(self.next_producer, rows=2), opening)
            self.records |= {at: self.next_producer, at + 1: self.next_producer}
            self.open[self.next_producer] = (opening, 2)
        elif kind == "more" and self.open:
            producer_id = self.random.choice(list(self.open))
            opening, sequence = self.open[producer_id]
            at = append(self.log, transactional(producer_id, sequence), self.random.choice([None, opening]))
            self.records[at] = producer_id
            self.open[producer_id] = (opening, sequence + 1)
        elif kind == "end" and self.open:
            self.end(self.random.choice(list(self.open)))

    def end(self, producer_id: int) -> None:
        opening, _ = self.open[producer_id]
        name, batch_id = opening.transactional_id, opening.batch_id
        over = [p for p, (o, _) in self.open.items() if o.transactional_id == name and o.batch_id <= batch_id]
        committed = [p for p in over if self.open[p][0].batch_id == batch_id and self.random.random() < 0.5]
        assert end(
            self.log,
            Outcomes(transactional_id=name, epoch=0, batch_id=batch_id, committed=[(p, p) for p in committed]),
        )
        self.batches[name] = max(batch_id, self.batches.get(name, -1))
        for each in over:
            self.outcome[each] = each in committed
            del self.open[each]

    def visible(self) -> list[int]:
        stable = self.log.last_stable_offset
        return sorted(
            offset
            for offset, producer_id in self.records.items()
            if offset < stable and (producer_id is None or self.outcome.get(producer_id, False))
        )

    def stable(self) -> int:
        firsts = [min(o for o, p in self.records.items() if p == producer_id) - 1 for producer_id in self.open]
        return min(firsts, default=self.log.high_watermark)


@pytest.mark.parametrize("seed", range(12))
def test_readers_get_exactly_what_is_committed(seed: int) -> None:
    """S6, D8 (4): from any offset, whatever is open, over many segments."""
    with open_directory() as directory:
        log = open_log(directory, TINY)
        run = Run(log, random.Random(seed))
        for number in range(150):
            run.step()
            if number % 10 == 0:
                assert log.last_stable_offset == run.stable()
                start = run.random.randrange(log.log_end_offset + 1)
                if start <= log.last_stable_offset:
                    assert visible(log, start) == [offset for offset in run.visible() if offset >= start]
        assert visible(log) == run.visible()
        assert len(log.segment_base_offsets) > 3


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("how", ["orderly", "killed", "power"])
def test_restart_keeps_the_transactions(seed: int, how: str) -> None:
    """D8 (12): rebuilt state and indexes are those that were written live."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory, TINY)
    run = Run(log, random.Random(seed))
    for _ in range(100):
        run.step()
    before, expected, opened = indexes(files), run.visible(), log.open_transactions()
    if how == "orderly":
        directory.close()
    elif how == "power":
        files.lose_power(random.Random(seed))
    else:
        files.kill()
    with open_directory(files) as directory:
        log = open_log(directory, TINY)
        commit(log)
        assert log.open_transactions() == opened
        assert visible(log) == expected
        assert indexes(files) == before
        run.log = log
        for _ in range(40):
            run.step()
        assert visible(log) == run.visible()


@pytest.mark.parametrize("seed", range(8))
def test_truncation_takes_transactions_back(seed: int) -> None:
    """A truncated log has the transactions of its remaining frames, as if the rest had never been appended."""
    chosen = random.Random(seed)
    with open_directory() as directory, open_directory(FaultyFiles()) as other:
        log, shorter = open_log(directory, TINY), open_log(other, TINY)
        run = Run(log, chosen)
        for _ in range(100):
            run.step()
        whole = read_frames(log)
        kept = whole[: chosen.randrange(1, len(whole))]
        shorter.append_as_follower(b"".join(data for _, data in kept))
        end_offset = shorter.flush()
        log.truncate_to(end_offset)
        for each in (log, shorter):
            each.set_high_watermark(end_offset)
        assert log.open_transactions() == shorter.open_transactions()
        assert log.last_stable_offset == shorter.last_stable_offset
        assert log.aborted_transactions(0, end_offset) == shorter.aborted_transactions(0, end_offset)
        assert visible(log) == visible(shorter)


@pytest.mark.parametrize("suffix", [".txnindex", ".snapshot"])
@pytest.mark.parametrize("damage", ["removed", "emptied", "cut", "flipped", "older"])
def test_lost_index_never_shows_aborted_records(suffix: str, damage: str) -> None:
    """An index is never the only place where an outcome is: what was lost is rebuilt before anything is served."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory, TINY)
        run = Run(log, random.Random(11))
        for _ in range(150):
            run.step()
        expected = run.visible()
    touched = 0
    for name in sorted(files.list(LOG)):
        path = LOG / name
        data = read_file(files, path) or b""
        if not name.endswith(suffix) or not data:
            continue
        touched += 1
        if damage == "removed":
            files.unlink(path)
            continue
        kept = {"emptied": b"", "cut": data[:-1], "older": data[:-36]}
        files.overwrite(path, kept.get(damage, bytes([data[0] ^ 1]) + data[1:]))
    assert touched > 2
    with open_directory(files) as directory:
        log = open_log(directory, TINY)
        commit(log)
        assert visible(log) == expected


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("use", ["roll", "append and roll", "nothing", "append an end", "append an end and roll"])
def test_lost_index_is_noticed_whatever_comes_before_the_first_reader(
    use: str, is_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A snapshot does not confirm what is left of an index, nor does what is added make up for what is missing. One
    that is whole is not read again."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory)
        for batch_id in (0, 1):
            write_and_abort(log, batch_id)
        end_offset, aborted = log.log_end_offset, log.aborted_transactions(0, log.log_end_offset)
        assert len(aborted) == 2
    (path,) = [LOG / name for name in files.list(LOG) if name.endswith(".txnindex")]
    data = read_file(files, path)
    assert data is not None
    if is_lost:
        files.overwrite(path, data[: len(data) // 2])
    with open_directory(files) as directory:
        log = open_log(directory)
        commit(log)
        if use == "append and roll":
            append(log, frame(size=500))
        if use.startswith("append an end"):
            write_and_abort(log, 2)
        if use.endswith("roll"):
            with log._state.using("roll"):
                log._state.roll()
    with open_directory(files) as directory:
        log = open_log(directory)
        commit(log)
        assert log.aborted_transactions(0, end_offset) == aborted
    assert ("rebuild index" in caplog.text) == is_lost


def test_directory_of_an_earlier_version_opens() -> None:
    """Old directories have snapshots without transactions, and empty transaction indexes or none."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory, TINY)
        for number in range(30):
            append(log, frame(size=500, seed=number))
        expected = visible(log)
    for name in files.list(LOG):
        if name.endswith(".log"):
            files.close(files.open(LOG / name.replace(".log", ".txnindex"), create=True))
    with open_directory(files) as directory:
        log = open_log(directory, TINY)
        commit(log)
        assert visible(log) == expected


def indexes(files: FaultyFiles) -> dict[str, bytes]:
    return {
        name: read_file(files, LOG / name) or b"" for name in files.list(LOG) if name.endswith((".txnindex", ".index"))
    }


def test_control_frames_are_read_whole_whatever_columns_are_wanted() -> None:
    with open_directory() as directory:
        log = open_log(directory)
        append(log, transactional(7), begin("sink", 4))
        end(log, Outcomes(transactional_id="sink", epoch=0, batch_id=4, committed=[(7, 7)]))
        piece = log.read(0, max_bytes=1 << 20, upto=log.last_stable_offset)
        assert piece is not None
        with piece:
            found = list(iter_frames(memoryview(piece.load_projected([1]))))
        whole = read_frames(log)
    assert [header.base_offset for header, _ in found] == [header.base_offset for header, _ in whole]
    assert [parse_control(data) for header, data in found if header.is_control] == [
        parse_control(data) for header, data in whole if header.is_control
    ]


def test_file_that_ends_within_a_control_frame_is_damage() -> None:
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory)
        append(log, transactional(7), begin("sink", 4))
        end(log, Outcomes(transactional_id="sink", epoch=0, batch_id=4, committed=[(7, 7)]))
        (last, _) = controls(log)[-1]
        piece = log.read(last.base_offset, max_bytes=1 << 20, upto=log.last_stable_offset)
        assert piece is not None
        del files._names[segment_path(0)].content[-64:]
        with piece, pytest.raises(CorruptRecordError):
            piece.load_projected([1])
