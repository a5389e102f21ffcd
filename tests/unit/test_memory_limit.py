"""How much memory a broker may use, by settings and by machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from broker_runtime.contract.errors import InvalidConfigError
from broker_runtime.contract.settings import BrokerSettings, resolve
from broker_runtime.memory import arrow_environment, least_bytes, limit_bytes

_GIB = 1 << 30


def settings(**given: str) -> BrokerSettings:
    return resolve(
        "broker", {"broker.id": "1", "log.dirs": "/tmp/unused", **{k.replace("_", "."): v for k, v in given.items()}}
    )


@pytest.mark.parametrize(("machine_gib", "limit_gib"), [(0.5, 1), (2, 1), (8, 2), (16, 4), (512, 4)])
def test_default_is_a_quarter_of_the_machine_within_bounds(machine_gib: float, limit_gib: int) -> None:
    """Small machines leave a broker what it needs, and large ones leave the rest to the page cache."""
    assert limit_bytes(settings(), int(machine_gib * _GIB)) == limit_gib * _GIB


def test_smallest_allowed_limit_is_the_smallest_that_suffices() -> None:
    """A broker starts with the minimum in the reference and the error, whatever the other settings are."""
    with pytest.raises(InvalidConfigError, match=r"memory\.max\.bytes='831MiB': must be 832MiB to 1TiB"):
        settings(memory_max_bytes="831MiB")
    for others in ({}, {"fetch_max_bytes": "1MiB", "replica_fetch_max_bytes": "1"}):
        least = settings(memory_max_bytes="832MiB", **others)
        assert limit_bytes(least) == least_bytes(least) == 832 << 20


def test_limit_below_what_the_settings_need_is_refused_with_the_number() -> None:
    """It is one clear error at the start."""
    message = r"memory\.max\.bytes=1GiB is too little: with fetch\.max\.bytes=1GiB .*bytes=10MiB a broker needs 2324MiB"
    with pytest.raises(InvalidConfigError, match=message):
        limit_bytes(settings(memory_max_bytes="1GiB", fetch_max_bytes="1GiB"))


def test_large_fetches_raise_the_default() -> None:
    """The default always suffices for the other settings."""
    large = settings(fetch_max_bytes="1GiB")
    assert limit_bytes(large, _GIB) == least_bytes(large) > 2 * _GIB


def test_arrow_has_half_of_the_limit_and_fails_beyond() -> None:
    """The arena is Arrow's only memory; freed memory is available again."""
    program = (
        "import os, pyarrow as pa\n"
        "held = []\n"
        "try:\n"
        "    while len(held) < 2_000: held.append(pa.allocate_buffer(1 << 20))\n"
        "except MemoryError: pass\n"
        "most = len(held); held.clear(); pa.allocate_buffer(100 << 20); print(most)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=arrow_environment(_GIB),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert 400 < int(done.stdout) <= 512


def test_numpy_starts_no_threads_in_a_broker() -> None:
    """On two processors and more OpenBLAS starts some when it is loaded, and they wait actively at first."""
    if sys.platform != "linux":
        return
    program = "import os, numpy; print(len(os.listdir('/proc/self/task')))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=arrow_environment(_GIB), capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    assert int(done.stdout) == 1
