"""The pytest fixture `pylog_cluster`, found by pytest wherever pyspark-log is installed.

Rule: this module is loaded in every pytest run, so it imports nothing of ours until the fixture is asked for.
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

    Starting it takes some two seconds, so it is started once, by the first test that asks. Tests keep out of each
    other's way by using topics of their own. A test that kills or pauses servers makes a `LocalCluster` for itself.
    """
    from pyspark_log.testing.cluster import LocalCluster

    with LocalCluster() as cluster:
        yield cluster
