"""Bytes and records that are not what they were, and defects of ours."""

from __future__ import annotations

from broker_runtime.contract.errors.base import PylogError


class CorruptRecordError(PylogError):
    """A frame, file or message failed its checks."""

    code = "CORRUPT_MESSAGE"


class DataLossError(PylogError):
    """Records that a reader still needed are gone (retention, deletion, a topic made anew)."""

    code = "DATA_LOSS"


class UnknownServerError(PylogError):
    """A defect of the broker. Its log has the traceback; the wire never has."""

    code = "UNKNOWN_SERVER_ERROR"
