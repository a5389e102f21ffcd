"""What one consumer's process holds, where it stands there, and what it has committed.

Commits are the caller's: one after the other, each with the next number, sent again as it is until it is answered or
given up. What was given up may still arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.requests import (
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    CommittedOffset,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    PartitionKey,
)
from broker_runtime.groups.member import Partition
from pyspark_log.client.consumer.membership import Membership
from tests.simulation.groups.calls import RETRIABLE, Coordination
from tests.simulation.groups.checker import name_of
from tests.simulation.simulator.scheduler import SECOND

if TYPE_CHECKING:
    from tests.simulation.groups.client import Client

_THREAD = "poll"
_CALL_US = SECOND
LIMIT_US = 4 * SECOND
"""How long one thing is asked for before it is given up."""


class Positions:
    """See the module. ``held``: by partition the offset of the next record."""

    def __init__(self, client: Client, membership: Membership, coordination: Coordination) -> None:
        self.held: dict[Partition, int] = {}
        self._client = client
        self._membership = membership
        self._coordination = coordination
        self._committed: dict[Partition, int] = {}
        self._committed_then: dict[Partition, int] = {}  # when the partition was first assigned

    def assign(self, partitions: Collection[Partition]) -> None:
        """The coordinator wants it to hold these."""
        client, before = self._client, self._committed_then
        self._committed_then = {
            partition: before.get(partition, client.checker.committed(client.group_id, partition))
            for partition in sorted(partitions)
        }

    def begin(self, offsets: dict[Partition, int]) -> None:
        """It holds these, too, from there on."""
        for partition, offset in offsets.items():
            self._client.checker.began(self._client, partition, offset, self._committed_then.get(partition, 0))
            self.held[partition] = self._committed[partition] = offset

    def drop(self, partitions: Iterable[Partition]) -> None:
        """It holds these no more."""
        for partition in partitions:
            self.held.pop(partition, None)
            self._committed.pop(partition, None)

    def lose_all(self) -> None:
        """It holds nothing."""
        self.held.clear()
        self._committed.clear()
        self._committed_then.clear()

    def commit(self, which: Iterable[Partition], then: Callable[[], None]) -> None:
        """Commits where it stands in these, if that is news; then goes on, whatever became of it."""
        news = {
            partition: self.held[partition]
            for partition in which
            if partition in self.held and self._committed.get(partition) != self.held[partition]
        }

        def committed(written: dict[Partition, int]) -> None:
            self._committed |= {partition: offset for partition, offset in written.items() if partition in self.held}
            then()

        self._write(news, committed)

    def fetch(self, partitions: Collection[Partition], then: Callable[[dict[Partition, int]], None]) -> None:
        """Where the group stands in these; their beginning where it has nothing, which is committed before it counts.
        One topic after the other; what nobody answers for is left out."""
        found: dict[Partition, int] = {}
        missing: dict[Partition, int] = {}
        topics = sorted({(partition.topic, partition.topic_id) for partition in partitions})

        def ask() -> None:
            if topics:
                wanted = tuple(_key(each) for each in partitions if (each.topic, each.topic_id) == topics[0])
                self._coordination.insist(
                    FetchOffsetsRequest(group_id=self._client.group_id, partitions=wanted),
                    on_answer=answered, on_failure=failed, timeout_us=_CALL_US, limit_us=LIMIT_US, thread=_THREAD,
                )  # fmt: skip
            else:
                self._write(missing, lambda written: then(found | written))

        def answered(answer: object) -> None:
            assert isinstance(answer, FetchOffsetsResponse)
            topic = topics.pop(0)
            offsets = {Partition(*topic, each.at.partition): each.offset for each in answer.offsets}
            found.update(offsets)
            missing.update(
                (each, 0) for each in partitions if (each.topic, each.topic_id) == topic and each not in offsets
            )
            ask()

        def failed(code: str) -> None:
            self._client.says(f"cannot fetch offsets of {topics.pop(0)[0]}: {code}")
            ask()

        ask()

    def _write(self, news: dict[Partition, int], then: Callable[[dict[Partition, int]], None]) -> None:
        """Commits; ``then`` gets what was written for sure."""
        client = self._client
        try:
            signature = self._membership.signature() if news else None
        except PylogError:
            signature = None  # all is lost
        if signature is None:
            then({})
            return
        request = CommitOffsetsRequest(
            group_id=client.group_id,
            member_id=signature.member_id,
            member_epoch=signature.member_epoch,
            sequence=signature.sequence,
            offsets=tuple(CommittedOffset(at=_key(partition), offset=offset) for partition, offset in news.items()),
        )

        def answered(answer: object) -> None:
            assert isinstance(answer, CommitOffsetsResponse)
            written: dict[Partition, int] = {}
            for (partition, offset), error in zip(news.items(), answer.errors, strict=True):
                if error is None:
                    client.checker.acknowledged(client.group_id, partition, offset)
                    written[partition] = offset
                else:
                    client.trace.counts[f"commit: {error.code}"] += 1
                    client.says(f"cannot commit {offset} of {name_of(partition)}: {error.code}")
            then(written if self._membership.member_id == signature.member_id else {})

        def failed(code: str) -> None:
            client.trace.counts[f"commit: {code}"] += 1
            client.says(f"cannot commit: {code}")
            then({})

        self._coordination.insist(
            request, on_answer=answered, on_failure=failed, timeout_us=_CALL_US, limit_us=LIMIT_US, thread=_THREAD,
            is_good=_is_final,
        )  # fmt: skip


def _is_final(answer: object) -> bool:
    return isinstance(answer, CommitOffsetsResponse) and not any(
        error is not None and error.code in RETRIABLE for error in answer.errors
    )


def _key(partition: Partition) -> PartitionKey:
    return PartitionKey(topic=partition.topic, partition=partition.number, topic_id=partition.topic_id)
