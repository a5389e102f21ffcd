"""``http.listener``: what real brokers say of themselves while they work, lose each other and lose ZooKeeper."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyspark_log import Admin, Consumer, Producer, errors, read
from pyspark_log.testing import LocalCluster
from tests.waiting import wait_until

LIMIT_S = 60.0
RECORDS = 200
WITHOUT_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with WITHOUT_PROXY.open(f"http://{address}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(cluster: LocalCluster, broker: int) -> dict[tuple[str, ...], float]:
    """By the series' name and the values of its labels, in the order of the labels' names."""
    address = cluster.http_address(broker)
    assert address is not None
    status, text = get(address, "/metrics")
    assert status == 200
    return {
        (sample.name.removeprefix("pylog_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(cluster: LocalCluster, *at: str) -> float:
    return sum(samples(cluster, broker).get(at, 0.0) for broker in cluster.broker_ids)


def test_metrics_follow_what_happens_to_a_cluster() -> None:
    """Traffic, replication, errors, a broker that goes and comes back, a topic that is deleted."""
    settings = {"http.listener": "127.0.0.1:0"}
    with LocalCluster(brokers=2, settings=settings) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic("t", partitions=2, replication_factor=2, config={"min.insync.replicas": "2"})
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(RECORDS):
                producer.send("t", b"%d" % number)
            producer.flush(30)
        assert sum(batch.num_rows for batch in read("t", bootstrap_servers=cluster.bootstrap_servers)) == RECORDS
        with Consumer("t", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            seen = 0
            while seen < RECORDS:
                seen += len(consumer.poll(10))

        assert total(cluster, "topic_records_in_total", "t") == RECORDS
        sent = total(cluster, "topic_bytes_in_total", "t")
        assert sent > RECORDS
        assert total(cluster, "topic_bytes_out_total", "t") == 2 * sent
        assert total(cluster, "topic_replication_bytes_in_total", "t") == sent
        assert total(cluster, "topic_replication_bytes_out_total", "t") == sent
        counted = total(cluster, "request_part_seconds_count", "local", "produce")
        assert total(cluster, "request_seconds_count", "produce") == counted >= 2
        assert total(cluster, "leader_partitions") == 2
        assert total(cluster, "partitions") == 4
        assert total(cluster, "controller") == 1
        assert total(cluster, "topics") == 1  # said by one of them
        assert total(cluster, "at_min_isr_partitions") == 2
        assert total(cluster, "under_replicated_partitions") == total(cluster, "offline_partitions") == 0
        for broker in cluster.broker_ids:
            [directory] = cluster.log_dirs(broker)
            found = samples(cluster, broker)
            assert found["sync_seconds_count", str(directory)] >= 1
            assert found["directory_usable_bytes", str(directory)] > 0
            assert found["zookeeper_connected",] == 1
            assert found["process_cpu_seconds_total",] > 0

        with pytest.raises(errors.TopicAlreadyExistsError):
            admin.create_topic("t")
        assert total(cluster, "request_errors_total", "TOPIC_ALREADY_EXISTS", "create_topic") == 1

        cluster.kill(2)
        wait_until(lambda: samples(cluster, 1)["under_min_isr_partitions",] == 2, "both have lost a replica", LIMIT_S)
        found = samples(cluster, 1)
        assert (found["leader_partitions",], found["under_replicated_partitions",]) == (2, 2)
        wait_until(lambda: samples(cluster, 1)["brokers",] == 1, "the session of the other has ended", LIMIT_S)
        cluster.start(2)
        cluster.wait_until_ready()
        assert total(cluster, "under_replicated_partitions") == 0
        assert get(cluster.http_address(2) or "", "/readyz") == (200, "ready\n")

        admin.delete_topic("t")
        wait_until(lambda: total(cluster, "topic_bytes_in_total", "t") == 0, "its counts are gone", LIMIT_S)
        assert ("topic_bytes_in_total", "t") not in samples(cluster, 1)


def test_broker_without_zookeeper_is_alive_and_not_ready(new_broker, own_zookeeper) -> None:
    """A load balancer turns away from it, and nothing restarts it: it still serves what it leads for a while."""
    broker = new_broker(zookeeper=f"{own_zookeeper.address}/pylog", **{"http.listener": "127.0.0.1:0"}).start()
    address = broker.ready["http"]
    assert get(address, "/readyz") == (200, "ready\n")
    own_zookeeper.kill()
    wait_until(lambda: get(address, "/readyz")[0] == 503, "it notices", LIMIT_S)
    assert get(address, "/readyz")[1] == "not ready: ZooKeeper does not answer\n"
    assert get(address, "/healthz") == (200, "alive\n")
    metrics = get(address, "/metrics")[1]
    assert "pylog_zookeeper_connected 0.0" in metrics
    assert "pylog_zookeeper_disconnects_total 1.0" in metrics


def test_address_that_is_taken_ends_the_start(new_broker) -> None:
    """With one line, and nothing left behind."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        broker = new_broker(**{"http.listener": address})
        broker.launch()
        wait_until(lambda: broker.process.poll() is not None, "it has ended", LIMIT_S)
    assert f"http.listener={address}: Address already in use" in broker.output
    assert "Traceback" not in broker.output


def test_it_needs_an_address_of_its_own(new_broker) -> None:
    """Which is noticed before the broker joins its cluster."""
    broker = new_broker(**{"listeners": "127.0.0.1:9192", "http.listener": "0.0.0.0:9192"})
    broker.launch()
    wait_until(lambda: broker.process.poll() is not None, "it has ended", LIMIT_S)
    assert "http.listener=0.0.0.0:9192 is the address of listeners: it needs its own" in broker.output
    assert "register" not in broker.output


def test_without_the_setting_nothing_listens(new_broker) -> None:
    """The default."""
    broker = new_broker().start()
    assert "http" not in broker.ready
    assert "serve http" not in broker.output
