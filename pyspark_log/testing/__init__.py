"""For tests of programs that use pylog: a real cluster in a `with` statement, and a pytest fixture.

    from pyspark_log.testing import LocalCluster

    with LocalCluster() as cluster:
        producer = Producer(cluster.bootstrap_servers)

The import is cheap: `cluster` is loaded when `LocalCluster` is first used, because pytest loads `plugin` in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_log.testing.cluster import LocalCluster

__all__ = ["LocalCluster"]


def __getattr__(name: str) -> object:
    if name == "LocalCluster":
        from pyspark_log.testing.cluster import LocalCluster

        return LocalCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
