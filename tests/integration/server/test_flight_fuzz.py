"""Garbage over the whole Flight surface: the broker survives, its memory is bounded, its log unchanged.

The server is a process of its own, so that its death is noticed. Frames here have a wrong checksum from the start, and
ordinary batches go to a partition that the broker does not lead, so no mutant can be a valid append.
``PYLOG_FUZZ_FLIGHT`` sets the number of calls, ``PYLOG_FUZZ_SEED`` repeats a run.
"""

from __future__ import annotations

import functools
import os
import random
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from broker_runtime.contract import requests, streams
from broker_runtime.contract.actions import ACTIONS
from broker_runtime.contract.flight import FRAMES_SCHEMA, Opening, encode_opening, frames_batch
from broker_runtime.contract.requests import encode
from broker_runtime.contract.streams import FetchPartition
from tests.integration.server.raw_grpc import WINDOW_BYTES, Connection, bytes_field, varint_field
from tests.integration.server.serving import TOPICS, Server, serving, untyped_frame
from tests.integration.server.streams import FetchSession, ProduceStream

_CALLS = int(os.environ.get("PYLOG_FUZZ_FLIGHT", "20000"))
_SEED = int(os.environ.get("PYLOG_FUZZ_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
_CALLS_PER_CONNECTION = 40
_THREADS = 3
_MEMORY_BYTES = 400 << 20
_BOMB_BYTES = 600 << 20
_ID = TOPICS["untyped"][0].bytes

Call = tuple[str, list[bytes]]


def test_garbage_leaves_the_broker_alive_its_memory_bounded_and_its_log_unchanged(tmp_path: Path) -> None:
    """A fuzz over the whole Flight surface."""
    with serving(tmp_path / "data") as server:
        with server.connect() as client, ProduceStream(client) as produce:
            for number in (0, 1):
                assert produce.produce([untyped_frame([b"before"] * 100)], partition=number).error is None
        stored, memory = server.stored_bytes(), server.rss_bytes
        with ThreadPoolExecutor(_THREADS) as pool:
            runs = [pool.submit(_fuzz, server, random.Random(_SEED + n), _CALLS // _THREADS) for n in range(_THREADS)]
            unanswered = sum(run.result() for run in runs)
        assert server.is_alive, f"the broker died; seed {_SEED}\n{server.log.read_text()[-3000:]}"
        assert server.stored_bytes() == stored, f"seed {_SEED}"
        assert server.rss_bytes - memory < _MEMORY_BYTES, f"seed {_SEED}"
        assert unanswered < _CALLS / 10, f"the fuzz no longer reaches the services: {unanswered} of {_CALLS} unanswered"
        defects = [line for line in server.log.read_text().splitlines() if "fail call " in line or "Traceback" in line]
        assert not defects, f"seed {_SEED}: {defects[:5]}\n{server.log.read_text()[:4000]}"
        assert _serves(server)


@pytest.mark.parametrize("length", [2**31 - 1, 2**32 - 1])
def test_huge_message_length_costs_nothing_before_its_bytes_arrive(tmp_path: Path, length: int) -> None:
    """A huge length alone reserves no memory."""
    with serving(tmp_path / "data") as server:
        memory = server.rss_bytes
        connections = [Connection(server.port) for _ in range(8)]
        for connection in connections:
            prefix = b"\x00" + length.to_bytes(4, "big")
            connection.call("DoPut", [prefix + bytes(30_000)], prefixed=False, end=False)
            connection.call("DoAction", [prefix + bytes(20_000)], prefixed=False, end=False)
            connection.drain(0.2)
        assert _serves(server)
        assert server.rss_bytes - memory < 100 << 20
        for connection in connections:
            connection.close()
        assert server.is_alive


def _fuzz(server: Server, rng: random.Random, calls: int) -> int:
    """Makes that many calls while the server lives; returns how many had no answer on a sound connection."""
    sent = unanswered = 0
    while sent < calls and server.is_alive:
        connection = Connection(server.port)
        for _ in range(_CALLS_PER_CONNECTION):
            _one_call(rng, connection)
            sent += 1
            if connection.sent_bytes > WINDOW_BYTES or connection.is_broken:
                break
        left = connection.drain(1.0)
        unanswered += 0 if connection.is_broken else left
        connection.close()
        if rng.random() < 0.1:
            _raw_bytes(rng, server.port)
    return unanswered


def _one_call(rng: random.Random, connection: Connection) -> None:
    if rng.random() < 0.05:
        connection.call(rng.choice(("DoPut", "DoExchange", "DoAction", "DoGet", "Handshake")), [], end=False)
        return
    method, messages = rng.choice(_SEEDS)(rng) if rng.random() > 0.02 else _bomb(rng)
    layer = rng.random()
    if layer < 0.5 and messages:  # the content of the protobuf was mutated by the seed; now the protobuf itself
        which = rng.randrange(len(messages))
        messages[which] = mutated(rng, messages[which])
    if layer < 0.05:
        connection.call(method, [mutated(rng, b"".join(_framed(m) for m in messages))], prefixed=False)
    elif layer < 0.06:
        connection.send_raw(rng.randbytes(rng.randrange(1, 200)))
    else:
        connection.call(method, messages, end=rng.random() < 0.9)


def mutated(rng: random.Random, data: bytes) -> bytes:
    """``data`` with one to four flips, cuts, inserts, swaps or overwritten lengths."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(7):
            case 0 if out:
                out[at % len(out)] ^= 1 << rng.randrange(8)
            case 1:
                del out[at : at + rng.choice((1, 4, 8, 100))]
            case 2:
                out[at:at] = rng.randbytes(rng.choice((1, 4, 8, 64)))
            case 3:
                out[at : at + 4] = rng.choice((b"\xff\xff\xff\x7f", b"\xff" * 4, bytes(4), b"\x00\x00\x00\x80"))
            case 4:
                out[at : at + 8] = rng.choice((b"\xff" * 7 + b"\x7f", b"\xff" * 8, bytes(8), rng.randbytes(8)))
            case 5:
                del out[at:]
            case 6:
                other = rng.randrange(len(out) + 1)
                out[at : at + 8], out[other : other + 8] = out[other : other + 8], out[at : at + 8]
    return bytes(out)


def _maybe(rng: random.Random, data: bytes) -> bytes:
    return mutated(rng, data) if rng.random() < 0.5 else data


def _framed(message: bytes) -> bytes:
    return b"\x00" + len(message).to_bytes(4, "big") + message


# --- seeds: calls that are nearly right -----------------------------------------------------------------------


def _command(data: bytes) -> bytes:
    return varint_field(1, 2) + bytes_field(2, data)


def _path(*parts: bytes) -> bytes:
    return varint_field(1, 1) + b"".join(bytes_field(3, part) for part in parts)


def _flight_data(header: bytes, body: bytes, app_metadata: bytes = b"", descriptor: bytes = b"") -> bytes:
    parts = bytes_field(1, descriptor) if descriptor else b""
    if header:
        parts += bytes_field(2, header)
    if app_metadata:
        parts += bytes_field(3, app_metadata)
    return parts + bytes_field(1000, body)


def _ipc(message: pa.Buffer) -> tuple[bytes, bytes]:
    """An encapsulated IPC message as (metadata, body)."""
    data = message.to_pybytes()
    length = int.from_bytes(data[4:8], "little")
    return data[8 : 8 + length], data[8 + length :]


_BROKEN_FRAME = pa.py_buffer(untyped_frame([b"value"] * 3).to_pybytes()[:-1] + b"\x55")
_FRAMES = _ipc(frames_batch([_BROKEN_FRAME]).serialize())
_FRAMES_HEADER = _ipc(FRAMES_SCHEMA.serialize())[0]
_ORDINARY = [
    pa.record_batch({"key": pa.array([b"k", None]), "value": pa.array([b"v", b"w"])}),
    pa.record_batch({"value": pa.array(["a", "b"]).dictionary_encode()}),
    pa.record_batch({"value": pa.array([["a"], None, []]), "s": pa.array([{"a": 1}, {"a": None}, None])}),
    pa.record_batch({"value": pa.array([b"x" * 200] * 5), "t": pa.array([1.5] * 5), "u": pa.array([True] * 5)}),
    pa.record_batch({"value": pa.array([b"x", b"long enough to be out of line"], pa.binary_view())}),
]


def _action(rng: random.Random) -> Call:
    names = [name for name in ACTIONS if name != "describe_log_dirs"]  # that one raises on purpose
    body = requests.ActionRequest(body=b"\x80")
    if rng.random() < 0.5:
        request = requests.MetadataRequest(topics=("untyped", "x" * 100), with_offsets=True)
        body = requests.ActionRequest(body=encode(request))
    name = _maybe(rng, rng.choice(names).encode())
    return "DoAction", [bytes_field(1, name) + bytes_field(2, _maybe(rng, encode(body)))]


def _group_action(rng: random.Random) -> Call:
    group_id = rng.choice(("g", "g", "h", f"g{rng.randrange(200)}", "a/b", "..", "zookeeper", "\0", "x" * 300))
    member_id = f"m{rng.randrange(20)}"
    epoch = rng.choice((0, 0, 1, 2, 3, -1, -2, -3, 2**31 - 1))
    offsets = tuple(
        requests.CommittedOffset(
            at=requests.PartitionKey(topic=rng.choice(("untyped", "typed", "none")), partition=rng.randrange(3)),
            offset=rng.choice((0, 7, 2**63 - 1)),
            metadata="x" * rng.choice((0, 4096)),
        )
        for _ in range(rng.randrange(4))
    )
    heartbeat = requests.GroupHeartbeatRequest(
        group_id=group_id,
        member_id=member_id,
        member_epoch=epoch,
        topics=rng.choice((None, ("untyped",), ("typed", "untyped", "none"), ("a/b",))),
        instance_id=rng.choice((None, None, "i1", "i2")),
        kind=rng.choice(("consumer", "consumer", "spark")),
        session_timeout_ms=rng.choice((0, 1_000, 10_000)),
    )
    commit = requests.CommitOffsetsRequest(
        group_id=group_id,
        offsets=offsets,
        member_id=rng.choice(("", member_id)),
        member_epoch=epoch,
        sequence=rng.choice((-1, 0, 2**63 - 1)),
    )
    of_action: dict[str, requests.Message] = {
        "find_coordinator": requests.FindCoordinatorRequest(group_id=group_id),
        "group_heartbeat": heartbeat,
        "commit_offsets": commit,
        "fetch_offsets": requests.FetchOffsetsRequest(group_id=group_id),
        "list_groups": requests.ListGroupsRequest(),
        "describe_group": requests.DescribeGroupRequest(group_id=group_id),
        "alter_group_offsets": requests.AlterGroupOffsetsRequest(group_id=group_id, offsets=offsets),
        "delete_group": requests.DeleteGroupRequest(group_id=group_id),
        "remove_group_members": requests.RemoveGroupMembersRequest(group_id=group_id, members=(member_id,) * 3),
    }
    name = rng.choice(("group_heartbeat", "commit_offsets", *of_action))
    body = encode(of_action[name])
    envelope = requests.ActionRequest(body=msgspec.Raw(_maybe(rng, body)))
    return "DoAction", [bytes_field(1, name.encode()) + bytes_field(2, encode(envelope))]


def _get(rng: random.Random) -> Call:
    message: requests.Message
    if rng.random() < 0.5:
        columns = rng.choice((None, (0,), (0xFFFF, 7, -1)))
        offset = rng.choice((0, -2, 50, 2**60, -(2**63)))
        message = streams.ReadRequest(
            topic="untyped", partition=0, start=offset, end=rng.choice((-1, 10, 2**62)), columns=columns
        )
        ticket = encode_opening(Opening.READ, message)
    else:
        message = streams.PlainTicket(topic=rng.choice(("untyped", "typed")), partition=0, topic_id=None)
        ticket = encode_opening(Opening.PLAIN, message)
    return "DoGet", [bytes_field(1, _maybe(rng, ticket))]


def _produce(rng: random.Random) -> Call:
    hello = _maybe(rng, encode_opening(Opening.PRODUCE, streams.ProduceHello(client_id="fuzz")))
    messages = [_flight_data(_maybe(rng, _FRAMES_HEADER), b"", b"", _command(hello))]
    for number in range(rng.randrange(1, 5)):
        request = streams.ProduceRequest(
            request_id=number,
            topic=rng.choice(("untyped", "typed", "elsewhere")),
            partition=rng.randrange(2),
            acks=rng.choice((-1, 0, 1)),
            timeout_ms=100,
            heartbeat=rng.random() < 0.2,
        )
        header, body = _FRAMES
        messages.append(_flight_data(_maybe(rng, header), _maybe(rng, body), _maybe(rng, encode(request))))
    return "DoPut", messages


def _plain_put(rng: random.Random) -> Call:
    batch = rng.choice(_ORDINARY)
    codec = rng.choice((None, "lz4", "zstd"))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    path = _path(*[_maybe(rng, part) for part in rng.choice(((b"elsewhere",), (b"elsewhere", b"0"), (b"none",)))])
    messages = []
    for message in pa.ipc.MessageReader.open_stream(sink.getvalue()):
        header, body = message.metadata.to_pybytes(), message.body.to_pybytes() if message.body else b""
        messages.append(_flight_data(_maybe(rng, header), _maybe(rng, body), b"", b"" if messages else path))
    return "DoPut", messages


@functools.cache
def _bomb_messages(codec: str) -> list[tuple[bytes, bytes]]:
    """Header and body of a schema, and of a batch that is larger than Arrow allows and small on the wire."""
    offsets = pa.array([0, _BOMB_BYTES], pa.int32()).buffers()[1]
    column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(bytes(_BOMB_BYTES))])
    batch = pa.RecordBatch.from_arrays([column], schema=FRAMES_SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    return [
        (message.metadata.to_pybytes(), message.body.to_pybytes() if message.body else b"")
        for message in pa.ipc.MessageReader.open_stream(sink.getvalue())
    ]


def _bomb(rng: random.Random) -> Call:
    (schema, _), (header, body) = _bomb_messages("zstd")
    kind = rng.randrange(3)
    if kind == 0:
        descriptor, app_metadata = _path(b"untyped", b"0"), b""
    elif kind == 1:
        descriptor = _command(encode_opening(Opening.PRODUCE, streams.ProduceHello()))
        app_metadata = encode(streams.ProduceRequest(request_id=0, topic="untyped", partition=0, timeout_ms=100))
    else:
        descriptor = _command(encode_opening(Opening.FETCH, streams.FetchHello()))
        app_metadata = encode(streams.FetchRequest(request_id=0, max_wait_ms=10))
    messages = [_flight_data(schema, b"", b"", descriptor), _flight_data(_maybe(rng, header), body, app_metadata)]
    return "DoExchange" if kind == 2 else "DoPut", messages


def _fetch(rng: random.Random) -> Call:
    hello = _maybe(rng, encode_opening(Opening.FETCH, streams.FetchHello()))
    messages = [_flight_data(b"", b"", b"", _command(hello))]
    for number in range(rng.randrange(1, 4)):
        wanted = FetchPartition(
            topic="untyped",
            partition=rng.randrange(3),
            topic_id=rng.choice((_ID, bytes(16))),
            offset=rng.choice((0, 99, 100, 2**62)),
            leader_epoch=rng.choice((-1, 2, 3, 4)),
            columns=rng.choice((None, (1,), (0xFFFE, -5))),
        )
        some = tuple(msgspec.structs.replace(wanted, partition=each) for each in range(rng.randrange(4)))
        request = streams.FetchRequest(request_id=number, partitions=some, max_wait_ms=10)
        header, body = rng.choice(((b"", b""), _FRAMES))
        messages.append(_flight_data(_maybe(rng, header), _maybe(rng, body), _maybe(rng, encode(request))))
    return "DoExchange", messages


def _describe(rng: random.Random) -> Call:
    method = rng.choice(("GetFlightInfo", "GetSchema", "PollFlightInfo"))
    descriptor = rng.choice((_path(b"untyped"), _path(b"untyped", b"1", b"2"), _path(), _command(b"untyped")))
    return method, [_maybe(rng, descriptor)]


def _other(rng: random.Random) -> Call:
    method = rng.choice(("ListFlights", "ListActions", "Handshake", "NoSuchCall", "DoPut", "DoGet", "DoExchange"))
    return method, [rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(3))]


_SEEDS: list[Callable[[random.Random], Call]] = [
    _action, _group_action, _group_action, _get, _get, _produce, _produce, _produce, _plain_put, _plain_put, _fetch,
    _fetch, _describe, _other,
]  # fmt: skip


def _raw_bytes(rng: random.Random, port: int) -> None:
    """What a port scanner or another protocol sends."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        data = rng.choice(
            (rng.randbytes(500), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        )
        try:
            connection.sendall(mutated(rng, data))
        except OSError:
            return


def _serves(server: Server) -> bool:
    with server.connect() as client, ProduceStream(client) as produce, FetchSession(client) as fetch:
        at = produce.produce([untyped_frame([b"after"])], partition=1).base_offset
        _, cells = fetch.fetch(FetchPartition(topic="untyped", partition=1, topic_id=_ID, offset=at))
        return at >= 0 and len(cells) == 1
