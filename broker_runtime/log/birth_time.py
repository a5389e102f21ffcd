"""When a file was made, which Python does not tell on Linux: `statx(2)`."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path
from typing import Final

_AT_FDCWD: Final = -100
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_BIRTH_AT: Final = 80  # seconds, nanoseconds

_statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None) if sys.platform == "linux" else None


def birth_time_ns(path: Path) -> int:
    """Since 1970; 0 where the system or the file system does not tell, or there is no such file."""
    if _statx is None:
        return 0
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if _statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, found):
        return 0
    (mask,) = struct.unpack_from("=I", found)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BIRTH_AT)
    return int(seconds) * 1_000_000_000 + int(nanoseconds) if mask & _STATX_BTIME else 0
