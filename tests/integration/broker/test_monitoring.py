"""Every metric of the table is in what real brokers say after real work, and says what happened."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyarrow import flight

from broker_runtime.contract.flight import read_ticket
from broker_runtime.contract.streams import ReadRequest
from broker_runtime.metrics.table import METRICS
from examples.monitoring.__main__ import expressions
from pyspark_log import Admin, Consumer, Producer, TopicPartition, read
from pyspark_log.testing import LocalCluster
from tests.waiting import wait_until

LIMIT_S = 90.0
RECORDS = 50
WITHOUT_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
Sample = tuple[str, tuple[tuple[str, str], ...]]
"""A series: its name, and its labels, sorted."""


class Watched:
    """A cluster whose brokers tell how they are."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def scrape(self) -> dict[Sample, float]:
        """The series of all brokers that run, summed."""
        found: dict[Sample, float] = {}
        for broker in self.cluster.broker_ids:
            with (
                suppress(OSError),
                WITHOUT_PROXY.open(f"http://{self.cluster.http_address(broker)}/metrics", timeout=20) as answer,
            ):
                for family in text_string_to_metric_families(answer.read().decode()):
                    for sample in family.samples:
                        at = (sample.name, tuple(sorted(sample.labels.items())))
                        found[at] = found.get(at, 0) + sample.value
        return found

    def value(self, name: str, **labels: str) -> float | None:
        return self.scrape().get((f"pylog_{name}", tuple(sorted(labels.items()))))


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    """Two brokers that have served a producer, a consumer group, a transaction, a read, a plain reader, and each other;
    a transaction is open, and the group has records before it."""
    with (
        LocalCluster(brokers=2, settings={"http.listener": "127.0.0.1:0"}) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
        Producer(cluster.bootstrap_servers) as producer,
        Producer(cluster.bootstrap_servers, transactional_id="watched") as transactional,
    ):
        for topic in ("t", "open"):
            admin.create_topic(topic, replication_factor=2)
        for number in range(RECORDS):
            producer.send("t", b"%d" % number)
        producer.flush(30)
        with Consumer(
            "t", bootstrap_servers=cluster.bootstrap_servers, group_id="g", auto_offset_reset="earliest"
        ) as consumer:
            seen = 0
            while seen < RECORDS:
                seen += len(consumer.poll(10))
            consumer.commit()
        assert sum(batch.num_rows for batch in read("t", bootstrap_servers=cluster.bootstrap_servers)) == RECORDS
        beyond = read_ticket(ReadRequest(topic="t", partition=0, start=10**6))
        for broker in cluster.bootstrap_servers.split(","):
            with flight.FlightClient(f"grpc://{broker}") as plain, suppress(flight.FlightError):
                for endpoint in plain.get_flight_info(flight.FlightDescriptor.for_path("t")).endpoints:
                    plain.do_get(endpoint.ticket).read_all()
                plain.do_get(beyond).read_all()
        with transactional.transaction():
            transactional.send("t", b"committed")
        for _ in range(3):
            producer.send("t", b"after the group")
        producer.flush(30)
        transactional.begin_transaction()
        transactional.send("open", b"not yet").result(30)
        yield Watched(cluster)
        transactional.abort_transaction()


def test_lag_of_a_group_is_said_by_one_broker(watched: Watched) -> None:
    """In offsets, those of the transaction's begin and end among them, and in seconds; also without any member."""
    at = {"group": "g", "topic": "t", "partition": "0"}
    wait_until(lambda: (watched.value("group_lag_records", **at) or 0) >= 6, "the lag is looked at", LIMIT_S)
    assert watched.value("group_lag_records", **at) == 6
    lag_s = watched.value("group_lag_seconds", **at)
    assert lag_s is not None
    assert 0 < lag_s < 2 * LIMIT_S
    assert watched.value("groups") == 1
    assert watched.value("group_partitions_omitted") == 0
    with Admin(watched.cluster.bootstrap_servers) as admin:
        [offset] = admin.list_group_offsets("g").values()
        assert offset.lag == 6, "the administrator sees the same"
        admin.alter_group_offsets("g", {TopicPartition("t", 0): RECORDS + 6})
    wait_until(lambda: watched.value("group_lag_records", **at) == 0, "it is caught up", LIMIT_S)
    assert watched.value("group_lag_seconds", **at) == 0


def test_open_transaction_has_an_age(watched: Watched) -> None:
    """Of the broker that leads its partition."""
    assert watched.value("open_transactions") == watched.value("open_transaction_partitions") == 1
    before = watched.value("oldest_transaction_seconds")
    assert before is not None
    assert before > 0
    assert (watched.value("oldest_transaction_seconds") or 0) > before


def test_requests_have_parts_and_errors(watched: Watched) -> None:
    """Produce and fetch, of clients and followers; what a read and the plain dialect were refused."""
    found = watched.scrape()

    def count(request: str, part: str) -> float:
        return found.get(("pylog_request_part_seconds_count", (("part", part), ("request", request))), 0)

    for part in ("queue", "local", "remote", "response"):
        assert count("produce", part) >= 3, part
    for request in ("fetch", "follower"):
        for part in ("local", "remote", "response"):
            assert count(request, part) >= 1, (request, part)
    assert found["pylog_request_errors_total", (("code", "OFFSET_OUT_OF_RANGE"), ("request", "read"))] >= 1
    assert found["pylog_request_seconds_count", (("request", "read"),)] >= 1
    assert found["pylog_request_seconds_count", (("request", "plain-get"),)] >= 1
    assert found["pylog_request_seconds_count", (("request", "flight-info"),)] >= 1


def test_topics_have_sizes(watched: Watched) -> None:
    """Those of both replicas."""
    wait_until(lambda: (watched.value("topic_size_bytes", topic="t") or 0) > 0, "the sizes are looked at", LIMIT_S)
    sent = watched.value("topic_bytes_in_total", topic="t")
    assert sent is not None
    wait_until(lambda: (watched.value("topic_size_bytes", topic="t") or 0) >= 2 * sent, "all is there", LIMIT_S)


def test_every_metric_is_in_a_real_scrape(watched: Watched) -> None:
    """Nothing in the table is never said; nothing is said that is not in the table."""
    wait_until(lambda: watched.value("groups") is not None, "the lag is looked at", LIMIT_S)
    wait_until(lambda: watched.value("topic_size_bytes", topic="t") is not None, "the sizes, too", LIMIT_S)
    names = {name for name, _ in watched.scrape() if name.startswith("pylog_")}
    wanted = {
        f"{each.series}{end}"
        for each in METRICS.values()
        for end in (("_bucket", "_count", "_sum") if each.kind == "histogram" else ("",))
    }
    assert names == wanted
    asked = {name for each in expressions() for name in re.findall(r"\b(?:pylog|process)_\w+", each)}
    assert asked <= {name for name, _ in watched.scrape()}, "dashboards and alerts find everything that they ask for"
    for series, labels in watched.scrape():
        name = series.removeprefix("pylog_").removesuffix("_total")
        if name in METRICS and METRICS[name].kind != "histogram":
            assert tuple(label for label, _ in labels) == tuple(sorted(METRICS[name].labels)), series


def test_elections_and_in_sync_sets_are_counted(watched: Watched) -> None:
    """A broker dies and comes back: its replicas leave the in-sync sets and join them again. Last: it ends the rest."""
    assert (watched.value("leader_elections_total", kind="new") or 0) >= 2
    assert (watched.value("controller_elections_total") or 0) >= 1
    before = watched.value("isr_expands_total") or 0
    [dead] = [each for each in watched.cluster.broker_ids if each != _controller(watched)]
    clean = watched.value("leader_elections_total", kind="clean") or 0
    watched.cluster.kill(dead)
    watched.cluster.start(dead)
    watched.cluster.wait_until_ready()
    wait_until(lambda: (watched.value("isr_expands_total") or 0) > before, "it is in sync again", LIMIT_S)
    assert (watched.value("leader_elections_total", kind="clean") or 0) >= clean
    assert watched.value("leader_elections_total", kind="unclean") == 0


def _controller(watched: Watched) -> int:
    for broker in watched.cluster.broker_ids:
        address = f"http://{watched.cluster.http_address(broker)}/metrics"
        with WITHOUT_PROXY.open(address, timeout=20) as answer:
            if b"pylog_controller 1.0" in answer.read():
                return broker
    raise AssertionError("nobody is the controller")
