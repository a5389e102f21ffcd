"""The cluster as one client sees it: brokers, topics, who leads what; calls that find their broker and are retried.

Rule: a `RetriableError` means that what was known is old: refresh, wait a little (`Backoff`), try again until the
deadline; then the last error is raised as it is. Everything else is raised at once. Until a first broker answered,
trying ends after `BOOTSTRAP_LIMIT_S` with an error that says what to do. A leader of an older epoch than one already
seen is never believed.

Thread-safe; no lock is held while a broker is asked. Each client has its own `Cluster`, and each `Cluster` its own
connections, which `close` ends.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TypeVar, overload

from broker_runtime.contract.errors import (
    BrokerUnavailableError,
    ClosedError,
    LeaderNotAvailableError,
    NetworkError,
    NotAPylogBrokerError,
    PylogError,
    RequestTimedOutError,
    RetriableError,
    UnknownTopicOrPartitionError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.flight import error_of
from broker_runtime.contract.model import BrokerDescription, ClusterDescription, check_topic_name
from broker_runtime.contract.requests import (
    ACTIONS,
    BrokerInfo,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    Message,
    MetadataRequest,
    MetadataResponse,
)
from broker_runtime.contract.settings import Address, AdminSettings, resolve
from pyspark_log.client import forking
from pyspark_log.client.channel import Channel
from pyspark_log.client.coordinator import Coordinator, Coordinators
from pyspark_log.client.retry import Backoff, Deadline
from pyspark_log.client.topics import Topic

BOOTSTRAP_LIMIT_S = 10.0
"""How long the first connection is tried."""
_ATTEMPT_LIMIT_S = 5.0  # one try at one broker, when there may be others
_QUICK_ATTEMPT_LIMIT_S = 2.0  # the same, for the first try at what every broker can tell at once
_FIRST_ATTEMPT_LIMIT_S = 3.0  # the same, before any has answered

_DISTRUST_S = 10.0
_MAY_BE_DONE = (NetworkError, RequestTimedOutError, ZooKeeperUnavailableError, LeaderNotAvailableError)
_CONNECTION_FAILED = (BrokerUnavailableError, NetworkError, RequestTimedOutError, NotAPylogBrokerError)

Target = int | str | Coordinator
"""A broker's id, ``"any"``, ``"controller"``, or a group's coordinator."""

_M = TypeVar("_M", bound=Message)


class Cluster:
    """Metadata and routing for one client."""

    def __init__(
        self, bootstrap_servers: Sequence[Address], *, client_id: str = "pylog", request_timeout_ms: int = 30_000
    ) -> None:
        """Connects to nothing yet."""
        self.bootstrap_servers = tuple(bootstrap_servers)
        self.client_id = client_id
        self.request_timeout_s = request_timeout_ms / 1000
        self._lock = threading.Lock()
        self._channels: dict[Address, Channel] = {}
        self._brokers: dict[int, BrokerDescription] = {}
        self._cluster_id = ""
        self._controller_id: int | None = None
        self._topics: dict[str, Topic] = {}
        self._coordinators = Coordinators()
        self._turn = itertools.count()
        self._failed_s: dict[Address, float] = {}  # addresses whose last call found no broker, and when
        self._is_connected = False
        self._is_closed = False
        forking.register(self)

    @classmethod
    def from_settings(cls, settings: AdminSettings) -> Cluster:
        """The cluster that a client's settings name."""
        return cls(
            settings.bootstrap_servers, client_id=settings.client_id, request_timeout_ms=settings.request_timeout_ms
        )

    @classmethod
    def at(cls, bootstrap_servers: str | Sequence[str] | None = None, *, client_id: str = "pylog") -> Cluster:
        """The cluster at ``host:port`` (several, as a list or with commas; None: the default)."""
        return cls.from_settings(
            resolve("admin", None, {"bootstrap_servers": bootstrap_servers, "client_id": client_id})
        )

    # --- what is known ----------------------------------------------------------------------------------------

    def topic(self, name: str, *, max_age: Topic | None = None, timeout_s: float | None = None) -> Topic:
        """The topic, from the cache if it is there. With ``max_age``: asked anew if the cache still has that one.

        Raises `UnknownTopicOrPartitionError`, `InvalidTopicError`, and what `call` raises.
        """
        cached = self._topics.get(name)
        if cached is not None and cached is not max_age:
            return cached
        return self.fetch_topics([check_topic_name(name)], timeout_s=timeout_s)[0]

    def fetch_topics(
        self, names: Iterable[str] | None = None, *, timeout_s: float | None = None, to: int | str = "any"
    ) -> list[Topic]:
        """Asks for topics (None: all), and remembers them. Raises the error of the first that cannot be described."""
        wanted = None if names is None else tuple(names)
        response = self.call("metadata", MetadataRequest(topics=wanted), MetadataResponse, timeout_s=timeout_s, to=to)
        with self._lock:
            for name in response.errors:
                self._topics.pop(name, None)
        for info in response.errors.values():
            raise error_of(info)
        found = [self._newer(Topic.from_info(info)) for info in response.topics]
        if wanted is not None:
            by_name = {topic.name: topic for topic in found}
            missing = [name for name in wanted if name not in by_name]
            if missing:
                raise UnknownTopicOrPartitionError(f"the cluster has no topic {missing[0]!r}")
            found = [by_name[name] for name in wanted]
        return found

    def describe(self, *, timeout_s: float | None = None) -> ClusterDescription:
        """The cluster's id, controller and live brokers, asked anew."""
        response = self.call("metadata", MetadataRequest(topics=()), MetadataResponse, timeout_s=timeout_s)
        return ClusterDescription(
            cluster_id=response.cluster_id,
            controller_id=response.controller_id,
            brokers={b.broker_id: _broker(b) for b in response.brokers},
        )

    def leader(self, topic: Topic, partition: int) -> tuple[Address, int]:
        """Where the partition's leader listens, and its epoch. Raises `LeaderNotAvailableError` (retriable)."""
        info = topic.partition(partition)
        broker = None if info.leader is None else self._brokers.get(info.leader)
        if broker is None:
            raise LeaderNotAvailableError(f"{topic.name}-{partition} has no leader at present")
        return Address(broker.host, broker.port), info.leader_epoch

    def address_of(self, broker_id: int) -> Address:
        """Where a broker listens; raises `BrokerUnavailableError` if it is not registered."""
        broker = self._brokers.get(broker_id)
        if broker is None:
            raise BrokerUnavailableError(f"broker {broker_id} is not in the cluster at present")
        return Address(broker.host, broker.port)

    @property
    def controller_id(self) -> int | None:
        """The controller as last heard."""
        return self._controller_id

    # --- calls ------------------------------------------------------------------------------------------------

    @overload
    def call(
        self, action: str, request: Message, response: type[_M], *,
        timeout_s: float | None = ..., to: Target = ...,
    ) -> _M: ...  # fmt: skip
    @overload
    def call(
        self, action: str, request: Message, response: type[_M], *,
        timeout_s: float | None = ..., to: Target = ..., done_if: type[PylogError] | None,
    ) -> _M | None: ...  # fmt: skip
    def call(
        self,
        action: str,
        request: Message,
        response: type[_M],
        *,
        timeout_s: float | None = None,
        to: Target = "any",
        done_if: type[PylogError] | None = None,
    ) -> _M | None:
        """Does an action at ``to``: ``"any"`` broker, the ``"controller"``, a broker's id, a group's `Coordinator`;
        retries as the module says.

        ``done_if``: this error, after a try whose outcome is unknown, means that that try succeeded, or that somebody
        else was quicker: returns None.
        Blocks at most ``timeout_s`` (default ``request.timeout.ms``). Raises what the broker answered, or the last
        network error; at once where a broker that was named refuses: who leads, say, may be another by now.
        """
        assert ACTIONS[action].response is response
        deadline = Deadline(self.request_timeout_s if timeout_s is None else timeout_s)
        if not self._is_connected and action != "metadata":
            # Whether anybody is there is asked with what is answered at once; the call itself may take its time.
            self.call("metadata", MetadataRequest(topics=()), MetadataResponse, timeout_s=deadline.remaining_s())
        backoff = Backoff()
        started_s = time.monotonic()
        is_ambiguous = False
        tried: set[Address] = set()
        said: PylogError | None = None
        while said is None or not self._is_connected or not deadline.expired:
            address = None
            try:
                address = self._pick(to, deadline)
                limit_s = self._attempt_s(to, deadline, is_quick=action == "metadata" and not tried)
                if said is not None and self._is_connected and limit_s <= 0:
                    break
                tried.add(address)
                answer = self._ask(address, action, request, response, timeout_s=limit_s)
            except (RetriableError, NotAPylogBrokerError) as error:
                failure: PylogError = error
            except PylogError as error:
                if is_ambiguous and done_if is not None and isinstance(error, done_if):
                    return None
                raise
            else:
                self._is_connected = True
                if isinstance(answer, MetadataResponse):
                    self._remember(answer)
                return answer
            if isinstance(to, Coordinator):
                self._coordinators.forget(to)
            is_ambiguous = is_ambiguous or isinstance(failure, _MAY_BE_DONE)
            self._raise_if_hopeless(failure, address, tried, started_s, deadline)
            if isinstance(to, int) and isinstance(failure, BrokerUnavailableError):
                raise failure
            said = failure
            time.sleep(deadline.remaining_s(backoff.next_s()))
            if action != "metadata" and to != "any":
                self.refresh(timeout_s=deadline.remaining_s(_ATTEMPT_LIMIT_S))
        raise said  # and not that there was no time left to ask again

    def refresh(self, *, timeout_s: float = _ATTEMPT_LIMIT_S) -> None:
        """Asks one broker once for the list of brokers; a failure is left to the call that follows."""
        if timeout_s <= 0:
            return
        try:
            response = self._ask(
                self._any(), "metadata", MetadataRequest(topics=()), MetadataResponse, timeout_s=timeout_s
            )
        except (RetriableError, NotAPylogBrokerError):
            return
        self._remember(response)

    def distrust(self, address: Address) -> None:
        """A broker there owes somebody an answer: others are asked first for a while."""
        self._failed_s[address] = time.monotonic()

    def forget_coordinator(self, of: Coordinator) -> None:
        """Whoever answers as the group's coordinator is not the one any more."""
        self._coordinators.forget(of)

    def close(self) -> None:
        """Ends all connections. Calls after it raise `ClosedError`. May be called again."""
        with self._lock:
            self._is_closed = True
            channels = list(self._channels.values())
            self._channels.clear()
        for channel in channels:
            channel.close()
        forking.unregister(self)

    def interrupt_for_fork(self) -> None:
        """See `forking`."""

    def drop_for_fork(self) -> None:
        """See `forking`: channels do it."""

    def after_fork_in_child(self) -> None:
        """See `forking`."""
        self._lock = threading.Lock()

    # --- private ----------------------------------------------------------------------------------------------

    def _pick(self, to: Target, deadline: Deadline) -> Address:
        if isinstance(to, int):
            return self.address_of(to)
        if isinstance(to, Coordinator):
            return self.address_of(self._coordinators.broker_id(to, lambda group: self._find(group, deadline)))
        if to == "controller" and self._controller_id in self._brokers:
            return self.address_of(self._controller_id)
        return self._any()

    def _find(self, group_id: str, deadline: Deadline) -> int:
        request = FindCoordinatorRequest(group_id=group_id)
        limit_s = deadline.remaining_s(_QUICK_ATTEMPT_LIMIT_S)
        return self._ask(self._any(), "find_coordinator", request, FindCoordinatorResponse, timeout_s=limit_s).broker_id

    def _any(self) -> Address:
        turn = next(self._turn)
        known = [Address(broker.host, broker.port) for broker in self._brokers.values()]
        others = [address for address in self.bootstrap_servers if address not in known]
        candidates = [*_from(known, turn), *_from(others, turn)]
        # Who failed lately comes last, and the one that failed longest ago first among those.
        lately_s = time.monotonic() - _DISTRUST_S
        return min(candidates, key=lambda address: max(self._failed_s.get(address, 0.0), lately_s))

    def _ask(self, address: Address, action: str, request: Message, response: type[_M], *, timeout_s: float) -> _M:
        try:
            answer = self._channel(address).call(action, request, response, timeout_s=timeout_s)
        except _CONNECTION_FAILED:
            self._failed_s[address] = time.monotonic()
            raise
        self._failed_s.pop(address, None)
        return answer

    def _channel(self, address: Address) -> Channel:
        with self._lock:
            if self._is_closed:
                raise ClosedError("the client was closed")
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = Channel(address, client_id=self.client_id)
            return channel

    def _attempt_s(self, to: Target, deadline: Deadline, *, is_quick: bool) -> float:
        if not self._is_connected and len(self.bootstrap_servers) > 1:
            return deadline.remaining_s(_FIRST_ATTEMPT_LIMIT_S)
        if not self._is_connected or (to == "any" and len(self._brokers) > 1):
            is_quick = is_quick and self._is_connected
            return deadline.remaining_s(_QUICK_ATTEMPT_LIMIT_S if is_quick else _ATTEMPT_LIMIT_S)
        if (to == "controller" or isinstance(to, Coordinator)) and len(self._brokers) > 1:
            # It may be frozen; when its session has ended there is another.
            return deadline.remaining_s(max(_ATTEMPT_LIMIT_S, 0.4 * deadline.remaining_s()))
        return deadline.remaining_s()

    def _raise_if_hopeless(
        self, failure: PylogError, address: Address | None, tried: set[Address], started_s: float, deadline: Deadline
    ) -> None:
        tried_s = time.monotonic() - started_s
        if self._is_connected:
            if deadline.expired:
                raise failure
            return
        if isinstance(failure, NotAPylogBrokerError) and len(self.bootstrap_servers) == 1:
            raise failure
        limit_s = BOOTSTRAP_LIMIT_S if deadline.timeout_s is None else min(BOOTSTRAP_LIMIT_S, deadline.timeout_s)
        if tried_s < limit_s or (not tried.issuperset(self.bootstrap_servers) and not deadline.expired):
            return  # one that is silent must not hide another that would answer
        names = ", ".join(str(a) for a in self.bootstrap_servers)
        if address is not None and (isinstance(failure, NotAPylogBrokerError) or _accepts(address)):
            if isinstance(failure, RequestTimedOutError):
                raise NotAPylogBrokerError(f"{address} takes connections but did not say a word for {limit_s:.3g} s")
            raise NotAPylogBrokerError(f"{address} answers, but not as pylog. Is it Kafka?")
        raise BrokerUnavailableError(f"{names} refused for {limit_s:.3g} s. Start one: pylog up")

    def _remember(self, response: MetadataResponse) -> None:
        with self._lock:
            self._cluster_id = response.cluster_id
            self._controller_id = response.controller_id
            self._brokers = {b.broker_id: _broker(b) for b in response.brokers}

    def _newer(self, topic: Topic) -> Topic:
        """Remembers the topic, unless an answer with newer epochs came first."""
        with self._lock:
            known = self._topics.get(topic.name)
            if known is not None and known.topic_id == topic.topic_id and _is_older(topic, known):
                return known
            self._topics[topic.name] = topic
            return topic


def _is_older(topic: Topic, known: Topic) -> bool:
    return len(topic.partitions) < len(known.partitions) or any(
        new.leader_epoch < old.leader_epoch for new, old in zip(topic.partitions, known.partitions, strict=False)
    )


def _from(addresses: Sequence[Address], turn: int) -> list[Address]:
    """All of them, each time beginning with another."""
    start = turn % len(addresses) if addresses else 0
    return [*addresses[start:], *addresses[:start]]


def _broker(told: BrokerInfo) -> BrokerDescription:
    return BrokerDescription(
        broker_id=told.broker_id, host=told.host, port=told.port, epoch=told.epoch, disks=told.disks
    )


def _accepts(address: Address) -> bool:
    try:
        with socket.create_connection(address, timeout=1.0):
            return True
    except OSError:
        return False
