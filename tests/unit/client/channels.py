"""Clients without a network: their channels ask a function."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_runtime.contract.requests import Message
from broker_runtime.contract.settings import Address
from pyspark_log.client.connection import cluster as module

Answer = Callable[[Address, str, Message, float], Message]
"""From the address that is asked, the call's name, its request and its time limit in seconds."""


def answer_by(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """``answer`` answers every call of a `Cluster`, or raises what a broker would; no try waits for the next."""

    class FakeChannel:
        def __init__(self, address: Address, *, client_id: str, uses_proxy: bool) -> None:
            self._address = address

        def call(self, name: str, request: Message, response: type[Message], *, timeout_s: float) -> Message:
            return answer(self._address, name, request, timeout_s)

        def close(self) -> None:
            return

    monkeypatch.setattr(module, "Channel", FakeChannel)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
