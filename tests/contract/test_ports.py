"""Ports: which are chosen."""

from __future__ import annotations

from collections import deque

import pytest

from broker_runtime import ports
from broker_runtime.contract.errors import PortInUseError


def test_port_is_chosen_from_the_range_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run side by side, and what they start, take no port of each other."""
    monkeypatch.setenv(ports.RANGE_VARIABLE, "19991-19993")
    monkeypatch.setattr(ports, "is_free", lambda host, port: True)
    chosen: set[int] = set()
    for _ in range(3):
        chosen.add(ports.choose_port(besides=chosen))
    assert chosen == {19991, 19992, 19993}
    with pytest.raises(PortInUseError, match="19991 and 19994"):
        ports.choose_port(besides=chosen)


def test_port_is_chosen_below_those_of_outgoing_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that restarts finds its port as it left it."""
    monkeypatch.delenv(ports.RANGE_VARIABLE, raising=False)
    assert ports.choose_port() in range(20_000, 32_000)


def test_port_is_not_given_out_twice_while_nobody_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server needs seconds until it listens; meanwhile others are chosen ports. In a range of few, any is better
    than none."""
    monkeypatch.setattr(ports, "_chosen", deque(maxlen=500))
    monkeypatch.setattr(ports, "is_free", lambda host, port: True)
    monkeypatch.setenv(ports.RANGE_VARIABLE, "19991-19993")
    assert {ports.choose_port() for _ in range(3)} == {19991, 19992, 19993}
    assert ports.choose_port() in {19991, 19992, 19993}
