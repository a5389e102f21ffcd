"""What `Admin` reports of a partition whose only log is damaged and which only the operator can repair."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.contract.model import TopicPartition
from pyspark_log import Admin, Producer
from pyspark_log.client.admin.health import why_damaged
from pyspark_log.testing import LocalCluster
from tests.integration.cluster.replicas import numbers_in
from tests.waiting import wait_until

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def one_broker() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def topic(one_broker: LocalCluster) -> str:
    """A topic of one partition. A test may leave it damaged: the others have their own."""
    name = f"t{next(_numbers)}"
    with Admin(one_broker.bootstrap_servers) as admin:
        admin.create_topic(name, partitions=1)
    return name


def produce(cluster: LocalCluster, topic: str, numbers: range) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number).result(20)


def read_is_refused_as_damaged(cluster: LocalCluster, topic: str) -> None:
    with pytest.raises(CorruptRecordError):
        numbers_in(cluster, topic)


def problem(cluster: LocalCluster, topic: str) -> str | None:
    with Admin(cluster.bootstrap_servers) as admin:
        return admin.check_health().problems.get(TopicPartition(topic, 0))


def swap(one: Path, other: Path) -> None:
    between = other.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def test_older_copy_of_the_only_log_is_reported_until_the_right_one_is_back(
    one_broker: LocalCluster, topic: str
) -> None:
    directory = one_broker.log_dirs(1)[0]
    log, copy = directory / f"{topic}-0", directory.with_name("copy")
    produce(one_broker, topic, range(20))
    one_broker.stop(1)
    shutil.copytree(log, copy)
    one_broker.start(1)
    one_broker.wait_until_ready()
    produce(one_broker, topic, range(20, 40))
    assert problem(one_broker, topic) is None
    one_broker.stop(1)
    swap(log, copy)
    one_broker.start(1)
    read_is_refused_as_damaged(one_broker, topic)
    wait_until(lambda: problem(one_broker, topic) == "damaged", "health reports the damage", limit_s=5.0)
    with Admin(one_broker.bootstrap_servers) as admin:
        partition = admin.describe_topic(topic).partitions[0]
        assert (partition.leader, partition.damaged, admin.check_health().is_healthy) == (1, (1,), False)
        assert "put the right one back, and start broker 1: nothing is lost" in str(
            why_damaged(TopicPartition(topic, 0), partition)
        )
    one_broker.stop(1)
    swap(log, copy)
    one_broker.start(1)
    one_broker.wait_until_ready()
    assert numbers_in(one_broker, topic) == list(range(40))
    assert problem(one_broker, topic) is None


def test_flipped_bit_in_the_only_log_is_reported_when_a_reader_found_it(one_broker: LocalCluster, topic: str) -> None:
    produce(one_broker, topic, range(40))
    one_broker.stop(1)
    (segment,) = (one_broker.log_dirs(1)[0] / f"{topic}-0").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0x10
    segment.write_bytes(content)
    one_broker.start(1)
    one_broker.wait_until_ready()
    read_is_refused_as_damaged(one_broker, topic)
    wait_until(lambda: problem(one_broker, topic) == "damaged", "health reports the damage", limit_s=5.0)
