"""A broker's memory limit holds against arbitrary input, and the broker continues to serve."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.flight import (
    CONNECTION_OPTIONS,
    FRAMES_SCHEMA,
    STREAM_OPTIONS,
    encode_action,
    fetch_descriptor,
    from_flight_error,
    metadata,
    produce_descriptor,
)
from broker_runtime.contract.requests import (
    MOST_ENTRIES,
    MOST_IN_ONE,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetQuery,
    PartitionKey,
    PartitionMove,
    ReassignPartitionsRequest,
)
from broker_runtime.contract.streams import FetchHello, ProduceHello, ProduceRequest
from pyspark_log import Admin, Producer, read
from pyspark_log.testing import LocalCluster

pytestmark = pytest.mark.usefixtures("real_brokers")

LIMIT_BYTES = 896 << 20
_MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One broker with little memory."""
    with LocalCluster(settings={"memory.max.bytes": str(LIMIT_BYTES)}) as made:
        with Admin(made.bootstrap_servers) as admin:
            admin.create_topic("t")
        yield made


def peak_bytes(cluster: LocalCluster) -> int:
    """The peak memory of the broker's process."""
    lines = Path(f"/proc/{cluster.pid(1)}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def bomb(codec: str, size_bytes: int) -> tuple[pa.RecordBatch, Any]:
    """A batch of zeros, and the options that make it small on the wire."""
    values = pa.py_buffer(bytes(size_bytes))
    offsets = pa.array([0, size_bytes], pa.int32()).buffers()[1]
    column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, values])
    return pa.RecordBatch.from_arrays([column], schema=FRAMES_SCHEMA), pa.ipc.IpcWriteOptions(compression=codec)


def plain_put(client: Any, batch: pa.RecordBatch, options: Any) -> None:
    rows = batch.rename_columns(["value"])
    writer, answers = client.do_put(flight.FlightDescriptor.for_path("t", "0"), rows.schema, options)
    writer.write_batch(rows)
    writer.done_writing()
    answers.read()
    writer.close()


def produce(client: Any, batch: pa.RecordBatch, options: Any) -> None:
    writer, answers = client.do_put(produce_descriptor(ProduceHello()), FRAMES_SCHEMA, options)
    writer.write_with_metadata(batch, metadata(ProduceRequest(request_id=0, topic="t", partition=0)))
    writer.done_writing()
    answers.read()
    writer.close()


@pytest.mark.parametrize("call", [plain_put, produce])
@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_decompression_bombs_are_refused_and_the_limit_holds(
    cluster: LocalCluster, call: Callable[[Any, pa.RecordBatch, Any], None], codec: str
) -> None:
    """Four bombs of each kind at a time are each refused with a typed error while a producer is served."""
    batch, write_options = bomb(codec, 1000 * _MIB)
    options = flight.FlightCallOptions(timeout=60, write_options=write_options)

    def attack(_: int) -> PylogError | None:
        address = cluster.bootstrap_servers
        with flight.FlightClient(f"grpc://{address}", generic_options=STREAM_OPTIONS) as client:
            try:
                call(client, batch, options)
            except (flight.FlightError, pa.ArrowException, StopIteration) as error:
                return from_flight_error(error, address)
        return None

    with ThreadPoolExecutor(4) as pool, Producer(cluster.bootstrap_servers) as producer:
        attacks = pool.map(attack, range(4))
        for number in range(20):
            producer.send("t", str(number).encode()).result(30)
        refusals = list(attacks)
    assert all(refusal is not None for refusal in refusals)
    assert {refusal.code for refusal in refusals if refusal} == {"BROKER_OVERLOADED"}, refusals
    assert peak_bytes(cluster) < LIMIT_BYTES
    assert read("t", bootstrap_servers=cluster.bootstrap_servers).read_all().num_rows >= 20


NOWHERE = tuple(f"{number:0249d}" for number in range(MOST_ENTRIES))
FULL = [
    encode_action("metadata", MetadataRequest(topics=NOWHERE)),
    encode_action(
        "list_offsets",
        ListOffsetsRequest(
            queries=tuple(
                OffsetQuery(at=PartitionKey(topic=topic, partition=0, topic_id=bytes(16)), timestamp=-1)
                for topic in NOWHERE
            )
        ),
    ),
    encode_action(
        "reassign_partitions",
        ReassignPartitionsRequest(
            moves=(PartitionMove(topic="none", partition=0, replicas=tuple(range(1000, 1064))),) * MOST_IN_ONE
        ),
    ),
]
ANSWERS = ["OK", "OK", "UNKNOWN_TOPIC_OR_PARTITION"]


def test_requests_of_the_largest_allowed_size_stay_below_the_limit(cluster: LocalCluster) -> None:
    """Memory stays bounded while forty large requests of each kind arrive at once, some far too large, and a
    producer is served.
    """
    address = cluster.bootstrap_servers
    many_names = encode_action("metadata", MetadataRequest(topics=("none",) * 3_500_000))

    def attack(action: Any) -> str:
        with flight.FlightClient(f"grpc://{address}", generic_options=CONNECTION_OPTIONS) as client:
            try:
                list(client.do_action(action, flight.FlightCallOptions(timeout=60)))
            except (flight.FlightError, pa.ArrowException) as error:
                return from_flight_error(error, address).code
        return "OK"

    with ThreadPoolExecutor(40) as pool, Producer(address) as producer:
        far_beyond = list(pool.map(attack, [many_names] * 2))
        for action, code in zip(FULL, ANSWERS, strict=True):
            attacks = pool.map(attack, [action] * 40)
            for number in range(20):
                producer.send("t", str(number).encode()).result(30)
            answers = set(attacks)
            assert code in answers
            assert answers <= {code, "BROKER_OVERLOADED"}
    assert far_beyond == ["INVALID_REQUEST"] * 2
    assert peak_bytes(cluster) < LIMIT_BYTES


@pytest.mark.parametrize("kind", ["put", "exchange", "action"])
def test_message_that_never_ends_is_cut_and_the_limit_holds(cluster: LocalCluster, kind: str) -> None:
    """gRPC buffers what arrives; three senders of 1.5 GiB each are cut off, and a producer is served meanwhile."""
    address = cluster.bootstrap_servers
    body = pa.py_buffer(bytes(1500 * _MIB))

    def send(client: Any) -> None:
        if kind == "action":
            list(client.do_action(flight.Action("metadata", body), flight.FlightCallOptions(timeout=15)))
            return
        offsets = pa.array([0, body.size], pa.int32()).buffers()[1]
        column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, body])
        batch = pa.RecordBatch.from_arrays([column], schema=FRAMES_SCHEMA)
        (produce if kind == "put" else exchange)(client, batch, flight.FlightCallOptions(timeout=60))

    def attack(_: int) -> None:
        client = flight.FlightClient(f"grpc://{address}", generic_options=STREAM_OPTIONS)
        with client, pytest.raises((flight.FlightError, pa.ArrowException)):
            send(client)

    with ThreadPoolExecutor(3) as pool, Producer(address) as producer:
        attacks = [pool.submit(attack, n) for n in range(3)]
        for number in range(20):
            producer.send("t", str(number).encode()).result(30)
        for each in attacks:
            each.result()
    assert peak_bytes(cluster) < LIMIT_BYTES


def test_many_fast_connections_stay_below_the_limit_and_a_producer_is_served(cluster: LocalCluster) -> None:
    """Forty connections at a time send six gibibytes in endless messages, with small actions in between, and are
    replaced when cut.
    """
    address = cluster.bootstrap_servers
    command = [sys.executable, "-m", "tests.integration.broker.endless_calls", address.rpartition(":")[2]]
    flood = subprocess.Popen([*command, str(6144 * _MIB)], stdout=subprocess.PIPE, text=True)
    with flood, Producer(address) as producer:
        sent = 0
        while flood.poll() is None or sent < 20:
            producer.send("t", b"meanwhile").result(30)
            sent += 1
        assert flood.stdout is not None
        assert int(flood.stdout.read()) > LIMIT_BYTES
    assert peak_bytes(cluster) < LIMIT_BYTES


def exchange(client: Any, batch: pa.RecordBatch, options: Any) -> None:
    writer, reader = client.do_exchange(fetch_descriptor(FetchHello()), options)
    writer.begin(batch.schema)
    writer.write_batch(batch)
    writer.done_writing()
    reader.read_chunk()
    writer.close()
