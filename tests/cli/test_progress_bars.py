"""Progress bars appear on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path
from typing import IO

import pytest
from pylog_command import COMMAND, LIMIT_S, Pylog, clean_environment

from pyspark_log.testing import LocalCluster

ROWS = 20_000


def on_terminal(home: Path, *arguments: str, stdout: IO[bytes] | int = subprocess.DEVNULL) -> str:
    """What a command shows on a terminal that is its standard error."""
    ours, theirs = pty.openpty()
    environment = clean_environment(home, TERM="xterm", COLUMNS="120")
    with os.fdopen(ours, "rb", buffering=0) as screen:
        process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=stdout, stderr=theirs, env=environment
        )
        os.close(theirs)
        shown = b""
        try:
            while part := screen.read(1 << 16):
                shown += part
        except OSError:
            pass  # Linux says EIO where the other end is closed
        assert process.wait(LIMIT_S) == 0, shown
    return shown.decode(errors="replace")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file with rows for a topic without a schema."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"value": "{number}"}}\n' for number in range(ROWS)))
    return file


def test_produce_and_consume_show_progress(
    pylog: Pylog, pylog_cluster: LocalCluster, topic: str, rows: Path, tmp_path: Path
) -> None:
    """Files have a bar; the records themselves go where they were sent."""
    servers = ("-b", pylog_cluster.bootstrap_servers)
    shown = on_terminal(tmp_path, "produce", topic, "--file", str(rows), *servers)
    assert "Reading rows.jsonl" in shown
    assert f"Wrote {ROWS:,} records to topic {topic}." in shown
    everything = ("consume", topic, "--from", "earliest", "--to", "end", *servers)
    copy = tmp_path / "copy.txt"
    with copy.open("wb") as file:
        shown = on_terminal(tmp_path, *everything, stdout=file)
    assert "Reading" in shown
    assert "records" in shown
    assert sorted(map(int, copy.read_text().split())) == list(range(ROWS))
    assert "Reading" not in on_terminal(tmp_path, *everything), "a device is no file, nor is a pipe"
    assert on_terminal(tmp_path, "produce", topic, "--file", str(rows), "-q", *servers) == ""


def test_pipe_has_no_bar(pylog: Pylog, topic: str, rows: Path) -> None:
    """A program gets the same output as ever."""
    forced = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}
    done = pylog("produce", topic, "--file", str(rows), environment=forced)
    assert (done.stdout, done.stderr) == ("", f"Wrote {ROWS:,} records to topic {topic}.\n")


def test_verify_shows_progress(
    pylog: Pylog, pylog_cluster: LocalCluster, topic: str, rows: Path, tmp_path: Path
) -> None:
    """It shows the current partition and the bytes read."""
    pylog("produce", topic, "--file", str(rows))
    partition = pylog_cluster.log_dirs(1)[0] / f"{topic}-0"
    shown = on_terminal(tmp_path, "log", "verify", str(partition))
    assert f"Verifying {partition.name}" in shown
    assert "no damage found." in shown
    assert "Verifying" not in on_terminal(tmp_path, "log", "verify", str(partition), "-o", "json")
