"""Whether a cluster is healthy: it has a controller, disks that take records, each partition a leader and all replicas
in sync, and no transaction that should have ended.

Rule: a pure function of one broker's description of the cluster and of what leaders say is open; the lag of groups is
not part of it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.model import (
    ClusterDescription,
    OpenTransactionDescription,
    PartitionDescription,
    TopicDescription,
    TopicPartition,
    TransactionListing,
)
from broker_runtime.contract.settings import resolve
from pyspark_log.client.admin.transactions import list_transactions, open_transactions
from pyspark_log.client.connection.cluster import Cluster

REMARKED_MS: Final = 60_000
"""A transaction that is open for so long is worth a remark: its producer or query may be dead."""
HANGS_MS: Final = 30_000
"""A transaction hangs that is open for so much longer than its time limit, or than since its batch was decided: leaders
look every second what is over, and end it."""
_ANSWER_LIMIT_S: Final = 5.0

Problem = Literal["log-missing", "offline", "damaged", "under-min-isr", "under-replicated", "transaction-hangs"]
"""The worst problem of a partition:

    log-missing         it has no leader, because the last in-sync replica came back without its log
    offline             it has no leader, and can be neither read nor written
    damaged             a broker found its replica's log damaged; if that is the last in-sync one, reads of the damaged
                        part are refused until an operator decides
    under-min-isr       fewer replicas are in sync than ``min.insync.replicas``: ``acks=all`` is refused
    under-replicated    not all replicas are in sync: it works, with less redundancy
    transaction-hangs   a transaction should have ended there, and readers of committed records wait in front of it
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitedForTransaction:
    """A transaction that is open for long. ``timeout_ms``: its limit, None: not known. ``decided_ms``: for how long its
    batch has been decided, None: it is not."""

    opened: OpenTransactionDescription
    timeout_ms: int | None
    decided_ms: int | None

    @property
    def hangs(self) -> bool:
        """Whether it should have ended."""
        if self.decided_ms is not None:
            return min(self.decided_ms, self.opened.open_ms) > HANGS_MS
        return self.timeout_ms is not None and self.opened.open_ms > self.timeout_ms + HANGS_MS

    def __str__(self) -> str:
        each = self.opened
        text = (
            f"{each.topic}:{each.partition}: readers of committed records wait in front of offset {each.first_offset}, "
            f"for {each.open_ms // 1000} s: batch {each.batch_id} of transactional id {each.transactional_id} is open"
        )
        if self.decided_ms is not None:
            return (
                f"{text}, though it was decided {self.decided_ms // 1000} s ago. The leader ends it when it reaches "
                "ZooKeeper and its log takes records; look at the leader's log"
            )
        limit = "" if self.timeout_ms is None else f" (its limit is {self.timeout_ms // 1000} s)"
        abort = f"pylog txn abort {each.transactional_id}"
        if self.hangs:
            return (
                f"{text}{limit}. Its leader should have aborted it, and does when it reaches ZooKeeper; look at the "
                f"leader's log. {abort} decides it now"
            )
        return f"{text}{limit}. If its producer or query is dead, and is not started again: {abort}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHealth:
    """The problems of a cluster. ``missing_brokers`` have replicas, but are not in the cluster. ``transactions``: open
    for long, the oldest first; ``silent``: brokers that did not say what is open where they lead."""

    cluster: ClusterDescription
    partitions: int
    problems: Mapping[TopicPartition, Problem]
    described: Mapping[TopicPartition, PartitionDescription]  # those with problems
    missing_brokers: tuple[int, ...]
    transactions: tuple[WaitedForTransaction, ...] = ()
    silent: tuple[int, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether there are no problems."""
        return not self.problems and self.cluster.controller_id is not None and not self.disks

    @property
    def disks(self) -> tuple[str, ...]:
        """The data directories that take no records, each with its broker and the problem."""
        return tuple(
            f"broker {broker_id}: {path} {'is full' if what == 'full' else what}"
            for broker_id, broker in sorted(self.cluster.brokers.items())
            for path, what in sorted(broker.disks.items())
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """Not problems, but worth an operator's attention: logs with records that their leaders did not have, and
        transactions that are open for long."""
        waited_for = tuple(str(each) for each in self.transactions if not each.hangs)
        silent = tuple(f"broker {each} did not say which transactions are open where it leads" for each in self.silent)
        return (
            waited_for
            + silent
            + tuple(
                f"broker {broker_id} keeps {path}: it has records that its leader did not have, perhaps committed ones "
                "(see pylog log dump). Delete it when you are sure that you need none of them"
                for broker_id, broker in sorted(self.cluster.brokers.items())
                for path in broker.diverged
            )
        )


def check(cluster: Cluster, *, without: Collection[int] = ()) -> ClusterHealth:
    """Asks any broker, and all of them (but those that are known to say nothing: ``without``) which transactions are
    open. Raises as `Cluster.call`."""
    topics = [topic.describe() for topic in cluster.fetch_topics()]
    found, silent = open_transactions(cluster, timeout_s=_ANSWER_LIMIT_S, without=without)
    listings: list[TransactionListing] | None = []
    if any(each.open_ms > min(HANGS_MS, REMARKED_MS) for each in found):
        try:
            listings = list_transactions(cluster, timeout_s=_ANSWER_LIMIT_S)
        except PylogError:
            listings = None  # the brokers do not reach ZooKeeper
    waited_for = waited_for_transactions(found, listings, now_ms=time.time_ns() // 1_000_000)
    return health_of(cluster.describe(), topics, waited_for, silent)


def waited_for_transactions(
    opened: Iterable[OpenTransactionDescription], listings: Iterable[TransactionListing] | None, *, now_ms: int
) -> list[WaitedForTransaction]:
    """Those of ``opened`` that hang, or are open for long, in their order. ``listings``: of all ids; None:
    not known."""
    known = None if listings is None else {each.transactional_id: each for each in listings}
    found: list[WaitedForTransaction] = []
    for each in opened:
        listing = None if known is None else known.get(each.transactional_id)
        # What nobody knows of is aborted by its leader at once.
        timeout_ms = listing.timeout_ms if listing is not None else None if known is None else 0
        is_decided = listing is not None and each.batch_id <= listing.batch_id
        decided_ms = max(0, now_ms - listing.decided_at_ms) if listing is not None and is_decided else None
        one = WaitedForTransaction(opened=each, timeout_ms=timeout_ms, decided_ms=decided_ms)
        if one.hangs or each.open_ms > REMARKED_MS:
            found.append(one)
    return found


def health_of(
    cluster: ClusterDescription,
    topics: Iterable[TopicDescription],
    waited_for: Sequence[WaitedForTransaction] = (),
    silent: Sequence[int] = (),
) -> ClusterHealth:
    """The health of the cluster described. ``waited_for``: transactions that are open for long."""
    problems: dict[TopicPartition, Problem] = {}
    described: dict[TopicPartition, PartitionDescription] = {}
    replicas: set[int] = set()
    hanging = {TopicPartition(each.opened.topic, each.opened.partition) for each in waited_for if each.hangs}
    count = 0
    for topic in topics:
        settings = resolve("topic", topic.config)
        for partition in topic.partitions:
            count += 1
            replicas.update(partition.replicas)
            at = TopicPartition(topic.name, partition.partition)
            problem = _problem(partition, cluster, settings.min_in_sync(len(partition.replicas)))
            if problem is None and at in hanging:
                problem = "transaction-hangs"
            if problem is not None:
                problems[at], described[at] = problem, partition
    return ClusterHealth(
        cluster=cluster,
        partitions=count,
        problems=problems,
        described=described,
        missing_brokers=tuple(sorted(replicas - set(cluster.brokers))),
        transactions=tuple(waited_for),
        silent=tuple(silent),
    )


def why_offline(at: TopicPartition, partition: PartitionDescription) -> str | None:
    """Why a partition has no leader, what can be done about it, and what each choice costs; None where it has one."""
    if partition.leader is not None:
        return None
    name = f"{at.topic}:{at.partition}"
    unclean = f"pylog partition elect --election unclean {name}"
    missing = [broker_id for broker_id in partition.isr if broker_id in partition.lost]
    if not missing:
        whole = ", ".join(map(str, [*partition.isr, *partition.eligible]))
        return (
            f"{name} has no leader: the brokers that have everything ({whole}) are away, or just starting. Start one "
            f"of them: nothing is lost. If none comes back: {unclean} lets another replica lead; what it does not have "
            "is lost"
        )
    broker = f"broker {missing[0]}"
    others = [broker_id for broker_id in partition.replicas if broker_id not in partition.lost]
    choice = (
        f"Or choose another replica ({', '.join(map(str, others))}): {unclean}; {_cost(partition)}"
        if others
        else f"Or begin with an empty log: {unclean}; all its records are lost"
    )
    return (
        f"{name} has no leader: {broker} was the last one in sync, and came back without its log (another disk, an "
        f"older copy, or a directory that is gone). Stop {broker}, put the disk or the directory back, and start it: "
        f"nothing is lost. {choice}. Or delete the topic"
    )


def why_damaged(at: TopicPartition, partition: PartitionDescription) -> str | None:
    """Which of a partition's logs is damaged, what can be done about it, and what each choice costs; None if none is,
    or if there is no leader (`why_offline`)."""
    if not partition.damaged or partition.leader is None:
        return None
    name = f"{at.topic}:{at.partition}"
    if not _rests_on_damage(partition):
        brokers = " and ".join(f"broker {broker_id}" for broker_id in partition.damaged)
        return (
            f"{name} is damaged on {brokers}, and whole on another broker that is in sync, or was the last to leave: "
            "the log is fetched again from there. Nothing is lost, and there is nothing to do"
        )
    broker = f"broker {next(broker_id for broker_id in partition.isr if broker_id in partition.damaged)}"
    others = [broker_id for broker_id in partition.replicas if broker_id not in {*partition.damaged, *partition.lost}]
    choice = (
        f"Or choose another replica ({', '.join(map(str, others))}): pylog partition elect --election unclean {name}; "
        f"what it does not have is lost; then start {broker}. "
        if others
        else ""
    )
    return (
        f"{name} is damaged on {broker}, the last one in sync: what cannot be read is refused, and no other replica is "
        f"known to have all that was committed. Stop {broker}. If the log's directory is an older copy, or another "
        f"log's, put the right one back, and start {broker}: nothing is lost. Or cut the log: pylog log repair "
        f"DIR/{at} shows which offsets are lost, and asks; then start {broker}. {choice}Or delete the topic"
    )


def advice(
    at: TopicPartition, partition: PartitionDescription, waited_for: Iterable[WaitedForTransaction] = ()
) -> str | None:
    """What an operator should know about the partition: `why_offline` or `why_damaged`, and which transaction hangs
    there."""
    hanging = (str(each) for each in waited_for if each.hangs and (each.opened.topic, each.opened.partition) == at)
    found = [why_offline(at, partition) or why_damaged(at, partition), next(hanging, None)]
    return ". ".join(each for each in found if each is not None) or None


def _rests_on_damage(partition: PartitionDescription) -> bool:
    """Whether only a damaged log has all committed records, as far as is known."""
    whole = {*partition.isr, *partition.eligible}.difference(partition.damaged, partition.lost)
    return not whole and not set(partition.isr).isdisjoint(partition.damaged)


def _cost(partition: PartitionDescription) -> str:
    """What is lost if another replica is chosen to lead."""
    if not partition.eligible:
        return "what it does not have is lost"
    whole, is_one = ", ".join(map(str, partition.eligible)), len(partition.eligible) == 1
    return (
        f"{f'broker {whole} has' if is_one else f'each of the brokers {whole} has'} all that was committed and comes "
        f"first: while {'it' if is_one else 'one'} is up, nothing is lost that was acknowledged with acks=all; else "
        "what the one chosen does not have is lost"
    )


def _problem(partition: PartitionDescription, cluster: ClusterDescription, min_in_sync: int) -> Problem | None:
    if partition.leader is None and set(partition.isr) & set(partition.lost):
        return "log-missing"
    if partition.leader is None or partition.leader not in cluster.brokers:
        return "offline"
    if not set(partition.isr).isdisjoint(partition.damaged):
        return "damaged"
    if len(partition.isr) < min_in_sync:
        return "under-min-isr"
    if partition.damaged:
        return "damaged"
    if len(partition.isr) < len(partition.replicas):
        return "under-replicated"
    return None
