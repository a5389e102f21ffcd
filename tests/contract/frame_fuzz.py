"""Gives mutated frames to every reader of frames. A program, run in a process of its own, so that a crash of the
interpreter is noticed as one.

    python frame_fuzz.py SEED COUNT

Each mutant is refused by an error of the contract, or decodes to a batch that passes full validation and can be used.
More than half of the mutants get correct checksums again: those reach what the checksums protect. Ends with status 0
and one line of counts; any other status and its output name the seed and the mutant.
"""

from __future__ import annotations

import faulthandler
import itertools
import random
import resource
import struct
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "contract"))

from frame_samples import PARTITION, TOPIC_ID, Sample, pruned_answer, samples, statistics_of

from broker_runtime.contract.errors import CorruptRecordError, SchemaMismatchError, UnsupportedVersionError
from broker_runtime.contract.frame import (
    HEADER_BYTES,
    STAMP_BYTES,
    check_frame_schema,
    decode_frame,
    iter_frames,
    parse_header,
    plan_projection,
    stamp,
    verify_frame,
)
from broker_runtime.contract.frame.header import MAX_UNCOMPRESSED_BYTES

REFUSED = (CorruptRecordError, UnsupportedVersionError, SchemaMismatchError)
HANG_SECONDS = 20
RESIDENT_GROWTH_LIMIT_BYTES = 300 << 20
INTERESTING = (
    0,
    1,
    2,
    7,
    8,
    63,
    64,
    65,
    127,
    128,
    255,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**62,
    2**63 - 1,
)


def flip(data: bytearray, rng: random.Random, start: int, end: int) -> None:
    """Flips one to three bits."""
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(start, end)] ^= 1 << rng.randrange(8)


def overwrite(data: bytearray, rng: random.Random, start: int, end: int) -> None:
    """Overwrites a number of 1, 2, 4 or 8 bytes by one that is often a bound."""
    width = rng.choice((1, 2, 4, 8))
    if end - start < width:
        return
    position = rng.randrange(start, end - width + 1) // width * width
    value = rng.choice(INTERESTING) if rng.random() < 0.7 else rng.getrandbits(width * 8)
    if rng.random() < 0.3:
        value = -value
    data[position : position + width] = (value % (1 << width * 8)).to_bytes(width, "little")


def nudge(data: bytearray, rng: random.Random, start: int, end: int) -> None:
    """Makes a number a little larger or smaller."""
    width = rng.choice((2, 4, 8))
    if end - start < width:
        return
    position = rng.randrange(start, end - width + 1) // width * width
    value = int.from_bytes(data[position : position + width], "little") + rng.choice(
        (-64, -8, -4, -2, -1, 1, 2, 4, 8, 64)
    )
    data[position : position + width] = (value % (1 << width * 8)).to_bytes(width, "little")


def swap(data: bytearray, rng: random.Random, start: int, end: int) -> None:
    """Swaps two numbers of one width, lengths among them."""
    width = rng.choice((2, 4, 8))
    if end - start < width:
        return
    a, b = (rng.randrange(start, end - width + 1) // width * width for _ in range(2))
    data[a : a + width], data[b : b + width] = data[b : b + width], data[a : a + width]


def cut(data: bytearray, rng: random.Random, start: int, end: int) -> None:
    """Removes bytes, often a multiple of 8."""
    count = rng.choice((1, 8, 16, 64, rng.randrange(1, max(2, end - start))))
    position = rng.randrange(start, end)
    del data[position : position + count]


def insert(data: bytearray, rng: random.Random, start: int, end: int) -> None:
    """Adds bytes, often a multiple of 8."""
    position = rng.randrange(start, end)
    data[position:position] = rng.randbytes(rng.choice((1, 8, 16, 64)))


def copy(data: bytearray, rng: random.Random, start: int, end: int) -> None:
    """Copies a stretch over another one."""
    count = rng.choice((4, 8, 16, 24))
    source, target = rng.randrange(start, end), rng.randrange(start, end)
    piece = data[source : source + count]
    data[target : target + len(piece)] = piece


MUTATIONS = (flip, flip, overwrite, overwrite, nudge, nudge, swap, cut, insert, copy)
KEEPS_LENGTH = (flip, overwrite, nudge, swap)


def regions(frame: bytes) -> list[tuple[int, int]]:
    """Where to mutate: leader's part, producer's part, directory, each chunk's metadata and body, everything."""
    header = parse_header(frame)
    start = header.head_bytes
    found = [(0, STAMP_BYTES), (STAMP_BYTES, HEADER_BYTES), (HEADER_BYTES, start), (0, len(frame))]
    for length, *_ in struct.iter_unpack("<IIIHH", frame[HEADER_BYTES : HEADER_BYTES + 16 * header.chunk_count]):
        if header.is_pruned:
            found += [(start, len(frame))] * 3
            break
        metadata_end = start + 8 + int.from_bytes(frame[start + 4 : start + 8], "little")
        found += [(start, metadata_end)] * 3
        if metadata_end < start + length:
            found += [(metadata_end, start + length)] * 2
        start += length
    return found


def mend(data: bytearray, rng: random.Random) -> None:
    """Makes lengths and checksums correct again, as far as the frame still shows where they are."""
    if len(data) < HEADER_BYTES:
        return
    directory_bytes = int.from_bytes(data[108:112], "little")
    chunk_count = int.from_bytes(data[104:106], "little")
    if HEADER_BYTES + directory_bytes > len(data) or chunk_count * 16 > directory_bytes:
        return
    pruned = int.from_bytes(data[36:40], "little")
    if pruned:
        if rng.random() < 0.5:
            data[36:40] = len(data).to_bytes(4, "little")
    else:
        if rng.random() < 0.5:
            data[56:60] = len(data).to_bytes(4, "little")
        view = memoryview(bytes(data))
        position = HEADER_BYTES + directory_bytes
        for index in range(chunk_count):
            entry = HEADER_BYTES + 16 * index
            length = int.from_bytes(data[entry : entry + 4], "little")
            if index == chunk_count - 1 and position < len(data) and rng.random() < 0.5:
                length = len(data) - position
                data[entry : entry + 4] = length.to_bytes(4, "little")
            data[entry + 4 : entry + 8] = crc32c(view[position : position + length]).to_bytes(4, "little")
            position += length
    head = bytes(data[STAMP_BYTES:124]), bytes(data[HEADER_BYTES : HEADER_BYTES + directory_bytes])
    data[124:128] = crc32c(head[1], crc32c(head[0])).to_bytes(4, "little")
    if rng.random() < 0.5:
        seed = crc32c(TOPIC_ID + PARTITION.to_bytes(4, "little", signed=True))
        data[32:36] = crc32c(bytes(data[:32]), seed).to_bytes(4, "little")


def use(batch: pa.RecordBatch, rng: random.Random) -> None:
    """Does what readers do with a batch: none of it may crash."""
    batch.validate(full=True)
    rows = batch.num_rows
    batch.take(pa.array([rng.randrange(rows) for _ in range(3)], pa.int64()))
    batch.slice(rng.randrange(rows)).serialize()
    if rows < 1000:
        for column in batch.columns:
            try:
                column.to_pylist()
            except (OverflowError, ValueError, OSError):
                # Python has no such date, time or decimal.
                continue


def offer(sample: Sample, mutant: bytes, rng: random.Random, outcomes: Counter[str]) -> None:
    """Gives ``mutant`` to everything that reads frames."""
    accepted = False
    try:
        verify_frame(mutant)
        check_frame_schema(mutant, sample.schemas)
        statistics_of(mutant)
        plan_projection(mutant, (0, 1))
        accepted = True
    except REFUSED as error:
        outcomes[f"leader: {type(error).__name__}"] += 1
    try:
        for _ in iter_frames(mutant):
            pass
    except REFUSED:
        outcomes["iter_frames: refused"] += 1
    try:
        decoded = decode_frame(
            pa.py_buffer(mutant),
            sample.schemas,
            columns=None if rng.random() < 0.8 else (0,),
            topic_id=TOPIC_ID if rng.random() < 0.2 else None,
            partition=PARTITION,
        )
    except REFUSED as error:
        outcomes[f"reader{' after leader' if accepted else ''}: {type(error).__name__}"] += 1
        return
    outcomes["decoded"] += 1
    assert decoded.batch.num_rows == decoded.header.record_count
    use(decoded.batch, rng)
    for column in (decoded.timestamps, decoded.headers):
        if column is not None:
            assert len(column) == decoded.header.record_count
            column.validate(full=True)
            column.to_pylist()


def originals() -> list[Sample]:
    """Whole frames, stamped and not, and pruned answers of those that can be pruned."""
    found = []
    for sample in samples():
        found.append(sample)
        head = stamp(
            parse_header(sample.frame),
            base_offset=5,
            leader_epoch=1,
            append_time_ms=1_700_000_000_000,
            high_watermark=5,
            topic_id=TOPIC_ID,
            partition=PARTITION,
        )
        stamped = head + sample.frame[STAMP_BYTES:]
        found.append(sample._replace(frame=stamped))
        answer = pruned_answer(stamped, (0,))
        if parse_header(answer).is_pruned:
            found.append(sample._replace(frame=answer))
    return found


def main(seed: int, count: int) -> None:
    """Tries ``count`` mutants; the same seed produces the same ones."""
    faulthandler.enable()
    rng = random.Random(seed)
    frames = [(sample, regions(sample.frame)) for sample in originals()]
    # Frames of many chunks take long and prove no more than those of a few: they occur less often.
    weights = list(itertools.accumulate(4 / (4 + parse_header(sample.frame).chunk_count) for sample, _ in frames))
    outcomes: Counter[str] = Counter()
    for sample, _ in frames:
        decode_frame(pa.py_buffer(sample.frame), sample.schemas, columns=(0,))
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    for number in range(count):
        if number % 256 == 0:
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        sample, places = rng.choices(frames, cum_weights=weights)[0]
        mutant = bytearray(sample.frame)
        done = []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            start, end = rng.choice(places)
            end = min(end, len(mutant))
            if start < end:
                mutation = rng.choice(MUTATIONS)
                mutation(mutant, rng, start, end)
                done.append(mutation.__name__)
        if rng.random() < 0.8:
            mend(mutant, rng)
        try:
            offer(sample, bytes(mutant), rng, outcomes)
        except BaseException:
            print(f"seed {seed}, mutant {number} of {sample.name}, {done}: {bytes(mutant).hex()}", flush=True)
            raise
    faulthandler.cancel_dump_traceback_later()
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident) * (1024 if sys.platform == "linux" else 1)
    peak = pa.default_memory_pool().max_memory() or 0
    print(
        f"seed {seed}: {count} mutants in {time.monotonic() - began:.1f} s, {growth >> 20} MiB more, {dict(outcomes)}"
    )
    assert peak <= 2 * MAX_UNCOMPRESSED_BYTES, f"seed {seed}: Arrow held {peak} bytes"
    assert growth <= RESIDENT_GROWTH_LIMIT_BYTES, f"seed {seed}: {growth} bytes more resident"
    assert outcomes["decoded"] > count // 100, f"seed {seed}: mutants hardly reach the reader"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
