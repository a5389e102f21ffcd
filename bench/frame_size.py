"""``python -m bench.frame_size``: from which size a frame gets a chunk per column, and how large frames should be.

Two tables of ratios, each measured alternately within one run and in processor time, so that a busy machine affects
both sides:

* a chunk per column against one chunk, by the frame's size: what producer, broker and reader of all columns pay for it,
  how many bytes it adds, and what a reader of one column saves;
* frames of a size against the best size: the cost of a record from batch to batch (encode, verify, check the schema,
  decode), and how long one frame occupies a thread, which is what a long poll waits for.

The figures are quoted in `broker_runtime.contract.frame.encode`, which sets its constants by them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from broker_runtime.contract.frame import (
    check_frame_schema,
    decode_frame,
    encode_frame,
    plan_projection,
    split_into_frames,
    verify_frame,
)
from broker_runtime.contract.schema import UNTYPED, SchemaHistory, TopicSchema

NEVER = 1 << 40
SIZES = (16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20)
TARGETS = (64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20)


def typed(columns: int, rows: int) -> tuple[pa.RecordBatch, TopicSchema]:
    """``columns`` columns, alternately int64, double, a short string, int32."""
    numbers = np.random.default_rng(7)
    arrays: list[pa.Array] = []
    for i in range(columns):
        whole = numbers.integers(0, 1_000_000, rows)
        arrays.append(
            (
                pa.array(whole),
                pa.array(whole * 0.5),
                pa.array(whole).cast(pa.string()),
                pa.array(whole.astype(np.int32)),
            )[i % 4]
        )
    batch = pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(columns)])
    return batch, TopicSchema(schema_id=0, arrow=batch.schema)


def answer_to_one_column(frame: pa.Buffer) -> pa.Buffer:
    """The answer to a reader of the third column."""
    projection = plan_projection(frame, (2,))
    view = memoryview(frame).cast("B")
    return pa.py_buffer(b"".join([projection.prefix, *(view[start:end] for start, end in projection.ranges)]))


def untyped(rows: int) -> pa.RecordBatch:
    """Values of 100 bytes."""
    return pa.record_batch({"value": pa.array([random.randbytes(100) for _ in range(rows)], pa.binary())})


def alternately(rounds: int, *jobs: Callable[[], object]) -> list[float]:
    """Median processor seconds of each job; every round runs each once, alternately forwards and backwards."""
    taken: list[list[float]] = [[] for _ in jobs]
    for turn in range(rounds + 1):
        for i in range(len(jobs)) if turn % 2 else reversed(range(len(jobs))):
            began = time.process_time()
            jobs[i]()
            if turn:
                taken[i].append(time.process_time() - began)
    return [statistics.median(times) for times in taken]


def chunks(columns: int, rounds: int, codec: str, console: Console) -> None:
    """The table about a chunk per column."""
    table = Table(title=f"a chunk per column against one chunk, {columns} columns, {codec}", title_justify="left")
    for heading in (
        "frame",
        "rows",
        "encode",
        "verify + schema",
        "decode all",
        "bytes",
        "decode 1 column",
        "its bytes",
    ):
        table.add_column(heading, justify="right")
    whole, schema = typed(columns, 400_000 // columns * 4)
    history = SchemaHistory([schema])
    row_bytes = whole.nbytes / whole.num_rows
    for size in SIZES:
        rows = min(whole.num_rows, max(1, int(size / row_bytes)))
        part = whole.slice(0, rows)
        made = [
            encode_frame(part, schema, timestamps=0, codec=codec, chunk_per_column_bytes=limit) for limit in (0, NEVER)
        ]
        pruned = [answer_to_one_column(frame) for frame in made]
        split, one = made
        encode = alternately(
            rounds,
            lambda part=part: encode_frame(part, schema, timestamps=0, codec=codec, chunk_per_column_bytes=0),
            lambda part=part: encode_frame(part, schema, timestamps=0, codec=codec, chunk_per_column_bytes=NEVER),
        )
        verify = alternately(
            rounds,
            lambda split=split: (verify_frame(split), check_frame_schema(split, schema)),
            lambda one=one: (verify_frame(one), check_frame_schema(one, schema)),
        )
        everything = alternately(rounds, *(lambda frame=frame: decode_frame(frame, history) for frame in made))
        single = alternately(
            rounds, *(lambda frame=frame: decode_frame(frame, history, columns=(2,)) for frame in pruned)
        )
        table.add_row(
            f"{size >> 10} KiB",
            str(rows),
            *(f"{a / b:.2f}" for a, b in (encode, verify, everything)),
            f"{split.size / one.size:.3f}",
            f"{single[0] / single[1]:.2f}",
            f"{pruned[0].size / pruned[1].size:.3f}",
        )
    console.print(table)


def targets(rounds: int, codec: str, console: Console) -> None:
    """The table about the size of frames."""
    table = Table(title=f"frames of a size against the best, {codec}", title_justify="left")
    for heading in ("target", "100-byte values", "ms per frame", "5 typed columns", "ms per frame"):
        table.add_column(heading, justify="right")
    five, five_schema = typed(5, 400_000)
    sources = ((untyped(160_000), UNTYPED), (five, five_schema))

    def path(batch: pa.RecordBatch, schema: TopicSchema, target: int) -> int:
        history = SchemaHistory([schema])
        frames = split_into_frames(batch, schema, timestamps=0, codec=codec, target_bytes=target)
        for frame in frames:
            verify_frame(frame)
            check_frame_schema(frame, schema)
            decode_frame(frame, history)
        return len(frames)

    columns = []
    for batch, schema in sources:
        taken = alternately(rounds, *(lambda b=batch, s=schema, t=target: path(b, s, t) for target in TARGETS))
        counts = [path(batch, schema, target) for target in TARGETS]
        columns.append([f"{seconds / min(taken):.2f}" for seconds in taken])
        columns.append([f"{1000 * seconds / count:.2f}" for seconds, count in zip(taken, counts, strict=True)])
    for target, *figures in zip(TARGETS, *columns, strict=True):
        table.add_row(f"{target >> 10} KiB", *figures)
    console.print(table)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.frame_size")
    parser.add_argument("--rounds", type=int, default=15, help="pairs per figure")
    options = parser.parse_args()
    console = Console()
    for columns in (5, 20):
        chunks(columns, options.rounds, "none", console)
    chunks(20, max(3, options.rounds // 3), "lz4", console)
    targets(max(3, options.rounds // 3), "none", console)


if __name__ == "__main__":
    main()
