"""How far a streaming query is behind, from the progress that Spark reports.

Kafka's source reports three figures as its metrics: the fewest, the most and the mean of the records that its
partitions have beyond the query's last micro-batch. Spark drops the metrics of a source in Python, but keeps the
offsets they are made of: where the micro-batch ended, and where the log ended as the source last saw it.

Rule: pure; asks no broker, and imports no pyspark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker_runtime.contract.errors import InvalidRequestError, OptionError
from pyspark_log.spark.offsets import SourceOffset, offset_from_json

_PYTHON_SOURCE = ".PythonMicroBatchStream"  # in the description of every source in Python


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsBehind:
    """Of one source: how many records its partitions have that the query has not read; the fewest, the most and the
    mean over its partitions. ``topics``: what it reads, sorted (Spark's own description of it says nothing).
    ``partitions``: how many there are."""

    topics: tuple[str, ...]
    partitions: int
    min: int
    max: int
    avg: float

    def as_metrics(self) -> dict[str, str]:
        """The same as ``metrics`` of Kafka's source has it, names and texts alike."""
        return {
            "minOffsetsBehindLatest": str(self.min),
            "maxOffsetsBehindLatest": str(self.max),
            "avgOffsetsBehindLatest": str(self.avg),
        }


def offsets_behind(progress: Any) -> list[OffsetsBehind]:
    """One entry per pylog source of the query, in the progress's order; sources that have not read yet are left out.

    ``progress``: a `StreamingQueryProgress` (``query.lastProgress``, or a listener's ``event.progress``), its
    ``json``, or that as a mapping. A partition that is newer than the last micro-batch counts from offset 0 on. Raises
    `InvalidRequestError` for anything else; for None, too: a query that has just begun has no progress.
    """
    found = []
    for source in _sources(progress):
        description, *offsets = _fields(source)
        end, latest = map(_offset, offsets)
        if _PYTHON_SOURCE not in description or end is None or not latest:
            continue
        behind = [max(0, last - end.get(at, 0)) for at, last in latest.items()]
        found.append(
            OffsetsBehind(
                topics=tuple(sorted({at.topic for at in latest})),
                partitions=len(behind),
                min=min(behind),
                max=max(behind),
                avg=sum(behind) / len(behind),
            )
        )
    return found


def _sources(progress: Any) -> list[Any]:
    if isinstance(progress, str | bytes):
        try:
            progress = json.loads(progress)
        except ValueError:
            raise InvalidRequestError("the progress is text, but no JSON") from None
    sources = progress.get("sources") if isinstance(progress, Mapping) else getattr(progress, "sources", None)
    if not isinstance(sources, list | tuple):
        raise InvalidRequestError(
            f"a StreamingQueryProgress, its JSON or that as a mapping is needed, not {type(progress).__name__}: "
            "give query.lastProgress once it is not None"
        )
    return list(sources)


def _fields(source: Any) -> tuple[str, Any, Any]:
    names = ("description", "endOffset", "latestOffset")
    if isinstance(source, Mapping):
        description, end, latest = (source.get(name) for name in names)
    else:
        description, end, latest = (getattr(source, name, None) for name in names)
    return str(description or ""), end, latest


def _offset(given: Any) -> SourceOffset | None:
    """A source's offset, as JSON's text or tree; None where there is none, or it is not pylog's."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return None
    if not isinstance(given, Mapping):
        return None
    try:
        return offset_from_json(dict(given))
    except OptionError:
        return None
