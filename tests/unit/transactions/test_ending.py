"""A broker ends in its partitions' logs what ZooKeeper says is over, and nothing else."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import (
    ConcurrentTransactionsError,
    CorruptRecordError,
    InvalidRequestError,
    InvalidTxnStateError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    PylogError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.frame import (
    TransactionBegin,
    encode_frame,
    iter_frames,
    number_frame,
    parse_control,
    visible_frames,
)
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.contract.streams import FetchPartition, ProduceRequest
from broker_runtime.contract.transactions import TransactionIdentity
from broker_runtime.contract.waiting import Clock
from broker_runtime.log.producer_state import ProducerState
from broker_runtime.log.transactions import MOST_ENDED, OpenTransaction, Outcomes, Transactions
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.partition_read import PartitionRead, read_for_consumer
from broker_runtime.services.produce import ProduceService
from broker_runtime.services.read import ReadRange, ReadService
from broker_runtime.transactions import coordination
from broker_runtime.transactions.coordination import TransactionCoordinator
from broker_runtime.transactions.ending import TransactionEnding
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.session import Set
from broker_runtime.zookeeper.znodes import (
    TRANSACTIONS,
    DecidedPartitions,
    PartitionState,
    partition_state_path,
    to_json,
    transaction_path,
)
from tests.callers import CLIENT
from tests.clocks import ReadClock
from tests.unit.replication.partitions import NOW_MS, TOPIC_ID, Hosted, leadership

LIMIT_MS = 1000
DAY_MS = 86_400_000


class Cluster:
    """One broker with two partitions, its coordinator, and a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.hosted = Hosted(2)
        self.zookeeper = MemoryZooKeeper()
        self.client = self.zookeeper.client()
        self.client.ensure_path(TRANSACTIONS)
        self.coordinator = TransactionCoordinator(
            self.client, steady_ms=lambda: self.now_ms, wall_ms=lambda: self.now_ms
        )
        self.ending = TransactionEnding(
            self.hosted.registry, self.coordinator, broker_id=1, wall_ms=lambda: self.now_ms
        )

    def another_coordinator(self) -> TransactionCoordinator:
        """Of another broker: it knows nothing of what the first one did."""
        return TransactionCoordinator(
            self.zookeeper.client(), steady_ms=lambda: self.now_ms, wall_ms=lambda: self.now_ms
        )

    def begin(self, run_id: str = "r1", batch_id: int = -1) -> tuple[int, int]:
        """The epoch and the batch id."""
        record, batch_id, is_decided = self.coordinator.begin(
            "sink", run_id=run_id, batch_id=batch_id, timeout_ms=LIMIT_MS, keep_ms=DAY_MS
        )
        assert not is_decided
        return record.epoch, batch_id

    def write(
        self, producer_id: int, epoch: int, batch_id: int, *, rows: int = 2, partition: int = 0, name: str = "sink"
    ) -> int:
        """The first frame of a transaction in a partition, committed by replication. Returns its first offset."""
        batch = pa.record_batch({"value": pa.array([b"v"] * rows)})
        frame = bytearray(encode_frame(batch, TopicSchema.untyped(), timestamps=NOW_MS, is_transactional=True))
        number_frame(frame, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
        begin = TransactionBegin(transactional_id=name, epoch=epoch, batch_id=batch_id)
        hosted = self.hosted.partitions[partition]
        pending = hosted.append([memoryview(frame)], acks=-1, leader_epoch=-1, now_ms=self.now_ms, begin=begin)
        hosted.complete(pending, acks=-1, timeout_s=0)
        return pending.base_offset

    def decide(self, epoch: int, batch_id: int, *producers: int, is_commit: bool = True) -> bool:
        """Returns whether it had been decided before."""
        return self.coordinator.decide(
            "sink",
            run_id="r1",
            epoch=epoch,
            batch_id=batch_id,
            is_commit=is_commit,
            producer_ids=[(each, each) for each in producers],
            partitions=[DecidedPartitions(topic="t", topic_id=TOPIC_ID.bytes, partitions=(0, 1))],
        ).is_replay

    def finish(self) -> None:
        """All partitions know all decisions."""
        record = self.coordinator.read("sink")
        assert record is not None
        self.coordinator.note_ended("sink", record.unfinished)
        self.coordinator.finish("sink")

    def visible(self, partition: int = 0) -> list[int]:
        """The offsets of the records that a reader of committed records gets."""
        log = self.hosted.partitions[partition].log
        found = self.hosted.partitions[partition].read(
            0, max_bytes=1 << 20, leader_epoch=-1, at_least_one=True, is_committed=True
        )
        if found is None:
            return []
        with found:
            aborted = log.aborted_transactions(found.start_offset, found.next_offset)
            offsets: list[int] = []
            for header, _ in visible_frames(found.load(), aborted):
                offsets += range(header.base_offset, header.next_offset)
            return offsets


class ImpatientClock(Clock):
    """Each look is ten seconds after the one before."""

    _now_s = 0.0

    def now_s(self) -> float:
        self._now_s += 10
        return self._now_s


def test_nothing_ends_while_nothing_is_decided() -> None:
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    cluster.ending.step()
    partition = cluster.hosted.partitions[0]
    assert (partition.last_stable_offset, cluster.visible()) == (0, [])
    assert [opened.producer_id for _, opened in cluster.ending.open_here()] == [7]


@pytest.mark.parametrize(("committed", "visible"), [((7,), [1, 2]), ((8,), [4, 5]), ((7, 8), [1, 2, 4, 5]), ((), [])])
def test_decision_commits_those_it_names_and_aborts_all_others(committed: tuple[int, ...], visible: list[int]) -> None:
    """Several attempts have written the same batch: one decision is about all of them."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    cluster.write(8, epoch, batch_id)
    cluster.decide(epoch, batch_id, *committed, is_commit=bool(committed))
    cluster.ending.step()
    partition = cluster.hosted.partitions[0]
    assert cluster.visible() == visible
    assert partition.last_stable_offset == partition.high_watermark
    assert cluster.ending.open_here() == []


def test_decision_of_one_batch_leaves_the_next_open() -> None:
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    cluster.decide(epoch, batch_id, 7)
    _, following = cluster.begin()
    cluster.write(9, epoch, following)
    cluster.ending.step()
    assert cluster.visible() == [1, 2]
    assert [opened.producer_id for _, opened in cluster.ending.open_here()] == [9]


def test_run_that_takes_over_ends_what_the_one_before_left_open() -> None:
    cluster = Cluster()
    epoch, batch_id = cluster.begin("r1")
    cluster.write(7, epoch, batch_id)
    later, _ = cluster.begin("r2")
    assert later > epoch
    cluster.ending.step()
    assert (cluster.visible(), cluster.ending.open_here()) == ([], [])
    with pytest.raises(ProducerFencedError):
        cluster.decide(epoch, batch_id, 7)


@pytest.mark.parametrize(("open_ms", "is_aborted"), [(LIMIT_MS, False), (LIMIT_MS + 1, True)])
def test_transaction_that_is_open_for_too_long_is_aborted_in_zookeeper_first(open_ms: int, is_aborted: bool) -> None:
    """Otherwise its producer could have it committed while a partition has ended it."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    cluster.now_ms += open_ms
    cluster.ending.step()
    assert (cluster.ending.open_here() == []) is is_aborted
    if is_aborted:
        with pytest.raises(ProducerFencedError, match="open for longer than 1000 ms"):
            cluster.decide(epoch, batch_id, 7)
    else:
        assert not cluster.decide(epoch, batch_id, 7)
    cluster.ending.step()
    assert cluster.visible() == ([] if is_aborted else [1, 2])


@pytest.mark.parametrize(("known_s", "is_aborted"), [(1.0, False), (1.5, True)])
def test_clock_that_was_set_back_keeps_no_transaction_open(known_s: float, is_aborted: bool) -> None:
    """Its leader knows for how long it has been there."""
    cluster = Cluster()
    now_s = 0.0
    cluster.ending = TransactionEnding(
        cluster.hosted.registry,
        cluster.coordinator,
        broker_id=1,
        wall_ms=lambda: cluster.now_ms,
        clock=ReadClock(lambda: now_s),
    )
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    cluster.now_ms -= DAY_MS
    cluster.ending.step()
    now_s = known_s
    cluster.ending.step()
    assert (cluster.ending.open_here() == []) is is_aborted


def test_decided_transaction_is_committed_however_late_its_leader_learns_of_it() -> None:
    """The time limit is about those without a decision."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    cluster.decide(epoch, batch_id, 7)
    cluster.now_ms += 10 * LIMIT_MS
    cluster.ending.step()
    assert cluster.visible() == [1, 2]


def test_nothing_known_of_an_id_is_no_decision_and_is_made_one() -> None:
    """An id whose znode is gone is aborted in ZooKeeper before its transactions end in a log."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    node = cluster.client.get(transaction_path("sink"))
    cluster.client.delete(transaction_path("sink"), version=node.version)
    cluster.ending.step()
    assert (cluster.visible(), cluster.ending.open_here()) == ([], [])
    record = cluster.coordinator.read("sink")
    assert record is not None
    assert record.epoch > epoch


def test_id_that_cannot_be_changed_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with one is its own: its record may be too large for ZooKeeper."""
    cluster = Cluster()
    for name, producer_id in (("a", 1), ("sink", 7)):
        record, batch_id, _ = cluster.coordinator.begin(
            name, run_id="r1", batch_id=-1, timeout_ms=LIMIT_MS, keep_ms=DAY_MS
        )
        cluster.write(producer_id, record.epoch, batch_id, name=name)
    real = TransactionCoordinator.abort_producers

    def abort_producers(self: TransactionCoordinator, name: str, *args: Any, **fields: Any) -> Any:
        if name == "a":
            raise InvalidRequestError("too large")
        return real(self, name, *args, **fields)

    monkeypatch.setattr(TransactionCoordinator, "abort_producers", abort_producers)
    cluster.now_ms += LIMIT_MS + 1
    cluster.ending.step()
    assert [opened.begin.transactional_id for _, opened in cluster.ending.open_here()] == ["a"]


def test_decisions_that_do_not_fit_into_a_znode_wait_for_each_other() -> None:
    """What is written about an id later, as that it was aborted, must still fit."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.decide(epoch, batch_id, *random.sample(range(1 << 60), 12_000))
    epoch, batch_id = cluster.begin()
    others = random.sample(range(1 << 60), 12_000)
    with pytest.raises(ConcurrentTransactionsError, match="Try again"):
        cluster.decide(epoch, batch_id, *others)
    cluster.finish()
    assert not cluster.decide(epoch, batch_id, *others)


def test_records_are_deleted_up_to_the_last_stable_offset() -> None:
    """A replica that begins behind it would not know of the transaction, and show what was never committed."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    partition = cluster.hosted.partitions[0]
    with pytest.raises(OffsetOutOfRangeError, match="up to the last stable offset, 0, not to 2"):
        partition.delete_records(2, timeout_s=0)
    assert partition.delete_records(None, timeout_s=0) == 0
    cluster.decide(epoch, batch_id, 7)
    cluster.ending.step()
    assert partition.delete_records(2, timeout_s=0) == 2
    assert partition.delete_records(None, timeout_s=0) == 4


def test_nothing_ends_while_zookeeper_is_away() -> None:
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    cluster.decide(epoch, batch_id, 7)
    cluster.now_ms += 10 * LIMIT_MS
    cluster.client.suspend()
    cluster.ending.step()
    assert len(cluster.ending.open_here()) == 1
    cluster.client.resume()
    cluster.ending.step()
    assert cluster.visible() == [1, 2]


def test_partition_that_is_led_elsewhere_is_left_alone_and_not_finished() -> None:
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    cluster.write(7, epoch, batch_id, partition=1)
    cluster.hosted.partitions[1].become_follower(leadership(2, leader=2, replicas=(1, 2), in_sync=(1, 2)))
    cluster.decide(epoch, batch_id, 7)
    led, followed = cluster.hosted.partitions
    done = cluster.ending.finish("sink", epoch=epoch, batch_id=batch_id, partitions=[led, followed, None])
    assert done == [True, False, False]
    assert cluster.visible() == [1, 2]


def test_decision_is_finished_once_all_in_sync_replicas_have_its_end() -> None:
    """Until then another replica could lead without it, and must be asked again."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    partition = cluster.hosted.partitions[0]
    partition.become_leader(leadership(2, replicas=(1, 2), in_sync=(1, 2)))
    cluster.decide(epoch, batch_id, 7)
    cluster.ending = TransactionEnding(
        cluster.hosted.registry,
        cluster.coordinator,
        broker_id=1,
        wall_ms=lambda: cluster.now_ms,
        clock=ImpatientClock(),
    )
    assert cluster.ending.finish("sink", epoch=epoch, batch_id=batch_id, partitions=[partition]) == [False]


def test_late_frame_of_a_decided_transaction_is_refused() -> None:
    """It would hold readers back, and its records could never be committed."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    cluster.decide(epoch, batch_id, 7)
    with pytest.raises(InvalidTxnStateError):
        cluster.coordinator.require_may_begin("sink", epoch=epoch, batch_id=batch_id, producer_id=8)
    cluster.ending.step()
    with pytest.raises((InvalidTxnStateError, ProducerFencedError)):
        cluster.write(8, epoch, batch_id)
    assert cluster.visible() == [1, 2]


def test_answer_that_was_lost_is_found_in_what_was_decided() -> None:
    """The decision is planned again from what is there: it is neither made twice nor reported as refused."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    assert not cluster.decide(epoch, batch_id, 7)
    again = cluster.another_coordinator().decide(
        "sink", run_id="r1", epoch=epoch, batch_id=batch_id, is_commit=True, producer_ids=[(7, 7)], partitions=()
    )
    assert (again.is_replay, again.decision.is_commit) == (False, True)


def test_another_brokers_coordinator_decides_on_what_the_first_one_wrote() -> None:
    """Coordinators keep nothing that matters."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    other = cluster.another_coordinator()
    other.require_may_begin("sink", epoch=epoch, batch_id=batch_id, producer_id=7)
    other.decide(
        "sink", run_id="r1", epoch=epoch, batch_id=batch_id, is_commit=True, producer_ids=[(7, 7)], partitions=()
    )
    cluster.now_ms += 501  # by what it knew half a second ago a transaction may begin, which is then ended
    with pytest.raises(InvalidTxnStateError):
        cluster.coordinator.require_may_begin("sink", epoch=epoch, batch_id=batch_id, producer_id=8)


def test_offsets_beside_a_decision_are_written_with_it_and_only_once() -> None:
    """`send_offsets_to_transaction`: both are there, or neither is."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.client.create("/offsets", b"0")

    def beside() -> list[Set]:
        return [Set("/offsets", b"5", cluster.client.get("/offsets").version)]

    def decide(run_id: str = "r1") -> None:
        cluster.coordinator.decide(
            "sink", run_id=run_id, epoch=epoch, batch_id=batch_id, is_commit=True, producer_ids=[(7, 7)],
            partitions=(), beside=beside,
        )  # fmt: skip

    with pytest.raises(ProducerFencedError):
        decide("r0")
    assert cluster.client.get("/offsets").data == b"0"
    decide()
    assert cluster.client.get("/offsets").data == b"5"
    version = cluster.client.get("/offsets").version
    decide()
    assert cluster.client.get("/offsets").version == version, "a decision that is there writes nothing"


def test_id_that_is_out_of_use_for_long_is_forgotten() -> None:
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.decide(epoch, batch_id, 7)
    cluster.now_ms += DAY_MS + 1
    assert not cluster.coordinator.forget("sink", now_ms=cluster.now_ms), "a decision is unfinished"
    cluster.finish()
    cluster.now_ms += DAY_MS + 1
    assert not cluster.coordinator.forget("sink", now_ms=NOW_MS), "a clock that is not believed"
    assert cluster.coordinator.forget("sink", now_ms=cluster.now_ms)
    assert cluster.coordinator.read("sink") is None


def test_id_that_was_forgotten_begins_anew_where_a_partition_remembers_it() -> None:
    """An idle log's time does not pass. A follower's memory follows from the frames."""
    cluster = Cluster()
    service = ProduceService(
        cluster.hosted.registry,
        require_may_begin=lambda identity, producer_id: cluster.coordinator.require_may_begin(
            identity.transactional_id, epoch=identity.epoch, batch_id=identity.batch_id, producer_id=producer_id
        ),
        forget_if_anew=cluster.ending.forget_if_anew,
        now_ms=lambda: cluster.now_ms,
    )

    def produce(producer_id: int, epoch: int, batch_id: int) -> PylogError | None:
        frame = bytearray(
            encode_frame(pa.record_batch({"value": pa.array([b"v"])}), TopicSchema.untyped(), timestamps=1)
        )
        number_frame(frame, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
        identity = TransactionIdentity(transactional_id="sink", epoch=epoch, batch_id=batch_id, run_id="r1")
        request = ProduceRequest(request_id=1, topic="t", partition=0, topic_id=TOPIC_ID.bytes, transaction=identity)
        return service.append(CLIENT, request, [pa.py_buffer(frame)]).error

    for number in range(3):
        epoch, batch_id = cluster.begin(f"r{number}")
        assert produce(number, epoch, batch_id) is None
        cluster.coordinator.decide(
            "sink", run_id=f"r{number}", epoch=epoch, batch_id=batch_id, is_commit=True,
            producer_ids=[(number, number)], partitions=(),
        )  # fmt: skip
        cluster.ending.step()
    assert isinstance(produce(7, 0, 0), ProducerFencedError)
    cluster.now_ms += DAY_MS + 1
    assert cluster.coordinator.forget("sink", now_ms=cluster.now_ms)
    epoch, batch_id = cluster.begin()
    assert (epoch, batch_id) == (0, 0)
    assert produce(8, epoch, batch_id) is None
    cluster.decide(epoch, batch_id, 8)
    cluster.ending.step()
    assert cluster.ending.open_here() == []
    assert isinstance(produce(9, epoch, batch_id), InvalidTxnStateError)
    log = cluster.hosted.partitions[0].log
    before = log.known_transactional_id("sink")
    assert before is not None
    assert (before.epoch, before.batch_id) == (0, 0)
    state = ProducerState()
    found = log.read(0, max_bytes=1 << 20, upto=log.log_end_offset)
    assert found is not None
    with found:
        for header, frame in iter_frames(found.load()):
            state.add(header, parse_control(frame) if header.is_control else None)
    after = state.transactions.known["sink"]
    assert (after.epoch, after.batch_id) == (0, 0)


def test_broker_whose_clock_is_behind_does_not_make_an_id_look_unused() -> None:
    """The time of its last use never falls."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.now_ms -= 2 * DAY_MS
    cluster.decide(epoch, batch_id, 7)
    cluster.finish()
    cluster.begin("r2")
    assert not cluster.coordinator.forget("sink", now_ms=NOW_MS)


def test_coordinator_reports_that_zookeeper_is_away() -> None:
    cluster = Cluster()
    cluster.client.suspend()
    with pytest.raises(ZooKeeperUnavailableError):
        cluster.begin()


def test_leader_that_is_told_of_a_decision_does_not_go_by_an_older_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper's servers may be behind each other: what is older than the decision is read again, behind a barrier."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    old = cluster.coordinator.read("sink")
    cluster.decide(epoch, batch_id, 7)
    behind = cluster.another_coordinator()
    real = behind.read_all
    monkeypatch.setattr(behind, "read_all", lambda names: [old for _ in names])
    monkeypatch.setattr(coordination, "barrier", lambda _: monkeypatch.setattr(behind, "read_all", real))
    cluster.ending = TransactionEnding(cluster.hosted.registry, behind, broker_id=1, wall_ms=lambda: cluster.now_ms)
    done = cluster.ending.finish("sink", epoch=epoch, batch_id=batch_id, partitions=[cluster.hosted.partitions[0]])
    assert (done, cluster.visible()) == ([True], [1, 2])


@pytest.mark.parametrize("takes_urgent", [True, False])
def test_transaction_ends_though_its_disk_takes_no_records(takes_urgent: bool) -> None:
    """Retention, which would make room, waits for the end. With less than a quarter of the room the end waits, too."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    disk = cluster.hosted.partitions[0].disk
    disk.takes_appends, disk.takes_urgent = False, takes_urgent  # type: ignore[misc,attr-defined]
    cluster.decide(epoch, batch_id, 7)
    cluster.ending.step()
    assert cluster.visible() == ([1, 2] if takes_urgent else [])


class Behind:
    """Another broker's coordinator, whose server of the ensemble lags: until a barrier it finds what was there when
    this was made."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        client = cluster.zookeeper.client()
        self.coordinator = TransactionCoordinator(
            client, steady_ms=lambda: cluster.now_ms, wall_ms=lambda: cluster.now_ms
        )
        self.barriers = 0
        old = client.find(transaction_path("sink"))
        real, real_all, real_barrier = client.find, client.find_all, coordination.barrier

        def barrier(of: object) -> None:
            if of is client:
                self.barriers += 1
            real_barrier(of)  # type: ignore[arg-type]

        monkeypatch.setattr(client, "find", lambda path: real(path) if self.barriers else old)
        monkeypatch.setattr(
            client, "find_all", lambda paths: real_all(paths) if self.barriers else [old for _ in paths]
        )
        monkeypatch.setattr(coordination, "barrier", barrier)


def test_broker_that_lags_gives_no_batch_out_that_was_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer asks one broker after the other: its next transaction would count as a replay of the last one."""
    cluster = Cluster()
    epoch, _ = cluster.begin()
    behind = Behind(cluster, monkeypatch)
    cluster.decide(epoch, 0, 7)
    begun = {
        batch_id: behind.coordinator.begin(
            "sink", run_id="r1", batch_id=batch_id, epoch=epoch, timeout_ms=LIMIT_MS, keep_ms=DAY_MS
        )
        for batch_id in (1, -1)
    }
    assert {each: (found.record.epoch, found.batch_id, found.is_decided) for each, found in begun.items()} == {
        1: (epoch, 1, False),
        -1: (epoch, 1, False),
    }
    assert behind.barriers == 1, "what is known to be current is not read behind a barrier"


def test_broker_that_lags_refuses_nobody_who_has_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run before had the id when that broker looked last."""
    cluster = Cluster()
    cluster.begin("r0")
    behind = Behind(cluster, monkeypatch)
    epoch, batch_id = cluster.begin("r1")
    fields = {"timeout_ms": LIMIT_MS, "keep_ms": DAY_MS}
    behind.coordinator.require_may_begin("sink", epoch=epoch, batch_id=batch_id, producer_id=7)
    behind.barriers = 0
    begun = behind.coordinator.begin("sink", run_id="r1", batch_id=-1, epoch=epoch, **fields)
    assert (begun.record.epoch, begun.batch_id, begun.is_decided) == (epoch, 0, False)
    behind.barriers = 0
    cluster.coordinator = behind.coordinator
    assert not cluster.decide(epoch, batch_id, 7)


def test_broker_that_lags_knows_an_id_that_has_just_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    behind = Behind(cluster, monkeypatch)
    epoch, batch_id = cluster.begin()
    behind.coordinator.require_may_begin("sink", epoch=epoch, batch_id=batch_id, producer_id=7)
    behind.barriers = 0
    cluster.coordinator = behind.coordinator
    assert not cluster.decide(epoch, batch_id, 7)
    behind.barriers = 0
    assert cluster.coordinator.abort_run("sink", "r1") is not None


def test_end_that_has_not_room_for_all_does_not_say_that_the_batch_is_over() -> None:
    """The rest follows in another frame, and only that one says so."""
    transactions = Transactions(
        [
            OpenTransaction(
                producer_id=n,
                first_offset=n,
                began_ms=0,
                begin=TransactionBegin(transactional_id="sink", epoch=0, batch_id=4),
            )
            for n in range(MOST_ENDED + 1)
        ]
    )
    planned = transactions.plan_end(Outcomes(transactional_id="sink", epoch=0, batch_id=4), MOST_ENDED + 1)
    assert planned is not None
    assert (len(planned.ended), planned.batch_id, planned.last_stable_offset) == (MOST_ENDED, -1, MOST_ENDED)


@pytest.mark.parametrize(("leader", "leader_epoch"), [(1, 1), (2, 2), (1, 2), (None, 1)])
def test_leader_that_was_replaced_does_not_answer_for_its_log(leader: int | None, leader_epoch: int) -> None:
    """It stood still, and has nothing of the batch: the frames are in its successor's log, which would abort them with
    the next decision if this one were forgotten."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.decide(epoch, batch_id, 7)
    partition = cluster.hosted.partitions[0]
    state = PartitionState(
        leader=leader, leader_epoch=leader_epoch, isr=(1, 2), controller_epoch=1, leader_broker_epoch=1
    )
    path = partition_state_path("t", 0)
    cluster.client.ensure_path(path)
    cluster.client.set(path, to_json(state), version=-1)
    has_ended = cluster.ending.finish("sink", epoch=epoch, batch_id=batch_id, partitions=[partition])
    assert has_ended == [(leader, leader_epoch) == (1, partition.leader_epoch)]


def test_leader_whose_log_has_the_end_answers_by_itself() -> None:
    """It asks nobody whether it leads: without in-sync replicas that have it, the end would not be committed."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    cluster.decide(epoch, batch_id, 7)
    partition = cluster.hosted.partitions[0]
    assert cluster.client.find(partition_state_path("t", 0)) is None
    for _ in range(2):
        assert cluster.ending.finish("sink", epoch=epoch, batch_id=batch_id, partitions=[partition]) == [True]
    cluster.decide(epoch, batch_id + 1, 8)
    has_ended = cluster.ending.finish("sink", epoch=epoch, batch_id=batch_id + 1, partitions=[partition])
    assert has_ended == [False], "of the next batch it knows nothing"


def written_and_aborted() -> Cluster:
    """The first segment has the records of an aborted transaction, the second those of a committed one."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    cluster.decide(epoch, batch_id, is_commit=False)
    cluster.ending.step()
    log = cluster.hosted.partitions[0].log
    with log._state.using("roll"):
        log._state.roll()
    cluster.write(8, epoch, batch_id + 1)
    cluster.decide(epoch, batch_id + 1, 8)
    cluster.ending.step()
    assert (log.segment_base_offsets, cluster.visible()) == ((0, 4), [])
    return cluster


def delete_after(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    """Each read finds its slice, then another thread deletes what is before offset 4."""
    partition = cluster.hosted.partitions[0]
    real = partition.read

    def read(*args: Any, **options: Any) -> Any:
        found = real(*args, **options)
        partition.log.delete_records(4)
        return found

    monkeypatch.setattr(partition, "read", read)


def test_fetch_of_records_that_are_deleted_meanwhile_shows_nothing_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slice holds the file, but the index that says what is aborted goes with the segment."""
    cluster = written_and_aborted()
    delete_after(monkeypatch, cluster)
    wanted = FetchPartition(topic="t", topic_id=TOPIC_ID.bytes, partition=0, offset=0)
    read = PartitionRead(wanted=wanted, partition=cluster.hosted.partitions[0])
    with pytest.raises(OffsetOutOfRangeError, match="offset 0 of t-0 was deleted while it was read"):
        read_for_consumer(read, 1 << 20, is_first=True, is_committed=True)
    assert read.found is None


def test_range_of_records_that_are_deleted_meanwhile_shows_nothing_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = written_and_aborted()
    delete_after(monkeypatch, cluster)
    partition = cluster.hosted.partitions[0]
    service = ReadService(cluster.hosted.registry, budget=ByteBudget(1 << 30))
    plan = ReadRange(
        partition=partition,
        start=0,
        end=partition.last_stable_offset,
        columns=None,
        piece_bytes=1 << 20,
        leader_epoch=-1,
        is_committed=True,
    )
    with pytest.raises(OffsetOutOfRangeError, match="was deleted while it was read"):
        list(service.pieces(CLIENT, plan))


def test_id_whose_record_is_damaged_holds_up_no_other() -> None:
    """W25: what is damaged is refused by its path, and harms nothing else."""
    cluster = Cluster()
    epoch, batch_id = cluster.begin()
    cluster.write(7, epoch, batch_id)
    cluster.decide(epoch, batch_id, 7)
    path = transaction_path("a")
    cluster.client.create(path, b"{")
    cluster.write(8, 0, 0, name="a", partition=1)
    cluster.ending.step()
    assert cluster.visible() == [1, 2]
    assert list(cluster.coordinator.read_sound(["a", "sink"])) == ["sink"]
    with pytest.raises(CorruptRecordError, match=path):
        cluster.coordinator.read_all(["a", "sink"])
