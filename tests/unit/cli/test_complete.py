"""What Tab completes without a cluster (settings). With one: tests/cli/test_completion.py."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from pyspark_log.cli import complete
from pyspark_log.cli.app import build


def context(command: str) -> SimpleNamespace:
    return SimpleNamespace(info_name=command, command=SimpleNamespace())


@pytest.mark.parametrize(
    ("incomplete", "completed"),
    [
        ("retention.m", ["retention.ms="]),
        ("flush.mode=", ["flush.mode=ack", "flush.mode=interval", "flush.mode=os"]),
        ("flush.mode=i", ["flush.mode=interval"]),
        ("retention.ms=", []),
        ("no.such=", []),
        ("linger", []),
    ],
)
def test_tab_completes_topic_settings(incomplete: str, completed: list[str]) -> None:
    """-c completes names, then values where only some are allowed; a producer's settings are not a topic's."""
    assert complete.topic_settings(context("create"), incomplete) == completed


def test_tab_completes_names_of_topic_settings() -> None:
    """-d completes names only."""
    assert complete.topic_setting_names(context("alter"), "retention.m") == ["retention.ms"]


@pytest.mark.parametrize(
    ("command", "is_known"), [("produce", True), ("consume", False), ("describe", False)], ids=lambda each: str(each)
)
def test_tab_completes_settings_of_the_commands_client(command: str, is_known: bool) -> None:
    """-X of produce completes a producer's settings."""
    assert (complete.client_settings(context(command), "linger") == ["linger.ms="]) == is_known
    assert complete.client_settings(context(command), "request.timeout") == ["request.timeout.ms="]


def test_tab_completes_settings_of_any_client_before_the_command() -> None:
    """`pylog -X lin<TAB>` completes settings of any client, as none is known yet."""
    ctx = SimpleNamespace(info_name="pylog", command=SimpleNamespace(commands={}))
    assert complete.client_settings(ctx, "linger") == ["linger.ms="]


def parameters(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """(command, parameter) of the command and all commands below it."""
    for parameter in command.params:
        yield path, parameter
    for name, below in getattr(command, "commands", {}).items():
        yield from parameters(f"{path} {name}", below)


def test_every_topic_partition_group_and_broker_is_completed() -> None:
    """Every command that takes one of them completes it; a topic that is being created exists nowhere yet."""
    words = {"TOPIC", "TOPIC:PARTITION", "TOPIC[:PARTITION", "TOPIC[:PARTITION[,", "GROUP", "BROKER", "ID[,ID"}
    found = [
        (path, parameter)
        for path, parameter in parameters("pylog", typer.main.get_command(build()))
        if (parameter.metavar or "").strip("[]…") in words
    ]
    lacking = [path for path, parameter in found if parameter._custom_shell_complete is None]
    assert lacking == ["pylog topic create", "pylog topics create"]
    assert len(found) > 20


def test_every_setting_is_completed() -> None:
    """-c, -d and -X are completed wherever they are."""
    found = [
        parameter
        for _, parameter in parameters("pylog", typer.main.get_command(build()))
        if {"-c", "-d", "-X"} & set(parameter.opts)
    ]
    assert len(found) > 40
    assert all(parameter._custom_shell_complete is not None for parameter in found)
