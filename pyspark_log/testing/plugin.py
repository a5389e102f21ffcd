"""The pytest fixture `pylog_cluster`, found by pytest wherever pyspark-log is installed.

Rule: this module is loaded in every pytest run, so it imports nothing of pylog until the fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark_log.testing.cluster import LocalCluster


@pytest.fixture(scope="session")
def pylog_cluster() -> Iterator[LocalCluster]:
    """A running `LocalCluster` of one broker and one ZooKeeper, shared by all tests of the session.

    It takes about two seconds to start, so it is started only once, by the first test that uses it. Each test should
    use its own topics. A test that kills or pauses servers should create its own `LocalCluster`.
    """
    from pyspark_log.testing.cluster import LocalCluster

    with LocalCluster() as cluster:
        yield cluster
