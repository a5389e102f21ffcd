"""The plain dialect on the wire: ordinary record batches in Flight's own calls, for any Flight client.

Rule: translates between Flight's values and `PlainService`; a batch that arrives is validated in full before it is
used. One endpoint per partition, at the partition's leader, as the cluster's metadata has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyarrow import flight

from broker_runtime.contract.errors import InvalidRequestError, PylogError
from broker_runtime.contract.flight import Opening, encode_opening, metadata
from broker_runtime.contract.quotas import PRODUCER_BYTE_RATE
from broker_runtime.contract.requests import MetadataRequest, MetadataResponse
from broker_runtime.security.quotas import ProcessorTime
from broker_runtime.server.boundary import read_chunk, read_schema, refuse_dictionaries, validated, write_put_metadata
from broker_runtime.server.streams import OpenStream
from broker_runtime.services.caller import Caller
from broker_runtime.services.plain import PlainService


class PlainDialect:
    """GetFlightInfo, ListFlights and DoPut of ordinary batches. Thread-safe."""

    def __init__(self, service: PlainService, cluster: Callable[[Caller, MetadataRequest], MetadataResponse]) -> None:
        """``cluster`` says where leaders are (the metadata service)."""
        self._service = service
        self._cluster = cluster

    def describe(self, caller: Caller, topic: str, *, uses_tls: bool) -> Any:
        """The topic's `FlightInfo`. Raises `UnknownTopicOrPartitionError`. ``uses_tls``: as the listener that was asked
        does."""
        location = flight.Location.for_grpc_tls if uses_tls else flight.Location.for_grpc_tcp
        schema = self._service.schema(caller, topic)
        metadata_response = self._cluster(caller, MetadataRequest(topics=(topic,)))
        addresses = {broker.broker_id: (broker.host, broker.port) for broker in metadata_response.brokers}
        leaders = {
            partition.partition: partition.leader
            for info in metadata_response.topics
            if info.name == topic
            for partition in info.partitions
        }
        endpoints, records = [], 0
        for number, ticket, count in self._service.partitions(caller, topic):
            leader = leaders.get(number)
            where = addresses.get(leader) if leader is not None else None
            locations = [location(*where)] if where is not None else []
            endpoints.append(flight.FlightEndpoint(encode_opening(Opening.PLAIN, ticket), locations))
            records = -1 if count < 0 or records < 0 else records + count
        return flight.FlightInfo(schema, flight.FlightDescriptor.for_path(topic), endpoints, records, -1)

    def list_topics(self, caller: Caller, *, uses_tls: bool) -> Iterator[Any]:
        """The `FlightInfo` of every topic."""
        for topic in self._service.topic_names(caller):
            try:
                yield self.describe(caller, topic, uses_tls=uses_tls)
            except PylogError:
                continue  # deleted meanwhile

    def put(self, path: list[bytes], reader: Any, writer: Any, stream: OpenStream) -> None:
        """Appends what the client sends, one answer per batch, until its end."""
        caller = stream.caller
        topic, partition = parse_path(path)
        self._service.schema(caller, topic)
        with stream.reading:
            refuse_dictionaries(read_schema(reader))
        timer = ProcessorTime(stream.allowance)
        while True:
            timer.spend()
            stream.allowance.wait_for_room(lambda: None)
            with stream.reading:
                chunk = read_chunk(reader)
            if chunk is None:
                return
            try:
                if chunk.data is None:
                    continue
                size_bytes = chunk.data.get_total_buffer_size()
                stream.allowance.wait(holding_bytes=size_bytes)
                stream.allowance.spend(PRODUCER_BYTE_RATE, size_bytes)
                result = self._service.put(caller, topic, partition, validated(chunk.data))
            finally:
                stream.took(chunk)  # only now: until here the broker held it
            with stream.writing:
                write_put_metadata(writer, metadata(result))


def parse_path(path: list[bytes]) -> tuple[str, int | None]:
    """Topic and partition (None: not named) of a descriptor's path."""
    try:
        parts = [bytes(part).decode() for part in path]
    except UnicodeDecodeError:
        parts = []
    if len(parts) == 1:
        return parts[0], None
    if len(parts) == 2 and parts[1].isascii() and parts[1].isdecimal() and len(parts[1]) <= 5:
        return parts[0], int(parts[1])
    raise InvalidRequestError(f"a path here is [topic] or [topic, partition number], not {parts!r:.200}")
