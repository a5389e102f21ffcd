"""Consumers that share a topic on real brokers join, leave, die, freeze and lose their coordinator."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from pyspark_log import Admin, Consumer, Producer, Record, TopicPartition, errors
from pyspark_log.testing import LocalCluster
from tests.integration.groups.readers import Reader, ReaderProcess
from tests.waiting import take, wait_until

pytestmark = pytest.mark.slow

SESSION_MS = 2_000
LONG_SESSION_MS = 6_000  # for consumers that must not lose their session, however busy the machine is
_names = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(own_zookeepers_in_module: None) -> Iterator[LocalCluster]:
    """Three brokers, all running when a test ends."""
    settings = {
        "group.min.session.timeout.ms": "1000",
        "zookeeper.session.timeout.ms": "4000",
        "default.replication.factor": "3",
    }
    with LocalCluster(brokers=3, settings=settings) as made:
        yield made


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers) as made:
        yield made


@pytest.fixture
def topic(admin: Admin) -> str:
    """A topic of two partitions."""
    name = f"shared-{next(_names)}"
    admin.create_topic(name, partitions=2)
    return name


@pytest.fixture
def group() -> str:
    return f"group-{next(_names)}"


@pytest.fixture
def reader(cluster: LocalCluster, group: str) -> Iterator[Callable[..., Reader]]:
    """Creates members of the group."""
    made: list[Reader] = []

    def make(*topics: str, **settings: object) -> Reader:
        one = Reader(cluster.bootstrap_servers, group, *topics, **{"session_timeout_ms": SESSION_MS, **settings})
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()
    for one in made:
        if one.error is not None:
            raise one.error


class Writing:
    """Writes to both partitions continuously from a thread; ``count`` records to each."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._is_ended = False
        self.count = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with Producer(self._bootstrap) as producer:
            while not self._is_ended:
                for partition in (0, 1):
                    producer.send(self._topic, b"%d" % self.count, partition=partition)
                self.count += 1
                time.sleep(0.01)

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended = True
        self._thread.join(60)

    @property
    def all(self) -> Counter[tuple[int, int]]:
        return Counter((partition, offset) for partition in (0, 1) for offset in range(self.count))


def counted(*readers: Reader | ReaderProcess) -> Counter[tuple[int, int]]:
    return Counter(place for reader in readers for place in reader.records)


def test_members_share_one_partition_each_and_a_waiting_member_takes_over(
    cluster: LocalCluster, topic: str, reader: Callable[..., Reader]
) -> None:
    """W21, W22, W23, W24: one member has all, two share, a third waits; a member that leaves in order skips and
    repeats no record.
    """
    with Writing(cluster.bootstrap_servers, topic) as writing:
        first = reader(topic, session_timeout_ms=LONG_SESSION_MS)
        wait_until(lambda: first.held == {0, 1}, "the first has all")
        wait_until(lambda: len(first.records) > 20, "and reads it")
        second = reader(topic, session_timeout_ms=LONG_SESSION_MS)
        wait_until(lambda: len(first.held) == len(second.held) == 1, "they share")
        assert first.held | second.held == {0, 1}
        third = reader(topic, session_timeout_ms=LONG_SESSION_MS)
        wait_until(lambda: ("subscribed", []) in third.events, "the third has joined")
        time.sleep(1.0)
        assert (third.held, third.records) == (set(), [])
        seen = len(second.records)
        wait_until(lambda: len(second.records) > seen, "the second reads its share")
        second.close()
        wait_until(lambda: third.held, "the third takes over")
        assert first.held | third.held == {0, 1}
        wait_until(lambda: third.records, "and reads")
        third.close()
        wait_until(lambda: first.held == {0, 1}, "the first has all again")
    wait_until(lambda: sum(counted(first, second, third).values()) >= 2 * writing.count, "all was read")
    assert counted(first, second, third) == writing.all


def test_each_group_gets_all_records(
    cluster: LocalCluster, topic: str, group: str, reader: Callable[..., Reader]
) -> None:
    """W21: each group reads every record."""
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(20):
            producer.send(topic, b"%d" % number, partition=number % 2)
    members = [reader(topic, session_timeout_ms=LONG_SESSION_MS) for _ in range(2)]
    with Reader(cluster.bootstrap_servers, f"{group}-other", topic) as other:
        wait_until(lambda: len(other.records) >= 20, "the other group reads all")
        wait_until(lambda: sum(counted(*members).values()) >= 20, "the group reads all")
    everything = Counter((partition, offset) for partition in (0, 1) for offset in range(10))
    assert counted(*members) == counted(other) == everything


def test_callbacks_come_in_order_with_exactly_what_changes(topic: str, reader: Callable[..., Reader]) -> None:
    """W22: on_revoke precedes the other's on_assign; kept partitions are not mentioned again."""
    first = reader(topic, session_timeout_ms=LONG_SESSION_MS)
    wait_until(lambda: first.held == {0, 1}, "the first has all")
    second = reader(topic, session_timeout_ms=LONG_SESSION_MS)
    wait_until(lambda: second.held, "they share")
    (kept,), (moved,) = first.held, second.held
    second.close()
    wait_until(lambda: len(first.held) == 2, "back again")
    assert first.callbacks == [("assign", [[0], [1]]), ("revoke", [[moved]]), ("assign", [[moved]])]
    assert second.callbacks == [("assign", [[moved]]), ("revoke", [[moved]])]
    assert kept != moved


def test_member_begins_at_the_current_offset_of_its_partitions(
    cluster: LocalCluster, admin: Admin, topic: str, group: str
) -> None:
    """W17: the offset is saved when subscribe returns; a second member in the same thread need not wait for the
    first's polls.
    """
    with Producer(cluster.bootstrap_servers) as producer:
        for partition in (0, 1):
            producer.send(topic, b"before", partition=partition).result(20)
        options = {"bootstrap_servers": cluster.bootstrap_servers, "group_id": group, "session_timeout_ms": SESSION_MS}
        with Consumer(topic, **options) as first:
            assert {at: offset.committed for at, offset in admin.list_group_offsets(group).items()} == {
                TopicPartition(topic, 0): 1,
                TopicPartition(topic, 1): 1,
            }
            started_s = time.monotonic()
            with Consumer(topic, **options) as second:
                assert time.monotonic() < started_s + 15
                for partition in (0, 1):
                    producer.send(topic, b"after", partition=partition).result(20)
                records: list[Record] = []
                wait_until(lambda: records.extend([*first.poll(0.1), *second.poll(0.1)]) or len(records) == 2, "both")
                assert {record.value for record in records} == {b"after"}
                assert first.group_metadata().group_id == second.group_metadata().group_id == group
                assert first.group_metadata().member_id != second.group_metadata().member_id
                assert min(first.group_metadata().member_epoch, second.group_metadata().member_epoch) > 0


def test_killed_member_is_replaced_from_its_next_record(
    cluster: LocalCluster, topic: str, group: str, reader: Callable[..., Reader]
) -> None:
    """W19, W23: the member is replaced after its session; uncommitted records are read again and none is skipped."""
    with Writing(cluster.bootstrap_servers, topic) as writing:
        with ReaderProcess(
            cluster.bootstrap_servers, group, topic, session_timeout_ms=SESSION_MS, auto_commit_interval_ms=100
        ) as doomed:
            wait_until(lambda: doomed.held == {0, 1}, "it has all")
            other = reader(topic)
            wait_until(lambda: other.held and len(doomed.held) == 1, "they share")
            seen = len(doomed.records)
            wait_until(lambda: len(doomed.records) > seen + 20, "both read")
            doomed.send(signal.SIGKILL)
        # Less than with the delay that a coordinator new to the group adds.
        wait_until(lambda: other.held == {0, 1}, "the other has all", SESSION_MS / 1000 + 4)
        wait_until(lambda: {0, 1} <= {partition for partition, _ in other.records}, "and reads it")
    wait_until(lambda: set(counted(other, doomed)) >= set(writing.all), "all was read")
    assert set(counted(other, doomed)) == set(writing.all)


def test_frozen_member_returns_nothing_after_its_session(
    cluster: LocalCluster, topic: str, group: str, reader: Callable[..., Reader]
) -> None:
    """W24: the member notices before it returns a record, gets on_lost for everything, and joins as a new member."""
    with (
        Writing(cluster.bootstrap_servers, topic) as writing,
        ReaderProcess(cluster.bootstrap_servers, group, topic, session_timeout_ms=SESSION_MS) as frozen,
    ):
        wait_until(lambda: frozen.held == {0, 1}, "it has all")
        wait_until(lambda: len(frozen.records) > 20, "and reads")
        frozen.send(signal.SIGSTOP)
        other = reader(topic)
        wait_until(lambda: other.held == {0, 1}, "the other has all")
        wait_until(lambda: len(other.records) > 20, "and reads")
        before, resumed_ns = len(frozen.events), time.monotonic_ns()
        frozen.send(signal.SIGCONT)
        wait_until(lambda: frozen.held and frozen.held != {0, 1}, "it is a member again")
        first = frozen.first_since(before, resumed_ns)
        assert first == ("lost", [[0], [1]]), frozen.events[before:][:5]
        seen = len(frozen.records)
        wait_until(lambda: len(frozen.records) > seen, "and reads again")
    wait_until(lambda: set(counted(other, frozen)) >= set(writing.all), "all was read")


def coordinator_of(admin: Admin, group: str) -> int | None:
    """The coordinator, or None while nobody answers."""
    try:
        return admin.describe_group(group).coordinator
    except errors.RetriableError:
        return None


@pytest.mark.parametrize("what", ["killed", "paused"])
def test_members_continue_when_their_coordinator_is_away(
    cluster: LocalCluster, admin: Admin, topic: str, group: str, reader: Callable[..., Reader], what: str
) -> None:
    """W19, W24: members continue with the next coordinator under their member ids if their sessions last that long."""
    with Writing(cluster.bootstrap_servers, topic) as writing:
        members = [reader(topic, session_timeout_ms=30_000), reader(topic, session_timeout_ms=30_000)]
        wait_until(lambda: all(len(member.held) == 1 for member in members), "they share")
        before = [member.consumer.group_metadata().member_id for member in members]
        callbacks = [member.callbacks for member in members]
        coordinator = admin.describe_group(group).coordinator
        assert coordinator is not None
        cluster.kill(coordinator) if what == "killed" else cluster.pause(coordinator)
        try:
            wait_until(lambda: coordinator_of(admin, group) not in (None, coordinator), "another coordinates")
            wait_until(lambda: admin.describe_group(group).state == "stable", "the members found it")
        finally:
            cluster.start(coordinator) if what == "killed" else cluster.resume(coordinator)
            cluster.wait_until_ready()
        assert [member.consumer.group_metadata().member_id for member in members] == before
        assert [member.callbacks for member in members] == callbacks
    wait_until(lambda: sum(counted(*members).values()) >= 2 * writing.count, "all was read")
    assert counted(*members) == writing.all


def test_members_continue_when_zookeeper_was_away(
    cluster: LocalCluster, topic: str, reader: Callable[..., Reader]
) -> None:
    """W19, W24, W26: after an outage longer than their sessions members lose their partitions and get them again."""
    with Writing(cluster.bootstrap_servers, topic) as writing:
        members = [reader(topic), reader(topic)]
        wait_until(lambda: all(len(member.held) == 1 for member in members), "they share")
        cluster.stop_zookeeper(1)
        try:
            wait_until(lambda: all(member.callbacks[-1][0] == "lost" for member in members), "they lost all")
        finally:
            cluster.start_zookeeper(1)
        wait_until(lambda: all(len(member.held) == 1 for member in members), "they share again")
        seen = [len(member.records) for member in members]
        wait_until(lambda: all(len(m.records) > n for m, n in zip(members, seen, strict=True)), "they read on")
    wait_until(lambda: set(counted(*members)) >= set(writing.all), "all was read")


def test_member_that_does_not_poll_loses_its_partitions_to_others(
    cluster: LocalCluster, topic: str, group: str, reader: Callable[..., Reader]
) -> None:
    """W23: the member does so although its process lives; its next poll calls on_lost and joins again."""
    lost: list[TopicPartition] = []
    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        max_poll_interval_ms=1_000,
        session_timeout_ms=30_000,
    ) as away:
        away.subscribe([topic], on_lost=lost.extend)
        away.poll(0.1)
        other = reader(topic)
        wait_until(lambda: other.held == {0, 1}, "the other has all", limit_s=25)
        with pytest.raises(errors.UnknownMemberIdError):
            away.commit({TopicPartition(topic, 0): 0})
        assert away.poll(0.1) == []
        assert sorted(lost) == [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        wait_until(lambda: away.poll(0.1) or away.assignment(), "it is a member again")


def test_static_member_that_comes_back_gets_its_partitions_back(topic: str, reader: Callable[..., Reader]) -> None:
    """W23: within its session nobody else gets its partitions; another member with its instance id fences it."""
    first = reader(topic, group_instance_id="a", session_timeout_ms=10_000)
    second = reader(topic, group_instance_id="b", session_timeout_ms=10_000)
    wait_until(lambda: len(first.held) == len(second.held) == 1, "they share")
    held, callbacks = second.held, first.callbacks
    second.close()
    time.sleep(1.0)
    again = reader(topic, group_instance_id="b", session_timeout_ms=10_000)
    wait_until(lambda: again.held, "it has its share again")
    assert (again.held, first.callbacks) == (held, callbacks)
    usurper = reader(topic, group_instance_id="b", session_timeout_ms=10_000)
    wait_until(lambda: again.error is not None, "it learns that it was replaced")
    assert isinstance(again.error, errors.FencedInstanceIdError)
    again.error = None
    wait_until(lambda: usurper.held == held, "the other process has its share, when the lease is over")


def test_commits_are_accepted_only_for_partitions_the_member_holds(
    cluster: LocalCluster, admin: Admin, topic: str, group: str
) -> None:
    """W18, W24: commits for others' partitions are refused; a non-member may commit only while the group has no
    members.
    """
    at, other_at = TopicPartition(topic, 0), TopicPartition(topic, 1)
    options = {"bootstrap_servers": cluster.bootstrap_servers, "group_id": group, "session_timeout_ms": SESSION_MS}
    with Consumer(topic, **options) as first, Consumer(topic, **options) as second:
        wait_until(lambda: (first.poll(0.1), second.poll(0.1)) and len(second.assignment()) == 1, "they share")
        if first.assignment() != {at}:
            at, other_at = other_at, at
        first.commit({at: 0})
        with pytest.raises(errors.StaleMemberEpochError):
            first.commit({at: 0, other_at: 0})
        with Consumer(**options) as outsider:
            outsider.assign([at])
            with pytest.raises(errors.NonEmptyGroupError):
                outsider.commit({at: 0})
    with Consumer(**options) as outsider:
        outsider.assign([at])
        wait_until(lambda: admin.describe_group(group).state == "empty", "all have left")
        outsider.commit({at: 0})


def test_member_follows_topics_that_match_its_pattern(cluster: LocalCluster, admin: Admin, group: str) -> None:
    """W16, W22: topics that are created and deleted are shared, too."""
    prefix = f"pattern-{next(_names)}"
    admin.create_topic(f"{prefix}-a", partitions=2)
    options = {"bootstrap_servers": cluster.bootstrap_servers, "group_id": group, "session_timeout_ms": SESSION_MS}
    with Consumer(**options) as first, Consumer(**options) as second:
        for consumer in (first, second):
            consumer.subscribe(pattern=f"{prefix}-.*")

        def counts() -> list[int]:
            first.poll(0.1), second.poll(0.1)
            return [len(first.assignment()), len(second.assignment())]

        wait_until(lambda: counts() == [1, 1], "they share one topic")
        admin.create_topic(f"{prefix}-b", partitions=2)
        both = {f"{prefix}-a", f"{prefix}-b"}
        wait_until(
            lambda: counts() == [2, 2] and first.subscription() == second.subscription() == both, "they share two"
        )
        admin.delete_topic(f"{prefix}-a")
        wait_until(lambda: counts() == [1, 1], "they share what is left")
        assert {at.topic for at in first.assignment() | second.assignment()} == {f"{prefix}-b"}


def test_refused_member_gets_the_reason(
    cluster: LocalCluster, pylog_cluster: LocalCluster, topic: str, group: str
) -> None:
    """W21: subscribe raises the reason; the consumer remains usable for something else."""
    strict = pylog_cluster
    with (
        Admin(strict.bootstrap_servers) as admin,
        Consumer(bootstrap_servers=strict.bootstrap_servers, group_id=group, session_timeout_ms=1_000) as consumer,
    ):
        admin.create_topic(topic)
        with pytest.raises(errors.InvalidSessionTimeoutError, match="6000"):
            consumer.subscribe(topic)
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer.poll(0.1) == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_child_of_a_member_is_not_the_member(cluster: LocalCluster, topic: str, group: str) -> None:
    """W24: the parent continues to read; the child may subscribe as a member of its own."""
    options = {"bootstrap_servers": cluster.bootstrap_servers, "group_id": group, "session_timeout_ms": LONG_SESSION_MS}
    with Consumer(topic, auto_offset_reset="earliest", **options) as consumer:
        member_id = consumer.group_metadata().member_id
        child = os.fork()
        if child == 0:
            code = 1
            try:
                consumer.poll(0.1)
            except errors.ClientStateError:
                consumer.subscribe(topic)
                code = 0 if consumer.group_metadata().member_id not in ("", member_id) else 2
                consumer.close()
            finally:
                os._exit(code)
        wait_until(lambda: consumer.poll(0.1) or os.waitpid(child, os.WNOHANG)[0], "the child has ended")
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send(topic, b"x", partition=0)
            producer.send(topic, b"y", partition=1)
        assert {record.value for record in take(consumer, 2)} == {b"x", b"y"}
        assert consumer.group_metadata().member_id == member_id
