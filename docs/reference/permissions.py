"""What each request of the protocol needs, with ``authorizer.class.name=AclAuthorizer``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from broker_runtime.services.authorization import NEEDS, OfBrokers
from docs.reference.markdown import sections, table

# What streams check for themselves, and what `Authorization.require` looks at before the table.
_STREAMS = (
    ("produce (a stream)", "Write on Topic"),
    ("fetch (a stream), read", "Read on Topic"),
    ("follower's fetch (a stream)", "another broker"),
)
_BESIDE_THE_TABLE = {
    "create_topic": "Create on Topic or on Cluster",
    "init_producer_id": "Write on any Topic",
    "create_token": "nothing: the token is of the caller itself",
}
_NARROWED = "nothing: the answer has what the caller may Describe"


class _Probe:
    """Stands for a request, and for whatever is in it."""

    def __init__(self, topic: object = "t") -> None:
        self.topic = topic

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Probe()

    def __iter__(self) -> Iterator[Any]:
        yield _Probe()


def page() -> str:
    """The page."""
    return sections(
        "# Permissions",
        "What a caller must be allowed for each request of the protocol, all of it, with "
        "`authorizer.class.name=AclAuthorizer`. The guide [Security](../guides/security.md) has the same by what "
        "people do. Read, Write, Delete and Alter imply Describe; super users and brokers are always allowed.",
        table(
            ("request", "needs"),
            [*_STREAMS, *((f"`{action}`", " · ".join(needs_of(action))) for action in NEEDS)],
        ),
    )


def needs_of(action: str) -> list[str]:
    """What the action needs, in words."""
    if action in _BESIDE_THE_TABLE:
        return [_BESIDE_THE_TABLE[action]]
    found: dict[str, None] = {}
    for probe in (_Probe(), _Probe(topic=None)):
        for need in NEEDS[action](probe):
            words = "another broker" if isinstance(need, OfBrokers) else f"{need.operation} on {need.resource_type}"
            found[words] = None
    if action == "describe_config":  # of the one or of the other
        return [" or ".join(found)]
    return list(found) or [_NARROWED]
