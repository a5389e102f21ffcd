"""Connections that end under somebody's hands: a typed error, never one that kills the thread it meets."""

from typing import Any

import pytest
from pyarrow import flight

from broker_runtime.contract.errors import BrokerUnavailableError, NetworkError
from broker_runtime.contract.requests import MetadataRequest, MetadataResponse, ProduceHello
from broker_runtime.contract.settings import Address
from pyspark_log.client.channel import Channel
from pyspark_log.client.produce_stream import ProduceStream

NOWHERE = Address("127.0.0.1", 1)


class SilentClient:
    """A Flight client and both ends of its streams."""

    def __init__(self, location: str, **options: Any) -> None:
        pass

    def do_put(self, *_: Any) -> tuple[Any, Any]:
        return self, self

    def done_writing(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_channel_that_another_thread_disconnects_raises_a_retriable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thread-safe: a call that breaks throws the connection away, also one that another call is about to use."""
    channel = Channel(NOWHERE, client_id="test")
    connect = channel._connect

    def connect_and_lose() -> None:
        connect()
        channel._disconnect()

    monkeypatch.setattr(channel, "_connect", connect_and_lose)
    with pytest.raises(BrokerUnavailableError, match="nothing was sent"):
        channel.call("metadata", MetadataRequest(), MetadataResponse, timeout_s=1.0)
    channel.close()


def test_produce_stream_that_a_fork_dropped_raises_a_retriable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reading thread may have been busy with an answer while the process forked."""
    monkeypatch.setattr(flight, "FlightClient", SilentClient)
    stream = ProduceStream(NOWHERE, ProduceHello(client_id="test"))
    stream.interrupt_for_fork()
    stream.drop_for_fork()
    with pytest.raises(NetworkError, match="ended"):
        stream.read()
    stream.close()
