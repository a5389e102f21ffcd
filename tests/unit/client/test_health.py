"""When a cluster is healthy: `health_of`."""

from __future__ import annotations

import uuid

from broker_runtime.contract.model import (
    BrokerDescription,
    ClusterDescription,
    OpenTransactionDescription,
    PartitionDescription,
    TopicDescription,
    TopicPartition,
    TransactionListing,
)
from pyspark_log.client.admin.health import HANGS_MS, REMARKED_MS, ClusterHealth, health_of, waited_for_transactions
from pyspark_log.client.admin.health import advice as advice_on


def cluster(*broker_ids: int, controller_id: int | None = 1) -> ClusterDescription:
    brokers = {number: BrokerDescription(broker_id=number, host="h", port=1, epoch=1) for number in broker_ids}
    return ClusterDescription(cluster_id="c", controller_id=controller_id, brokers=brokers)


def topic(
    leader: int | None,
    isr: tuple[int, ...],
    replicas: tuple[int, ...] = (1, 2, 3),
    lost: tuple[int, ...] = (),
    eligible: tuple[int, ...] = (),
    damaged: tuple[int, ...] = (),
    **config: str,
) -> TopicDescription:
    partition = PartitionDescription(
        partition=0,
        leader=leader,
        leader_epoch=1,
        replicas=replicas,
        isr=isr,
        lost=lost,
        eligible=eligible,
        damaged=damaged,
    )
    settings = {name.replace("_", "."): value for name, value in config.items()}
    return TopicDescription(name="t", topic_id=uuid.UUID(int=1), partitions=(partition,), config=settings)


def problem(described: TopicDescription, *broker_ids: int) -> str | None:
    return health_of(cluster(*broker_ids), [described]).problems.get(TopicPartition("t", 0))


def test_whole_cluster_is_healthy() -> None:
    found = health_of(cluster(1, 2, 3), [topic(1, (1, 2, 3))])
    assert found.is_healthy
    assert (found.partitions, dict(found.problems), found.missing_brokers) == (1, {}, ())


def test_partition_without_a_live_leader_is_offline() -> None:
    assert problem(topic(None, (1,)), 1, 2, 3) == "offline"
    assert problem(topic(1, (1, 2, 3)), 2, 3) == "offline"


def advice(described: TopicDescription) -> str | None:
    return advice_on(TopicPartition("t", 0), described.partitions[0])


def test_partition_whose_last_in_sync_replica_lost_its_log_gets_each_choice_with_its_cost() -> None:
    """It has no leader until someone decides: put the disk back, choose another replica, or begin with nothing."""
    found = topic(None, (3,), lost=(3,))
    assert problem(found, 1, 2, 3) == "log-missing"
    text = advice(found)
    assert text is not None
    assert "broker 3 was the last one in sync" in text
    assert "choose another replica (1, 2): pylog partition elect --election unclean t:0; what it does not have" in text
    alone = advice(topic(None, (3,), (3,), lost=(3,)))
    assert alone is not None
    assert "all its records are lost" in alone


def test_replica_with_everything_committed_is_the_choice_without_cost() -> None:
    missed = advice(topic(None, (3,), lost=(3,), eligible=(2,)))
    assert missed is not None
    assert "unclean t:0" in missed
    assert "broker 2 has all that was committed and comes first: while it is up, nothing is lost" in missed
    text = advice(topic(None, (3,), lost=(3,), eligible=(1, 2)))
    assert text is not None
    assert "each of the brokers 1, 2 has all that was committed and comes first: while one is up, nothing is" in text


def test_awaited_brokers_are_those_with_everything_committed() -> None:
    """They are in sync or eligible: the first to come back leads."""
    waiting = advice(topic(None, (3,), eligible=(2,)))
    assert waiting is not None
    assert "the brokers that have everything (3, 2) are away" in waiting
    assert "unclean t:0 lets another replica lead; what it does not have is lost" in waiting


def test_partition_whose_in_sync_replicas_are_away_names_brokers_to_start() -> None:
    text = advice(topic(None, (2, 3)))
    assert text is not None
    assert "(2, 3) are away" in text
    assert advice(topic(1, (1, 2, 3))) is None
    assert problem(topic(1, (1, 2), lost=(3,)), 1, 2, 3) == "under-replicated"


def test_partition_whose_last_in_sync_log_is_damaged_gets_each_choice_with_its_cost() -> None:
    found = topic(1, (1,), damaged=(1,))
    assert problem(found, 1, 2, 3) == "damaged"
    text = advice(found)
    assert text is not None
    assert text.startswith("t:0 is damaged on broker 1, the last one in sync")
    assert (
        "put the right one back, and start broker 1: nothing is lost. Or cut the log: pylog log repair DIR/t-0" in text
    )
    assert "choose another replica (2, 3): pylog partition elect --election unclean t:0; what it does not have" in text
    assert text.endswith("Or delete the topic")
    alone = advice(topic(1, (1,), (1,), damaged=(1,)))
    assert alone is not None
    assert "unclean" not in alone


def test_damage_that_another_replica_repairs_is_reported_until_then() -> None:
    for found in (
        topic(1, (1, 2, 3), damaged=(1,)),
        topic(1, (1,), damaged=(1,), eligible=(2,)),
        topic(1, (1, 2), damaged=(3,)),
    ):
        assert problem(found, 1, 2, 3) == "damaged"
        assert "there is nothing to do" in str(advice(found))
    assert problem(topic(1, (1,), damaged=(3,)), 1, 2, 3) == "under-min-isr"
    assert problem(topic(None, (1,), damaged=(1,)), 1, 2, 3) == "offline"


def test_partition_with_fewer_in_sync_than_the_minimum_is_reported() -> None:
    """From three replicas on `min.insync.replicas` is a majority by default."""
    assert problem(topic(1, (1,)), 1, 2, 3) == "under-min-isr"
    assert problem(topic(1, (1,), min_insync_replicas="1"), 1, 2, 3) == "under-replicated"
    assert problem(topic(1, (1, 2), min_insync_replicas="3"), 1, 2, 3) == "under-min-isr"
    assert problem(topic(1, (1,), replicas=(1, 2)), 1, 2) == "under-replicated"


def test_brokers_that_hold_replicas_and_are_away_are_named() -> None:
    found = health_of(cluster(1, 2), [topic(1, (1, 2))])
    assert (found.is_healthy, found.missing_brokers) == (False, (3,))


def test_cluster_without_a_controller_is_not_healthy() -> None:
    assert not health_of(cluster(1, controller_id=None), []).is_healthy


def test_kept_diverged_log_is_a_remark_and_no_problem() -> None:
    brokers = {1: BrokerDescription(broker_id=1, host="h", port=1, epoch=1, diverged=("/a/t-0.1.diverged",))}
    found = health_of(ClusterDescription(cluster_id="c", controller_id=1, brokers=brokers), [])
    assert found.is_healthy
    (remark,) = found.remarks
    assert remark.startswith("broker 1 keeps /a/t-0.1.diverged: ")


def test_disk_that_accepts_no_records_is_named() -> None:
    brokers = {1: BrokerDescription(broker_id=1, host="h", port=1, epoch=1, disks={"/b": "full", "/a": "failed"})}
    found = health_of(ClusterDescription(cluster_id="c", controller_id=1, brokers=brokers), [])
    assert (found.is_healthy, found.disks) == (False, ("broker 1: /a failed", "broker 1: /b is full"))


def with_transaction(
    open_ms: int, *, timeout_ms: int | None = 60_000, decided_ms: int | None = None, replicas: tuple[int, ...] = (1,)
) -> ClusterHealth:
    """Of a cluster in which batch 3 is open in t:0. ``timeout_ms`` None: nobody knows its id. ``decided_ms``: for so
    long it has been decided."""
    opened = OpenTransactionDescription(
        transactional_id="q", batch_id=3, run_id="r", attempt=1, producer_id=7, topic="t", partition=0,
        first_offset=40, open_ms=open_ms,
    )  # fmt: skip
    now_ms = 10**12
    listing = TransactionListing(
        transactional_id="q",
        epoch=0,
        run_id="r",
        batch_id=2 if decided_ms is None else 3,
        outcome="committed",
        rows=1,
        decided_at_ms=now_ms - (decided_ms if decided_ms is not None else 10**9),
        timeout_ms=timeout_ms or 0,
        unfinished=(),
    )
    found = waited_for_transactions([opened], [] if timeout_ms is None else [listing], now_ms=now_ms)
    return health_of(cluster(*replicas), [topic(1, (1,), replicas)], found)


def test_transaction_in_its_time_is_healthy() -> None:
    found = with_transaction(REMARKED_MS)
    assert (found.is_healthy, found.remarks, found.transactions) == (True, (), ())


def test_transaction_that_is_open_for_long_is_remarked_on() -> None:
    """A query that was killed holds readers back until its limit: an operator sees it, and how to end it."""
    found = with_transaction(REMARKED_MS + 1000, timeout_ms=900_000)
    assert found.is_healthy
    [remark] = found.remarks
    assert remark == (
        "t:0: readers of committed records wait in front of offset 40, for 61 s: batch 3 of transactional id q is open "
        "(its limit is 900 s). If its producer or query is dead, and is not started again: pylog txn abort q"
    )


def test_transaction_beyond_its_limit_hangs() -> None:
    assert with_transaction(60_000 + HANGS_MS).is_healthy
    found = with_transaction(60_001 + HANGS_MS)
    at = TopicPartition("t", 0)
    assert (found.is_healthy, found.problems[at], found.remarks) == (False, "transaction-hangs", ())
    text = advice_on(at, found.described[at], found.transactions)
    assert text is not None
    assert text.startswith("t:0: readers of committed records wait in front of offset 40, for 90 s: batch 3")
    assert text.endswith("pylog txn abort q decides it now")


def test_transaction_whose_batch_was_decided_long_ago_hangs() -> None:
    """There is nothing to be decided any more: its leader does not carry it out."""
    assert with_transaction(50_000, decided_ms=HANGS_MS).is_healthy
    found = with_transaction(50_000, decided_ms=HANGS_MS + 1000)
    at = TopicPartition("t", 0)
    assert found.problems[at] == "transaction-hangs"
    text = advice_on(at, found.described[at], found.transactions)
    assert text is not None
    assert "though it was decided 31 s ago. The leader ends it" in text
    assert "txn abort" not in text


def test_transaction_of_an_id_that_nobody_knows_hangs_at_once() -> None:
    """Its leader aborts it within a second or two."""
    assert with_transaction(HANGS_MS, timeout_ms=None).is_healthy
    assert not with_transaction(HANGS_MS + 1, timeout_ms=None).is_healthy


def test_worse_problem_of_a_partition_comes_first() -> None:
    found = with_transaction(10**6, replicas=(1, 2))
    at = TopicPartition("t", 0)
    assert found.problems[at] == "under-replicated"
    assert "pylog txn abort q" in (advice_on(at, found.described[at], found.transactions) or "")


def test_time_limit_that_cannot_be_asked_for_is_not_judged() -> None:
    """Without ZooKeeper."""
    opened = with_transaction(10**6).transactions[0].opened
    [found] = waited_for_transactions([opened], None, now_ms=0)
    assert not found.hangs
    assert "its limit" not in str(found)
