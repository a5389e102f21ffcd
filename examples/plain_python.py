"""A producer and a consumer in plain Python: no Spark anywhere.

pylog up                                                    # in another terminal
python examples/plain_python.py localhost:9192
"""

import sys

import pyarrow as pa

from pyspark_log import Admin, Consumer, Producer, read


def main(bootstrap_servers: str) -> None:
    """Sends records and rows, reads them back, acknowledges them, and continues from there."""
    with Admin(bootstrap_servers) as admin:
        admin.create_topic("greetings", partitions=2, exist_ok=True)
        admin.create_topic("temperatures", schema="city string, celsius double", key="city", exist_ok=True)

    # Records, as in Kafka. `with` flushes at the end and raises if anything was not acknowledged.
    with Producer(bootstrap_servers) as producer:
        future = producer.send("greetings", b"hello", key=b"en", headers=[("tone", b"warm")])
        producer.send("greetings", b"bonjour", key=b"fr")
        where = future.result(timeout=10)
        print(f"hello is in partition {where.partition} at offset {where.offset}")

        # Rows of a topic with a schema: one by one, or a whole Arrow table (or Polars, pandas, DuckDB) at once.
        producer.send("temperatures", {"city": "Oslo", "celsius": -3.5})
        producer.send_batch("temperatures", pa.table({"city": ["Rome", "Cairo"], "celsius": [14.0, 24.5]}))

    # A consumer of a group continues where the group was.
    with Consumer(
        "greetings",
        bootstrap_servers=bootstrap_servers,
        group_id="greeters",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        seen = 0
        while seen < 2:
            for record in consumer.poll(timeout=1.0):
                print(f"{record.topic}-{record.partition}@{record.offset}: {record.key!r} {record.value!r}")
                seen += 1
        consumer.commit()  # the next consumer of this group starts after these

    # A bounded read in one line.
    table = read("temperatures", bootstrap_servers=bootstrap_servers).read_all()
    print(table.sort_by("city").to_pylist())


if __name__ == "__main__":
    main(*sys.argv[1:])
