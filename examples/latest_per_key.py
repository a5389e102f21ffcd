"""A streaming job that reads `carrier_stats` and keeps each carrier's newest row: the topic as a table.

    spark-submit examples/latest_per_key.py localhost:9192 figures.json

A carrier's rows are all in one partition, because `carrier` is the topic's key, so the highest offset is the newest.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it


def latest_per_carrier(stats: DataFrame) -> DataFrame:
    """The row with the highest offset of each carrier."""
    row = F.struct("flights", "departed", "dep_delay_sum", "mean_dep_delay", "cancelled_share")
    return stats.groupBy("carrier").agg(F.max_by(row, "_metadata.offset").alias("row")).select("carrier", "row.*")


def main(bootstrap_servers: str, output: str) -> None:
    """Reads the topic's current content and writes the newest figures as JSON."""
    spark = SparkSession.builder.appName("latest-per-key").getOrCreate()
    stats = (
        spark.readStream.format("pylog")
        .option("pylog.bootstrap.servers", bootstrap_servers)
        .option("subscribe", "carrier_stats")
        .option("startingOffsets", "earliest")
        .option("includeMetadata", "true")
        .load()
    )
    query = (
        latest_per_carrier(stats)
        .writeStream.format("memory")
        .queryName("latest")
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    figures = {row["carrier"]: row.asDict() for row in spark.table("latest").collect()}
    Path(output).write_text(json.dumps(figures, sort_keys=True))
    print(f"{len(figures)} carriers", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
