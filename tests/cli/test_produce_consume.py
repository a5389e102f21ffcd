"""`pylog produce` and `pylog consume` against a real broker (W27)."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from pylog_command import COMMAND, LIMIT_S, Pylog, clean_environment

from pyspark_log import Admin, Producer, read
from pyspark_log.errors import GroupIdNotFoundError
from pyspark_log.testing import LocalCluster
from tests.waiting import wait_until

ALL = ("--from", "earliest", "--to", "end")
FULL_DISK = "/dev/full"  # Linux has it
UNWRITABLE = ["pipe without a reader", *([FULL_DISK] if Path(FULL_DISK).exists() else [])]


def test_lines_survive_the_round_trip(pylog: Pylog, topic: str) -> None:
    """W27: the console producer and consumer keep values that are no text, and empty ones."""
    produced = pylog("produce", f"{topic}:0", stdin="first\n\nhéllo\nno newline at the end".encode())
    assert produced.stdout == ""
    assert "4 records" in produced.stderr
    assert pylog("consume", topic, *ALL).stdout == "first\n\nhéllo\nno newline at the end\n"


def test_lines_of_several_topics_name_the_topic_on_a_terminal(
    pylog: Pylog, topic: str, tmp_path: Path, pylog_cluster: LocalCluster
) -> None:
    """In a pipe only the values are data; a remark says what they omit."""
    other = f"{topic}-other"
    pylog("topic", "create", other)
    pylog("produce", f"{topic}:0", stdin="a\n")
    pylog("produce", other, stdin="b\n")
    shown = pylog("consume", topic, other, *ALL)
    assert sorted(shown.stdout.splitlines()) == ["a", "b"]
    assert r"-f '%t\t%v\n'" in shown.stderr
    assert shown.stderr.count("\n") == 1
    assert pylog("consume", topic, *ALL).stderr == ""
    assert pylog("consume", topic, other, *ALL, "-f", r"%t %v\n").stderr == ""
    assert sorted(_on_a_terminal(tmp_path, pylog_cluster, topic, other)) == [f"{topic}\ta", f"{other}\tb"]
    assert _on_a_terminal(tmp_path, pylog_cluster, other) == ["b"]


def test_no_remark_about_keys_appears_on_a_terminal(
    pylog: Pylog, topic: str, tmp_path: Path, pylog_cluster: LocalCluster
) -> None:
    """A person reads the values there, and no program needs the keys."""
    pylog("produce", topic, "-f", r"%k=%v\n", stdin="k=v\n")
    assert "the keys or headers of 1 record." in pylog("consume", topic, *ALL).stderr
    assert pylog("consume", topic, *ALL, "-q").stderr == ""
    assert _on_a_terminal(tmp_path, pylog_cluster, topic) == ["v"]


def _on_a_terminal(home: Path, cluster: LocalCluster, *topics: str) -> list[str]:
    """What `pylog consume` prints when standard output is a terminal."""
    ours, its = pty.openpty()
    try:
        command = [*COMMAND, "consume", *topics, *ALL, "-b", cluster.bootstrap_servers]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=its, stderr=subprocess.PIPE, env=clean_environment(home),
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
        return os.read(ours, 1 << 16).decode().splitlines()
    finally:
        os.close(ours)
        os.close(its)


def test_keys_and_format_round_trip(pylog: Pylog, topic: str) -> None:
    """`produce -f` '%k\\t%v\\n', consume -f '%p %o %k %v\\n'; a key keeps its partition (W8)."""
    pylog("produce", topic, "-f", r"%k\t%v\n", stdin="a\t1\nb\t2\na\t3\n")
    lines = [line.split() for line in pylog("consume", topic, *ALL, "-f", r"%p %o %k %v\n").stdout.splitlines()]
    assert sorted(value for _, _, _, value in lines) == ["1", "2", "3"]
    a_lines = [(partition, int(offset), value) for partition, offset, key, value in lines if key == "a"]
    assert [value for _, _, value in a_lines] == ["1", "3"]
    assert len({partition for partition, _, _ in a_lines}) == 1


def test_partition_and_time_come_from_the_line(pylog: Pylog, topic: str) -> None:
    """A line may name its partition and time."""
    pylog("produce", topic, "-f", r"%p %T %v\n", stdin="1 1700000000000 x\n0 1700000000001 y\n")
    shown = pylog("consume", topic, *ALL, "-f", r"%p %T %v\n").stdout
    assert sorted(shown.splitlines()) == ["0 1700000000001 y", "1 1700000000000 x"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--from", "earliest", "--to", "end"), "0123456789"),
        (("--from-beginning", "--to", "end"), "0123456789"),
        (("--from", "7", "--to", "end"), "789"),
        (("--from", "-3", "--to", "end"), "789"),
        (("--from", "2", "--to", "5"), "234"),
        (("--from", "earliest", "-n", "2"), "01"),
        (("--from", "earliest", "--max-messages", "2", "--to", "end"), "01"),
        (("--from", "2023-11-14T22:13:25Z", "--to", "end"), "56789"),
        (("--from", "2023-11-14T22:13:22Z", "--to", "2023-11-14T22:13:24Z"), "23"),
        (("--from", "1h", "--to", "end"), ""),
        (("--from", "latest", "--to", "end"), ""),
        (("--from", "-100", "--to", "-8"), "01"),
    ],
)
def test_range_selects_the_requested_records(
    pylog: Pylog, run_pylog: Pylog, ten_records: str, options: tuple[str, ...], expected: str
) -> None:
    """W20: --from earliest|latest|N|-N|1h|ISO, --to and -n select any offset or time."""
    assert pylog("consume", ten_records, *options).stdout.split() == list(expected)


@pytest.fixture(scope="module")
def ten_records(pylog_cluster: LocalCluster) -> str:
    """Records 0 to 9, a second apart, in one partition."""
    with Admin(pylog_cluster.bootstrap_servers) as admin:
        admin.create_topic("ten-records")
    with Producer(pylog_cluster.bootstrap_servers) as producer:
        for number in range(10):
            producer.send("ten-records", str(number).encode(), timestamp=1_700_000_000_000 + 1000 * number)
    return "ten-records"


def test_typed_rows_are_json_in_and_out(pylog: Pylog, typed_topic: str) -> None:
    """S7: a typed topic takes and returns its columns, and the output can be input again."""
    pylog("produce", typed_topic, stdin='{"carrier": "UA", "delay": 2}\n{"carrier": "AA", "delay": null}\n')
    text = pylog("consume", typed_topic, *ALL).stdout
    assert [json.loads(line) for line in text.splitlines()] == [
        {"carrier": "UA", "delay": 2},
        {"carrier": "AA", "delay": None},
    ]
    pylog("produce", typed_topic, stdin=text)
    assert pylog("consume", typed_topic, *ALL).stdout == text + text
    assert pylog("consume", typed_topic, *ALL, "-n", "1", "-f", r"%k %{delay}\n").stdout == "UA 2\n"
    assert pylog("consume", typed_topic, *ALL, "-n", "1", "--columns", "delay").stdout == '{"delay":2}\n'


def test_only_records_that_match_are_shown(pylog: Pylog, typed_topic: str) -> None:
    """S8: with their own offsets; `-n` counts those, a group goes on behind all, and a wrong predicate is refused."""
    rows = [{"carrier": carrier, "delay": delay} for delay in range(40) for carrier in ("UA", "AA")]
    pylog("produce", typed_topic, stdin="".join(json.dumps(row) + "\n" for row in rows))
    where = ("--where", "delay >= 38 AND carrier = 'AA'")
    shown = pylog("consume", typed_topic, *ALL, *where, "-f", r"%o %k %{delay}\n").stdout
    assert shown == "77 AA 38\n79 AA 39\n"
    assert pylog("consume", typed_topic, *ALL, *where, "-n", "1").stdout == '{"carrier":"AA","delay":38}\n'
    assert pylog("consume", typed_topic, *ALL, *where, "--columns", "delay").stdout == '{"delay":38}\n{"delay":39}\n'
    assert pylog("consume", typed_topic, *ALL, "--where", "delay > 99").stdout == ""
    assert (
        pylog("consume", typed_topic, "--from", "0", "--to", "78", *where, "-g", "g-where", "-f", r"%o\n").stdout
        == "77\n"
    )
    (lag,) = json.loads(pylog("group", "describe", "g-where", "-o", "json").stdout)["partitions"]
    assert (lag["committed"], lag["lag"]) == (78, 2)
    refused = pylog("consume", typed_topic, *ALL, "--where", "delayed > 1", status=1)
    assert "[INVALID_PREDICATE] where: no column 'delayed'" in refused.stderr


def test_formats_of_results_show_the_same_records(pylog: Pylog, typed_topic: str, topic: str) -> None:
    """The formats are -o table|wide|json|jsonl|yaml|name."""
    pylog("produce", typed_topic, stdin='{"carrier": "UA", "delay": 2}\n')
    (row,) = json.loads(pylog("consume", typed_topic, *ALL, "-o", "json").stdout)
    assert (row["topic"], row["partition"], row["offset"]) == (typed_topic, 0, 0)
    assert row["row"] == {"carrier": "UA", "delay": 2}
    assert json.loads(pylog("consume", typed_topic, *ALL, "-o", "jsonl").stdout) == row
    table = pylog("consume", typed_topic, *ALL, "-o", "table").stdout.splitlines()
    assert [line.split() for line in table] == [["PARTITION", "OFFSET", "CARRIER", "DELAY"], ["0", "0", "UA", "2"]]
    pylog("produce", f"{topic}:1", stdin=b"\xff\n")
    (record,) = json.loads(pylog("consume", topic, *ALL, "-o", "json").stdout)
    assert (record["key"], record["value"]) == (None, {"base64": "/w=="})
    assert pylog("consume", topic, *ALL, "-o", "name").stdout == f"{topic}:1:0\n"


def test_format_with_an_unknown_column_is_a_usage_error(pylog: Pylog, typed_topic: str, topic: str) -> None:
    """The exit status is 2: it would show nothing at all."""
    refused = pylog("consume", typed_topic, *ALL, "-f", r"%{dely}\n", status=2)
    assert refused.stderr == "[INVALID_OPTION] -f %{dely}: there is no such column; did you mean 'delay'?\n"
    refused = pylog("consume", typed_topic, *ALL, "--columns", "carrier", "-f", "%{delay}", status=2)
    assert "choose from carrier\n" in refused.stderr
    assert f"{topic} has no columns" in pylog("consume", topic, *ALL, "-f", "%{value}", status=2).stderr
    pylog("produce", typed_topic, stdin='{"carrier": "UA", "delay": 2}\n')
    assert pylog("consume", typed_topic, topic, *ALL, "-f", r"%{delay}\n").stdout == "2\n"


@pytest.mark.parametrize(("argument", "status"), [("version", 0), ("nonsense", 2)])
def test_process_ends_without_crashing_python(argument: str, status: int, tmp_path: Path) -> None:
    """A thread of Arrow that calls into Python during its shutdown aborts the process, whatever its status was; exit
    handlers are still called.
    """
    program = f"""
import atexit, os, sys
class Late:
    def __del__(self): os.write(2, b"taken down")
late = Late()
atexit.register(os.write, 2, b"at exit")
sys.argv = ["pylog", {argument!r}]
from pyspark_log.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=clean_environment(tmp_path),
    )
    assert done.returncode == status
    assert done.stdout or status
    assert done.stderr.endswith("at exit")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("ratio\n1e39\n", "column 'ratio': '1e39' is out of range"),
        ("share\n-1e400\n", "column 'share': '-1e400' is out of range"),
        ("ratio\n1_0\n", "column 'ratio': Failed to parse string: '1_0'"),
    ],
)
def test_lossy_csv_is_refused(pylog: Pylog, pylog_cluster: LocalCluster, topic: str, content: str, said: str) -> None:
    """Arrow reads numbers that are too large as infinity."""
    name = f"{topic}-floats"
    with Admin(pylog_cluster.bootstrap_servers) as admin:
        admin.create_topic(name, schema="carrier string, ratio float, share double")
    refused = pylog("produce", name, "--kind", "csv", stdin=content, status=1)
    assert said in refused.stderr
    assert "bug in pylog" not in refused.stderr
    pylog("produce", name, "--kind", "csv", stdin="ratio,share\ninf,-Infinity\n 0.5 ,1e300\nNaN,\n")
    rows = [json.loads(line) for line in pylog("consume", name, *ALL).stdout.splitlines()]
    assert [(row["ratio"], row["share"]) for row in rows] == [("Infinity", "-Infinity"), (0.5, 1e300), ("NaN", None)]


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_files_are_read_by_column_name(
    pylog: Pylog, pylog_cluster: LocalCluster, typed_topic: str, tmp_path: Path, kind: str
) -> None:
    """`produce --file` takes f.parquet|csv|jsonl."""
    table = pa.table({"delay": pa.array([1, None, -3], pa.int64()), "carrier": ["UA", "AA", "UA"]})
    file = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(table, file)
    elif kind == "csv":
        pyarrow.csv.write_csv(table, file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    assert "3 records" in pylog("produce", typed_topic, "--file", str(file)).stderr
    rows = read(typed_topic, bootstrap_servers=pylog_cluster.bootstrap_servers).read_all()
    assert rows.select(["delay", "carrier"]).to_pylist() == table.to_pylist()


def test_file_is_refused_by_column_name(pylog: Pylog, typed_topic: str, tmp_path: Path) -> None:
    """The error for a row that does not fit names the column, and no row is sent."""
    file = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pa.table({"carrier": ["UA"], "gate": ["A1"]}), file)
    assert "gate" in pylog("produce", typed_topic, "--file", str(file), status=1).stderr
    assert pylog("consume", typed_topic, *ALL).stdout == ""
    assert "there is no such file" in pylog("produce", typed_topic, "--file", "missing.csv", status=2).stderr


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ('{"carrier": "UA"}\nnot json\n', 2),
        ('{"carrier": "UA"}\n{"carrier": "UA"}\n[1]\n', 3),
        ('{"carrier": "UA", "gate": "A1"}\n', 1),
        ('{"carrier": "UA", "delay": "late"}\n', 1),
    ],
)
def test_bad_line_is_named_by_its_number(pylog: Pylog, typed_topic: str, lines: str, number: int) -> None:
    """Bad lines of standard input are reported by number."""
    refused = run_expecting_failure(pylog, "produce", typed_topic, stdin=lines)
    assert f"line {number}: " in refused.stderr
    assert "Traceback" not in refused.stderr


def run_expecting_failure(pylog: Pylog, *arguments: str, stdin: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that must fail or be refused, no matter which."""
    try:
        return pylog(*arguments, stdin=stdin, status=1)
    except AssertionError:
        return pylog(*arguments, stdin=stdin, status=2)


def test_group_continues_at_its_offset(pylog: Pylog, ten_records: str) -> None:
    """W17, W18: with -g the group's offset is kept, and shown records are acknowledged."""
    first = pylog("consume", ten_records, "-g", "cli", "--from", "earliest", "-n", "4")
    second = pylog("consume", ten_records, "-g", "cli", "--to", "end")
    third = pylog("consume", ten_records, "-g", "cli", "--to", "end")
    assert (first.stdout.split(), second.stdout.split(), third.stdout) == (list("0123"), list("456789"), "")


@pytest.mark.parametrize("place", ["-X", "file"])
def test_group_may_be_given_as_a_setting(pylog: Pylog, ten_records: str, tmp_path: Path, place: str) -> None:
    """`group.id` is what `-g` sets, wherever it is given; -g has precedence over the file."""
    group = f"as-setting-{place}"
    (tmp_path / "config.toml").write_text(f'"group.id" = "{group}"\n')
    by_setting = ("-X", f"group.id={group}") if place == "-X" else ()
    environment = {} if place == "-X" else {"PYLOG_CONFIG": str(tmp_path / "config.toml")}
    first = pylog("consume", ten_records, *by_setting, "--from", "earliest", "-n", "4", environment=environment)
    second = pylog("consume", ten_records, "-g", group, "--to", "end")
    assert (first.stdout.split(), second.stdout.split()) == (list("0123"), list("456789"))
    if place == "-X":
        refused = pylog("consume", ten_records, "-g", "other", *by_setting, status=2)
        assert f"-g other and -X group.id={group} name different groups" in refused.stderr
    else:
        other = pylog("consume", ten_records, "-g", "beside-file", *ALL, environment=environment)
        assert other.stdout.split() == list("0123456789")
        assert "beside-file" in pylog("group", "list", "-o", "name").stdout.split()


def test_consumers_of_one_group_share_a_topic(
    pylog: Pylog, topic: str, tmp_path: Path, pylog_cluster: LocalCluster
) -> None:
    """W21, W22: each `pylog consume -g` gets and acknowledges its partitions' records; when one ends, the other has
    all.

    A process interrupted between showing and acknowledging a record would show it again, so the test waits for that.
    """
    servers = pylog_cluster.bootstrap_servers
    arguments = ("consume", topic, "-g", "shared", "--from", "earliest", "-f", r"%p %v\n", "-b", servers)
    with ExitStack() as ending, Admin(servers) as admin:
        shells = [ending.enter_context(started(tmp_path, *arguments)) for _ in range(2)]
        wait_for_shares(admin, [1, 1])
        pylog("produce", f"{topic}:0", stdin="zero\n")
        pylog("produce", f"{topic}:1", stdin="one\n")
        assert sorted(shell.stdout.readline() for shell in shells if shell.stdout) == [b"0 zero\n", b"1 one\n"]
        gone, stays = shells
        wait_until_acknowledged(admin, "shared", 2)
        gone.send_signal(signal.SIGTERM)  # as container managers do
        assert gone.wait(LIMIT_S) == 143
        wait_for_shares(admin, [2])
        pylog("produce", f"{topic}:0", stdin="more\n")
        pylog("produce", f"{topic}:1", stdin="more\n")
        assert stays.stdout is not None
        assert sorted(stays.stdout.readline() for _ in range(2)) == [b"0 more\n", b"1 more\n"]
        wait_until_acknowledged(admin, "shared", 4)
        stays.send_signal(signal.SIGINT)
        assert stays.wait(LIMIT_S) == 130
        assert [offset.lag for offset in admin.list_group_offsets("shared").values()] == [0, 0]


def test_shown_records_are_acknowledged_while_idle(
    pylog: Pylog, topic: str, tmp_path: Path, pylog_cluster: LocalCluster
) -> None:
    """W18, W27: a `pylog consume -g` that has shown everything has no lag while it waits, and a kill repeats
    nothing.
    """
    servers = pylog_cluster.bootstrap_servers
    pylog("produce", topic, stdin="one\ntwo\n")
    arguments = ("consume", topic, "-g", "waiting", "--from", "earliest", "-b", servers)
    with Admin(servers) as admin, started(tmp_path, *arguments) as shell:
        assert shell.stdout is not None
        assert sorted(shell.stdout.readline() for _ in range(2)) == [b"one\n", b"two\n"]
        wait_until_acknowledged(admin, "waiting", 2)


def test_aborted_records_at_the_end_leave_no_lag(pylog: Pylog, topic: str, pylog_cluster: LocalCluster) -> None:
    """W18: the group has read everything that there is for it."""
    servers = pylog_cluster.bootstrap_servers
    with Producer(servers, transactional_id=topic) as producer:
        with producer.transaction():
            producer.send(topic, b"committed", partition=0)
        for partition in (0, 1):
            producer.begin_transaction()
            producer.send(topic, b"aborted", partition=partition).result(LIMIT_S)
            producer.abort_transaction()
    assert pylog("consume", topic, "-g", "aborted", "--from", "earliest", "--to", "end").stdout == "committed\n"
    with Admin(servers) as admin:
        found = admin.list_group_offsets("aborted")
        assert {at.partition: (offset.committed == offset.end, offset.lag) for at, offset in found.items()} == {
            0: (True, 0),
            1: (True, 0),
        }


@contextmanager
def started(
    directory: Path, *arguments: str, stderr: int | None = None, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """`pylog` as a process of its own whose output can be read; killed at the end if it still runs."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=clean_environment(directory, **environment),
    )
    with process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(LIMIT_S)


def wait_until_acknowledged(admin: Admin, group: str, records: int) -> None:
    """Waits until the group has acknowledged that many records of its topic, which begins with offset 0."""
    wait_until(
        lambda: sum(offset.committed for offset in admin.list_group_offsets(group).values()) >= records,
        "what was shown is acknowledged",
        LIMIT_S,
    )


def wait_for_shares(admin: Admin, sizes: list[int]) -> None:
    """Waits until the group's members have that many partitions each."""
    wait_until(
        lambda: [len(member.partitions) for member in admin.describe_group("shared").members] == sizes,
        "each has its share",
        LIMIT_S,
        ignoring=(GroupIdNotFoundError,),
    )


def test_unknown_topics_and_partitions_are_not_found(pylog: Pylog, topic: str) -> None:
    """The exit status is 3, not found."""
    for arguments in (("consume", "nothing-here", *ALL), ("produce", "nothing-here")):
        refused = pylog(*arguments, status=3)
        assert refused.stderr.startswith("[UNKNOWN_TOPIC_OR_PARTITION]")
        assert "nothing-here" in refused.stderr
    assert "partitions 0 to 1" in pylog("consume", f"{topic}:2", *ALL, status=2).stderr


def test_settings_of_the_client_are_accepted(pylog: Pylog, topic: str, pylog_cluster: LocalCluster) -> None:
    """W27: -X is for the command's producer or consumer; unknown settings are refused first."""
    pylog("produce", topic, "-X", "linger.ms=0", "-X", "acks=1", "-X", "client.id=p", stdin="one\n")
    options = ("-g", "tuned", "--from", "earliest", "-n", "1")
    shown = pylog("consume", topic, *options, "-X", "session.timeout.ms=6s", "-X", "group.instance.id=i")
    assert shown.stdout == "one\n"
    wrong = pylog("consume", topic, *options, "-X", "session.timeout=6s", status=2)
    assert "session.timeout.ms" in wrong.stderr
    assert "acks='2'" in pylog("produce", topic, "-X", "acks=2", stdin="two\n", status=2).stderr
    assert "it is a producer setting" in pylog("topic", "list", "-X", "linger.ms=0", status=2).stderr


def test_contradictions_are_usage_errors(pylog: Pylog, topic: str) -> None:
    """The exit status is 2, usage."""
    pylog("consume", topic, "--from", "1", "--from-beginning", status=2)
    pylog("consume", topic, "-f", "%v", "-o", "json", status=2)
    assert "--to end" in pylog("consume", topic, "-o", "table", status=2).stderr
    assert "--from" in pylog("consume", topic, "--from", "soon", status=2).stderr
    pylog("produce", topic, "-f", "%v", status=2)
    assert "no.such" in pylog("produce", topic, "-X", "no.such=1", status=2).stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_consume_ends_at_the_first_signal_while_nobody_reads(
    pylog: Pylog, topic: str, tmp_path: Path, pylog_cluster: LocalCluster, number: int, status: int
) -> None:
    """A write that blocks holds up neither Ctrl-C nor SIGTERM. What was not written is not acknowledged."""
    servers = pylog_cluster.bootstrap_servers
    pylog("produce", f"{topic}:0", stdin="begin\n" + ("y" * 1000 + "\n") * 2000)
    group = f"unread-{number}"
    with started(tmp_path, "consume", topic, "-g", group, "--from", "earliest", "-b", servers) as consumer:
        assert consumer.stdout is not None
        pipe = consumer.stdout.fileno()
        wait_until(lambda: bytes_in(pipe) > 32_000, "the pipe is full, or about to be", LIMIT_S)
        os.kill(consumer.pid, number)
        assert consumer.wait(LIMIT_S) == status
        written = consumer.stdout.read().count(b"\n")
    with Admin(servers) as admin:
        assert sum(offset.committed for offset in admin.list_group_offsets(group).values()) <= written < 2000


def bytes_in(pipe: int) -> int:
    """How many bytes a pipe holds that nobody has read."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.parametrize("source", ["file", "environment"])
def test_output_of_file_or_environment_gives_way_to_options(
    pylog: Pylog, topic: str, tmp_path: Path, pylog_cluster: LocalCluster, source: str
) -> None:
    """Only -o conflicts with --raw and -f. A table would be printed when an endless read ends, so that shows lines."""
    pylog("produce", f"{topic}:0", stdin="one\ntwo\n")
    environment = {"PYLOG_CONFIG": str(tmp_path / "config.toml")} if source == "file" else {"PYLOG_OUTPUT": "json"}
    (tmp_path / "config.toml").write_text('output = "wide"\n')
    assert pylog("consume", topic, *ALL, "--raw", environment=environment).stdout.startswith("pylog-raw-1\n")
    assert pylog("consume", topic, *ALL, "-f", r"%v;\n", environment=environment).stdout == "one;\ntwo;\n"
    assert pylog("consume", topic, *ALL, environment=environment).stdout != "one\ntwo\n"
    arguments = ("consume", topic, "--from", "earliest", "-b", pylog_cluster.bootstrap_servers)
    with started(tmp_path, *arguments, **environment) as consumer:
        assert consumer.stdout is not None
        assert [consumer.stdout.readline() for _ in range(2)] == [b"one\n", b"two\n"]
    refused = pylog("consume", topic, *ALL, "--raw", "-o", "json", environment=environment, status=2)
    assert "use only one of --raw, -f and -o" in refused.stderr
    assert "add --to end or -n" in pylog("consume", topic, "-o", "json", environment=environment, status=2).stderr


def test_consume_ends_quietly_when_its_pipe_is_closed(
    pylog: Pylog, topic: str, tmp_path: Path, pylog_cluster: LocalCluster
) -> None:
    """`pylog consume … | head -1` prints one line and nothing else; its status is that of a broken pipe."""
    pylog("produce", topic, stdin="x" * 100 + "\n" + ("y" * 1000 + "\n") * 2000)
    arguments = ("consume", topic, "--from", "earliest", "-b", pylog_cluster.bootstrap_servers)
    with started(tmp_path, *arguments, stderr=subprocess.PIPE) as consumer:
        assert consumer.stdout is not None
        consumer.stdout.readline()
        consumer.stdout.close()
        assert consumer.stderr is not None
        assert consumer.stderr.read() == b""
        assert consumer.wait(LIMIT_S) == 141


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_consume_waits_for_records_until_interrupted(
    pylog: Pylog, topic: str, tmp_path: Path, pylog_cluster: LocalCluster, number: int, status: int
) -> None:
    """The status is 130 if interrupted and 143 if terminated; without --to it waits for new records."""
    arguments = ("consume", topic, "--from", "earliest", "-b", pylog_cluster.bootstrap_servers)
    with started(tmp_path, *arguments, stderr=subprocess.PIPE, PYTHONUNBUFFERED="1") as consumer:
        pylog("produce", topic, stdin="later\n")
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == b"later\n"
        os.kill(consumer.pid, number)
        _, said = consumer.communicate(timeout=LIMIT_S)
        assert (consumer.returncode, said) == (status, b"")


@pytest.mark.parametrize("where", UNWRITABLE)
@pytest.mark.parametrize(("partition", "status"), [(0, 0), (7, 2)])
def test_messages_that_cannot_be_written_do_not_decide_the_status(
    topic: str, tmp_path: Path, pylog_cluster: LocalCluster, where: str, partition: int, status: int
) -> None:
    """What is in the log is a success, whoever reads that; a failure keeps its own status."""
    if where == FULL_DISK:
        stderr = os.open(FULL_DISK, os.O_WRONLY)
    else:
        unread, stderr = os.pipe()
        os.close(unread)
    try:
        done = subprocess.run(
            [*COMMAND, "produce", f"{topic}:{partition}", "-b", pylog_cluster.bootstrap_servers],
            input=b"one\n", stderr=stderr, env=clean_environment(tmp_path), timeout=LIMIT_S, check=False,
        )  # fmt: skip
    finally:
        os.close(stderr)
    assert done.returncode == status


def test_timeout_of_an_idle_read_says_what_was_not_reached(pylog: Pylog, topic: str) -> None:
    """The status is 0, so only the message distinguishes it from a read that is complete."""
    pylog("produce", topic, stdin="one\n")
    ended = pylog("consume", topic, "--from", "earliest", "-n", "2", "--timeout", "3")
    assert (ended.stdout, ended.stderr) == ("one\n", "No record came for 3 s (--timeout), before -n was reached.\n")


def test_interrupted_produce_says_what_is_in_the_log_also_when_quiet(
    topic: str, tmp_path: Path, pylog_cluster: LocalCluster
) -> None:
    """Without that, nobody could continue where it ended; -q leaves out messages about success."""
    servers = pylog_cluster.bootstrap_servers
    command = [*COMMAND, "produce", f"{topic}:0", "-q", "-b", servers]
    with (
        Admin(servers) as admin,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment(tmp_path)
        ) as producer,
    ):
        try:
            assert producer.stdin is not None
            producer.stdin.write(b"one\n")
            producer.stdin.flush()
            wait_until(lambda: admin.describe_topic(topic).partitions[0].end == 1, "it is in the log", LIMIT_S)
            producer.send_signal(signal.SIGINT)
            _, said = producer.communicate(timeout=LIMIT_S)
        finally:
            producer.kill()
    assert producer.returncode == 130
    assert said == b"The first record of the input is in the log. To send the rest: --skip 1\n"


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_time_that_no_reader_accepts_is_refused_and_not_stored(
    pylog: Pylog, topic: str, tmp_path: Path, kind: str
) -> None:
    """W9: what is acknowledged can be read. 24:00:00 is no time of a day."""
    name = f"{topic}-times"
    pylog("topic", "create", name, "--schema", "t time")
    file = tmp_path / f"times.{kind}"
    if kind == "parquet":
        times = pa.array([0, 86_400 * 10**9]).view(pa.time64("ns"))
        pa.parquet.write_table(pa.table({"t": times}), file)
    else:
        file.write_text('{"t":"24:00:00"}\n' if kind == "jsonl" else "t\n24:00:00\n")
    refused = pylog("produce", name, "--file", str(file), status=1 if kind != "jsonl" else 2)
    assert "24:00:00" in refused.stderr
    assert "No record was written" in refused.stderr
    assert pylog("consume", name, *ALL, "-o", "jsonl").stdout == ""


@pytest.mark.parametrize(
    ("content", "values"),
    [
        ("delay\n1\n\n2\n", [1, None, 2]),
        ("delay\r\n1\r\n\r\n", [1, None]),
        ('\n\n"delay"\n\n2', [None, 2]),
        ("delay\n", []),
        ("\n\n", []),
        ("delay,carrier\n1,a\n\n2,b\n", [1, 2]),
    ],
)
def test_empty_line_of_csv_is_null_where_there_is_one_column(
    pylog: Pylog, pylog_cluster: LocalCluster, typed_topic: str, content: str, values: list[int | None]
) -> None:
    """A value that is null is nothing at all there; with several columns there would be commas."""
    said = pylog("produce", typed_topic, "--kind", "csv", stdin=content).stderr
    assert f"Wrote {len(values)} record" in said
    rows = read(typed_topic, bootstrap_servers=pylog_cluster.bootstrap_servers).read_all()
    assert rows.column("delay").to_pylist() == values


def test_csv_error_names_record_and_column(pylog: Pylog, pylog_cluster: LocalCluster, topic: str) -> None:
    """Records count as `--skip` counts them, and columns have names."""
    name = f"{topic}-csv"
    with Admin(pylog_cluster.bootstrap_servers) as admin:
        admin.create_topic(name, schema="carrier string, delay int32, s struct<a:int>")
    for content, said in (
        ("carrier,delay\nUA,1\nAA,soon\n", "record 2: column 'delay': int32: invalid value 'soon'"),
        ("carrier,delay\nUA,1\n\nAA\n", "record 2: Expected 2 columns, got 1: AA"),
        (
            'carrier,s\nUA,"{""a"":1}"\nAA,"{""zz"":1}"\n',
            "record 2: column 's': '{\"zz\":1}': there is no field 's.zz'",
        ),
    ):
        refused = pylog("produce", name, "--kind", "csv", stdin=content, status=1)
        assert said in refused.stderr
        assert refused.stderr.count("[SCHEMA_MISMATCH]") == 1
        assert "?." not in refused.stderr


def test_skip_beyond_the_input_says_how_much_there_is(pylog: Pylog, topic: str) -> None:
    """Nothing is written, which may be a mistake."""
    said = pylog("produce", topic, "--skip", "99", stdin="1\n2\n3\n4\n").stderr
    assert "Wrote 0 records" in said
    assert "The input has only 4 records, fewer than --skip 99 names." in said
    assert "only" not in pylog("produce", topic, "--skip", "4", stdin="1\n2\n3\n4\n").stderr


def test_question_of_an_error_is_not_followed_by_a_full_stop(pylog: Pylog, typed_topic: str) -> None:
    """The report of what is in the log is a sentence of its own."""
    refused = pylog("produce", typed_topic, stdin='{"carier":"UA"}\n', status=1)
    assert "did you mean 'carrier'? No record was written" in refused.stderr
