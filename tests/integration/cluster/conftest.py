"""The cluster that most tests of a module with several brokers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_log import Admin
from pyspark_log.testing import LocalCluster
from tests.integration.cluster.replicas import SharedCluster


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    """A cluster for tests that do not touch the brokers' disks. They may stop its ZooKeeper."""
    shared = SharedCluster(lambda: tmp_path_factory.mktemp("shared-cluster"))
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def harmed_cluster() -> Iterator[SharedCluster]:
    """A cluster for tests that remove disks: a broker of it may have lost its own before."""
    shared = SharedCluster()
    yield shared
    shared.close()


@pytest.fixture
def cluster(shared_cluster: SharedCluster) -> Iterator[LocalCluster]:
    """Three running brokers and a ZooKeeper; each test leaves them so, and its topics are deleted afterwards."""
    with shared_cluster.lend() as running:
        yield running


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    """An `Admin` of the test's cluster."""
    with Admin(cluster.bootstrap_servers) as made:
        yield made
