"""Which registered brokers are probably dead: those whose port refuses, though their session has not timed out yet.

Rules: a suspicion concerns one registration (broker id and epoch) and ends with it. It may be wrong, so it also ends
when the port answers, or when the broker, having left all in-sync sets, is taken into one again: that proves it alive,
and it is not suspected again for a while. A registration whose port never answered counts as starting for a while:
until then it is doubtful, neither dead nor known to live.
Probing never happens under the lock. Nothing here elects.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from broker_runtime.contract.events import event
from broker_runtime.zookeeper.znodes import BrokerRegistration

_logger = logging.getLogger(__name__)

Probe = Callable[[str, int], bool]
"""``probe(host, port)``: whether the port refuses. A time-out is no refusal. Blocks for one connection attempt."""

STARTING_MS: Final = 3_000
TRUST_MS: Final = 10_000


@dataclass(slots=True)
class _Peer:
    host: str
    port: int
    epoch: int
    known_since_ms: int
    has_answered: bool = False
    is_suspect: bool = False
    is_doubtful: bool = False
    is_evicted: bool = False  # it is in no in-sync set with other members
    trusted_until_ms: int = 0


class Suspicions:
    """Which other brokers one broker suspects. Thread-safe."""

    def __init__(self, broker_id: int, probe: Probe, now_ms: Callable[[], int]) -> None:
        self._broker_id = broker_id
        self._probe = probe
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._peers: dict[int, _Peer] = {}

    def registered(self, brokers: Mapping[int, BrokerRegistration]) -> None:
        """Takes note of the registered brokers; forgets what was known of others, and of earlier registrations."""
        with self._lock:
            peers: dict[int, _Peer] = {}
            for broker_id, broker in brokers.items():
                known = self._peers.get(broker_id)
                if broker_id == self._broker_id:
                    continue
                if known is None or known.epoch != broker.epoch:
                    known = _Peer(broker.host, broker.port, broker.epoch, self._now_ms())
                peers[broker_id] = known
            self._peers = peers

    @property
    def dead(self) -> dict[int, int]:
        """The suspected brokers: id → epoch."""
        with self._lock:
            return {broker_id: peer.epoch for broker_id, peer in self._peers.items() if peer.is_suspect}

    @property
    def doubtful(self) -> frozenset[int]:
        """The brokers whose ports refuse, perhaps because they are just starting."""
        with self._lock:
            return frozenset(broker_id for broker_id, peer in self._peers.items() if peer.is_doubtful)

    @property
    def known(self) -> frozenset[int]:
        """All other registered brokers."""
        with self._lock:
            return frozenset(self._peers)

    def look(self, broker_id: int) -> bool:
        """Probes the broker; returns whether a suspicion or a doubt of it began or ended. Blocks for one connection
        attempt."""
        with self._lock:
            peer = self._peers.get(broker_id)
        if peer is None:
            return False
        refuses = self._probe(peer.host, peer.port)
        with self._lock:
            if self._peers.get(broker_id) is not peer:
                return False
            peer.has_answered = peer.has_answered or not refuses
            now_ms = self._now_ms()
            is_starting = not peer.has_answered and now_ms - peer.known_since_ms < STARTING_MS
            was_doubtful, peer.is_doubtful = peer.is_doubtful, refuses and is_starting
            is_suspect = refuses and not is_starting and now_ms >= peer.trusted_until_ms
            if is_suspect == peer.is_suspect:
                return peer.is_doubtful != was_doubtful
            peer.is_suspect, peer.is_evicted = is_suspect, False
        what = "suspect broker" if is_suspect else "clear suspicion"
        event(_logger, what, level=logging.WARNING, broker=broker_id, epoch=peer.epoch)
        return True

    def look_at_all(self) -> bool:
        """As `look`, for all other brokers."""
        with self._lock:
            broker_ids = list(self._peers)
        changed = [self.look(broker_id) for broker_id in broker_ids]
        return any(changed)

    def found_in_sync(self, broker_ids: frozenset[int]) -> None:
        """Before an election: these brokers are in sync somewhere, with others. One that had left such sets is
        alive."""
        with self._lock:
            for broker_id in broker_ids & self._peers.keys():
                peer = self._peers[broker_id]
                if peer.is_suspect and peer.is_evicted:
                    peer.is_suspect, peer.trusted_until_ms = False, self._now_ms() + TRUST_MS
                    event(_logger, "clear wrong suspicion", level=logging.WARNING, broker=broker_id, epoch=peer.epoch)

    def left_in_sync(self, broker_ids: frozenset[int]) -> None:
        """After an election: these brokers are in sync somewhere, with others. A suspect that is not among them was
        taken out of all such sets."""
        with self._lock:
            for broker_id, peer in self._peers.items():
                peer.is_evicted = peer.is_suspect and broker_id not in broker_ids
