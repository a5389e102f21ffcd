"""Futures before and after their frame is acknowledged."""

import logging

import pytest

from broker_runtime.contract.errors import ClientTimeoutError, NotEnoughReplicasError
from pyspark_log.client.producer.delivery import BatchFuture, Delivery, RecordFuture


def test_record_future_knows_its_records_offset() -> None:
    """Each record of a shared frame has its offset and time; the broker's time wins where it is set."""
    delivery = Delivery("t", 1, base_timestamp_ms=50)
    delivery.count = 3
    delivery.timestamps = [None, 7]
    futures = [RecordFuture((delivery, n)) for n in range(3)]
    assert not futures[0].done()
    with pytest.raises(ClientTimeoutError, match="t-1"):
        futures[0].result(0)
    delivery.finish(base_offset=10)
    assert [f.result(0) for f in futures] == [("t", 1, 10, 50), ("t", 1, 11, 7), ("t", 1, 12, 50)]
    stamped = Delivery("t", 1, base_timestamp_ms=50)
    stamped.finish(base_offset=10, append_time_ms=99)
    assert RecordFuture((stamped, 0)).result().timestamp == 99


def test_record_future_raises_its_frames_error() -> None:
    """All records of a frame fail together; a second outcome changes nothing."""
    delivery = Delivery("t", 0, base_timestamp_ms=0)
    error = NotEnoughReplicasError("one of two")
    assert delivery.finish(error=error)
    assert not delivery.finish(base_offset=3)
    future = RecordFuture((delivery, 0))
    assert future.exception() is error
    assert (future.done(), future.running(), future.cancel(), future.cancelled()) == (True, False, False, False)
    with pytest.raises(NotEnoughReplicasError):
        future.result()


def test_futures_call_back_before_and_after_and_log_what_callbacks_raise(caplog: pytest.LogCaptureFixture) -> None:
    """A callback that raises is logged and stops no other."""
    delivery = Delivery("t", 0, base_timestamp_ms=0)
    future = RecordFuture((delivery, 0))
    called: list[object] = []
    future.add_done_callback(lambda f: called.append(1 / 0))
    future.add_done_callback(called.append)
    with caplog.at_level(logging.ERROR):
        delivery.finish(base_offset=0)
    assert called == [future]
    assert "ZeroDivisionError" in caplog.text
    future.add_done_callback(called.append)
    assert called == [future, future]


def test_batch_future_is_done_when_all_its_frames_are() -> None:
    """Slices are in order, the first error is raised, and the callback is called once."""
    deliveries = [Delivery("t", p, base_timestamp_ms=5) for p in range(3)]
    for delivery in deliveries:
        delivery.count = 2
    future = BatchFuture(deliveries)
    called: list[object] = []
    future.add_done_callback(called.append)
    deliveries[1].finish(base_offset=1)
    deliveries[0].finish(base_offset=0)
    assert (future.done(), called) == (False, [])
    with pytest.raises(ClientTimeoutError):
        future.result(0)
    deliveries[2].finish(base_offset=2)
    assert called == [future]
    assert [tuple(part) for part in future.result()] == [("t", p, p, 2, 5) for p in (0, 1, 2)]
    empty = BatchFuture([])
    empty.add_done_callback(called.append)
    assert (empty.done(), empty.result(), called) == (True, [], [future, empty])
