"""Names that Tab completes, deleting several topics, and short ways to say things."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from pylog_command import LIMIT_S, Pylog

from broker_runtime.contract.errors import UnknownTopicOrPartitionError
from pyspark_log.cli.topic import choose_topics
from pyspark_log.testing import LocalCluster
from tests.waiting import wait_until


def completed(run_pylog: Pylog, line: str, **environment: str) -> list[str]:
    """What bash is told for the line's last word."""
    told = {"_PYLOG_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return run_pylog(environment={**told, **environment}).stdout.split()


def test_tab_completes_topics(run_pylog: Pylog, pylog_cluster: LocalCluster, topic: str) -> None:
    """From the cluster that the environment or the line names."""
    servers = pylog_cluster.bootstrap_servers
    for line in (f"pylog topic describe {topic[:-1]}", f"pylog consume {topic[:-1]}"):
        # Nothing is told where the broker takes longer than a second to answer, as on a busy machine.
        told = wait_until(
            lambda line=line: completed(run_pylog, line, PYLOG_BOOTSTRAP_SERVERS=servers), "something is told", LIMIT_S
        )
        assert told == [topic]


def test_tab_is_quick_and_quiet_without_a_broker(run_pylog: Pylog) -> None:
    """A shell must not hang, nor show an error in the middle of a line."""
    began_s = time.monotonic()
    assert completed(run_pylog, "pylog topic describe x", PYLOG_BOOTSTRAP_SERVERS="127.0.0.1:1") == []
    assert time.monotonic() - began_s < 10


@pytest.mark.parametrize(
    ("given", "chosen"),
    [(["a"], ["a"]), (["test-*"], ["test-1", "test-2"]), (["b", "test-1", "test-?", "b"], ["b", "test-1", "test-2"])],
)
def test_topics_are_chosen_by_names_and_patterns(given: Sequence[str], chosen: list[str]) -> None:
    """Each once; a name or pattern that means nothing is refused."""
    existing = ["test-2", "a", "b", "test-1"]
    assert choose_topics(given, existing, if_exists=False) == chosen
    for missing in ("no", "no-*"):
        with pytest.raises(UnknownTopicOrPartitionError, match=r"'no"):
            choose_topics([*given, missing], existing, if_exists=False)
        assert choose_topics([*given, missing], existing, if_exists=True) == chosen


def test_several_topics_are_deleted_at_once(pylog: Pylog, topic: str) -> None:
    """They are shown, and their number is asked for."""
    names = [f"{topic}-{number}" for number in range(3)]
    for name in names:
        pylog("topic", "create", name)
    refused = pylog("topic", "delete", f"{topic}-*", status=1, stdin="yes\n")
    assert all(f"    {name}\n" in refused.stderr for name in names)
    pylog("topic", "delete", f"{topic}-*", stdin="3\n")
    left = pylog("topic", "ls", "-o", "name").stdout.splitlines()
    assert topic in left
    assert not set(names) & set(left)
