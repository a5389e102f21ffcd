"""How much the kernel takes on each connection until it is allowed more: a bound that holds also between two checks.

Each connection has a credit of bytes, and the kernel drops what comes beyond it (`connections.takes_until`). TCP sends
that again, so honest peers become slower, and none is refused. The renewal of credits may be late: what has come by
then is bounded by their sum.

    budget   a half      equal parts for all: an idle connection may begin something
             a quarter   equal parts for those on which anything came since the last renewal
             a quarter   in proportion to what was taken of each recently: those at work finish it

A share is at least 2 MiB, unless connections are crowded: where there are hundreds, an idle one may still begin with a
large message. While calls come as a flood, those that show nothing else may receive next to nothing.

A new connection has no credit until the next renewal, as nobody knows its first sequence number yet: it begins with a
filter of the listening socket's that lets it receive up to 4 MiB (`connections.TAKES_TO_BARRIER`), while connections
are crowded in segments of up to 1 KiB. One whose first sequence number the kernel did not keep has such filters for
good: where one stops it, its place between the barriers is known, and each renewal gives it the one that is farthest.

Invariant: all connections together may receive five quarters of the budget, and 2 MiB for each one that is not new,
and 4 MiB for each that is, or is of unknown beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from broker_runtime.server import connections
from broker_runtime.server.connections import (
    BETWEEN_BARRIERS_BYTES,
    TAKES_NOTHING,
    TAKES_TO_BARRIER,
    Filter,
    PeerAddress,
    Traffic,
)

_LEAST_BYTES: Final = 2 << 20  # a large record, or a full batch
_FLOODED_BYTES: Final = 256 << 10
_LEAST_FLOODED_BYTES: Final = 512  # the opening of a connection, or of a call
_LARGEST_BYTES: Final = 512 << 20  # TCP's sequence numbers allow for no more


@dataclass(slots=True)
class _Credit:
    """What a connection may receive in all, and what it had received when it was seen last."""

    until_bytes: int
    received_bytes: int

    @property
    def left_bytes(self) -> int:
        return self.until_bytes - self.received_bytes


@dataclass(slots=True)
class _Blind:
    """A connection of unknown beginning: its filter, how many segments were refused by the last renewal, and where it
    is between the barriers: by so many bytes in front of what it has received. None: it has not met one yet."""

    number: int = 0
    refused_count: int = 0
    lead_bytes: int | None = None


class ReceiveCredits:
    """The credits of connections to one broker. Not thread-safe."""

    def __init__(self) -> None:
        self._ports: connections.Ports = frozenset()
        self._first: dict[PeerAddress, int] = {}
        self._credits: dict[PeerAddress, _Credit] = {}
        self._cookies: dict[PeerAddress, int] = {}
        self._blind: dict[PeerAddress, _Blind] = {}  # of unknown beginning
        self._is_crowded = False
        self._least_bytes = 0

    def start(self, ports: connections.Ports) -> None:
        """Begins; the first sequence numbers of connections made to ``ports`` before this are not known."""
        self._ports = ports
        connections.bound_new(ports, True)

    def stop(self) -> None:
        """New connections are not bounded any more. Those that are there keep their filters."""
        connections.confine_new(self._ports, False)
        connections.bound_new(self._ports, False)

    def lift(self, found: Mapping[PeerAddress, Traffic]) -> None:
        """Nothing is bounded any more, these connections neither: nobody will renew their credits."""
        self.stop()
        for address, each in found.items():
            self._set(address, each.descriptor, None)

    @property
    def least_bytes(self) -> int:
        """So much each connection may receive after a renewal, whether it did before or not."""
        return self._least_bytes

    def renew(
        self,
        found: Mapping[PeerAddress, Traffic],
        taken_of_late: Mapping[PeerAddress, float],
        budget_bytes: int,
        *,
        is_crowded: bool = False,
        suspects: Collection[PeerAddress] = (),
    ) -> None:
        """Bounds the connections in ``taken_of_late``, which are all in ``found``, until the next call.

        ``taken_of_late``: bytes of messages that were taken from each. ``is_crowded``: new connections, and those of
        unknown beginning that take more than their share, are to send little. ``suspects``: may receive 256 KiB
        together, as ten bytes may begin a call and hold 8 KiB. A filter costs about 50 µs: a connection keeps its own
        while it has three quarters of its share, or more where the budget allows.
        """
        if is_crowded != self._is_crowded:
            self._is_crowded = is_crowded
            connections.confine_new(self._ports, is_crowded)
        for gone in self._cookies.keys() - found.keys():
            self._forget(gone)
        shares = self._shares(found, taken_of_late, budget_bytes)
        for address in suspects:
            shares[address] = max(_FLOODED_BYTES // len(suspects), _LEAST_FLOODED_BYTES)
        known: list[PeerAddress] = []
        for address, share_bytes in shares.items():
            each = found[address]
            before = self._learn_beginning(address, each)
            if address not in self._first:
                self._give_blindly(address, each)
                continue
            if before is not None:
                before.received_bytes = each.received_bytes
            if before is None or before.left_bytes < share_bytes * 3 // 4:
                self._give(address, each, share_bytes)
            if address in self._credits:
                known.append(address)
        most_bytes = max(budget_bytes * 5 // 4, sum(shares[address] for address in known))
        is_too_much = sum(self._credits[address].left_bytes for address in known) > most_bytes
        for some in (known, suspects) if is_too_much else (suspects,):
            for address in self._credits.keys() & some:
                if self._credits[address].left_bytes > shares[address]:
                    self._give(address, found[address], shares[address])

    def take_nothing(self, address: PeerAddress, descriptor: int) -> None:
        """Nothing more comes on a connection that is about to be cut."""
        self._set(address, descriptor, TAKES_NOTHING)
        self._forget(address)

    def _shares(
        self, found: Mapping[PeerAddress, Traffic], taken_of_late: Mapping[PeerAddress, float], budget_bytes: int
    ) -> dict[PeerAddress, int]:
        active = {
            address
            for address in taken_of_late
            if address not in self._credits or found[address].received_bytes != self._credits[address].received_bytes
        }
        equal_bytes = budget_bytes / 2 / max(1, len(taken_of_late))
        least_bytes = 0 if self._is_crowded else _LEAST_BYTES
        self._least_bytes = min(max(int(equal_bytes), least_bytes), _LARGEST_BYTES)
        active_bytes = budget_bytes / 4 / max(1, len(active))
        all_of_late = sum(taken_of_late.values())
        shares: dict[PeerAddress, int] = {}
        for address, of_late in taken_of_late.items():
            share_bytes = equal_bytes + (active_bytes if address in active else 0)
            if all_of_late > 0:
                share_bytes += budget_bytes / 4 * of_late / all_of_late
            shares[address] = min(max(int(share_bytes), least_bytes), _LARGEST_BYTES)
        return shares

    def _give(self, address: PeerAddress, each: Traffic, share_bytes: int) -> None:
        wanted = connections.takes_until(self._first[address], each.received_bytes, share_bytes)
        self._credits.pop(address, None)
        if self._set(address, each.descriptor, wanted):  # else the next renewal tries again
            self._credits[address] = _Credit(each.received_bytes + share_bytes, each.received_bytes)

    def _give_blindly(self, address: PeerAddress, each: Traffic) -> None:
        """Up to 4 MiB."""
        blind, refused_count = self._blind.get(address), connections.refused_count(each.descriptor)
        if blind is None:
            blind = self._blind[address] = _Blind(refused_count=refused_count)
            self._set(address, each.descriptor, TAKES_TO_BARRIER[blind.number])
        step_bytes = BETWEEN_BARRIERS_BYTES // len(TAKES_TO_BARRIER)
        if refused_count != blind.refused_count:  # it is in the barrier of its filter, whose end that is
            blind.refused_count = refused_count
            blind.lead_bytes = step_bytes * blind.number - each.received_bytes
        if blind.lead_bytes is None:
            return
        number = (blind.lead_bytes + each.received_bytes) // step_bytes % len(TAKES_TO_BARRIER)
        # The barrier that it has just passed. Where it stands in one, that is the one before.
        number = (number - 1) % len(TAKES_TO_BARRIER)
        if number != blind.number and self._set(address, each.descriptor, TAKES_TO_BARRIER[number]):
            blind.number = number

    def _learn_beginning(self, address: PeerAddress, each: Traffic) -> _Credit | None:
        """Learns the first sequence number of a connection that is new: the kernel gives it once. Returns the credit
        that it has, None if it has none."""
        if self._cookies.get(address) != each.cookie:
            self._forget(address)  # another one may have had the port
            self._cookies[address] = each.cookie
            first = connections.first_sequence(each.descriptor, address)
            if first is not None:
                self._first[address] = first
        return self._credits.get(address)

    def _forget(self, address: PeerAddress) -> None:
        self._cookies.pop(address, None)
        self._credits.pop(address, None)
        self._first.pop(address, None)
        self._blind.pop(address, None)

    def _set(self, address: PeerAddress, descriptor: int, wanted: Filter | None) -> bool:
        return connections.set_filter(descriptor, self._ports, address, wanted)
