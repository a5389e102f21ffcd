"""The trap for clients that use a proxy of the environment."""

from __future__ import annotations

import os
import urllib.request
from urllib.error import URLError

import pytest

from tests.chaos.proxy_trap import VARIABLES, ProxyTrap


def test_trap_counts_users_of_the_environments_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trap that counts nobody would prove nothing; leaving it restores the environment."""
    monkeypatch.setenv("no_proxy", "localhost")
    monkeypatch.delenv("http_proxy", raising=False)
    before = dict(os.environ)
    with ProxyTrap() as trap:
        assert "no_proxy" not in os.environ
        assert {os.environ[name] for name in VARIABLES} == {os.environ["http_proxy"]}
        with pytest.raises((URLError, OSError)):
            urllib.request.build_opener(urllib.request.ProxyHandler()).open("http://nowhere.invalid/", timeout=5)
    assert trap.visitors == 1
    assert dict(os.environ) == before
