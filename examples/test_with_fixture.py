"""How to test a program that uses pylog: the fixture `pylog_cluster` is available wherever pyspark-log is installed.

pytest examples/test_with_fixture.py
"""

from pyspark_log import Admin, Producer, read
from pyspark_log.testing import LocalCluster


def program_under_test(bootstrap_servers: str, topic: str) -> None:
    """A program that writes three records."""
    with Producer(bootstrap_servers) as producer:
        for number in range(3):
            producer.send(topic, f"order {number}".encode(), key=b"orders")


def test_program_writes_its_orders_in_order(pylog_cluster: LocalCluster) -> None:
    """A real broker and a real ZooKeeper, started once per session; the topic is this test's own."""
    with Admin(pylog_cluster.bootstrap_servers) as admin:
        admin.create_topic("orders", partitions=2)

    program_under_test(pylog_cluster.bootstrap_servers, "orders")

    rows = read("orders", bootstrap_servers=pylog_cluster.bootstrap_servers).read_all()
    assert rows["value"].to_pylist() == [b"order 0", b"order 1", b"order 2"]


def test_records_survive_a_broker_that_is_killed() -> None:
    """A test that kills servers has a cluster of its own."""
    with LocalCluster() as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("orders")
        program_under_test(cluster.bootstrap_servers, "orders")
        cluster.kill(1)
        cluster.start(1)
        rows = read("orders", bootstrap_servers=cluster.bootstrap_servers).read_all()
        assert rows.num_rows == 3
