"""A streaming job: from the topic `flights`, as columns, to figures per carrier in the topic `carrier_stats`.

    spark-submit examples/flights_pipeline.py localhost:9192 /tmp/carrier_stats.checkpoint

Both topics are typed, so there is no schema and no from_json here. The sums are whole numbers: whatever is killed and
repeated on the way, they come out the same to the last digit. Kill it, start it again: the checkpoint has the offsets
and the sums, and it continues where it was. The demo does just that.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming import StreamingQuery

FLIGHTS_PER_MICRO_BATCH = 42_000


def carrier_stats(flights: DataFrame) -> DataFrame:
    """Per carrier: flights, departed ones, the sum and mean of their delay in minutes, the share that was cancelled."""
    counted = flights.groupBy("carrier").agg(
        F.count("*").alias("flights"),
        F.count("dep_delay").alias("departed"),  # a cancelled flight has no delay
        F.sum("dep_delay").alias("dep_delay_sum"),
    )
    return counted.withColumns(
        {
            "mean_dep_delay": F.col("dep_delay_sum") / F.col("departed"),
            "cancelled_share": (F.col("flights") - F.col("departed")) / F.col("flights"),
        }
    )


def start(spark: SparkSession, bootstrap_servers: str, checkpoint: str) -> StreamingQuery:
    """Starts the job on the current content of `flights`; it ends when that is read."""
    flights = (
        spark.readStream.format("pylog")
        .option("pylog.bootstrap.servers", bootstrap_servers)
        .option("subscribe", "flights")
        .option("columns", "carrier,dep_delay")  # only these leave the broker
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", FLIGHTS_PER_MICRO_BATCH)
        .option("pylog.group.id", "flights-pipeline")  # progress is in ZooKeeper, too
        .load()
    )
    return (
        carrier_stats(flights)
        .writeStream.format("pylog")
        .option("pylog.bootstrap.servers", bootstrap_servers)
        .option("topic", "carrier_stats")
        .option("checkpointLocation", checkpoint)
        .outputMode("complete")  # each micro-batch writes all carriers' new figures
        .trigger(availableNow=True)
        .start()
    )


def main(bootstrap_servers: str, checkpoint: str) -> None:
    """Runs to the end of the current data, printing after each micro-batch how many flights it read."""
    spark = SparkSession.builder.appName("flights-pipeline").getOrCreate()
    query = start(spark, bootstrap_servers, checkpoint)
    last_batch_id = -1
    while query.isActive:
        query.awaitTermination(0.2)
        for progress in query.recentProgress:
            if progress.batchId > last_batch_id and progress.numInputRows:
                last_batch_id = progress.batchId
                print(f"micro-batch {progress.batchId}: {progress.numInputRows} flights", flush=True)
    query.awaitTermination()  # raises if the query failed
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
