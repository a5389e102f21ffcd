"""What a broker's sender writes to which stream, without a thread or a network."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from broker_runtime.contract.errors import NetworkError
from broker_runtime.contract.frame import encode_frame
from broker_runtime.contract.schema import UNTYPED
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import ProduceRequest
from pyspark_log.client.producer import broker_sender
from pyspark_log.client.producer.accumulator import Accumulator
from pyspark_log.client.producer.broker_sender import BrokerSender
from pyspark_log.client.producer.delivery import Delivery
from pyspark_log.client.producer.partition_queue import PartitionQueue

LEADER = 1


class SilentStream:
    """Takes every frame and answers none."""

    address = Address("h", LEADER)
    silent_for_s = 0.0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.frames: list[Any] = []

    def write(self, request: ProduceRequest, frame: Any) -> None:
        self.frames.append(frame)

    def end(self) -> None:
        return

    def close(self) -> None:
        return


def test_batch_that_opens_a_stream_is_not_sent_before_those_of_the_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """W9: a partition's batches stay in order, without idempotence too, if the stream breaks after a batch has
    left the buffer and before it is written."""
    monkeypatch.setattr(broker_sender, "ProduceStream", SilentStream)
    monkeypatch.setattr(BrokerSender, "_may_start_reader", lambda *_: True)
    accumulator = Accumulator(buffer_bytes=1 << 20, linger_s=0.0, max_block_s=1.0, delivery_timeout_s=100.0)
    queue = PartitionQueue("t", bytes(16), 0, UNTYPED, 1000)
    with accumulator.lock:
        accumulator.set_leader(queue, LEADER, 0)
    sender = BrokerSender(
        LEADER,
        accumulator,
        address_of=lambda _: Address("h", LEADER),
        stale=lambda _: None,
        on_defect=lambda error: pytest.fail(repr(error)),
        client_id="test",
        acks=1,
        request_timeout_ms=1000,
        codec="none",
    )
    deliveries = []
    for value in (b"a", b"b"):
        deliveries.append(Delivery("t", 0, base_timestamp_ms=0))
        frame = encode_frame(pa.record_batch({"value": pa.array([value])}), UNTYPED, timestamps=0)
        accumulator.add_frame(queue, deliveries[-1], frame)
    sender._send_next()
    first: Any = sender._stream
    assert len(first.frames) == 1
    with accumulator.lock:
        second, _ = accumulator.take(LEADER, now_s=0.0)
    assert second is not None
    sender._stream_failed(first, NetworkError("broke"))
    sender._send(second)
    assert sender._stream.frames == []  # type: ignore[union-attr]
    assert [batch.delivery for batch in queue.sealed] == deliveries
