"""Wraps functions as their modules are imported, and writes a span for each call into a file of this process.

Files, in the directory of the run::

    spans-PID.bin     spans of 32 bytes: begin ns, end ns, thread, hook, nothing, detail; unused ones are all zero
    threads-PID.txt   "NUMBER NAME" for each thread that has a span
    details-PID.txt   a line per detail; a span's detail is its line's number, from 1 (0: none)

Rule: a span is one copy into mapped memory: no system call, no lock, nothing that is lost when the process is killed.
Only the standard library is imported.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import mmap
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from time import monotonic_ns
from types import ModuleType
from typing import Any

from bench.timeline.hooks import HOOKS

DIRECTORY_VARIABLE = "PYLOG_BENCH_TIMELINE"
SPAN = struct.Struct("<qqIHHq")
MOST_SPANS = 1 << 17
SITE = Path(__file__).absolute().parent / "site"

_pack_into = SPAN.pack_into


class Recorder:
    """The files of this process. They are opened with its first span, and again in a child that was forked."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def record(self, hook: int, begin_ns: int, detail: str | None = None) -> None:
        """A call that has just ended. Any thread. Beyond `MOST_SPANS` nothing is recorded."""
        end_ns = monotonic_ns()
        spans = self._spans
        if spans is None:
            spans = self._open()
        thread = threading.get_native_id()
        if thread not in self._threads:
            self._threads.add(thread)
            self._append("threads", f"{thread} {threading.current_thread().name}\n")
        number = 0
        if detail is not None:
            number = self._details.get(detail, 0) or self._new_detail(detail)
        position = next(self._positions)
        if position < MOST_SPANS:
            _pack_into(spans, position * SPAN.size, begin_ns, end_ns, thread, hook, 0, number)

    def _forget(self) -> None:
        self._spans: mmap.mmap | None = None
        self._positions = itertools.count()
        self._threads: set[int] = set()
        self._details: dict[str, int] = {}
        self._lock = threading.Lock()

    def _open(self) -> mmap.mmap:
        with self._lock:
            if self._spans is None:
                path = self._directory / f"spans-{os.getpid()}.bin"
                with path.open("w+b") as file:
                    file.truncate(MOST_SPANS * SPAN.size)
                    self._spans = mmap.mmap(file.fileno(), 0)
                command = Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ")
                (self._directory / f"command-{os.getpid()}.txt").write_bytes(command)
            return self._spans

    def _new_detail(self, detail: str) -> int:
        with self._lock:
            if detail not in self._details:
                self._append("details", f"{detail}\n")
                self._details[detail] = len(self._details) + 1
            return self._details[detail]

    def _append(self, what: str, line: str) -> None:
        with (self._directory / f"{what}-{os.getpid()}.txt").open("a", encoding="utf-8") as file:
            file.write(line)


def install_from_environment() -> None:
    """Wraps all hooks if `DIRECTORY_VARIABLE` says where spans go. Modules that have been imported keep what they took
    by name from a hook's module; methods are wrapped for everybody."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    finder = _Finder(Recorder(Path(directory)))
    sys.meta_path.insert(0, finder)
    for name in finder.modules & sys.modules.keys():
        finder.wrap(sys.modules[name])


class _Finder(MetaPathFinder):
    """Finds the modules that have hooks, and has them wrapped as soon as they are loaded."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.modules = {hook.where.partition(":")[0] for hook in HOOKS}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.modules:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Wrapping(spec.loader, self)
        return spec

    def wrap(self, module: ModuleType) -> None:
        """Replaces the module's functions that have hooks. Raises `AttributeError` for one that does not exist."""
        for number, hook in enumerate(HOOKS):
            name, _, inside = hook.where.partition(":")
            if name != module.__name__:
                continue
            *owners, last = inside.split(".")
            owner: Any = functools.reduce(getattr, owners, module)
            setattr(owner, last, self._wrapped(vars(owner)[last], number))

    def _wrapped(self, function: Callable[..., Any], number: int) -> Callable[..., Any]:
        record, detail_of = self._recorder.record, HOOKS[number].detail

        def timed(*arguments: Any, **named: Any) -> Any:
            begin_ns = monotonic_ns()
            try:
                return function(*arguments, **named)
            finally:
                record(number, begin_ns, None if detail_of is None else detail_of(arguments))

        def steps(*arguments: Any, **named: Any) -> Iterator[Any]:
            with contextlib.closing(function(*arguments, **named)) as items:
                while True:
                    begin_ns = monotonic_ns()
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                    finally:
                        record(number, begin_ns)
                    yield item
                    del item

        is_generator = inspect.isgeneratorfunction(inspect.unwrap(function)) or number in _GENERATORS
        return functools.wraps(function)(steps if is_generator else timed)


_GENERATORS = {number for number, hook in enumerate(HOOKS) if hook.where.endswith(":read_ranges")}
"""Functions that return a generator and are none themselves."""


class _Wrapping(Loader):
    """A loader that has the module wrapped when it is loaded."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._finder.wrap(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
