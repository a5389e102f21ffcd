"""Retention of logs that nobody used since the start: they are loaded only if there is something to remove."""

from __future__ import annotations

import dataclasses
import random

import pytest

from broker_runtime.contract.errors import LogStorageError
from broker_runtime.log import BelievedClock
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.log.log_state import maybe_roll
from broker_runtime.log.retention import LARGEST_STEP_MS
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import SMALL, append, fill, frame, open_directory, open_log, segment_path

DAY_MS = 86_400_000
APPENDED_MS = 1000  # of the first frame; the last comes 0.3 s later


def reopened(config, *, frames=300):
    """An unused log with ``frames`` frames in some segments of 8 KiB, and its files."""
    files = FaultyFiles()
    files.now_ms = APPENDED_MS + frames
    with open_directory(files) as directory:
        fill(open_log(directory), frames, rows=3)
    directory = open_directory(files)
    return files, open_log(directory, config)


@pytest.mark.parametrize(
    ("retention_ms", "retention_bytes", "now_ms", "is_loaded"),
    [
        (-1, -1, 1 << 50, False),
        (10_000, -1, 11_300, False),
        (10_000, -1, 11_301, True),
        (-1, 1 << 30, 1 << 50, False),
        (-1, 20_000, 0, True),
        (10_000, 20_000, 11_300, True),
        (10_000, 1 << 30, 11_301, True),
    ],
)
def test_retention_loads_an_unused_log_only_for_what_it_may_remove(retention_ms, retention_bytes, now_ms, is_loaded):
    """W5: a closed log costs nothing: the sizes and times of its files suffice."""
    _, log = reopened(dataclasses.replace(SMALL, retention_ms=retention_ms, retention_bytes=retention_bytes))
    removed = log.apply_retention(now_ms)
    assert log.is_loaded == is_loaded
    assert (removed > 0) == is_loaded


def test_retention_does_not_load_an_empty_log():
    _, log = reopened(dataclasses.replace(SMALL, retention_ms=0, retention_bytes=0), frames=0)
    assert log.apply_retention(1 << 50) == 0
    assert not log.is_loaded


def test_retention_takes_an_unused_log_offline_when_its_files_cannot_be_looked_at():
    files, log = reopened(dataclasses.replace(SMALL, retention_ms=10))

    def refuse(path):
        raise OSError(5, "Input/output error", str(path))

    files.list = refuse
    with pytest.raises(LogStorageError, match="to apply retention failed"):
        log.apply_retention(0)
    assert log.is_offline


def test_trusted_clock_does_not_follow_one_that_is_set_ahead():
    """For retention no more time passes than on a clock that nobody sets; a small step is followed."""
    clock = BelievedClock(wall_ms=100 * DAY_MS, uptime_ms=5)
    assert clock.believed_ms(100 * DAY_MS + 1000, 1005) == 100 * DAY_MS + 1000
    assert clock.believed_ms(100 * DAY_MS + LARGEST_STEP_MS, 1005) == 100 * DAY_MS + LARGEST_STEP_MS
    assert clock.believed_ms(110 * DAY_MS, 2005) == 100 * DAY_MS + LARGEST_STEP_MS + 1000
    assert clock.believed_ms(111 * DAY_MS, 2005 + DAY_MS) == 101 * DAY_MS + LARGEST_STEP_MS + 1000


def test_trusted_clock_follows_one_that_is_set_back_and_forth():
    """A clock that is behind deletes nothing, and setting it right again is no step ahead."""
    clock = BelievedClock(wall_ms=100 * DAY_MS, uptime_ms=0)
    assert clock.believed_ms(90 * DAY_MS, 1000) == 90 * DAY_MS
    assert clock.believed_ms(100 * DAY_MS + 2000, 2000) == 100 * DAY_MS + 2000


def test_trusted_clock_gains_no_more_than_a_thousandth_on_one_that_runs_away():
    """This holds however often and by however many callers it is read: each single step is small enough."""
    clock = BelievedClock(wall_ms=0, uptime_ms=0)
    for uptime_ms in range(0, DAY_MS, 30_000):
        believed_ms = clock.believed_ms(2 * uptime_ms, uptime_ms)
        assert clock.believed_ms(2 * uptime_ms + 30_000, uptime_ms) - uptime_ms <= LARGEST_STEP_MS + uptime_ms // 1000
        assert believed_ms - uptime_ms <= LARGEST_STEP_MS + uptime_ms // 1000


def test_trusted_clock_follows_one_that_runs_a_little_faster():
    """The machine's own clock is kept in time like that, for months."""
    clock = BelievedClock(wall_ms=0, uptime_ms=0)
    for uptime_ms in range(0, 90 * DAY_MS, 300_000):
        wall_ms = uptime_ms + uptime_ms // 2000
        assert clock.believed_ms(wall_ms, uptime_ms) == wall_ms


def test_trusted_clock_follows_another_small_step_a_day_later():
    clock = BelievedClock(wall_ms=0, uptime_ms=0)
    assert clock.believed_ms(LARGEST_STEP_MS, 0) == LARGEST_STEP_MS
    assert clock.believed_ms(2 * LARGEST_STEP_MS + 1000, 1000) == LARGEST_STEP_MS + 1000
    assert clock.believed_ms(2 * LARGEST_STEP_MS + DAY_MS, DAY_MS) == 2 * LARGEST_STEP_MS + DAY_MS


def test_trusted_clock_logs_once_that_it_does_not_follow(caplog):
    """An operator learns why records stay."""
    clock = BelievedClock(wall_ms=0, uptime_ms=0)
    for uptime_ms in (1000, 2000):
        clock.believed_ms(DAY_MS + uptime_ms, uptime_ms)
    assert [record.getMessage() for record in caplog.records] == ["ignore clock set ahead ahead_s=86400 until=restart"]
    clock.believed_ms(3000, 3000)
    clock.believed_ms(DAY_MS, 4000)
    assert len(caplog.records) == 2, "it was right meanwhile"


@pytest.mark.parametrize("behind_ms", [-10 * DAY_MS, 0, LARGEST_STEP_MS])
def test_trusted_clock_is_the_brokers_when_zookeepers_is_less_than_a_minute_behind(behind_ms, caplog):
    """A clock that is ahead proves nothing: records would be deleted too early."""
    clock = BelievedClock(wall_ms=100 * DAY_MS, uptime_ms=500)
    clock.compare(100 * DAY_MS + 500 - behind_ms, from_ms=1000, to_ms=2000)
    assert clock.believed_ms(101 * DAY_MS, DAY_MS + 500) == 101 * DAY_MS
    assert not caplog.records


def test_trusted_clock_begins_with_zookeepers_when_the_brokers_is_ahead(caplog):
    """The time by which the clock was ahead while no broker ran is not trusted, and that is logged once."""
    clock = BelievedClock(wall_ms=100 * DAY_MS, uptime_ms=500)
    clock.compare(90 * DAY_MS, from_ms=1000, to_ms=2000)
    assert clock.believed_ms(101 * DAY_MS, 2000 + DAY_MS) == 91 * DAY_MS
    assert [record.getMessage() for record in caplog.records] == [
        "follow zookeeper's clock here=1970-04-11T00:00:00.500+00:00 zookeeper=1970-04-01T00:00:00.000+00:00"
    ]
    assert clock.believed_ms(91 * DAY_MS - 1, 2000 + DAY_MS) == 91 * DAY_MS - 1, "put right"


def test_segments_stamped_ahead_of_the_clock_are_deleted_after_the_retention_time():
    """A clock that was wrong for an hour does not fill the disk for years, and nothing is deleted too early."""
    with open_directory() as directory:
        log = open_log(directory, dataclasses.replace(SMALL, retention_ms=DAY_MS))
        append(log, frame(), now_ms=4000 * DAY_MS)
        append(log, frame(), now_ms=10 * DAY_MS)
        maybe_roll(log._state, 1 << 60)
        append(log, frame(), now_ms=4000 * DAY_MS)
        maybe_roll(log._state, 1 << 60)
        append(log, frame(), now_ms=4000 * DAY_MS)
        assert log.apply_retention(10 * DAY_MS) == 0
        assert log.apply_retention(11 * DAY_MS) == 0
        assert log.apply_retention(11 * DAY_MS + 1) == 3
        assert log.log_start_offset == 4


def test_clock_that_was_behind_for_one_look_ages_nothing():
    """Records that looked as if from the future then are as young as they were stamped."""
    with open_directory() as directory:
        log = open_log(directory, dataclasses.replace(SMALL, retention_ms=DAY_MS))
        append(log, frame(), now_ms=100 * DAY_MS)
        maybe_roll(log._state, 1 << 60)
        append(log, frame(), now_ms=100 * DAY_MS)
        assert log.apply_retention(90 * DAY_MS) == 0
        assert log.apply_retention(100 * DAY_MS + 1) == 0


def test_unused_log_whose_files_are_ahead_of_the_clock_is_checked():
    """Its time passes, too."""
    _, log = reopened(dataclasses.replace(SMALL, retention_ms=10_000))
    assert log.apply_retention(-DAY_MS) == 0
    assert log.is_loaded


def test_interval_flush_continues_when_the_clock_went_back():
    """``flush.ms`` bounds how long durable records may be in memory only, whatever happens to the clock."""
    with open_directory() as directory:
        log = open_log(directory, topic_settings(flush_mode="interval", flush_ms=1000))
        append(log, frame(), commit=False)
        assert log.maybe_flush(10 * DAY_MS)
        append(log, frame(), commit=False)
        assert not log.maybe_flush(10 * DAY_MS + 999)
        assert log.maybe_flush(DAY_MS)
        assert log.start_state().recovery_point == 2


@pytest.mark.parametrize("how", ["clean", "killed", "without power"])
@pytest.mark.parametrize("starts", [1, 2])
def test_log_whose_records_are_all_deleted_keeps_their_epoch(how, starts):
    """Otherwise one with records of an earlier epoch, which were never committed, would seem to go further."""
    files = FaultyFiles()
    for start in range(starts):
        directory = open_directory(files)
        log = open_log(directory, dataclasses.replace(SMALL, retention_ms=1000, flush_mode="interval"))
        if start == 0:
            append(log, *(frame(1, seed=number) for number in range(10)), leader_epoch=1)
            append(log, *(frame(1, seed=number) for number in range(5)), leader_epoch=5)
            assert log.apply_retention(1 << 40) > 0
            directory.checkpoint()
        extent = log.extent()
        assert (extent.log_start, extent.log_end, extent.leader_epochs) == (15, 15, ((5, 15),))
        if how == "clean":
            directory.close()
        elif how == "killed":
            files.kill()
        else:
            files.lose_power(random.Random(start))
    with open_directory(files) as directory:
        assert open_log(directory).extent().leader_epochs == ((5, 15),)


def test_log_that_lost_all_its_records_knows_only_epochs_that_began_with_it():
    """A later one was of records that are gone."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory, dataclasses.replace(SMALL, flush_mode="os"))
    append(log, frame(), leader_epoch=3, commit=False)
    append(log, frame(), leader_epoch=4, commit=False)
    files.kill()
    files.overwrite(segment_path(0), b"")
    with open_directory(files) as directory:
        extent = open_log(directory).extent()
        assert (extent.log_end, extent.leader_epochs) == (0, ((3, 0),))
