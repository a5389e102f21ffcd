"""The documentation: what is generated says what the code says, leaves nothing out, and the site builds.

`tests/test_readme.py` and `tests/wheel/run_documents.py` look at what the pages tell readers to type.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

import pyspark_log
from broker_runtime.contract.errors import PylogError
from broker_runtime.contract.settings import SCOPES, settings_of
from broker_runtime.metrics.table import METRICS, PREFIX
from broker_runtime.services.authorization import NEEDS
from docs import pictures, reference
from pyspark_log.cli.app import pylog_command
from pyspark_log.client.admin.health import Problem
from pyspark_log.client.metrics.table import METRICS as METRICS_OF_CLIENTS
from pyspark_log.spark.option_definitions import SETTINGS_IN_SPARK, SINK_OPTIONS, SOURCE_OPTIONS
from pyspark_log.spark.option_table import CLIENT_SETTINGS

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "pages"
CONFIGURATION = yaml.safe_load((ROOT / "docs" / "mkdocs.yml").read_text())
GENERATED = {**reference.pages(), **pictures.drawings()}
BUILD_LIMIT_S = 120


def page(name: str) -> str:
    """A page of the reference."""
    return (PAGES / "reference" / f"{name}.md").read_text()


def commands(group: Any, name: str) -> Iterator[str]:
    """Every command below the group that is not hidden, by its whole name."""
    for word, command in group.commands.items():
        if not command.hidden:
            yield f"{name} {word}"
            yield from commands(command, f"{name} {word}") if hasattr(command, "commands") else ()


def errors(error: type[PylogError]) -> set[type[PylogError]]:
    """The error and all below it that are pylog's own."""
    below = [each for each in error.__subclasses__() if each.__module__ == PylogError.__module__]
    return {error}.union(*(errors(each) for each in below))


def navigation(entries: Any) -> Iterator[str]:
    """The pages of the site's navigation."""
    for entry in entries:
        for place in entry.values():
            yield from navigation(place) if isinstance(place, list) else [place]


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_what_is_generated_is_up_to_date(path: Path) -> None:
    """``python -m docs`` writes it again."""
    assert path.read_text() == GENERATED[path]


def test_nothing_is_left_of_what_was_generated_before() -> None:
    """Each page of the reference is generated."""
    assert set((PAGES / "reference").iterdir()) == {path for path in GENERATED if path.suffix == ".md"}


@pytest.mark.parametrize("scope", SCOPES)
def test_every_setting_is_described(scope: Any) -> None:
    """One definition in the code generates validation, help and the reference."""
    rows = re.findall(r"^\| `([\w.]+)` \|.*\| (\S.*) \|$", page(f"{scope}-settings"), re.MULTILINE)
    assert [name for name, _ in rows] == list(settings_of(scope))


def test_every_option_of_spark_is_described() -> None:
    """S4: those of the source and of the sink, and the settings of clients that both take."""
    reading, writing = page("spark-options").split("## Writing")
    for text, options, direction in ((reading, SOURCE_OPTIONS, "source"), (writing, SINK_OPTIONS, "sink")):
        named = set(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE))
        assert named == {option.name for option in options} | {f"pylog.{name}" for name in CLIENT_SETTINGS[direction]}
    assert {option.name for option in SETTINGS_IN_SPARK} <= CLIENT_SETTINGS["source"] | CLIENT_SETTINGS["sink"]


def test_every_metric_is_described() -> None:
    """By the name that Prometheus knows."""
    rows = re.findall(r"^\| `(\w+)`(?: \(histogram\))?(?: ⚑)? \|.*\| (\S.*) \|$", page("metrics"), re.MULTILINE)
    assert [name for name, _ in rows] == [metric.series.removeprefix(PREFIX) for metric in METRICS.values()]


def test_every_metric_of_clients_is_described() -> None:
    """With what Kafka's clients call it."""
    rows = re.findall(r"^\| `(\w+)`(?: \(histogram\))? \|.*\| \S.* \| \S.* \|$", page("client-metrics"), re.MULTILINE)
    assert rows == [metric.series.removeprefix(PREFIX) for metric in METRICS_OF_CLIENTS.values()]


def test_every_error_is_described() -> None:
    """With its code, and in words."""
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (?:yes|no) \| \d \| \S.* \|$", page("errors"), re.MULTILINE)
    assert sorted(rows) == sorted((error.__name__, error.code) for error in errors(PylogError))


def test_every_command_is_described_with_its_options() -> None:
    """W27: as its ``--help`` has them."""
    text = page("cli")
    whole = pylog_command()
    found = dict(re.findall(r"^##+ (pylog [\w -]+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(found) == set(commands(whole, "pylog"))
    for name, section in found.items():
        command = whole
        for word in name.split()[1:]:
            command = command.commands[word]
        if not hasattr(command, "commands"):
            options = {option for each in command.params if not each.hidden for option in each.opts if option[0] == "-"}
            assert options <= set(re.findall(r"`(-[\w-]+)`", section)), name


def test_every_request_says_what_it_needs() -> None:
    """The table of the code, in words."""
    assert set(re.findall(r"^\| `(\w+)` \| \S.* \|$", page("permissions"), re.MULTILINE)) == set(NEEDS)


def test_every_problem_of_a_partition_has_advice() -> None:
    """What `pylog cluster health` says is in the guide Operations."""
    text = (PAGES / "guides" / "operations.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)) == set(get_args(Problem))


def test_every_exported_name_is_described() -> None:
    """And the public methods of what is a class."""
    headings = re.findall(r"^##+ ([\w.]+)$", page("python"), re.MULTILINE)
    assert set(pyspark_log.__all__) - {"errors", "DefaultSource"} <= set(headings)
    for client in (pyspark_log.Admin, pyspark_log.Producer, pyspark_log.Consumer):
        methods = {name for name in dir(client) if not name.startswith("_") and callable(getattr(client, name))}
        assert {f"{client.__name__}.{name}" for name in methods} <= set(headings)


def test_navigation_has_every_page_once() -> None:
    """A page that nobody finds is not there; the front page is README."""
    named = list(navigation(CONFIGURATION["nav"]))
    pages = {str(path.relative_to(PAGES)) for path in PAGES.rglob("*.md")}
    assert sorted(named) == sorted(pages | {"index.md"})


def test_readme_links_to_files_that_exist() -> None:
    """They are files where the repository is shown; mkdocs checks them as pages of the site."""
    linked = re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", (ROOT / "README.md").read_text())
    assert [link for link in linked if "://" not in link and not (ROOT / link).is_file()] == []
    assert len(linked) > 20


def test_site_builds_without_a_warning_and_needs_no_other_host(tmp_path: Path) -> None:
    """Broken links and anchors are warnings. Readers without the internet see the same as others."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        [*command, "--config-file", str(ROOT / "docs" / "mkdocs.yml")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for path in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|link)[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*", path.read_text())
        assert loaded == [], path.name
