"""Situations that the seeds are to reach: each is counted when it arises, and what never did is told.

A checker sees only what happens. Rule: whatever a promise is about, and no fault brings about for certain, is here.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "situation: "

SITUATIONS = (
    "append while an fsync is under way",
    "change of leader while an fsync is under way",
    "log cut while an acknowledgement is waited for",
    "log cut below the beginning of a leader epoch",
    "epochs part where offsets do not",
    "roll in the middle of an append",
    "in-sync set may be larger than written, and a produce waits",
    "in-sync set may be smaller than written, and a produce waits",
    "produce refused for want of in-sync replicas",
    "produce appended, then too few in sync",
    "in-sync write of unknown outcome",
    "in-sync write in a session that has ended",
    "read of a server that lags",
    "two controllers at once",
    "write of a deposed controller refused",
    "unclean stop of the only one in sync",
    "unclean stop of one in sync with others",
    "failed fsync, then a restart",
    "write that finds the disk full",
    "disk refuses records for want of room",
    "bit flip that frames behind it bear witness of",
    "log refused as damaged",
    "log of the only one in sync damaged, and others had all",
    "leader rules the eligible out",
    "eligible one leads, as nobody in sync is there",
    "disk lost by the only one in sync",
    "all ended, and one never comes back",
    "power lost by all in sync but one, without fsyncs",
    "who kept its power leads, others in sync lost it",
    "acknowledged records lost, rightly",
    "producer begins anew",
    "leader lost during a move",
)

KEYS = tuple(PREFIX + name for name in SITUATIONS)
"""Under what they are counted."""


def key(name: str) -> str:
    """Under which it is counted."""
    assert name in SITUATIONS, name
    return PREFIX + name


def never_happened(counts: Mapping[str, int]) -> list[str]:
    """Those that no seed reached."""
    return [name for name in SITUATIONS if not counts.get(PREFIX + name)]
