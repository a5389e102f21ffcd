"""`pylog consume A | pylog produce B` copies any topic, and no failure is a traceback or a silent loss."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pylog_command import COMMAND, LIMIT_S, Pylog, clean_environment

from pyspark_log import Admin, Consumer, Producer, TopicPartition, read
from pyspark_log.testing import LocalCluster

ALL = ("--from", "earliest", "--to", "end")
EVERYTHING = (
    "b boolean, i8 tinyint, i64 bigint, f float, d double, s string, bin binary, dec decimal(38,10), day date, "
    "ts timestamp, ntz timestamp_ntz, t time, dur duration, nothing void, l array<array<int>>, m map<int,binary>, "
    "sm map<string,timestamp>, st struct<a:int,r:struct<x:date,y:array<struct<z:decimal(5,2)>>>>"
)
EXTREMES: dict[str, Any] = {
    "b": True, "i8": -128, "i64": 2**63 - 1, "f": float("-inf"), "d": float("nan"), "s": 'é\n\0"', "bin": b"\xff\n",
    "dec": Decimal("-9999999999999999999999999999.9999999999"), "day": 2**31 - 1, "ts": -(2**63), "ntz": 2**63 - 1,
    "t": 86_399_999_999_999, "dur": -(2**63), "nothing": None, "l": [[1, None], None, []],
    "m": [(1, b"\xfe"), (1, None)], "sm": {"k": dt.datetime(9999, 12, 31, tzinfo=dt.UTC)},
    "st": {"a": None, "r": {"x": dt.date(1, 1, 1), "y": [{"z": Decimal("1.50")}, None]}},
}  # fmt: skip


def columns(cluster: LocalCluster, topic: str) -> pa.Table:
    """All columns of a topic, with the records' metadata except the offsets, which differ between topics."""
    return read(topic, bootstrap_servers=cluster.bootstrap_servers).read_all()


def records(cluster: LocalCluster, topic: str) -> list[tuple[object, ...]]:
    """An untyped topic's records, by partition."""
    with Admin(cluster.bootstrap_servers) as admin:
        ends = {TopicPartition(topic, p.partition): p.high_watermark for p in admin.describe_topic(topic).partitions}
    found: list[tuple[object, ...]] = []
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign(list(ends))
        consumer.seek_to_beginning(*ends)
        while len(found) < sum(ends.values()):
            found += [(r.partition, r.timestamp_ms, r.key, r.value, r.headers) for r in consumer.poll(timeout=5)]
    return sorted(found, key=str)


@pytest.fixture
def untyped(pylog_cluster: LocalCluster, topic: str) -> str:
    """Two partitions with records of every kind."""
    values = [b"text", "é".encode(), b"\xff\x00", b"a\nb\n", b"", None, b"base64:aGk=", b'{"base64":"aGk="}']
    with Producer(pylog_cluster.bootstrap_servers) as producer:
        for number, value in enumerate(values):
            for key in (None, b"", b"\xfe", b"k"):
                headers = [("h", b"\xfd"), ("h", None), ("é", b"")][: number % 4]
                producer.send(topic, value, key, partition=number % 2, headers=headers, timestamp=1_000_000 + number)
    return topic


@pytest.mark.parametrize(
    ("out", "into"), [(["--raw"], ["--raw"]), (["-o", "jsonl"], ["--kind", "jsonl"])], ids=["raw", "jsonl"]
)
def test_untyped_topic_is_copied_whole(
    pylog: Pylog, pylog_cluster: LocalCluster, untyped: str, out: list[str], into: list[str]
) -> None:
    """W27: keys, values, headers, times, nulls and partitions of any bytes."""
    pylog("topic", "create", f"{untyped}-b", "-p", "2")
    stream = pylog("consume", untyped, *ALL, *out).stdout
    assert "32 records" in pylog("produce", f"{untyped}-b", *into, "--keep-partition", stdin=stream).stderr
    assert records(pylog_cluster, f"{untyped}-b") == records(pylog_cluster, untyped)


@pytest.mark.parametrize(
    ("out", "into"),
    [([], []), (["--raw"], ["--raw"]), (["-o", "jsonl"], ["--kind", "jsonl"]), ([], ["--kind", "jsonl"])],
)
def test_typed_topic_is_copied_whole(
    pylog: Pylog,
    pylog_cluster: LocalCluster,
    request: pytest.FixtureRequest,
    out: list[str],
    into: list[str],
) -> None:
    """W27, S7: every type that a topic can have survives, with nulls and values that have no Python object."""
    a = "copy-" + "".join(c if c.isalnum() else "-" for c in request.node.name[-30:])
    for name in (a, f"{a}.b"):
        pylog("topic", "create", name, "--schema", EVERYTHING, "--if-not-exists")
    with Producer(pylog_cluster.bootstrap_servers) as producer:
        producer.send(a, EXTREMES, headers=[("h", b"\xff")], timestamp=1_000_000)
        producer.send(a, {})
    shown = pylog("consume", a, *ALL, *out).stdout
    pylog("produce", f"{a}.b", *into, stdin=shown)
    assert pylog("consume", f"{a}.b", *ALL).stdout == pylog("consume", a, *ALL).stdout
    first, second = columns(pylog_cluster, a).drop_columns("d"), columns(pylog_cluster, f"{a}.b").drop_columns("d")
    assert first.equals(second)
    if out:
        both = [json.loads(pylog("consume", t, *ALL, "-o", "jsonl", "-n", "1").stdout) for t in (a, f"{a}.b")]
        assert both[0]["headers"] == both[1]["headers"] == [["h", {"base64": "/w=="}]]
        assert both[0]["timestamp"] == both[1]["timestamp"] == 1_000_000


@pytest.mark.parametrize("form", ["table", "wide", "json", "jsonl", "yaml", "name"])
def test_every_format_shows_every_type(pylog: Pylog, pylog_cluster: LocalCluster, form: str) -> None:
    """No format prints a traceback, whatever a topic holds."""
    pylog("topic", "create", "all-types", "--schema", EVERYTHING, "--if-not-exists")
    with Producer(pylog_cluster.bootstrap_servers) as producer:
        producer.send("all-types", EXTREMES)
    latin = {"PYTHONIOENCODING": "latin-1"}
    assert pylog("consume", "all-types", *ALL, "-n", "1", "-o", form, environment=latin).stdout
    assert pylog("topic", "describe", "all-types", "-o", form, environment=latin).stdout


def test_values_are_written_unchanged(pylog: Pylog, topic: str) -> None:
    """-f '%v' writes bytes, and adds nothing to them."""
    pylog("produce", f"{topic}:0", stdin=b"\xff\xfe\n")
    assert pylog("consume", topic, *ALL, "-f", "%v").stdout.encode(errors="surrogateescape") == b"\xff\xfe"
    assert pylog("consume", topic, *ALL).stdout.encode(errors="surrogateescape") == b"\xff\xfe\n"


def test_lossy_lines_are_warned_about(pylog: Pylog, untyped: str) -> None:
    """A user who pipes bare values is warned of what they lose."""
    said = pylog("consume", untyped, *ALL).stderr
    assert "Lines and records do not match: 8 values with line breaks or null. Use --raw or -o jsonl.\n" in said
    assert "The lines do not show the keys or headers of 30 records. Use --raw or -o jsonl.\n" in said
    for shown in (["--raw"], ["-o", "jsonl"], ["-f", r"%v\n"]):
        assert pylog("consume", untyped, *ALL, *shown).stderr == ""


def test_first_value_passes_a_pipe_unchanged(pylog: Pylog, pylog_cluster: LocalCluster, tmp_path: Path) -> None:
    """A byte order mark belongs at a file's beginning; a pipe of lines has none."""
    servers = pylog_cluster.bootstrap_servers
    for number, value in enumerate([b"\xef\xbb\xbfa", b"\xff\xfeA\0"]):
        source, copy = f"marked-{number}", f"marked-{number}-copy"
        pylog("topic", "create", source, "--if-not-exists")
        pylog("topic", "create", copy, "--if-not-exists")
        with Producer(servers) as producer:
            producer.send(source, value)
        command = shlex.join(COMMAND)
        script = f"{command} consume {source} -b {servers} --from earliest -n 1 | {command} produce {copy} -b {servers}"
        done = subprocess.run(
            ["sh", "-c", script], env=clean_environment(tmp_path), capture_output=True, timeout=LIMIT_S, check=False
        )
        assert (done.returncode, done.stderr) == (0, f"Wrote 1 record to topic {copy}.\n".encode())
        assert [record[3] for record in records(pylog_cluster, copy)] == [value]


# --- partial failures -----------------------------------------------------------------------------------------------


def test_failing_produce_reports_what_is_in_the_log_and_how_to_continue(
    pylog: Pylog, pylog_cluster: LocalCluster, topic: str
) -> None:
    """The records before a bad line are in the log; with --skip the rest follows, and nothing is duplicated."""
    failed = pylog("produce", topic, "-f", r"%p|%v\n", stdin="0|a\n1|b\nx|c\n0|d\n", status=2)
    assert "line 3" in failed.stderr
    assert "The first 2 records of the input are in the log. To send the rest: --skip 2" in failed.stderr
    pylog("produce", topic, "-f", r"%p|%v\n", "--skip", "2", stdin="0|a\n1|b\n0|c\n0|d\n")
    assert sorted(value for _, _, _, value, _ in records(pylog_cluster, topic)) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_failing_file_continues_with_skip(
    pylog: Pylog, pylog_cluster: LocalCluster, topic: str, tmp_path: Path, kind: str
) -> None:
    """Rows of files have numbers too."""
    values = [f"v{n}" for n in range(100)]
    bad = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pa.parquet.write_table(pa.table({"value": values}), bad)
    elif kind == "csv":
        bad.write_text("value\n" + "".join(f"{v}\n" for v in values))
    else:
        bad.write_text("".join(json.dumps({"value": v}) + "\n\n" for v in values[:60]) + "no JSON\n")
        failed = pylog("produce", topic, "--file", str(bad), status=2)
        assert "line 121" in failed.stderr
        assert "--skip 60" in failed.stderr
        bad.write_text("".join(json.dumps({"value": v}) + "\n" for v in values))
    skip = "60" if kind == "jsonl" else "1-10,50-59"
    skipped = 0 if kind == "jsonl" else 20
    pylog("produce", topic, "--file", str(bad), "--skip", skip)
    assert len(records(pylog_cluster, topic)) == 100 - skipped
    assert len({value for _, _, _, value, _ in records(pylog_cluster, topic)}) == 100 - skipped


def test_produce_with_a_dead_leader_reports_exactly_what_is_in_the_log(run_pylog: Pylog, tmp_path: Path) -> None:
    """With several partitions of which one fails, --skip takes ranges, or a file of them, and the rest follows once."""
    lines = [f"{n:05}" for n in range(300)]
    with LocalCluster(brokers=2) as cluster:
        at = ("-b", cluster.bootstrap_servers)
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("half", replica_assignment=[[1], [2]])
        cluster.kill(2)
        failed = run_pylog("produce", "half", *at, "--timeout", "8s", stdin="\n".join(lines))
        assert failed.returncode != 0
        found = re.search(r"--skip (\S+)", failed.stderr)
        assert found is not None, failed.stderr
        assert "may or may not be in the log" in failed.stderr
        cluster.start(2)
        cluster.wait_until_ready()
        done = run_pylog("produce", "half", *at, "--skip", found[1], stdin="\n".join(lines))
        assert done.returncode == 0, done.stderr
        assert [value.decode() for _, _, _, value, _ in sorted(records(cluster, "half"), key=lambda r: r[3])] == lines


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "stdin"),
    [
        ([], b'{"a": 1, "s": {"zz": 1}}\n'),
        ([], b'{"a": "x"}\n'),
        ([], b'{"a": 1' + b"0" * 5000 + b"}\n"),
        ([], b'{"a": ' + b"[" * 100_000),
        ([], b'{"a": 1, "a": 2}\n'),
        ([], b"\xff\n"),
        ([], b"\0\n"),
        ([], b'{"\\ud800": 1}\n'),
        ([], b'{"ts": "2026-01-01T00:00:00"}\n'),
        (["--raw"], b"hello"),
        (["--raw"], b"pylog-raw-1\n\xff\xff\xff\xff"),
        (["--raw"], b"pylog-raw-1\n\0\0\0\1\0"),
        (["--kind", "jsonl"], b'{"row": 1}\n'),
        (["--kind", "jsonl"], b'{"row": {"a": 1}, "headers": [1]}\n'),
        (["--kind", "csv"], b"a,zz\n1,2\n"),
        (["--kind", "csv"], b"a\n1,2\n"),
        (["--kind", "csv"], b"a\nx\n"),
        (["--kind", "csv"], b"a,a\n1,2\n"),
        (["--kind", "csv"], b"a\n\xff\n"),
        (["--kind", "csv"], b's\n"{""zz"": 1}"\n'),
        (["--kind", "parquet"], b""),
        (["--file", "."], b""),
        (["--file", "bad.parquet"], b""),
        (["--file", "missing.csv"], b""),
        (["--skip", "x"], b""),
    ],
)
def test_bad_input_is_one_line(
    run_pylog: Pylog, pylog_cluster: LocalCluster, tmp_path: Path, options: list[str], stdin: bytes
) -> None:
    """No user sees a traceback, and no part of an invalid record is stored."""
    with Admin(pylog_cluster.bootstrap_servers) as admin:
        if "strict" not in admin.list_topics():
            admin.create_topic("strict", schema="a int, s struct<b:int>, ts timestamp, m map<string,int>")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 is not enough PAR1")
    failed = run_pylog("produce", "strict", *options, "-b", pylog_cluster.bootstrap_servers, stdin=stdin)
    assert failed.returncode in (1, 2)
    assert failed.stderr.startswith("[")
    assert failed.stderr.count("\n") == 1
    assert "UNEXPECTED" not in failed.stderr
    assert columns(pylog_cluster, "strict").num_rows == 0


def test_csv_has_every_type_and_only_the_specified_null(pylog: Pylog, pylog_cluster: LocalCluster) -> None:
    """Nested columns and durations are JSON; NA and a quoted empty value are text unless --null says otherwise."""
    name = "csv-types"
    pylog("topic", "create", name, "--schema", "s string, n int, l array<int>, m map<string,int>, d duration, b binary")
    rows = 's,n,l,m,d,b\nNA,1,"[1,2]","{""k"":1}",PT1.5S,x\n"",,,,,""\n"a\nb",2,,,,\n'
    pylog("produce", name, "--kind", "csv", stdin=rows)
    first, second, third = columns(pylog_cluster, name).to_pylist()
    assert (first["s"], first["l"], first["m"]) == ("NA", [1, 2], [("k", 1)])
    assert first["d"] == dt.timedelta(seconds=1.5)
    assert (second["s"], second["n"], second["l"], second["b"], third["s"]) == ("", None, None, b"", "a\nb")
    pylog("produce", name, "--kind", "csv", "--null", "NA", stdin="s,n\nNA,NA\n")
    assert columns(pylog_cluster, name).to_pylist()[3]["s"] is None


@pytest.mark.parametrize(
    ("kind", "content"), [("jsonl", ""), ("jsonl", "\n\n"), ("csv", ""), ("csv", "a\n"), ("csv", "\n")]
)
def test_empty_file_is_no_records(pylog: Pylog, tmp_path: Path, kind: str, content: str) -> None:
    """0 records, exit 0, for standard input as well."""
    pylog("topic", "create", "empty-files", "--schema", "a int", "--if-not-exists")
    file = tmp_path / f"empty.{kind}"
    file.write_text(content)
    assert "0 records" in pylog("produce", "empty-files", "--file", str(file)).stderr
    assert "0 records" in pylog("produce", "empty-files", "--kind", kind, stdin=content).stderr


def test_empty_parquet_file_is_no_records(pylog: Pylog, tmp_path: Path) -> None:
    """A file without a byte is empty, as for the other kinds; a truncated one is an error."""
    pylog("topic", "create", "empty-files", "--schema", "a int", "--if-not-exists")
    file = tmp_path / "empty.parquet"
    file.touch()
    assert "0 records" in pylog("produce", "empty-files", "--file", str(file)).stderr
    file.write_bytes(b"PAR1")
    assert "SCHEMA_MISMATCH" in pylog("produce", "empty-files", "--file", str(file), status=1).stderr


@pytest.mark.parametrize("content", ["key,value\nk,v\n", '{"key":"k","value":"v"}\n', "v\n"])
def test_text_is_utf8_with_or_without_a_byte_order_mark(pylog: Pylog, topic: str, content: str) -> None:
    """UTF-16, as Windows editors save it, is refused by name; UTF-8's byte order mark is no part of the data."""
    kind = {"k": ["--kind", "csv"], "{": ["--kind", "jsonl"], "v": []}[content[0]]
    refused = pylog("produce", topic, *kind, stdin=content.encode("utf-16"), status=2)
    assert refused.stderr.startswith("[INVALID_OPTION] the input must be UTF-8, but it is UTF-16 (it begins with FF FE")
    assert refused.stderr.endswith("No record was written\n")
    pylog("produce", topic, *kind, stdin=content.encode("utf-8-sig"))
    assert pylog("consume", topic, *ALL).stdout == "v\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('key,value\na,"b\n""c"""\nd,"e\nf,g\n', "line 4: the quote that opens here is not closed. No record"),
        ('key,value\na,b\nc,"' + "d\n" * (1 << 20) + "x\n", "line 3: the quote that opens here is not closed"),
        ('key,value\na,b\nc,"' + "d\n" * (1 << 20) + '"\n', "a row is longer than 1048576 bytes"),
    ],
    ids=["to the end", "beyond what a row may have", "closed too late"],
)
def test_csv_with_an_unclosed_quote_is_refused(pylog: Pylog, content: str, said: str) -> None:
    """Otherwise the rest of the file would be stored as one value; the error names the line of the opening quote."""
    pylog("topic", "create", "quotes", "-c", "max.message.bytes=64KiB", "--if-not-exists")
    refused = pylog("produce", "quotes", "--kind", "csv", stdin=content, status=1)
    assert refused.stderr.startswith(f"[SCHEMA_MISMATCH] standard input: {said}")


def test_line_may_be_as_long_as_the_topics_records(pylog: Pylog) -> None:
    """The limit is max.message.bytes, whether above or below the default."""
    pylog("topic", "create", "large", "-c", "max.message.bytes=40MiB")
    pylog("topic", "create", "small", "-c", "max.message.bytes=64KiB")
    assert "1 record" in pylog("produce", "large", stdin=b"x" * (20 << 20)).stderr
    assert (
        "line 2: is longer than the topic's max.message.bytes allows (65536 bytes)"
        in pylog("produce", "small", stdin=b"x\n" + b"x" * 70_000, status=1).stderr
    )


@pytest.mark.parametrize(
    "environment", [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
@pytest.mark.parametrize("options", [(), ("-o", "jsonl"), ("-o", "yaml"), ("-o", "table"), ("-f", r"%v é\n")])
def test_data_is_utf8_whatever_the_locale(
    pylog_cluster: LocalCluster,
    tmp_path: Path,
    topic: str,
    environment: dict[str, str],
    options: tuple[str, ...],
) -> None:
    """Data on standard output never depends on the locale; this runs the real script, in its own interpreter."""
    with Producer(pylog_cluster.bootstrap_servers) as producer:
        producer.send(topic, "日本".encode())
    arguments = ("consume", topic, *ALL, *options, "-b", pylog_cluster.bootstrap_servers)
    done = alone(tmp_path, *arguments, **environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "日本".encode() in done.stdout


@pytest.mark.parametrize("redirection", [">&-", "> /dev/full", "<&- >&-", ">&- 2>&-"])
@pytest.mark.parametrize("options", ["", "-o jsonl", "-o table", "--raw"])
def test_output_that_cannot_be_written_is_one_line(
    pylog_cluster: LocalCluster, tmp_path: Path, topic: str, redirection: str, options: str
) -> None:
    """A closed standard output or a full disk ends with status 1 and one line, no traceback."""
    with Producer(pylog_cluster.bootstrap_servers) as producer:
        producer.send(topic, b"x")
    command = f"consume {topic} --from earliest --to end {options} -b {pylog_cluster.bootstrap_servers} {redirection}"
    script = " ".join(shlex.quote(part) for part in COMMAND) + " " + command
    done = subprocess.run(
        ["sh", "-c", script], env=clean_environment(tmp_path), capture_output=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1
    if "2>&-" not in redirection:
        assert done.stderr.startswith(b"[IO_ERROR]")
        assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("redirection", [">&-", "> /dev/full"])
@pytest.mark.parametrize("arguments", ["--help", "topic --help", "--version"])
def test_help_that_cannot_be_written_is_one_line(tmp_path: Path, arguments: str, redirection: str) -> None:
    """No command exists to report this: a full disk is no defect of pylog either."""
    script = f"{shlex.join(COMMAND)} {arguments} {redirection}"
    done = subprocess.run(
        ["sh", "-c", script], env=clean_environment(tmp_path), capture_output=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"[IO_ERROR]")
    assert done.stderr.count(b"\n") == 1


def test_closed_input_is_one_line(pylog: Pylog, pylog_cluster: LocalCluster, tmp_path: Path, topic: str) -> None:
    """`pylog produce` has no standard input."""
    script = f"{shlex.join(COMMAND)} produce {topic} -b {pylog_cluster.bootstrap_servers} <&-"
    done = subprocess.run(
        ["sh", "-c", script], env=clean_environment(tmp_path), capture_output=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1
    assert b"[IO_ERROR]" in done.stderr
    assert b"Traceback" not in done.stderr


def alone(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Runs `pylog` in an interpreter of its own."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env=clean_environment(directory, **environment),
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
