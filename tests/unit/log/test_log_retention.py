"""Retention of logs that nobody used since the start: loaded only where there is something to remove."""

from __future__ import annotations

import dataclasses

import pytest

from broker_runtime.contract.errors import LogStorageError
from broker_runtime.log.faulty_files import FaultyFiles
from tests.unit.log.log_samples import SMALL, fill, open_directory, open_log

APPENDED_MS = 1000  # of the first frame; the last comes 0.3 s later


def reopened(config, *, frames=300):
    """An unused log with ``frames`` frames in some segments of 8 KiB, and its files."""
    files = FaultyFiles()
    files.now_ms = APPENDED_MS + frames
    with open_directory(files) as directory:
        fill(open_log(directory), frames, rows=3)
    directory = open_directory(files)
    return files, open_log(directory, config)


@pytest.mark.parametrize(
    ("retention_ms", "retention_bytes", "now_ms", "is_loaded"),
    [
        (-1, -1, 1 << 50, False),
        (10_000, -1, 11_300, False),
        (10_000, -1, 11_301, True),
        (-1, 1 << 30, 1 << 50, False),
        (-1, 20_000, 0, True),
        (10_000, 20_000, 11_300, True),
        (10_000, 1 << 30, 11_301, True),
    ],
)
def test_retention_loads_an_unused_log_only_for_what_it_may_remove(retention_ms, retention_bytes, now_ms, is_loaded):
    """W5, and a closed log costs nothing: its files' sizes and times tell."""
    _, log = reopened(dataclasses.replace(SMALL, retention_ms=retention_ms, retention_bytes=retention_bytes))
    removed = log.apply_retention(now_ms)
    assert log.is_loaded == is_loaded
    assert (removed > 0) == is_loaded


def test_retention_does_not_load_an_empty_log():
    _, log = reopened(dataclasses.replace(SMALL, retention_ms=0, retention_bytes=0), frames=0)
    assert log.apply_retention(1 << 50) == 0
    assert not log.is_loaded


def test_retention_takes_an_unused_log_offline_when_its_files_cannot_be_looked_at():
    files, log = reopened(dataclasses.replace(SMALL, retention_ms=10))

    def refuse(path):
        raise OSError(5, "Input/output error", str(path))

    files.list = refuse
    with pytest.raises(LogStorageError, match="to apply retention failed"):
        log.apply_retention(0)
    assert log.is_offline
