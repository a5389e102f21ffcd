"""The bounds of a request: its bytes, before anything is decoded, and the length of each list in it."""

from __future__ import annotations

import struct
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pytest

from broker_runtime.contract import requests, streams
from broker_runtime.contract.actions import ACTIONS
from broker_runtime.contract.errors import InvalidRequestError
from broker_runtime.contract.flight import Opening, decode_action, encode_action, message_of
from broker_runtime.contract.frame.header import MAX_CHUNKS
from broker_runtime.contract.predicate.frames import MOST_STEPS, Step
from broker_runtime.contract.requests import (
    MOST_COLUMN_IDS,
    MOST_COLUMNS,
    MOST_ENTRIES,
    Message,
    Request,
    portions,
)

STREAMED = [streams.ProduceRequest, streams.FetchRequest]
RECEIVED = sorted(
    {*(kinds.request for kinds in ACTIONS.values()), *(kind.message for kind in Opening), *STREAMED},
    key=lambda kind: kind.__name__,
)
_LARGEST_REQUEST_BYTES = 5 << 20
_LARGEST_ENTRIES = {
    requests.CommittedOffset: {"metadata": ""},  # our clients send none
    streams.FetchPartition: {"columns": None, "predicate": 1},
}


def lists_of(kind: Any, path: str = "$", bound: int | None = None) -> Iterator[tuple[str, int | None, Any]]:
    """All lists and maps inside a type, with their bounds; tuples of a fixed length do not count."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        lengths = [each.max_length for each in inside[1:] if isinstance(each, msgspec.Meta)]
        yield from lists_of(inside[0], path, lengths[0])
    elif origin in (typing.Union, types.UnionType):
        for each in inside:
            yield from lists_of(each, path, bound)
    elif origin in (list, set, frozenset, dict) or (origin is tuple and inside[-1] is Ellipsis):
        yield path, bound, kind
        for each in inside:
            if each is not Ellipsis:
                yield from lists_of(each, f"{path}[]")
    elif origin is tuple:
        for each in inside:
            yield from lists_of(each, f"{path}()")
    elif kind in (list, tuple, dict, set, frozenset, Any):
        yield path, None, kind
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for name, hint in typing.get_type_hints(kind, include_extras=True).items():
            if typing.get_origin(hint) is not typing.ClassVar:
                yield from lists_of(hint, f"{path}.{name}")


class Inner(msgspec.Struct):
    numbers: list[int]


class Outer(msgspec.Struct):
    bare: tuple[Inner, ...] | None
    pairs: Annotated[tuple[tuple[str, int], ...], msgspec.Meta(max_length=3)]
    map: dict[str, Annotated[tuple[int, ...], msgspec.Meta(max_length=4)]]
    text: Annotated[str, msgspec.Meta(max_length=5)] = ""


def test_search_for_lists_finds_each_kind() -> None:
    """The next test is worth no more than this one."""
    found = {path: bound for path, bound, _ in lists_of(Outer)}
    assert found == {"$.bare": None, "$.bare[].numbers": None, "$.pairs": 3, "$.map": None, "$.map[]": 4}


@pytest.mark.parametrize("kind", RECEIVED)
def test_each_list_that_a_broker_receives_has_a_bound(kind: type[Message]) -> None:
    """Small requests decode into large objects, and an answer about each entry is larger still."""
    assert issubclass(kind, Request)
    for path, bound, _ in lists_of(kind):
        assert bound is not None, f"{kind.__name__}: {path} has no bound: give it Meta(max_length=…)"
        assert bound <= 10_000, f"{kind.__name__}: {path}"


@pytest.mark.parametrize("kind", RECEIVED)
def test_each_request_has_a_bound_in_bytes_that_is_checked_before_it_is_decoded(kind: type[Request]) -> None:
    assert 0 < kind.MOST_BYTES <= _LARGEST_REQUEST_BYTES
    with pytest.raises(
        InvalidRequestError, match=rf"a {kind.__name__} of {kind.MOST_BYTES + 1} bytes.*{kind.MOST_BYTES}"
    ):
        message_of(pa.py_buffer(b"\xc1" * (kind.MOST_BYTES + 1)), kind)


@pytest.mark.parametrize("name", ACTIONS)
def test_body_of_an_action_has_the_bound_of_its_request(name: str) -> None:
    """This includes the envelope, whose content is decoded after it."""
    most = ACTIONS[name].request.MOST_BYTES
    with pytest.raises(InvalidRequestError, match=f"{most + 1} bytes; at most {most} are allowed"):
        decode_action(name, pa.py_buffer(b"\xc1" * (most + 1)))


@pytest.mark.parametrize("count", [15, 16, MOST_ENTRIES, MOST_ENTRIES + 1, 65_535, 65_536])
def test_refusal_names_the_list_and_its_given_and_allowed_lengths(count: int) -> None:
    body = encode_action("metadata", requests.MetadataRequest(topics=("t",) * count)).body
    if count <= MOST_ENTRIES:
        decode_action("metadata", body)
        return
    with pytest.raises(InvalidRequestError) as refused:
        decode_action("metadata", body)
    assert refused.value.message == (
        f"not a MetadataRequest: topics has {count} entries; at most {MOST_ENTRIES} are allowed"
    )


def test_refusal_names_a_list_inside_another_and_a_map() -> None:
    moves = [requests.PartitionMove(topic="t", partition=0, replicas=(1,) * n) for n in (3, 5_000)]
    with pytest.raises(InvalidRequestError, match=r"not a .*: moves\[1\]\.replicas has 5000 entries; at most \d+ are"):
        decode_action("reassign_partitions", encode_action("reassign_partitions", _moving(*moves)).body)
    changes = {str(n): "v" for n in range(70_000)}
    request = requests.AlterConfigRequest(topic="t", changes=changes)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"not a .*: changes has 70000 entries; at most \d+ are allowed"):
        message_of(pa.py_buffer(requests.encode(request)), requests.AlterConfigRequest)


def test_list_that_claims_more_than_it_has_is_refused_by_its_length() -> None:
    """The length is checked before any entry is decoded."""
    data = b"\x81\xa6topics\xdd" + struct.pack(">I", 1 << 31)
    with pytest.raises(InvalidRequestError, match="not a MetadataRequest: "):
        requests.decode(data, requests.MetadataRequest)


def _moving(*moves: requests.PartitionMove) -> requests.ReassignPartitionsRequest:
    return requests.ReassignPartitionsRequest(moves=moves)


@pytest.mark.parametrize("kind", RECEIVED)
def test_request_whose_lists_are_full_is_no_larger_than_allowed(kind: type[Request]) -> None:
    """This holds with the longest names and the largest numbers: a client that splits by entries need not count
    bytes.
    """
    fields = {name: _largest(hint) for name, hint in _hints(kind).items() if list(lists_of(hint))}
    if kind is streams.FetchRequest:  # all predicates together have no more steps than that
        fields["predicates"] = ((_largest(Step),) * MOST_STEPS,) * (streams.MOST_STEPS_IN_ALL // MOST_STEPS)
    if not fields:
        return
    small = {
        field.name: _largest(_hints(kind)[field.name])
        for field in msgspec.structs.fields(kind)
        if field.required and field.name not in fields
    }
    data = requests.encode(kind(**small, **fields))
    assert len(data) + 100 <= kind.MOST_BYTES, f"{len(data)} bytes"
    requests.decode(data, kind)


def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in hints.items() if name in kind.__struct_fields__}


def _largest(hint: Any, meta: msgspec.Meta | None = None) -> Any:
    """A value of the type that takes as many bytes as any (of numbers and bounded texts)."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _largest(inside[0], inside[1])
    if origin in (typing.Union, types.UnionType):
        return _largest(inside[0], meta)
    if origin is dict:
        return {f"setting.number.{n}": "x" * 100 for n in range(meta.max_length or 0)} if meta else {}
    if origin is tuple and inside[-1] is Ellipsis:
        count = meta.max_length if meta is not None and meta.max_length else 0
        entries = [_largest(inside[0])] * (32 if _is_replicas(hint, count) else count)  # no factor is larger
        return tuple(map(_another, entries, range(len(entries))))
    if origin is tuple:
        return tuple(map(_largest, inside))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        given = _LARGEST_ENTRIES.get(hint, {})
        return hint(**{name: given[name] if name in given else _largest(of) for name, of in _hints(hint).items()})
    if origin is Literal:
        return max(inside, key=len)
    if hint is int:
        return int(meta.le) if meta is not None and meta.le is not None else 0
    if hint is bytes:
        return b"i" * (meta.max_length or 0) if meta is not None else b""
    if hint is str:
        return "x" * (meta.max_length if meta is not None and meta.max_length else 64)
    return hint()


def _another(entry: Any, number: int) -> Any:
    """Of the same size: a fetch names no partition twice."""
    if not isinstance(entry, streams.FetchPartition):
        return entry
    return msgspec.structs.replace(entry, partition=entry.partition - number)


def _is_replicas(hint: Any, count: int) -> bool:
    return typing.get_args(hint)[0] == requests.Int32 and count == requests.MOST_REPLICAS


def test_fetch_names_no_more_columns_than_allowed_of_all_partitions_together() -> None:
    """Broker and client keep the request while it waits, and each id takes ten times its size on the wire."""
    ids = tuple(range(100))
    partitions = tuple(
        streams.FetchPartition(topic="t", partition=number, topic_id=bytes(16), offset=0, columns=ids)
        for number in range(MOST_COLUMN_IDS // 100)
    )
    full = streams.FetchRequest(request_id=1, partitions=partitions)
    data = requests.encode(full)
    assert requests.decode(data, streams.FetchRequest) == full
    more = msgspec.msgpack.decode(data)
    more["partitions"].append(more["partitions"][0])
    with pytest.raises(InvalidRequestError, match="partitions name 50100 columns in all; at most 50000 are allowed"):
        requests.decode(msgspec.msgpack.encode(more), streams.FetchRequest)


def test_fetch_names_each_partition_once() -> None:
    """Otherwise one small request is as much work as one for all partitions of the broker."""
    partitions = tuple(
        streams.FetchPartition(topic=topic, partition=number, topic_id=bytes(16), offset=0)
        for topic, number in (("a", 0), ("a", 1), ("b", 0))
    )
    full = streams.FetchRequest(request_id=1, partitions=partitions)
    data = requests.encode(full)
    assert requests.decode(data, streams.FetchRequest) == full
    more = msgspec.msgpack.decode(data)
    more["partitions"].append({**more["partitions"][1], "offset": 7})
    with pytest.raises(InvalidRequestError, match="partitions name a-1 2 times; each is fetched once"):
        requests.decode(msgspec.msgpack.encode(more), streams.FetchRequest)


def test_column_ids_have_room_for_all_columns_of_a_frame() -> None:
    assert MOST_COLUMNS == MAX_CHUNKS


def test_portions_are_complete_and_ordered_and_nothing_makes_an_empty_one() -> None:
    entries = list(range(2 * MOST_ENTRIES + 1))
    assert [len(each) for each in portions(entries)] == [MOST_ENTRIES, MOST_ENTRIES, 1]
    assert [entry for portion in portions(iter(entries)) for entry in portion] == entries
    assert portions([]) == [()]
