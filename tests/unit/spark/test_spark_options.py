"""Options of source and sink: names in any case, Kafka's meanings and messages; everything else is refused by name."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping

import pytest

from broker_runtime.contract.errors import InvalidTopicError, OptionError
from broker_runtime.contract.model import TopicPartition
from pyspark_log.spark.offsets import Position
from pyspark_log.spark.options import parse_sink_options, parse_source_options

BASE = {"subscribe": "t", "pylog.bootstrap.servers": "127.0.0.1:1"}


def test_source_options_have_kafkas_defaults() -> None:
    """S4: an omitted option has the meaning of Kafka's source."""
    options = parse_source_options({"subscribe": " a, ,b,a "})
    assert options.selection.topics == ("a", "b")
    assert options.fail_on_data_loss is True
    assert options.stream_start() is Position.LATEST
    assert options.batch_limits() == (Position.EARLIEST, Position.LATEST)
    assert (options.max_offsets_per_trigger, options.min_partitions, options.group_id) == (None, None, None)
    assert options.coalesce_rows == 10_000
    assert options.client["bootstrap.servers"]


def test_option_names_are_case_insensitive() -> None:
    """KafkaSourceProviderSuite: "get offsets from case insensitive parameters"."""
    options = parse_source_options(
        {"SUBSCRIBE": "t", "StartingOFFSETS": "Earliest", "FAILONDATALOSS": "False", "PYLOG.Group.Id": "g"}
    )
    assert options.starting is Position.EARLIEST
    assert options.fail_on_data_loss is False
    assert options.group_id == "g"


def test_options_pickle() -> None:
    """Readers and writers travel to the executors with their options."""
    for options in (parse_source_options(BASE), parse_sink_options({"topic": "t"})):
        assert pickle.loads(pickle.dumps(options)) == options


def test_bootstrap_servers_of_the_driver_travel_to_the_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    """`$PYLOG_BOOTSTRAP_SERVERS` is read where the options are created, not on an executor with another value."""
    monkeypatch.setenv("PYLOG_BOOTSTRAP_SERVERS", "driver-sees:1234")
    options = parse_source_options({"subscribe": "t"})
    monkeypatch.setenv("PYLOG_BOOTSTRAP_SERVERS", "executor-sees:1")
    assert [str(address) for address in options.settings().bootstrap_servers] == ["driver-sees:1234"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "One of the following options must be specified for pylog source: subscribe, subscribepattern, assign."),
        ({"subscribe": "t", "assign": '{"t":[0]}'}, "Only one of the following options can be specified"),
        ({"assign": "x"}, "No topicpartitions to assign as specified value for option 'assign' is 'x'"),
        ({"assign": '{"a":5}'}, 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got {"a":5}'),
        ({"subscribe": " , "}, "No topics to subscribe to as specified value for option 'subscribe' is ' , '"),
        ({"subscribePattern": ""}, "Pattern to subscribe is empty as specified value for option 'subscribePattern'"),
        ({"subscribePattern": "a("}, "no regular expression"),
        ({**BASE, "startingOffsets": "now"}, 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got now'),
        ({**BASE, "minPartitions": "a"}, "minPartitions must be a whole number, got 'a'"),
        ({**BASE, "minPartitions": "1.0"}, "minPartitions must be a whole number, got '1.0'"),
        ({**BASE, "minPartitions": "0"}, "minPartitions must be positive"),
        ({**BASE, "minPartitions": "-1"}, "minPartitions must be positive"),
        ({**BASE, "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be positive"),
        ({**BASE, "coalesceRows": "-1"}, "coalesceRows must be 0 (off) or positive"),
        ({**BASE, "failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false, got 'maybe'"),
        ({**BASE, "columns": "a,b,a"}, "names a twice"),
        ({**BASE, "columns": " , "}, "names no column"),
        ({**BASE, "startingOffsets": "committed"}, "needs the option pylog.group.id"),
        ({**BASE, "pylog.group.id": "a/b"}, "cannot be a group id"),
        ({**BASE, "pylog.bootstrap.servers": "nowhere"}, "pylog.bootstrap.servers='nowhere'"),
        ({**BASE, "kafka.bootstrap.servers": "h:1"}, "Use 'pylog.bootstrap.servers'"),
        ({**BASE, "path": "t"}, "Name the topic with .option('subscribe', …)"),
        ({**BASE, "startingOfsets": "latest"}, "did you mean 'startingOffsets'?"),
        ({**BASE, "pylog.bootstrap.server": "h:1"}, "did you mean 'pylog.bootstrap.servers'?"),
        ({**BASE, "xyzzy": "1"}, "Option 'xyzzy' is unknown; choose from"),
        ({**BASE, "startingTimestamp": "1.5"}, "Expected a single long value, got 1.5"),
        ({**BASE, "endingTimestamp": "-1"}, "Expected a single long value, got -1"),
        ({**BASE, "startingOffsetsByTimestamp": "1"}, 'Expected e.g. {"topicA": {"0": 123456789'),
        ({**BASE, "startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "for option 'startingOffsetsByTimestamp' (-1 is no"),
        ({**BASE, "endingOffsetsByTimestamp": '{"t":true}'}, "True is no time"),
        ({**BASE, "startingOffsetsByTimestampStrategy": "x"}, "Strategy must be error or latest, got 'x'"),
        ({**BASE, "maxTriggerDelay": "soon"}, "maxTriggerDelay must be a time such as 500ms, 30s or 15m, got 'soon'"),
        ({**BASE, "minOffsetsPerTrigger": "0"}, "minOffsetsPerTrigger must be positive"),
        (
            {**BASE, "minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"},
            "The value of minOffsetsPerTrigger(20) is higher than the maxOffsetsPerTrigger(15).",
        ),
        ({**BASE, "maxRecordsPerPartition": "0"}, "maxRecordsPerPartition must be positive"),
        ({"option.subscribe": "t", "owner": "me", **BASE, "Provider": "pylog"}, "Use CREATE TEMPORARY VIEW … USING"),
        ({**BASE, "pylog.ssl.truststore.location": "x"}, "What secures connections is pylog.sasl.mechanism"),
        *[
            ({**BASE, f"pylog.{name}": "x"}, f"Option 'pylog.{name}' is not supported")
            for name in ("auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit",
                         "interceptor.classes")
        ],
    ],
)  # fmt: skip
def test_bad_source_options_are_refused_in_kafkas_words(given: dict[str, str], says: str) -> None:
    """S4: KafkaSourceSuite's "bad source options" and "unsupported kafka configs"; unknown names with the nearest."""
    with pytest.raises(ValueError) as caught:
        parse_source_options(given)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries on pylog"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "startingOffsets for t-0 can't be latest for batch queries on pylog"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries on pylog"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "ending offset for t-0 can't be earliest for batch queries on pylog"),
    ],
)
def test_bad_batch_query_options_are_refused_in_kafkas_words(given: dict[str, str], says: str) -> None:
    """S4: KafkaRelationSuite's "bad batch query options"."""
    with pytest.raises(OptionError) as caught:
        parse_source_options({**BASE, **given}).batch_limits()
    assert says in str(caught.value)


def test_ending_offsets_are_refused_in_streams() -> None:
    """S4: endingOffsets is for batch reads."""
    with pytest.raises(OptionError, match="ending offset not valid in streaming queries"):
        parse_source_options({**BASE, "endingOffsets": "latest"}).stream_start()
    for name, value in {"endingTimestamp": "1", "endingOffsetsByTimestamp": '{"t":1}'}.items():
        with pytest.raises(OptionError, match="ending timestamp not valid in streaming queries"):
            parse_source_options({**BASE, name: value}).stream_start()


def test_client_options_without_effect_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """S4: a job with Kafka's settings runs, and is warned once."""
    with caplog.at_level(logging.WARNING, logger="pyspark_log.spark"):
        parse_source_options({**BASE, "pylog.max.poll.records": "5", "pylog.receive.buffer.bytes": "1"})
    assert [record.getMessage() for record in caplog.records] == [
        "ignore settings without a meaning in spark settings=pylog.max.poll.records,pylog.receive.buffer.bytes"
    ]


@pytest.mark.parametrize(
    ("parse", "given", "named"),
    [
        (parse_sink_options, {"pylog.compression.type": "snappy"}, "pylog.compression.type=snappy"),
        (parse_sink_options, {"pylog.compression.type": "gzip"}, "pylog.compression.type=gzip"),
        (parse_sink_options, {"pylog.partitioner.ignore.keys": "false"}, "pylog.partitioner.ignore.keys"),
        (
            parse_sink_options,
            {"pylog.partitioner.class": "org.apache.kafka.clients.producer.internals.DefaultPartitioner"},
            "pylog.partitioner.class",
        ),
        (parse_source_options, {"pylog.auto.include.jmx.reporter": "true"}, "pylog.auto.include.jmx.reporter"),
        (parse_source_options, {"pylog.partitioner.class": "com.example.Mine"}, "pylog.partitioner.class"),
    ],
)
def test_values_of_kafkas_clients_that_change_no_row_are_one_warning(
    caplog: pytest.LogCaptureFixture,
    parse: Callable[[Mapping[str, str]], object],
    given: dict[str, str],
    named: str,
) -> None:
    """S4: a working job keeps its settings; what they ask for is so anyway, or is about the connection only."""
    base = BASE if parse is parse_source_options else {"topic": "t"}
    with caplog.at_level(logging.WARNING, logger="pyspark_log.spark"):
        parse({**base, **given})
    assert [record.getMessage().replace('"', "") for record in caplog.records] == [
        f"ignore settings without a meaning in spark settings={named}"
    ]


def test_options_that_tune_kafkas_source_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """S4: a job that only tunes how Kafka's source fetches moves over."""
    tuned = {"groupIdPrefix": "x", "kafkaConsumer.pollTimeoutMs": "1", "fetchOffset.numRetries": "5"}
    with caplog.at_level(logging.WARNING, logger="pyspark_log.spark"):
        parse_source_options({**BASE, **tuned, "FETCHOFFSET.RETRYINTERVALMS": "9"})
    assert [record.getMessage() for record in caplog.records] == [
        "ignore settings without a meaning in spark "
        "settings=fetchOffset.numRetries,fetchOffset.retryIntervalMs,groupIdPrefix,kafkaConsumer.pollTimeoutMs"
    ]


def test_options_of_the_other_direction_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """One dict of options may serve a reader and a writer."""
    with caplog.at_level(logging.WARNING, logger="pyspark_log.spark"):
        assert parse_source_options({**BASE, "topic": "x"}).selection.topics == ("t",)
        assert parse_sink_options({"topic": "x", "subscribe": "t"}).topic == "x"
    assert len(caplog.records) == 2


def test_sink_accepts_sparks_own_options_of_a_query() -> None:
    """Spark passes checkpointLocation and queryName to the sink."""
    options = parse_sink_options({"topic": "t", "checkpointlocation": "/c", "queryname": "q", "pylog.linger.ms": "7"})
    assert options.settings().linger_ms == 7


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"topic": "a b"}, InvalidTopicError, "cannot name a topic"),
        ({"path": "t"}, OptionError, "Name the topic with .option('topic', …)"),
        ({"kafka.bootstrap.servers": "h:1"}, OptionError, "Use 'pylog.bootstrap.servers'"),
        ({"pylog.key.serializer": "x"}, OptionError, "Option 'pylog.key.serializer' is not supported"),
        ({"pylog.value.serializer": "x"}, OptionError, "Option 'pylog.value.serializer' is not supported"),
        ({"pylog.acks": "2"}, OptionError, "Option 'pylog.acks' is not supported: a task is done when all in-sync"),
        ({"pylog.linger.ms": "soon"}, OptionError, "pylog.linger.ms='soon'"),
        ({"pylog.security.protocol": "SASL_SSL"}, OptionError, "SASL_SSL needs sasl.username and sasl.password"),
        ({"pylog.sasl.jaas.config": "x"}, OptionError, "Option 'pylog.sasl.jaas.config' has no meaning here"),
        ({"pylog.compression.type": "brotli"}, OptionError, "pylog.compression.type='brotli': must be one of none"),
        (
            {"pylog.partitioner.class": "com.example.Mine"},
            OptionError,
            "name a row's partition in the column partition",
        ),
        ({"pylog.partitioner.ignore.keys": "true"}, OptionError, "name a row's partition in the column partition"),
        ({"asyncProgressTrackingEnabled": "true"}, OptionError, "refused"),
        ({"txnAppId": "a"}, OptionError, "give both, or neither"),
        ({"txnAppId": "a", "txnVersion": "-1"}, OptionError, "txnVersion must be 0 or positive, got '-1'"),
        ({"txnAppId": "a/b", "txnVersion": "1"}, OptionError, "txnAppId must have 1 to 200 printable characters"),
        ({"pylog.replay.differs": "drop"}, OptionError, "pylog.replay.differs must be error or keep, got 'drop'"),
        ({"pylog.transactional.id": "a/b"}, OptionError, "pylog.transactional.id='a/b'"),
        ({"topik": "a"}, OptionError, "did you mean 'topic'?"),
    ],
)
def test_bad_sink_options_are_refused(given: dict[str, str], error: type[Exception], says: str) -> None:
    """S4: these are KafkaSinkSuite's "exception on config serializer", and pylog's own refusals."""
    with pytest.raises(error) as caught:
        parse_sink_options(given)
    assert says in str(caught.value)


@pytest.mark.parametrize("acks", ["all", "-1", "1", "0"])
def test_acks_of_kafka_is_taken_and_changes_nothing(acks: str) -> None:
    """S4: a job that asks for less gets more."""
    options = parse_sink_options({"topic": "t", "pylog.acks": acks})
    assert options.settings().acks == "all"


def test_selection_by_pattern_matches_whole_names() -> None:
    """S4: subscribePattern."""
    selection = parse_source_options({"subscribePattern": "top.*"}).selection
    assert selection.named_topics is None
    assert selection.selects(TopicPartition("topic", 0))
    assert not selection.selects(TopicPartition("a-topic", 0))


def test_selection_by_assignment_reads_only_those_partitions() -> None:
    """S4: assign."""
    selection = parse_source_options({"assign": '{"a":[0],"b":[2]}'}).selection
    assert selection.named_topics == ("a", "b")
    assert [selection.selects(TopicPartition(*tp)) for tp in (("a", 0), ("a", 1), ("b", 2))] == [True, False, True]
