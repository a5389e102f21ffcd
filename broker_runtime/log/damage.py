"""Damage that is met while a log is in use: made sure of, then noted for good (`LogState.damage`).

Rule: what one read met may be a stale position or a file that was replaced meanwhile. Damage is what the log's present
segment shows when it is read again from its beginning, checksums and all. Reads only; waits for no other use of the log
but to look which segment it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from broker_runtime.contract.errors import CorruptRecordError, PylogError
from broker_runtime.log.log_state import LogState
from broker_runtime.log.salvage import verified_frames

_log = logging.getLogger(__name__)


@contextmanager
def noting_damage(state: LogState, offset: int | None = None) -> Iterator[None]:
    """What is done inside reads the record ``offset`` (None: any): if it meets something corrupt, and the log is at
    fault, that is noted. The error goes on in any case."""
    try:
        yield
    except CorruptRecordError as error:
        note_damage(state, error, offset)
        raise


def note_damage(state: LogState, suspicion: CorruptRecordError, offset: int | None = None) -> None:
    """Looks whether the log is damaged where ``offset`` is (None: in headers, anywhere), and notes it.

    Blocks while a segment is read. Raises nothing: a disk that fails takes the log offline.
    """
    if state.damage is not None:
        return
    try:
        found = _first_bad_segment(state) if offset is None else _damage_at(state, offset)
    except PylogError as error:  # offline, by now
        _log.warning("cannot look for damage log=%s reason=%s error=%s", state.name, suspicion.message, error)
        return
    if found is None:
        _log.warning("no damage found log=%s offset=%s suspicion=%s", state.name, offset, suspicion.message)
    else:
        state.note_damage(found)


def _damage_at(state: LogState, offset: int) -> CorruptRecordError | None:
    try:
        with state.using("look for damage"):
            if not state.log_start_offset <= offset < state.segments.end_offset:
                return None
            segment = state.segments.find(offset)
            size_bytes, held = segment.size_bytes, segment.hold()
    except CorruptRecordError as error:  # its headers do not follow each other
        return error
    found: CorruptRecordError | None = None
    with held:
        try:
            for _ in verified_frames(
                state.files,
                held.descriptor,
                segment.path,
                size_bytes=size_bytes,
                base_offset=segment.base_offset,
                identity=state.identity,
            ):
                pass
        except CorruptRecordError as error:
            found = error
        except OSError as error:
            if not isinstance(error, PylogError):
                state.fail("look for damage", error)
            raise
    with state.lock:
        return found if segment in state.segments else None


def _first_bad_segment(state: LogState) -> CorruptRecordError | None:
    with state.using("look for damage"):
        for base_offset in state.segments.base_offsets:
            try:
                state.segments.find(base_offset)
            except CorruptRecordError as error:
                return error
    return None
