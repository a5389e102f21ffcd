"""Who is calling: the first argument of every method of every service.

    a call comes in ─▶ `server/boundary.py` makes its Caller ─▶ service ─▶ log lines, and whatever depends on who asks
                                 │
                                 └─ a fetch session that says it is a broker's: `admit_replica` ─▶ BrokerCaller

A principal is who the caller has proved to be, by its certificate, a password or a token; on a listener that asks for
none of these it is `ANONYMOUS`. A client id and an address prove nothing: they are for the log. Brokers prove who they
are on every listener, for what a follower says it holds moves the high watermark. Their proof is the secret of their
registration, which only ZooKeeper and that broker have.

Rule: only `admit_replica` makes a `BrokerCaller`, so code that is given one need not check again. Secrets are compared
in constant time.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from broker_runtime.contract.acls import ANONYMOUS
from broker_runtime.contract.errors import PylogError, StaleBrokerEpochError
from broker_runtime.contract.events import event
from broker_runtime.contract.flight import BROKER_HEADER
from broker_runtime.contract.requests import ErrorInfo
from broker_runtime.contract.streams import FetchHello
from broker_runtime.zookeeper.znodes import BrokerRegistration

MOST_CLIENT_ID_CHARS: Final = 255
_ELLIPSIS: Final = "…"
_MOST_NAMED: Final = 10
_MOST_DIGITS: Final = 10  # of a broker's id; `int` refuses thousands

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whose call it is.

    ``client_id``: the client's own name, at most `MOST_CLIENT_ID_CHARS` of it ("": it gave none). It may contain any
    character: `contract.events` escapes it. ``address``: where the connection comes from, ``host:port``. ``listener``:
    the name of the one it came to. ``is_broker``: it has proved to be a broker of this cluster. ``credential``: which
    one of the principal's it proved itself with; "": the listener asks for none that could be withdrawn.
    ``expires_ms``: when that ends by itself; 0: never.
    """

    client_id: str
    address: str
    principal: str = ANONYMOUS
    listener: str = ""
    is_broker: bool = False
    credential: str = ""
    expires_ms: int = 0

    def __post_init__(self) -> None:
        # Cut, not refused: it is only a name, and clients with long ones have always been able to connect. But an open
        # stream keeps its caller, and the name in a request may have a megabyte.
        if len(self.client_id) > MOST_CLIENT_ID_CHARS:
            object.__setattr__(self, "client_id", self.client_id[: MOST_CLIENT_ID_CHARS - 1] + _ELLIPSIS)

    @property
    def log_fields(self) -> Mapping[str, Any]:
        """For log lines about what it asks for: ``event(…, **caller.log_fields)``."""
        principal = {} if self.principal == ANONYMOUS else {"principal": self.principal}
        return {**principal, "client_id": self.client_id, "address": self.address}

    @property
    def host(self) -> str:
        """The host of `address`."""
        return self.address.rpartition(":")[0].strip("[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCaller(Caller):
    """Another broker, which has proved that it is ``broker_id`` in its registration ``broker_epoch``: a follower."""

    broker_id: int
    broker_epoch: int


def admit_replica(caller: Caller, hello: FetchHello, brokers: Mapping[int, BrokerRegistration]) -> BrokerCaller:
    """The follower that opens a session with ``hello``; ``brokers``: the registrations that this broker knows.

    Raises `StaleBrokerEpochError` unless it is one of them, in the registration that it names, and proves it. One that
    this broker does not know yet tries again.
    """
    known = brokers.get(hello.replica_id)
    if known is None or known.epoch != hello.broker_epoch:
        found = "is not registered" if known is None else f"is registered with epoch {known.epoch}"
        raise StaleBrokerEpochError(f"broker {hello.replica_id} {found} here, its session has {hello.broker_epoch}")
    if not _is_secret_of(known, hello.secret):
        error = StaleBrokerEpochError(f"this session does not prove that it is of broker {hello.replica_id}")
        event(
            _logger, "admit follower", level=logging.WARNING, broker=hello.replica_id, **caller.log_fields, error=error
        )
        raise error
    return BrokerCaller(
        client_id=caller.client_id,
        address=caller.address,
        principal=caller.principal,
        listener=caller.listener,
        is_broker=True,
        broker_id=hello.replica_id,
        broker_epoch=hello.broker_epoch,
    )


@contextmanager
def logged_change(logger: logging.Logger, what: str, caller: Caller, /, **fields: Any) -> Iterator[list[ErrorInfo]]:
    """Around a change that an administrator requests: logs one line that says what it was, who requested it, and, if it
    was refused or its outcome is unknown, why. Where a request has several entries, the caller puts the errors of those
    that failed into the list."""
    failed: list[ErrorInfo] = []
    try:
        yield failed
    except PylogError as error:
        event(logger, what, **fields, **caller.log_fields, error=error)
        raise
    first = f"[{failed[0].code}] {failed[0].message}" if failed else None
    event(logger, what, **fields, **caller.log_fields, failed=len(failed) or None, error=first)


def some_of(names: Iterable[str]) -> str:
    """The first ten of what a request names, for a log line: a request may name a hundred thousand."""
    first = list(islice(names, _MOST_NAMED + 1))
    return ",".join(first[:_MOST_NAMED]) + ("…" if len(first) > _MOST_NAMED else "")


def is_broker(headers: Mapping[str, Sequence[object]], brokers: Mapping[int, BrokerRegistration]) -> bool:
    """Whether a call's headers prove that it is a registered broker's, before there is a Caller. Never raises."""
    for value in headers.get(BROKER_HEADER, ()):
        broker_id, _, secret = str(value).partition(":")
        is_number = broker_id.isascii() and broker_id.isdecimal() and len(broker_id) <= _MOST_DIGITS
        known = brokers.get(int(broker_id)) if is_number else None
        if known is not None and _is_secret_of(known, secret):
            return True
    return False


def _is_secret_of(known: BrokerRegistration, secret: str) -> bool:
    # A registration without a secret proves nothing, whatever is said.
    return bool(known.secret) and hmac.compare_digest(known.secret.encode(), secret.encode(errors="replace"))
