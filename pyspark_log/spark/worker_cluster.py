"""The connections of one of Spark's Python processes, kept from one task or decision to the next.

Rule: a process has one `Cluster` for each kind of options and their client settings, made when first asked for, and
kept as long as the process lives, or until others are used: tasks come with a new token every minute. It never crosses
a fork: what the parent had is not used.
"""

from __future__ import annotations

import os
from typing import Final

from pyspark_log.client.connection.cluster import Cluster
from pyspark_log.spark.options import SinkOptions, SourceOptions

_MOST: Final = 16

_clusters: Final[dict[tuple[object, ...], Cluster]] = {}


def worker_cluster(options: SourceOptions | SinkOptions) -> Cluster:
    """This process's connections for these settings. Not to be closed."""
    key = (os.getpid(), type(options), *sorted(options.client.items()))
    cluster = _clusters.pop(key, None)
    if cluster is None:
        cluster = Cluster.from_settings(options.settings())
    _clusters[key] = cluster  # the last one used is the last one
    while len(_clusters) > _MOST:
        oldest = next(iter(_clusters))
        unused = _clusters.pop(oldest)
        if oldest[0] == os.getpid():  # else the parent's
            unused.close()
    return cluster
