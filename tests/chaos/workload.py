"""Producers and consumers that continue whatever happens to the cluster, and record the answers they get."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from pyspark_log import Consumer, Producer, TopicPartition
from pyspark_log.errors import PylogError
from tests.chaos.history import History, value_of
from tests.chaos.silence import Silence

_PAUSE_S = 0.2
_TURN_S = 0.1
"""How often a producer sends. Each time is a frame per partition, on all brokers and through all proxies, which takes
the processors that the brokers need."""
_END_LIMIT_S = 300.0
_READ_LIMIT_S = 60.0


class Workload:
    """That many producers and consumers of one topic, each in a thread of its own. Started and stopped once."""

    def __init__(
        self, bootstrap_servers: str, topic: str, partitions: int, *, producers: int, consumers: int, rate: int
    ) -> None:
        """``rate``: records per second and producer."""
        self.history = History()
        self.silence = Silence()
        self._servers = bootstrap_servers
        self._topic = topic
        self._partitions = partitions
        self._rate = rate
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._producers = [
            threading.Thread(target=self._produce, args=(f"p{n}", n % 2 == 0), name=f"producer-{n}", daemon=True)
            for n in range(producers)
        ]
        self._consumers = [
            threading.Thread(target=self._consume, args=(n,), name=f"consumer-{n}", daemon=True)
            for n in range(consumers)
        ]

    def start(self) -> None:
        """Starts to produce and to consume."""
        self.silence.begin(time.monotonic(), range(self._partitions))
        for thread in (*self._producers, *self._consumers):
            thread.start()

    def send_no_more(self) -> None:
        """Returns at once; sent records may still be acknowledged."""
        self._stopping.set()

    def abandon(self) -> None:
        """Returns at once; the threads end by themselves, and nothing more is sent or read."""
        self._stopping.set()
        self._ended.set()

    def stop_producing(self) -> None:
        """Returns when every record has been acknowledged or given up."""
        self.send_no_more()
        self._join(self._producers)

    def stop(self) -> None:
        """Stops the consumers too, once they have everything that was acknowledged. That they never get it is a
        finding."""
        self.stop_producing()
        deadline = time.monotonic() + _READ_LIMIT_S
        while self.history.unread() and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        self.history.anomalies += [
            f"unread: {at}: consumers did not get {len(offsets)} acknowledged records within {_READ_LIMIT_S:.0f} s, "
            f"the first: offset {offsets[0]}"
            for at, offsets in self.history.unread().items()
        ]
        self._ended.set()
        self._join(self._consumers)

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        deadline = time.monotonic() + _END_LIMIT_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self.history.anomalies.append(f"hung: {thread.name} did not end within {_END_LIMIT_S:.0f} s")

    # --- threads ----------------------------------------------------------------------------------------------

    def _produce(self, name: str, in_batches: bool) -> None:
        with Producer(self._servers, delivery_timeout_ms=120_000, max_block_ms=120_000) as producer:
            number = 0
            while not self._stopping.is_set():
                began_s = time.monotonic()
                for _ in range(max(1, int(self._rate * _TURN_S))):
                    number += 1
                    self._send(producer, name, number)
                if in_batches:
                    self._flush(producer)
                self._stopping.wait(max(0.0, _TURN_S - (time.monotonic() - began_s)))
            self._flush(producer)

    def _send(self, producer: Producer, name: str, number: int) -> None:
        partition, count = number % self._partitions, number // self._partitions
        value = value_of(name, partition, count)

        def on_delivery(metadata: Any, error: BaseException | None) -> None:
            if error is not None:
                self.history.fail(error)
                return
            self.history.acknowledge((self._topic, partition), metadata.offset, value)
            self.silence.note(time.monotonic(), partition)

        try:
            producer.send(self._topic, value, partition=partition, on_delivery=on_delivery)
        except PylogError as error:
            self.history.fail(error)
            time.sleep(_PAUSE_S)

    def _flush(self, producer: Producer) -> None:
        try:
            producer.flush()
        except PylogError as error:
            self.history.fail(error)

    def _consume(self, number: int) -> None:
        """Every other consumer starts again from the beginning now and then, so that everything is read more than
        once.
        """
        partitions = [TopicPartition(self._topic, partition) for partition in range(self._partitions)]
        while not self._ended.is_set():
            try:
                with Consumer(bootstrap_servers=self._servers, auto_offset_reset="earliest") as consumer:
                    consumer.assign(partitions)
                    self._read(consumer, until_s=time.monotonic() + (10.0 if number % 2 else 1e9))
            except PylogError as error:
                self.history.fail(error)
                self._ended.wait(_PAUSE_S)

    def _read(self, consumer: Consumer, *, until_s: float) -> None:
        next_offsets: dict[tuple[str, int], int] = {}
        while not self._ended.is_set() and time.monotonic() < until_s:
            for batch in consumer.poll_batches(timeout=0.5):
                at = (batch.topic, batch.partition)
                offsets = batch.offsets.to_pylist()
                values = batch.batch.column("value").to_pylist()
                self.history.consume(at, offsets, values, expected=next_offsets.get(at))
                if offsets:
                    next_offsets[at] = offsets[-1] + 1
