"""Whether a data directory has room for more (``log.dir.min.free.bytes``).

Rule: room is looked at now and then, not at each append; with too little, appends are refused before they reach the
log, so that a full disk costs an error and never a log that went offline. Reading goes on.
"""

from __future__ import annotations

import logging

from broker_runtime.contract.errors import LogStorageError
from broker_runtime.contract.settings import find_setting
from broker_runtime.log import LogDirectory, PartitionLog
from broker_runtime.replication import Partition

log = logging.getLogger(__name__)


class DiskRoom:
    """The room of one data directory. `look` by one thread, `require` by any."""

    def __init__(self, directory: LogDirectory, *, min_free_bytes: int) -> None:
        self._directory = directory
        self._min_free_bytes = min_free_bytes
        self._refusal: str | None = None
        self.look()

    def look(self) -> None:
        """Looks at the disk. Raises `OSError`; what was known stays."""
        usable = self._directory.usable_bytes
        had, self._refusal = self._refusal, None
        if usable < self._min_free_bytes:
            least = find_setting("broker", "log.dir.min.free.bytes").show(self._min_free_bytes)
            self._refusal = (
                f"{self._directory.path} has {usable} bytes left, log.dir.min.free.bytes is {least}: "
                "nothing is appended until there is room"
            )
        if (had is None) != (self._refusal is None):
            log.warning(
                "disk room path=%s usable_bytes=%d takes_appends=%s", self._directory.path, usable, had is not None
            )

    @property
    def takes_appends(self) -> bool:
        """Whether there was enough at the last look."""
        return self._refusal is None

    def require(self) -> None:
        """Raises `LogStorageError` if there is too little."""
        if self._refusal is not None:
            raise LogStorageError(self._refusal)


class PartitionWithRoom(Partition):
    """A partition that takes appends only while its disk has room. See `Partition`."""

    def __init__(self, opened: PartitionLog, room: DiskRoom, *, broker_id: int) -> None:
        super().__init__(opened, broker_id=broker_id)
        self._room = room

    def require_room(self) -> None:
        """See `Partition.require_room`: as leader and as follower."""
        self._room.require()
