"""How much memory a broker takes (``memory.max.bytes``), and the part of it that Arrow may have.

    half     Arrow's: an arena of fixed size, created when pyarrow is imported, beyond which its allocations fail
    the rest the process itself, messages that gRPC receives (`server.memory_watch`), buffers of frames and answers

Why an arena: Arrow decompresses what a client sends before anything can check it, so a few kilobytes may ask for
gigabytes. A limit of the process (RLIMIT_AS, RLIMIT_DATA) would end it by a signal where gRPC allocates.

Rule: imports nothing that imports pyarrow. The arena has an address range of its own, of which only the used part takes
memory.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Final

from broker_runtime.contract.errors import InvalidConfigError
from broker_runtime.contract.events import event
from broker_runtime.contract.settings import BrokerSettings
from broker_runtime.contract.settings.kinds import Kind, show

PRODUCE_BUDGET_BYTES: Final = 128 << 20
"""For the frames of all produce streams, from their arrival to the end of their append."""
ANSWER_BUDGET_BYTES: Final = 96 << 20
"""For the answers of all fetches and reads at one time; an answer larger than this goes alone."""

_MIB: Final = 1 << 20
_PROCESS_BYTES: Final = 160 * _MIB  # Python, its libraries, the threads of an idle broker
_RECEIVED_BYTES: Final = 256 * _MIB  # messages that arrive between two checks of the watch
_SMALLEST_DEFAULT_BYTES: Final = 1 << 30
_LARGEST_DEFAULT_BYTES: Final = 4 << 30
_CGROUP_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

_logger = logging.getLogger(__name__)


def least_bytes(settings: BrokerSettings) -> int:
    """The least that the broker needs with these settings."""
    answers = max(ANSWER_BUDGET_BYTES, settings.fetch_max_bytes)
    work = PRODUCE_BUDGET_BYTES + answers + settings.replica_fetch_max_bytes
    return 2 * max(_PROCESS_BYTES + _RECEIVED_BYTES, work)


def limit_bytes(settings: BrokerSettings, machine_bytes: int | None = None) -> int:
    """``memory.max.bytes``: as given, or a quarter of the machine's memory (``machine_bytes``; None: ask the system),
    within bounds. Raises `InvalidConfigError` if it is given and below `least_bytes`."""
    least = least_bytes(settings)
    given = settings.memory_max_bytes
    if given is None:
        quarter = (_machine_bytes() if machine_bytes is None else machine_bytes) // 4
        return max(least, min(max(quarter, _SMALLEST_DEFAULT_BYTES), _LARGEST_DEFAULT_BYTES))
    if given < least:
        raise InvalidConfigError(
            f"memory.max.bytes={_size(given)} is too little: with fetch.max.bytes={_size(settings.fetch_max_bytes)} "
            f"and replica.fetch.max.bytes={_size(settings.replica_fetch_max_bytes)} a broker needs {_size(least)}"
        )
    return given


def arrow_environment(limit: int) -> dict[str, str]:
    """The environment in which a process must import pyarrow, for Arrow to have half of ``limit`` bytes, for gRPC not
    to write lines about each call that it refuses, and for numpy, which pyarrow imports, to start no threads for linear
    algebra: they wait actively, for a tenth of a second of a processor."""
    return {
        "OPENBLAS_NUM_THREADS": "1",
        "GRPC_VERBOSITY": os.environ.get("GRPC_VERBOSITY", "NONE"),
        "ARROW_DEFAULT_MEMORY_POOL": "mimalloc",
        "MIMALLOC_RESERVE_OS_MEMORY": f"{limit // 2 >> 10}KiB",
        "MIMALLOC_DISALLOW_OS_ALLOC": "1",
    }


def bound_arrow(limit: int) -> bool:
    """Gives Arrow half of ``limit`` bytes and no more. False, and a warning is logged: pyarrow is imported already."""
    os.environ.update(arrow_environment(limit))
    if "pyarrow" in sys.modules:
        event(_logger, "bound arrow's memory", level=logging.WARNING, error="pyarrow was imported before")
        return False
    return True


def _size(size_bytes: int) -> str:
    return show(Kind.SIZE, size_bytes)


def _machine_bytes() -> int:
    """The machine's memory, or the container's limit where that is lower."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            found.append(int(text))
    return min(found)
