"""Directories that are given to `pylog log`: which are read, and where the logs are if it is another one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker_runtime.contract.errors import OptionError
from pyspark_log.cli.log import _partitions


def test_log_commands_say_where_the_logs_are_when_given_the_directory_of_up(tmp_path: Path) -> None:
    """The directory of `pylog up` contains those of its brokers, and each of them its logs."""
    for broker in (1, 2, 10):
        (tmp_path / f"broker-{broker}" / "log").mkdir(parents=True)
    (tmp_path / "zookeeper-1").mkdir()
    logs = ", ".join(str(tmp_path / f"broker-{broker}" / "log") for broker in (1, 2, 10))
    with pytest.raises(OptionError, match=re.escape(f"{tmp_path}: contains no logs; they are in {logs}") + r"\Z"):
        _partitions(tmp_path)
    one = tmp_path / "broker-1"
    with pytest.raises(OptionError, match=re.escape(f"{one}: contains no logs; they are in {one / 'log'}") + r"\Z"):
        _partitions(one)


def test_log_commands_name_what_they_looked_for_in_another_directory(tmp_path: Path) -> None:
    """A directory that is not pylog's is refused."""
    with pytest.raises(OptionError, match=r"contains neither \.log files nor directories of partitions\Z"):
        _partitions(tmp_path)
