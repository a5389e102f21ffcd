"""Large action requests share a memory budget: one that finds no room waits a while, small ones never wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker_runtime.contract.errors import BrokerOverloadedError
from broker_runtime.contract.requests import CreatePartitionsRequest, Empty, Message
from tests.integration.server.serving import Server, serving

NAME_BYTES = 1_000_000
ROOM_BYTES = 16 << 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as server:
        yield server


def large(takes_ms: int) -> CreatePartitionsRequest:
    return CreatePartitionsRequest(name="n" * NAME_BYTES, total=takes_ms)


def test_large_requests_are_served_as_room_allows_and_all_of_them_eventually(server: Server) -> None:
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: server.act("create_partitions", large(1_000)), range(40)))
    assert answers == [Empty()] * 40
    assert ROOM_BYTES - 2 * NAME_BYTES < server.most_at_work_bytes() <= ROOM_BYTES


def test_large_request_that_finds_no_room_is_refused_in_bounded_time_and_small_ones_are_served(server: Server) -> None:
    def act(_: int) -> Message | BrokerOverloadedError:
        try:
            return server.act("create_partitions", large(8_000))
        except BrokerOverloadedError as error:
            return error

    with ThreadPoolExecutor(20) as pool:
        began_s = time.monotonic()
        answers = pool.map(act, range(20))
        while server.most_at_work_bytes() <= ROOM_BYTES - 2 * NAME_BYTES:
            assert time.monotonic() - began_s < 5
        assert server.act("create_partitions", CreatePartitionsRequest(name="t", total=0)) == Empty()
        assert time.monotonic() - began_s < 5
        refused = [each for each in answers if isinstance(each, BrokerOverloadedError)]
    assert len(refused) == 20 - ROOM_BYTES // NAME_BYTES
    assert "16 MiB of requests are under way" in refused[0].message
