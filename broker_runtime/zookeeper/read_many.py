"""Many znodes in one request: ZooKeeper's multiRead (3.6 and later), which kazoo does not know.

    request     per path a header (getData, false, -1), the path, no watch; last a header (-1, true, -1)
    response    per path a header (getData, false, 0), data and stat, or a header (-1, false, err) and err again;
                last a header (-1, true, -1)

Rule: what kazoo asks of a request and nothing else; its own codecs do the parts. An older ZooKeeper drops the
connection on it, so 3.6 is what a cluster needs. A thousand reads in two requests take a tenth of the time of a
thousand pipelined ones, which cost a wake-up of kazoo's thread each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import kazoo.exceptions as kz
from kazoo.protocol.serialization import GetData, MultiHeader, int_struct, stat_struct

_ERROR: Final = -1


class ReadMany:
    """A request for kazoo's queue. Its response: per path (data, stat), or the exception that answers it."""

    type: ClassVar[int] = 22

    def __init__(self, paths: Sequence[str]) -> None:
        """``paths`` as the server knows them, chroot included."""
        self._paths = tuple(paths)

    def __repr__(self) -> str:
        return f"ReadMany({len(self._paths)} paths from {self._paths[:1]})"

    def serialize(self) -> bytearray:
        """The request's bytes behind its type."""
        data = bytearray()
        for path in self._paths:
            data += MultiHeader(GetData.type, False, -1).serialize()
            data += GetData(path, None).serialize()
        data += MultiHeader(_ERROR, True, -1).serialize()
        return data

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[Any]:
        """What is at ``offset`` of ``data``."""
        found: list[Any] = []
        header, offset = MultiHeader.deserialize(data, offset)
        while not header.done:
            if header.type == _ERROR:
                (code,) = int_struct.unpack_from(data, offset)
                found.append(kz.EXCEPTIONS[code]())
                offset += int_struct.size
            else:
                (length,) = int_struct.unpack_from(data, offset)
                found.append(GetData.deserialize(data, offset))
                offset += int_struct.size + max(length, 0) + stat_struct.size
            header, offset = MultiHeader.deserialize(data, offset)
        return found
