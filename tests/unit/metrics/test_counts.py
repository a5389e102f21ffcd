"""What a broker counts, as Prometheus gets it."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from broker_runtime.contract.errors import UnknownTopicOrPartitionError
from broker_runtime.meters import NO_METERS, Meters
from broker_runtime.metrics.counts import Counts


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def counts(registry: CollectorRegistry) -> Counts:
    return Counts(registry)


def test_bytes_and_records_by_topic(counts: Counts, registry: CollectorRegistry) -> None:
    """Clients' and replicas' apart, as Kafka's operators have them."""
    counts.produced("t", records=3, size_bytes=300)
    counts.produced("t", records=1, size_bytes=100)
    counts.read("t", 50)
    counts.read("t", 400, is_replica=True)
    counts.copied("u", 70)
    found = {
        (name, topic): registry.get_sample_value(f"pylog_topic_{name}_total", {"topic": topic})
        for name in ("records_in", "bytes_in", "bytes_out", "replication_bytes_in", "replication_bytes_out")
        for topic in ("t", "u")
    }
    assert {each: value for each, value in found.items() if value} == {
        ("records_in", "t"): 4, ("bytes_in", "t"): 400, ("bytes_out", "t"): 50,
        ("replication_bytes_out", "t"): 400, ("replication_bytes_in", "u"): 70,
    }  # fmt: skip


def test_counts_of_topics_that_are_gone_go(counts: Counts, registry: CollectorRegistry) -> None:
    """There are never more series than topics; one that comes back begins at 0, as a counter may."""
    for topic in ("kept", "gone"):
        counts.read(topic, 10)
    counts.forget_topics()
    assert registry.get_sample_value("pylog_topic_bytes_out_total", {"topic": "gone"}) == 10, "nothing is known yet"
    counts.know_topics(lambda: ["kept", "never written"])
    counts.forget_topics()
    assert registry.get_sample_value("pylog_topic_bytes_out_total", {"topic": "kept"}) == 10
    assert registry.get_sample_value("pylog_topic_bytes_out_total", {"topic": "gone"}) is None
    assert registry.get_sample_value("pylog_topic_bytes_in_total", {"topic": "gone"}) is None
    counts.know_topics(lambda: ["kept", "gone"])
    counts.read("gone", 1)
    assert registry.get_sample_value("pylog_topic_bytes_out_total", {"topic": "gone"}) == 1


def test_there_are_never_more_series_than_topics(counts: Counts, registry: CollectorRegistry) -> None:
    """Also where nobody reads the metrics while topics come and go."""
    counts.know_topics(lambda: [now])
    for number in range(20):
        now = f"t{number}"
        counts.read(now, 1)
    samples = [sample for family in registry.collect() for sample in family.samples]
    assert {sample.labels["topic"] for sample in samples if "topic" in sample.labels} == {"t19"}


def test_requests_are_timed_and_their_errors_counted(counts: Counts, registry: CollectorRegistry) -> None:
    """Also those that are refused, and defects, of which the client gets an error, too."""
    with counts.answering("metadata"):
        pass
    with pytest.raises(UnknownTopicOrPartitionError), counts.answering("list_offsets"):
        raise UnknownTopicOrPartitionError("no topic")
    with pytest.raises(ZeroDivisionError), counts.answering("list_offsets"):
        raise ZeroDivisionError
    counts.answered("produce", 0.3)
    assert registry.get_sample_value("pylog_request_seconds_count", {"request": "metadata"}) == 1
    assert registry.get_sample_value("pylog_request_seconds_count", {"request": "list_offsets"}) == 2
    assert registry.get_sample_value("pylog_request_seconds_sum", {"request": "produce"}) == 0.3
    code = {"request": "list_offsets", "code": "UNKNOWN_TOPIC_OR_PARTITION"}
    assert registry.get_sample_value("pylog_request_errors_total", code) == 1
    assert registry.get_sample_value("pylog_request_errors_total", {**code, "code": "UNKNOWN_SERVER_ERROR"}) == 1
    counts.synced("/data", 0.01)
    assert registry.get_sample_value("pylog_sync_seconds_count", {"directory": "/data"}) == 1


def test_who_counts_nothing_takes_everything() -> None:
    """A broker without ``http.listener``: the same calls, and errors pass through."""
    for name in (name for name in vars(Meters) if not name.startswith("_")):
        assert hasattr(Counts, name)
    NO_METERS.produced("t", records=1, size_bytes=1)
    with pytest.raises(UnknownTopicOrPartitionError), NO_METERS.answering("metadata"):
        raise UnknownTopicOrPartitionError("no topic")


def test_refusals_of_a_stream_are_counted_and_its_end_is_not(counts: Counts, registry: CollectorRegistry) -> None:
    """A stream is no request; a peer that is gone is no error of the broker's."""
    with pytest.raises(UnknownTopicOrPartitionError), counts.refusing("fetch"):
        raise UnknownTopicOrPartitionError("no topic")
    with pytest.raises(ConnectionError), counts.refusing("fetch"):
        raise ConnectionError
    code = {"request": "fetch", "code": "UNKNOWN_TOPIC_OR_PARTITION"}
    assert registry.get_sample_value("pylog_request_errors_total", code) == 1
    assert registry.get_sample_value("pylog_request_errors_total", {**code, "code": "UNKNOWN_SERVER_ERROR"}) is None
    assert registry.get_sample_value("pylog_request_seconds_count", {"request": "fetch"}) is None


def test_what_changes_in_a_cluster_is_counted(counts: Counts, registry: CollectorRegistry) -> None:
    """Each kind of election is there from the start: an alert on the first unclean one needs the 0 before it."""
    assert registry.get_sample_value("pylog_leader_elections_total", {"kind": "unclean"}) == 0
    counts.elected("unclean")
    counts.became_controller()
    counts.in_sync_changed(shrank=True, grew=True)
    counts.in_sync_changed(shrank=True, grew=False)
    counts.zookeeper_lost(is_expired=False)
    counts.zookeeper_answered(0.1)
    counts.took("produce", "local", 0.2)
    counts.login_refused()
    counts.request_denied()
    assert registry.get_sample_value("pylog_logins_refused_total") == 1
    assert registry.get_sample_value("pylog_requests_denied_total") == 1
    assert [
        registry.get_sample_value("pylog_leader_elections_total", {"kind": "unclean"}),
        registry.get_sample_value("pylog_controller_elections_total"),
        registry.get_sample_value("pylog_isr_shrinks_total"),
        registry.get_sample_value("pylog_isr_expands_total"),
        registry.get_sample_value("pylog_zookeeper_disconnects_total"),
        registry.get_sample_value("pylog_zookeeper_session_expirations_total"),
        registry.get_sample_value("pylog_zookeeper_request_seconds_count"),
        registry.get_sample_value("pylog_request_part_seconds_sum", {"request": "produce", "part": "local"}),
    ] == [1, 1, 2, 1, 1, 0, 1, 0.2]
