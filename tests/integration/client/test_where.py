"""``where`` in `read` and `Consumer`: exactly the records that match; frames that cannot match stay at the broker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pyspark_log import Admin, Consumer, Producer, TopicPartition, errors, read
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.reading.range_reader import read_range
from pyspark_log.client.reading.rows import RowFilter, topic_predicate

FRAMES, ROWS = 60, 50
"""Of each partition. Each frame has ``day`` 0 to 59, which its statistics say, and ``delay`` at random."""


@pytest.fixture
def flights(new_topic: Callable[..., str]) -> str:
    name = new_topic(2, schema="day int32, delay float64, carrier string")
    rng = random.Random(7)
    with Producer(linger_ms=0) as producer:
        for day in range(FRAMES):
            for partition in (0, 1):
                rows = {
                    "day": pa.array([day] * ROWS, pa.int32()),
                    "delay": pa.array([rng.choice([None, float("nan"), rng.gauss(0, 20)]) for _ in range(ROWS)]),
                    "carrier": pa.array([rng.choice(["AA", "UA", None]) for _ in range(ROWS)]),
                }
                producer.send_batch(name, pa.record_batch(rows), partition=partition).result(30)
    return name


def frames_sent(topic: str, where: str) -> int:
    """How many of the topic's 120 frames the brokers send."""
    with closing(Cluster.at(None)) as cluster:
        described = cluster.topic(topic)
        schema = described.schema
        test = RowFilter(topic, schema, topic_predicate(where, schema)).frame_test
        return sum(
            len(list(read_range(cluster, described, partition, 0, FRAMES * ROWS, where=test))) for partition in (0, 1)
        )


@pytest.mark.parametrize(
    ("where", "frames"),
    [
        ("day = 7", 2),
        ("day BETWEEN 10 AND 12 AND carrier IS NOT NULL", 6),
        ("day < 2 OR day >= 59", 6),
        ("NOT day > 0", 2),
        ("day > 100", 0),
        ("day IN (" + ", ".join(map(str, range(30, 250))) + ")", 60),
        ("carrier = 'AA' AND day <> 5", 118),
        ("_metadata.partition = 1 AND day < 3", 3),
        ("_metadata.offset < 50", 2),
        ("_metadata.timestamp < TIMESTAMP '2020-01-01 00:00:00Z'", 0),
        ("delay > 0", 120),  # frames with NaN say nothing of their bounds
        ("carrier > 'Z'", 0),
        ("carrier LIKE 'B%'", 120),  # lies between the bounds
    ],
)
def test_brokers_leave_out_frames_in_which_no_record_can_match(flights: str, where: str, frames: int) -> None:
    """S8: by what a frame's statistics and header say, and never one too many."""
    table = read(flights, metadata=True).read_all()
    found = read(flights, where=where, metadata=True).read_all()
    assert frames_sent(flights, where) == frames
    by_arrow = [row for row in table.to_pylist() if _matches(where, row)]
    assert str(found.to_pylist()) == str(by_arrow)


def _matches(where: str, row: dict[str, object]) -> bool:
    """The predicates of the test above, said again in Python."""
    day, carrier, delay = row["day"], row["carrier"], row["delay"]
    metadata = row["_metadata"]
    assert isinstance(day, int)
    assert isinstance(metadata, dict)
    nan_is_largest = delay is not None and not delay <= 0  # type: ignore[operator]
    return {
        "day = 7": day == 7,
        "day BETWEEN 10 AND 12 AND carrier IS NOT NULL": 10 <= day <= 12 and carrier is not None,
        "day < 2 OR day >= 59": day < 2 or day >= 59,
        "NOT day > 0": day <= 0,
        "day > 100": False,
        "carrier = 'AA' AND day <> 5": carrier == "AA" and day != 5,
        "_metadata.partition = 1 AND day < 3": metadata["partition"] == 1 and day < 3,
        "_metadata.offset < 50": metadata["offset"] < 50,
        "delay > 0": nan_is_largest,
    }.get(where, where.startswith("day IN") and day >= 30)


def polled(consumer: Consumer, kind: str, count: int) -> list[tuple[int, int]]:
    """(partition, offset) of the next ``count`` records."""
    found: list[tuple[int, int]] = []
    deadline = time.monotonic() + 30
    if kind == "loop":
        for record in consumer:
            found.append((record.partition, record.offset))
            if len(found) == count:
                return found
    while len(found) < count and time.monotonic() < deadline:
        if kind == "poll":
            found += [(record.partition, record.offset) for record in consumer.poll(1.0, max_records=7)]
        else:
            for batch in consumer.poll_batches(1.0):
                found += [(batch.partition, offset) for offset in batch.offsets.to_pylist()]
    return found


@pytest.mark.parametrize("kind", ["poll", "poll_batches", "loop"])
@pytest.mark.parametrize("columns", [None, ["carrier"]])
def test_consumer_gets_exactly_the_records_that_match(flights: str, kind: str, columns: list[str] | None) -> None:
    """S8: with their own offsets, each once; columns that only the predicate needs are not among the record's."""
    where = "carrier = 'UA' AND day >= 40 AND delay < 10"
    table = read(flights, metadata=True).read_all().combine_chunks()
    mask = pc.and_(pc.equal(table["carrier"], "UA"), pc.greater_equal(table["day"], 40))
    mask = pc.and_kleene(mask, pc.less(table["delay"], 10.0))
    expected = table.filter(mask)["_metadata"].to_pylist()
    with Consumer(where=where, columns=columns, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(flights)
        found = polled(consumer, kind, len(expected))
        assert sorted(found) == [(each["partition"], each["offset"]) for each in expected]
        assert consumer.poll(0.5) == []
        assert {consumer.position(at) for at in consumer.assignment()} == {FRAMES * ROWS}
        consumer.seek_to_beginning()
        record = consumer.poll(10.0, max_records=1)[0]
    assert record.row is not None
    assert set(record.row) == set(columns or ["day", "delay", "carrier"])


def test_group_has_no_lag_behind_what_does_not_match(flights: str, new_group: Callable[[], str], admin: Admin) -> None:
    """S8: offsets stay offsets: what was passed over counts as read, and nothing of it comes again."""
    group = new_group()
    with Consumer(where="day = 3", group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(flights)
        assert len(polled(consumer, "poll", 2 * ROWS)) == 2 * ROWS
        deadline = time.monotonic() + 30
        while any(consumer.lag(at) for at in consumer.assignment()) and time.monotonic() < deadline:
            consumer.poll(0.2)
        consumer.commit()
    described = admin.list_group_offsets(group)
    assert {at: place.committed for at, place in described.items()} == dict.fromkeys(
        [TopicPartition(flights, 0), TopicPartition(flights, 1)], FRAMES * ROWS
    )


def test_predicate_that_does_not_fit_is_refused_when_the_consumer_subscribes(flights: str) -> None:
    """Bad input is one clear error, and nothing is subscribed to."""
    with Consumer(where="carriers = 'UA'") as consumer:
        with pytest.raises(errors.InvalidPredicateError, match=r"no column 'carriers'.*carrier"):
            consumer.subscribe(flights)
        assert consumer.assignment() == set()


def test_loop_that_is_left_and_seek_into_a_frame_lose_nothing(flights: str) -> None:
    """S8: what matches lies between what does not, and a position may be anywhere."""
    at = TopicPartition(flights, 0)
    rows = read(flights, partitions=[0], where="carrier = 'UA'", metadata=True).read_all().to_pylist()
    expected = [row["_metadata"]["offset"] for row in rows]
    with Consumer(where="carrier = 'UA'") as consumer:
        consumer.assign([at])
        consumer.seek_to_beginning()
        found: list[int] = []
        for stop in range(7, 120, 7):
            for record in consumer:
                found.append(record.offset)
                if len(found) == stop:
                    break
            assert consumer.position(at) <= expected[len(found)]
        assert found == expected[: len(found)]
        for number in (3, 40, 200):
            consumer.seek(at, expected[number] + 1)
            assert [record.offset for record in consumer.poll(10.0, max_records=2)] == expected[number + 1 : number + 3]


def test_transactions_are_seen_as_without_a_predicate(new_topic: Callable[..., str]) -> None:
    """S8, W9: aborted records match nothing, and nobody passes over those that are still open."""
    name = new_topic(1, schema="day int32")
    batch = pa.record_batch({"day": pa.array(range(40), pa.int32())})
    with Producer(transactional_id=f"tx-{name}") as producer:
        for is_kept in (True, False, True):
            producer.begin_transaction()
            producer.send_batch(name, batch)
            (producer.commit_transaction if is_kept else producer.abort_transaction)()
        producer.begin_transaction()
        producer.send_batch(name, batch)
        producer.flush()
        at = TopicPartition(name, 0)
        with Consumer(where="day >= 38") as consumer, Consumer(where="day > 99") as nothing:
            for each in (consumer, nothing):
                each.assign([at])
                each.seek_to_beginning()
            assert len(polled(consumer, "poll", 4)) == 4
            stable = consumer.end_offsets([at])[at]
            deadline = time.monotonic() + 30
            while nothing.position(at) < stable and time.monotonic() < deadline:
                assert nothing.poll(0.2) == []
            assert nothing.poll(1.0) == consumer.poll(1.0) == []
            assert nothing.position(at) == consumer.position(at) == stable
            producer.commit_transaction()
            assert len(polled(consumer, "poll", 2)) == 2
    assert read(name, where="day >= 38").read_all().num_rows == 6
