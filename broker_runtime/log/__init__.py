"""One partition on disk: an append-only log of frames in segment files.

    files, faulty_files     the seam to the disk: the real one, and one in memory that fails and loses on demand
    watched_files           the real one, and how long each call on it takes
    open_files              a bounded cache of open files; readers hold what they read
    checkpoint              a small checked file: offsets per partition
    identity                whose a directory is: log, disk, broker, process
    partition_files         which files a log's directory has
    scan                    from frame to frame through a segment's file, whole or damaged
    indexes                 offset, time and transaction index of a segment
    segment                 one file of frames and its indexes; the segments of one log
    leader_epochs           where each leader's records begin
    producer_state          what is remembered of idempotent producers
    transactions            which transactions are open, how they end, and how far the log is stable
    appending               whether frames may be appended, and how they are stamped
    log_state               a log's inner state under its lock, and what changes it besides appends
    partition_log           the log: append, flush, read, truncate, retain
    frame_heads             what heads of frames say of their columns, kept for reads with a predicate
    reading                 frames found by a read, verified and loaded
    group_commit            one fdatasync for all who wait
    retention               which segments are deleted by age and size, and how far the clock is believed
    recovery                what an unclean stop left behind: cut, or damage
    directory               one data directory: lock, identity, checkpoints, its logs
    inspect                 reads a directory's files without opening it: dump, verify, compare
    transaction_walk        the transactions of a log as its frames tell them, for `inspect`
    repair                  gives up what a damaged log cannot show any more, where nobody else has it

Knows frames only by their header, their checks, their stamp and their chunk directory. Knows no network and no
ZooKeeper.
"""

from broker_runtime.log.appending import AppendResult
from broker_runtime.log.directory import LogDirectory
from broker_runtime.log.partition_log import LogExtent, PartitionLog
from broker_runtime.log.reading import LogSlice
from broker_runtime.log.retention import BelievedClock, uptime_ms
from broker_runtime.log.transactions import OpenTransaction, Outcomes

__all__ = [
    "AppendResult",
    "BelievedClock",
    "LogDirectory",
    "LogExtent",
    "LogSlice",
    "OpenTransaction",
    "Outcomes",
    "PartitionLog",
    "uptime_ms",
]
