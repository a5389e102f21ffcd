"""How much the kernel takes on each connection until it is allowed more: a bound that holds also between two checks.

While unfinished messages hold much memory, each connection has a credit of bytes, and the kernel drops what comes
beyond it (`connections.takes_until`). TCP sends that again, so honest peers become slower, and none is refused. The
renewal of credits may be late: what has come by then is bounded by their sum.

    budget   a quarter   equal parts for all: an idle connection may begin something
             a half      equal parts for those on which anything came since the last renewal
             a quarter   in proportion to what was taken of each recently: those at work finish it

Invariant: all connections together may receive twice the budget, and what new ones send in segments of up to 1 KiB. A
connection whose first sequence number the kernel does not know may receive what comes between two checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker_runtime.server import connections
from broker_runtime.server.connections import TAKES_NOTHING, TAKES_SMALL, Filter, PeerAddress, Traffic

_LARGEST_BYTES: Final = 512 << 20  # TCP's sequence numbers allow for no more


@dataclass(slots=True)
class _Credit:
    """What a connection may receive in all, and what it had received when it was seen last."""

    until_bytes: int
    received_bytes: int


class ReceiveCredits:
    """The credits of connections to one port. Not thread-safe."""

    def __init__(self) -> None:
        self._port = 0
        self._first: dict[PeerAddress, int] = {}
        self._credits: dict[PeerAddress, _Credit] = {}
        self._small_only: set[PeerAddress] = set()
        self._is_given = False

    def start(self, port: int) -> None:
        """Begins; the first sequence numbers of connections made to ``port`` before this are not known."""
        self._port = port
        connections.save_first_sequences(port)

    @property
    def is_given(self) -> bool:
        """Whether connections are bounded at present."""
        return self._is_given

    def renew(
        self, found: Mapping[PeerAddress, Traffic], taken_of_late: Mapping[PeerAddress, float], budget_bytes: int
    ) -> None:
        """Bounds the connections in ``taken_of_late``, which are all in ``found``, and new ones, until the next call.

        ``taken_of_late``: bytes of messages that were taken from each. A filter costs about 50 µs: a connection that
        has between half and double of its share keeps its filter.
        """
        if not self._is_given:
            self._is_given = True
            connections.confine_new(self._port, True)
        for gone in self._credits.keys() - found.keys():
            self._forget(gone)
        active = {
            address
            for address in taken_of_late
            if address not in self._credits or found[address].received_bytes != self._credits[address].received_bytes
        }
        equal_bytes = budget_bytes / 4 / max(1, len(taken_of_late))
        active_bytes = budget_bytes / 2 / max(1, len(active))
        all_of_late = sum(taken_of_late.values())
        for address, of_late in taken_of_late.items():
            share_bytes = equal_bytes + (active_bytes if address in active else 0)
            if all_of_late > 0:
                share_bytes += budget_bytes / 4 * of_late / all_of_late
            self._give(address, found[address], min(int(share_bytes), _LARGEST_BYTES))

    def take_nothing(self, address: PeerAddress, descriptor: int) -> None:
        """Nothing more comes on a connection that is about to be cut."""
        self._set(address, descriptor, TAKES_NOTHING)
        self._forget(address)

    def lift(self, found: Mapping[PeerAddress, Traffic]) -> None:
        """Removes all bounds."""
        if not self._is_given:
            return
        self._is_given = False
        connections.confine_new(self._port, False)
        for address, each in found.items():
            self._learn_first(address, each.descriptor)
            self._set(address, each.descriptor, None)
        self._credits.clear()
        self._small_only.clear()
        self._first = {address: first for address, first in self._first.items() if address in found}

    def _give(self, address: PeerAddress, each: Traffic, share_bytes: int) -> None:
        is_new = self._learn_first(address, each.descriptor)
        first, before = self._first.get(address), None if is_new else self._credits.get(address)
        if first is None:
            self._give_blindly(address, each, before, share_bytes)
            return
        left_bytes = -1 if before is None else before.until_bytes - each.received_bytes
        if share_bytes // 2 <= left_bytes <= 2 * share_bytes:
            self._credits[address].received_bytes = each.received_bytes
            return
        self._set(address, each.descriptor, connections.takes_until(first, each.received_bytes, share_bytes))
        self._credits[address] = _Credit(each.received_bytes + share_bytes, each.received_bytes)

    def _give_blindly(self, address: PeerAddress, each: Traffic, before: _Credit | None, share_bytes: int) -> None:
        """A connection that has sent more than its share since the last renewal may send only little until the next."""
        is_over = before is not None and each.received_bytes - before.received_bytes > share_bytes
        if before is None or is_over != (address in self._small_only):
            self._set(address, each.descriptor, TAKES_SMALL if is_over else None)
            (self._small_only.add if is_over else self._small_only.discard)(address)
        self._credits[address] = _Credit(each.received_bytes, each.received_bytes)

    def _learn_first(self, address: PeerAddress, descriptor: int) -> bool:
        """Whether the connection is new: the kernel gives its first sequence number once."""
        first = connections.first_sequence(descriptor, address)
        if first is not None:
            self._first[address] = first
        return first is not None

    def _forget(self, address: PeerAddress) -> None:
        self._credits.pop(address, None)
        self._first.pop(address, None)
        self._small_only.discard(address)

    def _set(self, address: PeerAddress, descriptor: int, wanted: Filter | None) -> None:
        connections.set_filter(descriptor, self._port, address, wanted)
