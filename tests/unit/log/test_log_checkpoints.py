"""When the recovery point is saved, and how high it may be: the next start does not verify what is below it."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker_runtime.contract.model import TopicPartition
from broker_runtime.log import PartitionLog
from broker_runtime.log.checkpoint import OffsetCheckpoint
from broker_runtime.log.directory import RECOVERY_POINT_NAME
from broker_runtime.log.faulty_files import Fault, FaultyFiles
from broker_runtime.log.log_state import maybe_roll
from broker_runtime.log.recovery import StartState
from tests.topic_settings import FLUSH_MODES
from tests.unit.log.log_samples import (
    ROOT,
    SMALL,
    append,
    fill,
    frame,
    open_directory,
    open_log,
    read_frames,
)
from tests.waiting import wait_until

T0 = TopicPartition("t", 0)
POINTS = ROOT / RECOVERY_POINT_NAME
LIMIT_S = 20.0


def saved(files: FaultyFiles) -> int:
    """The recovery point of t-0 on disk."""
    points = OffsetCheckpoint(files, POINTS).read()
    assert points is not None
    return points.get(T0, 0)


class SlowSave(FaultyFiles):
    """Files whose next replacement of the recovery points lasts as long as ``meanwhile`` runs; records the saved
    points of t-0.
    """

    meanwhile: Callable[[], object] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.saves: list[int] = []

    def rename(self, source: Path, target: Path) -> None:
        if target == POINTS and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        super().rename(source, target)
        if target == POINTS:
            self.saves.append(saved(self))


def on_another_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("mode", FLUSH_MODES)
def test_recovery_point_is_saved_when_a_segment_was_closed_and_not_before(mode):
    """In each flush mode the closed segment is fsynced first, unless that was done."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory, replace(SMALL, flush_mode=mode))
    fill(log, 3, commit=False)
    files.calls.clear()
    assert not directory.maybe_checkpoint()
    assert files.calls == []
    end = fill(log, 60, start=3, size=200, commit=False)
    assert len(log.segment_base_offsets) > 1
    assert directory.maybe_checkpoint()
    assert saved(files) == end
    files.calls.clear()
    fill(log, 1, start=63)
    assert not directory.maybe_checkpoint()
    assert all(path.parent != ROOT for _, path in files.calls)


def test_idle_segment_closed_for_its_age_is_below_the_recovery_point():
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    end = fill(log, 3)
    assert saved(files) == 0
    assert maybe_roll(log._state, 10**12)
    assert directory.maybe_checkpoint()
    assert saved(files) == end


def test_checkpoint_leaves_nothing_to_be_saved_for_a_roll():
    files = FaultyFiles()
    directory = open_directory(files)
    fill(open_log(directory), 60, size=200)
    directory.checkpoint()
    assert not directory.maybe_checkpoint()


def test_generation_is_not_raised_for_a_roll():
    """Each generation is written to ZooKeeper."""
    directory = open_directory(FaultyFiles())
    directory.remember_epoch(1)
    fill(open_log(directory), 60, size=200)
    before = directory.disk
    assert directory.maybe_checkpoint()
    assert directory.disk == before
    directory.checkpoint()
    assert directory.disk.generation == before.generation + 1


def test_recovery_point_that_could_not_be_saved_is_saved_by_the_next_checkpoint():
    files = FaultyFiles()
    directory = open_directory(files)
    end = fill(open_log(directory), 60, size=200)
    before = saved(files)
    files.faults.append(Fault("write", errno.ENOSPC, times=1, matches=lambda path: path.name.startswith(POINTS.name)))
    with pytest.raises(OSError, match="No space left"):
        directory.maybe_checkpoint()
    assert saved(files) == before
    directory.checkpoint()
    assert saved(files) == end


@pytest.mark.parametrize("mode", FLUSH_MODES)
@pytest.mark.parametrize("seed", range(10))
def test_recovery_point_after_a_roll_survives_a_power_failure(seed, mode):
    """Segments are closed, saved, and written on; the log is never found damaged or shorter than its recovery point."""
    rng = random.Random(seed)
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory, replace(SMALL, flush_mode=mode))
    for number in range(100):
        append(log, frame(seed=number, size=rng.randrange(20, 900)), commit=rng.random() < 0.2)
        if rng.random() < 0.2:
            directory.maybe_checkpoint()
        if rng.random() < 0.03:
            log.truncate_to(rng.randint(log.high_watermark, log.log_end_offset))
    point = saved(files)
    files.lose_power(rng)
    with open_directory(files) as again:
        log = open_log(again)
        assert log.log_end_offset >= saved(files) >= point > 0
        assert not log.is_damaged
        read_frames(log)


def test_nobody_waits_while_the_recovery_point_is_saved():
    """However long the disk takes, records are appended, flushed and read, and segments closed."""
    files = SlowSave()
    directory = open_directory(files)
    log = open_log(directory)
    fill(log, 60, size=200)
    segments = len(log.segment_base_offsets)

    def use() -> None:
        worker = on_another_thread(lambda: fill(log, 60, start=60, size=200))
        worker.join(LIMIT_S)
        assert not worker.is_alive()
        assert len(read_frames(log)) == 120

    files.meanwhile = use
    assert directory.maybe_checkpoint()
    assert files.meanwhile is None
    assert len(log.segment_base_offsets) > segments
    assert saved(files) == 60, "as of the moment when it was begun"
    assert directory.maybe_checkpoint(), "a segment was closed since"
    assert saved(files) == 120


def wait_until_durable_end_is(log: PartitionLog, end: int) -> None:
    wait_until(lambda: log.start_state().recovery_point == end, "the log is durable so far", LIMIT_S)


@pytest.mark.parametrize("moment", ["read", "written"])
def test_truncation_during_a_save_is_on_disk_before_a_byte_is_removed(monkeypatch, moment):
    """A save that began before the truncation knows the longer log, and does not write after it."""
    files = SlowSave()
    directory = open_directory(files)
    log = open_log(directory)
    end = fill(log, 60, size=200)
    log.set_high_watermark(10)
    cutting: list[threading.Thread] = []

    def cut() -> None:
        cutting.append(on_another_thread(lambda: log.truncate_to(10)))
        wait_until_durable_end_is(log, 10)
        if not directory._save_lock.locked():
            cutting[0].join(LIMIT_S)

    if moment == "written":
        files.meanwhile = cut
    else:
        start_state = log.start_state

        def read() -> StartState:
            monkeypatch.undo()
            known = start_state()
            cut()
            return known

        monkeypatch.setattr(log, "start_state", read)
    files.calls.clear()
    files.saves = []
    assert directory.maybe_checkpoint()
    cutting[0].join(LIMIT_S)
    assert not cutting[0].is_alive()
    assert files.saves == [end, 10]
    last_save = max(number for number, (_, path) in enumerate(files.calls) if path.name.startswith(POINTS.name))
    assert last_save < min(number for number, (_, path) in enumerate(files.calls) if path.name.endswith(".log.tmp"))
