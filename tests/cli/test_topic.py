"""`pylog topic …` against a real broker (W27)."""

from __future__ import annotations

import json

import yaml
from pylog_command import Pylog


def test_topic_is_created_changed_and_deleted(pylog: Pylog) -> None:
    """W27: topics are created, listed, described, changed and deleted."""
    created = pylog(
        "topic", "create", "life", "-p", "3", "-r", "1", "-c", "retention.ms=7d",
        "--schema", "carrier string, delay int32", "--key", "carrier",
    )  # fmt: skip
    assert created.stdout == ""
    assert "life" in created.stderr
    assert "life" in pylog("topic", "list", "-o", "name").stdout.splitlines()
    described = json.loads(pylog("topic", "describe", "life", "-o", "json").stdout)
    assert described["key"] == "carrier"
    assert described["columns"] == ["carrier string", "delay int32"]
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    assert {part["leader"] for part in described["partitions"]} == {1}
    assert described["settings"]["retention.ms"] in {"7d", "604800000"}
    pylog("topic", "alter", "life", "-c", "segment.bytes=64MiB", "-d", "retention.ms")
    changed = json.loads(pylog("topic", "describe", "life", "-o", "json").stdout)
    assert set(changed["config"]) == {"segment.bytes"}
    pylog("topic", "delete", "life", "-y")
    assert "life" not in pylog("topic", "list", "-o", "name").stdout.splitlines()
    assert pylog("topic", "describe", "life", status=3).stderr.startswith("[UNKNOWN_TOPIC_OR_PARTITION]")


def test_topic_describe_shows_a_table_of_partitions(pylog: Pylog, topic: str) -> None:
    """`topic describe` shows each partition's leader and offsets."""
    pylog("produce", f"{topic}:1", stdin="a\nb\n")
    lines = pylog("topic", "describe", topic).stdout.splitlines()
    assert lines[0] == f"Topic    {topic}"
    table = [line.split() for line in lines[lines.index("") + 1 :]]
    assert table[0] == ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "START", "HIGH-WATERMARK", "RECORDS"]
    assert table[1:] == [["0", "1", "0", "1", "1", "0", "0", "0"], ["1", "1", "0", "1", "1", "0", "2", "2"]]


def test_topic_plurals_and_option_positions_are_the_same_command(pylog: Pylog, run_pylog: Pylog, topic: str) -> None:
    """Plurals are aliases, and common options may stand before or after the command."""
    after = pylog("topics", "list", "-o", "name").stdout
    before = run_pylog("-o", "name", "topic", "list", "-b", pylog_address(pylog))
    between = run_pylog("topics", "-o", "name", "-b", pylog_address(pylog), "list")
    assert topic in after.splitlines()
    assert topic in before.stdout.splitlines()
    assert topic in between.stdout.splitlines()


def pylog_address(pylog: Pylog) -> str:
    """The session's cluster, as the command gets it."""
    args = pylog("version").args
    return str(args[args.index("-b") + 1])


def test_topic_create_refuses_an_existing_topic_unless_allowed(pylog: Pylog, topic: str) -> None:
    """--if-not-exists accepts it; without that, exit 1."""
    assert pylog("topic", "create", topic, status=1).stderr.startswith("[TOPIC_ALREADY_EXISTS]")
    pylog("topic", "create", topic, "--if-not-exists")


def test_topic_create_refuses_wrong_arguments_by_name(pylog: Pylog) -> None:
    """Unknown settings are refused with the nearest known one, and wrong names, types and numbers as well: exit 2."""
    unknown = pylog("topic", "create", "wrong", "-c", "retention.sm=1", status=2)
    assert "retention.sm" in unknown.stderr
    assert "retention.ms" in unknown.stderr
    assert "a/b" in pylog("topic", "create", "a/b", status=2).stderr
    assert "blob" in pylog("topic", "create", "wrong", "--schema", "a blob", status=2).stderr
    assert pylog("topic", "create", "wrong", "-p", "0", status=2).stderr.startswith("[INVALID_PARTITIONS]")
    assert pylog("topic", "create", "wrong", "-r", "3", status=2).stderr.startswith("[INVALID_REPLICATION_FACTOR]")
    assert "wrong" not in pylog("topic", "list", "-o", "name").stdout.splitlines()


def test_topic_create_dry_run_creates_nothing(pylog: Pylog) -> None:
    """A dry run only checks."""
    pylog("topic", "create", "dry", "--dry-run")
    assert "dry" not in pylog("topic", "list", "-o", "name").stdout.splitlines()


def test_topic_delete_asks_for_the_name(pylog: Pylog, topic: str) -> None:
    """`topic delete` asks for the name unless -y."""
    refused = pylog("topic", "delete", topic, stdin="yes\n", status=1)
    assert "[NOT_CONFIRMED]" in refused.stderr
    assert pylog("topic", "delete", topic, stdin="", status=1).stdout == ""
    assert topic in pylog("topic", "list", "-o", "name").stdout.splitlines()
    pylog("topic", "delete", topic, stdin=f"{topic}\n")
    assert pylog("topic", "delete", topic, "-y", status=3).returncode == 3
    pylog("topic", "delete", topic, "-y", "--if-exists")


def test_topic_grows_partitions_and_columns(pylog: Pylog, typed_topic: str) -> None:
    """W27: partitions are added to any topic, nullable columns to typed ones."""
    pylog("topic", "add-partitions", typed_topic, "4")
    pylog("topic", "add-column", typed_topic, "gate string")
    described = yaml.safe_load(pylog("topic", "describe", typed_topic, "-o", "yaml").stdout)
    assert len(described["partitions"]) == 4
    assert described["columns"][-1] == "gate string"
    assert pylog("topic", "add-partitions", typed_topic, "2", status=2).stderr.startswith("[INVALID_PARTITIONS]")


def test_topic_trim_deletes_records_before_an_offset(pylog: Pylog, topic: str) -> None:
    """W27: records before an offset are deleted, and readers skip them."""
    pylog("produce", f"{topic}:0", stdin="0\n1\n2\n3\n")
    pylog("topic", "trim", f"{topic}:0", "--before", "3", "-y")
    assert pylog("consume", topic, "--from", "earliest", "--to", "end").stdout == "3\n"
    pylog("topic", "trim", f"{topic}:0", "--before", "latest", "-y")
    assert pylog("consume", topic, "--from", "earliest", "--to", "end").stdout == ""
    assert pylog("topic", "trim", topic, "--before", "1", "-y", status=2).returncode == 2
    assert pylog("topic", "trim", f"{topic}:7", "--before", "0", "-y", status=3).returncode == 3


def test_topic_alter_without_a_change_is_a_usage_error(pylog: Pylog, topic: str) -> None:
    """A call without any change is exit 2."""
    assert "nothing to change: use -c NAME=VALUE or -d NAME" in pylog("topic", "alter", topic, status=2).stderr


def test_number_that_no_request_can_hold_is_a_usage_error(pylog: Pylog, topic: str) -> None:
    """It is refused by value with what is allowed, and is no defect."""
    for digits in ("9" * 11, "9" * 23):
        for option, arguments in (
            ("-p", ("topic", "create", "huge", "-p", digits)),
            ("-r", ("topic", "create", "huge", "-r", digits)),
            ("TOTAL", ("topic", "add-partitions", topic, digits)),
            ("--to", ("partition", "move", f"{topic}:0", "--to", f"1,{digits}")),
        ):
            refused = pylog(*arguments, status=2)
            assert refused.stderr == f"[INVALID_OPTION] {option} {digits}: must be a number up to 2147483647\n"
    refused = pylog("topic", "trim", f"{topic}:0", "--before", "9" * 23, "-y", status=2)
    assert f"'{'9' * 23}': must be an offset (up to 18 digits) or latest" in refused.stderr
