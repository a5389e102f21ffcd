"""A job that every way of deployment must run: reads and writes as a batch and as a stream, and prints what it saw.

``argv[1]``: JSON with servers, topics, checkpoint; ``remote``: Spark Connect's address; ``register``: see the guide
Deploying; true, or "in the end": what was looked up until then is read once more, registered.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import pyspark_log


def main() -> None:
    given = json.loads(sys.argv[1])
    builder = SparkSession.builder
    spark = (builder.remote(given["remote"]) if "remote" in given else builder).getOrCreate()
    if given.get("register") is True:
        pyspark_log.register(spark)
    options = {"pylog.bootstrap.servers": given["servers"], "startingOffsets": "earliest"}
    source = {**options, "subscribe": given["source"], "coalesceRows": "0"}
    frame = spark.read.format("pylog").options(**source).load()
    result: dict[str, Any] = {
        "counted": frame.count(),
        "executors": len({row.pid for row in frame.select("partition").mapInArrow(parents, "pid long").collect()}),
        "late": spark.read.format("pylog").options(**source, where="_metadata.offset >= 990").load().count(),
    }
    loaded = pyspark_log.load(spark, where=F.col("offset") >= 990, columns=["value"], options=source)
    result["loaded"] = loaded.count()
    frame.select("key", "value").write.format("pylog").options(**options, topic=given["batch"]).mode("append").save()
    result["progress"] = stream(spark, {**options, "subscribe": given["batch"]}, given)
    back = spark.read.format("pylog").options(**options, subscribe=given["stream"]).load()
    result["streamed"] = back.count()
    result["sum"] = back.select(F.sum(F.col("value").cast("string").cast("long"))).first()[0]
    if given.get("register") == "in the end":
        pyspark_log.register(spark)
        result["registered"] = spark.read.format("pylog").options(**source).load().count()
    print("RESULT" + json.dumps(result), flush=True)
    spark.stop()


def stream(spark: SparkSession, source: dict[str, str], given: dict[str, Any]) -> dict[str, Any]:
    """From topic to topic, and by ``foreachBatch`` into memory; returns what `offsets_behind` says at the end."""
    frame = spark.readStream.format("pylog").options(**source).load()
    sink = frame.select("key", "value").writeStream.format("pylog")
    sink = sink.option("pylog.bootstrap.servers", given["servers"]).option("topic", given["stream"])
    query = sink.option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()
    rows = input_rows(query)
    counted = frame.writeStream.trigger(availableNow=True).foreachBatch(look).start()
    counted.awaitTermination()
    behind = [each.max for each in pyspark_log.offsets_behind(query.lastProgress)]
    return {"rows": rows, "batches": input_rows(counted), "behind": behind}


def input_rows(query: Any) -> int:
    """Over all micro-batches. (Over Connect the sum over the sources is missing in the progress.)"""
    return sum(source["numInputRows"] for progress in query.recentProgress for source in progress["sources"])


def look(batch: Any, number: int) -> None:
    """Of ``foreachBatch``: any action."""
    batch.count()


def parents(batches: Any) -> Any:
    """The process of the executor's Python daemon, once per batch."""
    import pyarrow

    for _ in batches:
        yield pyarrow.record_batch({"pid": [os.getppid()]})


main()
