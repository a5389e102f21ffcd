"""One partition on disk: an append-only log of frames in segment files.

    files, faulty_files     the seam to the disk: the real one, and one in memory that fails and loses on demand
    open_files              a bounded cache of open files; readers hold what they read
    checkpoint, identity    small checked files: offsets per partition; who owns a directory
    frame_walk              from header to header through a segment
    offset_index, time_index, transaction_index (on index_file)
    segment                 one file of frames and its indexes
    leader_epochs, producer_state
    partition_log           the log: append, flush, read, truncate, retain
    follower_append         what a follower writes: the leader's bytes, if they continue the log
    restart                 a log that begins anew elsewhere: the intention, then the deed
    group_commit            one fdatasync for all who wait
    log_slice               frames found by a read, still to be loaded
    recovery                what an unclean stop left behind: cut, or damage
    directory               one data directory: lock, identity, checkpoints, its logs
    slice_check, damage     what is read is verified; damage is made sure of and noted
    set_aside               names of logs that were taken out of use
    inspect                 reads a directory's files without opening it: dump and verify
    repair                  gives up what a damaged log cannot show any more, where nobody else has it

Knows frames only by their header, their checks, their stamp and their chunk directory. Knows no network and no
ZooKeeper.
"""

from broker_runtime.log.appending import AppendResult
from broker_runtime.log.config import FlushMode, LogConfig
from broker_runtime.log.directory import LogDirectory
from broker_runtime.log.partition_log import LogExtent, PartitionLog
from broker_runtime.log.reading import LogSlice
from broker_runtime.log.retention import BelievedClock, uptime_ms

__all__ = [
    "AppendResult",
    "BelievedClock",
    "FlushMode",
    "LogConfig",
    "LogDirectory",
    "LogExtent",
    "LogSlice",
    "PartitionLog",
    "uptime_ms",
]
