"""Checkpoints, leader epochs, indexes and snapshots: their content, and that damage in them is noticed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker_runtime.contract.errors import (
    CorruptRecordError,
    FencedLeaderEpochError,
    LogStorageError,
    RequestTimedOutError,
)
from broker_runtime.contract.frame import parse_header
from broker_runtime.contract.model import TopicPartition
from broker_runtime.log.checkpoint import OffsetCheckpoint, decode_entries, encode_entries
from broker_runtime.log.faulty_files import FaultyFiles
from broker_runtime.log.group_commit import GroupCommit
from broker_runtime.log.indexes import NO_TIMESTAMP, IndexBuilder, OffsetIndex, TimeIndex, TransactionIndex
from broker_runtime.log.leader_epochs import LeaderEpochs
from broker_runtime.log.open_files import OpenFiles
from broker_runtime.log.producer_state import ProducerState
from tests.unit.log.log_samples import append, frame, open_directory, open_log, read_frames

ROOT = Path("/d")


@pytest.fixture
def files():
    files = FaultyFiles()
    files.make_directory(ROOT)
    return files


def test_checkpoint_notices_every_flipped_bit_and_every_cut():
    """A checkpoint is whole or counts as missing."""
    data = encode_entries([("topic", 0, 12), ("topic", 1, 7)])
    assert decode_entries(data, field_count=3) == [["topic", "0", "12"], ["topic", "1", "7"]]
    for position in range(len(data)):
        for bit in range(8):
            mutant = bytearray(data)
            mutant[position] ^= 1 << bit
            with pytest.raises(CorruptRecordError):
                decode_entries(bytes(mutant), field_count=3)
        with pytest.raises(CorruptRecordError):
            decode_entries(data[:position], field_count=3)
    with pytest.raises(CorruptRecordError, match="2 fields"):
        decode_entries(data, field_count=2)


def test_checkpoint_survives_a_restart_and_writes_only_changes(files):
    """The file is durable when `write` returns; writing the same again costs nothing."""
    checkpoint = OffsetCheckpoint(files, ROOT / "c")
    assert checkpoint.read() is None
    offsets = {TopicPartition("a-b.c", 3): 5, TopicPartition("a", 0): 1 << 40}
    checkpoint.write(offsets)
    assert OffsetCheckpoint(files, ROOT / "c").read() == offsets
    files.calls.clear()
    checkpoint.write(dict(offsets))
    assert files.calls == []
    checkpoint.write({})
    assert OffsetCheckpoint(files, ROOT / "c").read() == {}


def test_leader_epochs_are_truncated_with_the_log(files):
    """KIP-101: each epoch's beginning is known; truncation at both ends is durable."""
    epochs = LeaderEpochs(files, ROOT / "e")
    for epoch, start in ((0, 0), (2, 10), (2, 15), (5, 20)):
        epochs.assign(epoch, start)
    assert epochs.entries == ((0, 0), (2, 10), (5, 20))
    with pytest.raises(FencedLeaderEpochError):
        epochs.assign(4, 30)
    epochs.truncate_from_start(12)
    assert LeaderEpochs.load(files, ROOT / "e").entries == ((2, 12), (5, 20))
    epochs.truncate_from_end(20)
    assert LeaderEpochs.load(files, ROOT / "e").entries == ((2, 12),)
    epochs.assign(7, 12)  # an epoch without a record leaves no trace
    assert epochs.entries == ((7, 12),)


def test_offset_index_finds_the_entry_at_or_before_and_refuses_foreign_or_flipped_ones(files):
    """Lookups by offset and by position are sparse; an entry is trusted only after its checksum."""
    index = OffsetIndex(OpenFiles(files), ROOT, 1000)
    index.file.create()
    assert index.last() == index.floor(5000) == (1000, 0)
    for offset, position in ((1010, 4096), (1020, 8192), (1500, 12288)):
        index.file.append([(offset - 1000, position)])
    assert [index.floor(offset)[0] for offset in (1000, 1009, 1010, 1019, 1020, 1499, 9999)] == [
        1000, 1000, 1010, 1010, 1020, 1020, 1500,
    ]  # fmt: skip
    assert [index.floor_position(position)[1] for position in (0, 4095, 4096, 12287, 99999)] == [
        0, 0, 4096, 8192, 12288,
    ]  # fmt: skip
    data = files.content(index.file.path)
    foreign = OffsetIndex(OpenFiles(files), ROOT, 2000)
    files.overwrite(foreign.file.path, data)
    with pytest.raises(CorruptRecordError, match="fails its checksum"):
        foreign.last()
    for position in range(len(data) - 12, len(data)):
        mutant = bytearray(data)
        mutant[position] ^= 0x20
        files.overwrite(index.file.path, bytes(mutant))
        with pytest.raises(CorruptRecordError, match="entry 2 fails its checksum"):
            OffsetIndex(OpenFiles(files), ROOT, 1000).last()
    files.overwrite(index.file.path, data[:-1])
    with pytest.raises(CorruptRecordError, match="not whole entries"):
        OffsetIndex(OpenFiles(files), ROOT, 1000).last()


def test_time_index_finds_where_to_begin(files):
    """No record before the returned position is young enough."""
    index = TimeIndex(OpenFiles(files), ROOT, 100)
    index.file.create()
    assert index.last_timestamp() == NO_TIMESTAMP
    index.file.append([(50, 10), (70, 40)])
    assert len(index.file) == 2
    assert index.last_timestamp() == 70
    assert [index.offset_before(time) for time in (0, 50, 51, 70, 71)] == [100, 100, 110, 110, 140]


def test_transaction_index_has_room_for_the_aborted_ranges(files):
    """Its fields and its file exist: producer, first offset, marker, last stable offset."""
    index = TransactionIndex(OpenFiles(files), ROOT, 0)
    assert len(index.file) == 0
    aborted = [(7, 5, 9, 5), (8, 6, 20, 10)]
    for entry in aborted:
        index.file.append([entry])
    assert index.file.entry_bytes == 36
    assert list(TransactionIndex(OpenFiles(files), ROOT, 0).file.entries()) == aborted


@pytest.mark.parametrize("first", [0, 1, 127, 128, 129, 299, 300])
def test_entries_are_read_from_any_number_on(files, first):
    """However many there are: they are read in windows."""
    index = TransactionIndex(OpenFiles(files), ROOT, 0)
    entries = [(number, 10 * number, 10 * number + 5, 10 * number + 6) for number in range(300)]
    index.file.append(entries)
    assert list(index.file.entries(first)) == entries[first:]
    found, is_all = index.aborted(10 * first, 10 * first + 2_000)
    assert [each.producer_id for each in found] == list(range(first, min(first + 200, 300)))
    assert is_all is (first < 100)


def test_index_builder_makes_entries_from_the_frames_alone():
    """Entries are sparse by bytes; their timestamps rise strictly, and the last is the segment's maximum."""

    def header(offset: int, timestamp_ms: int) -> SimpleNamespace:
        return SimpleNamespace(
            base_offset=offset,
            next_offset=offset + 1,
            latest_timestamp_ms=timestamp_ms,
            append_time_ms=offset,
            is_control=False,
        )

    def built(builder: IndexBuilder, frames: Sequence[tuple[int, SimpleNamespace]]) -> tuple[object, ...]:
        for position, each in frames:
            builder.add(position, each)
        builder.close()
        return builder.offset_entries, builder.time_entries, builder.max_timestamp_ms, builder.next_offset

    frames = [
        (40 * number, header(100 + number, timestamp)) for number, timestamp in enumerate([50, 20, 50, 30, 70, 10, 60])
    ]
    whole = IndexBuilder(100, 80)
    offsets, times, *figures = built(whole, frames)
    assert (offsets, times) == ([(2, 80), (4, 160), (6, 240)], [(50, 2), (70, 6)])
    assert (figures, whole.first_append_ms, whole.last_append_ms) == ([70, 107], 100, 106)
    half = IndexBuilder(100, 80, next_offset=102, last_indexed_position=80, last_timestamp_ms=50)
    half.note(frames[2][1])
    assert built(half, frames[3:]) == (offsets[1:], times[1:], *figures)


def test_producer_state_remembers_five_batches_and_round_trips():
    """Epoch, sequences and offsets of the last five batches per producer; a new epoch forgets the old."""
    state = ProducerState()
    with open_directory() as directory:
        log = open_log(directory)
        for number in range(7):
            append(log, frame(2, producer_id=4, producer_epoch=1, base_sequence=number * 2))
        append(log, frame(2, producer_id=9, producer_epoch=0, base_sequence=0))
        append(log, frame(2))
        for header, _ in read_frames(log):
            state.add(header)
        assert state.encode() == log._state.producers.encode()
    assert sorted(state.producers) == [4, 9]
    assert [batch.base_sequence for batch in state.producers[4].batches] == [4, 6, 8, 10, 12]
    assert [batch.base_offset for batch in state.producers[4].batches] == [4, 6, 8, 10, 12]
    assert state.producers[9].batches[0].last_sequence == 1
    data = state.encode()
    assert ProducerState.decode(data).producers == state.producers
    for position in range(len(data)):
        mutant = bytearray(data)
        mutant[position] ^= 1
        with pytest.raises(CorruptRecordError):
            ProducerState.decode(bytes(mutant))
        with pytest.raises(CorruptRecordError):
            ProducerState.decode(data[:position])


def test_producer_state_survives_restart_crash_and_loss_of_its_snapshots():
    """Rebuilt producer state matches the log."""
    files = FaultyFiles()
    directory = open_directory(files)
    log = open_log(directory)
    for number in range(60):
        append(log, frame(3, producer_id=number % 3, producer_epoch=0, base_sequence=number // 3 * 3, size=200))
    expected = log._state.producers.encode()
    directory.close()
    for what in ("clean", "crash", "no snapshots"):
        files.kill()
        if what == "no snapshots":
            for name in files.list(Path("/data/t-0")):
                if name.endswith(".snapshot"):
                    files.overwrite(Path("/data/t-0") / name, b"damaged")
        with_log = open_log(directory := open_directory(files))
        assert with_log.log_end_offset == 180
        assert with_log._state.producers.encode() == expected, what
        directory.close(clean=what == "crash")


def test_group_commit_asks_for_one_sync_only_where_needed_and_fails_for_good():
    """This needs no threads: a durable offset needs no sync, and a failure is remembered."""
    syncs = []
    commit = GroupCommit(lambda timeout_s, is_over: syncs.append(1) or 10, 5)
    assert commit.wait_durable(5, 1.0) == 5
    assert syncs == []
    assert commit.wait_durable(7, 1.0) == 10
    assert commit.wait_durable(10, 1.0) == 10
    assert len(syncs) == 1
    with commit.held_back(1.0):
        commit.truncated(3)
        with pytest.raises(RequestTimedOutError, match="offset 4"):
            commit.wait_durable(4, 0.0)
        with pytest.raises(RequestTimedOutError), commit.held_back(0.0):
            pass
    assert commit.durable_end_offset == 3
    commit.fail(LogStorageError("broken"))
    for _ in range(2):
        with pytest.raises(LogStorageError, match="broken"):
            commit.wait_durable(4, 1.0)
    assert len(syncs) == 1


def test_sample_frames_are_as_long_as_their_headers_say():
    """The other tests rely on this."""
    assert parse_header(frame(3)).frame_bytes == len(frame(3))
