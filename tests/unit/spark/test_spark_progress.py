"""Publishing a query's progress: the newest offset reaches the group, in order, however often a commit fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pytest

from broker_runtime.contract.errors import BrokerUnavailableError
from broker_runtime.contract.model import TopicPartition
from pyspark_log.spark.offsets import SourceOffset
from pyspark_log.spark.progress import ProgressPublisher

T0 = TopicPartition("t", 0)
LIMIT_S = 20.0


class Group:
    """Records commits; fails the first ``failures`` of them; blocks them while ``gate`` is shut."""

    def __init__(self, failures: int = 0) -> None:
        self.commits: list[tuple[int, bool]] = []
        self.topic_ids: list[Mapping[str, bytes]] = []
        self.failures = failures
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def commit(self, offset: SourceOffset, only_forward: bool, topic_ids: Mapping[str, bytes]) -> None:
        self.entered.set()
        assert self.gate.wait(LIMIT_S)
        if self.failures:
            self.failures -= 1
            raise BrokerUnavailableError("away")
        self.commits.append((offset[T0], only_forward))
        self.topic_ids.append(topic_ids)


def test_progress_is_published_as_given_first_and_then_only_forward() -> None:
    """S5: a query's first offset is the user's choice; later ones never move the group back."""
    group = Group()
    publisher = ProgressPublisher(group.commit)
    for offset in (5, 5, 7):
        publisher.publish({T0: offset}, {})
        assert publisher.flush(LIMIT_S)
    assert publisher.close(LIMIT_S)
    assert group.commits == [(5, False), (7, True)]


def test_progress_publishes_the_newest_offset_only() -> None:
    """S5: offsets that became outdated while ZooKeeper was slow are never written, and nothing queues up."""
    group = Group()
    group.gate.clear()
    publisher = ProgressPublisher(group.commit)
    publisher.publish({T0: 1}, {})
    assert group.entered.wait(LIMIT_S)
    for offset in range(2, 50):
        publisher.publish({T0: offset}, {})
    group.gate.set()
    assert publisher.close(LIMIT_S)
    assert group.commits == [(1, False), (49, True)]


def test_progress_is_published_after_failed_commits() -> None:
    """S5: transient errors are retried."""
    group = Group(failures=2)
    publisher = ProgressPublisher(group.commit)
    publisher.publish({T0: 3}, {})
    assert publisher.close(LIMIT_S)
    assert group.commits == [(3, False)]


def test_progress_is_about_the_topics_that_were_read() -> None:
    """S5: the ids are those that came with the offset that is committed."""
    group = Group()
    publisher = ProgressPublisher(group.commit)
    publisher.publish({T0: 1}, {"t": b"old"})
    assert publisher.flush(LIMIT_S)
    publisher.publish({T0: 2}, {"t": b"new"})
    assert publisher.close(LIMIT_S)
    assert group.topic_ids == [{"t": b"old"}, {"t": b"new"}]


def test_progress_flush_gives_up_in_time() -> None:
    """A stop is bounded even if no broker answers."""
    group = Group()
    group.gate.clear()
    publisher = ProgressPublisher(group.commit)
    publisher.publish({T0: 3}, {})
    assert publisher.flush(0.01) is False
    group.gate.set()
    assert publisher.close(LIMIT_S)


def test_progress_that_meets_a_defect_says_so_and_keeps_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    """The query goes on; its group does not, which the log says; and nothing waits for a thread that has ended."""

    def commit(offset: SourceOffset, only_forward: bool, topic_ids: Mapping[str, bytes]) -> None:
        raise ZeroDivisionError("a defect")

    publisher = ProgressPublisher(commit)
    publisher.publish({T0: 3}, {})
    began_s = time.monotonic()
    assert not publisher.flush(LIMIT_S)
    publisher.publish({T0: 4}, {})
    assert not publisher.close(LIMIT_S)
    assert time.monotonic() - began_s < LIMIT_S / 2
    assert "stop publishing progress" in caplog.text


def test_progress_leaves_no_thread_behind() -> None:
    """close() ends the thread; without progress there is none."""
    before = threading.active_count()
    ProgressPublisher(Group().commit).close(LIMIT_S)
    publisher = ProgressPublisher(Group().commit)
    publisher.publish({T0: 1}, {})
    publisher.close(LIMIT_S)
    assert threading.active_count() == before
