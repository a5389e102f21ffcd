"""The two threads of a produce stream: the reading one learns at once what ended the other."""

import contextlib
import threading
import types

import pyarrow as pa
import pytest
from pyarrow import flight

from broker_runtime.contract.flight import frames_batch, metadata
from broker_runtime.contract.streams import ProduceRequest
from broker_runtime.contract.waiting import Deadline
from broker_runtime.server import produce_stream
from broker_runtime.server.boundary import PeerGoneError
from broker_runtime.server.produce_stream import ProduceStream
from broker_runtime.server.streams import OpenStream
from tests.callers import CLIENT
from tests.unit.standing_disk import LIMIT_S

PENDING = 4


class Heartbeats:
    """A client that sends only heartbeats; ``all_slots_taken`` is set after as many as may wait, and one more."""

    def __init__(self):
        self.chunk = types.SimpleNamespace(
            app_metadata=metadata(ProduceRequest(request_id=0, heartbeat=True)), data=None
        )
        self.sent = 0
        self.all_slots_taken = threading.Event()

    def read_chunk(self):
        self.sent += 1
        if self.sent > PENDING:
            self.all_slots_taken.set()
        return self.chunk


def test_stream_ends_at_once_when_its_acknowledging_thread_fails_while_its_reader_waits(monkeypatch):
    """No slot becomes free any more, and nothing more is read from the client."""
    monkeypatch.setattr(produce_stream, "_MAX_PENDING", PENDING)
    monkeypatch.setattr(produce_stream, "_IDLE_S", 3_600.0)
    reader = Heartbeats()

    def write(_):
        assert reader.all_slots_taken.wait(LIMIT_S)
        raise MemoryError

    phase = contextlib.nullcontext()
    stream = ProduceStream(
        reader,
        types.SimpleNamespace(write=write),
        service=None,
        budget=None,
        stream=OpenStream(kind="produce", caller=CLIENT, address=None, reading=phase, writing=phase),
    )
    raised = []

    def serve():
        with pytest.raises(flight.FlightServerError, match="a defect of the broker") as caught:
            stream.serve()
        raised.append(caught.value)

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    serving.join(LIMIT_S)
    assert not serving.is_alive()
    assert len(raised) == 1


class Holding:
    """An allowance that holds a request back until what it calls meanwhile raises."""

    def __init__(self):
        self.noted = []

    def limits(self, limit):
        return False

    def wait_for_room(self, still_waiting):
        self.noted.append("room")

    def wait(self, still_waiting, *, holding_bytes):
        self.noted.append(("hold", holding_bytes))
        deadline = Deadline(LIMIT_S)
        while not deadline.expired:
            still_waiting()
            deadline.sleep(0.01)
        self.noted.append("nothing ended the wait")


def test_request_is_read_when_there_is_room_and_held_until_its_client_is_gone():
    """The client's next request was not read, so that only a heartbeat shows that it has left. Nothing is appended."""
    allowance = Holding()

    def read_chunk():
        allowance.noted.append("read")
        return types.SimpleNamespace(
            app_metadata=metadata(ProduceRequest(request_id=1, topic="t")), data=frames_batch([pa.py_buffer(b"frame")])
        )

    def write(_):
        raise OSError("it is gone")

    phase = contextlib.nullcontext()
    stream = OpenStream(kind="produce", caller=CLIENT, address=None, reading=phase, writing=phase, allowance=allowance)
    reader, writer = types.SimpleNamespace(read_chunk=read_chunk), types.SimpleNamespace(write=write)
    with pytest.raises(PeerGoneError, match="it left while it was held back"):
        ProduceStream(reader, writer, service=None, budget=None, stream=stream).serve()
    assert allowance.noted == ["room", "read", ("hold", 5)]
