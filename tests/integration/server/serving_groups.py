"""The group actions of a broker over a ZooKeeper in memory, for `serving`: its loop runs, its topics do not change."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from broker_runtime.broker_groups import BrokerGroups
from broker_runtime.contract.actions import ACTIONS
from broker_runtime.contract.waiting import Worker
from broker_runtime.zookeeper.cluster_state import read_cluster
from broker_runtime.zookeeper.membership import BrokerIdentity, register
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.znodes import PERMANENT, TopicRecord, to_json, topic_path


def group_actions(topics: Mapping[str, tuple[uuid.UUID, int, object]]) -> dict[str, Callable[[Any, Any], Any]]:
    """The actions by name. They work as long as the process lives. ``topics``: id and number of partitions by name."""
    client = MemoryZooKeeper().client()
    for path in PERMANENT:
        client.ensure_path(path)
    for name, (topic_id, count, _) in topics.items():
        client.create(topic_path(name), to_json(TopicRecord(topic_id=topic_id.bytes, assignment=((1,),) * count)))
    identity = BrokerIdentity(
        broker_id=1, host="127.0.0.1", port=1, instance="1", pid=1, boot_id="", software_version="", was_clean=True
    )
    membership = register(client, identity, now_ms=0)
    member = SimpleNamespace(
        membership=membership, state=read_cluster(client), electorate=SimpleNamespace(suspects=frozenset())
    )
    settings = SimpleNamespace(
        broker_id=1,
        offsets_retention_minutes=60,
        group_min_session_timeout_ms=1_000,
        group_max_session_timeout_ms=60_000,
        group_max_size=50,
    )
    groups = BrokerGroups(
        cast(Any, settings),
        client=client,
        member=cast(Any, member),
        refuses=lambda host, port: False,
        steady_ms=lambda: time.monotonic_ns() // 1_000_000,
        wall_ms=lambda: time.time_ns() // 1_000_000,
        believed_ms=lambda: time.time_ns() // 1_000_000,
    )
    Worker("groups", groups.step).start()
    return {name: getattr(groups.service, name) for name in ACTIONS if hasattr(groups.service, name)}
