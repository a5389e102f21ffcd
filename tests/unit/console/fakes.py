"""A cluster that is not there: what an `Admin` would answer, and how often it was asked."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from starlette.testclient import TestClient

from broker_runtime.contract.acls import Acl
from broker_runtime.contract.errors import GroupIdNotFoundError, PylogError, UnknownTopicOrPartitionError
from broker_runtime.contract.model import (
    BrokerDescription,
    ClusterDescription,
    GroupDescription,
    GroupListing,
    GroupOffset,
    MemberDescription,
    OffsetAndTimestamp,
    OpenTransactionDescription,
    PartitionDescription,
    Reassignment,
    TopicDescription,
    TopicPartition,
    TransactionListing,
    check_group_id,
    check_topic_name,
)
from broker_runtime.contract.requests import ConfigEntry, LogDirInfo
from pyspark_log.client.admin.health import health_of
from pyspark_log.client.admin.overview import BrokerState, ClusterOverview, DirectoryRoom, GroupLag
from pyspark_log.console.app import make_app
from pyspark_log.console.connection import Connection

SCHEMA = pa.schema([pa.field("carrier", pa.string()), pa.field("delay", pa.int64())])
RUN_OF_SPARK = "0b8ad1d0-3a54-4bd5-8a41-0a2f6f2f6f01"


def topic(name: str, *partitions: PartitionDescription, schema: pa.Schema | None = None) -> TopicDescription:
    return TopicDescription(
        name=name, topic_id=uuid.UUID(int=hash(name) % 2**64), partitions=partitions or (partition(0),), schema=schema
    )


def partition(number: int, **more: Any) -> PartitionDescription:
    given: dict[str, Any] = {
        "leader": 1, "leader_epoch": 0, "replicas": (1, 2), "isr": (1, 2), "log_start": 0, "high_watermark": 10,
        "last_stable_offset": 10,
    }  # fmt: skip
    return PartitionDescription(partition=number, **{**given, **more})


def member(name: str = "reader-1", **more: Any) -> MemberDescription:
    given: dict[str, Any] = {
        "member_id": f"id-of-{name}", "instance_id": None, "client_id": name, "host": "host-1", "kind": "consumer",
        "state": "stable", "epoch": 1, "topics": ("flights",), "partitions": (TopicPartition("flights", 0),),
        "session_timeout_ms": 45_000, "heard_ms_ago": 500,
    }  # fmt: skip
    return MemberDescription(**{**given, **more})


def group(group_id: str, *members: MemberDescription, **more: Any) -> GroupDescription:
    given: dict[str, Any] = {
        "state": "stable" if members else "empty",
        "kind": "consumer",
        "coordinator": 1,
        "epoch": 1,
    }
    return GroupDescription(group_id=group_id, members=members, **{**given, **more})


class FakeAdmin:
    """Answers what it was given. ``calls``: how often each method was called; ``changes``: what was asked to change.
    ``refuses``: raised by methods, by name."""

    def __init__(self) -> None:
        self.topics = {each.name: each for each in (
            topic("flights", partition(0), partition(1, isr=(1,)), schema=SCHEMA), topic("plain"),
        )}  # fmt: skip
        self.groups = {"billing": group("billing", member()), "nobody": group("nobody")}
        self.offsets = {
            "billing": {TopicPartition("flights", 0): GroupOffset(4, 10, 6)},
            "nobody": {
                TopicPartition("flights", 0): GroupOffset(1, 10, 9),
                TopicPartition("flights", 1): GroupOffset(10, 10, 0),
            },
        }
        self.acls = [Acl(principal="User:ann", operation="Read", resource_type="Topic", name="flights")]
        self.users = ["ann"]
        self.moves = {TopicPartition("flights", 0): Reassignment(target=(2, 3), original=(1, 2), lag=7)}
        self.calls: Counter[str] = Counter()
        self.changes: list[tuple[Any, ...]] = []
        self.refuses: dict[str, Exception] = {}
        self.is_closed = False

    def _asked(self, name: str) -> None:
        self.calls[name] += 1
        error = self.refuses.get(name, self.refuses.get("*"))
        if error is not None:
            raise error

    def describe_cluster(self) -> ClusterDescription:
        self._asked("describe_cluster")
        brokers = {each: BrokerDescription(broker_id=each, host="h", port=9000 + each, epoch=1) for each in (1, 2)}
        return ClusterDescription(cluster_id="the-cluster", controller_id=1, brokers=brokers)

    def describe_topics(self, names: Any = None, *, with_offsets: bool = False) -> list[TopicDescription]:
        self._asked("describe_topics")
        return [self.topics[each] for each in sorted(self.topics if names is None else names)]

    def describe_topic(self, name: str) -> TopicDescription:
        self._asked("describe_topic")
        if check_topic_name(name) not in self.topics:
            raise UnknownTopicOrPartitionError(f"the cluster has no topic {name!r}")
        return self.topics[name]

    def describe_config(self, resource: str | int) -> dict[str, ConfigEntry]:
        self._asked("describe_config")
        return {"retention.ms": ConfigEntry(value="7d", source="topic")}

    def describe_log_dirs(self) -> dict[int, tuple[LogDirInfo, ...]]:
        self._asked("describe_log_dirs")
        sizes = {f"{name}-{each.partition}": 2048 for name, of in self.topics.items() for each in of.partitions}
        return {1: (LogDirInfo(path="/d", total_bytes=4096, usable_bytes=10**9, partitions=sizes),)}

    def overview(self, *, with_groups: bool = True) -> ClusterOverview:
        self._asked("overview")
        cluster = self.describe_cluster()
        room = DirectoryRoom(path="/d", log_bytes=4096, usable_bytes=10**9, min_free_bytes=0)
        states = {
            each: BrokerState(broker_id=each, software_version="0.1", reaches_zookeeper=True, directories=(room,))
            for each in cluster.brokers
        }
        return ClusterOverview(
            health=health_of(cluster, self.topics.values()), brokers=states, moves=self.moves, draining=(),
            groups=tuple(self._lags()) if with_groups else None, unread_groups=0,
        )  # fmt: skip

    def list_groups(self) -> list[GroupListing]:
        self._asked("list_groups")
        return [
            GroupListing(group_id=name, state=each.state, kind=each.kind, members=len(each.members), coordinator=1)
            for name, each in sorted(self.groups.items())
        ]

    def list_group_lags(self) -> tuple[list[GroupLag], int]:
        self._asked("list_group_lags")
        return self._lags(), 0

    def _lags(self) -> list[GroupLag]:
        lags = [
            GroupLag(group_id=name, lag=sum(max(0, each.lag) for each in of.values()), worst=next(iter(of), None))
            for name, of in self.offsets.items()
        ]
        return sorted(lags, key=lambda each: -each.lag)

    def describe_group(self, group_id: str) -> GroupDescription:
        self._asked("describe_group")
        if check_group_id(group_id) not in self.groups:
            raise GroupIdNotFoundError(f"there is no group {group_id!r}")
        return self.groups[group_id]

    def list_group_offsets(self, group_id: str) -> dict[TopicPartition, GroupOffset]:
        self._asked("list_group_offsets")
        return self.offsets.get(check_group_id(group_id), {})

    def list_offsets(self, wanted: Mapping[TopicPartition, Any]) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._asked("list_offsets")
        places = {"earliest": 0, "latest": 10}
        return {at: OffsetAndTimestamp(places.get(place, 5), -1) for at, place in wanted.items()}

    def timestamps_at(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, None]:
        self._asked("timestamps_at")
        return dict.fromkeys(wanted)

    def list_reassignments(self) -> dict[TopicPartition, Reassignment]:
        self._asked("list_reassignments")
        return self.moves

    def list_transactions(self) -> list[TransactionListing]:
        self._asked("list_transactions")
        return [
            TransactionListing(
                transactional_id="query-1", epoch=1, run_id=RUN_OF_SPARK, batch_id=3, outcome="committed", rows=12,
                decided_at_ms=1_700_000_000_000, timeout_ms=900_000, unfinished=(),
            )
        ]  # fmt: skip

    def list_open_transactions(self, transactional_id: str = "") -> tuple[list[OpenTransactionDescription], list[int]]:
        self._asked("list_open_transactions")
        opened = OpenTransactionDescription(
            transactional_id="query-1", batch_id=4, run_id=RUN_OF_SPARK, attempt=1, producer_id=1, topic="flights",
            partition=0, first_offset=9, open_ms=3_000,
        )  # fmt: skip
        return [opened], [2]

    def describe_acls(self) -> list[Acl]:
        self._asked("describe_acls")
        return self.acls

    def list_users(self) -> list[str]:
        self._asked("list_users")
        return self.users

    def __getattr__(self, name: str) -> Any:
        """What changes something is kept, with its arguments."""
        if name.startswith("_"):
            raise AttributeError(name)

        def change(*arguments: Any, **named: Any) -> Any:
            self._asked(name)
            self.changes.append((name, *arguments, *named.values()) if named else (name, *arguments))
            return topic("made") if name == "create_topic" else {}

        return change

    def close(self) -> None:
        self.is_closed = True


class FakeEntrance:
    """Lets in everybody, or with ``passwords`` those who have one."""

    brokers = "h:9001"

    def __init__(self, passwords: Mapping[str, str] | None = None) -> None:
        self.admin = FakeAdmin()
        self.passwords = passwords
        self.given: list[Connection] = []
        self.error: PylogError | None = None

    @property
    def has_login(self) -> bool:
        return self.passwords is not None

    def shared(self) -> Connection:
        return Connection(admin=self.admin, settings={})  # type: ignore[arg-type]

    def log_in(self, user: str, password: str) -> Connection:
        from broker_runtime.contract.errors import SaslAuthenticationError

        if self.error is not None:
            raise self.error
        if self.passwords is None or self.passwords.get(user) != password:
            raise SaslAuthenticationError("no such user with that password")
        admin = FakeAdmin()
        self.given.append(Connection(admin=admin, settings={}, user=user))  # type: ignore[arg-type]
        return self.given[-1]


@contextmanager
def browser(entrance: FakeEntrance, *, is_encrypted: bool = False) -> Iterator[TestClient]:
    """Somebody who looks at the console, and follows no redirect by itself."""
    app = make_app(entrance, hosts={"localhost"}, port=1, is_encrypted=is_encrypted)
    scheme = "https" if is_encrypted else "http"
    with TestClient(app, base_url=f"{scheme}://localhost:1", follow_redirects=False) as client:
        yield client


def csrf_of(client: TestClient, path: str = "/moves") -> str:
    """The token that the forms of a page carry."""
    text = client.get(path).text
    return text.split('name="csrf" value="', 1)[1].split('"', 1)[0]
