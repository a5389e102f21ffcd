"""The unit file in examples/deployment/systemd: what systemd says of it, and that it fits what a broker does."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from broker_runtime.broker import STOP_LIMIT_S
from broker_runtime.broker_process import GRACE_S
from broker_runtime.contract.settings import resolve

UNIT = Path(__file__).parents[2] / "examples" / "deployment" / "systemd" / "pylog-broker.service"
ANALYZE = shutil.which("systemd-analyze")


@pytest.mark.skipif(ANALYZE is None, reason="this machine has no systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """Every directive is known, and its value allowed."""
    installed = tmp_path / UNIT.name
    pylog = Path(sys.executable).parent / "pylog"
    installed.write_text(UNIT.read_text().replace("/opt/pylog/bin/pylog", str(pylog)))
    found = subprocess.run([ANALYZE, "verify", installed], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.skipif(ANALYZE is None, reason="this machine has no systemd-analyze")
def test_wrong_unit_would_be_noticed(tmp_path: Path) -> None:
    """The check above fails where it should."""
    installed = tmp_path / UNIT.name
    installed.write_text(UNIT.read_text().replace("ProtectSystem=strict", "ProtectSystem=rather"))
    found = subprocess.run([ANALYZE, "verify", installed], capture_output=True, text=True, timeout=60, check=False)
    assert "Failed to parse protect system value, ignoring: rather" in found.stderr


def test_unit_gives_a_broker_what_it_needs() -> None:
    """Time to stop in order, descriptors for all connections, and pings that come in time."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert int(service["TimeoutStopSec"].removesuffix("s")) > STOP_LIMIT_S + GRACE_S
    assert int(service["LimitNOFILE"]) > 20_288
    assert int(service["TasksMax"]) > 2 * resolve("broker", {"broker.id": 1, "log.dirs": "/data"}).max_connections
    # Nothing is pinged while it stops.
    assert int(service["WatchdogSec"].removesuffix("s")) > STOP_LIMIT_S + GRACE_S
