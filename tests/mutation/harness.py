"""Judges mutants: each in a copy of the tree, by the fast tests that belong to it, then by seeds of the simulation.

    copy the tree  →  replace one text  →  is the copy what is imported?  →  tests, to the first failure  →  seeds

Rules: a mutant whose text is not there exactly once is undecided, no survivor, and so is one whose tests cannot run or
fail without it; it is reported with the reason, and the others are judged. The copy has no environment of its own: the
interpreter is the caller's, and finds the copy first.
"""

from __future__ import annotations

import enum
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_COPIED = ("broker_runtime", "pyspark_log", "tests", "pyproject.toml", "README.md")
_TESTS_LIMIT_S = 300
_SEEDS_LIMIT_S = 900
_TEST_LIMIT_S = 60  # of one test: a mutant that makes it wait forever is killed by that
_FAILED, _NO_TESTS = 1, 5  # exit statuses of pytest


class MutantError(Exception):
    """A mutant that cannot be judged: its text is missing, or its tests do not run or fail without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One line of the product made wrong. ``old``, which is in ``file`` exactly once, becomes ``new``.

    ``breaks``: the promise that it breaks, in a sentence. ``tests``: files or tests that should kill it.
    ``simulation``: which workload should find it, by its name, or None. ``reason``: why it may survive, or "".
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
    simulation: str | None = None
    reason: str = ""


class Outcome(enum.Enum):
    """The outcome for a mutant."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    EXCUSED = "survives"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome for a mutant, and what decided it; for a survivor the reason why it may survive, if there is one;
    for one that cannot be judged, why.
    """

    mutant: Mutant
    outcome: Outcome
    by: str
    took_s: float = 0.0


class Runs(Protocol):
    """The checks that a copy of the tree can run. Each returns what failed first, or None if nothing did."""

    def tests(self, tree: Path, tests: Sequence[str]) -> str | None:
        """Runs these tests. Raises `MutantError` if they cannot run."""

    def seeds(self, tree: Path, workload: str, count: int) -> str | None:
        """Runs these seeds of the simulation."""

    def origin(self, tree: Path, module: str) -> Path:
        """The file from which the module is imported. Raises `MutantError` if it cannot be."""


def apply(mutant: Mutant, tree: Path) -> None:
    """Makes the change. Raises `MutantError` if its text is not there exactly once."""
    path = tree / mutant.file
    if not path.is_file():
        raise MutantError(f"{mutant.name}: there is no {mutant.file}")
    source = path.read_text()
    count = source.count(mutant.old)
    if count != 1:
        raise MutantError(f"{mutant.name}: its text is in {mutant.file} {count} times, not once:\n{mutant.old}")
    if mutant.old == mutant.new:
        raise MutantError(f"{mutant.name}: it changes nothing")
    changed = source.replace(mutant.old, mutant.new)
    try:
        compile(changed, mutant.file, "exec")
    except SyntaxError as error:
        raise MutantError(f"{mutant.name}: {mutant.file} is no Python any more: {error}") from None
    path.write_text(changed)


def judge(root: Path, mutant: Mutant, *, seeds: int, runs: Runs) -> Verdict:
    """Judges one mutant of the tree at ``root``, which stays unchanged. Raises `MutantError`."""
    began_s = time.monotonic()
    with copied(root) as tree:
        apply(mutant, tree)
        module = mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        origin = runs.origin(tree, module)
        if origin != tree / mutant.file:
            raise MutantError(f"{mutant.name}: {module} comes from {origin}, not from the copy at {tree}")
        by = runs.tests(tree, mutant.tests)
        if by is None and mutant.simulation is not None:
            by = runs.seeds(tree, mutant.simulation, seeds)
            if by is not None:
                found = re.search(r"seed (\d+)", by)
                with copied(root) as sound:
                    if runs.seeds(sound, mutant.simulation, int(found[1]) if found else seeds) is not None:
                        raise MutantError(f"{mutant.name}: fails without any mutant: {by}")
    took_s = time.monotonic() - began_s
    if by is not None:
        return Verdict(mutant=mutant, outcome=Outcome.KILLED, by=by, took_s=took_s)
    outcome = Outcome.EXCUSED if mutant.reason else Outcome.SURVIVED
    return Verdict(mutant=mutant, outcome=outcome, by=mutant.reason or "nothing", took_s=took_s)


def judge_all(
    root: Path,
    mutants: Sequence[Mutant],
    *,
    jobs: int,
    seeds: int,
    on_verdict: Callable[[Verdict], None],
    runs: Runs | None = None,
) -> list[Verdict]:
    """The verdicts, in the mutants' order; ``on_verdict`` gets each as soon as it is known. A mutant that cannot be
    judged is undecided, which is reported before anything runs if its text is missing or its tests fail without any
    mutant.
    """
    runs = runs if runs is not None else Subprocesses()
    obstacles: dict[str, str] = {}  # by the mutant's name
    with copied(root) as tree:
        for mutant in mutants:
            source = (tree / mutant.file).read_text() if (tree / mutant.file).is_file() else ""
            try:
                apply(mutant, tree)
            except MutantError as error:
                obstacles[mutant.name] = str(error)
                continue
            (tree / mutant.file).write_text(source)
        sound = [mutant for mutant in mutants if mutant.name not in obstacles]
        if sound and _failure(runs, tree, {each for mutant in sound for each in mutant.tests}) is not None:
            known: dict[tuple[str, ...], str | None] = {}
            for mutant in sound:  # whose tests are they?
                if mutant.tests not in known:
                    known[mutant.tests] = _failure(runs, tree, mutant.tests)
                failed = known[mutant.tests]
                if failed is not None:
                    obstacles[mutant.name] = f"the tests fail without any mutant: {failed}"
    undecided = {name: _undecided(mutant, obstacles[name]) for mutant in mutants if (name := mutant.name) in obstacles}
    for verdict in undecided.values():
        on_verdict(verdict)

    def judge_and_report(mutant: Mutant) -> Verdict:
        if mutant.name in undecided:
            return undecided[mutant.name]
        try:
            verdict = judge(root, mutant, seeds=seeds, runs=runs)
        except (MutantError, OSError) as error:
            verdict = _undecided(mutant, str(error))
        on_verdict(verdict)
        return verdict

    with ThreadPoolExecutor(jobs) as threads:
        return list(threads.map(judge_and_report, mutants))


def _failure(runs: Runs, tree: Path, tests: Iterable[str]) -> str | None:
    """What fails in a tree without any mutant, or why the tests do not run."""
    try:
        return runs.tests(tree, sorted(tests))
    except (MutantError, OSError) as error:
        return str(error)


def _undecided(mutant: Mutant, why: str) -> Verdict:
    return Verdict(mutant=mutant, outcome=Outcome.UNDECIDED, by=why)


def exit_status(verdicts: Sequence[Verdict]) -> int:
    """2 if one cannot be judged, else 1 if one survives without a reason."""
    outcomes = {each.outcome for each in verdicts}
    return 2 if Outcome.UNDECIDED in outcomes else int(Outcome.SURVIVED in outcomes)


def line_of(verdict: Verdict) -> str:
    """The verdict in a line."""
    return f"{verdict.outcome.value:<9} {verdict.mutant.name:<45} {verdict.took_s:5.0f} s  {verdict.by}"


def table(verdicts: Sequence[Verdict]) -> str:
    """A table with the number of each outcome, and all survivors with what they break."""
    killed = sum(each.outcome is Outcome.KILLED for each in verdicts)
    undecided = sum(each.outcome is Outcome.UNDECIDED for each in verdicts)
    lines = [f"{killed} of {len(verdicts)} mutants are killed{f', {undecided} cannot be judged' * bool(undecided)}"]
    for verdict in verdicts:
        if verdict.outcome is not Outcome.KILLED:
            lines += [line_of(verdict), f"          {verdict.mutant.file}: {verdict.mutant.breaks}"]
    return "\n".join(lines)


@contextmanager
def copied(root: Path) -> Iterator[Path]:
    """A copy of the tree, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="pylog-mutant-") as folder:
        tree = Path(folder).resolve()
        for name in _COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif (root / name).exists():
                shutil.copy2(root / name, tree / name)
        yield tree


class Subprocesses:
    """`Runs` by processes of this interpreter. The installed product is another copy, or the tree itself: the copy
    comes before it on the path.
    """

    def tests(self, tree: Path, tests: Sequence[str]) -> str | None:
        command = ["-m", "pytest", "-x", "-q", "--timeout", str(_TEST_LIMIT_S), *tests]
        try:
            done = self._run(tree, command, _TESTS_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"no end within {_TESTS_LIMIT_S} s of {' '.join(tests)}"
        if done.returncode == 0:
            return None
        found = re.search(r"^(?:FAILED|ERROR) (\S+\.py.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
        failed = found[1] if found else ""
        if done.returncode == _FAILED or "Timeout" in done.stdout + done.stderr:
            return failed or "a test that did not end"
        what = "there is no test in" if done.returncode == _NO_TESTS else f"pytest ended with {done.returncode} for"
        raise MutantError(f"{what} {' '.join(tests)}: {failed or done.stdout[-400:]}{done.stderr[-400:]}")

    def seeds(self, tree: Path, workload: str, count: int) -> str | None:
        try:
            done = self._run(tree, ["-m", "tests.mutation.seeds", workload, str(count)], _SEEDS_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"no end within {_SEEDS_LIMIT_S} s of {count} seeds of {workload}"
        if done.returncode == 0:
            return None
        said = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
        return f"simulation of {workload}, {said[-1] if said else f'which ended with {done.returncode}'}"

    def origin(self, tree: Path, module: str) -> Path:
        code = f"import importlib; print(importlib.import_module({module!r}).__file__)"
        try:
            done = self._run(tree, ["-c", code], _TEST_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise MutantError(f"{module} was not imported within {_TEST_LIMIT_S} s") from None
        if done.returncode:
            raise MutantError(f"{module} cannot be imported: {done.stderr[-400:]}")
        return Path(done.stdout.strip()).resolve()

    def _run(self, tree: Path, arguments: Sequence[str], limit_s: int) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tree, env=environment, capture_output=True, text=True, timeout=limit_s, check=False,
        )  # fmt: skip
