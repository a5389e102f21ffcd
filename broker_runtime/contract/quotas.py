"""How much a client may take of each broker: Kafka's client quotas, and their messages.

A quota belongs to an entity: a user, a client id, or a pair of both. Either may be `DEFAULT`, which stands for all
users or client ids without a quota of their own. When several quotas match a client, the most specific applies, in
Kafka's order:

    1  user and client id            4  default user and client id            7  client id
    2  user and default client id    5  default user and default client id    8  default client id
    3  user                          6  default user

Each limit is looked up separately. All clients of a user share a quota of that user; a default quota gives the whole
amount to each user or client id that it stands for. Each broker enforces a quota separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final

import msgspec

from broker_runtime.contract.acls import MOST_NAME_CHARS
from broker_runtime.contract.errors import InvalidRequestError
from broker_runtime.contract.requests import Entries, Message, Request, make_decoders

DEFAULT: Final = "<default>"
"""The user or client id of a default quota, as Kafka spells it."""

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
MAX_CONNECTIONS: Final = "max_connections"
LIMITS: Final[Mapping[str, str]] = {
    PRODUCER_BYTE_RATE: "bytes that clients may write per second",
    CONSUMER_BYTE_RATE: "bytes that clients may read per second",
    REQUEST_PERCENTAGE: "processor time of their requests, in percent of one core",
    MAX_CONNECTIONS: "streams, each with a connection of its own, that may be open at once",
}
"""What can be limited. The first three are Kafka's, and throttle a client that exceeds them."""
_MOST: Final = 1e15

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_NAME_CHARS)]
_Limit = Annotated[float, msgspec.Meta(gt=0, le=_MOST)]
_LimitName = Annotated[str, msgspec.Meta(max_length=32)]
_Limits = Annotated[dict[_LimitName, _Limit], msgspec.Meta(max_length=8)]


class QuotaEntity(Message, frozen=True, kw_only=True, order=True):
    """What a quota applies to: a ``user``, a ``client_id``, or a pair of both. None: any; `DEFAULT`: any without a
    quota of its own. A user is a principal without ``User:``."""

    user: _Text | None = None
    client_id: _Text | None = None

    def __str__(self) -> str:
        named = (("user", self.user), ("client id", self.client_id))
        return ", ".join(f"{what} {name}" for what, name in named if name is not None) or "nobody"


class Quota(Message, frozen=True, kw_only=True):
    """The limits of an entity, by their names in `LIMITS`."""

    entity: QuotaEntity
    limits: _Limits


class QuotaChange(Message, frozen=True, kw_only=True):
    """Limits of an entity to set, or to remove (None). Its other limits stay."""

    entity: QuotaEntity
    limits: Annotated[tuple[tuple[_LimitName, float | None], ...], msgspec.Meta(max_length=8)] = ()


class AlterQuotasRequest(Request, frozen=True, kw_only=True):
    """Makes all of these changes, or none."""

    MOST_BYTES: ClassVar[int] = 2 << 20

    changes: Entries[QuotaChange]


class DescribeQuotasRequest(Request, frozen=True, kw_only=True):
    """All quotas."""


class QuotasResponse(Message, frozen=True, kw_only=True):
    """Quotas, sorted by their entities."""

    quotas: tuple[Quota, ...]


def check_change(change: QuotaChange) -> None:
    """Raises `InvalidRequestError`, which names the value and what is allowed, for a change that is not valid."""
    entity = change.entity
    if entity.user is None and entity.client_id is None:
        raise InvalidRequestError("a quota needs a user, a client id, or both")
    if not all(name is None or name.isprintable() for name in (entity.user, entity.client_id)):
        raise InvalidRequestError(f"{entity!s:.300}: contains characters that are not printable")
    for name, value in change.limits:
        if name not in LIMITS:
            raise InvalidRequestError(f"quota {name!r:.80}: must be one of {', '.join(LIMITS)}")
        if value is not None:
            check_limit(name, value)


def check_limit(name: str, value: Any) -> float:
    """The limit as a number. Raises `InvalidRequestError`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= _MOST:
        raise InvalidRequestError(f"{name}={value!r:.80}: must be a number above 0, at most {_MOST:g}")
    if name == MAX_CONNECTIONS and value != int(value):
        raise InvalidRequestError(f"{name}={value!r}: must be a whole number")
    return float(value)


def altered(quotas: Iterable[Quota], changes: Iterable[QuotaChange]) -> tuple[Quota, ...]:
    """The quotas after the changes, sorted; an entity without limits is gone."""
    limits = {quota.entity: dict(quota.limits) for quota in quotas}
    for change in changes:
        found = limits.setdefault(change.entity, {})
        for name, value in change.limits:
            if value is None:
                found.pop(name, None)
            else:
                found[name] = value
    kept = [Quota(entity=entity, limits=found) for entity, found in limits.items() if found]
    return tuple(sorted(kept, key=lambda quota: (quota.entity.user or "", quota.entity.client_id or "")))


make_decoders()
