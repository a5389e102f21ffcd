"""A producer's own thread: learns who leads what, starts a `Sender` per broker, and keeps time limits.

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
from pyspark_log.client.producer.lanes import Lane
from pyspark_log.client.producer.partition_queue import NO_LEADER, Outgoing
from pyspark_log.client.producer.sender import Sender

_REFRESH_S = 30.0
_STEP_S = 1.0
_LOOK_S = 0.2
_JOIN_LIMIT_S = 10.0
_logger = logging.getLogger(__name__)

_ACKS = {"all": -1, "1": 1, "0": 0}


class Dispatch:
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
        self._lanes: dict[str, Lane] = {}
        self._senders: dict[int, Sender] = {}
        self._lock = threading.Lock()  # of lanes and senders; taken before the accumulator's
        self._wake = threading.Event()
        self._stale_topics: set[str] = set()
        self._is_stopped = False
        self._failure: ClosedError | None = None  # what a thread's defect came to
        self._thread: threading.Thread | None = None
        self._numbering = accumulator.numbering
        if self._numbering is not None:
            self._numbering.on_id_wanted = self._wake.set

    def lane(self, topic: str) -> Lane:
        """The topic's lane; asks for the topic's metadata the first time. Raises what `Cluster.topic` raises."""
        lane = self._lanes.get(topic)
        if lane is not None and not self._is_stopped:
            return lane
        self.raise_failure()
        if self._is_stopped:
            raise ClosedError("the producer was closed")
        description = self._cluster.topic(topic, timeout_s=self._settings.max_block_ms / 1000)
        with self._lock:
            lane = self._lanes.get(topic)
            if lane is None:
                partitioner = self._settings.partitioner
                lane = Lane(description, partitioner, self._settings.batch_size)
                self._lanes[topic] = lane
                self._place(lane, description)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pylog-producer", daemon=True)
                self._thread.start()
            return lane

    def lane_with(self, topic: str, partition: int | None) -> Lane:
        """As `lane`; a partition it does not have is asked for once, as it may have been added since."""
        lane = self.lane(topic)
        if isinstance(partition, int) and partition >= len(lane.queues):
            return self.lane_anew(topic)
        return lane

    def lane_anew(self, topic: str) -> Lane:
        """As `lane`, with the topic asked for now. Raises what `Cluster.fetch_topics` raises."""
        self._update(topic, self._cluster.fetch_topics([topic], timeout_s=self._settings.max_block_ms / 1000)[0])
        return self.lane(topic)

    def raise_failure(self) -> None:
        """Raises `ClosedError` if a thread met a defect: nothing is sent any more."""
        if self._failure is not None:
            raise self._failure

    def broke(self, error: Exception) -> None:
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
            senders = list(self._senders.values())
            self._senders.clear()
        for sender in senders:
            sender.stop()

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._keep()
        except Exception as error:  # noqa: BLE001 - the thread's edge: a defect must not leave the caller waiting
            self.broke(error)

    def _keep(self) -> None:
        backoff, id_backoff = Backoff(first_s=0.02), Backoff(first_s=0.02)
        not_before_s = id_not_before_s = look_again_s = 0.0
        refreshed_s = time.monotonic()
        while not self._is_stopped:
            now_s = time.monotonic()
            wait_s = min(_STEP_S, self._accumulator.expire(now_s))
            with self._lock:
                senders = list(self._senders.values())
            silent = set[str]().union(*(sender.look_at_silence() for sender in senders))
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
                stale = set(self._lanes)
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
            self._numbering.trouble = error
            return False
        except PylogError as error:
            self._accumulator.fail_all(error)
            return False
        self._accumulator.provide_id(answer.producer_id)
        return True

    def _stale(self, outgoing: Outgoing) -> None:
        self._stale_topics.add(outgoing.queue.topic)
        self._wake.set()

    def _stale_names(self) -> set[str]:
        with self._lock:
            leaderless = {name for name, lane in self._lanes.items() if any(q.leader == NO_LEADER for q in lane.queues)}
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
            lane = self._lanes.get(name)
        if lane is None:
            return
        if lane.topic.topic_id != described.topic_id:
            self._recreated(lane, described)
            return
        with self._lock:
            self._place(lane, described)

    def _recreated(self, lane: Lane, described: Topic) -> None:
        """The topic was deleted and made anew: as Kafka's producer does, what no log has goes to the new one, in order.

        First all that is in flight to the old one must come back; until then its partitions have no leader, so
        metadata is asked for again. What cannot be in the new topic fails.
        """
        name = described.name
        if list(described.schemas) != list(lane.topic.schemas):
            self._forget(
                name, InconsistentTopicIdError(f"topic {name!r} was deleted and made anew with another schema")
            )
            return
        if len(described.partitions) < len(lane.queues):
            self._forget(
                name, InconsistentTopicIdError(f"topic {name!r} was deleted and made anew with fewer partitions")
            )
            return
        with self._lock:
            with self._accumulator.lock:
                for queue in lane.queues:
                    self._accumulator.move(queue, NO_LEADER, queue.leader_epoch)
                if any(queue.in_flight for queue in lane.queues):
                    return
                self._accumulator.begin_anew(lane.queues, described.topic_id)
            self._place(lane, described)

    def _forget(self, name: str, error: PylogError) -> None:
        with self._lock:
            lane = self._lanes.pop(name, None)
        if lane is not None:
            self._on_forget(name)
            self._accumulator.give_up(lane.queues, error)

    def _place(self, lane: Lane, described: Topic) -> None:
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
            if described.schema is not lane.topic.schema:
                for queue in lane.queues:
                    self._accumulator.end_list(queue)  # its rows have the columns of before
            lane.grow(described)
            for queue, partition in zip(lane.queues, described.partitions, strict=False):
                self._accumulator.move(queue, leaders[partition.partition], partition.leader_epoch)
        for leader in set(leaders.values()) - {NO_LEADER}:
            if leader not in self._senders and not self._is_stopped:
                self._senders[leader] = Sender(
                    leader,
                    self._accumulator,
                    address_of=self._cluster.address_of,
                    stale=self._stale,
                    on_failure=self.broke,
                    client_id=self._settings.client_id,
                    uses_proxy=self._settings.enable_http_proxy,
                    acks=_ACKS[self._settings.acks],
                    request_timeout_ms=self._settings.request_timeout_ms,
                    codec=self._settings.compression_type,
                )
