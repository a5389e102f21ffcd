"""Keys go to Kafka's partitions, one by one and as a column."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_runtime.contract.errors import InvalidPartitionsError, SchemaMismatchError
from pyspark_log.client.producer import partitioner

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def signed(number: int) -> int:
    return number - (1 << 32) if number & 0x80000000 else number


def murmur2_literally(data: bytes) -> int:
    """Kafka's Java, statement for statement."""
    mask = 0xFFFFFFFF
    length, m, r = len(data), 0x5BD1E995, 24
    h = 0x9747B28C ^ length
    for i in range(length // 4):
        i4 = i * 4
        k = data[i4] + (data[i4 + 1] << 8) + (data[i4 + 2] << 16) + (data[i4 + 3] << 24)
        k = k * m & mask
        k ^= k >> r
        k = k * m & mask
        h = h * m & mask
        h ^= k
    base = length & ~3
    if length % 4 == 3:
        h ^= data[base + 2] << 16
    if length % 4 >= 2:
        h ^= data[base + 1] << 8
    if length % 4 >= 1:
        h ^= data[base]
        h = h * m & mask
    h ^= h >> 13
    h = h * m & mask
    h ^= h >> 15
    return h


@pytest.mark.parametrize(("key", "expected"), KAFKA_VECTORS.items())
def test_murmur2_gives_kafkas_published_values(key: bytes, expected: int) -> None:
    """W8: a key's hash is Kafka's."""
    assert signed(partitioner.murmur2(key)) == expected
    assert signed(int(partitioner.hash_column(pa.array([key]))[0])) == expected


@given(st.lists(st.binary(max_size=40)))
@settings(max_examples=200, deadline=None)
def test_murmur2_of_a_column_equals_the_reference(keys: list[bytes]) -> None:
    """W8: the vectorised hash and the scalar one equal the Java one."""
    expected = [murmur2_literally(key) for key in keys]
    assert [partitioner.murmur2(key) for key in keys] == expected
    assert partitioner.hash_column(pa.array(keys, pa.binary())).tolist() == expected


@given(st.lists(st.one_of(st.none(), st.text(max_size=12))), st.integers(1, 50), st.data())
@settings(max_examples=200, deadline=None)
def test_partitions_for_keys_agrees_in_every_layout(
    keys: list[str | None], partitions: int, data: st.DataObject
) -> None:
    """W8: slices, large, view and dictionary columns have the partitions of the plain one; null has none."""
    start = data.draw(st.integers(0, len(keys)))
    plain = pa.array(keys, pa.string())
    expected = [-1 if k is None else (murmur2_literally(k.encode()) & 0x7FFFFFFF) % partitions for k in keys[start:]]
    for kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view()):
        column = plain.cast(kind).slice(start)
        assert partitioner.partitions_for_keys(column, partitions).tolist() == expected
    assert partitioner.partitions_for_keys(plain.dictionary_encode().slice(start), partitions).tolist() == expected
    chunked = pa.chunked_array([plain.slice(0, start), plain.slice(start)], pa.string())
    assert partitioner.partitions_for_keys(chunked, partitions).tolist()[start:] == expected


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1))
@settings(max_examples=100, deadline=None)
def test_partitions_for_keys_hashes_integers_big_endian(numbers: list[int]) -> None:
    """W8: integers are hashed as Kafka's IntegerSerializer and LongSerializer write them."""
    four = [murmur2_literally(n.to_bytes(4, "big", signed=True)) for n in numbers]
    eight = [murmur2_literally(n.to_bytes(8, "big", signed=True)) for n in numbers]
    assert partitioner.hash_column(pa.array(numbers, pa.int32())).tolist() == four
    assert partitioner.hash_column(pa.array(numbers, pa.int64())).tolist() == eight
    assert [partitioner.murmur2(partitioner.key_bytes(n)) for n in numbers] == eight


def test_hash_column_is_right_over_more_rows_than_one_slice() -> None:
    """W8: long columns are hashed in slices, whose seams must not show."""
    keys = [str(n * 7919).encode() for n in range(150_000)]
    hashes = partitioner.hash_column(pa.array(keys))
    for row in (0, 65_535, 65_536, 131_071, 131_072, 149_999):
        assert int(hashes[row]) == murmur2_literally(keys[row])
    assert hashes.dtype == np.uint32


def test_key_bytes_refuses_other_types() -> None:
    """W8: the error names the type of the key."""
    assert partitioner.key_bytes("é") == "é".encode()
    assert partitioner.key_bytes(bytearray(b"x")) == b"x"
    for wrong in (1.5, True, ["x"]):
        with pytest.raises(SchemaMismatchError, match=type(wrong).__name__):
            partitioner.key_bytes(wrong)  # type: ignore[arg-type]
    with pytest.raises(SchemaMismatchError, match="64 bits"):
        partitioner.key_bytes(1 << 64)
    with pytest.raises(SchemaMismatchError, match="double"):
        partitioner.partitions_for_keys(pa.array([1.5]), 3)


def test_check_partition_names_the_topics_partitions() -> None:
    """W8: an explicit partition must exist."""
    assert partitioner.check_partition("t", 2, 3) == 2
    for wrong in (3, -1, True, "0"):
        with pytest.raises(InvalidPartitionsError, match="partitions 0 to 2"):
            partitioner.check_partition("t", wrong, 3)  # type: ignore[arg-type]


def test_keys_with_invalid_unicode_are_refused() -> None:
    """W8: a lone surrogate has no UTF-8."""
    with pytest.raises(SchemaMismatchError, match="surrogates"):
        partitioner.key_bytes("\ud800")
