"""Decoders exist before their first use: msgspec builds them step by step, visibly to every thread."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from broker_runtime.contract import requests, streams
from broker_runtime.contract.requests import Message
from broker_runtime.zookeeper import znodes


def _all_kinds(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _all_kinds(kind)


@pytest.mark.parametrize(
    ("base", "decoders"), [(Message, requests._decoders), (znodes.Record, znodes._decoders)], ids=["messages", "znodes"]
)
def test_every_kind_has_its_decoder_as_soon_as_it_is_imported(
    base: type[msgspec.Struct], decoders: dict[type, object]
) -> None:
    """Two threads that decoded their first message concurrently crashed the broker (7 of 60 attempts with eight
    threads).
    """
    kinds = {kind for kind in _all_kinds(base) if kind.__module__.startswith("broker_runtime.")}
    assert len(kinds) > 10
    assert set(decoders) - {base} == kinds


def test_decoding_creates_no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for any first message, and any thread."""
    data = requests.encode(streams.FetchHello(client_id="c"))
    monkeypatch.setattr(msgspec.msgpack, "Decoder", None)
    assert requests.decode(data, streams.FetchHello) == streams.FetchHello(client_id="c")
