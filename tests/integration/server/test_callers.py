"""Every service and the log know a caller by client id and address."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from broker_runtime.contract import requests, streams
from broker_runtime.contract.actions import ACTIONS
from broker_runtime.contract.errors import InvalidRequestError
from broker_runtime.contract.flight import CLIENT_HEADER, encode_action, read_ticket
from broker_runtime.services.fetch import FetchService
from broker_runtime.services.plain import PlainService
from broker_runtime.services.produce import ProduceService
from broker_runtime.services.read import ReadService
from tests.integration.server.serving import CLUSTER_ID, TOPICS, Server, serving, untyped_frame
from tests.integration.server.streams import FetchSession, ProduceStream
from tests.waiting import wait_until

_KEY = requests.PartitionKey(topic="t", partition=0)
_FIELDS: dict[str, dict[str, Any]] = {
    "create_topic": {"name": "t"},
    "delete_topic": {"name": "t"},
    "create_partitions": {"name": "t", "total": 2},
    "create_acls": {"acls": ()},
    "delete_acls": {"filters": ()},
    "alter_quotas": {"changes": ()},
    "add_columns": {"name": "t", "schema": b""},
    "alter_config": {"topic": "t", "changes": {}},
    "list_offsets": {"queries": ()},
    "delete_records": {"deletions": ()},
    "commit_offsets": {"group_id": "g", "offsets": ()},
    "fetch_offsets": {"group_id": "g"},
    "find_coordinator": {"group_id": "g"},
    "group_heartbeat": {"group_id": "g", "member_id": "m", "member_epoch": 0},
    "describe_group": {"group_id": "g"},
    "alter_group_offsets": {"group_id": "g", "offsets": ()},
    "delete_group": {"group_id": "g"},
    "remove_group_members": {"group_id": "g", "members": ("m",)},
    "reassign_partitions": {"moves": ()},
    "describe_replicas": {"partitions": (_KEY,)},
    "decommission_broker": {"broker_id": 1},
    "report_broker": {"broker_id": 1},
    "log_ends": {"partitions": (_KEY,)},
    "describe_lag": {"queries": ()},
    "begin_transaction": {"transactional_id": "a", "run_id": "r"},
    "end_transaction": {"transactional_id": "a", "run_id": "r", "epoch": 0, "batch_id": 0, "is_commit": False},
    "abort_transactions": {"transactional_id": "a"},
    "finish_transactions": {"transactional_id": "a", "epoch": 0, "batch_id": 0, "partitions": ()},
}
ENTRIES = [
    f"{kind.__name__}.{name}"
    for kind in (ProduceService, FetchService, ReadService, PlainService)
    for name, _ in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_")
]
_OF_FOLLOWERS = {"FetchService.follower_session"}  # see their test


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that records its callers."""
    with serving(tmp_path_factory.mktemp("callers") / "data", notes_callers=True) as server:
        yield server


def act(server: Server, name: str, client_id: str) -> None:
    """Sends one action under that client id; its answer does not matter."""
    request = ACTIONS[name].request(**_FIELDS.get(name, {}))
    with server.connect() as client:
        list(client.do_action(encode_action(name, request, client_id=client_id), flight.FlightCallOptions(timeout=20)))


def is_client(noted: dict[str, Any], client_id: str) -> bool:
    """Whether a client on this machine, which proved no identity, was the caller."""
    is_address = re.fullmatch(r"127\.0\.0\.1:\d+", noted.pop("address"))
    return is_address is not None and noted == {
        "type": "Caller",
        "principal": "ANONYMOUS",
        "client_id": client_id,
        "listener": "PLAINTEXT",
        "is_broker": False,
        "credential": "",
        "expires_ms": 0,
    }


def logged(server: Server, start: str) -> list[str]:
    """The log lines of that event, without level and logger."""
    return [line for each in server.log.read_text().splitlines() if (line := each.split(":", 2)[-1]).startswith(start)]


@pytest.mark.parametrize("name", ACTIONS)
def test_each_action_gets_its_caller(server: Server, name: str) -> None:
    """The caller is taken from the envelope and the connection's address."""
    act(server, name, f"app {name}")
    if name == "describe_config":  # which reports it, and so is called again
        server.callers()
        assert is_client(server.callers()[name], "")
    else:
        assert is_client(server.callers()[name], f"app {name}")


@pytest.mark.parametrize("name", ACTIONS)
def test_action_for_another_cluster_is_refused(server: Server, name: str) -> None:
    """The client means a broker that had this address before; nothing is done, and it may ask another one."""
    act(server, name, "ours")  # which does not say
    request = ACTIONS[name].request(**_FIELDS.get(name, {}))
    action = encode_action(name, request, client_id="theirs", cluster_id="another one")
    with server.connect() as client:
        with pytest.raises(flight.FlightUnavailableError, match=f"cluster {CLUSTER_ID}, not of another one"):
            list(client.do_action(action, flight.FlightCallOptions(timeout=20)))
        if name != "describe_config":  # which reports the callers
            assert is_client(server.callers()[name], "ours")
        action = encode_action(name, request, client_id="ours too", cluster_id=CLUSTER_ID)
        list(client.do_action(action, flight.FlightCallOptions(timeout=20)))


def test_each_entry_point_of_the_streams_gets_its_caller(server: Server) -> None:
    """Every public method behind produce streams, fetch sessions, reads and the plain dialect gets its caller."""
    options = flight.FlightCallOptions(timeout=20, headers=[(CLIENT_HEADER.encode(), b"plain client")])
    partition = streams.FetchPartition(topic="untyped", partition=0, topic_id=TOPICS["untyped"][0].bytes, offset=0)
    with server.connect() as client:
        with ProduceStream(client, streams.ProduceHello(client_id="loader")) as produce:
            assert produce.produce([untyped_frame([b"a"])]).error is None
        noted = server.callers()
        for name in ("ProduceService.append", "ProduceService.complete"):
            assert is_client(noted[name], "loader")
        with FetchSession(client, streams.FetchHello(client_id="reader")) as fetch:
            assert fetch.fetch(partition)[1]
        request = streams.ReadRequest(client_id="range reader", topic="untyped", partition=0, start=0)
        client.do_get(read_ticket(request), flight.FlightCallOptions(timeout=20)).read_all()
        noted = server.callers()
        for name in ("ReadService.plan", "ReadService.pieces"):
            assert is_client(noted[name], "range reader")
        batch = pa.record_batch({"value": [b"b"]})
        writer, reader = client.do_put(flight.FlightDescriptor.for_path("untyped"), batch.schema, options)
        writer.write_batch(batch)
        assert reader.read() is not None
        writer.close()
        list(client.list_flights(options=options))
        info = client.get_flight_info(flight.FlightDescriptor.for_path("untyped"), options)
        client.get_schema(flight.FlightDescriptor.for_path("untyped"), options)
        client.do_get(info.endpoints[0].ticket, options).read_all()
    noted = server.callers()
    assert is_client(noted["metadata"], "plain client"), "asked for the leaders"
    for entry in ENTRIES:
        if entry.startswith("PlainService"):
            assert is_client(noted[entry], "plain client"), entry
        elif entry == "FetchService.fetch":
            assert is_client(noted[entry], "reader")
        elif entry not in _OF_FOLLOWERS:
            assert entry in noted


def test_follower_is_known_as_the_broker_whose_identity_it_proved(server: Server) -> None:
    hello = streams.FetchHello(client_id="broker-2", replica_id=2, broker_epoch=5)
    with server.connect() as client, FetchSession(client, hello) as fetch:
        fetch.fetch()
    noted = server.callers()["FetchService.follower_session"]
    assert (noted["type"], noted["client_id"], noted["broker_id"], noted["broker_epoch"]) == (
        "BrokerCaller",
        "broker-2",
        2,
        5,
    )
    (opened,) = logged(server, "open stream kind=follower")
    assert re.fullmatch(r"open stream kind=follower broker=2 client_id=broker-2 address=127\.0\.0\.1:\d+", opened)


def test_stream_openings_and_endings_are_logged(server: Server) -> None:
    """The log names a stream's caller, and what ended the stream."""
    name = "nightly load"
    with server.connect() as client:
        with ProduceStream(client, streams.ProduceHello(client_id=name)) as produce:
            assert produce.produce([untyped_frame([b"a"])], partition=1).error is None
            (opened,) = logged(server, 'open stream kind=produce client_id="nightly load" ')
        fetch = FetchSession(client, streams.FetchHello(client_id=name))
        fetch.writer.write_metadata(pa.py_buffer(b"\xc1"))
        with pytest.raises(InvalidRequestError, match="not a FetchRequest"):
            fetch.answer()
        with pytest.raises(flight.FlightServerError):
            fetch.writer.close()
    closed = f'close stream kind=produce client_id="nightly load" {opened.rpartition(" ")[2]} open_s='
    wait_until(lambda: len(logged(server, closed)) == 1, "the end of the stream is logged")
    closed = 'close stream kind=fetch client_id="nightly load" '
    wait_until(lambda: len(logged(server, closed)) == 1, "and that the other has")
    assert 'error="[INVALID_REQUEST] not a FetchRequest: ' in logged(server, closed)[0]


@pytest.mark.parametrize(
    ("client_id", "shown"),
    [
        ("a\nERROR:broker_runtime:fail call", r'"a\nERROR:broker_runtime:fail call"'),
        ("\x1b[2J\u202e", r'"\x1b[2J\u202e"'),
        ("x" * 300_000, "x" * 254 + "…"),
        ("", '""'),
    ],
    ids=["two lines", "terminal", "long", "none"],
)
def test_client_id_that_would_break_the_log_is_shown_escaped_and_cut(
    server: Server, client_id: str, shown: str
) -> None:
    """A client id is only a name, so no client is refused for it."""
    with server.connect() as client, ProduceStream(client, streams.ProduceHello(client_id=client_id)) as produce:
        assert produce.produce([untyped_frame([b"a"])], partition=1).error is None
        assert server.callers()["ProduceService.append"]["client_id"] == (
            client_id if len(client_id) < 256 else "x" * 254 + "…"
        )
    assert len(logged(server, f"open stream kind=produce client_id={shown} address=127.0.0.1:")) == 1
    assert not [line for line in server.log.read_text().splitlines() if line.startswith("ERROR:")]
