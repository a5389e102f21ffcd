"""Each test that shares the cluster gets topics of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyspark_log import Admin
from pyspark_log.testing import LocalCluster

_names = itertools.count(1)


@pytest.fixture
def bootstrap(pylog_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> str:
    """The shared cluster's address; it is also the default of clients that name none."""
    monkeypatch.setenv("PYLOG_BOOTSTRAP_SERVERS", pylog_cluster.bootstrap_servers)
    return pylog_cluster.bootstrap_servers


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as made:
        yield made


@pytest.fixture
def new_topic(admin: Admin) -> Callable[..., str]:
    """Creates a topic and returns its name; takes the settings of `Admin.create_topic`."""

    def make(partitions: int = 1, **settings: Any) -> str:
        name = f"client-{next(_names)}"
        admin.create_topic(name, partitions=partitions, **settings)
        return name

    return make


@pytest.fixture
def new_group() -> Callable[[], str]:
    return lambda: f"group-{next(_names)}"
