"""How mutants are judged, and that each in the list can still be applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.harness import (
    Mutant,
    MutantError,
    Outcome,
    Subprocesses,
    Verdict,
    apply,
    exit_status,
    judge,
    judge_all,
    table,
)
from tests.mutation.mutants import ALL
from tests.simulation.workloads import WORKLOADS

ROOT = Path(__file__).parents[3]
FILE = "broker_runtime/a.py"
TESTS = ("tests/unit/test_a.py",)
SOURCE = "a = 1\nb = 3\nc = 3\n"


class Fakes:
    """Returns the prepared outcomes for each copy, and records its calls."""

    def __init__(
        self,
        *,
        tests: str | None = None,
        seeds: str | None = None,
        foreign: bool = False,
        always: bool = False,
        failing: str = "",
        raises: Exception | None = None,
    ) -> None:
        self.answers = {"tests": tests, "seeds": seeds}
        self.always = always
        self.foreign = foreign
        self.failing = failing
        self.raises = raises
        self.asked: list[str] = []
        self.sources: list[str] = []

    def tests(self, tree: Path, tests: Sequence[str]) -> str | None:
        self.asked.append("tests")
        self.sources.append((tree / FILE).read_text())
        if self.failing in tests:
            return self.failing
        if "a = 2" not in self.sources[-1]:
            return None
        if self.raises is not None:
            raise self.raises
        return self.answers["tests"]

    def seeds(self, tree: Path, workload: str, count: int) -> str | None:
        self.asked.append(f"{count} seeds of {workload}")
        source = (tree / FILE).read_text()
        return self.answers["seeds"] if self.always or source != SOURCE else None

    def origin(self, tree: Path, module: str) -> Path:
        assert module == "broker_runtime.a"
        return ROOT / FILE if self.foreign else tree / FILE


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "broker_runtime").mkdir()
    (tmp_path / FILE).write_text(SOURCE)
    return tmp_path


def mutant(**changes: Any) -> Mutant:
    fields = {"name": "m", "old": "a = 1", "new": "a = 2", "simulation": "groups", "tests": TESTS, **changes}
    return Mutant(file=FILE, breaks="a is one", **fields)


def judged(root: Path, runs: Fakes, **changes: str | None):
    return judge(root, mutant(**changes), seeds=100, runs=runs)


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.name)
def test_each_mutant_of_the_list_can_be_applied(each: Mutant) -> None:
    """Its text is in the product exactly once, and the mutated file is valid Python."""
    source = (ROOT / each.file).read_text()
    assert source.count(each.old) == 1
    assert each.new != each.old
    compile(source.replace(each.old, each.new), each.file, "exec")


def test_list_has_at_least_forty_distinct_mutants() -> None:
    """Names are unique; each mutant says what it breaks, and names tests that exist."""
    assert len(ALL) >= 40
    assert [name for name, count in Counter(each.name for each in ALL).items() if count > 1] == []
    assert [each.name for each in ALL if not each.breaks.endswith(".") or not each.tests] == []
    assert [each.name for each in ALL if each.simulation not in {None, *WORKLOADS}] == []
    missing = [test for each in ALL for test in each.tests if not (ROOT / test.partition("::")[0]).exists()]
    assert missing == []


def test_mutant_that_a_test_kills_needs_no_simulation(root: Path) -> None:
    """The tests of the mutated copy decide; the tree itself stays as it is."""
    runs = Fakes(tests="tests/unit/test_a.py::test_a")
    verdict = judged(root, runs)
    assert (verdict.outcome, verdict.by) == (Outcome.KILLED, "tests/unit/test_a.py::test_a")
    assert (runs.asked, runs.sources) == (["tests"], ["a = 2\nb = 3\nc = 3\n"])
    assert (root / FILE).read_text() == SOURCE


def test_mutant_that_survives_the_tests_is_killed_by_the_simulation(root: Path) -> None:
    """A hundred seeds are the second judge."""
    runs = Fakes(seeds="seed 7")
    assert judged(root, runs).by == "seed 7"
    assert runs.asked == ["tests", "100 seeds of groups", "7 seeds of groups"], "no simulation up to here"


def test_mutant_that_nothing_kills_is_reported_as_a_survivor(root: Path) -> None:
    """The table shows what it breaks, and the exit status is 1."""
    verdict = judged(root, Fakes())
    assert verdict.outcome is Outcome.SURVIVED
    assert exit_status([verdict]) == 1
    assert "0 of 1 mutants are killed" in table([verdict])
    assert "SURVIVED  m" in table([verdict])
    assert "a is one" in table([verdict])


def test_survivor_with_a_reason_is_reported_and_is_no_failure(root: Path) -> None:
    """An equivalent mutant may survive; the reason is printed."""
    verdict = judged(root, Fakes(), reason="a is never read")
    assert verdict.outcome is Outcome.EXCUSED
    assert exit_status([verdict]) == 0
    assert "a is never read" in table([verdict])


def test_mutant_without_a_simulation_is_judged_by_its_tests_alone(root: Path) -> None:
    """No simulation covers code of only one side."""
    runs = Fakes()
    assert judged(root, runs, simulation=None).outcome is Outcome.SURVIVED
    assert runs.asked == ["tests"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"old": "d = 1"}, "0 times"),
        ({"old": " = 3"}, "2 times"),
        ({"new": "a ="}, "no Python"),
        ({"new": "a = 1"}, "changes nothing"),
    ],
)
def test_mutant_that_cannot_be_applied_is_an_error(root: Path, changes: dict[str, str], message: str) -> None:
    """It would look like a survivor, or like a killed one."""
    with pytest.raises(MutantError, match=message):
        apply(mutant(**changes), root)
    assert (root / FILE).read_text() == SOURCE


def test_copy_that_is_not_imported_is_an_error(root: Path) -> None:
    """Otherwise the tests would judge the unchanged product."""
    with pytest.raises(MutantError, match="not from the copy"):
        judged(root, Fakes(foreign=True))


def test_verdicts_are_reported_and_keep_the_order_of_the_mutants(root: Path) -> None:
    """Each verdict is reported as soon as it is known."""
    runs, reported = Fakes(seeds="seed 7"), []
    first, second = mutant(), mutant(name="n", old="b = 3", new="b = 4")
    verdicts = judge_all(root, [first, second], jobs=1, seeds=9, on_verdict=reported.append, runs=runs)
    assert [each.mutant for each in verdicts] == [first, second]
    assert reported == verdicts
    assert exit_status(verdicts) == 0


def test_mutant_that_cannot_be_applied_is_undecided_and_the_others_are_judged(root: Path) -> None:
    """It is reported at once, not after an hour, and the run ends with 2."""
    reported: list[Verdict] = []
    gone, sound = mutant(name="gone", old="d"), mutant()
    verdicts = judge_all(root, [sound, gone], jobs=1, seeds=9, on_verdict=reported.append, runs=Fakes(seeds="seed 7"))
    assert [(each.mutant.name, each.outcome) for each in reported] == [
        ("gone", Outcome.UNDECIDED),
        ("m", Outcome.KILLED),
    ]
    assert [each.mutant.name for each in verdicts] == ["m", "gone"]
    assert "0 times" in reported[0].by
    assert exit_status(verdicts) == 2
    assert "1 of 2 mutants are killed, 1 cannot be judged" in table(verdicts)


def test_mutants_whose_tests_fail_without_them_are_undecided_and_the_others_are_judged(root: Path) -> None:
    """A test that fails anyway kills nothing, and hides no other mutant."""
    runs = Fakes(seeds="seed 7", failing="tests/unit/test_b.py")
    bad = mutant(name="bad", old="b = 3", new="b = 4", tests=("tests/unit/test_b.py",))
    verdicts = judge_all(root, [bad, mutant()], jobs=1, seeds=9, on_verdict=lambda each: None, runs=runs)
    assert [each.outcome for each in verdicts] == [Outcome.UNDECIDED, Outcome.KILLED]
    assert "without any mutant: tests/unit/test_b.py" in verdicts[0].by


@pytest.mark.parametrize("error", [MutantError("pytest ended with 4"), OSError("no process")])
def test_mutant_whose_tests_do_not_run_is_undecided_and_the_others_are_judged(root: Path, error: Exception) -> None:
    """It does not end the run either."""
    runs = Fakes(seeds="seed 7", raises=error)
    other = mutant(name="n", old="b = 3", new="b = 4")
    verdicts = judge_all(root, [mutant(), other], jobs=1, seeds=9, on_verdict=lambda each: None, runs=runs)
    assert [(each.outcome, each.by) for each in verdicts] == [
        (Outcome.UNDECIDED, str(error)),
        (Outcome.KILLED, "seed 7"),
    ]
    assert exit_status(verdicts) == 2


def test_simulation_that_fails_without_a_mutant_is_an_error(root: Path) -> None:
    """A seed kills a mutant only if it passes without it."""
    with pytest.raises(MutantError, match=r"without any mutant: seed 1"):
        judged(root, Fakes(seeds="seed 1", always=True))


def test_processes_import_and_test_the_copy(tmp_path: Path) -> None:
    """The installed package is not used; failing, passing and missing tests are distinguished."""
    (tmp_path / "broker_runtime").mkdir()
    (tmp_path / "broker_runtime" / "__init__.py").write_text("NUMBER = 41\n")
    test = "from broker_runtime import NUMBER\n\n\ndef test_number():\n    assert NUMBER == 41\n"
    (tmp_path / "test_it.py").write_text(test)
    (tmp_path / "test_not.py").write_text(test.replace("== 41", "== 42"))
    (tmp_path / "test_none.py").write_text("")
    runs = Subprocesses()
    assert runs.origin(tmp_path, "broker_runtime") == tmp_path.resolve() / "broker_runtime" / "__init__.py"
    assert runs.tests(tmp_path, ["test_it.py"]) is None
    assert runs.tests(tmp_path, ["test_not.py"]) == "test_not.py::test_number"
    with pytest.raises(MutantError, match="there is no test"):
        runs.tests(tmp_path, ["test_none.py"])
