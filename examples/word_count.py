"""Word count over a topic without a schema: Kafka's columns, as in Spark's own Kafka guide, with `pylog` for `kafka`.

pylog topic create lines -p 2
echo 'to be or not to be' | pylog produce lines
spark-submit examples/word_count.py localhost:9192 lines
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming import StreamingQuery


def count_words(records: DataFrame) -> DataFrame:
    """How often each word is in the values of ``records``."""
    lines = records.selectExpr("CAST(value AS STRING) AS line")
    return lines.select(F.explode(F.split("line", r"\s+")).alias("word")).where("word <> ''").groupBy("word").count()


def start(spark: SparkSession, bootstrap_servers: str, topic: str, table: str) -> StreamingQuery:
    """Counts into the in-memory table ``table``, for as long as the query runs."""
    records = (
        spark.readStream.format("pylog")
        .option("pylog.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    return count_words(records).writeStream.format("memory").queryName(table).outputMode("complete").start()


def main(bootstrap_servers: str, topic: str) -> None:
    """Counts the current records and prints the most frequent words."""
    spark = SparkSession.builder.appName("word-count").getOrCreate()
    query = start(spark, bootstrap_servers, topic, "words")
    query.processAllAvailable()
    spark.table("words").orderBy(F.desc("count"), "word").show(20, truncate=False)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
