"""Transactions where brokers use different servers of a ZooKeeper ensemble, none of which waits for the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_log import Admin, Producer, read
from pyspark_log.testing import LocalCluster
from tests.waiting import wait_until

TRANSACTIONS = 200
RUNS = 10
LIMIT_S = 60


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with LocalCluster(brokers=3, zookeepers=3) as started:
        yield started.bootstrap_servers


def test_what_was_committed_is_there_though_each_broker_knows_something_else(bootstrap: str) -> None:
    """W9, S6: a producer begins at one broker and commits at another, whose servers may lag behind each other; runs
    that take over from each other are not taken for those before.
    """
    with Admin(bootstrap) as admin:
        admin.create_topic("t", partitions=3, replica_assignment=[[1], [2], [3]])
    sent = 0
    for _ in range(RUNS):
        with Producer(bootstrap, transactional_id="x") as producer:
            for _ in range(TRANSACTIONS // RUNS):
                with producer.transaction():
                    producer.send("t", b"%d" % sent, partition=sent % 3)
                sent += 1
    expected = sorted(b"%d" % number for number in range(sent))

    def committed() -> list[bytes]:
        return sorted(read("t", bootstrap_servers=bootstrap).read_all().column("value").to_pylist())

    wait_until(lambda: committed() == expected, "all transactions are shown, once", LIMIT_S)
