"""Where the time of a produce or a fetch goes, and which of their partitions were refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from broker_runtime.contract.streams import FetchPartition, FetchRequest, ProduceRequest
from broker_runtime.metrics.counts import Counts
from broker_runtime.services.byte_budget import ByteBudget
from broker_runtime.services.fetch import FetchService
from broker_runtime.services.fetch_wait import FetchWait
from broker_runtime.services.produce import ProduceService
from tests.callers import CLIENT
from tests.clocks import ReadClock
from tests.unit.replication.partitions import NOW_MS, TOPIC_ID, Hosted, frame, leadership, reports


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def parts(registry: CollectorRegistry, request: str) -> dict[str, float]:
    return {
        sample.labels["part"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "pylog_request_part_seconds_sum" and sample.labels["request"] == request
    }


def test_produce_is_local_until_it_is_in_the_log_and_remote_until_it_is_acknowledged(
    registry: CollectorRegistry,
) -> None:
    """As Kafka's LocalTimeMs and RemoteTimeMs; a call that only waits for a while is part of it."""
    hosted = Hosted()
    hosted.only.become_leader(leadership(2, replicas=(1, 2), in_sync=(1, 2)))
    now_s = [10.0]

    def now_ms() -> int:  # asked for in the middle of an append
        now_s[0] += 0.25
        return NOW_MS

    service = ProduceService(hosted.registry, now_ms=now_ms, clock=ReadClock(lambda: now_s[0]), meters=Counts(registry))
    request = ProduceRequest(request_id=1, topic="t", timeout_ms=9_000)
    pending = service.append(CLIENT, request, [pa.py_buffer(frame(b"a"))])
    now_s[0] += 3
    assert service.complete(CLIENT, pending, 0) is None
    assert parts(registry, "produce") == {"local": 0.25}
    reports(hosted.only, 2, 1)
    response = service.complete(CLIENT, pending, 0)
    assert response is not None
    assert response.error is None
    assert parts(registry, "produce") == {"local": 0.25, "remote": 3}
    assert registry.get_sample_value("pylog_request_seconds_sum", {"request": "produce"}) == 3.25


def test_fetch_is_remote_while_it_waits_for_records(registry: CollectorRegistry) -> None:
    """And local while it reads."""
    now_s = [0.0]
    wait = FetchWait(5_000, lambda: None, ReadClock(lambda: now_s[0]))
    now_s[0] = 1.0

    def until_records_come(timeout_s: float) -> bool:
        now_s[0] += 3.0
        return True

    wait.until(until_records_come)
    now_s[0] += 0.5
    wait.note(Counts(registry), "fetch")
    assert parts(registry, "fetch") == {"remote": 3.0, "local": 1.5}


def test_partitions_that_a_fetch_is_refused_are_counted(registry: CollectorRegistry) -> None:
    """Each of them, as in Kafka; the answer itself is none."""
    hosted = Hosted()
    service = FetchService(hosted.registry, max_bytes=1 << 20, budget=ByteBudget(1 << 20), meters=Counts(registry))
    wanted = tuple(
        FetchPartition(topic="t", partition=number, topic_id=TOPIC_ID.bytes, offset=offset)
        for number, offset in ((0, 99), (4, 0), (5, 0))
    )
    service.fetch(CLIENT, FetchRequest(request_id=1, partitions=wanted, max_wait_ms=0)).close()

    def errors(code: str) -> float | None:
        return registry.get_sample_value("pylog_request_errors_total", {"request": "fetch", "code": code})

    assert (errors("OFFSET_OUT_OF_RANGE"), errors("UNKNOWN_TOPIC_OR_PARTITION")) == (1, 2)
