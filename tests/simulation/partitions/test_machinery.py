"""The parts of the partitions' workload: brokers, disks and the checker do what the runs rely on."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pytest

from broker_runtime.contract.frame import parse_header
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.schema import SchemaHistory, TopicSchema
from broker_runtime.log import LogDirectory
from broker_runtime.replication import Partition
from broker_runtime.replication.registry import KnownTopic
from tests.simulation.partitions.broker.disk import SimFiles
from tests.simulation.partitions.broker.life import SimRegistry
from tests.simulation.partitions.committed import Committed
from tests.simulation.partitions.log_view import DiskView, StoredFrame
from tests.simulation.partitions.world import World
from tests.simulation.simulator.network import Weather
from tests.simulation.simulator.outcome import ViolationError
from tests.simulation.simulator.scheduler import MS, SECOND, Crashed
from tests.simulation.simulator.zookeeper import ZooKeeperWeather
from tests.topic_settings import topic_settings
from tests.unit.replication.partitions import RoomyDisk, frame, leadership

AT = TopicPartition("t", 0)
TOPIC_ID = uuid.UUID(int=7)


# --- brokers ------------------------------------------------------------------------------------------------------


def test_broker_that_starts_does_not_answer_before_it_serves():
    """Its port is opened after it has registered."""
    world = World(1, brokers=1, weather=Weather(), zookeeper_weather=ZooKeeperWeather())
    node, seen = world.nodes[1], []

    def look():
        seen.append((node.life is not None, node.is_up, world.answers("b2", 1)))

    with world.environment():
        node.start()
        for number in range(2_000):
            world.scheduler.after(number * MS, "net", look)
        world.scheduler.run(2 * SECOND)
    assert set(seen) == {(False, False, False), (True, False, False), (True, True, True)}


# --- disks and what is seen of them -------------------------------------------------------------------------------


@pytest.fixture
def files():
    return SimFiles(wait=lambda path: None, on_crash=lambda: None)


def written(files, *values):
    """A log with a frame for each value, made durable but for the last."""
    directory = LogDirectory.open(Path("/data"), cluster_id="c", broker_id=1, files=files)
    log = directory.log("t", 0, TOPIC_ID, topic_settings())
    for number, value in enumerate(values):
        if number == len(values) - 1:
            log.flush()
        log.append_as_leader([frame(value)], leader_epoch=3, now_ms=1_700_000_000_000)
    return log


def test_log_is_seen_as_it_lies_on_the_disk_and_how_much_of_it_is_durable(files):
    """Without opening it."""
    written(files, b"a", b"b", b"c")
    view = DiskView(files, {"t": [TOPIC_ID.bytes]})
    assert view.refresh() == [AT]
    assert [stored.base_offset for stored in view.logs[AT].frames] == [0, 1, 2]
    assert view.logs[AT].durable_end(files) == 2
    assert view.refresh() == []


def test_log_ends_for_the_observer_at_the_first_damaged_frame(files):
    """And is looked at again where something but an append happened to it."""
    log = written(files, b"a", b"b", b"c")
    view = DiskView(files, {"t": [TOPIC_ID.bytes]})
    view.refresh()
    path = Path("/data/t-0") / f"{0:020d}.log"
    files.damage(path, parse_header(files.content(path)).frame_bytes + 300, 1)
    view.refresh()
    assert [stored.base_offset for stored in view.logs[AT].frames] == [0]
    assert view.logs[AT].changes == 1
    assert log.log_end_offset == 3


def test_bad_frame_of_deleted_records_does_not_end_a_log(files):
    """A power failure may leave it half written, and no broker looks at it."""
    log = written(files, b"a", b"b", b"c")
    path = Path("/data/t-0") / f"{0:020d}.log"
    files.damage(path, parse_header(files.content(path)).frame_bytes - 1, 1)
    view = DiskView(files, {"t": [TOPIC_ID.bytes]})
    view.refresh()
    assert view.logs[AT].frames == []
    log.set_high_watermark(2)
    log.delete_records(1, 1)
    view.refresh_all()
    view.refresh()
    assert [stored.base_offset for stored in view.logs[AT].frames] == [1, 2]
    assert not view.logs[AT].is_whole


def test_dead_disk_takes_nothing(files):
    """After a crash nothing reaches it until the machine is up again."""
    log = written(files, b"a", b"b")
    files.die(random.Random(1), power_lost=True)
    with pytest.raises(Crashed):
        log.append_as_leader([frame(b"late")], leader_epoch=3, now_ms=1_700_000_000_000)
    files.revive()
    reopened = LogDirectory.open(Path("/data"), cluster_id="c", broker_id=1, files=files)
    assert reopened.log("t", 0, TOPIC_ID, topic_settings()).log_end_offset in {1, 2}


# --- the checker --------------------------------------------------------------------------------------------------


def stored(files, *values):
    """Frames as they are in a log."""
    written(files, *values)
    view = DiskView(files, {"t": [TOPIC_ID.bytes]})
    view.refresh()
    return view.logs[AT].frames


def test_rise_of_a_high_watermark_is_looked_at_while_its_leader_leads(files):
    """Also where the end of the role waits meanwhile for the partition's lock, and comes in the same step."""
    log, seen = written(files, b"a", b"b"), []
    registry = SimRegistry(lambda: seen.append((partition.is_leader, log.high_watermark)))
    schemas = SchemaHistory([TopicSchema.untyped()])
    registry.know_topic("t", KnownTopic(topic_id=TOPIC_ID.bytes, partition_count=1, schemas=schemas))
    partition = Partition(log, broker_id=1, disk=RoomyDisk())
    registry.host(partition)
    partition.become_leader(leadership())
    with partition._lock:
        partition.step_down()
        partition._advance_high_watermark()
    assert not partition.is_leader
    assert seen[-1] == (True, log.high_watermark) == (True, 1)


def test_batch_that_is_there_twice_violates_the_first_invariant(files):
    """Invariant 1."""
    first, second = stored(files, b"a", b"b")
    again = StoredFrame(second.header, second.topic_id, second.content, first.body, second.segment, second.end_position)
    with pytest.raises(ViolationError) as raised:
        Committed(AT).extend([first, again], 2)
    assert raised.value.number == 1


def test_high_watermark_beyond_the_log_violates_the_fifth(files):
    """Invariant 5."""
    with pytest.raises(ViolationError) as raised:
        Committed(AT).extend(stored(files, b"a"), 2)
    assert raised.value.number == 5


def test_log_that_lacks_or_differs_is_told_apart_from_one_that_deleted(files):
    """Invariant 2, and what was deleted rightly is missing nowhere."""
    first, second = stored(files, b"a", b"b")
    committed = Committed(AT)
    committed.extend([first, second], 2)
    assert committed.missing_in([first, second], 0, 2) is None
    assert "offset 1 (epoch 3) is not there" in str(committed.missing_in([first], 0, 2))
    other = StoredFrame(second.header, second.topic_id, 4711, second.body, second.segment, second.end_position)
    assert "another frame" in str(committed.missing_in([first, other], 0, 2))
    committed.log_start = 1
    assert committed.missing_in([second], 0, 2) is None


def test_what_is_lost_rightly_is_known_until_it_comes_again(files):
    """A log that lacks the second counts as the log; what comes at its place later is no other than committed."""
    first, second = stored(files, b"a", b"b")
    committed = Committed(AT)
    committed.extend([first, second], 2)
    assert committed.count_as([first, second]) == []
    assert committed.count_as([first]) == [second]
    assert (committed.end, committed.given_up) == (1, {second.body})
    assert committed.missing_in([first], 0, 2) is None
    committed.extend([second], 2)
    assert (committed.end, committed.given_up) == (2, set())
