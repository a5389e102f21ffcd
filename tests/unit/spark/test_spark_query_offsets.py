"""A streaming query's offsets against a log in memory: where it starts, how far it goes, and what it calls lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from broker_runtime.contract.errors import DataLossError, OptionError, UnknownTopicOrPartitionError
from broker_runtime.contract.model import TopicPartition
from pyspark_log.spark.offsets import SourceOffset
from pyspark_log.spark.options import parse_source_options
from pyspark_log.spark.query_offsets import LogSnapshot, QueryOffsets
from tests.unit.client.channels import FakeClock

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
MISSING = "topic 't'"


class LogInMemory:
    """Partitions with a first offset and an end; topics with ids that change when they are recreated."""

    def __init__(self, **ends: int) -> None:
        self.spans: dict[TopicPartition, tuple[int, int]] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.group: SourceOffset = {}
        self.times: dict[TopicPartition, list[int]] = {}  # of the records from offset 0 on
        self.snapshots = 0
        self.scripted: list[LogSnapshot] = []
        self.make("t", *ends.values())

    def make(self, topic: str, *ends: int) -> None:
        self.delete(topic)
        self.topic_ids[topic] = f"{topic}{len(self.topic_ids)}{self.snapshots}".encode()
        for partition, end in enumerate(ends):
            self.spans[TopicPartition(topic, partition)] = (0, end)

    def delete(self, topic: str) -> None:
        self.topic_ids.pop(topic, None)
        self.spans = {tp: span for tp, span in self.spans.items() if tp.topic != topic}

    def snapshot(self) -> LogSnapshot:
        self.snapshots += 1
        if self.scripted:
            return self.scripted.pop(0)
        return LogSnapshot(
            topic_ids=dict(self.topic_ids),
            earliest={tp: start for tp, (start, _) in self.spans.items()},
            latest={tp: end for tp, (_, end) in self.spans.items()},
            missing=() if "t" in self.topic_ids else (MISSING,),
        )

    def committed(self, partitions: Iterable[TopicPartition]) -> SourceOffset:
        return {tp: self.group[tp] for tp in partitions if tp in self.group}

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> SourceOffset:
        first = {
            tp: next((offset for offset, at in enumerate(self.times.get(tp, ())) if at >= time), None)
            for tp, time in times.items()
        }
        return {tp: offset for tp, offset in first.items() if offset is not None}


def query(log: LogInMemory, clock: FakeClock | None = None, **given: str) -> QueryOffsets:
    options = {"subscribe": "t", "startingOffsets": "earliest", "pylog.group.id": "g", **given}
    return QueryOffsets(parse_source_options(options), log, clock=clock or FakeClock())


def spans(planned: list) -> list[list[tuple[TopicPartition, int, int]]]:
    return [[(one.range.partition, one.range.start, one.range.end) for one in part] for part in planned]


def test_initial_offset_never_changes() -> None:
    """`latest` is resolved at the first call, however often Spark asks."""
    log = LogInMemory(p0=5)
    offsets = query(log, startingOffsets="latest")
    assert offsets.initial() == {T0: 5}
    log.spans[T0] = (0, 9)
    assert offsets.initial() == {T0: 5}


def test_initial_offset_is_the_groups_commit_or_earliest() -> None:
    """S5: `startingOffsets=committed` starts at the group's offset, or at earliest."""
    log = LogInMemory(p0=5, p1=5)
    log.group = {T0: 3}
    assert query(log, startingOffsets="committed").initial() == {T0: 3, T1: 0}


@pytest.mark.parametrize(
    "given",
    [
        {"startingTimestamp": "200"},
        {"startingOffsetsByTimestamp": '{"t":{"0":200,"1":200}}'},
        {"startingOffsetsByTimestamp": '{"t":200}'},
        {"startingTimestamp": "200", "startingOffsetsByTimestamp": '{"t":999}'},
    ],
)
def test_query_starts_at_the_first_record_of_a_time(given: dict[str, str]) -> None:
    """S4: Kafka's order: one time for all, then times by partition, then offsets."""
    log = LogInMemory(p0=3, p1=2)
    log.times = {T0: [100, 300, 200], T1: [100, 200]}
    assert query(log, startingOffsets="latest", **given).initial() == {T0: 1, T1: 1}


def test_time_after_all_records_is_refused_or_the_end() -> None:
    """S4: startingOffsetsByTimestampStrategy."""
    log = LogInMemory(p0=2, p1=2)
    log.times = {T0: [100, 200], T1: [100, 300]}
    with pytest.raises(OptionError, match="No offset matched from request of topic-partition t-0 and timestamp 300"):
        query(log, startingTimestamp="300").initial()
    given = {"startingTimestamp": "300", "startingOffsetsByTimestampStrategy": "latest"}
    first = query(log, **given)
    start = first.initial()
    assert start == {T0: 2, T1: 1}
    end = first.latest(start, None)
    assert end == {T0: 2, T1: 2}
    log.times[T0] += [250, 300]
    log.spans[T0] = (0, 4)
    again = query(log, **given)
    assert spans(again.plan(again.initial(), end)) == [[(T1, 1, 2)]]
    assert spans(again.plan(end, again.latest(end, None))) == [[(T0, 2, 4)]]


def test_record_that_is_written_while_times_are_looked_up_is_no_loss() -> None:
    """The offset that was found may be newer than the first look at the log's end."""
    log = LogInMemory(p0=1)
    log.times = {T0: [100, 200]}
    log.scripted = [log.snapshot()]
    log.spans[T0] = (0, 2)
    assert query(log, startingTimestamp="200").initial() == {T0: 1}


def test_times_must_be_of_the_assigned_partitions() -> None:
    """S4: as specific offsets."""
    log = LogInMemory(p0=1, p1=1)
    log.times = {T0: [1], T1: [1]}
    for text in ('{"u":{"0":1}}', '{"t":{"0":1,"7":1}}'):
        with pytest.raises(OptionError, match="startingOffsetsByTimestamp contains specific timestamps, you must"):
            query(log, startingOffsetsByTimestamp=text).initial()


def test_few_offsets_wait_for_more_but_not_for_ever() -> None:
    """S4: minOffsetsPerTrigger and maxTriggerDelay; the first micro-batch of a process never waits."""
    log, clock = LogInMemory(p0=0, p1=0), FakeClock()
    source = query(log, clock, minOffsetsPerTrigger="10", maxTriggerDelay="5min")
    start = source.initial()
    assert source.latest(start, None, 10) == start
    log.spans[T0] = (0, 1)
    first = source.latest(start, None, 10)
    assert first == {T0: 1, T1: 0}
    log.spans[T0], log.spans[T1] = (0, 5), (0, 5)
    assert source.latest(first, None, 10) == first
    log.spans[T1] = (0, 6)
    second = source.latest(first, None, 10)
    assert second == {T0: 5, T1: 6}
    log.spans[T0] = (0, 6)
    clock.sleep(299)
    assert source.latest(second, None, 10) == second
    clock.sleep(1)
    assert source.latest(second, None, 10) == {T0: 6, T1: 6}


def test_both_limits_count_together_and_neither_ends_a_bounded_query_early() -> None:
    """S4: compositeReadLimit; with availableNow what is there is read, however little."""
    log = LogInMemory(p0=30)
    source = query(log, minOffsetsPerTrigger="10", maxOffsetsPerTrigger="20")
    first = source.latest(source.initial(), 20, 10)
    assert first == {T0: 20}
    second = source.latest(first, 20, 10)
    assert second == {T0: 30}
    log.spans[T0] = (0, 39)
    assert source.latest(second, 20, 10) == second
    source.bound()
    assert source.latest(second, 20, 10) == {T0: 39}


@pytest.mark.parametrize(("asked", "given"), [(2, 4), (11, 10), (4, 4), (10, 10)])
def test_initial_offset_outside_the_log_is_loss_or_the_nearest(asked: int, given: int) -> None:
    """S4: failOnDataLoss decides between an error and the nearest existing offset."""
    log = LogInMemory(p0=10)
    log.spans[T0] = (4, 10)
    text = f'{{"t":{{"0":{asked}}}}}'
    assert query(log, startingOffsets=text, failOnDataLoss="false").initial() == {T0: given}
    if asked != given:
        with pytest.raises(DataLossError, match="log has 4 to 10"):
            query(log, startingOffsets=text).initial()


def test_initial_offset_names_missing_topics() -> None:
    """The error names the missing topic and says how to create one."""
    log = LogInMemory(p0=1)
    log.delete("t")
    with pytest.raises(UnknownTopicOrPartitionError, match=MISSING):
        query(log).initial()


def test_initial_offset_must_name_all_partitions() -> None:
    """S4: specific offsets need every partition."""
    new = query(LogInMemory(p0=5, p1=5), startingOffsets='{"t":{"0":1}}')
    with pytest.raises(OptionError, match="must specify all TopicPartitions"):
        new.latest(new.initial(), None)
    with pytest.raises(OptionError, match="must specify all TopicPartitions"):
        query(LogInMemory(p0=5), startingOffsets='{"t":{"0":1,"7":1}}').initial()


@pytest.mark.parametrize("starting", ["latest", '{"t":{"0":-1}}'])
@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("appended", [0, 20])
def test_first_micro_batch_of_a_query_from_latest_is_the_same_after_a_restart(
    starting: str, fail: str, appended: int
) -> None:
    """S4, S6: its end is in the checkpoint, its start is not: Spark asks for the initial offset again."""
    log = LogInMemory(p0=100)
    first = query(log, startingOffsets=starting, failOnDataLoss=fail)
    start = first.initial()
    log.spans[T0] = (0, 130)
    end = first.latest(start, None)
    assert (end, spans(first.plan(start, end))) == ({T0: 100}, [])
    log.spans[T0] = (0, 130 + appended)
    again = query(log, startingOffsets=starting, failOnDataLoss=fail)
    assert spans(again.plan(again.initial(), end)) == []
    after = again.latest(end, None)
    assert spans(again.plan(end, after)) == [[(T0, 100, 130 + appended)]]


@pytest.mark.parametrize(("starting", "begin"), [("earliest", 0), ('{"t":{"0":3}}', 3)])
def test_partition_that_was_added_before_the_first_micro_batch_is_planned_again_is_new(
    starting: str, begin: int
) -> None:
    log = LogInMemory(p0=100)
    first = query(log, startingOffsets=starting)
    end = first.latest(first.initial(), None)
    log.spans[T1] = (0, 7)
    again = query(log, startingOffsets=starting)
    assert spans(again.plan(again.initial(), end)) == [[(T0, begin, 100)]]
    after = again.latest(end, None)
    assert spans(again.plan(end, after)) == [[(T1, 0, 7)]]


def test_log_that_lost_its_end_is_not_read_again() -> None:
    """An unclean election: the topic is known to be the same."""
    log = LogInMemory(p0=1_000)
    running = query(log, failOnDataLoss="false")
    start = running.latest(running.initial(), None)
    log.spans[T0] = (0, 990)
    end = running.latest(start, None)
    assert (end, spans(running.plan(start, end))) == ({T0: 990}, [])
    log.spans[T0] = (0, 995)
    assert spans(running.plan(end, running.latest(end, None))) == [[(T0, 990, 995)]]


def test_topic_recreated_where_a_limit_ends_at_the_same_number_is_read() -> None:
    """Spark sees nothing new in an end that is the start."""
    log = LogInMemory(p0=1_000)
    running = query(log, failOnDataLoss="false")
    start = running.latest(running.initial(), 1_000)
    log.make("t", 5_000)
    end = running.latest(start, 1_000)
    assert spans(running.plan(start, end)) == [[(T0, 0, 999)]]
    after = running.latest(end, 1_000)
    assert spans(running.plan(end, after)) == [[(T0, 999, 1_999)]]


def test_micro_batch_that_is_planned_again_is_looked_at_twice() -> None:
    """A broker that has just learned of a partition knows less than the one that was asked before."""
    log = LogInMemory(p0=5, p1=9)
    known = log.snapshot()
    without = LogSnapshot(topic_ids=known.topic_ids, earliest={T0: 0}, latest={T0: 5})
    log.scripted = [without]
    assert spans(query(log, failOnDataLoss="false").plan({T0: 0, T1: 5}, {T0: 5, T1: 9})) == [[(T0, 0, 5), (T1, 5, 9)]]


def test_records_that_are_gone_take_no_part_in_the_limit() -> None:
    """Retention has removed twenty micro-batches' worth while the query was stopped."""
    log = LogInMemory(p0=21_000)
    log.spans[T0] = (20_000, 21_000)
    assert query(log, failOnDataLoss="false").latest({T0: 0}, 500) == {T0: 20_500}


def test_latest_goes_to_the_end_or_to_the_limit() -> None:
    """S4: without a limit everything is taken; a limit is divided in proportion."""
    log = LogInMemory(p0=100, p1=10)
    offsets = query(log)
    start = offsets.initial()
    assert offsets.latest(start, None) == {T0: 100, T1: 10}
    assert offsets.latest(start, 11) == {T0: 10, T1: 1}
    assert offsets.reported == {T0: 100, T1: 10}


def test_latest_is_the_start_when_nothing_is_new() -> None:
    """An idle query makes no micro-batch."""
    offsets = query(LogInMemory(p0=5))
    assert offsets.latest({T0: 5}, None) == {T0: 5}


def test_partition_added_while_the_query_runs_is_read_from_its_first_record() -> None:
    """S2/S4: added partitions are included in the next `latestOffset`, within the limit."""
    log = LogInMemory(p0=5)
    offsets = query(log)
    end = offsets.latest({T0: 0}, None)
    log.spans[T1] = (0, 40)
    assert offsets.latest(end, 10) == {T0: 5, T1: 10}
    assert spans(offsets.plan(end, {T0: 5, T1: 10})) == [[(T1, 0, 10)]]


def test_empty_partition_map_is_never_recorded() -> None:
    """SPARK-41375: a pattern that matches nothing yields no offset of its own."""
    log = LogInMemory(p0=5)
    log.delete("t")
    offsets = query(log, failOnDataLoss="false")
    assert offsets.latest({T0: 5}, None) == {T0: 5}


def test_topics_of_an_offset_are_those_that_were_read() -> None:
    """S5: what is done counts for the topic that was read, also when another has its name by now; nothing is known of
    an offset from before the start."""
    log = LogInMemory(p0=5)
    offsets = query(log, failOnDataLoss="false")
    assert offsets.topic_ids_at({T0: 0}) == {}
    done = offsets.latest({T0: 0}, None)
    old = dict(log.topic_ids)
    log.make("t", 3)
    assert offsets.topic_ids_at(done) == old
    assert offsets.topic_ids_at(offsets.latest(done, None)) == log.topic_ids != old


def test_deleted_topic_is_data_loss_or_left_out() -> None:
    """S4 PARTITIONS_DELETED: failOnDataLoss decides."""
    log = LogInMemory(p0=5)
    log.make("u", 3)
    strict, lenient = query(log), query(log, failOnDataLoss="false")
    log.delete("t")
    with pytest.raises(DataLossError, match="t-0 were deleted"):
        strict.latest({T0: 5, U0: 1}, None)
    end = lenient.latest({T0: 5, U0: 1}, None)
    assert end == {U0: 3}
    assert spans(lenient.plan({T0: 5, U0: 1}, end)) == [[(U0, 1, 3)]]


@pytest.mark.parametrize("new_end", [2, 5, 7])
def test_topic_recreated_under_a_running_query_is_noticed_by_its_id(new_end: int) -> None:
    """A recreated topic is data loss even if it has as many records as before, or more; otherwise it is read from 0."""
    log = LogInMemory(p0=9)
    strict, lenient = query(log), query(log, failOnDataLoss="false")
    for offsets in (strict, lenient):
        assert offsets.latest({T0: 5}, None) == {T0: 9}
        assert offsets.latest({T0: 9}, None) == {T0: 9}
    log.make("t", new_end)
    with pytest.raises(DataLossError, match="recreated"):
        strict.latest({T0: 9}, None)
    end = lenient.latest({T0: 9}, None)
    assert spans(lenient.plan({T0: 9}, end)) == [[(T0, 0, new_end)]]
    log.spans[T0] = (0, new_end + 1)
    assert lenient.latest(end, None) == {T0: new_end + 1}
    assert spans(lenient.plan(end, {T0: new_end + 1})) == [[(T0, new_end, new_end + 1)]]


def test_topic_recreated_with_as_many_records_is_read_once_it_has_more() -> None:
    """Equal offsets cause no micro-batch; the new topic's first records come with the next one, and none is left
    out.
    """
    log = LogInMemory(p0=9)
    offsets = query(log, failOnDataLoss="false")
    offsets.latest({T0: 9}, None)
    log.make("t", 9)
    assert offsets.latest({T0: 9}, None) == {T0: 9}
    log.spans[T0] = (0, 10)
    end = offsets.latest({T0: 9}, None)
    assert spans(offsets.plan({T0: 9}, end)) == [[(T0, 0, 10)]]


def test_offsets_that_went_backwards_are_noticed_after_a_restart() -> None:
    """S4 PARTITION_OFFSET_CHANGED: the checkpoint has no ids, but the end lies before the start."""
    log = LogInMemory(p0=1)
    with pytest.raises(DataLossError, match="was changed from 2 to 1"):
        query(log).latest({T0: 2}, None)
    lenient = query(log, failOnDataLoss="false")
    assert lenient.latest({T0: 2}, None) == {T0: 1}
    assert spans(lenient.plan({T0: 2}, {T0: 1})) == [[(T0, 0, 1)]]


def test_loss_that_a_second_look_does_not_confirm_is_none() -> None:
    """A restarting broker may briefly report too little; that is no loss."""
    log = LogInMemory(p0=9)
    offsets = query(log)
    offsets.latest({T0: 5}, None)
    early = log.snapshot()
    log.scripted = [LogSnapshot(topic_ids=early.topic_ids, earliest={T0: 0}, latest={T0: 3})]
    assert offsets.latest({T0: 9}, None) == {T0: 9}


def test_bounded_query_stops_at_the_logs_end_of_the_first_call() -> None:
    """S2 Trigger.AvailableNow: the run has several batches under the limit, and leaves later data for the next run."""
    log = LogInMemory(p0=15)
    offsets = query(log)
    offsets.bound()
    ends = [offsets.latest({T0: 0}, 5)]
    log.spans[T0] = (0, 100)
    while ends[-1] != (end := offsets.latest(ends[-1], 5)):
        ends.append(end)
    assert ends == [{T0: 5}, {T0: 10}, {T0: 15}]
    assert offsets.reported == {T0: 100}


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize("change", ["delete", "shorter", "recreated"])
def test_bounded_query_fails_when_its_planned_records_are_gone(change: str, fail_on_data_loss: str) -> None:
    """LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW and its siblings, whatever failOnDataLoss says."""
    log = LogInMemory(p0=15)
    offsets = query(log, failOnDataLoss=fail_on_data_loss)
    offsets.bound()
    end = offsets.latest({T0: 0}, 5)
    if change == "delete":
        log.delete("t")
    else:
        log.make("t", 15 if change == "recreated" else 12)
    with pytest.raises(DataLossError):
        offsets.latest(end, 5)


def test_bounded_query_after_a_restart_does_not_crash_over_new_partitions() -> None:
    """SPARK-53560: the end is taken at the first `latestOffset`, so partitions added earlier are simply read."""
    log = LogInMemory(p0=5)
    offsets = query(log)
    offsets.bound()
    log.spans[T1] = (0, 3)
    planned = offsets.plan({T0: 0}, {T0: 5})  # the batch in flight
    assert spans(planned) == [[(T0, 0, 5)]]
    assert offsets.latest({T0: 5}, None) == {T0: 5, T1: 3}


def test_batch_in_flight_is_planned_again_after_a_restart() -> None:
    """It has exactly the same ranges as before, whatever was appended since."""
    log = LogInMemory(p0=50, p1=3)
    assert spans(query(log).plan({T0: 5, T1: 0}, {T0: 9, T1: 3})) == [[(T0, 5, 9), (T1, 0, 3)]]


def test_batch_in_flight_whose_partition_is_gone_is_data_loss() -> None:
    """S4: a partition of the batch was deleted before the restart."""
    log = LogInMemory(p0=9)
    with pytest.raises(DataLossError, match="t-1"):
        query(log).plan({T0: 5, T1: 0}, {T0: 9, T1: 3})
    assert spans(query(log, failOnDataLoss="false").plan({T0: 5, T1: 0}, {T0: 9, T1: 3})) == [[(T0, 5, 9)]]


def test_plan_splits_for_min_partitions_and_shares_for_small_ranges() -> None:
    """S3: one input partition per partition or several with `minPartitions`; small ranges share one."""
    log = LogInMemory(p0=20_000, p1=10)
    ranges = spans(query(log, minPartitions="5").plan({T0: 0, T1: 0}, {T0: 20_000, T1: 10}))
    assert len(ranges) == 5
    small = spans(query(log).plan({T0: 0, T1: 0}, {T0: 10, T1: 10}))
    assert small == [[(T0, 0, 10), (T1, 0, 10)]]
    assert len(query(log, coalesceRows="0").plan({T0: 0, T1: 0}, {T0: 10, T1: 10})) == 2
