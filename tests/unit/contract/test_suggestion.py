"""What is said about a name that is not known."""

from __future__ import annotations

import pytest

from broker_runtime.contract.suggestion import nearest, suggestion


@pytest.mark.parametrize(
    ("name", "meant"),
    [("dely", "delay"), ("CARRIER", "carrier"), ("retention", "Retention.ms"), ("xyzzy", None), ("", None)],
)
def test_nearest_is_what_was_probably_meant(name: str, meant: str | None) -> None:
    """Whatever the case; nothing where no name is half like it."""
    assert nearest(name, ["carrier", "delay", "Retention.ms"]) == meant


def test_suggestion_names_the_nearest_or_all() -> None:
    """A long list ends early."""
    assert suggestion("dely", ["carrier", "delay"]) == "did you mean 'delay'?"
    assert suggestion("xyzzy", ["carrier", "delay"]) == "choose from carrier, delay"
    assert suggestion("xyzzy", map(str, range(60))).endswith("48, 49, …")


def test_suggestion_may_know_more_names_than_it_offers() -> None:
    """A name of another place is recognised; the list has only what can be used here. Both have the prefix."""
    assert suggestion("acls", ["acks", "linger.ms"], otherwise=["linger.ms"], prefix="pylog.") == (
        "did you mean 'pylog.acks'?"
    )
    assert suggestion("xyzzy", ["acks", "linger.ms"], otherwise=["linger.ms"], prefix="pylog.") == (
        "choose from pylog.linger.ms"
    )
