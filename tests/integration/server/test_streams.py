"""Produce, fetch and read over Flight against real logs: the whole path of a frame, and every typed refusal."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyarrow import flight

from broker_runtime.contract import errors, requests
from broker_runtime.contract.flight import FRAMES_SCHEMA, frames_batch, from_flight_error, metadata
from broker_runtime.contract.frame import decode_frame, encode_frame, iter_frames
from broker_runtime.contract.schema import SchemaHistory
from broker_runtime.contract.streams import FetchHello, FetchPartition, ProduceHello, ProduceRequest
from tests.integration.server.serving import TOPICS, TYPED, Server, big_frame, serving, untyped_frame
from tests.integration.server.streams import OPTIONS, FetchSession, ProduceStream, read
from tests.waiting import SOON_S, wait_until

UNTYPED_ID = TOPICS["untyped"][0].bytes


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the test's own, with empty logs."""
    with serving(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests that leave nothing in partition 0 of ``untyped``."""
    with serving(tmp_path_factory.mktemp("shared") / "data") as server:
        yield server


def values(cells: list[pa.Buffer], topic: str = "untyped") -> list[object]:
    """The last column of all frames in the cells."""
    history = SchemaHistory([TOPICS[topic][2]])
    frames = [frame for cell in cells for _, frame in iter_frames(cell)]
    return [value for frame in frames for value in decode_frame(frame, history).batch.column(1).to_pylist()]


def partition(offset: int, number: int = 0, **fields: object) -> FetchPartition:
    return FetchPartition(topic="untyped", partition=number, topic_id=UNTYPED_ID, offset=offset, **fields)


def test_produced_frames_are_fetched_and_read_byte_for_byte_with_dense_offsets(server: Server) -> None:
    """W2: a record is appended at the end and read in order."""
    with server.connect() as client, ProduceStream(client) as produce, FetchSession(client) as fetch:
        first = produce.produce([untyped_frame([b"a", b"b"])])
        second = produce.produce([untyped_frame([b"c"])])
        assert (first.base_offset, second.base_offset, second.leader_epoch) == (0, 2, 3)
        response, cells = fetch.fetch(partition(0))
        (answer,) = response.partitions
        assert (answer.next_offset, answer.high_watermark, answer.row) == (3, 3, 0)
        assert values(cells) == [b"a", b"b", b"c"]
        assert [(r.start, r.end, r.next_offset) for r, _ in read(client, topic="untyped", partition=0, start=-2)] == [
            (0, 3, 3)
        ]


def test_pipelined_requests_are_acknowledged_in_order_and_heartbeats_answered(server: Server) -> None:
    """Produce streams are pipelined and acknowledged in order."""
    with server.connect() as client, ProduceStream(client) as produce:
        sent = [produce.send([untyped_frame([b"%d" % n])], partition=n % 2) for n in range(200)]
        answers = [produce.answer() for _ in sent]
        assert [answer.request_id for answer in answers] == sent
        assert sorted(answer.base_offset for answer in answers) == sorted([*range(100), *range(100)])
        produce.writer.write_metadata(metadata(ProduceRequest(request_id=-1, heartbeat=True)))
        assert produce.reader.read() is not None


def test_acks_zero_has_no_answer_and_is_readable(server: Server) -> None:
    """W9: acks=0."""
    with server.connect() as client, ProduceStream(client) as produce, FetchSession(client) as fetch:
        produce.send([untyped_frame([b"quiet"])], acks=0)
        assert produce.produce([untyped_frame([b"loud"])], acks=1).request_id == 2
        assert values(fetch.fetch(partition(0))[1]) == [b"quiet", b"loud"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "nope"}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"partition": 2}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"topic_id": bytes(16)}, "INCONSISTENT_TOPIC_ID"),
        ({"leader_epoch": 2}, "FENCED_LEADER_EPOCH"),
        ({"leader_epoch": 4}, "UNKNOWN_LEADER_EPOCH"),
        ({"topic": "typed"}, "SCHEMA_MISMATCH"),
        ({"frames": [pa.py_buffer(b"no frame" * 40)]}, "CORRUPT_MESSAGE"),
        ({"frames": [pa.py_buffer(b"")]}, "CORRUPT_MESSAGE"),
        ({"frames": []}, "INVALID_REQUEST"),
        ({"frames": [untyped_frame([b"1"]), untyped_frame([b"2"])]}, "INVALID_REQUEST"),
        ({"frames": [untyped_frame([b"later"], timestamp_ms=2**50)]}, "INVALID_TIMESTAMP"),
        ({"frames": [big_frame(17 << 20)]}, "MESSAGE_TOO_LARGE"),
    ],
)
def test_refused_produce_request_is_answered_with_a_code_and_the_stream_continues(
    shared: Server, fields: dict[str, object], code: str
) -> None:
    """Errors are typed and have a code; nothing of a refused request is appended."""
    fields = {"frames": [untyped_frame([b"x"])], **fields}
    with shared.connect() as client, ProduceStream(client) as produce:
        before = shared.stored_bytes()
        refused = produce.produce(**fields)  # type: ignore[arg-type]
        assert refused.error is not None
        assert (refused.error.code, refused.base_offset) == (code, -1)
        assert shared.stored_bytes() == before
        assert produce.produce([untyped_frame([b"fine"])], partition=1).error is None


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"offset": 1}, "OFFSET_OUT_OF_RANGE"),
        ({"topic_id": bytes(16)}, "INCONSISTENT_TOPIC_ID"),
        ({"topic": "nope"}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"partition": 9}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"leader_epoch": 2}, "FENCED_LEADER_EPOCH"),
        ({"leader_epoch": 4}, "UNKNOWN_LEADER_EPOCH"),
    ],
)
def test_refused_partition_of_a_fetch_holds_up_no_other(shared: Server, changes: dict[str, object], code: str) -> None:
    """Each refused partition has a typed error, sent at once, beside the data of the others."""
    with shared.connect() as client, ProduceStream(client) as produce, FetchSession(client) as fetch:
        at = produce.produce([untyped_frame([b"a", b"b"])], partition=1).base_offset
        wrong = FetchPartition(**{"topic": "untyped", "partition": 0, "topic_id": UNTYPED_ID, "offset": 0, **changes})
        empty = FetchPartition(topic="typed", partition=0, topic_id=TOPICS["typed"][0].bytes, offset=0)
        response, cells = fetch.fetch(wrong, partition(at, 1), empty, max_wait_ms=60_000, min_bytes=1 << 30)
        codes = [answer.error.code if answer.error else "" for answer in response.partitions]
        assert sorted(codes) == ["", code]
        assert values(cells) == [b"a", b"b"]


def test_long_poll_answers_as_soon_as_there_is_data_and_sends_heartbeats_meanwhile(server: Server) -> None:
    """W16: a long poll answers as soon as there is data, and sends heartbeats meanwhile."""
    with server.connect() as client, ProduceStream(client) as produce, FetchSession(client) as fetch:
        response, cells = fetch.fetch(partition(0), max_wait_ms=3_500)
        assert (response.partitions, cells) == ((), [])
        assert 1 <= fetch.heartbeats <= 3, "one each second, fewer where the machine is busy"
        fetch.ask(partition(0), partition(0, 1), max_wait_ms=60_000)
        produce.produce([untyped_frame([b"now"])], partition=1)
        response, cells = fetch.answer()
        assert values(cells) == [b"now"]
        assert response.partitions[0].partition == 1


def test_byte_limits_hold_and_starve_no_partition(server: Server) -> None:
    """Byte limits hold, and each request begins with another partition."""
    with server.connect() as client, ProduceStream(client) as produce, FetchSession(client) as fetch:
        for number in (0, 1):
            for _ in range(3):
                produce.produce([untyped_frame([bytes(5000)])], partition=number)
        seen = []
        for _ in range(4):
            response, cells = fetch.fetch(partition(0), partition(0, 1), max_bytes=100)
            assert len(values(cells)) == 1, "one frame, though it is larger than the limit"
            seen += [answer.partition for answer in response.partitions if answer.row == 0]
        assert sorted(seen) == [0, 0, 1, 1]
        response, cells = fetch.fetch(partition(1), partition(2, 1), max_bytes=1 << 20)
        assert sorted(len(values([cell])) for cell in cells) == [1, 2]


def test_fetch_and_read_omit_columns_that_were_not_requested(server: Server) -> None:
    """S8: only the columns asked for leave the broker."""
    rows = 20_000
    batch = pa.record_batch({"carrier": ["carrier"] * rows, "delay": pa.array(range(rows), pa.int32())})
    frame = encode_frame(batch, TYPED, timestamps=1)
    typed_id = TOPICS["typed"][0].bytes
    with server.connect() as client, ProduceStream(client) as produce, FetchSession(client) as fetch:
        produce.produce([frame], topic="typed")
        wanted = FetchPartition(topic="typed", partition=0, topic_id=typed_id, offset=0, columns=(1,))
        _, (cell,) = fetch.fetch(wanted)
        assert cell.size < frame.size * 2 // 3
        decoded = decode_frame(cell, SchemaHistory([TYPED]), columns=(1,), topic_id=typed_id, partition=0)
        assert decoded.batch.column("delay").to_pylist()[-1] == rows - 1
        ((_, (piece,)),) = read(client, topic="typed", partition=0, start=0, columns=(1,))
        assert piece == cell


def test_read_gives_a_range_in_parts_and_refuses_offsets_outside_the_log(server: Server) -> None:
    """W20: any offset can be read again; a range outside the log is a typed error."""
    with server.connect() as client, ProduceStream(client) as produce:
        assert [
            (answer.next_offset, cells) for answer, cells in read(client, topic="untyped", partition=0, start=0)
        ] == [(0, [])]
        for n in range(10):
            produce.produce([untyped_frame([b"%d" % n] * 10)])
        pieces = read(client, topic="untyped", partition=0, start=25, end=71, batch_bytes=1)
        assert [answer.next_offset for answer, _ in pieces] == [30, 40, 50, 60, 70, 80]
        assert {(answer.start, answer.end) for answer, _ in pieces} == {(25, 71)}
        for start, end in ((0, 101), (101, -1), (5, 4)):
            with pytest.raises(errors.OffsetOutOfRangeError, match="0 to 100 are here"):
                read(client, topic="untyped", partition=0, start=start, end=end)
        with pytest.raises(errors.InconsistentTopicIdError):
            read(client, topic="untyped", partition=0, start=0, topic_id=bytes(16))


def test_other_protocol_version_is_named(shared: Server) -> None:
    """Other protocol versions are a typed error."""
    with shared.connect() as client:
        with pytest.raises(errors.UnsupportedVersionError, match="version 7, this side 1"):
            FetchSession(client, FetchHello(protocol_version=7)).fetch(partition(0))
        stream = ProduceStream(client, ProduceHello(protocol_version=7))
        assert isinstance(stream.end(), errors.UnsupportedVersionError)
        with pytest.raises(flight.FlightServerError, match="version 2, this side 1"):
            client.do_get(flight.Ticket(b"pylog.read.2whatever"), OPTIONS).read_all()


def test_message_that_cannot_be_decoded_ends_the_stream_after_earlier_answers(server: Server) -> None:
    """Garbage ends a produce stream with a typed error; earlier requests are acknowledged."""
    with server.connect() as client:
        stream = ProduceStream(client)
        stream.send([untyped_frame([b"x"])])
        stream.writer.write_with_metadata(frames_batch([untyped_frame([b"y"])]), pa.py_buffer(b"\xc1"))
        assert stream.answer().base_offset == 0
        with pytest.raises(errors.InvalidRequestError, match="not a ProduceRequest"):
            stream.answer()


def test_wrong_stream_schema_is_refused(shared: Server) -> None:
    """A request of a wrong type is a typed error."""
    with shared.connect() as client:
        for schema in (
            pa.schema([("frames", pa.string())]),
            pa.schema([]),
            pa.schema([*FRAMES_SCHEMA, ("x", pa.int8())]),
        ):
            descriptor = flight.FlightDescriptor.for_command(b"pylog.produce.1\x80")
            writer, _ = client.do_put(descriptor, schema, OPTIONS)
            with pytest.raises(flight.FlightServerError, match="one binary column") as raised:
                writer.close()
            assert isinstance(from_flight_error(raised.value, "server"), errors.InvalidRequestError)


def test_defect_shows_its_traceback_in_the_log_and_never_to_the_peer(shared: Server) -> None:
    """Errors travel as codes, never as tracebacks."""
    with pytest.raises(errors.UnknownServerError) as raised:
        shared.act("describe_log_dirs", requests.DescribeLogDirsRequest())
    assert "secret" not in str(raised.value)
    log = shared.log.read_text()
    assert "ZeroDivisionError: secret of the broker" in log
    assert 'fail call kind="action describe_log_dirs" ' in log


def test_unknown_action_names_those_that_exist(shared: Server) -> None:
    """An unknown action is a typed error."""
    with shared.connect() as client:
        for name, body, kind, text in (
            ("format_disk", b"", errors.InvalidRequestError, "create_topic"),
            ("metadata", b"\xc1", errors.InvalidRequestError, "ActionRequest"),
            ("create_topic", b"\x81\xa4body\x81\xa4name\xa1x", errors.NotSupportedError, "create_topic"),
        ):
            with pytest.raises(flight.FlightError) as raised:
                list(client.do_action(flight.Action(name, body), OPTIONS))
            error = from_flight_error(raised.value, "server")
            assert isinstance(error, kind)
            assert text in error.message


def test_streams_beyond_the_limit_are_refused_as_retriable_before_any_work(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Beyond 1,000 streams per broker, refusals are retriable."""
    with serving(tmp_path_factory.mktemp("few") / "data", max_streams=2) as server, server.connect() as client:
        with FetchSession(client) as one, FetchSession(client) as two:
            for session in (one, two):
                session.fetch(partition(0), max_wait_ms=0)
            stream = ProduceStream(client)
            with pytest.raises(errors.TooManyStreamsError, match=r"max\.connections is 2"):
                stream.produce([untyped_frame([b"x"])])
        wait_until(lambda: not server.open_streams(), "both are closed", SOON_S)
        with ProduceStream(client) as stream:
            assert stream.produce([untyped_frame([b"x"])]).base_offset == 0


def test_stop_is_bounded_and_ends_waiting_readers(server: Server) -> None:
    """Shutdown is bounded; a waiting reader and idle streams do not delay it."""
    with server.connect() as client:
        waiting, idle, produce = FetchSession(client), FetchSession(client), ProduceStream(client)
        idle.fetch(partition(0), max_wait_ms=0)
        produce.produce([untyped_frame([b"x"])], partition=1)
        waiting.ask(partition(0), max_wait_ms=60_000)
        wait_until(lambda: server.open_streams() == ["fetch", "fetch", "produce"], "three streams", SOON_S)
        server.process.signal(signal.SIGTERM)
        response, _ = waiting.answer()
        assert response.partitions[0].error is not None
        assert response.partitions[0].error.code == "NOT_LEADER_OR_FOLLOWER"
        assert server.process.wait(10) == 0
        assert '"stopped": true' in server.output.read_text()


def test_second_server_on_the_same_port_is_refused_with_the_owner(shared: Server) -> None:
    """PORT_IN_USE names the owner of the port."""
    from broker_runtime.ports import require_free_port

    with pytest.raises(errors.PortInUseError, match=f"{shared.port} is taken by pid {shared.process.pid}"):
        require_free_port("127.0.0.1", shared.port)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    require_free_port("127.0.0.1", port)


def test_many_readers_wait_at_once_and_all_are_woken(server: Server) -> None:
    """W6, W15: a reader costs the broker a thread and no polling; one append wakes all of them."""
    with server.connect() as client, ProduceStream(client) as produce:
        sessions = [FetchSession(client) for _ in range(40)]
        for session in sessions:
            session.ask(partition(0), max_wait_ms=60_000)
        wait_until(lambda: server.open_streams().count("fetch") == 40, "all are open", SOON_S)
        busy_s = server.cpu_s
        threading.Event().wait(2.0)  # the time in which nothing happens is what is tested
        assert server.cpu_s - busy_s < 1.0
        produce.produce([untyped_frame([b"all"])])
        assert [values(session.answer()[1]) for session in sessions] == [[b"all"]] * 40
        for session in sessions:
            session.writer.close()
