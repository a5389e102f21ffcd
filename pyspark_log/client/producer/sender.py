"""A producer's own thread: learns who leads what, starts a `BrokerSender` per broker, and keeps time limits.

Rule: metadata is asked for when a topic is first used, when a frame came back because of its leader, when a leader
owes an answer and says nothing, and now and then; a producer id at the start, and when the accumulator wants another.
Between failures it waits (`Backoff`). Nothing is sent from here. A thread that meets a defect, this one or a sender's,
ends the producer: all it holds fails, and nobody waits for what no thread does any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

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
from broker_runtime.contract.waiting import Backoff
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.producer.accumulator import Accumulator
from pyspark_log.client.producer.broker_sender import BrokerSender
from pyspark_log.client.producer.partition_queue import NO_LEADER, ProducerBatch
from pyspark_log.client.producer.topic_queues import TopicQueues

_REFRESH_S = 30.0
_STEP_S = 1.0
_LOOK_S = 0.2
_JOIN_LIMIT_S = 10.0
_logger = logging.getLogger(__name__)

_ACKS = {"all": -1, "1": 1, "0": 0}


class Sender:
    """Topics, senders, time limits of one producer. Thread-safe; its thread starts with the first topic."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        settings: ProducerSettings,
        *,
        on_forget: Callable[[str], object],
    ) -> None:
        """``on_forget`` is told of topics that are gone, so that nobody keeps their lanes."""
        self._on_forget = on_forget
        self._cluster = cluster
        self._accumulator = accumulator
        self._settings = settings
        self._topics: dict[str, TopicQueues] = {}
        self._broker_senders: dict[int, BrokerSender] = {}
        self._lock = threading.Lock()  # of lanes and senders; taken before the accumulator's
        self._wake = threading.Event()
        self._stale_topics: set[str] = set()
        self._is_stopped = False
        self._failure: ClosedError | None = None  # what a thread's defect came to
        self._thread: threading.Thread | None = None
        self._numbering = accumulator.numbering
        if self._numbering is not None:
            self._numbering.on_id_wanted = self._wake.set

    def queues_of(self, topic: str) -> TopicQueues:
        """The topic's queues; asks for the topic's metadata the first time. Raises what `Cluster.topic` raises."""
        queues = self._topics.get(topic)
        if queues is not None and not self._is_stopped:
            return queues
        self.raise_failure()
        if self._is_stopped:
            raise ClosedError("the producer was closed")
        description = self._cluster.topic(topic, timeout_s=self._settings.max_block_ms / 1000)
        with self._lock:
            queues = self._topics.get(topic)
            if queues is None:
                partitioner = self._settings.partitioner
                queues = TopicQueues(description, partitioner, self._settings.batch_size)
                self._topics[topic] = queues
                self._place(queues, description)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pylog-producer", daemon=True)
                self._thread.start()
            return queues

    def queues_with(self, topic: str, partition: int | None) -> TopicQueues:
        """As `queues_of`; a partition it does not have is asked for once, as it may have been added since."""
        queues = self.queues_of(topic)
        if isinstance(partition, int) and partition >= len(queues.partitions):
            return self.refreshed_queues_of(topic)
        return queues

    def refreshed_queues_of(self, topic: str) -> TopicQueues:
        """As `queues_of`, with the topic asked for now. Raises what `Cluster.fetch_topics` raises."""
        self._update(topic, self._cluster.fetch_topics([topic], timeout_s=self._settings.max_block_ms / 1000)[0])
        return self.queues_of(topic)

    def raise_failure(self) -> None:
        """Raises `ClosedError` if a thread met a defect: nothing is sent any more."""
        if self._failure is not None:
            raise self._failure

    def on_defect(self, error: Exception) -> None:
        """A thread met a defect: all that is not acknowledged fails, and nothing more is taken. Any thread."""
        reason = (
            f"the producer cannot go on, because one of its threads met a defect: {error!r}. "
            "What was not acknowledged may be in the log or not"
        )
        _logger.error("producer thread broke error=%r", error, exc_info=error)
        self._failure = ClosedError(reason)
        self._is_stopped = True
        self._accumulator.close(reason)
        self._accumulator.abandon_all(self._failure)
        self._wake.set()

    def stop(self) -> None:
        """Ends all threads; what is unsent stays so. Blocks a bounded time."""
        self._is_stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_JOIN_LIMIT_S)
        with self._lock:
            senders = list(self._broker_senders.values())
            self._broker_senders.clear()
        for sender in senders:
            sender.stop()

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._keep()
        except Exception as error:  # noqa: BLE001 - the thread's edge: a defect must not leave the caller waiting
            self.on_defect(error)

    def _keep(self) -> None:
        backoff, id_backoff = Backoff(first_s=0.02), Backoff(first_s=0.02)
        not_before_s = id_not_before_s = look_again_s = 0.0
        refreshed_s = time.monotonic()
        while not self._is_stopped:
            now_s = time.monotonic()
            wait_s = min(_STEP_S, self._accumulator.expire(now_s))
            with self._lock:
                senders = list(self._broker_senders.values())
            silent = set[str]().union(*(sender.check_silence() for sender in senders))
            if silent:
                # Their host may be away: another leads as soon as its session has ended.
                wait_s = min(wait_s, _LOOK_S)
                if now_s >= look_again_s:
                    self._stale_topics.update(silent)
                    look_again_s = now_s + _LOOK_S
            if self._numbering is not None and self._numbering.wants_id:
                if now_s >= id_not_before_s:
                    id_backoff = Backoff(first_s=0.02) if self._fetch_id() else id_backoff
                    id_not_before_s = time.monotonic() + id_backoff.next_s()
                wait_s = min(wait_s, max(0.0, id_not_before_s - time.monotonic()))
            stale = self._stale_names()
            if now_s - refreshed_s > _REFRESH_S:
                stale = set(self._topics)
            if stale and now_s >= not_before_s:
                if self._refresh(stale):
                    backoff.reset()
                    refreshed_s = now_s
                not_before_s = time.monotonic() + backoff.next_s()
            if stale:
                wait_s = min(wait_s, max(0.0, not_before_s - time.monotonic()))
            self._wake.wait(wait_s)
            self._wake.clear()

    def _fetch_id(self) -> bool:
        """Asks any broker for a producer id; whether there was one."""
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
        self._wake.set()

    def _stale_names(self) -> set[str]:
        with self._lock:
            leaderless = {
                name for name, queues in self._topics.items() if any(q.leader == NO_LEADER for q in queues.partitions)
            }
        return leaderless | set(self._stale_topics)

    def _refresh(self, names: set[str]) -> bool:
        """Asks for these topics; whether all were told."""
        is_done = True
        for name in names:
            self._stale_topics.discard(name)
            try:
                described = self._cluster.fetch_topics([name], timeout_s=_STEP_S)[0]
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

    def _update(self, name: str, described: Topic) -> None:
        with self._lock:
            queues = self._topics.get(name)
        if queues is None:
            return
        if queues.topic.topic_id != described.topic_id:
            self._recreated(queues, described)
            return
        with self._lock:
            self._place(queues, described)

    def _recreated(self, queues: TopicQueues, described: Topic) -> None:
        """The topic was deleted and made anew: as Kafka's producer does, what no log has goes to the new one, in order.

        First all that is in flight to the old one must come back; until then its partitions have no leader, so
        metadata is asked for again. What cannot be in the new topic fails.
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
                for queue in queues.partitions:
                    self._accumulator.set_leader(queue, NO_LEADER, queue.leader_epoch)
                if any(queue.in_flight for queue in queues.partitions):
                    return
                self._accumulator.recreate(queues.partitions, described.topic_id)
            self._place(queues, described)

    def _forget(self, name: str, error: PylogError) -> None:
        with self._lock:
            queues = self._topics.pop(name, None)
        if queues is not None:
            self._on_forget(name)
            self._accumulator.give_up(queues.partitions, error)

    def _place(self, queues: TopicQueues, described: Topic) -> None:
        """Each partition to its leader's outbox; starts senders. Under `_lock`."""
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
                    self._accumulator.seal_batch(queue)  # its rows have the columns of before
            queues.grow(described)
            for queue, partition in zip(queues.partitions, described.partitions, strict=False):
                self._accumulator.set_leader(queue, leaders[partition.partition], partition.leader_epoch)
        for leader in set(leaders.values()) - {NO_LEADER}:
            if leader not in self._broker_senders and not self._is_stopped:
                self._broker_senders[leader] = BrokerSender(
                    leader,
                    self._accumulator,
                    address_of=self._cluster.address_of,
                    stale=self._stale,
                    on_failure=self.on_defect,
                    client_id=self._settings.client_id,
                    uses_proxy=self._settings.enable_http_proxy,
                    acks=_ACKS[self._settings.acks],
                    request_timeout_ms=self._settings.request_timeout_ms,
                    codec=self._settings.compression_type,
                )
