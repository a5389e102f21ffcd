"""A producer's background thread: who leads which partition, producer ids, time limits; starts a `BrokerSender` per
broker, which sends the batches.

Rule: metadata is fetched when a topic is first used, when a batch came back because of its leader, when a leader that
owes an answer is silent, and every `_REFRESH_S`; a producer id at the start, and when the accumulator needs another.
Failed calls are repeated after a pause (`Backoff`). A defect in this thread or in one of a `BrokerSender` ends the
producer: all its batches fail, so that no caller waits for a thread that has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from broker_runtime.contract.errors import (
    ClosedError,
    InconsistentTopicIdError,
    LeaderNotAvailableError,
    PylogError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from broker_runtime.contract.requests import InitProducerIdRequest, InitProducerIdResponse
from broker_runtime.contract.settings import ProducerSettings
from broker_runtime.contract.waiting import Backoff, Deadline, Worker
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.meters import NO_PRODUCER_METERS, ProducerMeters
from pyspark_log.client.producer.accumulator import Accumulator
from pyspark_log.client.producer.broker_sender import BrokerSender
from pyspark_log.client.producer.partition_queue import NO_LEADER, ProducerBatch
from pyspark_log.client.producer.topic_queues import TopicQueues

_REFRESH_S = 30.0
_STEP_S = 1.0
_SILENT_REFRESH_S = 0.2
_JOIN_LIMIT_S = 10.0

_ACKS = {"all": -1, "1": 1, "0": 0}


class Sender:
    """Topics, broker senders and time limits of one producer. Thread-safe; its thread starts with the first topic."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        settings: ProducerSettings,
        *,
        on_forget: Callable[[str], object],
        meters: ProducerMeters = NO_PRODUCER_METERS,
    ) -> None:
        """``on_forget`` is called with the name of each topic that is gone: its queues must not be used any more."""
        self._on_forget = on_forget
        self._meters = meters
        self._cluster = cluster
        self._accumulator = accumulator
        self._settings = settings
        self._topics: dict[str, TopicQueues] = {}
        self._broker_senders: dict[int, BrokerSender] = {}
        self._lock = threading.Lock()  # guards topics and broker senders; taken before the accumulator's
        self._stale_topics: set[str] = set()
        self._is_started = self._is_stopped = False
        self._failure: ClosedError | None = None  # after a defect in a thread
        self._worker = Worker("pylog-producer", self._step, on_defect=self.on_defect)
        self._refresh_due = Deadline(_REFRESH_S)
        self._refresh_pause, self._refresh_backoff = Deadline(0.0), Backoff()
        self._id_pause, self._id_backoff = Deadline(0.0), Backoff()
        self._silence_pause = Deadline(0.0)
        self._numbering = accumulator.numbering
        if self._numbering is not None:
            self._numbering.on_id_wanted = self._worker.wake

    def queues_of(self, topic: str) -> TopicQueues:
        """The queues of a topic, whose metadata is fetched the first time. Raises what `Cluster.topic` raises."""
        queues = self._topics.get(topic)
        if queues is not None and not self._is_stopped:
            return queues
        self.raise_failure()
        if self._is_stopped:
            raise ClosedError("the producer was closed")
        description = self._cluster.topic(topic, timeout_s=self._settings.max_block_ms / 1000)
        with self._lock:
            if not self._is_started:
                self._worker.start()
                self._is_started = True
            queues = self._topics.get(topic)
            if queues is None:
                queues = TopicQueues(description, self._settings.partitioner, self._settings.batch_size)
                self._topics[topic] = queues
                self._set_leaders(queues, description)
            return queues

    def queues_with(self, topic: str, partition: int | None) -> TopicQueues:
        """As `queues_of`; if the topic lacks the partition it is described again once: it may have been added since."""
        queues = self._topics.get(topic)
        if queues is None or self._is_stopped:  # known ones are found here, without another call
            queues = self.queues_of(topic)
        if partition is not None and isinstance(partition, int) and partition >= len(queues.partitions):
            return self.refreshed_queues_of(topic)
        return queues

    def refreshed_queues_of(self, topic: str) -> TopicQueues:
        """As `queues_of`, with the topic's metadata fetched now. Raises what `Cluster.fetch_topics` raises."""
        self._update(topic, self._describe(topic, self._settings.max_block_ms / 1000))
        return self.queues_of(topic)

    def raise_failure(self) -> None:
        """Raises `ClosedError` after a defect in a thread: nothing is sent any more."""
        if self._failure is not None:
            raise self._failure

    def on_defect(self, error: BaseException) -> None:
        """A thread ended by a defect: all unacknowledged batches fail, and no more records are taken. Any thread."""
        reason = (
            f"the producer cannot continue, because one of its threads met a defect: {error!r}. "
            "Records that were not acknowledged may be in the log or not"
        )
        self._failure = ClosedError(reason)
        self._is_stopped = True
        self._accumulator.close(reason)
        self._accumulator.abandon_all(self._failure)
        self._worker.stop()

    def stop(self) -> None:
        """Ends all threads; unsent batches stay unsent. Blocks for a bounded time."""
        self._is_stopped = True
        self._worker.stop()
        self._worker.join(_JOIN_LIMIT_S)
        with self._lock:
            broker_senders = list(self._broker_senders.values())
            self._broker_senders.clear()
        for broker_sender in broker_senders:
            broker_sender.stop()

    # --- the thread -------------------------------------------------------------------------------------------

    def _step(self) -> float:
        """Does what is due; returns the seconds until something may be."""
        return min(
            _STEP_S,
            self._accumulator.expire(time.monotonic()),
            self._check_silence(),
            self._provide_id(),
            self._refresh_stale(),
        )

    def _check_silence(self) -> float:
        with self._lock:
            broker_senders = list(self._broker_senders.values())
        silent = set[str]().union(*(broker_sender.check_silence() for broker_sender in broker_senders))
        if not silent:
            return _STEP_S
        if self._silence_pause.expired:
            # Their leader may be gone: another one leads as soon as its session has ended.
            self._stale_topics.update(silent)
            self._silence_pause = Deadline(_SILENT_REFRESH_S)
        return _SILENT_REFRESH_S

    def _provide_id(self) -> float:
        if self._numbering is None or not self._numbering.wants_id:
            return _STEP_S
        if self._id_pause.expired:
            if self._fetch_id():
                self._id_backoff.reset()
            self._id_pause = Deadline(self._id_backoff.next_s())
        return self._id_pause.remaining_s()

    def _refresh_stale(self) -> float:
        stale = set(self._topics) if self._refresh_due.expired else self._stale_names()
        if not stale:
            return _STEP_S
        if self._refresh_pause.expired:
            if self._refresh(stale):
                self._refresh_backoff.reset()
                self._refresh_due = Deadline(_REFRESH_S)
            self._refresh_pause = Deadline(self._refresh_backoff.next_s())
        return self._refresh_pause.remaining_s()

    def _fetch_id(self) -> bool:
        """Asks any broker for a producer id; whether it gave one."""
        assert self._numbering is not None
        try:
            answer = self._cluster.call(
                "init_producer_id", InitProducerIdRequest(), InitProducerIdResponse, timeout_s=_STEP_S
            )
        except ClosedError:
            return False
        except RetriableError as error:
            self._numbering.id_error = error
            return False
        except PylogError as error:
            self._accumulator.fail_all(error)
            return False
        self._accumulator.provide_id(answer.producer_id)
        return True

    def _stale(self, batch: ProducerBatch) -> None:
        self._stale_topics.add(batch.queue.topic)
        self._worker.wake()

    def _stale_names(self) -> set[str]:
        with self._lock:
            leaderless = {
                name for name, queues in self._topics.items() if any(q.leader == NO_LEADER for q in queues.partitions)
            }
        return leaderless | set(self._stale_topics)

    def _refresh(self, names: set[str]) -> bool:
        """Fetches the metadata of these topics; whether all were described."""
        is_done = True
        for name in names:
            self._stale_topics.discard(name)
            try:
                described = self._describe(name, _STEP_S)
            except RetriableError:
                self._stale_topics.add(name)
                is_done = False
            except UnknownTopicOrPartitionError as error:
                self._forget(name, error)
            except ClosedError:
                return False
            except PylogError as error:
                self._accumulator.fail_all(error, name)
            else:
                self._update(name, described)
        return is_done

    def _describe(self, name: str, timeout_s: float) -> Topic:
        """The topic now. Only the controller can say that there is none, or another one than the producer knows: any
        other broker may not have heard of it yet, or of nothing for a while. Raises as `Cluster.fetch_topics`."""
        deadline = Deadline(timeout_s)
        with suppress(UnknownTopicOrPartitionError):
            described = self._cluster.fetch_topics([name], timeout_s=timeout_s)[0]
            with self._lock:
                known = self._topics.get(name)
            if known is None or known.topic.topic_id == described.topic_id:
                return described
        return self._cluster.fetch_topics([name], timeout_s=deadline.remaining_s(), to="controller")[0]

    def _update(self, name: str, described: Topic) -> None:
        with self._lock:
            queues = self._topics.get(name)
        if queues is None:
            return
        if queues.topic.topic_id != described.topic_id:
            self._recreated(queues, described)
            return
        with self._lock:
            self._set_leaders(queues, described)

    def _recreated(self, queues: TopicQueues, described: Topic) -> None:
        """The topic was deleted and recreated: batches that are in no log yet go to the new one, in order, as with
        Kafka's producer.

        First all batches in flight to the old one must come back; until then its partitions have no leader, so
        metadata is fetched again. Batches that do not fit the new topic fail.
        """
        name = described.name
        if list(described.schemas) != list(queues.topic.schemas):
            self._forget(
                name, InconsistentTopicIdError(f"topic {name!r} was deleted and recreated with another schema")
            )
            return
        if len(described.partitions) < len(queues.partitions):
            self._forget(
                name, InconsistentTopicIdError(f"topic {name!r} was deleted and recreated with fewer partitions")
            )
            return
        with self._lock:
            with self._accumulator.lock:
                if not self._accumulator.recreate(queues.partitions, described.topic_id):
                    return
            self._set_leaders(queues, described)

    def _forget(self, name: str, error: PylogError) -> None:
        with self._lock:
            queues = self._topics.pop(name, None)
        if queues is not None:
            self._accumulator.give_up(queues.partitions, error)
            self._on_forget(name)  # last: see `Producer._queues_of`

    def _set_leaders(self, queues: TopicQueues, described: Topic) -> None:
        """Moves each partition to its leader's outbox; starts broker senders. Under `_lock`."""
        leaders: dict[int, int] = {}
        for partition in described.partitions:
            try:
                self._cluster.leader(described, partition.partition)
            except LeaderNotAvailableError:
                leaders[partition.partition] = NO_LEADER
            else:
                assert partition.leader is not None
                leaders[partition.partition] = partition.leader
        with self._accumulator.lock:
            if described.schema is not queues.topic.schema:
                for queue in queues.partitions:
                    self._accumulator.seal_batch(queue)  # its rows have the columns of the old schema
            queues.grow(described)
            for queue, partition in zip(queues.partitions, described.partitions, strict=False):
                self._accumulator.set_leader(queue, leaders[partition.partition], partition.leader_epoch)
        for leader in set(leaders.values()) - {NO_LEADER}:
            if leader not in self._broker_senders and not self._is_stopped:
                broker_sender = BrokerSender(
                    leader,
                    self._accumulator,
                    address_of=self._cluster.address_of,
                    stale=self._stale,
                    on_defect=self.on_defect,
                    client_id=self._settings.client_id,
                    access=self._cluster.access,
                    acks=_ACKS[self._settings.acks],
                    request_timeout_ms=self._settings.request_timeout_ms,
                    codec=self._settings.compression_type,
                    meters=self._meters,
                )
                if broker_sender.may_start():
                    self._broker_senders[leader] = broker_sender
                else:
                    self._stale_topics.add(described.name)  # tried again when its metadata is fetched again
