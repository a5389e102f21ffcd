"""Named points in the life of a micro-batch in the sink, at which Spark is killed: in the processes that Spark starts.

    test    arms an `Order` for a point ─▶ a file in the driver's directory
    sink    reaches the point ─▶ takes the file, kills the driver's Python and its JVM, and (mostly) its own process

The product knows nothing of it: `in_spark/sitecustomize.py` is imported by every Python process of a driver that has
`DIRECTORY` in its environment, and wraps the sink's functions by name when `pyspark_log.spark.sink` is imported. Rule:
an order is carried out once, by whichever process reaches the point first, and leaves a file that says so.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

DIRECTORY: Final = "PYLOG_CHAOS_DRIVER"
"""The variable that names a driver's directory: orders, the driver's process numbers, and what its workers did."""

BEFORE_BEGIN: Final = "before begin"
AFTER_BEGIN: Final = "after begin"
FRAME_SENT: Final = "after the first frame is sent"
ALL_ACKNOWLEDGED: Final = "when all is acknowledged"
BEFORE_DECISION: Final = "before the decision"
DECISION_SENT: Final = "after the decision is sent, its answer unread"
DECIDED: Final = "after the decision, Spark not told"
RECORDING: Final = "after the decision, while Spark records it"
IN_ABORT: Final = "in abort, before asking"
AFTER_ABORT: Final = "after abort"
OF_TASKS: Final = (BEFORE_BEGIN, AFTER_BEGIN, FRAME_SENT, ALL_ACKNOWLEDGED)
OF_COMMITS: Final = (BEFORE_DECISION, DECISION_SENT, DECIDED, RECORDING)
OF_ABORTS: Final = (IN_ABORT, AFTER_ABORT)
POINTS: Final = (*OF_TASKS, *OF_COMMITS, *OF_ABORTS)

_SINK: Final = "pyspark_log.spark.sink"
_PIDS: Final = "pids"
_EVENTS: Final = "events"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What happens the ``nth`` time that any process of the driver reaches the point.

    ``die``: the driver is killed, and this process, unless it ``lives_on``: then it goes on without a driver until it
    notices. ``exit``: this process alone is killed. ``stall``: it waits for ``delay_s``.
    """

    point: str
    action: Literal["die", "exit", "stall"]
    nth: int = 1
    lives_on: bool = False
    delay_s: float = 0.0


# --- the test's side ------------------------------------------------------------------------------------------------


def arm(directory: Path, order: Order) -> None:
    """From now on the order holds for the driver of this directory. One per point."""
    waiting = directory / f"{_slug(order.point)}.new"
    waiting.write_text(json.dumps(asdict(order)))
    waiting.rename(_armed(directory, order.point))


def was_carried_out(directory: Path, point: str) -> bool:
    """Whether the order for this point was."""
    return _done(directory, point).exists()


def events(directory: Path) -> list[tuple[str, int]]:
    """What the sink did in the driver's processes, as (what, rows); a line that was cut by a kill is left out."""
    try:
        lines = (directory / _EVENTS).read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    found = [line.rpartition(" ") for line in lines]
    return [(what, int(rows)) for what, _, rows in found]


def pids(directory: Path) -> list[int]:
    """The JVM of the driver and its Python, in this order; none before `tell_pids`."""
    try:
        return [int(pid) for pid in (directory / _PIDS).read_text().split()]
    except FileNotFoundError:
        return []


# --- in Spark's processes -------------------------------------------------------------------------------------------


def tell_pids(found: Sequence[int]) -> None:
    """For the driver: whom to kill."""
    directory = Path(os.environ[DIRECTORY])
    (directory / f"{_PIDS}.new").write_text(" ".join(map(str, found)))
    (directory / f"{_PIDS}.new").rename(directory / _PIDS)


def install() -> None:
    """Wraps the sink as soon as it is imported, if this is a process of a driver that may be ordered to die."""
    if DIRECTORY in os.environ:
        sys.meta_path.insert(0, _Wrapping(Path(os.environ[DIRECTORY])))


def reached(directory: Path, point: str) -> None:
    """This process is at the point: carries out what was ordered for it."""
    armed = _armed(directory, point)
    try:
        order = Order(**json.loads(armed.read_text()))
    except FileNotFoundError:
        return
    if _count(directory / f"{_slug(point)}.count") < order.nth:
        return
    try:
        armed.rename(_done(directory, point))
    except FileNotFoundError:
        return  # another process was faster
    _carry_out(directory, order)


def _carry_out(directory: Path, order: Order) -> None:
    if order.action == "stall":
        time.sleep(order.delay_s)
        return
    if order.action == "die":
        whom = pids(directory)
        if order.delay_s:  # by somebody else, while this process goes on
            command = f"sleep {order.delay_s:.3f}; kill -9 {' '.join(map(str, whom))}"
            subprocess.Popen(["/bin/sh", "-c", command], start_new_session=True)
            return
        for pid in whom:
            os.kill(pid, signal.SIGKILL)
    if order.action == "exit" or not order.lives_on:
        os.kill(os.getpid(), signal.SIGKILL)


def _note(directory: Path, what: str, rows: int) -> None:
    with (directory / _EVENTS).open("ab", buffering=0) as file:
        file.write(f"{what} {rows}\n".encode())


def _count(path: Path) -> int:
    """How often this has been called with the path, by all processes together."""
    with path.open("ab", buffering=0) as file:
        file.write(b".")
        return file.tell()


def _slug(point: str) -> str:
    return point.replace(" ", "-").replace(",", "")


def _armed(directory: Path, point: str) -> Path:
    return directory / f"{_slug(point)}.armed"


def _done(directory: Path, point: str) -> Path:
    return directory / f"{_slug(point)}.done"


class _Wrapping(MetaPathFinder):
    """Finds the sink as everybody else does, and wraps it once it is executed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _SINK:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            raise ImportError(f"no {name}, which is to be wrapped")
        _wrap_after_execution(spec.loader, self._directory)
        return spec


def _wrap_after_execution(loader: Loader, directory: Path) -> None:
    execute = loader.exec_module

    def execute_and_wrap(module: ModuleType) -> None:
        execute(module)
        wrap(module, directory)

    loader.exec_module = execute_and_wrap  # type: ignore[method-assign]


def wrap(sink: Any, directory: Path) -> None:
    """Wraps the functions of the module `pyspark_log.spark.sink`, and what it calls, by their names."""
    from broker_runtime.contract.link import Link
    from pyspark_log.client.producer.produce_stream import ProduceStream

    def around(owner: Any, name: str, *, before: str | None = None, after: str | None = None) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                reached(directory, before)
            result = original(*args, **kwargs)
            if after is not None:
                reached(directory, after)
            return result

        setattr(owner, name, wrapped)

    around(sink.AttemptProducer, "begin", before=BEFORE_BEGIN, after=AFTER_BEGIN)
    around(ProduceStream, "write", after=FRAME_SENT)
    around(sink.AttemptProducer, "finish", after=ALL_ACKNOWLEDGED)
    around(sink, "decide", before=BEFORE_DECISION)
    Link.act = _with_lost_answer(directory, Link.act)  # type: ignore[method-assign]
    around(sink.PylogStreamWriter, "commit", after=DECIDED)
    around(sink.PylogStreamWriter, "commit", after=RECORDING)
    around(sink, "abort", before=IN_ABORT, after=AFTER_ABORT)
    sink.write_attempt = _noting_attempts(directory, sink.write_attempt)
    sink.decide = _noting_decisions(directory, sink.decide)


def _with_lost_answer(directory: Path, act: Callable[..., Any]) -> Callable[..., Any]:
    """A decision is on its way, and what was ordered for this point happens before its answer is used."""

    @functools.wraps(act)
    def wrapped(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if name != "end_transaction" or not _armed(directory, DECISION_SENT).exists():
            return act(self, name, *args, **kwargs)
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(act(self, name, *args, **kwargs)))
        thread.start()
        time.sleep(random.uniform(0.0, 0.05))
        reached(directory, DECISION_SENT)
        thread.join(60.0)
        if not answers:
            return act(self, name, *args, **kwargs)  # it failed: once more, for its error
        return answers[0]

    return wrapped


def _noting_attempts(directory: Path, write_attempt: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(write_attempt)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            _note(directory, "attempted again", 0)
        written = write_attempt(*args, **kwargs)
        if written.result is not None:
            _note(directory, "prepared" if written.result.producer_id >= 0 else "counted", written.rows)
        return written

    return wrapped


def _noting_decisions(directory: Path, decide: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(decide)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        decided = decide(*args, **kwargs)
        _note(directory, "replayed" if decided.is_replay else "decided", kwargs["rows"])
        return decided

    return wrapped
