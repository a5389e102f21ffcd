"""The driver of `run_soak`: a query that counts by window, and one that copies a topic. ``argv[1]``: JSON."""

from __future__ import annotations

import json
import select
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812


def main() -> None:
    """Runs until its standard input or a query ends; then stops both queries and says how they ended."""
    given = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.driver.memory", "1g")
    spark = builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    options = {"pylog.bootstrap.servers": given["servers"], "startingOffsets": "earliest"}
    source = spark.readStream.format("pylog").options(**options, subscribe=given["source"])
    counted = (
        source.load()
        .withWatermark("timestamp", "10 seconds")
        .groupBy(F.window("timestamp", "5 seconds"), F.col("key"))
        .count()
        .writeStream.format("noop")
        .outputMode("append")
        .queryName("counted")
    )
    copied = source.load().select("key", "value").writeStream.format("pylog").queryName("copied")
    copied = copied.options(**{"pylog.bootstrap.servers": given["servers"], "topic": given["target"]})
    queries = [
        writer.option("checkpointLocation", f"{given['checkpoints']}/{number}")
        .trigger(processingTime=f"{given['batch_every_ms']} milliseconds")
        .start()
        for number, writer in enumerate((counted, copied))
    ]
    print("READY", flush=True)
    while all(query.isActive for query in queries):
        if select.select([sys.stdin], [], [], 5)[0]:  # it was closed: the time is over
            break
    ended = [str(query.exception()) for query in queries if not query.isActive]
    for query in queries:
        if query.isActive:
            query.processAllAvailable()  # nothing comes any more; who started this has a limit
    for query in queries:
        query.stop()
    print("ENDED" + json.dumps(ended), flush=True)
    spark.stop()


main()
