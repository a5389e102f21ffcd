"""How log lines are written: one event a line, its verb first, then its fields.

    _logger = logging.getLogger(__name__)                          in every module, under this name

    event(_logger, "open stream", kind="produce", client_id=caller.client_id, address=caller.address)
    event(_logger, "load log", topic=at.topic, partition=at.partition, error=error, level=logging.WARNING)

    2026-11-23 10:00:00,000 INFO broker_runtime.server.streams open stream kind=produce client_id="my app" address=h:1
    2026-11-23 10:00:00,001 WARNING … load log topic=flights partition=3 error="[KAFKA_STORAGE_ERROR] no such device"

The text before the fields is a verb and its object ("open stream", "cut connection"), the same for every event of its
kind, so that it can be searched for: what differs from one event to the next is a field. What was tried and failed has
the words of the attempt and the field ``error``. These fields always have these names:

    topic, partition   a topic's name, a partition's number
    broker             a broker's id
    group              a group's id
    client_id          whose call it was, as the client calls itself (``client.id``)
    address            where a peer's connection comes from, or goes to: ``host:port``
    error              what went wrong: the exception

Other fields are named as in the code, their units last (``waited_s``, ``size_bytes``).

Levels: DEBUG for what one request of a client does; INFO for what begins, ends or changes (streams, roles, in-sync
sets, generations, administrators' changes); WARNING for what was not done and is tried again or given up; ERROR for
what somebody has to look at; CRITICAL where the process ends.

Rule: every line is one line, whatever is in its fields. Values from the network are escaped and cut here and nowhere
else, so nobody who logs needs to know where a value comes from. No payloads and no secrets.
"""

from __future__ import annotations

import json
import logging
import math
import re
from datetime import UTC, datetime
from typing import Final

from broker_runtime.contract.errors import PylogError

MOST_CHARS: Final = 600
"""Of one field, before it is escaped; what is longer is cut."""
_ELLIPSIS: Final = " …"
_MOST_ENTRIES: Final = 100  # of a list in JSON
_WHAT: Final = "pylog_event"  # on a record, for `JsonFormatter`
_FIELDS: Final = "pylog_fields"
_PLAIN: Final = re.compile(r'[^\s"=\\]+')


def event(
    logger: logging.Logger,
    what: str,
    /,
    *,
    level: int = logging.INFO,
    exc_info: BaseException | None = None,
    **fields: object,
) -> None:
    """Logs one line: ``what``, then each field as ``name=value``, in the order given. A field that is None is left out.

    ``exc_info``: an exception whose traceback follows the line, for defects; an error that is known is a field.
    """
    if logger.isEnabledFor(level):
        shown_fields = [f"{name}={shown(value)}" for name, value in fields.items() if value is not None]
        # Without arguments nothing in the line is taken for a format.
        logger.log(
            level,
            " ".join([what, *shown_fields]),
            exc_info=exc_info,
            stacklevel=2,
            extra={_WHAT: what, _FIELDS: fields},
        )


class JsonFormatter(logging.Formatter):
    """A line as one JSON object: ``time`` (UTC), ``level``, ``logger``, ``event``, ``fields``, and ``traceback`` where
    there is one. Only ASCII is in it, so nothing in a field makes two lines of one.

    Numbers, booleans and lists of whole numbers stay what they are. Everything else is text, cut as in `shown`. A line
    that is no event of ours has its message as ``event``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See the class."""
        fields = getattr(record, _FIELDS, {})
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "event": getattr(record, _WHAT, None) or record.getMessage(),
            "fields": {name: _plain_value(value) for name, value in fields.items() if value is not None},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _plain_value(value: object) -> object:
    if isinstance(value, float) and math.isfinite(value):
        return round(value, 3)
    if isinstance(value, bool) or type(value) is int:
        return value
    if isinstance(value, list) and len(value) <= _MOST_ENTRIES and all(type(each) is int for each in value):
        return value
    return _text(value)


def shown(value: object) -> str:
    """The value as it stands in a log line: as it is if it is one printable word, else in double quotes, and escaped as
    in a Python string. At most `MOST_CHARS` of it are shown."""
    if isinstance(value, float):
        return str(round(value, 3))
    text = _text(value)
    if _PLAIN.fullmatch(text) and text.isprintable():
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _text(value: object) -> str:
    if isinstance(value, BaseException) and not isinstance(value, PylogError):
        text = f"{type(value).__name__}: {value}"
    else:
        text = str(value)
    return text if len(text) <= MOST_CHARS else text[: MOST_CHARS - len(_ELLIPSIS)] + _ELLIPSIS


def _escaped(char: str) -> str:
    if char == '"':
        return '\\"'
    return char if char.isprintable() and char != "\\" else char.encode("unicode_escape").decode()
