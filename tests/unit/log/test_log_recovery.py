"""Recovery after an unclean stop: torn tails are cut, damage is refused, and nothing acknowledged is lost."""

from __future__ import annotations

import logging
import random
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from broker_runtime.contract.errors import CorruptRecordError, UnsupportedVersionError
from broker_runtime.log import PartitionLog
from broker_runtime.log.faulty_files import FaultyFiles
from tests.unit.log.log_samples import (
    ROOT,
    append,
    fill,
    frame,
    index_files,
    open_directory,
    open_log,
    read_frames,
    segment_path,
)


def crashed(fill_log=None) -> tuple[FaultyFiles, list[bytes]]:
    """The files of a broker that was killed, and the frames in its log."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    (fill_log or (lambda log: fill(log, 60, rows=3)))(log)
    frames = [data for _, data in read_frames(log)]
    files.kill()
    return files, frames


def reopened(files: FaultyFiles) -> PartitionLog:
    """The log as the next broker opens it."""
    files.kill()
    return open_log(open_directory(files))


def without_checkpoints(files: FaultyFiles) -> None:
    for name in ("high-watermark-checkpoint", "recovery-point-checkpoint"):
        files.overwrite(ROOT / name, b"")


def test_recovery_finds_everything_after_a_kill():
    """After a crash the log has all durable offsets; indexes, epochs and positions agree with it."""
    files, frames = crashed()
    before = index_files(files)
    log = reopened(files)
    assert [data for _, data in read_frames(log)] == frames
    assert log.leader_epochs == ((0, 0),)
    assert log.durable_end_offset == 180
    assert index_files(files) == before


def test_last_frame_cut_at_every_byte_is_cut_off_and_the_rest_stays():
    """A torn tail is cut wherever the write stopped, and appending continues there."""
    files = FaultyFiles()
    log = open_log(open_directory(files))
    fill(log, 4)
    append(log, frame(2, seed=99), commit=False)  # never acknowledged
    path = segment_path(0)
    whole = files.content(path)
    kept = b"".join(data for _, data in read_frames(log)[:4])
    files.kill()
    for size in range(len(kept), len(whole)):
        files.overwrite(path, whole[:size])
        log = reopened(files)
        assert log.log_end_offset == 4, size
        assert files.content(path) == kept
        assert append(log, frame(seed=5)) == 5
        assert len(read_frames(log)) == 5
        log.truncate_to(4)
    files.overwrite(path, whole)
    assert reopened(files).log_end_offset == 6


def test_tail_of_zeros_or_garbage_behind_the_last_frame_is_cut():
    """A file system may leave zeros, or old blocks, where a write did not arrive."""
    for tail in (bytes(64), bytes(5000), b"PLOG" * 40, b"\xff" * 333):
        files, frames = crashed(lambda log: fill(log, 3))
        files.overwrite(segment_path(0), b"".join(frames) + tail)
        log = reopened(files)
        assert [data for _, data in read_frames(log)] == frames


def test_cut_removes_the_segments_after_an_unacknowledged_bad_frame():
    """Frames after a bad one are cut with it if neither a checkpoint nor a later frame shows a high watermark."""
    files, frames = crashed(lambda log: fill(log, 60, rows=3, commit=False))
    without_checkpoints(files)
    path = segment_path(0)
    data = bytearray(files.content(path))
    data[len(frames[0]) + 200] ^= 1
    files.overwrite(path, bytes(data))
    log = reopened(files)
    assert log.log_end_offset == 3
    assert log.segment_base_offsets == (0,)
    assert append(log, frame()) == 4
    assert sorted(name for name in files.list(path.parent) if name.endswith(".log")) == [path.name]


def test_later_frames_high_watermark_makes_a_bad_frame_damage():
    """A later valid frame with a high watermark above the bad one proves that it was acknowledged."""
    files, frames = crashed(lambda log: fill(log, 10, rows=3))
    without_checkpoints(files)
    data = bytearray(b"".join(frames))
    position = sum(map(len, frames[:4]))
    data[position + 130] ^= 1
    files.overwrite(segment_path(0), bytes(data))
    before = files.content(segment_path(0))
    log = reopened(files)
    with pytest.raises(CorruptRecordError, match=rf"position {position}, offset 12: .* 12 to \d+ are not served"):
        log.read(0, max_bytes=1, upto=30)
    with pytest.raises(CorruptRecordError):
        append(log, frame())
    assert log.is_offline
    assert files.content(segment_path(0)) == before  # nothing is changed: it may be repaired


def test_checkpoint_makes_a_missing_tail_damage():
    """A checkpoint with a high watermark above the log's end proves that records are missing."""
    files, frames = crashed(lambda log: fill(log, 10, rows=3))
    with open_directory(files) as directory:
        open_log(directory).set_high_watermark(30)
        directory.checkpoint()
    for size in (sum(map(len, frames[:9])), 0, 70):
        files.overwrite(segment_path(0), b"".join(frames)[:size])
        log = reopened(files)
        with pytest.raises(CorruptRecordError, match=r"damaged at position|ends there"):
            log.read(0, max_bytes=1, upto=30)


def test_every_flipped_bit_of_an_acknowledged_log_is_refused_or_harmless():
    """Damage below a known high watermark is reported and never served."""
    files, frames = crashed(lambda log: fill(log, 4, rows=2))
    with open_directory(files) as directory:
        open_log(directory).set_high_watermark(8)
        directory.checkpoint()
    files.unlink(ROOT / "clean-shutdown")
    files.overwrite(ROOT / "recovery-point-checkpoint", b"")  # so that every frame is verified
    path = segment_path(0)
    whole = b"".join(frames)
    for position in range(0, len(whole), 5):
        data = bytearray(whole)
        data[position] ^= 1 << position % 8
        files.overwrite(path, bytes(data))
        files.overwrite(ROOT / "recovery-point-checkpoint", b"")
        log = reopened(files)
        with pytest.raises((CorruptRecordError, UnsupportedVersionError)):
            log.read(0, max_bytes=1 << 20, upto=8)
    files.overwrite(path, whole)
    assert len(read_frames(reopened(files))) == 4


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_bits_flipped_in_derived_files_change_nothing_that_is_read(suffix, is_clean):
    """Indexes and snapshots are rebuilt when they fail their checks, after a clean stop as after a crash."""
    files, frames = crashed(lambda log: fill(log, 60, rows=3))
    with open_directory(files) as directory:
        assert open_log(directory).log_end_offset == 180
    names = [name for name in files.list(ROOT / "t-0") if name.endswith(suffix)]
    assert names
    originals = {name: files.content(ROOT / "t-0" / name) for name in names}
    for damage in (lambda data: bytes(byte ^ 0x41 for byte in data), lambda data: data[:-1], lambda data: b""):
        for name, data in originals.items():
            files.overwrite(ROOT / "t-0" / name, damage(data))
        if not is_clean and files.file_size(ROOT / "clean-shutdown") is not None:
            files.unlink(ROOT / "clean-shutdown")
        files.kill()
        with open_directory(files) as directory:
            log = open_log(directory)
            assert [data for _, data in read_frames(log)] == frames
            for offset in range(0, 180, 7):
                with log.read(offset, max_bytes=1, upto=180) as piece:
                    assert piece.start_offset == offset - offset % 3
            for time in range(1000, 1060):
                assert log.offset_for_timestamp(time) == ((time - 1000) * 3, time)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("content", [b"", b"x" * 35, b"x" * 36])
def test_transaction_index_of_an_earlier_version_is_accepted(content, is_clean):
    """Earlier versions created an empty one with every segment; segments have none now, as nothing would be in it."""
    files, frames = crashed(lambda log: fill(log, 60, rows=3))
    with open_directory(files) as directory:
        assert open_log(directory).log_end_offset == 180
    bases = sorted(name[:20] for name in files.list(ROOT / "t-0") if name.endswith(".log"))
    assert len(bases) > 1
    assert not [name for name in files.list(ROOT / "t-0") if name.endswith(".txnindex")]
    for base in bases:
        files.overwrite(ROOT / "t-0" / f"{base}.txnindex", content)
    if not is_clean:
        files.unlink(ROOT / "clean-shutdown")
    files.kill()
    with open_directory(files) as directory:
        log = open_log(directory)
        assert [data for _, data in read_frames(log)] == frames
        assert append(log, frame()) == 181
        log.delete_records(181)
    left = [name[:20] for name in files.list(ROOT / "t-0") if name.endswith(".txnindex")]
    assert left in ([], bases[-1:]), "it goes with its segment, or when the indexes are rebuilt"


def test_bits_flipped_in_the_index_while_the_log_is_open_are_noticed_and_repaired():
    """A lookup trusts an index entry only after its checksum."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory)
        fill(log, 60, rows=3)
        good = index_files(files)
        for suffix in (".index", ".timeindex"):
            path = segment_path(0, suffix)
            descriptor = files.open(path)
            files.write(descriptor, [b"\x7f" * len(files.content(path))], 0)
            files.close(descriptor)
        assert log.offset_for_timestamp(1005) == (15, 1005)
        for offset in range(180):
            with log.read(offset, max_bytes=1, upto=180) as piece:
                assert piece.start_offset == offset - offset % 3
        assert index_files(files) == good


def test_index_is_repaired_whenever_it_is_found_damaged_without_reading_rows(monkeypatch):
    """Bad entries, one after the other, cost the headers each time, and never a checksum over the segment."""

    def refuse(*args, **fields):
        raise AssertionError("the whole segment is read")

    monkeypatch.setattr("broker_runtime.log.log_state.verified_frames", refuse)
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory)
        fill(log, 60, rows=3)
        good = index_files(files)
        for round_number in range(5):
            for suffix in (".index", ".timeindex"):
                path = segment_path(0, suffix)
                descriptor = files.open(path)
                files.write(descriptor, [b"\x7f" * len(files.content(path))], 0)
                files.close(descriptor)
            with log.read(30 + round_number, max_bytes=1, upto=180) as piece:
                assert piece.start_offset == (30 + round_number) // 3 * 3
            assert log.offset_for_timestamp(1005) == (15, 1005)
            assert index_files(files) == good
        assert not log.is_damaged


def test_bad_header_found_while_reading_is_an_error_and_never_served():
    """It is neither served nor skipped silently."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory)
        fill(log, 10, rows=3)
        frames = [data for _, data in read_frames(log)]
        position = sum(map(len, frames[:5]))
        descriptor = files.open(segment_path(0))
        files.write(descriptor, [bytes(128)], position)
        files.close(descriptor)
        for _ in range(3):
            with pytest.raises(CorruptRecordError, match=f"position {position}, offset 15"):
                log.read(15, max_bytes=1, upto=30)
        with log.read(12, max_bytes=1, upto=30) as piece:
            assert piece.start_offset == 12
        assert append(log, frame()) == 31


@pytest.mark.parametrize(
    "name",
    ["recovery-point-checkpoint", "high-watermark-checkpoint", "log-start-offset-checkpoint", "clean-shutdown",
     "t-0/partition.json", "t-0/leader-epoch-checkpoint"],
)  # fmt: skip
@pytest.mark.parametrize("damage", ["flip", "empty", "missing"])
def test_damaged_small_file_costs_nothing_acknowledged(name, damage):
    """A checkpoint that fails its checks counts as missing, and its content is recovered from the log."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory)
        fill(log, 60, rows=3)
        log.delete_records(50)
        append(log, frame(), leader_epoch=3)
        frames = [data for _, data in read_frames(log)]
    data = bytearray(files.content(ROOT / name))
    if damage == "flip" and data:
        data[len(data) // 2] ^= 4
    if damage == "missing":
        files.unlink(ROOT / name)
    else:
        files.overwrite(ROOT / name, bytes(data) if damage == "flip" else b"")
    with open_directory(files) as directory:
        log = open_log(directory)
        assert log.log_end_offset == 181
        assert log.leader_epochs[-1] == (3, 180)
        assert log.log_start_offset == (50 if name != "log-start-offset-checkpoint" else log.segment_base_offsets[0])
        assert [data for _, data in read_frames(log)][-len(frames) + 1 :] == frames[1:]
        assert append(log, frame(), leader_epoch=3) == 182


def test_missing_segments_are_damage():
    """A missing segment at the beginning, in the middle or at the end is never ignored."""
    for which in (0, 2, -1):
        files = FaultyFiles()
        with open_directory(files) as directory:
            log = open_log(directory)
            fill(log, 60, rows=3)
            bases = log.segment_base_offsets
        files.unlink(segment_path(bases[which]))
        log = reopened(files)
        with pytest.raises(CorruptRecordError):
            read_frames(log, 0, upto=180)


def test_all_segments_missing_is_damage():
    """An empty directory that once held records is not a new log."""
    files, _ = crashed()
    with open_directory(files) as directory:
        assert open_log(directory).log_end_offset == 180
    for name in files.list(ROOT / "t-0"):
        if name.endswith(".log"):
            files.unlink(ROOT / "t-0" / name)
    with pytest.raises(CorruptRecordError, match="no segment"):
        append(reopened(files), frame())


def test_empty_file_in_place_of_the_last_segment_is_damage_if_records_were_in_it():
    """An emptied segment is distinguished from one that never had a frame."""
    files, _ = crashed()
    with open_directory(files) as directory:
        log = open_log(directory)
        assert log.log_end_offset == 180
        last = log.segment_base_offsets[-1]
    files.overwrite(segment_path(last), b"")
    with pytest.raises(CorruptRecordError, match="damaged at position 0"):
        append(reopened(files), frame())


def test_foreign_files_are_left_alone_and_reported_once(caplog):
    """Unknown files do no harm; leftovers of our own are removed."""
    files, frames = crashed(lambda log: fill(log, 3))
    for name in ("notes.txt", "0001.log", "x.tmp"):
        files.overwrite(ROOT / "t-0" / name, b"mine")
    files.overwrite(ROOT / "README", b"mine")
    files.overwrite(segment_path(0, ".log.tmp"), b"half")
    files.overwrite(segment_path(777, ".index"), b"orphan")
    with caplog.at_level(logging.WARNING):
        log = reopened(files)
        assert [data for _, data in read_frames(log)] == frames
    assert sum("foreign" in record.message for record in caplog.records) == 2
    names = files.list(ROOT / "t-0")
    assert {"notes.txt", "0001.log", "x.tmp"} <= set(names)
    assert segment_path(0, ".log.tmp").name not in names
    assert segment_path(777, ".index").name not in names


def test_newer_format_version_is_refused_and_not_cut():
    """A frame of a newer version is kept: it is not damage."""
    files, frames = crashed(lambda log: fill(log, 3))
    without_checkpoints(files)
    newer = bytearray(frames[2])
    struct.pack_into("<H", newer, 44, 9)
    directory_bytes = struct.unpack_from("<I", newer, 108)[0]
    struct.pack_into("<I", newer, 124, crc32c(bytes(newer[128 : 128 + directory_bytes]), crc32c(bytes(newer[40:124]))))
    whole = frames[0] + frames[1] + bytes(newer)
    files.overwrite(segment_path(0), whole)
    log = reopened(files)
    with pytest.raises(UnsupportedVersionError):
        log.log_end_offset  # noqa: B018
    assert files.content(segment_path(0)) == whole


def test_indexes_rebuilt_from_scratch_equal_those_written_live():
    """Index entries follow from the frames alone, byte for byte, in closed segments and in the last."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    for seed in range(150):
        times = [1000 + (seed * 37) % 101, 900]
        append(log, frame(2, seed=seed, timestamps=times, size=10 + seed % 90), now_ms=seed)
    live = index_files(files)
    assert len(live) > 8
    files.kill()
    for name in live:
        files.unlink(ROOT / "t-0" / name)
    for name in ("clean-shutdown", "recovery-point-checkpoint"):
        files.overwrite(ROOT / name, b"")
    assert len(read_frames(reopened(files))) == 150
    assert index_files(files) == live


def test_recovery_of_what_is_known_to_be_durable_writes_nothing_and_syncs_each_file_once():
    """At the start of a broker with a thousand partitions after a kill, fsyncs take most of the time."""
    files = FaultyFiles()
    directory = open_directory(files)
    fill(open_log(directory), 8)
    directory.checkpoint()
    files.kill()
    directory = open_directory(files)
    log = open_log(directory)
    files.calls.clear()
    assert log.log_end_offset == 8
    changes = [call for call in files.calls if call != ("write", segment_path(0, ".index"))]
    changes = [call for call in changes if call != ("write", segment_path(0, ".timeindex"))]
    assert changes == [("sync", segment_path(0)), ("sync_directory", ROOT / "t-0")]


@pytest.mark.parametrize("seed", range(20))
def test_rebuilt_files_survive_a_power_loss(seed):
    """From then on the recovery point is above closed segments, whose indexes are never rebuilt."""
    files, frames = crashed()
    live = index_files(files)
    for name in live:
        files.overwrite(ROOT / "t-0" / name, b"bad")
    without_checkpoints(files)
    directory = open_directory(files)
    assert open_log(directory).log_end_offset == 180
    directory.checkpoint()
    rng = random.Random(seed)
    files.lose_power(rng)
    closed = sorted(path.name for path in files_of_closed_segments(files))
    assert {name: files.content(ROOT / "t-0" / name) for name in closed} == {name: live[name] for name in closed}
    log = open_log(open_directory(files))
    assert [data for _, data in read_frames(log)] == frames
    assert index_files(files) == live


def files_of_closed_segments(files: FaultyFiles) -> list[Path]:
    """The index files of all segments but the last."""
    bases = [name.removesuffix(".log") for name in files.list(ROOT / "t-0") if name.endswith(".log")]
    return [ROOT / "t-0" / f"{base}{suffix}" for base in bases[:-1] for suffix in (".index", ".timeindex")]


def test_epochs_of_a_log_whose_start_moved_are_the_same_when_their_file_is_lost():
    """An epoch begins at the log start, even if that is in the middle of a segment."""
    files = FaultyFiles()
    with open_directory(files) as directory:
        log = open_log(directory)
        for number in range(10):
            append(log, frame(seed=number), leader_epoch=1 + number // 8)
        log.delete_records(5)
        epochs = log.leader_epochs
        assert epochs == ((1, 5), (2, 8))
    files.unlink(ROOT / "t-0" / "leader-epoch-checkpoint")
    assert reopened(files).leader_epochs == epochs
