"""The cluster that most tests of several brokers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_log import Admin
from pyspark_log.testing import LocalCluster
from tests.integration.cluster.replicas import SharedCluster


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[SharedCluster]:
    """For tests that leave the brokers their disks."""
    shared = SharedCluster()
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def harmed_cluster() -> Iterator[SharedCluster]:
    """For tests that take disks away: a broker of it may be one that came back without its own."""
    shared = SharedCluster()
    yield shared
    shared.close()


@pytest.fixture
def cluster(shared_cluster: SharedCluster) -> Iterator[LocalCluster]:
    """Three brokers and a ZooKeeper that all run; each test leaves it so. Its topics are deleted behind it."""
    with shared_cluster.lend() as running:
        yield running


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    """Of the test's cluster."""
    with Admin(cluster.bootstrap_servers) as made:
        yield made
