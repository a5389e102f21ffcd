"""`pylog cluster describe|health|decommission` and their output for several brokers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from pylog_command import Pylog

from pyspark_log import Admin, TopicPartition
from pyspark_log.testing import LocalCluster
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def two_brokers() -> Iterator[LocalCluster]:
    """Two brokers, and a topic with a replica on each."""
    with LocalCluster(brokers=2) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=2, replication_factor=2)
        cluster.wait_until_ready()
        yield cluster


def test_describe_shows_leaders_and_replicas(run_pylog: Pylog, two_brokers: LocalCluster) -> None:
    """`cluster describe` lists leaders and replicas."""
    address = two_brokers.bootstrap_servers
    shown = run_pylog("cluster", "describe", "-b", address)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[0].split() == [
        "BROKER", "ADDRESS", "CONTROLLER", "LEADERS", "REPLICAS", "IN", "SYNC",
    ]  # fmt: skip
    described = json.loads(run_pylog("cluster", "describe", "-o", "json", "-b", address).stdout)
    assert (described["topics"], described["partitions"]) == (1, 2)
    rows = {row["broker"]: row for row in described["brokers"]}
    assert sorted(rows) == [1, 2]
    assert [row["address"] for row in rows.values()] == address.split(",")
    assert all((row["leaders"], row["replicas"], row["in_sync"]) == (1, 2, 2) for row in rows.values())
    assert sum(row["controller"] for row in rows.values()) == 1


def test_topic_describe_has_the_offsets_of_every_leader(run_pylog: Pylog, two_brokers: LocalCluster) -> None:
    """Each broker knows only the offsets of the partitions that it leads, so all are asked."""
    address = two_brokers.bootstrap_servers
    sent = run_pylog("produce", "t", "-b", address, stdin="".join(f"{number}\n" for number in range(10)))
    assert sent.returncode == 0, sent.stderr
    described = json.loads(run_pylog("topic", "describe", "t", "-o", "json", "-b", address).stdout)
    assert sorted(row["leader"] for row in described["partitions"]) == [1, 2]
    assert sum(row["records"] for row in described["partitions"]) == 10
    assert all(sorted(row["isr"]) == [1, 2] for row in described["partitions"])


def statuses(shown: str) -> dict[str, str]:
    """Of the table of checks, by what was checked."""
    lines = shown.split("\n\n")[0].splitlines()
    assert lines[0].split() == ["CHECK", "STATUS", "FOUND"]
    return {line.split()[0]: line.split()[1] for line in lines[1:]}


def test_health_is_one_screen_and_names_problems_and_exits_with_5(run_pylog: Pylog, two_brokers: LocalCluster) -> None:
    """`cluster health` says first whether the cluster is healthy, then what was looked at."""
    address = two_brokers.bootstrap_servers
    well = run_pylog("cluster", "health", "-b", address)
    assert well.returncode == 0, well.stderr
    assert well.stderr.startswith("Healthy: 2 brokers, controller ")
    checks = ["brokers", "controller", "ZooKeeper", "partitions", "directories", "moves", "transactions", "groups"]
    assert statuses(well.stdout) == dict.fromkeys(checks, "ok")
    assert "reached by every broker" in well.stdout
    two_brokers.kill(2)
    two_brokers.wait_until_ready()
    ill = run_pylog("cluster", "health", "-b", address)
    assert ill.returncode == 5
    # Its session may not have ended yet.
    gone = "(down|registered and silent): broker 2"
    assert re.match(f"Not healthy: 2 of 2 partitions are not healthy; {gone}\n", ill.stderr)
    found = statuses(ill.stdout)
    assert (found["brokers"], found["partitions"], found["ZooKeeper"]) == ("bad", "bad", "ok")
    assert "2 of 2 under-replicated (t:0, t:1)" in ill.stdout
    assert [line.split()[:2] for line in ill.stdout.split("\n\n")[1].splitlines()[1:]] == [
        ["t:0", "under-replicated"],
        ["t:1", "under-replicated"],
    ]
    described = json.loads(run_pylog("cluster", "health", "-o", "json", "-b", address).stdout)
    assert (described["healthy"], len(described["problems"])) == (False, 2)
    assert described["missing_brokers"] + described["silent_brokers"] == [2]
    two_brokers.start(2)
    two_brokers.wait_until_ready()
    assert run_pylog("cluster", "health", "-b", address).returncode == 0


def test_health_shows_groups_that_lag_and_rooms_on_disks(run_pylog: Pylog, two_brokers: LocalCluster) -> None:
    """Neither changes the exit status."""
    address = two_brokers.bootstrap_servers
    topic, group = "lagging", "slow-readers"
    with Admin(address) as admin:
        admin.create_topic(topic, replication_factor=2)
        two_brokers.wait_until_ready()
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
    assert run_pylog("produce", topic, "-b", address, stdin="a\n" * 1200).returncode == 0
    shown = run_pylog("cluster", "health", "-b", address)
    assert shown.returncode == 0, shown.stderr
    assert f"1 group; furthest behind: {group} 1,200 (most in {topic}:0)" in shown.stdout
    described = json.loads(run_pylog("cluster", "health", "-o", "json", "-b", address).stdout)
    assert described["groups"] == [{"group_id": group, "lag": 1200, "worst": f"{topic}:0"}]
    assert [room["broker"] for room in described["directories"]] == [1, 2]
    assert all(room["log_bytes"] > 0 < room["left_bytes"] for room in described["directories"])
    with Admin(address) as admin:
        admin.delete_group(group)
        admin.delete_topic(topic)


@pytest.mark.usefixtures("own_zookeepers")
def test_health_says_which_brokers_do_not_reach_zookeeper_and_which_are_silent(run_pylog: Pylog) -> None:
    """What only ZooKeeper knows is unknown then, and the command still ends in time."""
    with LocalCluster(brokers=2) as cluster:
        address = cluster.bootstrap_servers
        cluster.kill_zookeeper(1)
        wait_until(lambda: "without ZooKeeper" in run_pylog("cluster", "health", "-b", address).stderr, "both notice")
        shown = run_pylog("cluster", "health", "-b", address)
        assert shown.returncode == 5
        assert "without ZooKeeper: broker 1, broker 2" in shown.stderr
        found = statuses(shown.stdout)
        assert (found["ZooKeeper"], found["groups"]) == ("bad", "unknown")
        cluster.pause(2)
        try:
            silent = json.loads(run_pylog("cluster", "health", "-o", "json", "-b", address).stdout)
        finally:
            cluster.resume(2)
        assert silent["silent_brokers"] == [2]


def test_decommission_needs_other_brokers_with_room(run_pylog: Pylog, two_brokers: LocalCluster) -> None:
    """Two replicas need two brokers: the request is refused, and nothing changes."""
    for broker, message in (
        ("2", "broker 2 cannot be decommissioned: t:0 needs 2 brokers"),
        ("9", "there is no broker 9"),
    ):
        refused = run_pylog("cluster", "decommission", broker, "-b", two_brokers.bootstrap_servers)
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"[INVALID_REPLICA_ASSIGNMENT] {message}"), "before it asks for confirmation"


def test_partition_moves_to_a_broker_and_back(run_pylog: Pylog, two_brokers: LocalCluster) -> None:
    """W27: `partition move --watch` and `partition moves` work."""
    address = two_brokers.bootstrap_servers
    assert run_pylog("topic", "create", "moved", "-b", address).returncode == 0
    described = json.loads(run_pylog("topic", "describe", "moved", "-o", "json", "-b", address).stdout)
    (here,) = described["partitions"][0]["replicas"]
    there = 3 - here
    moved = run_pylog("partition", "move", "moved:0", "--to", str(there), "--watch", "-b", address)
    assert moved.returncode == 0, moved.stderr
    assert moved.stderr.splitlines()[0] == f"Moving moved:0 to brokers {there}."
    assert moved.stderr.splitlines()[-1] == "All moves are complete."
    assert run_pylog("partition", "moves", "-b", address).stderr == "No partitions are being moved.\n"
    assert run_pylog("partition", "moves", "-o", "json", "-b", address).stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("move", "t:0", "--to", "7"), 2, "t-0 cannot be moved to [7]: live brokers are [1, 2]"),
        (("move", "t:0", "--cancel"), 1, "t-0 is not being moved, so there is nothing to end"),
        (("move", "nowhere:0", "--to", "1"), 3, "no topic 'nowhere'"),
        (("move", "t:0"), 2, "use either --to (for example --to 2,3,4) or --cancel"),
        (("move", "t:0", "--to", "one"), 2, "must be broker ids separated by commas, for example 2,3,4"),
        (("move", "t", "--to", "1"), 2, "'t' must be TOPIC:PARTITION"),
        (("move", "t:0", "--to", "1,1"), 2, "t-0 cannot have two replicas on one broker: [1, 1]"),
        (("move", "t:9", "--to", "1"), 3, "t has no partition 9, only 0 to 1"),
        (("elect", "t:9"), 3, "t has no partition 9, only 0 to 1"),
    ],
)
def test_partition_commands_refuse_impossible_requests(
    run_pylog: Pylog, two_brokers: LocalCluster, arguments: tuple[str, ...], status: int, message: str
) -> None:
    """Bad input: one clear error names the value and what is allowed."""
    refused = run_pylog("partition", *arguments, "-b", two_brokers.bootstrap_servers)
    assert (refused.returncode, refused.stdout) == (status, "")
    assert message in refused.stderr


def test_elect_names_the_new_leader(run_pylog: Pylog, two_brokers: LocalCluster) -> None:
    """W27: `partition elect`."""
    done = run_pylog("partition", "elect", "-b", two_brokers.bootstrap_servers)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.strip()


def test_text_where_a_number_is_wanted_is_refused_in_plain_words(run_pylog: Pylog) -> None:
    """The error names the argument or option and what was given."""
    for arguments, text in (
        (("cluster", "decommission", "x"), "Invalid value for 'BROKER': must be a number, not 'x'"),
        (("topic", "create", "t", "-p", "two"), "'--partitions': must be a number, not 'two'"),
    ):
        refused = run_pylog(*arguments)
        assert refused.returncode == 2
        assert text in refused.stderr
        assert "unable to parse" not in refused.stderr
