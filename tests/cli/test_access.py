"""`pylog user …`, `pylog acl …` and `pylog quota …` on a cluster on which not everybody may do everything."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pylog_command import Pylog

from tests.secured import Secured, secured_cluster
from tests.waiting import SOON_S, wait_until

PASSWORD = "alice's password"
As = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_cluster(tmp_path_factory.mktemp("secured"), 1) as made:
        yield made


@pytest.fixture
def as_(run_pylog: Pylog, secured: Secured, tmp_path: Path) -> As:
    """`as_("root", "user", "list")` runs the command with that user's config file; its status is checked."""

    def run(who: str, *arguments: str, status: int = 0, **more: object) -> subprocess.CompletedProcess[str]:
        if who == "root":
            settings = {"bootstrap.servers": secured.cluster.bootstrap_servers_of("IN"), **secured.root}
        else:
            settings = secured.user(who, PASSWORD)
        config = tmp_path / f"{who}.toml"
        config.write_text("".join(f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in settings.items()))
        done = run_pylog(*arguments, environment={"PYLOG_CONFIG": str(config)}, **more)
        assert done.returncode == status, f"{arguments}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


def test_user_is_added_allowed_and_deleted(as_: As, tmp_path: Path) -> None:
    """The password comes from standard input or a file; ACLs let the user produce and consume, and are listed."""
    added = as_("root", "user", "add", "alice", stdin=PASSWORD + "\n")
    assert added.stderr == "Added user alice.\n"
    assert as_("root", "user", "list", "-o", "name").stdout.split() == ["alice"]
    as_("root", "topic", "create", "flights")
    refused = as_("alice", "topic", "describe", "flights", status=1)
    assert "[TOPIC_AUTHORIZATION_FAILED] User:alice may not Describe topic 'flights'" in refused.stderr
    as_("root", "acl", "add", "--principal", "alice", "--producer", "--consumer", "--topic", "flights", "--group", "g")
    listed = json.loads(as_("root", "acl", "list", "--principal", "User:alice", "-o", "json").stdout)
    assert sorted((each["operation"], each["resource_type"], each["name"]) for each in listed) == [
        ("Read", "Group", "g"), ("Read", "Topic", "flights"), ("Write", "Topic", "flights"),
    ]  # fmt: skip
    wait_until(
        lambda: as_("alice", "topic", "list", "-o", "name").stdout.split() == ["flights"], "alice sees it", SOON_S
    )
    as_("alice", "produce", "flights", stdin="a\nb\n")
    got = as_("alice", "consume", "flights", "-g", "g", "--from", "earliest", "-n", "2", "-f", "%v\\n")
    assert got.stdout.split() == ["a", "b"]
    again = as_("root", "acl", "add", "--principal", "user:alice", "--producer", "--topic", "flights")
    assert "They exist already." in again.stderr
    file = tmp_path / "new.txt"
    file.write_text("another password\nand a line that is none\n")
    as_("root", "user", "passwd", "alice", "--password-file", str(file))
    wait_until(lambda: _refused(as_), "the old password counts no more", SOON_S)
    assert "Deleted 3 ACLs." in as_("root", "acl", "delete", "--principal", "alice", "-y").stderr
    assert "No ACL matches." in as_("root", "acl", "delete", "--principal", "alice", "-y").stderr
    as_("root", "user", "delete", "alice", "-y")
    assert as_("root", "user", "list", "-o", "name").stdout == ""


def _refused(as_: As) -> bool:
    try:
        done = as_("alice", "topic", "list", status=1)
    except AssertionError:
        return False
    assert "[SASL_AUTHENTICATION_FAILED] the user or the password is wrong" in done.stderr
    return True


def test_first_user_is_added_without_a_broker_that_lets_anybody_in(as_: As, secured: Secured) -> None:
    config = secured.cluster._broker(1).config_file
    as_("root", "user", "add", "first", "--broker-config", str(config), stdin="first password\n")
    assert "first" in as_("root", "user", "list", "-o", "name").stdout.split()
    again = as_("root", "user", "add", "first", "--broker-config", str(config), stdin="first password\n", status=2)
    assert "user 'first' exists already" in again.stderr
    none = as_("root", "user", "passwd", "nobody", "--broker-config", str(config), stdin="some password\n", status=3)
    assert "no user 'nobody'" in none.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        (("add", "bob"), "short\n", "the password has 5 characters"),
        (("add", "bob"), "", "the password has 0 characters"),
        (("add", "bob"), b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe\n", "standard input: no password can be read: not UTF-8"),
        (("add", "bob", "--password-file", "/no/such"), "", "--password-file=/no/such: no password can be read"),
        (("add", "a:b"), "long enough\n", "user 'a:b': must be 1 to 255 printable characters"),
        (("add", "ANONYMOUS"), "long enough\n", "not '*' nor 'ANONYMOUS'"),
        (("passwd", "nobody"), "long enough\n", "no user 'nobody'"),
        (("delete", "nobody", "-y"), "", "no user 'nobody'"),
    ],
)
def test_user_that_may_not_be_is_refused_in_one_line(
    as_: As, run_pylog: Pylog, arguments: tuple[str, ...], stdin: str | bytes, says: str
) -> None:
    status = 3 if "no user" in says else 2 if "password can be read" in says else 1
    done = as_("root", "user", *arguments, stdin=stdin, status=status)
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--operation", "Read"), "name what it is about: --topic, --group"),
        (("--topic", "t"), "give either --operation, or --producer or --consumer"),
        (("--topic", "t", "--operation", "Read", "--producer"), "give either --operation"),
        (("--topic", "t", "--operation", "Look"), "--operation: must be one of All, Read"),
        (("--group", "g", "--producer"), "--producer needs --topic or --transactional-id"),
        (("--group", "g", "--operation", "Write"), "operation='Write' on Group: must be All or one of Read"),
        (("--topic", "t", "--operation", "Read", "--host", "10.0.0.0/8"), "host='10.0.0.0/8': must be an IP address"),
        (("--topic", "*", "--prefixed", "--operation", "Read", "--deny"), "name='*' with pattern Prefixed"),
    ],
)
def test_acl_that_could_mean_nothing_is_refused_in_one_line(as_: As, arguments: tuple[str, ...], says: str) -> None:
    is_usage = "operation='" not in says and "='" not in says
    done = as_("root", "acl", "add", "--principal", "bob", *arguments, status=2 if is_usage else 1)
    assert says in done.stderr
    assert as_("root", "acl", "list", "--principal", "bob", "-o", "name").stdout == ""


@pytest.mark.parametrize("name", ["sasl.password", "token"])
def test_secret_is_never_an_argument(run_pylog: Pylog, name: str) -> None:
    """Others can read it there; and it is not printed."""
    done = run_pylog("topic", "list", "-X", f"{name}=very secret")
    assert done.returncode == 2
    assert f"[INVALID_CONFIG] -X {name}=…: others can read a command's arguments" in done.stderr
    assert "very secret" not in done.stdout + done.stderr


def test_quotas_are_set_listed_and_removed(as_: As) -> None:
    """Sizes have units; limits that are not named stay; what is wrong is said before anything is changed."""
    assert as_("root", "quota", "list").stderr == "There are no quotas.\n"
    set_ = as_("root", "quota", "set", "--user", "alice", "--default-client-id", "producer_byte_rate=10MB")
    assert set_.stderr == "Limited user alice, client id <default> to producer_byte_rate=10000000.\n"
    as_("root", "quota", "set", "--default-user", "request_percentage=12.5%", "max_connections=20")
    as_("root", "quota", "set", "--default-user", "max_connections=30")
    listed = json.loads(as_("root", "quota", "list", "-o", "json").stdout)
    assert [{name: value for name, value in each.items() if value is not None} for each in listed] == [
        {"user": "<default>", "request_percentage": 12.5, "max_connections": 30},
        {"user": "alice", "client_id": "<default>", "producer_byte_rate": 10_000_000},
    ]
    for arguments, status, said in (
        (("set", "max_connections=5"), 2, "give --user, --client-id, --default-user or --default-client-id"),
        (("set", "--user", "a", "--default-user", "max_connections=5"), 2, "give either --user or --default-user"),
        (("set", "--user", "a", "bytes=5"), 2, "'bytes': must be one of producer_byte_rate, consumer_byte_rate"),
        (("set", "--user", "a", "producer_byte_rate=fast"), 2, "producer_byte_rate=fast: must be a number of bytes"),
        (("set", "--user", "a", "producer_byte_rate=0"), 1, "producer_byte_rate=0.0: must be a number above 0"),
        (("set", "--user", "a", "max_connections=1.5"), 1, "max_connections=1.5: must be a whole number"),
        (("set", "--user", "a", "max_connections"), 2, "must be NAME=VALUE"),
        (("delete", "--user", "nobody"), 3, "user nobody has no quota"),
        (("delete", "--default-user", "producer_byte_rate"), 3, "user <default> has no producer_byte_rate"),
    ):
        assert said in as_("root", "quota", *arguments, status=status).stderr
    removed = as_("root", "quota", "delete", "--default-user", "request_percentage")
    assert removed.stderr == "Removed request_percentage from user <default>.\n"
    as_("root", "quota", "delete", "--default-user")
    as_("root", "quota", "delete", "--user", "alice", "--default-client-id")
    assert json.loads(as_("root", "quota", "list", "-o", "json").stdout) == []


def test_quotas_are_for_administrators(as_: As) -> None:
    """Kafka's operations: DescribeConfigs and AlterConfigs on the cluster."""
    as_("root", "user", "add", "quentin", stdin=PASSWORD + "\n")
    refused = as_("quentin", "quota", "list", status=1)
    assert "[CLUSTER_AUTHORIZATION_FAILED] User:quentin may not DescribeConfigs" in refused.stderr
    as_("root", "acl", "add", "--principal", "quentin", "--operation", "DescribeConfigs", "--cluster")
    wait_until(lambda: as_("quentin", "quota", "list", "-o", "json").stdout, "the ACL counts", SOON_S,
               ignoring=(AssertionError,))  # fmt: skip
    refused = as_("quentin", "quota", "set", "--user", "root", "max_connections=1", status=1)
    assert "[CLUSTER_AUTHORIZATION_FAILED] User:quentin may not AlterConfigs" in refused.stderr
