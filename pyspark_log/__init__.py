"""A partitioned log made for PySpark. ``import pyspark_log`` is cheap and never fails: names load when first used.

Spark imports this module to look for ``DefaultSource`` (any installed ``pyspark_*`` package is asked), in every
session of an environment that has it. So nothing is imported here but the standard library's `importlib`: not
pyarrow, not kazoo, not pyspark, no broker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker_runtime.contract.acls import Acl, AclFilter
    from broker_runtime.contract.model import (
        BrokerDescription,
        ClusterDescription,
        GroupDescription,
        GroupListing,
        GroupOffset,
        MemberDescription,
        OffsetAndTimestamp,
        OpenTransactionDescription,
        PartitionDescription,
        TimestampType,
        TopicDescription,
        TopicPartition,
        TransactionListing,
    )
    from broker_runtime.contract.quotas import Quota, QuotaEntity
    from pyspark_log import errors
    from pyspark_log.client.admin.admin import Admin
    from pyspark_log.client.consumer.consumer import Consumer
    from pyspark_log.client.producer.producer import Producer
    from pyspark_log.client.reading.read import read
    from pyspark_log.client.records import BatchMetadata, ConsumedBatch, Record, RecordMetadata
    from pyspark_log.spark.load import load
    from pyspark_log.spark.offsets_behind import OffsetsBehind, offsets_behind
    from pyspark_log.spark.query_metrics import QueryMetrics
    from pyspark_log.spark.sink import write_once
    from pyspark_log.spark.source import DefaultSource

__version__ = "0.1.0"

__all__ = [
    "Admin", "Producer", "Consumer", "read",
    "Record", "ConsumedBatch", "RecordMetadata", "BatchMetadata", "TopicPartition",
    "OffsetAndTimestamp", "GroupOffset", "TimestampType",
    "TopicDescription", "PartitionDescription", "ClusterDescription", "BrokerDescription",
    "OpenTransactionDescription", "TransactionListing",
    "GroupListing", "GroupDescription", "MemberDescription", "OffsetsBehind", "offsets_behind", "Acl", "AclFilter",
    "Quota", "QuotaEntity",
    "errors", "DefaultSource", "register", "load", "write_once", "QueryMetrics",
]  # fmt: skip

_MODEL = "broker_runtime.contract.model"
_RECORDS = "pyspark_log.client.records"
_BEHIND = "pyspark_log.spark.offsets_behind"
_HOME = {
    "Admin": "pyspark_log.client.admin.admin",
    "Producer": "pyspark_log.client.producer.producer",
    "Consumer": "pyspark_log.client.consumer.consumer",
    "read": "pyspark_log.client.reading.read",
    "Record": _RECORDS,
    "ConsumedBatch": _RECORDS,
    "RecordMetadata": _RECORDS,
    "BatchMetadata": _RECORDS,
    "TopicPartition": _MODEL,
    "OffsetAndTimestamp": _MODEL,
    "GroupOffset": _MODEL,
    "TimestampType": _MODEL,
    "TopicDescription": _MODEL,
    "PartitionDescription": _MODEL,
    "ClusterDescription": _MODEL,
    "BrokerDescription": _MODEL,
    "GroupListing": _MODEL,
    "OpenTransactionDescription": _MODEL,
    "TransactionListing": _MODEL,
    "GroupDescription": _MODEL,
    "MemberDescription": _MODEL,
    "OffsetsBehind": _BEHIND,
    "offsets_behind": _BEHIND,
    "Acl": "broker_runtime.contract.acls",
    "AclFilter": "broker_runtime.contract.acls",
    "Quota": "broker_runtime.contract.quotas",
    "QuotaEntity": "broker_runtime.contract.quotas",
    "DefaultSource": "pyspark_log.spark.source",
    "load": "pyspark_log.spark.load",
    "QueryMetrics": "pyspark_log.spark.query_metrics",
    "write_once": "pyspark_log.spark.sink",
}


def register(spark: Any) -> None:
    """Makes ``format("pylog")`` known to this session, for the places where Spark cannot look it up by itself.

    ``spark`` is a `SparkSession`, of Spark Connect too. May be called again. ``pylog doctor`` says whether a machine
    needs it.
    """
    spark.dataSource.register(__getattr__("DefaultSource"))


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("pyspark_log.errors")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
