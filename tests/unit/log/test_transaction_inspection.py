"""Looking at transactions from outside: `pylog log dump`, `verify` and `verify --compare`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from broker_runtime.contract.frame import EndedTransaction, TransactionEnd, encode_control
from broker_runtime.log import Outcomes, PartitionLog
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.log.files import read_file
from broker_runtime.log.inspect import compare_replicas, verify_directory
from broker_runtime.log.producer_state import ProducerState, write_snapshot
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import ROOT, frame, open_directory, open_log, read_frames
from tests.unit.log.test_transactions import TINY, Run, append, begin, commit, end, transactional

LOG = ROOT / "t-0"
LEADER, FOLLOWER = Path("/leader"), Path("/follower")


def filled(log: PartitionLog) -> None:
    """One transaction committed, one aborted, one open: producers 1, 2 and 3."""
    append(log, transactional(1), begin(batch_id=0))
    append(log, transactional(2), begin(batch_id=0))
    append(log, frame(3))
    end(log, Outcomes(transactional_id="a", epoch=0, batch_id=0, committed=[(1, 1)]))
    append(log, transactional(3), begin(batch_id=1))


def reasons(files: FaultyFiles) -> list[str]:
    return [
        f"{each.path.suffix} {each.reason}" for found in verify_directory(LOG, files=files) for each in found.damage
    ]


def written() -> FaultyFiles:
    files = FaultyFiles()
    with open_directory(files) as directory:
        filled(open_log(directory))
    return files


def test_verify_tells_how_far_a_log_is_stable_and_what_is_open() -> None:
    files = written()
    [report] = verify_directory(LOG, files=files)
    assert (report.damage, report.last_stable_offset, report.next_offset) == ((), 8, 10)
    assert [(each.producer_id, each.first_offset) for each in report.open] == [(3, 8)]


@pytest.mark.parametrize("seed", range(4))
def test_verify_finds_nothing_wrong_with_sound_transactions(seed: int) -> None:
    """However often the log was opened, and whatever was deleted at its start."""
    files, chosen = FaultyFiles(), random.Random(seed)
    with open_directory(files) as directory:
        log = open_log(directory, TINY)
        run = Run(log, chosen)
        for _ in range(120):
            run.step()
        stable, opened = log.last_stable_offset, log.open_transactions()
    for _ in range(2):
        reports = verify_directory(LOG, files=files)
        assert [each.reason for report in reports for each in report.damage] == []
        assert (reports[-1].last_stable_offset, list(reports[-1].open)) == (stable, list(opened))
        with open_directory(files) as directory:
            log = open_log(directory, TINY)
            commit(log)
            log.delete_records(log.segment_base_offsets[2])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: None, ".txnindex it lacks the aborted transaction of producer 2, offsets 2 to 7, stable to 8"),
        (lambda data: b"", ".txnindex it lacks the aborted transaction of producer 2, offsets 2 to 7, stable to 8"),
        (lambda data: data[:-1], "which are not whole entries"),
        (lambda data: data[:9] + b"\x01" + data[10:], "fails its checksum"),
        (lambda data: data + data, ".txnindex it names an aborted transaction of producer 2, offsets 2 to 7"),
    ],
    ids=["missing", "empty", "cut", "flipped", "one too many"],
)
def test_verify_finds_an_index_of_aborted_transactions_that_is_not_of_the_frames(change, expected: str) -> None:
    """A reader would get aborted records by an index that lacks a range, and miss committed ones by another."""
    files = written()
    path = LOG / f"{0:020d}.txnindex"
    data = change(read_file(files, path))
    files.unlink(path) if data is None else files.overwrite(path, data)
    [reason] = reasons(files)
    assert expected in reason


def test_verify_finds_a_snapshot_with_other_transactions_open() -> None:
    """A stale one would hide what is open from the log that is opened with it."""
    files = written()
    write_snapshot(files, LOG, 10, ProducerState())
    [reason] = reasons(files)
    assert reason == ".snapshot it says that transactions are open of producers: none; by the frames: 3"


def test_verify_finds_nothing_wrong_with_an_empty_segment_behind_an_aborted_transaction() -> None:
    """The snapshot at its beginning counts what the segment before it has."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory, topic_settings(segment_ms=1000))
        log.append_as_leader([transactional(7)], leader_epoch=0, now_ms=1000, begin=begin())
        log.end_transactions(Outcomes(transactional_id="a", epoch=0, aborted=((7, 7),)), leader_epoch=0, now_ms=1001)
        commit(log)
        log.apply_retention(10_000)
        assert log.segment_base_offsets == (0, 3)
    assert reasons(files) == []


def control_appended(log: PartitionLog, control: TransactionEnd) -> None:
    """As a follower would take it from a leader that is in error."""
    with open_directory(FaultyFiles()) as directory:
        leader = open_log(directory)
        for _, data in read_frames(log):
            leader.append_as_follower(data)
        leader.append_as_leader([bytes(encode_control(control, now_ms=1))], leader_epoch=0, now_ms=1)
        leader.set_high_watermark(leader.flush())
        log.append_as_follower(read_frames(leader)[-1][1])
    log.flush()


@pytest.mark.parametrize(
    ("ended", "stable", "expected"),
    [
        (
            EndedTransaction(producer_id=9, first_offset=3, is_committed=True),
            8,
            "of producer 9 from offset 3 on, which",
        ),
        (EndedTransaction(producer_id=3, first_offset=8, is_committed=True), 7, "is 7; by the frames it is 11"),
    ],
)
def test_verify_finds_a_control_frame_that_contradicts_the_frames_before(ended, stable: int, expected: str) -> None:
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory)
        filled(log)
        control_appended(
            log,
            TransactionEnd(transactional_id="a", epoch=0, batch_id=1, last_stable_offset=stable, ended=(ended,)),
        )
    assert any(expected in reason for reason in reasons(files))


def replicas(files: FaultyFiles, *, ending: bool | None = None) -> None:
    """Two equal ones. ``ending``: the open transaction is committed in the leader's log, and as this says in the
    other."""
    with open_directory(files, LEADER) as one, open_directory(files, FOLLOWER) as two:
        leader, follower = open_log(one), open_log(two, TINY)
        filled(leader)
        for _, data in read_frames(leader):
            follower.append_as_follower(data)
        commit(follower)
        if ending is not None:
            for log, ids in ((leader, [(3, 3)]), (follower, [(3, 3)] if ending else [])):
                end(log, Outcomes(transactional_id="a", epoch=0, batch_id=1, committed=ids))


def compared(files: FaultyFiles) -> tuple[str | None, int | None]:
    found = compare_replicas([LEADER / "t-0", FOLLOWER / "t-0"], files=files)
    return found.difference, found.last_stable_offset


def test_compare_finds_replicas_with_transactions_the_same() -> None:
    files = FaultyFiles()
    replicas(files)
    assert compared(files) == (None, 8)


def test_compare_shows_control_frames_that_differ() -> None:
    files = FaultyFiles()
    replicas(files, ending=False)
    difference, _ = compared(files)
    assert difference is not None
    assert "(end a epoch 0 batch 1: committed 3; stable to 11), and one of" in difference
    assert "(end a epoch 0 batch 1: aborted 3; stable to 11)" in difference


@pytest.mark.parametrize("root", [LEADER, FOLLOWER])
def test_compare_names_the_replica_whose_index_is_wrong(root: Path) -> None:
    files = FaultyFiles()
    replicas(files)
    [name] = [
        each
        for each in files.list(root / "t-0")
        if each.endswith(".txnindex") and read_file(files, root / "t-0" / each)
    ]
    files.unlink(root / "t-0" / name)
    difference, _ = compared(files)
    assert difference is not None
    assert f"transactions of {root}/t-0 is wrong: it lacks the aborted transaction of producer 2" in difference


def test_old_directories_have_no_index_and_are_sound() -> None:
    """Directories from before transactions."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        append(open_log(directory), frame(3))
    assert not [name for name in files.list(LOG) if name.endswith(".txnindex")]
    assert reasons(files) == []
