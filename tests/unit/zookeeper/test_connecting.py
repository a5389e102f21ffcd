"""How long one server of an ensemble may keep a client waiting."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.handlers.threading import SequentialThreadingHandler

from broker_runtime.zookeeper import client


@pytest.mark.parametrize(("kazoos_s", "wanted_s"), [(18.0, 6.0), (5.0, 5.0)])
def test_server_that_takes_no_connection_leaves_time_for_the_others(
    monkeypatch: pytest.MonkeyPatch, kazoos_s: float, wanted_s: float
) -> None:
    """Kazoo would wait for it until the session has ended."""
    waited: list[float] = []

    def create_connection(self: object, *args: Any, timeout: float, **options: Any) -> str:
        waited.append(timeout)
        return f"{args} {options}"

    monkeypatch.setattr(SequentialThreadingHandler, "create_connection", create_connection)
    made = client._Handler(6.0).create_connection(address=("h", 1), timeout=kazoos_s, use_ssl=False)
    assert waited == [wanted_s]
    assert made == "() {'address': ('h', 1), 'use_ssl': False}"
