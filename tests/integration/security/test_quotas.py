"""Quotas on a real broker: clients over them are slowed, are told so, and lose nothing; others are not.

Times have lower bounds only: a rate that is kept cannot have been quicker, however busy the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from broker_runtime.contract.errors import TooManyStreamsError
from broker_runtime.contract.flight import CLIENT_HEADER, STREAM_OPTIONS, message_of, read_ticket
from broker_runtime.contract.frame import split_into_frames
from broker_runtime.contract.schema import UNTYPED
from broker_runtime.contract.streams import FetchHello, FetchPartition, ProduceHello, ReadRequest, ReadResponse
from pyspark_log import Admin, Consumer, Producer, QuotaEntity, read
from pyspark_log.testing import LocalCluster
from tests.integration.broker.test_metrics import samples
from tests.integration.server import streams
from tests.waiting import wait_until

MB = 1_000_000
RATE = 500_000
FRAMES = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, settings={"http.listener": "127.0.0.1:0"}) as made:
        yield made


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers, client_id="operator") as made:
        yield made


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin.create_topic(name)
    return name


@pytest.fixture
def greedy() -> str:
    """A client id of the test's own: tests share the broker."""
    return f"greedy-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[flight.FlightClient]:
    with flight.FlightClient(f"grpc://{cluster.bootstrap_servers}", generic_options=STREAM_OPTIONS) as made:
        yield made


def limit(cluster: LocalCluster, admin: Admin, entity: QuotaEntity, **limits: float | None) -> None:
    """In force when it returns: the broker that decided it has read it."""
    admin.alter_quotas({entity: limits})
    wanted = {name: value for name, value in limits.items() if value is not None}
    wait_until(
        lambda: all(
            quota.limits.items() >= wanted.items() for quota in admin.describe_quotas() if quota.entity == entity
        ),
        "the quota is listed",
    )
    time.sleep(0.5)  # the promise is a second; what a broker changes itself it reads at once


def throttled_s(cluster: LocalCluster, name: str) -> float:
    return samples(cluster, cluster.broker_ids[0]).get(("throttle_seconds_total", name), 0.0)


def frame_of(size_bytes: int) -> list[pa.Buffer]:
    batch = pa.record_batch({"key": pa.nulls(1, pa.binary()), "value": [os.urandom(size_bytes)]})
    return list(split_into_frames(batch, UNTYPED, timestamps=1, max_bytes=16 << 20))


def test_producer_over_its_rate_is_slowed_and_everything_arrives(
    cluster: LocalCluster, admin: Admin, topic: str, greedy: str
) -> None:
    """Its own client knows nothing of quotas, and need not."""
    limit(cluster, admin, QuotaEntity(client_id=greedy), producer_byte_rate=RATE)
    before, began = throttled_s(cluster, "producer_byte_rate"), time.monotonic()
    with Producer(cluster.bootstrap_servers, client_id=greedy, batch_size=100_000) as producer:
        for number in range(200):
            producer.send(topic, number.to_bytes(4, "big") + os.urandom(10_000))
        producer.flush(120)
    assert time.monotonic() - began >= (2 * MB - RATE - 100_000) / RATE * 0.9
    values = [row for batch in read(topic, bootstrap_servers=cluster.bootstrap_servers) for row in batch["value"]]
    assert [int.from_bytes(value.as_py()[:4], "big") for value in values] == list(range(200))
    assert throttled_s(cluster, "producer_byte_rate") - before >= 1.5


def test_answers_say_how_long_and_others_are_not_slowed(
    cluster: LocalCluster, admin: Admin, client: flight.FlightClient, topic: str, greedy: str
) -> None:
    """The broker shows that it is alive meanwhile, and what was sent is acknowledged before the wait."""
    limit(cluster, admin, QuotaEntity(client_id=greedy), producer_byte_rate=RATE)
    frames = frame_of(RATE * 3)
    with (
        streams.ProduceStream(client, ProduceHello(client_id=greedy)) as over,
        streams.ProduceStream(client, ProduceHello(client_id="modest")) as modest,
    ):
        first = over.produce(frames, topic=topic)
        assert first.error is None
        assert 1_500 <= first.throttle_ms <= 2_500
        over.send(frames, topic=topic)
        assert modest.produce(frames, topic=topic).throttle_ms == 0
        second = over.answer()
        assert second.error is None
        assert second.base_offset in (1, 2)
        assert second.throttle_ms > first.throttle_ms
        assert over.heartbeats, "otherwise it would take the broker for dead"
        answered = time.monotonic()
    # Whoever comes back in another stream still owes.
    with streams.ProduceStream(client, ProduceHello(client_id=greedy)) as again:
        assert again.produce(frame_of(1), topic=topic).error is None
    assert time.monotonic() - answered >= second.throttle_ms / 1000 * 0.9


def test_fetches_and_reads_over_the_rate_are_slowed_and_complete(
    cluster: LocalCluster, admin: Admin, client: flight.FlightClient, topic: str, greedy: str
) -> None:
    """A consumer, a range read by this protocol, and ordinary Flight clients."""
    with streams.ProduceStream(client, ProduceHello(client_id="modest")) as modest:
        for _ in range(FRAMES):
            assert modest.produce(frame_of(RATE), topic=topic).error is None
    limit(cluster, admin, QuotaEntity(client_id=greedy), consumer_byte_rate=RATE)
    least_s = (FRAMES - 2) * 0.9
    topic_id = admin.describe_topic(topic).topic_id.bytes

    began = time.monotonic()
    with streams.FetchSession(client, FetchHello(client_id=greedy)) as session:
        offset, throttle_ms = 0, []
        while offset < FRAMES:
            wanted = FetchPartition(topic=topic, partition=0, topic_id=topic_id, offset=offset)
            response, frames = session.fetch(wanted)
            assert len(frames) <= 1, "no more at once than a second of the quota"
            offset = response.partitions[0].next_offset
            throttle_ms.append(response.throttle_ms)
    assert time.monotonic() - began >= least_s
    assert throttle_ms[-1] > 500

    began = time.monotonic()
    parts = streams.read(client, client_id=greedy, topic=topic, partition=0, start=0)
    assert time.monotonic() - began >= least_s
    assert parts[-1][0].next_offset == FRAMES
    assert parts[-1][0].throttle_ms > 500

    assert throttled_s(cluster, "consumer_byte_rate") > 2
    began = time.monotonic()
    with Consumer(
        topic, bootstrap_servers=cluster.bootstrap_servers, client_id=greedy, auto_offset_reset="earliest"
    ) as consumer:
        seen = 0
        while seen < FRAMES:
            seen += sum(each.batch.num_rows for each in consumer.poll_batches(30))
    assert time.monotonic() - began >= least_s
    assert seen == FRAMES


def test_ordinary_flight_clients_have_the_quota_of_their_user(
    cluster: LocalCluster, admin: Admin, client: flight.FlightClient, topic: str
) -> None:
    """They give no client id; on a listener that asks nobody their user is ANONYMOUS."""
    batch = pa.record_batch({"value": [os.urandom(RATE)]})
    options = flight.FlightCallOptions(timeout=60)
    entity = QuotaEntity(user="ANONYMOUS", client_id="<default>")
    limit(cluster, admin, entity, producer_byte_rate=RATE, consumer_byte_rate=RATE)
    try:
        began, before = time.monotonic(), throttled_s(cluster, "producer_byte_rate")
        writer, reader = client.do_put(flight.FlightDescriptor.for_path(topic), batch.schema, options)
        for _ in range(FRAMES):
            writer.write_batch(batch)
            assert reader.read() is not None
        writer.close()
        assert time.monotonic() - began >= (FRAMES - 2) * 0.9
        assert throttled_s(cluster, "producer_byte_rate") > before
        began, before = time.monotonic(), throttled_s(cluster, "consumer_byte_rate")
        info = client.get_flight_info(flight.FlightDescriptor.for_path(topic), options)
        table = client.do_get(info.endpoints[0].ticket, options).read_all()
        assert table.num_rows == FRAMES
        assert time.monotonic() - began >= (FRAMES - 2) * 0.9
        assert throttled_s(cluster, "consumer_byte_rate") > before
    finally:
        admin.alter_quotas({entity: {"producer_byte_rate": None, "consumer_byte_rate": None}})


def test_actions_over_their_share_of_the_processor_are_slowed_and_answered(
    cluster: LocalCluster, admin: Admin, greedy: str
) -> None:
    """One thousandth of a core: each metadata request takes as much as many seconds give."""
    limit(cluster, admin, QuotaEntity(client_id=greedy), request_percentage=0.1)
    before = throttled_s(cluster, "request_percentage")
    with Admin(cluster.bootstrap_servers, client_id=greedy) as slowed:
        wait_until(
            lambda: slowed.describe_cluster().brokers and throttled_s(cluster, "request_percentage") - before > 0.5,
            "the client is slowed",
        )


@pytest.mark.parametrize(
    "call", ["list_flights", "get_flight_info", "get_schema", "list_actions", "do_get", "do_put", "do_exchange"]
)
def test_calls_of_every_kind_are_slowed(
    cluster: LocalCluster, admin: Admin, client: flight.FlightClient, topic: str, greedy: str, call: str
) -> None:
    """What is left of the quota is spent by a second's worth of any of them, and the next ones wait."""
    limit(cluster, admin, QuotaEntity(client_id=greedy), request_percentage=0.01)
    topic_id = admin.describe_topic(topic).topic_id.bytes
    named = flight.FlightCallOptions(timeout=60, headers=[(CLIENT_HEADER.encode(), greedy.encode())])
    path = flight.FlightDescriptor.for_path(topic)
    calls = {
        "list_flights": lambda: list(client.list_flights(options=named)),
        "get_flight_info": lambda: client.get_flight_info(path, named),
        "get_schema": lambda: client.get_schema(path, named),
        "list_actions": lambda: client.list_actions(named),
        "do_get": lambda: streams.read(
            client, client_id=greedy, topic=topic, partition=0, topic_id=topic_id, start=0, end=0
        ),
    }

    def open_and_close(stream: streams.ProduceStream | streams.FetchSession) -> None:
        with stream:
            pass

    calls["do_put"] = lambda: open_and_close(streams.ProduceStream(client, ProduceHello(client_id=greedy)))
    calls["do_exchange"] = lambda: open_and_close(streams.FetchSession(client, FetchHello(client_id=greedy)))
    before = throttled_s(cluster, "request_percentage")
    for _ in range(50):  # of at least 10 µs each, where a second has 100 µs
        calls[call]()
        if throttled_s(cluster, "request_percentage") > before:
            break
    assert throttled_s(cluster, "request_percentage") > before


def test_fetches_of_a_session_that_is_open_take_processor_time_and_are_told(
    cluster: LocalCluster, admin: Admin, client: flight.FlightClient, topic: str, greedy: str
) -> None:
    """Not only its beginning, which was before there was a quota."""
    wanted = FetchPartition(topic=topic, partition=0, topic_id=admin.describe_topic(topic).topic_id.bytes, offset=0)
    with streams.ProduceStream(client, ProduceHello(client_id="modest")) as modest:
        assert modest.produce(frame_of(10), topic=topic).error is None
    with streams.FetchSession(client, FetchHello(client_id=greedy)) as session:
        assert session.fetch(wanted)[0].throttle_ms == 0
        limit(cluster, admin, QuotaEntity(client_id=greedy), request_percentage=0.01)
        assert any(session.fetch(wanted)[0].throttle_ms for _ in range(5)), "a second has 100 µs"


def test_streams_over_the_quota_are_refused_until_one_ends(
    cluster: LocalCluster, admin: Admin, client: flight.FlightClient, topic: str, greedy: str
) -> None:
    """Those that are open go on. Our clients come back by themselves."""
    limit(cluster, admin, QuotaEntity(client_id=greedy), max_connections=2)
    hello = ProduceHello(client_id=greedy)
    with ExitStack() as opened:
        two = [opened.enter_context(streams.ProduceStream(client, hello)) for _ in range(2)]
        for each in two:
            assert each.produce(frame_of(10), topic=topic).error is None
        with pytest.raises(TooManyStreamsError, match=f"the quota of client id '{greedy}' is max_connections=2"):
            streams.read(client, client_id=greedy, topic=topic, partition=0, start=0)
        assert two[0].produce(frame_of(10), topic=topic).error is None
        producer = opened.enter_context(Producer(cluster.bootstrap_servers, client_id=greedy))
        sent = producer.send(topic, b"it waits for room")
        two[1].__exit__(None, None, None)
        assert sent.result(60).offset == 3
    count = ("throttled_requests_total", "max_connections")
    assert samples(cluster, cluster.broker_ids[0])[count] >= 1


def test_client_that_leaves_while_it_is_held_back_takes_nothing_with_it(
    cluster: LocalCluster, admin: Admin, topic: str, greedy: str
) -> None:
    """Its stream ends before its time is over."""
    limit(cluster, admin, QuotaEntity(client_id=greedy), producer_byte_rate=1_000)

    def open_streams() -> float:
        return samples(cluster, cluster.broker_ids[0]).get(("streams", "produce"), 0.0)

    program = (
        "from pyspark_log import Producer; import os, sys\n"
        f"producer = Producer({cluster.bootstrap_servers!r}, client_id={greedy!r})\n"
        f"producer.send({topic!r}, os.urandom(1_000_000)).result(60)\n"
        "print('sent', flush=True); sys.stdin.read()"
    )
    before, held_s = open_streams(), throttled_s(cluster, "producer_byte_rate")
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"sent\n"
            assert open_streams() == before + 1
        finally:
            process.kill()
    wait_until(lambda: open_streams() == before, "its stream has ended")
    assert throttled_s(cluster, "producer_byte_rate") - held_s < 20, "a quota of 1 kB/s would hold it for 20 s"


def test_quotas_of_a_user_count_for_all_its_clients_and_outlive_the_broker(
    cluster: LocalCluster, admin: Admin, topic: str
) -> None:
    """They are in ZooKeeper."""
    entity = QuotaEntity(user="<default>", client_id=f"x-{topic}")
    limit(cluster, admin, entity, producer_byte_rate=RATE)
    broker = cluster.broker_ids[0]
    cluster.stop(broker)
    cluster.start(broker)
    cluster.wait_until_ready()
    assert entity in [quota.entity for quota in admin.describe_quotas()]
    with (
        flight.FlightClient(f"grpc://{cluster.bootstrap_servers}", generic_options=STREAM_OPTIONS) as client,
        streams.ProduceStream(client, ProduceHello(client_id=entity.client_id or "")) as stream,
    ):
        assert stream.produce(frame_of(2 * RATE), topic=topic).throttle_ms > 500


def test_broker_that_stops_waits_for_nobody_whom_it_holds_back(tmp_path: Path) -> None:
    """A range read shows nothing while it is held back, and would be found running when the broker's time is over."""
    with LocalCluster(brokers=1, directory=tmp_path) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic("t")
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send("t", os.urandom(MB)).result(60)
            producer.send("t", os.urandom(MB)).result(60)
        limit(cluster, admin, QuotaEntity(client_id="greedy"), consumer_byte_rate=1_000)
        with flight.FlightClient(f"grpc://{cluster.bootstrap_servers}", generic_options=STREAM_OPTIONS) as client:
            ticket = read_ticket(ReadRequest(topic="t", partition=0, start=0, client_id="greedy", batch_bytes=1))
            held = client.do_get(ticket, streams.OPTIONS)
            assert message_of(held.read_chunk().app_metadata, ReadResponse).throttle_ms > 15_000
            cluster.stop(1)
            output = (tmp_path / "broker-1" / "broker.out").read_text()
            assert "stop server" not in output, "it names the calls that are left"
            del held


def test_brokers_have_no_quotas() -> None:
    """A default for all users concerns their clients: what they write is copied as fast as ever."""
    with (
        LocalCluster(brokers=2, settings={"http.listener": "127.0.0.1:0"}) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
    ):
        admin.create_topic("copied", replication_factor=2, config={"min.insync.replicas": "2"})
        everybody = QuotaEntity(user="<default>")
        limit(cluster, admin, everybody, consumer_byte_rate=1_000, request_percentage=0.1)
        with Producer(cluster.bootstrap_servers) as producer:
            for _ in range(3):
                producer.send("copied", os.urandom(MB)).result(60)
        for broker in cluster.broker_ids:
            assert samples(cluster, broker).get(("throttle_seconds_total", "consumer_byte_rate")) == 0.0
