"""Pinned frame bytes: every later version reads what an earlier one wrote, and writes the same bytes where nothing is
compressed.

``python tests/unit/contract/test_frame_golden.py`` writes the files again; if they change, the format has changed.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from frame_samples import (
    LEAVES,
    NESTED,
    PARTITION,
    TOPIC_ID,
    Sample,
    pruned_answer,
    samples,
    statistics_of,
    typed_batch,
    typed_schema,
)

from broker_runtime.contract.frame import (
    STAMP_BYTES,
    decode_frame,
    encode_frame,
    parse_header,
    stamp,
    verify_frame,
)
from broker_runtime.contract.schema import SchemaHistory

GOLDEN = Path(__file__).parents[2] / "golden"
NAMES = (
    *("untyped-none", "untyped-full-none", "untyped-chunks-lz4", "leaves-chunks-none", "leaves-zstd"),
    *("nested-none", "nested-chunks-zstd", "nested-lz4"),
)
BY_NAME = {sample.name: sample for sample in samples()}
STATISTICS = {
    **{name: LEAVES[name] for name in ("whole", "text", "money", "day", "instant", "flag", "single")},
    **NESTED,
}


def stamped() -> bytes:
    """The frame as it is in a leader's log."""
    sample = BY_NAME["leaves-chunks-none"]
    head = stamp(
        sample.frame,
        base_offset=2**40,
        leader_epoch=9,
        append_time_ms=1_800_000_000_000,
        high_watermark=2**40 - 1,
        topic_id=TOPIC_ID,
        partition=PARTITION,
        log_append_time=True,
    )
    return head + sample.frame[STAMP_BYTES:]


def pruned() -> bytes:
    """The frame as it is sent to a reader of two columns."""
    return pruned_answer(stamped(), (3, 8))


def with_statistics() -> bytes:
    """A frame of an idempotent producer, long enough to have min and max."""
    return encode_frame(
        typed_batch(STATISTICS, 12),
        typed_schema(STATISTICS),
        timestamps=1_700_000_000_000,
        producer_id=77,
        producer_epoch=2,
        base_sequence=1000,
        is_transactional=True,
    ).to_pybytes()


SPECIAL = {"stamped": stamped, "pruned": pruned, "statistics": with_statistics}


@pytest.mark.parametrize("name", NAMES)
def test_golden_frame_is_read(name: str) -> None:
    """The logs of users stay readable."""
    sample: Sample = BY_NAME[name]
    golden = (GOLDEN / f"{name}.frame").read_bytes()
    verify_frame(golden)
    decoded = decode_frame(golden, sample.schemas)
    assert str(decoded.batch.to_pylist()) == str(sample.batch.to_pylist())
    assert decoded.batch.schema.equals(sample.schemas.latest.arrow)


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-none")])
def test_golden_frame_equals_the_written_one(name: str) -> None:
    """The layout does not drift."""
    assert BY_NAME[name].frame == (GOLDEN / f"{name}.frame").read_bytes()


@pytest.mark.parametrize("name", SPECIAL)
def test_golden_frame_of_leader_server_and_idempotent_producer(name: str) -> None:
    """Stamp, presence bits and statistics do not drift either."""
    assert SPECIAL[name]() == (GOLDEN / f"{name}.frame").read_bytes()


def test_golden_stamp_and_pruned_answer_are_read() -> None:
    """They are read as a reader does, from the file alone."""
    history = BY_NAME["leaves-chunks-none"].schemas
    whole = (GOLDEN / "stamped.frame").read_bytes()
    header = verify_frame(whole, topic_id=TOPIC_ID, partition=PARTITION)
    assert (header.base_offset, header.leader_epoch, header.timestamp_type) == (2**40, 9, 1)
    answer = (GOLDEN / "pruned.frame").read_bytes()
    decoded = decode_frame(answer, history, columns=(3, 8), topic_id=TOPIC_ID, partition=PARTITION)
    assert decoded.batch.to_pylist()[0] == {"whole": 1, "text": ""}
    assert decoded.constant_timestamp_ms == 1_800_000_000_000


def test_golden_statistics_are_read() -> None:
    """The predicate of a later version relies on these bytes."""
    golden = (GOLDEN / "statistics.frame").read_bytes()
    header = parse_header(golden)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 2, 1000)
    known = statistics_of(golden)
    assert known[1].maximum == "grüße \U0001f30d".encode()
    assert [known[i].null_count for i in range(12)] == [12] * 12
    schemas = SchemaHistory([typed_schema(STATISTICS)])
    assert decode_frame(golden, schemas).batch.num_rows == 36


def write() -> None:
    """Writes the files."""
    GOLDEN.mkdir(exist_ok=True)
    for name in NAMES:
        (GOLDEN / f"{name}.frame").write_bytes(BY_NAME[name].frame)
    for name, make in SPECIAL.items():
        (GOLDEN / f"{name}.frame").write_bytes(make())


if __name__ == "__main__":
    print(f"pyarrow {pa.__version__}")
    write()
