"""What a consumer fetches ahead of its caller: one thread and one fetch session per broker, and a bounded buffer.

Rule: a broker is asked for a partition from ``fetch_offset`` on only while the buffer holds less than half of
``fetch.max.bytes``; the caller takes what was fetched, in offset order per partition. Each assignment and each change
of position begins a new ``generation`` of the partition, and answers to requests of another one are thrown away. The
threads never decode, never call back, and hold the lock only to move references.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from broker_runtime.contract.errors import ClosedError, PylogError, RetriableError
from broker_runtime.contract.events import event
from broker_runtime.contract.fetch_exchange import Fetched, FetchExchange
from broker_runtime.contract.flight import error_of
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.predicate.frames import Step
from broker_runtime.contract.requests import (
    HEARTBEAT_INTERVAL_S,
    MOST_COLUMN_IDS,
    MOST_ENTRIES,
    PEER_SILENCE_LIMIT_S,
    READ_COMMITTED,
)
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import (
    MOST_PREDICATES,
    MOST_STEPS_IN_ALL,
    FetchedPartition,
    FetchHello,
    FetchPartition,
    FetchRequest,
)
from broker_runtime.contract.waiting import Backoff, Deadline, Worker
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.consumer.partition_state import CompletedFetch, PartitionState
from pyspark_log.client.meters import NO_CONSUMER_METERS, ConsumerMeters
from pyspark_log.client.throttling import StreamThrottle

_RESPONSE_BYTES = 8 << 20  # small enough that decoding one overlaps with fetching the next
_MORE_WAIT_MS = 50  # that a request waits for data while there are partitions that it has no room for
_JOIN_LIMIT_S = 12.0
_SILENCE_S = 2 * HEARTBEAT_INTERVAL_S  # a broker that owes an answer says something each interval
_STALE_INTERVAL_S = 1.0

_NOTHING = pa.py_buffer(b"")

_logger = logging.getLogger(__name__)


class _Asked(NamedTuple):
    """What a request was about, of one partition."""

    generation: int
    offset: int
    leader_epoch: int
    frame_test: tuple[Step, ...] | None


AskedOf: TypeAlias = Mapping[TopicPartition, _Asked]


class Fetcher:
    """The assigned partitions and the threads that fetch for them. `condition` is notified of every answer."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        max_bytes: int,
        max_wait_ms: int,
        on_stale: Callable[[], object],
        isolation_level: int = READ_COMMITTED,
        meters: ConsumerMeters = NO_CONSUMER_METERS,
    ) -> None:
        """``on_stale`` is called, under the lock, when what is known of leaders turns out to be out of date."""
        self.condition = threading.Condition()
        self.states: dict[TopicPartition, PartitionState] = {}
        self.isolation_level = isolation_level
        self.meters = meters
        self._cluster = cluster
        self._max_bytes = max_bytes
        self._max_wait_ms = max_wait_ms
        self._on_stale = on_stale
        self._buffered_bytes = 0
        self._pauses: dict[int, tuple[Backoff, Deadline]] = {}  # by broker that could not be asked: until when
        self._threads: dict[int, _BrokerThread] = {}
        self._is_stopped = False
        self._stale_pause = Deadline(0.0)  # until it is over, no silent broker makes leaders be asked for again
        self._defect: BaseException | None = None  # what ended a thread, until it is raised to the caller

    def set_assignment(self, states: Iterable[PartitionState]) -> None:
        """From now on these and no others are fetched. Those that were fetched before keep what has arrived."""
        with self.condition:
            before, self.states = self.states, {state.at: state for state in states}
            for state in before.values():
                if self.states.get(state.at) is not state:
                    self._drop_fetched(state)
            self._nudge()

    def add(self, states: Iterable[PartitionState]) -> None:
        """Fetches these as well."""
        with self.condition:
            for state in states:
                self.states[state.at] = state
            self._nudge()

    def move(self, state: PartitionState, position: int) -> None:
        """The caller continues at another offset; what was fetched is dropped."""
        with self.condition:
            state.begin_generation()
            state.error = None
            state.position = state.finished = state.fetch_offset = position
            state.batches.clear()
            self._drop_fetched(state)
            self._nudge()

    def set_paused(self, state: PartitionState, *, is_paused: bool) -> None:
        """A paused partition is neither fetched nor delivered; what was fetched is kept."""
        with self.condition:
            state.is_paused = is_paused
            if not is_paused:
                self._nudge()

    def take(self, state: PartitionState) -> CompletedFetch | None:
        """Takes the partition's oldest completed fetch out of the buffer. With the lock held."""
        if not state.completed_fetches:
            return None
        taken = state.completed_fetches.popleft()
        before = self._buffered_bytes
        self._buffered_bytes -= taken.buffer.size
        if before >= self._max_bytes // 2 > self._buffered_bytes or not state.completed_fetches:
            self.condition.notify_all()
        return taken

    def put_back(self, state: PartitionState, taken: CompletedFetch) -> None:
        """Puts back what `take` returned: it is the next to be taken."""
        with self.condition:
            if state.generation == taken.generation:
                state.completed_fetches.appendleft(taken)
                self._buffered_bytes += taken.buffer.size

    def try_again(self, state: PartitionState) -> None:
        """The partition's error was reported, and may be over."""
        with self.condition:
            state.error = None
            state.retry_pause = Deadline(state.backoff.next_s())
            self.condition.notify_all()
            self._on_stale()

    def fail(self, state: PartitionState, error: PylogError) -> None:
        """Stops fetching the partition until it is moved."""
        with self.condition:
            state.error = error
            self._drop_fetched(state)

    def update(self, topic: Topic) -> None:
        """Takes newer metadata of a topic: leaders, schemas."""
        with self.condition:
            for state in self.states.values():
                is_same = state.at.topic == topic.name and state.topic.topic_id == topic.topic_id
                if is_same and not topic.is_older_than(state.topic):
                    state.topic = topic
            self.condition.notify_all()
        self.start_threads()

    def start_threads(self) -> None:
        """Starts a thread for each broker that leads an assigned partition and has none."""
        with self.condition:
            if self._is_stopped:
                return
            for state in self.states.values():
                leader = state.topic.partition(state.at.partition).leader
                if leader is not None and leader not in self._threads:
                    self._threads[leader] = _BrokerThread(self, self._cluster, leader)

    def thread_ended(self, error: BaseException, broker_id: int | None = None) -> None:
        """A thread of the consumer was ended by a defect; if it fetched, from which broker. Any thread.

        `raise_defect` raises it to the caller; `start_threads` starts another, which continues where this one was.
        """
        with self.condition:
            self._defect = error
            if broker_id is not None:
                self._threads.pop(broker_id, None)
            self.condition.notify_all()

    def wake_caller(self) -> None:
        """Makes a waiting caller look at what has changed. Any thread, without the lock."""
        with self.condition:
            self.condition.notify_all()

    def raise_defect(self) -> None:
        """Raises what ended a thread since the last time, once. With the lock held."""
        defect, self._defect = self._defect, None
        if defect is not None:
            raise defect

    def watch(self) -> None:
        """Watches for brokers that owe an answer and are silent. Called about once a second.

        Other brokers are then asked who leads: another broker does as soon as the silent one's ZooKeeper session has
        ended. A fetch session whose broker is silent for too long is cancelled.
        """
        with self.condition:
            threads = list(self._threads.values())
        silent = [address for thread in threads if (address := thread.silent_address()) is not None]
        for address in silent:
            self._cluster.distrust(address)
        if silent and self._stale_pause.expired:
            self._stale_pause = Deadline(_STALE_INTERVAL_S)
            with self.condition:
                self._on_stale()

    def max_lag_records(self) -> int | None:
        """Of the partition that is furthest behind its end, as last answered; None: that is not known of any. Any
        thread."""
        with self.condition:
            known = [state for state in self.states.values() if state.end_offset >= 0]
            return max((max(0, state.end_offset - state.position) for state in known), default=None)

    def stop(self) -> None:
        """Ends threads and sessions. Blocks a bounded time."""
        with self.condition:
            self._is_stopped = True
            threads = list(self._threads.values())
            for thread in threads:
                thread.worker.stop()
            self.condition.notify_all()
        for thread in threads:
            thread.worker.join(_JOIN_LIMIT_S)
        with self.condition:
            self._threads.clear()
            for state in self.states.values():
                self._drop_fetched(state)

    def forget_parent(self) -> None:
        """In a child after ``os.fork``: no threads, an empty buffer, the same positions, nothing counted."""
        self.meters = NO_CONSUMER_METERS
        self.condition = threading.Condition()
        self._threads = {}
        self._defect = None
        self._buffered_bytes = 0
        self._pauses = {}
        for state in self.states.values():
            state.completed_fetches.clear()
            state.begin_generation()
            state.fetch_offset = state.batches[-1].next_offset if state.batches else state.position

    # --- for the threads --------------------------------------------------------------------------------------

    def wanted(self, broker_id: int, request: int) -> tuple[list[FetchPartition], AskedOf, float]:
        """What to ask a broker for, what that is for each partition, and for how long there will be nothing to ask.

        With the lock held. ``request`` counts the broker's requests.
        """
        if self._is_full:
            return [], {}, HEARTBEAT_INTERVAL_S
        if broker_id in self._pauses:
            _, pause = self._pauses[broker_id]
            if not pause.expired:
                return [], {}, pause.remaining_s(HEARTBEAT_INTERVAL_S)
        wait_s = HEARTBEAT_INTERVAL_S
        partitions: list[FetchPartition] = []
        asked: dict[TopicPartition, _Asked] = {}
        for state in self.states.values():
            info = state.topic.partition(state.at.partition)
            if info.leader != broker_id or state.is_paused or state.error is not None:
                continue
            if not state.retry_pause.expired:
                wait_s = state.retry_pause.remaining_s(wait_s)
                continue
            partitions.append(
                FetchPartition(
                    topic=state.at.topic,
                    partition=state.at.partition,
                    topic_id=state.topic.topic_id,
                    offset=state.fetch_offset,
                    leader_epoch=info.leader_epoch,
                    max_bytes=_RESPONSE_BYTES,
                    columns=state.columns,
                )
            )
            frame_test = None if state.where is None else state.where.frame_test
            asked[state.at] = _Asked(state.generation, state.fetch_offset, info.leader_epoch, frame_test)
        if partitions:
            most = _most_of(partitions)
            # The first partition may fill the answer, and a request has room for so many: each request begins with
            # the next partition, or with those that had no room in the last one.
            first = (request if len(partitions) <= most else request * most) % len(partitions)
            partitions = [*partitions[first:], *partitions[:first]][:most]
            asked = {at: asked[at] for each in partitions if (at := _at(each))}
        return partitions, asked, wait_s

    def request(self, request_id: int, partitions: list[FetchPartition], asked: AskedOf) -> FetchRequest:
        """One request for these. If there may be others that it has no room for, it waits only shortly for data."""
        is_all = len(partitions) < _most_of(partitions)
        predicates = _predicates_of(asked)
        return FetchRequest(
            request_id=request_id,
            partitions=tuple(
                msgspec.structs.replace(each, predicate=predicates.get(asked[_at(each)].frame_test, -1))
                for each in partitions
            )
            if predicates
            else tuple(partitions),
            predicates=tuple(test for test in predicates if test is not None),
            max_wait_ms=self._max_wait_ms if is_all else min(self._max_wait_ms, _MORE_WAIT_MS),
            max_bytes=max(1, min(_RESPONSE_BYTES, self._max_bytes // 2)),
            isolation_level=self.isolation_level,
        )

    def answered(self, broker_id: int, fetched: Fetched, asked: AskedOf) -> None:
        """Takes a broker's answer.

        It may come late: a broker that stood still answers when it continues, and may not know yet that others lead by
        then. What it says of a partition counts if the partition still waits at that offset; an error, if no newer
        leader is known.
        """
        with self.condition:
            self._pauses.pop(broker_id, None)
            for partition in fetched.response.partitions:
                state = self.states.get(TopicPartition(partition.topic, partition.partition))
                if state is None or (about := asked.get(state.at)) is None:
                    continue
                if (state.generation, state.fetch_offset) != (about.generation, about.offset):
                    continue
                newest_epoch = state.topic.partition(state.at.partition).leader_epoch
                if partition.error is None or about.leader_epoch >= newest_epoch:
                    self._take_answer(state, partition, fetched.buffers)
            self.condition.notify_all()

    def failed(self, broker_id: int, asked: AskedOf, error: PylogError) -> None:
        """A broker could not be asked. Retriable: after a pause, with fresh metadata; else it is the caller's error,
        but not for partitions that have been moved since."""
        with self.condition:
            if isinstance(error, RetriableError):
                backoff = self._pauses[broker_id][0] if broker_id in self._pauses else Backoff()
                self._pauses[broker_id] = backoff, Deadline(backoff.next_s())
            else:
                for at, about in asked.items():
                    state = self.states.get(at)
                    if state is not None and state.generation == about.generation:
                        state.error = error
            self.condition.notify_all()
            self._on_stale()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._is_stopped

    @property
    def client_id(self) -> str:
        """Of the client, for hellos."""
        return self._cluster.client_id

    # --- private, under the lock ------------------------------------------------------------------------------

    @property
    def _is_full(self) -> bool:
        """What paused partitions hold does not count: nobody takes it, and the others would wait for that."""
        limit = max(1, self._max_bytes // 2)
        if self._buffered_bytes < limit:
            return False
        paused = [fetch for state in self.states.values() if state.is_paused for fetch in state.completed_fetches]
        return bool(self._buffered_bytes - sum(fetch.buffer.size for fetch in paused) >= limit)

    def _take_answer(self, state: PartitionState, partition: FetchedPartition, buffers: list[pa.Buffer]) -> None:
        if partition.error is not None:
            error = error_of(partition.error)
            if isinstance(error, RetriableError):
                state.retry_pause = Deadline(state.backoff.next_s())
                self._on_stale()
            else:
                state.error = error
            return
        state.backoff.reset()
        end = partition.last_stable_offset if self.isolation_level == READ_COMMITTED else partition.high_watermark
        state.end_offset = max(state.end_offset, end)
        state.log_start = max(state.log_start, partition.log_start)
        is_searched = state.where is not None  # the broker may have left out everything that it looked at
        if (partition.row < 0 and not is_searched) or partition.next_offset <= state.fetch_offset:
            return
        buffer = buffers[partition.row] if partition.row >= 0 else _NOTHING
        last = state.completed_fetches[-1] if state.completed_fetches else None
        if last is not None and not last.buffer.size and last.generation == state.generation:
            state.completed_fetches.pop()  # or a long stretch without matches would be as many of them
        state.completed_fetches.append(
            CompletedFetch(state.generation, buffer, partition.next_offset, partition.aborted)
        )
        state.fetch_offset = partition.next_offset
        self._buffered_bytes += buffer.size

    def _drop_fetched(self, state: PartitionState) -> None:
        self._buffered_bytes -= sum(fetch.buffer.size for fetch in state.completed_fetches)
        state.completed_fetches.clear()

    def _nudge(self) -> None:
        """What is to be fetched has changed: threads that wait for data give their requests up for newer ones."""
        self.condition.notify_all()
        for thread in self._threads.values():
            thread.nudge()


def _most_of(partitions: Iterable[FetchPartition]) -> int:
    """How many of these fit into one request."""
    return min(MOST_ENTRIES, MOST_COLUMN_IDS // max(1, *(len(each.columns or ()) for each in partitions)))


def _predicates_of(asked: AskedOf) -> dict[tuple[Step, ...] | None, int]:
    """The different predicates of a request, as many as it has room for, numbered."""
    numbers: dict[tuple[Step, ...] | None, int] = {}
    steps = 0
    for about in asked.values():
        test = about.frame_test
        if test is None or test in numbers or len(numbers) == MOST_PREDICATES or steps + len(test) > MOST_STEPS_IN_ALL:
            continue
        numbers[test] = len(numbers)
        steps += len(test)
    return numbers


def _at(wanted: FetchPartition) -> TopicPartition:
    return TopicPartition(wanted.topic, wanted.partition)


class _BrokerThread:
    """Fetches from one broker, session after session."""

    def __init__(self, fetcher: Fetcher, cluster: Cluster, broker_id: int) -> None:
        self._fetcher = fetcher
        self._cluster = cluster
        self._broker_id = broker_id
        self._session: FetchExchange | None = None
        self._throttle: StreamThrottle | None = None  # the session's
        self._is_fetching = False
        self._was_nudged = False
        self._request_id = 0
        self.worker = Worker(
            f"pylog-fetch-{broker_id}",
            self._step,
            interrupt=self._cancel,
            at_end=self._drop_session,
            on_defect=lambda error: fetcher.thread_ended(error, broker_id),
        )
        self.worker.start()

    def nudge(self) -> None:
        """With the fetcher's lock held: a request that waits for data is given up for a newer one."""
        if self._is_fetching:
            self._was_nudged = True
            self._cancel()

    def silent_address(self) -> Address | None:
        """The broker's address if it owes an answer and is silent; if it is so for too long, cancels the session."""
        session = self._session
        if session is None or (silent_s := session.silent_for_s) <= _SILENCE_S:
            return None
        if silent_s > PEER_SILENCE_LIMIT_S:
            event(_logger, "cancel session", level=logging.WARNING, broker=self._broker_id, silent_s=silent_s)
            session.cancel()
        return session.address

    # --- private: on the thread -------------------------------------------------------------------------------

    def _step(self) -> None:
        with self._fetcher.condition:
            partitions, asked, wait_s = self._fetcher.wanted(self._broker_id, self._request_id)
            if not partitions:
                if not self._fetcher.is_stopped:
                    self._fetcher.condition.wait(wait_s)
            else:
                self._was_nudged = False
                self._is_fetching = True
        try:
            if partitions:
                session = self._open_session()
                self._request_id += 1
                if self._was_nudged or self.worker.is_stopping:
                    return
                request = self._fetcher.request(self._request_id, partitions, asked)
                with self._fetcher.meters.fetching():
                    fetched = session.fetch(request)
                if self._throttle is not None:
                    self._throttle.note(fetched.response.throttle_ms)
            elif self._session is not None:
                self._session.fetch(FetchRequest(request_id=-1, heartbeat=True))
                return
            else:
                return
        except ClosedError:
            return
        except PylogError as error:
            self._drop_session()
            if self._was_nudged or self._fetcher.is_stopped:
                return
            event(_logger, "fetch records", broker=self._broker_id, error=error)
            self._fetcher.failed(self._broker_id, asked, error)
            return
        finally:
            with self._fetcher.condition:
                self._is_fetching = False
        self._fetcher.answered(self._broker_id, fetched, asked)

    def _cancel(self) -> None:
        """Ends what the thread waits for. Any thread."""
        session = self._session
        if session is not None:
            session.cancel()

    def _open_session(self) -> FetchExchange:
        if self._session is None or self._session.is_cancelled:
            self._drop_session()
            self._session = FetchExchange(
                self._cluster.address_of(self._broker_id),
                FetchHello(client_id=self._fetcher.client_id),
                access=self._cluster.access,
            )
            meters = self._fetcher.meters
            self._throttle = StreamThrottle("fetch", self._broker_id, self._fetcher.client_id, meters.throttled)
        return self._session

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
