"""Names that Tab completes, deleting several topics, and shorthands."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from pylog_command import LIMIT_S, Pylog, clean_environment

from broker_runtime.contract.errors import UnknownTopicOrPartitionError
from pyspark_log import Consumer, TopicPartition
from pyspark_log.cli.topic import choose_topics
from pyspark_log.testing import LocalCluster
from tests.waiting import wait_until


def completed(run_pylog: Pylog, line: str, **environment: str) -> list[str]:
    """The completions that bash gets for the line's last word."""
    variables = {"_PYLOG_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return run_pylog(environment={**variables, **environment}).stdout.split()


def test_tab_completes_topics(run_pylog: Pylog, pylog_cluster: LocalCluster, topic: str) -> None:
    """Topics come from the cluster that the environment or the line names."""
    servers = pylog_cluster.bootstrap_servers
    for line in (f"pylog topic describe {topic[:-1]}", f"pylog consume {topic[:-1]}"):
        # There are no completions if the broker takes longer than a second to answer, as on a busy machine.
        completions = wait_until(
            lambda line=line: completed(run_pylog, line, PYLOG_BOOTSTRAP_SERVERS=servers),
            "there are completions",
            LIMIT_S,
        )
        assert completions == [topic]


def until_completed(run_pylog: Pylog, line: str, servers: str) -> list[str]:
    """Repeats the request until there is an answer: on a busy machine the broker may need longer than a second."""
    until_s = time.monotonic() + LIMIT_S
    while not (found := completed(run_pylog, line, PYLOG_BOOTSTRAP_SERVERS=servers)) and time.monotonic() < until_s:
        pass
    return found


def test_tab_completes_partitions_groups_and_brokers(run_pylog: Pylog, pylog_cluster: LocalCluster, topic: str) -> None:
    """TOPIC:PARTITION completes after the topic, further ones after a comma; ids of groups and brokers complete too."""
    servers, group = pylog_cluster.bootstrap_servers, f"{topic}-group"
    with Consumer(topic, bootstrap_servers=servers, group_id=group) as consumer:
        consumer.commit({TopicPartition(topic, 0): 0})
    for line, found in (
        (f"pylog topic trim {topic[:-1]}", [f"{topic}:"]),
        (f"pylog topic trim {topic}:", [f"{topic}:0", f"{topic}:1"]),
        (f"pylog partition move {topic}:1", [f"{topic}:1"]),
        (f"pylog partition elect {topic}:0 {topic}:1", [f"{topic}:1"]),
        (f"pylog produce {topic}:", [f"{topic}:0", f"{topic}:1"]),
        (f"pylog group reset any -t {topic}:1,", [f"{topic}:1,0"]),
        (f"pylog group describe {topic}-g", [group]),
        (f"pylog consume {topic} -g {topic}-g", [group]),
        ("pylog cluster decommission ", ["1"]),
        (f"pylog partition move {topic}:0 --to ", ["1"]),
    ):
        assert until_completed(run_pylog, line, servers) == found, line


def test_tab_completes_settings_without_a_broker(run_pylog: Pylog) -> None:
    """-c and -d complete a topic's settings, -X those of the command's client."""
    for line, found in (
        ("pylog topic create t -c retention.m", ["retention.ms="]),
        ("pylog topic alter t -d retention.m", ["retention.ms"]),
        ("pylog produce t -X linger", ["linger.ms="]),
        ("pylog topic list -X linger", []),
    ):
        assert completed(run_pylog, line, PYLOG_BOOTSTRAP_SERVERS="127.0.0.1:1") == found, line


@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("pylog produce t -X lin", ["linger.ms="]),
        ("pylog topic create t -c flush.mode=", ["ack", "interval", "os"]),
        ("pylog topic create t -c flush.mode=i", ["interval"]),
        ("pylog topic desc", ["describe"]),
    ],
)
def test_bash_gets_the_rest_after_the_last_colon_or_equals_sign(
    run_pylog: Pylog, tmp_path: Path, line: str, replies: list[str]
) -> None:
    """Bash splits words at `:` and `=`, so it gets only the rest of the word."""
    assert bash_replies(run_pylog, tmp_path, line) == replies


def test_bash_expands_no_answer(run_pylog: Pylog, tmp_path: Path) -> None:
    """A group may be named *, which is no pattern for files, nor is a blank the end of a name."""
    answering = tmp_path / "answering"
    answering.write_text("#!/bin/sh\nprintf '%s\\n' '*' 'a b' '[a-z]'\n")
    answering.chmod(0o755)
    assert bash_replies(run_pylog, tmp_path, "pylog group describe ", str(answering)) == ["*", "a b", "[a-z]"]
    answering.write_text("#!/bin/sh\necho\n")
    assert bash_replies(run_pylog, tmp_path, "pylog group describe ", str(answering)) == []


def bash_replies(run_pylog: Pylog, directory: Path, line: str, command: str = "pylog") -> list[str]:
    """What the completion script gives bash for the line's last word, in that directory. ``command`` is asked."""
    script = directory / "completion.bash"
    script.write_text(run_pylog("completion", "bash").stdout)
    program = f"""
        source {script}
        COMP_LINE='{line}' COMP_POINT={len(line)}
        compopt() {{ :; }}
        _pylog_completion {command}
        [[ ${{#COMPREPLY[@]}} -eq 0 ]] || printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = clean_environment(directory, PATH=path)
    done = subprocess.run(
        ["bash", "-c", program], env=environment, cwd=directory, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


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
    """Each topic is deleted once; a name or pattern that matches nothing is refused."""
    existing = ["test-2", "a", "b", "test-1"]
    assert choose_topics(given, existing, if_exists=False) == chosen
    for missing in ("no", "no-*"):
        with pytest.raises(UnknownTopicOrPartitionError, match=r"'no"):
            choose_topics([*given, missing], existing, if_exists=False)
        assert choose_topics([*given, missing], existing, if_exists=True) == chosen


def test_several_topics_are_deleted_at_once(pylog: Pylog, topic: str) -> None:
    """They are listed, and the user must confirm their number."""
    names = [f"{topic}-{number}" for number in range(3)]
    for name in names:
        pylog("topic", "create", name)
    refused = pylog("topic", "delete", f"{topic}-*", status=1, stdin="yes\n")
    assert all(f"    {name}\n" in refused.stderr for name in names)
    pylog("topic", "delete", f"{topic}-*", stdin="3\n")
    left = pylog("topic", "ls", "-o", "name").stdout.splitlines()
    assert topic in left
    assert not set(names) & set(left)
