"""`pylog group …` against a real broker (W27)."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from pylog_command import LIMIT_S, Pylog

from pyspark_log import Admin, Consumer
from pyspark_log.testing import LocalCluster
from tests.waiting import wait_until


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def members(pylog_cluster: LocalCluster) -> Iterator[ExitStack]:
    """Consumers that are closed at the end of the test."""
    with ExitStack() as stack:
        yield stack


def join(members: ExitStack, cluster: LocalCluster, group: str, topic: str, client_id: str) -> Consumer:
    """A consumer that is a member of the group when this returns; nobody polls it, which is accepted for minutes."""
    consumer = Consumer(
        topic, bootstrap_servers=cluster.bootstrap_servers, group_id=group, client_id=client_id,
        auto_offset_reset="earliest", enable_auto_commit=False,
    )  # fmt: skip
    return members.enter_context(consumer)


def until_assigned(cluster: LocalCluster, group: str, partitions: int) -> None:
    """Waits until the members have that many partitions: the first to join gets all, once that is written."""
    with Admin(cluster.bootstrap_servers) as admin:
        wait_until(
            lambda: sum(len(member.partitions) for member in admin.describe_group(group).members) >= partitions,
            "the partitions are given",
            LIMIT_S,
        )


def offsets_of(cluster: LocalCluster, group: str) -> dict[int, int]:
    """The group's committed offsets of its one topic, by partition."""
    with Admin(cluster.bootstrap_servers) as admin:
        return {at.partition: offset.committed for at, offset in admin.list_group_offsets(group).items()}


def test_group_reset_shows_its_plan_and_carries_it_out_with_execute(
    pylog: Pylog, pylog_cluster: LocalCluster, topic: str, group: str
) -> None:
    """W27: a group's lag is reset; nothing changes without --execute."""
    pylog("produce", f"{topic}:0", stdin="".join(f"{n}\n" for n in range(10)))
    shown = pylog("group", "reset", group, "-t", topic, "--to", "earliest")
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["TOPIC", "PARTITION", "OLD", "NEW"], [topic, "0", "-", "0"], [topic, "1", "-", "0"],
    ]  # fmt: skip
    assert "--execute" in shown.stderr
    assert pylog("group", "describe", group, status=3).stderr.startswith("[GROUP_ID_NOT_FOUND]")
    pylog("group", "reset", group, "-t", f"{topic}:0", "--to", "latest", "--execute")
    assert offsets_of(pylog_cluster, group) == {0: 10}
    for to, offset in (("-4", 6), ("+3", 9), ("2", 2), ("earliest", 0), ("2020-01-01", 0), ("1h", 0), ("latest", 10)):
        pylog("group", "reset", group, "-t", f"{topic}:0,1", "--to", to, "--execute")
        assert offsets_of(pylog_cluster, group)[0] == offset, to
    rows = json.loads(pylog("group", "reset", group, "--all-topics", "--to", "-1", "-o", "json").stdout)
    assert rows == [
        {"topic": topic, "partition": 0, "old": 10, "new": 9}, {"topic": topic, "partition": 1, "old": 0, "new": 0},
    ]  # fmt: skip


def test_group_reset_keeps_offsets_within_the_log(
    pylog: Pylog, pylog_cluster: LocalCluster, topic: str, group: str
) -> None:
    """W27: an offset outside the log is moved into it, and that is reported."""
    pylog("produce", f"{topic}:0", stdin="a\nb\nc\n")
    pylog("topic", "trim", f"{topic}:0", "--before", "1", "-y")
    high = pylog("group", "reset", group, "-t", f"{topic}:0", "--to", "99", "--execute")
    assert f"Offset 99 is outside the log; the nearest offset is used: {topic}:0 has 1 to 3." in high.stderr
    assert offsets_of(pylog_cluster, group) == {0: 3}
    low = pylog("group", "reset", group, "-t", topic, "--to", "-7", "--execute")
    assert "-4 is outside the log" in low.stderr
    assert f"{topic}:1 is not changed: the group has no committed offset there." in low.stderr
    assert offsets_of(pylog_cluster, group) == {0: 1}


def test_group_reset_takes_offsets_from_a_file(
    pylog: Pylog, pylog_cluster: LocalCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """W27: the file was exported from another group or cluster."""
    pylog("produce", f"{topic}:1", stdin="a\nb\nc\n")
    file = tmp_path / "offsets.csv"
    file.write_text(f"topic,partition,offset\n{topic},0,0\n{topic},1,2\n")
    pylog("group", "reset", group, "--from-file", str(file), "--execute")
    assert offsets_of(pylog_cluster, group) == {0: 0, 1: 2}
    file.write_text(f"{topic},9,0\n")
    assert pylog("group", "reset", group, "--from-file", str(file), status=3).stdout == ""
    assert pylog("group", "reset", group, "--from-file", str(tmp_path / "no.csv"), status=1).stdout == ""


def test_group_reset_refuses_wrong_arguments_by_name(pylog: Pylog, topic: str, group: str) -> None:
    """Exit 2 is for missing, surplus or nonsensical arguments; 3 for what does not exist."""
    assert "--to" in pylog("group", "reset", group, "-t", topic, status=2).stderr
    assert "--all-topics" in pylog("group", "reset", group, "--to", "latest", status=2).stderr
    assert (
        "use either -t (for example -t flights) or --all-topics"
        in pylog("group", "reset", group, "-t", topic, "--all-topics", "--to", "0", status=2).stderr
    )
    assert "yesterday" in pylog("group", "reset", group, "-t", topic, "--to", "yesterday", status=2).stderr
    assert "a/b" in pylog("group", "reset", "a/b", "-t", topic, "--to", "latest", status=2).stderr
    pylog("group", "reset", group, "-t", "no-such-topic", "--to", "latest", status=3)
    pylog("group", "reset", group, "--all-topics", "--to", "latest", status=3)
    nowhere = pylog("group", "reset", group, "-t", topic, "--to", "-1", "--execute", status=3)
    assert (nowhere.stdout, nowhere.stderr.split()[0]) == ("", "[GROUP_ID_NOT_FOUND]")


def test_group_describe_shows_lag_of_each_partition(pylog: Pylog, topic: str, group: str) -> None:
    """W27/S9: committed offset, end, lag in records and in seconds are shown; exit 5 when the lag is over the limit."""
    pylog("produce", f"{topic}:0", stdin="a\nb\nc\n")
    pylog("group", "reset", group, "-t", topic, "--to", "1", "--execute")
    described = pylog("group", "describe", group)
    assert "empty" in described.stderr
    heading, first, second = (line.split() for line in described.stdout.splitlines())
    assert heading == ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "LAG-S", "CLIENT", "HOST"]
    assert first[:5] == [topic, "0", "1", "3", "2"]
    assert 0 <= float(first[5]) < 60
    assert second == [topic, "1", "0", "0", "0", "-", "-", "-"]
    pylog("group", "describe", group, "--max-lag", "2")
    late = pylog("group", "describe", group, "--max-lag", "1", "-o", "jsonl", status=5)
    assert late.stderr == f"[LAG_OVER_LIMIT] The lag is more than 1 record: {topic}:0\n"
    assert [json.loads(line)["lag"] for line in late.stdout.splitlines()] == [2, 0]


def test_group_describe_shows_members_with_and_without_partitions(
    pylog: Pylog, pylog_cluster: LocalCluster, topic: str, group: str, members: ExitStack
) -> None:
    """W27/W23: each member is shown with its partitions, and waiting members, too."""
    for number in range(3):
        join(members, pylog_cluster, group, topic, f"worker-{number}")
    until_assigned(pylog_cluster, group, 2)
    whole = yaml.safe_load(pylog("groups", "describe", group, "-o", "yaml").stdout)
    assert (whole["group_id"], whole["kind"], whole["coordinator"], len(whole["members"])) == (group, "consumer", 1, 3)
    shares = sorted(len(member["partitions"]) for member in whole["members"])
    assert sum(shares) == 2
    table = pylog("group", "describe", group, "-o", "wide").stdout
    assert {f"worker-{number}" for number in range(3)} == set(re.findall(r"worker-\d", table))
    assert all(member["member_id"] in table for member in whole["members"])
    assert len(table.splitlines()) == 1 + 2 + shares.count(0)
    assert pylog("group", "describe", group, "-o", "name").stdout.split() == [f"{topic}:0", f"{topic}:1"]


def test_group_with_members_is_neither_reset_nor_deleted(
    pylog: Pylog, pylog_cluster: LocalCluster, topic: str, group: str, members: ExitStack
) -> None:
    """W27: NON_EMPTY_GROUP names its members; when they have left, the group can be deleted."""
    consumer = join(members, pylog_cluster, group, topic, "nightly")
    for refused in (("reset", "-t", topic, "--to", "latest", "--execute"), ("reset", "-t", topic, "--to", "latest"),
                    ("delete", "-y")):  # fmt: skip
        command, *options = refused
        errors = pylog("group", command, group, *options, status=1).stderr
        assert errors.startswith("[NON_EMPTY_GROUP]")
        assert "nightly" in errors
    consumer.close()
    pylog("group", "reset", group, "-t", topic, "--to", "latest", "--execute")
    pylog("group", "delete", group, "-y")


def test_group_delete_asks_for_the_id(pylog: Pylog, topic: str, group: str) -> None:
    """`group delete` asks for the id unless -y; an unknown group is exit 3."""
    pylog("group", "reset", group, "-t", topic, "--to", "latest", "--execute")
    assert "[NOT_CONFIRMED]" in pylog("group", "delete", group, stdin="yes\n", status=1).stderr
    assert group in pylog("group", "list", "-o", "name").stdout.splitlines()
    pylog("group", "delete", group, stdin=f"{group}\n")
    assert group not in pylog("groups", "list", "-o", "name").stdout.splitlines()
    pylog("group", "delete", group, "-y", status=3)
    said = pylog("group", "delete", group, "-y", "--if-exists").stderr
    assert said == f"There is no group {group}. Nothing was deleted.\n"


def test_id_with_blanks_at_its_ends_can_be_confirmed(pylog: Pylog, topic: str, group: str) -> None:
    """The id is what was typed, to the last blank; blanks around another id do no harm."""
    for group_id, answer in ((f" {group} ", f" {group} \n"), (group, f" {group}  \r\n")):
        pylog("group", "reset", group_id, "-t", topic, "--to", "latest", "--execute")
        refused = pylog("group", "delete", group_id, stdin=f"{group}-other\n", status=1)
        assert "[NOT_CONFIRMED]" in refused.stderr
        assert f"Deleted group {group_id}." in pylog("group", "delete", group_id, stdin=answer).stderr


def test_group_list_shows_state_and_members(
    pylog: Pylog, pylog_cluster: LocalCluster, topic: str, group: str, members: ExitStack
) -> None:
    """W27: all groups are listed, including those with only offsets."""
    join(members, pylog_cluster, group, topic, "one")
    pylog("group", "reset", f"{group}-idle", "-t", topic, "--to", "latest", "--execute")
    found = {row["group_id"]: row for row in json.loads(pylog("group", "list", "-o", "json").stdout)}
    assert (found[group]["kind"], found[group]["members"], found[group]["coordinator"]) == ("consumer", 1, 1)
    idle = found[f"{group}-idle"]
    assert (idle["state"], idle["kind"], idle["members"]) == ("empty", "", 0)
