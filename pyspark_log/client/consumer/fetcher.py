"""What a consumer reads ahead: one thread and one fetch session per broker, a bounded store, positions.

Rule: a broker is asked for a partition from ``fetch_offset`` on only while less than ``fetch.max.bytes`` lie in the
store; the caller takes what arrived, in offset order per partition. Each assignment and each change of position begins
a new ``generation`` of the partition, and answers to requests of another one are thrown away. The threads never
decode, never call back, and hold the lock only to move references.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

import pyarrow as pa

from broker_runtime.contract.errors import ClosedError, PylogError, RetriableError
from broker_runtime.contract.fetch_exchange import Fetched, FetchExchange
from broker_runtime.contract.flight import error_of
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.requests import HEARTBEAT_INTERVAL_S, MOST_COLUMN_IDS, MOST_ENTRIES, PEER_SILENCE_LIMIT_S
from broker_runtime.contract.settings import Address
from broker_runtime.contract.streams import FetchedPartition, FetchHello, FetchPartition, FetchRequest
from broker_runtime.contract.waiting import Backoff
from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.client.connection.topics import Topic
from pyspark_log.client.consumer.partition_state import Arrived, PartitionState

_RESPONSE_BYTES = 8 << 20  # small enough that decoding one overlaps with fetching the next
_TURN_MS = 50  # that a request waits for data while there are partitions that it has no room for
_JOIN_LIMIT_S = 12.0
_SILENCE_S = 2 * HEARTBEAT_INTERVAL_S  # a broker that owes an answer says something each interval
_LOOK_S = 1.0

_logger = logging.getLogger(__name__)


class Fetcher:
    """The assigned partitions and the threads that fetch for them. Its `condition` is told of every arrival."""

    def __init__(self, cluster: Cluster, *, max_bytes: int, max_wait_ms: int, on_stale: Callable[[], object]) -> None:
        """``on_stale``: some answer said that what is known of leaders is old; called under the lock."""
        self.condition = threading.Condition()
        self.states: dict[TopicPartition, PartitionState] = {}
        self._cluster = cluster
        self._max_bytes = max_bytes
        self._max_wait_ms = max_wait_ms
        self._on_stale = on_stale
        self._stored_bytes = 0
        self._pauses: dict[int, tuple[Backoff, float]] = {}  # by broker that could not be asked: until when
        self._threads: dict[int, _BrokerThread] = {}
        self._is_stopped = False
        self._looked_s = 0.0  # when leaders were last asked for because one was silent
        self._failure: Exception | None = None  # of a thread that broke; the caller has not been told yet

    def set_assignment(self, states: Iterable[PartitionState]) -> None:
        """These and no others are fetched from now on; of those that were before, what arrived is kept."""
        with self.condition:
            before, self.states = self.states, {state.at: state for state in states}
            for state in before.values():
                if self.states.get(state.at) is not state:
                    self._forget_arrived(state)
            self._nudge()

    def add(self, states: Iterable[PartitionState]) -> None:
        """These are fetched too."""
        with self.condition:
            for state in states:
                self.states[state.at] = state
            self._nudge()

    def move(self, state: PartitionState, position: int) -> None:
        """The caller goes on at another offset; what arrived is dropped."""
        with self.condition:
            state.begin_generation()
            state.error = None
            state.position = state.finished = state.fetch_offset = position
            state.batches.clear()
            self._forget_arrived(state)
            self._nudge()

    def set_paused(self, state: PartitionState, *, is_paused: bool) -> None:
        """A paused partition is neither fetched nor given out; what arrived is kept."""
        with self.condition:
            state.is_paused = is_paused
            if not is_paused:
                self._nudge()

    def take(self, state: PartitionState) -> Arrived | None:
        """The oldest that arrived, out of the store. With the lock held."""
        if not state.arrived:
            return None
        arrived = state.arrived.popleft()
        before = self._stored_bytes
        self._stored_bytes -= arrived.buffer.size
        if before >= self._max_bytes // 2 > self._stored_bytes or not state.arrived:
            self.condition.notify_all()
        return arrived

    def give_back(self, state: PartitionState, arrived: Arrived) -> None:
        """What `take` gave is taken again next."""
        with self.condition:
            if state.generation == arrived.generation:
                state.arrived.appendleft(arrived)
                self._stored_bytes += arrived.buffer.size

    def fail(self, state: PartitionState, error: PylogError) -> None:
        """The partition is fetched no further until it is moved."""
        with self.condition:
            state.error = error
            self._forget_arrived(state)

    def update(self, topic: Topic) -> None:
        """Newer metadata of a topic: leaders, schemas."""
        with self.condition:
            for state in self.states.values():
                if state.at.topic == topic.name and state.topic.topic_id == topic.topic_id:
                    state.topic = topic
            self.condition.notify_all()
        self.start_threads()

    def start_threads(self) -> None:
        """A thread for each broker that leads an assigned partition."""
        with self.condition:
            if self._is_stopped:
                return
            for state in self.states.values():
                leader = state.topic.partition(state.at.partition).leader
                if leader is not None and leader not in self._threads:
                    self._threads[leader] = _BrokerThread(self, self._cluster, leader, self._max_wait_ms)

    def broke(self, error: Exception, broker_id: int | None = None) -> None:
        """A thread of the consumer (of the fetcher's: for ``broker_id``) ended by a defect. Any thread.

        The caller is told by `raise_failure`; `start_threads` makes another, which goes on where this one was.
        """
        _logger.error("consumer thread broke broker=%s error=%s", broker_id, error, exc_info=error)
        with self.condition:
            self._failure = error
            if broker_id is not None:
                self._threads.pop(broker_id, None)
            self.condition.notify_all()

    def wake_caller(self) -> None:
        """A waiting caller looks at what is new. Any thread, without the lock."""
        with self.condition:
            self.condition.notify_all()

    def raise_failure(self) -> None:
        """Raises what broke a thread since the last time, once. With the lock held."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def watch(self) -> None:
        """Where a broker owes a word, others are asked who leads (another does as soon as its session has ended); a
        session whose broker owes it for too long is cancelled. Called about once a second."""
        with self.condition:
            threads = list(self._threads.values())
        silent = [address for thread in threads if (address := thread.look_at_silence()) is not None]
        for address in silent:
            self._cluster.distrust(address)
        now_s = time.monotonic()
        if silent and now_s >= self._looked_s + _LOOK_S:
            self._looked_s = now_s
            with self.condition:
                self._on_stale()

    def stop(self) -> None:
        """Ends threads and sessions. Blocks a bounded time."""
        with self.condition:
            self._is_stopped = True
            self.condition.notify_all()
            threads = list(self._threads.values())
        for thread in threads:
            thread.cancel()
        for thread in threads:
            thread.join()
        with self.condition:
            self._threads.clear()
            for state in self.states.values():
                self._forget_arrived(state)

    def forget_parent(self) -> None:
        """In a child after ``os.fork``: no threads, an empty store, the same positions."""
        self.condition = threading.Condition()
        self._threads = {}
        self._failure = None
        self._stored_bytes = 0
        self._pauses = {}
        for state in self.states.values():
            state.arrived.clear()
            state.begin_generation()
            state.fetch_offset = state.batches[-1].next_offset if state.batches else state.position

    # --- for the threads --------------------------------------------------------------------------------------

    def wanted(self, broker_id: int, turn: int) -> tuple[list[FetchPartition], dict[TopicPartition, int], float]:
        """With the lock held: what to ask of a broker, with generations; and how long nothing will be to ask."""
        if self._stored_bytes >= self._max_bytes // 2:
            return [], {}, HEARTBEAT_INTERVAL_S
        now_s = time.monotonic()
        _, not_before_s = self._pauses.get(broker_id, (None, 0.0))
        if not_before_s > now_s:
            return [], {}, min(not_before_s - now_s, HEARTBEAT_INTERVAL_S)
        wait_s = HEARTBEAT_INTERVAL_S
        partitions: list[FetchPartition] = []
        generations: dict[TopicPartition, int] = {}
        for state in self.states.values():
            info = state.topic.partition(state.at.partition)
            if info.leader != broker_id or state.is_paused or state.error is not None:
                continue
            if state.not_before_s > now_s:
                wait_s = min(wait_s, state.not_before_s - now_s)
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
            generations[state.at] = state.generation
        if partitions:
            most = _most_of(partitions)
            # Who is asked for first may fill the answer, and what one request has no room for is left out: in turns.
            first = (turn if len(partitions) <= most else turn * most) % len(partitions)
            partitions = [*partitions[first:], *partitions[:first]][:most]
            generations = {at: generations[at] for each in partitions if (at := _at(each))}
        return partitions, generations, wait_s

    def request(self, request_id: int, partitions: list[FetchPartition]) -> FetchRequest:
        """One request for these. If there are more, they are to have their turn soon."""
        is_all = len(partitions) < _most_of(partitions)
        return FetchRequest(
            request_id=request_id,
            partitions=tuple(partitions),
            max_wait_ms=self._max_wait_ms if is_all else min(self._max_wait_ms, _TURN_MS),
            max_bytes=max(1, min(_RESPONSE_BYTES, self._max_bytes // 2)),
        )

    def deliver(self, broker_id: int, fetched: Fetched, generations: dict[TopicPartition, int]) -> None:
        """An answer came."""
        with self.condition:
            self._pauses.pop(broker_id, None)
            for partition in fetched.response.partitions:
                state = self.states.get(TopicPartition(partition.topic, partition.partition))
                if state is not None and state.generation == generations.get(state.at):
                    self._deliver(state, partition, fetched.buffers)
            self.condition.notify_all()

    def failed(self, broker_id: int, generations: Iterable[TopicPartition], error: PylogError) -> None:
        """A broker could not be asked: new metadata and a pause before it is asked again, or the caller is told."""
        with self.condition:
            if isinstance(error, RetriableError):
                backoff, _ = self._pauses.get(broker_id, (Backoff(), 0.0))
                self._pauses[broker_id] = backoff, time.monotonic() + backoff.next_s()
            else:
                for state in filter(None, map(self.states.get, generations)):
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

    def _deliver(self, state: PartitionState, partition: FetchedPartition, buffers: list[pa.Buffer]) -> None:
        if partition.error is not None:
            error = error_of(partition.error)
            if isinstance(error, RetriableError):
                state.not_before_s = time.monotonic() + state.backoff.next_s()
                self._on_stale()
            else:
                state.error = error
            return
        state.backoff.reset()
        state.high_watermark = max(state.high_watermark, partition.high_watermark)
        state.log_start = max(state.log_start, partition.log_start)
        if partition.row < 0 or partition.next_offset <= state.fetch_offset:
            return
        buffer = buffers[partition.row]
        state.arrived.append(Arrived(state.generation, buffer, partition.next_offset))
        state.fetch_offset = partition.next_offset
        self._stored_bytes += buffer.size

    def _forget_arrived(self, state: PartitionState) -> None:
        self._stored_bytes -= sum(arrived.buffer.size for arrived in state.arrived)
        state.arrived.clear()

    def _nudge(self) -> None:
        """What is wanted changed: threads that wait for data ask anew."""
        self.condition.notify_all()
        for thread in self._threads.values():
            thread.nudge()


def _most_of(partitions: Iterable[FetchPartition]) -> int:
    """How many of these one request takes."""
    return min(MOST_ENTRIES, MOST_COLUMN_IDS // max(1, *(len(each.columns or ()) for each in partitions)))


def _at(wanted: FetchPartition) -> TopicPartition:
    return TopicPartition(wanted.topic, wanted.partition)


class _BrokerThread:
    """Fetches from one broker, session after session."""

    def __init__(self, fetcher: Fetcher, cluster: Cluster, broker_id: int, max_wait_ms: int) -> None:
        self._fetcher = fetcher
        self._cluster = cluster
        self._broker_id = broker_id
        self._session: FetchExchange | None = None
        self._is_fetching = False
        self._was_nudged = False
        self._request_id = 0
        self._thread = threading.Thread(target=self._run, name=f"pylog-fetch-{broker_id}", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """With the fetcher's lock held: a request that waits for data is given up for a newer one."""
        if self._is_fetching:
            self._was_nudged = True
            self.cancel()

    def cancel(self) -> None:
        """Ends what the thread waits for."""
        session = self._session
        if session is not None:
            session.cancel()

    def look_at_silence(self) -> Address | None:
        """The broker's address if it owes a word for longer than any takes; for too long, the session is cancelled."""
        session = self._session
        if session is None or (silent_s := session.silent_for_s) <= _SILENCE_S:
            return None
        if silent_s > PEER_SILENCE_LIMIT_S:
            _logger.warning("fetch session silent broker=%d for_s=%.1f", self._broker_id, silent_s)
            session.cancel()
        return session.address

    def join(self) -> None:
        """Waits for the thread's end, a bounded time."""
        self._thread.join(_JOIN_LIMIT_S)

    def _run(self) -> None:
        try:
            try:
                while not self._fetcher.is_stopped:
                    self._step()
            finally:
                self._drop_session()
        except Exception as error:  # noqa: BLE001 - the thread's edge: a defect must not leave the caller in silence
            self._fetcher.broke(error, self._broker_id)

    def _step(self) -> None:
        with self._fetcher.condition:
            partitions, generations, wait_s = self._fetcher.wanted(self._broker_id, self._request_id)
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
                if self._was_nudged:
                    return
                fetched = session.fetch(self._fetcher.request(self._request_id, partitions))
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
            _logger.info("fetch failed broker=%d error=%s", self._broker_id, error)
            self._fetcher.failed(self._broker_id, generations, error)
            return
        finally:
            with self._fetcher.condition:
                self._is_fetching = False
        self._fetcher.deliver(self._broker_id, fetched, generations)

    def _open_session(self) -> FetchExchange:
        if self._session is None or self._session.is_cancelled:
            self._drop_session()
            self._session = FetchExchange(
                self._cluster.address_of(self._broker_id),
                FetchHello(client_id=self._fetcher.client_id),
                uses_proxy=self._cluster.uses_proxy,
            )
        return self._session

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
