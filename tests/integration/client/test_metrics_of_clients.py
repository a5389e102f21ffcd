"""``metrics=``: what clients of real brokers count, beside what they did and what the brokers count."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Callable

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pyspark_log import Admin, Consumer, Producer, QuotaEntity, errors
from pyspark_log.testing import LocalCluster
from tests.waiting import LIMIT_S, SOON_S, take, wait_until

RECORDS, ROWS = 1_000, 500
WITHOUT_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
BYTES_A_SECOND = 1_000_000
MEGABYTE = pa.record_batch({"value": [bytes(1_000)] * 1_000})


def scraped(text: str) -> dict[tuple[str, ...], float]:
    """By the series' name without `pylog_` and the values of its labels, in the order of the labels' names."""
    return {
        (sample.name.removeprefix("pylog_"), *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    return scraped(generate_latest(registry).decode())


def broker_bytes(cluster: LocalCluster, direction: str) -> float:
    """What the broker counts of topic t, ``in`` or ``out``."""
    with WITHOUT_PROXY.open(f"http://{cluster.http_address(1)}/metrics", timeout=20) as answer:
        return scraped(answer.read().decode())[f"topic_bytes_{direction}_total", "t"]


def test_scrape_equals_what_was_sent_and_read() -> None:
    """Records, bytes, commits and shares as clients and broker know them; a broker that is away for a while costs
    retries, and no record counts twice."""
    registry = CollectorRegistry()
    settings = {"http.listener": "127.0.0.1:0"}
    with LocalCluster(brokers=1, settings=settings) as cluster, Admin(cluster.bootstrap_servers) as admin:
        at = cluster.bootstrap_servers
        admin.create_topic("t", partitions=2)
        admin.create_topic("small", partitions=1, config={"max.message.bytes": 100_000})
        with (
            Producer(at, client_id="p", metrics=registry) as producer,
            Consumer(
                "t", bootstrap_servers=at, client_id="c", group_id="g", auto_offset_reset="earliest",
                enable_auto_commit=False, metrics=registry,
            ) as consumer,
        ):  # fmt: skip
            for number in range(RECORDS):
                producer.send("t", b"%d" % number, key=b"%d" % (number % 7))
            frames = len(producer.send_batch("t", pa.record_batch({"value": [b"row"] * ROWS})).result(SOON_S))
            producer.flush(SOON_S)
            found = scrape(registry)
            sent = RECORDS + ROWS
            assert found["producer_records_total", "p", "t"] == sent
            assert found["producer_acknowledgement_seconds_count", "p"] == found["producer_batches_total", "p", "t"]
            assert frames < found["producer_batches_total", "p", "t"] < RECORDS
            assert found["producer_bytes_total", "p", "t"] == broker_bytes(cluster, "in")
            assert found["producer_buffer_bytes", "p"] == found["producer_throttle_seconds_total", "p"] == 0

            polls = read = 0
            while read < sent:
                polls += 1
                read += len(consumer.poll(SOON_S, max_records=400))
            consumer.commit()
            with pytest.raises(errors.PylogError) as refused:
                consumer.commit({("absent", 0): 1})  # type: ignore[dict-item]
            found = scrape(registry)
            assert found["consumer_records_total", "c", "t"] == sent
            assert found["consumer_bytes_total", "c", "t"] == found["producer_bytes_total", "p", "t"]
            assert found["consumer_bytes_total", "c", "t"] == broker_bytes(cluster, "out")
            assert found["consumer_polls_total", "c"] == polls
            assert found["consumer_max_lag_records", "c"] == 0
            assert found["consumer_rebalances_total", "c"] >= 1
            assert found["consumer_fetch_seconds_count", "c"] >= 1
            assert found["consumer_commit_seconds_count", "c"] >= 2
            assert found["consumer_commit_errors_total", "c", refused.value.code] == 1

            producer.send("small", b"x").result(SOON_S)
            admin.alter_config("small", {"max.message.bytes": 2_000})
            with pytest.raises(errors.RecordTooLargeError):
                wait_until(
                    lambda: producer.send("small", bytes(50_000)).result(SOON_S) is None, "the broker knows of it"
                )
            errors_counted = scrape(registry)["producer_record_errors_total", "p", "MESSAGE_TOO_LARGE", "small"]
            with pytest.raises(errors.RecordTooLargeError):
                producer.flush(SOON_S)
            assert errors_counted == 1

            cluster.kill(1)
            late = producer.send("t", b"late")
            wait_until(lambda: not late.done() and _retries(scrape(registry)) >= 1, "it is tried again", LIMIT_S)
            cluster.start(1)
            late.result(LIMIT_S)
            assert scrape(registry)["producer_records_total", "p", "t"] == sent + 1
            take(consumer, 1, LIMIT_S)
            assert scrape(registry)["consumer_records_total", "c", "t"] == sent + 1


def _retries(found: dict[tuple[str, ...], float]) -> float:
    return found.get(("producer_record_retries_total", "p", "t"), 0.0)


def test_clients_over_a_quota_count_how_long_they_are_held_back(
    bootstrap: str, admin: Admin, new_topic: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    """In both directions; each stream says once in the log why it is slow."""
    caplog.set_level(logging.INFO, "pyspark_log")
    registry, name = CollectorRegistry(), new_topic(1)
    writer, reader = QuotaEntity(client_id=f"{name}-writer"), QuotaEntity(client_id=f"{name}-reader")
    admin.alter_quotas({writer: {"producer_byte_rate": BYTES_A_SECOND}, reader: {"consumer_byte_rate": BYTES_A_SECOND}})
    with Producer(bootstrap, client_id=writer.client_id, metrics=registry) as producer:

        def is_throttled() -> bool:
            producer.send_batch(name, MEGABYTE).result(LIMIT_S)
            return scrape(registry)["producer_throttle_seconds_total", writer.client_id or ""] > 0

        wait_until(is_throttled, "the broker knows of the quota", LIMIT_S)
        before = scrape(registry)
        for _ in range(3):
            producer.send_batch(name, MEGABYTE)
        producer.flush(LIMIT_S)
        found = scrape(registry)
    assert (
        found["producer_throttle_seconds_total", writer.client_id or ""]
        > before["producer_throttle_seconds_total", writer.client_id or ""]
    )
    sent = found["producer_records_total", writer.client_id or "", name]
    with Consumer(
        name, bootstrap_servers=bootstrap, client_id=reader.client_id, auto_offset_reset="earliest", metrics=registry
    ) as consumer:
        assert len(take(consumer, int(sent), LIMIT_S)) == sent
        found = scrape(registry)
    assert found["consumer_throttle_seconds_total", reader.client_id or ""] > 1.0, "at least 4 MB at 1 MB/s"
    lines = [line for line in caplog.messages if line.startswith("throttle stream ")]
    assert [line.split(" throttle_ms=")[0] for line in lines] == [
        f"throttle stream kind=produce broker=1 client_id={writer.client_id}",
        f"throttle stream kind=fetch broker=1 client_id={reader.client_id}",
    ]
    admin.alter_quotas({writer: {"producer_byte_rate": None}, reader: {"consumer_byte_rate": None}})
