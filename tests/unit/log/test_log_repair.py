"""Repair gives up the records that a damaged log cannot serve: the rest is served, nothing happens unasked, and a
crash does no harm.
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from broker_runtime.contract.errors import CorruptRecordError, DirectoryLockedError, OptionError
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log.directory import CLEAN_NAME
from broker_runtime.log.faulty_files import Fault, FaultyFiles
from broker_runtime.log.repair import carry_out, opened_for_repair, plan_repair
from tests.unit.log.log_samples import (
    ROOT,
    SMALL,
    TOPIC_ID,
    append,
    fill,
    flip,
    frame,
    open_directory,
    open_log,
    read_frames,
    segment_path,
)

T0 = TopicPartition("t", 0)
FRAMES = 60


class Disk:
    """A data directory with t-0 in several segments, and an undamaged t-1; its broker is not running."""

    def __init__(self, *, clean: bool = True, start: int = 0) -> None:
        self.files = FaultyFiles()
        directory = open_directory(self.files)
        log = open_log(directory)
        fill(log, FRAMES, size=200)
        fill(open_log(directory, partition=1), 3)
        log.delete_records(start)
        self.bases = log.segment_base_offsets
        self.frames = [(header, data) for header, data in read_frames(log)]
        directory.checkpoint()
        directory.close(clean=clean)
        if not clean:
            self.files.kill()

    def position_of(self, offset: int) -> int:
        base = max(base for base in self.bases if base <= offset)
        return sum(header.frame_bytes for header, _ in self.frames if base <= header.base_offset < offset)

    def flip(self, offset: int, within: int = 150) -> None:
        base = max(base for base in self.bases if base <= offset)
        flip(self.files, segment_path(base), self.position_of(offset) + within)

    def repair(self):
        with opened_for_repair(ROOT, files=self.files) as directory:
            plan = plan_repair(directory, T0)
            if plan is not None:
                carry_out(directory, T0, plan)
            return plan

    def content(self) -> dict[str, bytes]:
        return {str(path): self.files.content(path) for path in sorted(self.files._names) if path.parent.name == "t-0"}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("offset", [0, 1, 30, FRAMES - 1])
def test_repaired_log_keeps_the_records_before_the_damage_and_continues(offset, clean):
    """The broker serves the rest; other logs are unchanged."""
    disk = Disk(clean=clean)
    disk.flip(offset)
    plan = disk.repair()
    assert (plan.old_start, plan.old_end, plan.start, plan.end) == (0, FRAMES, 0, offset)
    assert plan.lost_records == FRAMES - offset
    assert plan.sound_records == FRAMES - offset - 1
    with open_directory(disk.files) as directory:
        log = open_log(directory)
        assert (log.log_end_offset, log.high_watermark) == (offset, offset)
        assert [data for _, data in read_frames(log)] == [data for _, data in disk.frames[:offset]]
        assert append(log, frame(seed=99)) == offset + 1
        assert len(read_frames(open_log(directory, partition=1))) == 3
    with opened_for_repair(ROOT, files=disk.files) as directory:
        assert plan_repair(directory, T0) is None


def test_plan_changes_nothing():
    """A user who declines finds the log unchanged, and its broker as cleanly stopped as before."""
    disk = Disk()
    disk.flip(30)
    before = disk.content()
    mark = disk.files.content(ROOT / CLEAN_NAME)
    with opened_for_repair(ROOT, files=disk.files) as directory:
        assert plan_repair(directory, T0) is not None
    assert disk.content() == before
    assert disk.files.content(ROOT / CLEAN_NAME) == mark
    assert open_directory(disk.files).was_clean


def test_sound_log_and_a_torn_tail_need_no_repair():
    disk = Disk()
    assert disk.repair() is None
    disk = Disk(clean=False)
    path = segment_path(disk.bases[-1])
    disk.files.overwrite(path, disk.files.content(path) + b"\x07" * 300)
    assert disk.repair() is None
    assert open_log(open_directory(disk.files)).log_end_offset == FRAMES


def test_broker_of_a_repaired_log_was_not_stopped_in_order():
    """It leaves the in-sync sets that have other members: its log is shorter than it may have reported."""
    disk = Disk()
    assert disk.repair() is None
    disk.flip(30)
    disk.repair()
    assert not open_directory(disk.files).was_clean


def test_log_whose_end_is_missing_is_served_up_to_the_gap():
    disk = Disk()
    path = segment_path(disk.bases[-1])
    disk.files.overwrite(path, disk.files.content(path)[:-1])
    plan = disk.repair()
    assert (plan.end, plan.lost_records, plan.sound_records) == (FRAMES - 1, 1, 0)
    assert open_log(open_directory(disk.files)).log_end_offset == FRAMES - 1


def test_log_with_a_missing_segment_is_served_up_to_the_gap():
    disk = Disk()
    disk.files.unlink(segment_path(disk.bases[2]))
    plan = disk.repair()
    assert (plan.start, plan.end) == (0, disk.bases[2])
    assert len(read_frames(open_log(open_directory(disk.files)))) == disk.bases[2]


def test_log_whose_first_segment_is_missing_begins_later():
    disk = Disk()
    disk.files.unlink(segment_path(0))
    with pytest.raises(CorruptRecordError):
        open_log(open_directory(disk.files)).log_end_offset  # noqa: B018
    disk.files.kill()
    plan = disk.repair()
    assert (plan.start, plan.end, plan.lost_records) == (disk.bases[1], FRAMES, disk.bases[1])
    log = open_log(open_directory(disk.files))
    assert (log.log_start_offset, log.log_end_offset) == (disk.bases[1], FRAMES)


def test_log_without_any_segment_begins_again():
    disk = Disk()
    for base in disk.bases:
        disk.files.unlink(segment_path(base))
    plan = disk.repair()
    assert (plan.end, plan.lost_records) == (0, FRAMES)
    log = open_log(open_directory(disk.files))
    assert log.log_end_offset == 0
    assert append(log, frame()) == 1


def test_rows_damaged_below_the_log_start_are_no_loss():
    disk = Disk(start=5)
    data = bytearray(disk.files.content(segment_path(0)))
    data[150] ^= 2
    disk.files.overwrite(segment_path(0), bytes(data))
    assert disk.repair() is None


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("start", [5, 8])
def test_header_damaged_among_deleted_records_costs_none_that_is_left(clean, start):
    """The log begins with the first whole frame that has any."""
    disk = Disk(start=start, clean=clean)
    disk.flip(2, within=0)
    before = {header.base_offset: data for header, data in disk.frames}
    plan = disk.repair()
    assert (plan.old_start, plan.start, plan.end, plan.lost_records) == (start, start, FRAMES, 0)
    assert "was deleted before" in plan.reason
    for _ in range(2):
        with open_directory(disk.files) as directory:
            log = open_log(directory)
            assert {header.base_offset: data for header, data in read_frames(log, start)} == {
                offset: data for offset, data in before.items() if offset >= start
            }
            assert log.log_start_offset == start
    assert disk.repair() is None


def test_crash_in_that_repair_leaves_a_log_that_is_damaged_or_repaired():
    seen = set()
    for after in range(12):
        disk = Disk(start=5)
        disk.flip(2, within=0)
        disk.files.faults += [Fault(operation, after=after, times=1) for operation in ("rename", "unlink", "write")]
        with suppress(OSError):
            disk.repair()
        disk.files.faults.clear()
        disk.files.lose_power(random.Random(after))
        again = disk.repair()
        seen.add(again is None)
        with open_directory(disk.files) as directory:
            log = open_log(directory)
            assert [header.base_offset for header, _ in read_frames(log, 5)] == list(range(5, FRAMES))
    assert seen == {True, False}


def test_frame_that_begins_below_the_log_start_is_given_up_where_it_is_damaged():
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory)
        for seed in range(4):
            append(log, frame(10, seed=seed))
        log.delete_records(15)
    data = bytearray(files.content(segment_path(0)))
    data[len(data) // 4 + 10] ^= 1
    files.overwrite(segment_path(0), bytes(data))
    with opened_for_repair(ROOT, files=files) as directory:
        plan = plan_repair(directory, T0)
        assert (plan.old_start, plan.start, plan.end, plan.lost_records) == (15, 20, 40, 5)
        carry_out(directory, T0, plan)
    with open_directory(files) as directory:
        log = open_log(directory)
        assert (log.log_start_offset, log.log_end_offset, log.segment_base_offsets) == (20, 40, (20,))


@pytest.mark.parametrize("further", [FRAMES - 2, FRAMES - 1])
def test_further_damage_behind_deleted_records_ends_the_log_there(further):
    """What lies between two damages is not looked for."""
    disk = Disk(start=5)
    disk.flip(2, within=0)
    disk.flip(further)
    plan = disk.repair()
    assert (plan.start, plan.end) == (5, 5)
    assert open_log(open_directory(disk.files)).log_end_offset == 5


def test_epochs_and_producers_after_the_cut_are_forgotten():
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory)
        append(log, frame(seed=1, producer_id=7, producer_epoch=0, base_sequence=0), leader_epoch=1)
        append(log, frame(seed=2), leader_epoch=2)
        append(log, frame(seed=3, producer_id=7, producer_epoch=0, base_sequence=1), leader_epoch=3)
    data = bytearray(files.content(segment_path(0)))
    data[len(data) // 3 + 150] ^= 1
    files.overwrite(segment_path(0), bytes(data))
    with opened_for_repair(ROOT, files=files) as directory:
        carry_out(directory, T0, plan_repair(directory, T0))
    log = open_log(open_directory(files))
    assert log.leader_epochs == ((1, 0),)
    assert append(log, frame(seed=3, producer_id=7, producer_epoch=0, base_sequence=1), leader_epoch=4) == 2


def test_repair_is_refused_beside_a_running_broker():
    disk = Disk()
    directory = open_directory(disk.files)
    with pytest.raises(DirectoryLockedError, match="is in use by process"), opened_for_repair(ROOT, files=disk.files):
        pass
    directory.close()


def test_repair_of_an_unknown_log_is_refused():
    disk = Disk()
    with pytest.raises(OptionError, match="no log of t-7"), opened_for_repair(ROOT, files=disk.files) as directory:
        plan_repair(directory, TopicPartition("t", 7))
    with pytest.raises(OptionError, match=r"no meta\.json"), opened_for_repair(ROOT / "t-0", files=disk.files):
        pass


def test_repair_that_a_crash_interrupts_can_be_repeated():
    """At no moment does an unrepaired log look repaired."""
    step = 0
    while _is_cut_short(step):
        step += 1
    assert step > 10


def _is_cut_short(step: int) -> bool:
    """Whether the repair makes more than ``step`` changes on disk; the process dies at the next, and starts again."""
    disk = Disk()
    disk.flip(15)
    count = 0

    def watched(real):
        def change(*given):
            nonlocal count
            count += 1
            if count == step + 1:
                raise KeyboardInterrupt
            return real(*given)

        return change

    for name in ("unlink", "rename", "write", "sync_directory"):
        setattr(disk.files, name, watched(getattr(disk.files, name)))
    try:
        disk.repair()
        return False
    except KeyboardInterrupt:
        disk.files.kill()
    try:
        assert open_log(open_directory(disk.files)).log_end_offset in {15, FRAMES}
    except CorruptRecordError:
        disk.files.kill()
        assert disk.repair().end == 15
        assert len(read_frames(open_log(open_directory(disk.files)))) == 15
    return True


def test_settings_of_the_samples_make_several_segments():
    """Otherwise the tests above prove little."""
    assert len(Disk().bases) > 3
    assert SMALL.segment_bytes < FRAMES * 300
    assert TOPIC_ID


@pytest.mark.parametrize("clean", [True, False])
def test_missing_log_put_back_too_short_is_served_once_it_is_repaired(clean):
    """Its former end is given up with the rest, at all further starts, too."""
    disk = Disk()
    copy = {name: disk.files.content(ROOT / "t-0" / name) for name in disk.files.list(ROOT / "t-0")}
    disk.files.remove_tree(ROOT / "t-0")
    open_directory(disk.files).close()
    disk.files.make_directory(ROOT / "t-0")
    last = max(name for name in copy if name.endswith(".log"))
    for name, data in copy.items():
        disk.files.overwrite(ROOT / "t-0" / name, data[:-1] if name == last else data)
    open_directory(disk.files).close(clean=clean)
    plan = disk.repair()
    assert (plan.end, plan.old_end) == (FRAMES - 1, FRAMES)
    for _ in range(2):
        directory = open_directory(disk.files)
        assert (directory.put_back, open_log(directory).log_end_offset) == ({T0}, FRAMES - 1)
        directory.close(clean=clean)
