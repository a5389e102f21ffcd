"""Shared by all tests: one real ZooKeeper per process that runs tests, started when the first test asks for it."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator

import pytest

from broker_runtime import ports
from broker_runtime.zookeeper.bundled import BundledZooKeeper

_chroots = itertools.count(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background with SIGINT ignored, and so would be all processes of the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if (_worker := os.environ.get("PYTEST_XDIST_WORKER", "")).startswith("gw"):
    # A worker takes no port that another's broker has while it is down for a moment.
    _share = len(ports._RANGE) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    ports._RANGE = ports._RANGE[int(_worker[2:]) * _share :][:_share]


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BundledZooKeeper]:
    """A running server. Whoever stops or pauses it starts one of his own instead."""
    with BundledZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def zookeeper_connect(zookeeper_server: BundledZooKeeper) -> str:
    """``zookeeper.connect`` with a root of the test's own."""
    return f"{zookeeper_server.connect_string}/test-{next(_chroots)}"
