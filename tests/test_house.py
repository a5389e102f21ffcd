"""The house itself: files stay small, the documentation names what exists, imports of the light modules stay light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wheel.documents import documents

ROOT = Path(__file__).parent.parent
PACKAGES = ("broker_runtime", "pyspark_log")
LONGEST_FILE_LINES = 800
MOST_SIBLINGS = 25
SMALL_FILE_LINES = 60
_FACADE = "its package gives it to everybody"
_PURE = "pure, with tests of its own"
_SERVICE = "a service is a file"
_COMMAND = "a command is a file"
SMALL_FILES_WITH_A_REASON = {
    "broker_runtime.contract.schema.history": _FACADE,
    "broker_runtime.contract.predicate.spans": _PURE,
    "broker_runtime.controller.preferred": _PURE,
    "broker_runtime.periodic": "knows nothing of brokers",
    "broker_runtime.services.configs": _SERVICE,
    "pyspark_log.cli.broker": _COMMAND,
    "pyspark_log.console.pages.access": "a subject of the pages is a file",
    "pyspark_log.errors": "what users import",
}
"""Files of fewer lines with one importer, and why they are not a part of it."""
FORBIDDEN_NAMES = {"util", "utils", "helper", "helpers", "manager", "managers", "common", "misc"}
TESTS_OF_WHAT_MAY_BE_MISSING = {
    "tests/console/test_in_chromium.py",
    "tests/wheel/test_versions.py",
    "tests/deploy/test_chart.py",
    "tests/deploy/test_rolling_upgrade.py",
    "tests/deploy/test_systemd_unit.py",
    "tests/examples/test_monitoring.py",
}
"""They may skip: Chromium, another Python than that of the environment, another PySpark from the package index, helm,
the history of the repository, systemd's own checker, Prometheus' ``promtool``."""
# What a light module must not import: each costs a tenth of a second or more, or belongs to one side only.
HEAVY = ("pyarrow", "numpy", "pyspark", "kazoo", "pandas")


def sources(*folders: str) -> list[Path]:
    """All Python files below the folders of the repository."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def test_files_are_short_enough_to_have_one_subject() -> None:
    """No file is longer than one subject."""
    everything = sources(*PACKAGES, "tests", "examples", "bench", "docs")
    assert everything
    too_long = {
        str(path.relative_to(ROOT)): lines
        for path in everything
        if (lines := len(path.read_text().splitlines())) > LONGEST_FILE_LINES
    }
    assert too_long == {}


def test_no_folder_is_crowded() -> None:
    """A folder has at most 25 siblings, so that its parts can be named at a glance."""
    folders = {path.parent for path in sources(*PACKAGES)}
    crowded = {
        str(folder.relative_to(ROOT)): count
        for folder in folders
        if (count := len([path for path in folder.glob("*.py") if path.stem != "__init__"])) > MOST_SIBLINGS
    }
    assert crowded == {}


def test_small_files_with_one_importer_have_a_reason() -> None:
    """A short file with one importer is a section of that file, unless it has a reason to stand alone."""
    lines = {module_of(path): len(path.read_text().splitlines()) for path in sources(*PACKAGES)}
    importers: dict[str, set[str]] = {name: set() for name in lines}
    for path in sources(*PACKAGES):
        for name in imported(path):
            if name in importers and name != module_of(path):
                importers[name].add(module_of(path))
    alone = {
        name
        for name, count in lines.items()
        if count < SMALL_FILE_LINES and len(importers[name]) == 1 and not (ROOT / name.replace(".", "/")).is_dir()
    }
    assert alone == set(SMALL_FILES_WITH_A_REASON)


def module_of(path: Path) -> str:
    """The file's dotted module name."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    """The dotted names that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def test_no_module_is_a_catch_all() -> None:
    """There is no util, helper, manager or common."""
    assert [path for path in sources(*PACKAGES) if set(path.stem.split("_")) & FORBIDDEN_NAMES] == []


def test_every_module_has_a_docstring() -> None:
    """Each module has a docstring."""
    silent = [
        str(path.relative_to(ROOT))
        for path in sources(*PACKAGES, "examples", "bench")
        if ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert silent == []


def test_packages_leave_nothing_unfinished_or_swallowed() -> None:
    """There is no TODO, no NotImplementedError, no bare or silent `except Exception`."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources(*PACKAGES)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\b(TODO|FIXME|XXX|NotImplementedError)\b|except( BaseException| Exception)?:\s*pass", line)
    ]
    assert found == []


def test_tests_are_neither_skipped_nor_expected_to_fail() -> None:
    """Every test counts: no skip, no xfail, but where a machine may lack what is tested."""
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources("tests")
        if path != Path(__file__) and str(path.relative_to(ROOT)) not in TESTS_OF_WHAT_MAY_BE_MISSING
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"pytest\.(skip|xfail|importorskip)|mark\.(skip|skipif|xfail)", line)
    ]
    assert found == []


POSSESSIVE_OR_ATOMIC = re.compile(r"(?<!\\)(?:[*+?}]\+|\(\?>)")


def test_patterns_are_neither_possessive_nor_atomic() -> None:
    """Python before 3.11.5 matches these wrongly."""
    found = [
        f"{path}:{node.lineno}"
        for path in sources(*PACKAGES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "re"
        and POSSESSIVE_OR_ATOMIC.search(" ".join(map(ast.unparse, node.args[:1])))
    ]
    assert found == []


LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
OTHER_NAMES_OF_FIELDS = {"peer", "client", "host", "broker_id", "group_id", "partition_id", "at", "exception", "reason"}


def test_log_lines_are_events() -> None:
    """Each module has one logger of the same name, one function writes all lines, and each field has one name."""
    found, events = [], 0
    for path in sources(*PACKAGES):
        for node in ast.walk(ast.parse(path.read_text())):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Assign) and "getLogger" in ast.unparse(node.value):
                if ast.unparse(node) != "_logger = logging.getLogger(__name__)":
                    found.append(f"{place}: {ast.unparse(node)}")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                is_logger = ast.unparse(node.func.value).lstrip("_") in {"log", "logger", "logging"}
                if is_logger and node.func.attr in LOG_METHODS and path.name != "events.py":
                    found.append(f"{place}: {ast.unparse(node)}")
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "event":
                events += 1
                text = node.args[1]
                if isinstance(text, ast.Constant) and not re.fullmatch(r"[a-z]+( [a-z'-]+)+", str(text.value)):
                    found.append(f"{place}: {text.value!r} is no verb with its object")
                wrong = OTHER_NAMES_OF_FIELDS & {each.arg for each in node.keywords}
                found += [f"{place}: {name} has another name as a field" for name in sorted(map(str, wrong))]
    assert found == []
    assert events > 20


@pytest.mark.parametrize(
    "module", ["pyspark_log", "broker_runtime", "pyspark_log.testing.plugin", "pyspark_log.cli.app"]
)
def test_import_is_light(module: str) -> None:
    """S1: Spark imports pyspark_log in every session, pytest the plugin in every run, a shell `pylog --help`."""
    code = f"import {module}, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.strip() == "[]"


def documentation() -> str:
    """README and all pages."""
    return "\n".join(documents().values())


def test_documentation_names_paths_that_exist() -> None:
    """README's map of the code and the pages are true: each path in backticks exists."""
    text = documentation()
    named = {name for name in re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:py|md|toml))`", text) if is_path(name)}
    missing = sorted(name for name in named if not (ROOT / name).exists())
    assert missing == []


def test_life_of_a_record_names_symbols_that_exist() -> None:
    """The tables of the life of a record and of a transaction are true: each `path.py` `Class.method` or `function`
    exists.
    """
    text = documentation()
    named = re.findall(r"`((?:broker_runtime|pyspark_log)/[\w/]+\.py)` `(\w+)(?:\.(\w+))?`", text)
    assert len(named) >= 8
    for path, owner, member in named:
        owners = {
            node.name: node
            for node in ast.parse((ROOT / path).read_text()).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }
        assert owner in owners, f"{path} has no {owner}"
        members = {node.name for node in owners[owner].body if isinstance(node, ast.FunctionDef)}
        assert not member or member in members, f"{path} has no {owner}.{member}"


def is_path(name: str) -> bool:
    """Whether a name in the documentation is a path of this repository."""
    return name.split("/")[0] in {*PACKAGES, "tests", "examples", "bench", "docs", ".ci", "Makefile", "pyproject.toml"}


def test_documentation_names_symbols_that_exist() -> None:
    """Its imports are true: every `from pyspark_log… import …` in it works."""
    text = documentation()
    lines = sorted(
        set(re.findall(r"^\s*(from (?:pyspark_log|broker_runtime)[\w.]* import [\w, ]+)", text, re.MULTILINE))
    )
    for line in lines:
        answer = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, timeout=60, check=False)
        assert answer.returncode == 0, f"{line}: {answer.stderr}"


def test_makefile_targets_named_in_the_documentation_exist() -> None:
    """Its commands are true: each `make …` is a target."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)\b(?=`|$)", documentation(), re.MULTILINE))
    assert named <= targets


def test_packages_name_their_modules() -> None:
    """A package's docstring that lists its modules is true: none is missing, and none is gone."""
    wrong: dict[str, list[str]] = {}
    for path in (path for path in sources(*PACKAGES) if path.stem == "__init__"):
        lines = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()
        found = [match.group(1) for line in lines if (match := re.match(r" {4}([a-z_/, ]+?) {2,}\S", line))]
        named = {name.strip(" /") for names in found for name in names.split(",")} - {""}
        parts = {each.stem for each in path.parent.glob("*.py")} | {
            each.parent.name for each in path.parent.glob("*/*.py")
        }
        parts -= {"__init__", "__main__"}
        if named and named != parts:
            wrong[str(path.relative_to(ROOT))] = sorted(named ^ parts)
    assert wrong == {}
