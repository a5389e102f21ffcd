"""Who leads, who follows, and what each of them refuses: three brokers as clients see them."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pyarrow as pa
import pytest
from pyarrow import flight

from pyspark_log import Acl, AclFilter, Admin, Producer, QuotaEntity
from pyspark_log.errors import InvalidReplicationFactorError, ZooKeeperUnavailableError
from pyspark_log.testing import LocalCluster
from tests.integration.cluster.replicas import numbers_in, produce, replicas_are_identical
from tests.waiting import wait_until

REFUSED_BY_A_FOLLOWER = "NOT_LEADER_OR_FOLLOWER"


def until_each_broker_may_lead(cluster: LocalCluster, admin: Admin) -> None:
    """A broker that was just found not to answer, as one that is starting, leads none of a new topic."""
    names = (f"probe-{uuid.uuid4().hex}" for _ in count())

    def may_lead() -> bool:
        described = admin.create_topic(next(names), partitions=len(cluster.broker_ids), replication_factor=2)
        return {partition.leader for partition in described.partitions} == set(cluster.broker_ids)

    wait_until(may_lead, "each broker leads a partition of a new topic")


@pytest.mark.parametrize(("partitions", "shares"), [(3, [1, 1, 1]), (2, [0, 1, 1]), (1, [0, 0, 1]), (7, [2, 2, 3])])
def test_leaders_are_spread_evenly(cluster: LocalCluster, admin: Admin, partitions: int, shares: list[int]) -> None:
    """W10: N partitions are spread evenly on N, more and fewer brokers, whatever other topics do."""
    until_each_broker_may_lead(cluster, admin)
    described = admin.create_topic(f"spread-{partitions}", partitions=partitions, replication_factor=2).partitions
    leading = Counter(partition.leader for partition in described)
    assert sorted(leading[broker_id] for broker_id in cluster.broker_ids) == shares
    assert all(partition.leader == partition.replicas[0] for partition in described)
    assert all(len(set(partition.replicas)) == 2 for partition in described)


def test_more_replicas_than_brokers_are_refused(admin: Admin) -> None:
    """W11: each replica is on a broker of its own."""
    with pytest.raises(InvalidReplicationFactorError, match=r"factor 4 is not possible: allowed is 1 to 3"):
        admin.create_topic("too-many", replication_factor=4)
    assert "too-many" not in admin.list_topics()


def test_follower_serves_neither_reads_nor_writes(cluster: LocalCluster, admin: Admin) -> None:
    """W12: the leader serves all reads and writes; an in-sync follower, which has every record, refuses them."""
    leader = admin.create_topic("roles", replication_factor=3).partitions[0].leader
    produce(cluster, "roles", range(10))
    replicas_are_identical(cluster, "roles")
    path = flight.FlightDescriptor.for_path("roles")
    batch = pa.record_batch({"value": pa.array([b"never"], pa.binary())})
    for broker_id, address in zip(cluster.broker_ids, cluster.bootstrap_servers.split(","), strict=True):
        with flight.connect(f"grpc://{address}") as client:
            (endpoint,) = client.get_flight_info(path).endpoints
            if broker_id == leader:
                assert client.do_get(endpoint.ticket).read_all().num_rows == 10
                continue
            with pytest.raises(pa.ArrowException, match=REFUSED_BY_A_FOLLOWER):
                client.do_get(endpoint.ticket).read_all()
            with pytest.raises(pa.ArrowException, match=REFUSED_BY_A_FOLLOWER):
                _write(client, path, batch)
    assert numbers_in(cluster, "roles") == list(range(10))


def _write(client: flight.FlightClient, path: flight.FlightDescriptor, batch: pa.RecordBatch) -> None:
    """Writes as any Flight client does; the first call after the refusal raises it."""
    writer, answers = client.do_put(path, batch.schema)
    writer.write_batch(batch)
    writer.done_writing()
    answers.read()
    writer.close()


def test_empty_disk_is_filled_from_the_leaders(cluster: LocalCluster, admin: Admin) -> None:
    """W11: a broker restarted with an empty disk under the same id gets the same bytes again."""
    admin.create_topic("disk", partitions=3, replication_factor=3)
    produce(cluster, "disk", range(60))
    cluster.stop(2)
    for directory in cluster.log_dirs(2):
        shutil.rmtree(directory)
    cluster.start(2)
    cluster.wait_until_ready()
    assert all(sorted(p.isr) == [1, 2, 3] for p in admin.describe_topic("disk").partitions)
    produce(cluster, "disk", range(60, 90))
    replicas_are_identical(cluster, "disk")
    assert sorted(numbers_in(cluster, "disk")) == list(range(90))


def test_replicated_partitions_are_served_without_zookeeper(cluster: LocalCluster, admin: Admin) -> None:
    """W26: leaders and followers continue while ZooKeeper is away, though no topic can be created; afterwards all is
    well.
    """
    admin.create_topic("away", partitions=3, replication_factor=3)
    for partition in range(3):  # each one: its followers have heard of it then, which they cannot do without ZooKeeper
        produce(cluster, "away", range(partition * 10, partition * 10 + 10), partition=partition)
    cluster.kill_zookeeper(1)
    produce(cluster, "away", range(30, 60))  # acknowledged by all in-sync replicas
    assert sorted(numbers_in(cluster, "away")) == list(range(60))
    with (
        Admin(cluster.bootstrap_servers, request_timeout_ms=5_000) as impatient,
        pytest.raises(ZooKeeperUnavailableError, match="no connection to ZooKeeper; changes of topics wait for it"),
    ):
        impatient.create_topic("later")
    requests_for_what_zookeeper_keeps_are_refused(cluster)
    cluster.start_zookeeper(1)
    cluster.wait_until_ready()
    assert sorted(admin.describe_cluster().brokers) == [1, 2, 3]
    wait_until(lambda: len(admin.create_topic("later", exist_ok=True).partitions) == 1, "topics are made again")
    produce(cluster, "away", range(60, 90))
    assert sorted(numbers_in(cluster, "away")) == list(range(90))
    replicas_are_identical(cluster, "away")


def requests_for_what_zookeeper_keeps_are_refused(cluster: LocalCluster) -> None:
    """By an error that names ZooKeeper, and not a broker that did not answer."""
    entity = QuotaEntity(user="nobody")
    nobody = Acl(principal="User:nobody", operation="Read", resource_type="Topic", name="away")
    with Admin(cluster.bootstrap_servers, request_timeout_ms=4_000) as impatient, ThreadPoolExecutor(13) as at_once:
        asked = [
            at_once.submit(impatient.alter_quotas, {entity: {"producer_byte_rate": 1e6}}),
            at_once.submit(impatient.describe_quotas),
            at_once.submit(impatient.create_acls, [nobody]),
            at_once.submit(impatient.delete_acls, AclFilter(principal="User:nobody")),
            at_once.submit(impatient.describe_acls),
            at_once.submit(impatient.set_password, "nobody", "a password"),
            at_once.submit(impatient.delete_user, "nobody"),
            at_once.submit(impatient.list_users),
            at_once.submit(impatient.list_groups),
            at_once.submit(impatient.list_group_lags),
            at_once.submit(impatient.list_transactions),
            at_once.submit(impatient.abort_transactions, "nobody"),
            at_once.submit(begin_transaction, cluster),
        ]
        for each in asked:
            with pytest.raises(ZooKeeperUnavailableError, match=r"no connection to ZooKeeper; [^;]+ wait for it"):
                each.result(60)


def begin_transaction(cluster: LocalCluster) -> None:
    with Producer(cluster.bootstrap_servers, transactional_id="nobody", request_timeout_ms=4_000) as producer:
        producer.begin_transaction()
