"""A log that begins anew, empty, at an offset that may lie anywhere: first the intention, then the deed.

``restart-offset`` (a checkpoint file with one number) in the log's directory is the intention.

Rule: it is durable before a file goes, and goes itself only when all else is durable. Found by a load, it is carried
out. So a crash leaves the old log or the new one, and nothing in between.
"""

from __future__ import annotations

from pathlib import Path

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.log.checkpoint import encode_entries, read_entries
from broker_runtime.log.files import FileSystem, replace_file
from broker_runtime.log.leader_epochs import EPOCHS_NAME
from broker_runtime.log.open_files import OpenFiles
from broker_runtime.log.partition_files import RESTART_NAME, PartitionFiles
from broker_runtime.log.producer_recovery import remove_snapshots
from broker_runtime.log.segment import SEGMENT_SUFFIXES, Segment


def intend(files: FileSystem, directory: Path, offset: int) -> None:
    """From here on the log is the one that begins at ``offset``. Durable when it returns. Raises `OSError`."""
    replace_file(files, directory / RESTART_NAME, encode_entries([(offset,)]))


def intended(files: FileSystem, directory: Path) -> int | None:
    """The offset of an intention that was not carried out. Raises `CorruptRecordError` where it cannot be read,
    `OSError`."""
    path = directory / RESTART_NAME
    if files.file_size(path) is None:
        return None
    rows = read_entries(files, path, field_count=1)
    if not rows:
        raise CorruptRecordError(f"{path} is damaged: the log was about to begin anew, and where is not known")
    return int(rows[0][0])


def carry_out(open_files: OpenFiles, directory: Path, offset: int, index_interval_bytes: int) -> Segment:
    """Removes everything but the identity, and makes an empty segment at ``offset``. Durable. Raises `OSError`.

    Nothing else is done to the log meanwhile, and nothing of it is held for an fsync; readers keep what they hold.
    """
    files = open_files.files
    found = PartitionFiles.find(files, directory)
    remove_snapshots(files, directory, found.snapshot_offsets)
    names = [f"{base:020d}{suffix}" for base in found.base_offsets for suffix in SEGMENT_SUFFIXES]
    for name in (*names, *found.leftovers, EPOCHS_NAME):
        if files.file_size(directory / name) is not None:
            files.unlink(directory / name)
    open_files.forget_below({directory})
    segment = Segment(open_files, directory, offset, index_interval_bytes=index_interval_bytes, is_closed=False)
    segment.create()
    return segment


def forget(files: FileSystem, directory: Path) -> None:
    """The intention is carried out, and the checkpoints say so. Durable when it returns. Raises `OSError`."""
    files.unlink(directory / RESTART_NAME)
    files.sync_directory(directory)
