"""Situations that the seeds of the transactions' workload are to reach (`tests.simulation.simulator.situations`)."""

from __future__ import annotations

from typing import Final

DECIDED: Final = "an attempt began on a batch that was decided"
REPLAY_SAME: Final = "a replay with the same contents"
REPLAY_DIFFERS: Final = "a replay with other contents was refused"
FIRST_KEPT: Final = "a replay with other contents kept the first ones, as was asked for"
BEHIND: Final = "a checkpoint behind the sink was refused"
FENCED_ATTEMPT: Final = "an attempt of a run that was taken over from failed"
FENCED_AT_PARTITION: Final = "a frame of a run that was taken over from was refused"
FENCED_DECISION: Final = "a decision of a run that was taken over from was refused"
FENCED_PROCESS: Final = "a process was taken over from, and ended"
OUTCOME_UNKNOWN: Final = "a decision was made, and its answer lost"
TWO_ATTEMPTS: Final = "two attempts of one task wrote everything"
ABORTED_READ: Final = "a reader passed records of an aborted transaction"
READER_HELD_BACK: Final = "a reader waited before an open transaction"
END_CUT: Final = "the end of a transaction was written, and cut off again"
LEADER_CHANGED: Final = "a leader changed while a transaction was open"
UNFINISHED_LEFT: Final = "a broker died while partitions did not all know a decision"
ABORTED_LATE: Final = "a transaction was aborted for its age, or by an administrator"
OFFSET_WITH_DECISION: Final = "an offset was committed with a decision"
EMPTY_BATCH: Final = "a batch without rows was decided"
BEGUN_BY_DECISION: Final = "a transaction began by the answer to the decision before"
SITUATIONS: Final = (
    DECIDED, REPLAY_SAME, REPLAY_DIFFERS, FIRST_KEPT, BEHIND, FENCED_ATTEMPT, FENCED_AT_PARTITION, FENCED_DECISION,
    FENCED_PROCESS, OUTCOME_UNKNOWN, TWO_ATTEMPTS, ABORTED_READ, READER_HELD_BACK, END_CUT, LEADER_CHANGED,
    UNFINISHED_LEFT, ABORTED_LATE, OFFSET_WITH_DECISION, BEGUN_BY_DECISION, EMPTY_BATCH,
)  # fmt: skip
