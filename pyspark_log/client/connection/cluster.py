"""The cluster as one client sees it: brokers, topics, who leads what; calls that find their broker and are retried.

Rule: a `RetriableError` means that metadata is out of date: it is refreshed, and the call is repeated after a pause
(`Backoff`) until the deadline; then the last error is raised as it is. Every other error is raised at once. Until a
first broker has answered, a call ends after `BOOTSTRAP_LIMIT_S` with an error that says what to do, or at once if it is
certain that there is no broker at any of the addresses (no such name, another service). Metadata with an older leader
epoch than one already seen is ignored, and so is that of another cluster, which may have got a dead broker's address,
until the known one has not answered for a while.

Thread-safe; no lock is held while a broker is called. Each client has its own `Cluster`, and each `Cluster` its own
connections, which `close` ends.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar, overload

from broker_runtime.contract import forking
from broker_runtime.contract.actions import ACTIONS
from broker_runtime.contract.errors import (
    BrokerUnavailableError,
    ClosedError,
    LeaderNotAvailableError,
    NetworkError,
    NotAPylogBrokerError,
    PylogError,
    RequestTimedOutError,
    RetriableError,
    SslAuthenticationError,
    UnknownTopicOrPartitionError,
    ZooKeeperUnavailableError,
)
from broker_runtime.contract.events import event
from broker_runtime.contract.flight import CONNECTION_OPTIONS, error_of
from broker_runtime.contract.link import Link
from broker_runtime.contract.model import BrokerDescription, ClusterDescription, check_topic_name
from broker_runtime.contract.requests import (
    BrokerInfo,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    Message,
    MetadataRequest,
    MetadataResponse,
)
from broker_runtime.contract.security import UNPROTECTED, Access, access_of
from broker_runtime.contract.settings import Address, AdminSettings, resolve
from broker_runtime.contract.waiting import Backoff, Deadline
from pyspark_log.client.connection.channel import Channel, Network
from pyspark_log.client.connection.coordinator import Coordinator, Coordinators
from pyspark_log.client.connection.strangers import LIMIT_S, Peer, error_for, is_certain
from pyspark_log.client.connection.topics import Topic, as_one, portions_of_names

_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy", "GRPC_ADDRESS_HTTP_PROXY")  # those gRPC reads
_logger = logging.getLogger(__name__)

BOOTSTRAP_LIMIT_S = 10.0
"""How long the first connection is tried, with the look at what is there; never longer than ``request.timeout.ms``."""
_ATTEMPT_LIMIT_S = 5.0  # of one attempt at one broker, if there may be others
_QUICK_ATTEMPT_LIMIT_S = 2.0  # likewise, of the first attempt at a call that every broker answers at once
_FIRST_ATTEMPT_LIMIT_S = 3.0  # likewise, before any broker has answered
_SHORTEST_ATTEMPT_S = 0.05  # likewise, at least: in less time no broker can answer
_EARLY_S = 0.1  # an attempt may end this much before its time limit
_TELLING_ATTEMPT_S = (
    1.0  # a connection, an election or a busy moment may take this long: a shorter silence proves nothing
)

_DISTRUST_S = 10.0
_FOREIGN_S = 10.0  # a restart takes less
_FOREIGN_PROOF_S = 30.0  # a failure that is older proves nothing
_MOST_KEPT = 2  # connections to a broker that reads keep between them: as many as one read uses at a time
_KEPT_S = 30.0  # how long; what is between may forget a connection that is idle for minutes, without a word
_MAY_BE_DONE = (NetworkError, RequestTimedOutError, ZooKeeperUnavailableError, LeaderNotAvailableError)
_CONNECTION_FAILED = (BrokerUnavailableError, NetworkError, RequestTimedOutError, NotAPylogBrokerError)

Target = int | str | Coordinator
"""A broker's id, ``"any"``, ``"controller"``, or a group's coordinator."""

_M = TypeVar("_M", bound=Message)

NETWORK = Network()
"""What a `Cluster` uses unless it is given another."""


class _Failures(NamedTuple):
    """Calls of an address that have failed one after the other: when the first and the last of them."""

    first_s: float
    last_s: float


class Cluster(forking.Forkable):
    """Metadata and routing for one client."""

    def __init__(
        self,
        bootstrap_servers: Sequence[Address],
        *,
        client_id: str = "pylog",
        request_timeout_ms: int = 30_000,
        access: Access = UNPROTECTED,
        network: Network | None = None,
    ) -> None:
        """Connects to nothing yet. ``access``: how, for all connections of the client."""
        self.bootstrap_servers = tuple(bootstrap_servers)
        self.client_id = client_id
        self.access = access
        self.request_timeout_s = request_timeout_ms / 1000
        self._network = network or NETWORK
        self._clock = self._network.clock
        self._lock = threading.Lock()
        self._channels: dict[Address, Channel] = {}
        self._calls: Counter[Address] = Counter()  # that are under way
        self._called_s: dict[Address, float] = {}  # when the last one ended
        self._kept: dict[Address, list[tuple[Link, float]]] = {}  # let go by reads, the last one last, and when
        self._brokers: dict[int, BrokerDescription] = {}
        self._cluster_id = ""
        self._controller_id: int | None = None
        self._topics: dict[str, Topic] = {}
        self._coordinators = Coordinators()
        self._turn = itertools.count()
        self._failures: dict[Address, _Failures] = {}  # addresses whose last call found no broker of this cluster
        self._strangers: dict[Address, Peer | None] = {}  # addresses that were examined; None: there may be a broker
        self._is_connected = False
        self._is_closed = False
        forking.register(self)

    @classmethod
    def from_settings(cls, settings: AdminSettings) -> Cluster:
        """The cluster that a client's settings name."""
        return cls(
            settings.bootstrap_servers,
            client_id=settings.client_id,
            request_timeout_ms=settings.request_timeout_ms,
            access=access_of(settings),
        )

    @classmethod
    def at(cls, bootstrap_servers: str | Sequence[str] | None = None, *, client_id: str = "pylog") -> Cluster:
        """The cluster at ``host:port`` (several, as a list or with commas; None: the default)."""
        return cls.from_settings(
            resolve("admin", None, {"bootstrap_servers": bootstrap_servers, "client_id": client_id})
        )

    # --- what is known ----------------------------------------------------------------------------------------

    def topic(self, name: str, *, max_age: Topic | None = None, timeout_s: float | None = None) -> Topic:
        """The topic, from the cache if it is there. ``max_age``: fetched again if the cache still has this description.

        Raises `UnknownTopicOrPartitionError`, `InvalidTopicError`, and what `call` raises.
        """
        cached = self._topics.get(name)
        if cached is not None and cached is not max_age:
            return cached
        return self.fetch_topics([check_topic_name(name)], timeout_s=timeout_s)[0]

    def fetch_topics(
        self, names: Iterable[str] | None = None, *, timeout_s: float | None = None, to: int | str = "any"
    ) -> list[Topic]:
        """Fetches topics (None: all), and remembers them. Raises the error of the first that cannot be described."""
        wanted = None if names is None else tuple(names)
        deadline = self.deadline(timeout_s)
        response = as_one(
            self.call(
                "metadata", MetadataRequest(topics=some), MetadataResponse, timeout_s=deadline.remaining_s(), to=to
            )
            for some in portions_of_names(wanted)
        )
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
        """The cluster's id, controller and live brokers, fetched now."""
        response = self.call("metadata", MetadataRequest(topics=()), MetadataResponse, timeout_s=timeout_s)
        return ClusterDescription(
            cluster_id=response.cluster_id,
            controller_id=response.controller_id,
            brokers={b.broker_id: _broker(b) for b in response.brokers},
        )

    def leader(self, topic: Topic, partition: int) -> tuple[Address, int]:
        """The address of the partition's leader, and its epoch. Raises `LeaderNotAvailableError` (retriable)."""
        info = topic.partition(partition)
        broker = None if info.leader is None else self._brokers.get(info.leader)
        if broker is None:
            raise LeaderNotAvailableError(f"{topic.name}-{partition} has no leader at present")
        return Address(broker.host, broker.port), info.leader_epoch

    def address_of(self, broker_id: int) -> Address:
        """A broker's address; raises `BrokerUnavailableError` if it is not registered."""
        broker = self._brokers.get(broker_id)
        if broker is None:
            raise BrokerUnavailableError(f"broker {broker_id} is not in the cluster at present")
        return Address(broker.host, broker.port)

    @property
    def controller_id(self) -> int | None:
        """The controller, according to the latest metadata."""
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
        """Calls an action of ``to``: ``"any"`` broker, the ``"controller"``, a broker by id, a group's `Coordinator`.
        Repeats it as the module says.

        ``done_if``: this error, after an attempt whose outcome is unknown, means that the attempt succeeded, or that
        another client was faster: returns None.
        Blocks at most ``timeout_s`` (default ``request.timeout.ms``). Raises what the broker answered, or the last
        network error; at once if a broker named by id cannot be reached, because another one may lead by now. If a last
        attempt with less than a second left times out, the error of the attempt before it is raised.
        """
        assert ACTIONS[action].response is response
        deadline = self.deadline(timeout_s)
        if not self._is_connected and action != "metadata":
            # A request that is answered at once finds out whether a broker is there; the call itself may take long.
            self.call("metadata", MetadataRequest(topics=()), MetadataResponse, timeout_s=deadline.remaining_s())
        backoff = Backoff()
        started_s = self._clock.now_s()
        is_ambiguous = False
        tried: set[Address] = set()
        last_error: PylogError | None = None
        while last_error is None or not self._is_connected or not deadline.expired:
            address, limit_s = None, 0.0 if last_error is None else deadline.remaining_s()
            try:
                address = self._pick(to, deadline)
                limit_s = self._attempt_s(to, deadline, is_quick=action == "metadata" and not tried)
                if not self._is_connected and tried.issuperset(self.bootstrap_servers[1:]):
                    limit_s = self._last_attempts_s(limit_s, started_s, deadline)
                if last_error is not None and self._is_connected and limit_s <= 0:
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
                return answer
            if isinstance(to, Coordinator):
                self._coordinators.forget(to)
            is_ambiguous = is_ambiguous or isinstance(failure, _MAY_BE_DONE)
            if last_error is not None and isinstance(failure, RequestTimedOutError) and limit_s < _TELLING_ATTEMPT_S:
                # The request may have been carried out: an error that denies this must not replace this one.
                failure = last_error if address is None or isinstance(last_error, _MAY_BE_DONE) else failure
            self._raise_if_hopeless(failure, address, tried, started_s, deadline)
            if isinstance(to, int) and isinstance(failure, BrokerUnavailableError):
                raise failure
            last_error = failure
            pause_s = backoff.next_s()
            deadline.sleep(pause_s if self._is_connected else min(pause_s, self._bootstrap_left_s(started_s, deadline)))
            if action != "metadata" and (to != "any" or isinstance(failure, BrokerUnavailableError)):
                self.refresh(timeout_s=deadline.remaining_s(_ATTEMPT_LIMIT_S))
        raise last_error  # rather than that no time was left for another attempt

    def refresh(self, *, timeout_s: float = _ATTEMPT_LIMIT_S) -> None:
        """Fetches the list of brokers from one broker, once; a failure is ignored, since the next call will meet it."""
        if timeout_s <= 0:
            return
        with suppress(RetriableError, NotAPylogBrokerError):
            self._ask(self._any(), "metadata", MetadataRequest(topics=()), MetadataResponse, timeout_s=timeout_s)

    def deadline(self, timeout_s: float | None = None) -> Deadline:
        """The deadline of a call that begins now, by the clock of this cluster; default ``request.timeout.ms``."""
        return Deadline(self.request_timeout_s if timeout_s is None else timeout_s, clock=self._clock)

    def distrust(self, address: Address) -> None:
        """A broker at this address has not answered: for a while, others are called first."""
        self._note_failure(address)

    def forget_coordinator(self, of: Coordinator) -> None:
        """The group may have another coordinator now."""
        self._coordinators.forget(of)

    # --- connections for reads ----------------------------------------------------------------------------------

    def read_link(self, address: Address, *, is_new: bool = False) -> Link:
        """A link to a broker for a stream of its own: one that was kept, that of actions if none is under way (the next
        makes a connection for itself), or a new one, which is not connected yet. ``is_new``: a new one.
        """
        found: Link | None = None
        while found is None:
            with self._lock:
                kept = self._kept.get(address)
                found, since_s = kept.pop() if kept and not is_new else (None, 0.0)
                if found is None and not is_new:
                    found, since_s = self._idle_link(address), self._clock.now_s()
            if found is None:
                return Link(address, CONNECTION_OPTIONS, what="read", access=self.access)
            if found.is_ended or self._clock.now_s() - since_s > _KEPT_S:
                found.close()
                found = None
        return found

    def keep_link(self, link: Link) -> None:
        """Takes a link that was let go, for the next `read_link`; closes it if there are enough."""
        with self._lock:
            kept = self._kept.setdefault(link.address, [])
            is_wanted = not self._is_closed and len(kept) < _MOST_KEPT
            if is_wanted:
                kept.append((link, self._clock.now_s()))
        if not is_wanted:
            link.close()

    def close(self) -> None:
        """Ends all connections. Calls after it raise `ClosedError`. May be called again."""
        with self._lock:
            self._is_closed = True
            channels = list(self._channels.values())
            self._channels.clear()
            links = [link for kept in self._kept.values() for link, _ in kept]
            self._kept.clear()
        for channel in channels:
            channel.close()
        for link in links:
            link.close()
        forking.unregister(self)

    def _after_fork_in_child(self) -> None:
        """See `forking`. Channels let their connections go themselves."""
        self._lock = threading.Lock()
        self._calls.clear()

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
        # Addresses that failed lately come last; among these, the one that failed longest ago comes first.
        lately_s = self._clock.now_s() - _DISTRUST_S
        with self._lock:
            failed_s = {address: failures.last_s for address, failures in self._failures.items()}
        return min(candidates, key=lambda address: max(failed_s.get(address, lately_s), lately_s))

    def _ask(self, address: Address, action: str, request: Message, response: type[_M], *, timeout_s: float) -> _M:
        with self._lock:
            self._calls[address] += 1
        # Metadata asks a broker which cluster it belongs to; every other action says which one it is for.
        cluster_id = "" if action == "metadata" else self._cluster_id
        try:
            answer = self._channel(address).call(action, request, response, cluster_id=cluster_id, timeout_s=timeout_s)
            if isinstance(answer, MetadataResponse):
                self._remember(answer, address)
        except _CONNECTION_FAILED:
            self._note_failure(address)
            raise
        finally:
            with self._lock:
                self._calls[address] -= 1
                self._called_s[address] = self._clock.now_s()
        with self._lock:
            self._failures.pop(address, None)
        return answer

    def _note_failure(self, address: Address) -> None:
        now_s = self._clock.now_s()
        with self._lock:
            known = self._failures.get(address)
            self._failures[address] = _Failures(now_s if known is None else known.first_s, now_s)

    def _channel(self, address: Address) -> Channel:
        with self._lock:
            if self._is_closed:
                raise ClosedError("the client was closed")
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = self._network.channel(
                    address, client_id=self.client_id, access=self.access
                )
            return channel

    def _idle_link(self, address: Address) -> Link | None:
        """The link of actions, if none is under way and one has been lately. With the lock held."""
        channel = self._channels.get(address)
        is_recent = self._clock.now_s() - self._called_s.get(address, -math.inf) <= _KEPT_S
        return channel.give_link() if channel is not None and is_recent and not self._calls[address] else None

    def _attempt_s(self, to: Target, deadline: Deadline, *, is_quick: bool) -> float:
        if not self._is_connected and len(self.bootstrap_servers) > 1:
            return deadline.remaining_s(_FIRST_ATTEMPT_LIMIT_S)
        if not self._is_connected or (to == "any" and len(self._brokers) > 1):
            is_quick = is_quick and self._is_connected
            return deadline.remaining_s(_QUICK_ATTEMPT_LIMIT_S if is_quick else _ATTEMPT_LIMIT_S)
        if (to == "controller" or isinstance(to, Coordinator)) and len(self._brokers) > 1:
            # It may hang; when its session has ended, another broker takes its place.
            return deadline.remaining_s(max(_ATTEMPT_LIMIT_S, 0.4 * deadline.remaining_s()))
        return deadline.remaining_s()

    def _bootstrap_s(self, deadline: Deadline) -> float:
        limit_s = min(BOOTSTRAP_LIMIT_S, self.request_timeout_s)
        return limit_s if deadline.timeout_s is None else min(limit_s, deadline.timeout_s)

    def _bootstrap_left_s(self, started_s: float, deadline: Deadline) -> float:
        return max(0.0, self._bootstrap_s(deadline) - (self._clock.now_s() - started_s))

    def _last_attempts_s(self, limit_s: float, started_s: float, deadline: Deadline) -> float:
        """Shortens an attempt so that all of them, and the look at what is silent, end within the limit."""
        left_s, look_s = self._bootstrap_left_s(started_s, deadline), _look_s(self._bootstrap_s(deadline))
        return min(limit_s, max(left_s - (look_s if left_s > look_s else look_s / 2), _SHORTEST_ATTEMPT_S))

    def _raise_if_hopeless(
        self, failure: PylogError, address: Address | None, tried: set[Address], started_s: float, deadline: Deadline
    ) -> None:
        tried_s = self._clock.now_s() - started_s
        if self._is_connected:
            if deadline.expired:
                raise failure
            return
        limit_s = self._bootstrap_s(deadline)
        if address is not None and isinstance(failure, _CONNECTION_FAILED):
            self._look_for_stranger(address, failure, deadline)
        if all(self._strangers.get(each) for each in self.bootstrap_servers):
            raise self._through_proxy(self._strangers_error(limit_s))
        if isinstance(failure, NotAPylogBrokerError) and len(self.bootstrap_servers) == 1:
            raise failure
        look_s = _look_s(limit_s)
        may_be_silent = isinstance(failure, RequestTimedOutError)
        if tried_s + (look_s + _EARLY_S if may_be_silent else 0.0) < limit_s or (
            not tried.issuperset(self.bootstrap_servers) and not deadline.expired
        ):
            return  # one that is silent must not keep another from being tried
        if not isinstance(failure, _CONNECTION_FAILED):
            raise failure
        said_s = limit_s if len(self.bootstrap_servers) == 1 else max(limit_s, round(tried_s))
        names = [each for each in self.bootstrap_servers if not self._strangers.get(each)]
        for each in names:
            peer = self._network.who_is_at(each, limit_s=max(limit_s - tried_s, look_s / 2))
            if peer is Peer.REFUSED:
                continue  # of several addresses, report one where something is
            if peer is not Peer.SILENT and self._clock.now_s() - started_s < limit_s:
                return  # the look took no time: there is time for another attempt
            raise self._through_proxy(error_for(peer, each, said_s))
        raise self._through_proxy(
            BrokerUnavailableError(f"{', '.join(map(str, names))} refused for {said_s:.3g} s. Start one: pylog up")
        )

    def _through_proxy(self, error: PylogError) -> PylogError:
        """What was found at the address was found without the proxy, which may be the one that does not answer."""
        variable = next((name for name in _PROXY_VARIABLES if os.environ.get(name)), None)
        if not self.access.uses_proxy or variable is None:
            return error
        return type(error)(
            f"{error.message}. enable.http.proxy is true, so connections go through the proxy that {variable} names: "
            "does it answer?"
        )

    def _look_for_stranger(self, address: Address, failure: PylogError, deadline: Deadline) -> None:
        """Finds out, once, what is at an address where no broker has answered yet."""
        if address in self._strangers or address not in self.bootstrap_servers:
            return
        if isinstance(failure, RequestTimedOutError):
            return  # a broker may be slow: silence is waited out
        peer = self._network.who_is_at(address, limit_s=deadline.remaining_s())
        if peer is Peer.TLS and self.access.tls is not None:
            if "Socket closed" in failure.message:  # gRPC's words for it, and no others
                raise SslAuthenticationError(
                    f"{address} closed the connection after the handshake: does it ask for a certificate "
                    "(ssl.certfile), or not trust the one it gets?"
                )
            peer = Peer.SILENT
        self._strangers[address] = peer if is_certain(peer) else None
        if is_certain(peer) and len(self.bootstrap_servers) > 1:
            error = error_for(peer, address, 0.0)
            event(_logger, "skip bootstrap server", level=logging.WARNING, address=address, error=error)

    def _strangers_error(self, limit_s: float) -> PylogError:
        found = [error_for(peer, each, limit_s) for each, peer in self._strangers.items() if peer is not None]
        self._strangers.clear()  # the next call looks again
        return type(found[0])("; ".join(error.message for error in found))

    def _remember(self, response: MetadataResponse, address: Address) -> None:
        """Raises `BrokerUnavailableError` if it is the answer of another cluster (see `_is_replaced`)."""
        with self._lock:
            known = self._cluster_id
            is_other = response.cluster_id != known != ""
            if is_other and not self._is_replaced(address):
                raise BrokerUnavailableError(
                    f"{address} belongs to cluster {response.cluster_id}, this client to cluster {known}"
                )
            if is_other:
                self._topics.clear()
                self._coordinators.clear()
            self._cluster_id = response.cluster_id
            self._controller_id = response.controller_id
            self._brokers = {b.broker_id: _broker(b) for b in response.brokers}
        if is_other:
            now = response.cluster_id
            event(_logger, "cluster was replaced", level=logging.WARNING, address=address, known=known, now=now)

    def _is_replaced(self, address: Address) -> bool:
        """Whether the cluster is gone for good, and another has its address: all its other addresses have failed for
        `_FOREIGN_S` without a break, and were tried lately; or there is no other. With the lock held.
        """
        now_s = self._clock.now_s()
        brokers = {Address(broker.host, broker.port) for broker in self._brokers.values()}
        if len(self.bootstrap_servers) == 1 and len(brokers) <= 1:
            return True  # its address, and perhaps another name of it
        never = _Failures(math.inf, -math.inf)
        failures = [self._failures.get(each, never) for each in brokers.union(self.bootstrap_servers) - {address}]
        return all(now_s - each.first_s >= _FOREIGN_S and now_s - each.last_s <= _FOREIGN_PROOF_S for each in failures)

    def _newer(self, topic: Topic) -> Topic:
        """Remembers the topic, unless an answer with newer epochs came first."""
        with self._lock:
            known = self._topics.get(topic.name)
            if known is not None and known.topic_id == topic.topic_id and topic.is_older_than(known):
                return known
            self._topics[topic.name] = topic
            return topic


def _look_s(limit_s: float) -> float:
    """How long the look at what is silent may take, out of the whole limit."""
    return min(LIMIT_S, limit_s / 4)


def _from(addresses: Sequence[Address], turn: int) -> list[Address]:
    """All addresses, starting with another one for each ``turn``."""
    start = turn % len(addresses) if addresses else 0
    return [*addresses[start:], *addresses[:start]]


def _broker(info: BrokerInfo) -> BrokerDescription:
    return BrokerDescription(
        broker_id=info.broker_id,
        host=info.host,
        port=info.port,
        epoch=info.epoch,
        disks=info.disks,
        diverged=info.diverged,
    )
