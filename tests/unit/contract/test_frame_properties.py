"""Round trips of anything that Hypothesis generates: types, nulls, slices, projections, codecs."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
from frame_samples import HEADERS_TYPE, encode_in_chunks, pruned_answer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_runtime.contract.frame import (
    HEADERS_COLUMN_ID,
    TIMESTAMP_COLUMN_ID,
    check_frame_schema,
    decode_frame,
    encode_frame,
    split_into_frames,
    verify_frame,
)
from broker_runtime.contract.schema import (
    SchemaHistory,
    TopicSchema,
    cast_to_topic,
    check_topic_schema,
    schema_from_bytes,
    schema_to_bytes,
)

LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.decimal128(20, 5), st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: decimal.Decimal(n).scaleb(-5))),
    (pa.string(), st.text(max_size=12)),
    (pa.binary(), st.binary(max_size=12)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
    (pa.time64("ns"), st.times()),
    (pa.duration("us"), st.timedeltas(datetime.timedelta(-(10**6)), datetime.timedelta(10**6))),
    (pa.null(), st.none()),
]
Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The value or null."""
    return st.one_of(st.none(), strategy)


def as_list(typed: Typed) -> Typed:
    """A list of the value."""
    return pa.list_(pa.field("element", typed[0])), st.lists(optional(typed[1]), max_size=3)


def as_map(typed: Typed) -> Typed:
    """A map from strings to the value."""
    kind = pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", typed[0]))
    return kind, st.lists(st.tuples(st.text(max_size=3), optional(typed[1])), max_size=3)


def as_struct(members: list[Typed]) -> Typed:
    """A struct of the values."""
    names = [f"f{i}" for i in range(len(members))]
    kind = pa.struct([(name, member[0]) for name, member in zip(names, members, strict=True)])
    return kind, st.fixed_dictionaries({name: optional(member[1]) for name, member in zip(names, members, strict=True)})


TYPES = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        inner.map(as_list), inner.map(as_map), st.lists(inner, min_size=1, max_size=3).map(as_struct)
    ),
    max_leaves=4,
)


@st.composite
def batches(draw: st.DrawFn) -> tuple[pa.RecordBatch, TopicSchema]:
    """A batch of one to four columns and up to twelve rows, possibly a slice of a longer one, and its schema."""
    columns = draw(st.lists(TYPES, min_size=1, max_size=4))
    schema = TopicSchema(schema_id=0, arrow=pa.schema([(f"c{i}", kind) for i, (kind, _) in enumerate(columns)]))
    rows = draw(st.integers(1, 12))
    before, after = draw(st.integers(0, 9)), draw(st.integers(0, 3))
    total = before + rows + after
    arrays = [
        pa.array(draw(st.lists(optional(values), min_size=total, max_size=total)), kind) for kind, values in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow).slice(before, rows), schema


def text(batch: pa.RecordBatch) -> str:
    """Its content as text, in which NaN equals itself."""
    return str([column.to_pylist() for column in batch.columns])


CODECS = st.sampled_from(["none", "lz4", "zstd"])
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FEW = settings(SLOW, max_examples=20)


@SLOW
@given(batches(), CODECS, st.booleans(), st.data())
def test_any_batch_round_trips(
    made: tuple[pa.RecordBatch, TopicSchema], codec: str, chunks: bool, data: st.DataObject
) -> None:
    """The consumed batch equals the produced one, and the leader accepts it."""
    batch, schema = made
    rows = batch.num_rows
    times = pa.array(data.draw(st.lists(st.integers(0, 2**40), min_size=rows, max_size=rows)), pa.int64())
    entry = st.fixed_dictionaries({"key": st.text(max_size=3), "value": optional(st.binary(max_size=3))})
    entries = data.draw(st.lists(optional(st.lists(entry, max_size=2)), min_size=rows, max_size=rows))
    headers = pa.array(entries, HEADERS_TYPE)
    history = SchemaHistory([schema])
    encode = encode_in_chunks if chunks else encode_frame
    frame = pa.py_buffer(encode(batch, schema, timestamps=times, headers=headers, codec=codec))
    verify_frame(frame)
    check_frame_schema(frame, history)
    decoded = decode_frame(frame, history)
    assert text(decoded.batch) == text(batch)
    assert decoded.batch.schema.equals(schema.arrow)
    found = [decoded.constant_timestamp_ms] * rows if decoded.timestamps is None else decoded.timestamps.to_pylist()
    assert found == times.to_pylist()
    assert ([None] * rows if decoded.headers is None else decoded.headers.to_pylist()) == entries

    ids = (*range(batch.num_columns), TIMESTAMP_COLUMN_ID, HEADERS_COLUMN_ID)
    wanted = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
    answer = pruned_answer(frame, wanted)
    projected = decode_frame(answer, history, columns=wanted)
    assert text(projected.batch) == text(batch.select([column for column in wanted if column < TIMESTAMP_COLUMN_ID]))


@FEW
@given(batches(), CODECS, st.integers(1, 2000))
def test_frames_of_any_split_batch_add_up_to_it(
    made: tuple[pa.RecordBatch, TopicSchema], codec: str, target: int
) -> None:
    """Slices are contiguous and in order, whatever their size."""
    batch, schema = made
    frames = split_into_frames(batch, schema, timestamps=5, codec=codec, target_bytes=target)
    parts = [decode_frame(frame, SchemaHistory([schema])).batch for frame in frames]
    assert text(pa.Table.from_batches(parts).combine_chunks().to_batches()[0]) == text(batch)


@FEW
@given(batches())
def test_any_topics_schema_is_its_own_normal_form(made: tuple[pa.RecordBatch, TopicSchema]) -> None:
    """Bytes and normal form keep Spark's types."""
    batch, schema = made
    assert check_topic_schema(schema.arrow).equals(schema.arrow, check_metadata=True)
    assert schema_from_bytes(schema_to_bytes(schema.arrow)).equals(schema.arrow, check_metadata=True)
    assert text(cast_to_topic(batch, schema)) == text(batch)
