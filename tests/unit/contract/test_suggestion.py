"""Suggestions for an unknown name."""

from __future__ import annotations

import pytest

from broker_runtime.contract.suggestion import nearest, suggestion


@pytest.mark.parametrize(
    ("name", "meant"),
    [("dely", "delay"), ("CARRIER", "carrier"), ("retention", "Retention.ms"), ("xyzzy", None), ("", None)],
)
def test_nearest_name_is_the_probable_one(name: str, meant: str | None) -> None:
    """Case does not matter; a name that is not half alike is not suggested."""
    assert nearest(name, ["carrier", "delay", "Retention.ms"]) == meant


def test_suggestion_names_the_nearest_or_all() -> None:
    """A long list is cut."""
    assert suggestion("dely", ["carrier", "delay"]) == "did you mean 'delay'?"
    assert suggestion("xyzzy", ["carrier", "delay"]) == "choose from carrier, delay"
    assert suggestion("xyzzy", map(str, range(60))).endswith("48, 49, …")


def test_suggestion_may_know_more_names_than_it_offers() -> None:
    """A name of another scope is recognised, but the list has only usable ones. Both have the prefix."""
    assert suggestion("acls", ["acks", "linger.ms"], otherwise=["linger.ms"], prefix="pylog.") == (
        "did you mean 'pylog.acks'?"
    )
    assert suggestion("xyzzy", ["acks", "linger.ms"], otherwise=["linger.ms"], prefix="pylog.") == (
        "choose from pylog.linger.ms"
    )
