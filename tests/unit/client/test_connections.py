"""Connections that end during a call raise a typed error, never one that kills the calling thread."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from pyarrow import flight

from broker_runtime.contract.errors import NetworkError
from broker_runtime.contract.requests import MetadataRequest, MetadataResponse
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import ProduceHello
from pyspark_log.client.connection.channel import Channel
from pyspark_log.client.producer.produce_stream import ProduceStream

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


class BusyClient:
    """A Flight client in whose calls something else happens to the channel; it records when it is closed."""

    made: ClassVar[list["BusyClient"]] = []
    meanwhile: ClassVar[Callable[[], object]] = staticmethod(lambda: None)

    def __init__(self, location: str, **options: Any) -> None:
        self.closed_in_call = self.is_closed = self.is_in_call = False
        self.made.append(self)

    def do_action(self, action: Any, options: Any) -> list[Any]:
        self.is_in_call = True
        type(self).meanwhile()
        self.is_in_call = False
        raise flight.FlightUnavailableError("gone")

    def close(self) -> None:
        self.is_closed = True
        self.closed_in_call |= self.is_in_call


@pytest.mark.parametrize("how", ["closed", "given up", "forked"])
def test_connection_given_up_during_a_call_is_closed_when_the_call_has_ended(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Closing Flight's client during a call of another thread crashes the process."""
    monkeypatch.setattr(flight, "FlightClient", BusyClient)
    channel = Channel(NOWHERE, client_id="test")
    link = channel._link
    ends: dict[str, Callable[[], object]] = {
        "closed": channel.close,
        "given up": lambda: link._give_up(link._connection),
        "forked": link._drop_for_fork,
    }
    monkeypatch.setattr(BusyClient, "made", [])
    monkeypatch.setattr(BusyClient, "meanwhile", staticmethod(ends[how]))
    with pytest.raises(NetworkError):
        channel.call("metadata", MetadataRequest(), MetadataResponse, timeout_s=1.0)
    (client,) = BusyClient.made
    assert client.is_closed
    assert not client.closed_in_call
    channel.close()


def test_failing_call_gives_up_its_own_connection_and_no_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "FlightClient", BusyClient)
    channel = Channel(NOWHERE, client_id="test")
    link = channel._link
    monkeypatch.setattr(BusyClient, "made", [])

    def reopen() -> None:
        if len(BusyClient.made) == 1:
            link._give_up(link._connection)
            link._release(link._hold(opens=True))

    monkeypatch.setattr(BusyClient, "meanwhile", staticmethod(reopen))
    with pytest.raises(NetworkError):
        channel.call("metadata", MetadataRequest(), MetadataResponse, timeout_s=1.0)
    assert [client.is_closed for client in BusyClient.made] == [True, False]
    channel.close()
    assert BusyClient.made[1].is_closed


def test_produce_stream_that_a_fork_dropped_raises_a_retriable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reading thread may have been processing an answer during the fork."""
    monkeypatch.setattr(flight, "FlightClient", SilentClient)
    stream = ProduceStream(NOWHERE, ProduceHello(client_id="test"))
    stream._link._interrupt_for_fork()
    stream._link._drop_for_fork()
    with pytest.raises(NetworkError, match="ended"):
        stream.read()
    stream.close()
