"""The cluster that most tests of several brokers share, module by module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_log import Admin
from pyspark_log.testing import LocalCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three brokers and a ZooKeeper that all run; each test leaves it so."""
    with LocalCluster(brokers=3) as made:
        yield made


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    """Of the module's cluster."""
    with Admin(cluster.bootstrap_servers) as made:
        yield made
