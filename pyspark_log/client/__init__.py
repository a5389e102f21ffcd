"""The client: how programs without Spark, and Spark's source and sink, talk to brokers.

Rule: imports nothing but `broker_runtime.contract`, pyarrow, numpy and the standard library (metrics/ alone:
prometheus_client), and this module imports nothing at all. From the bottom up:

    meters         what clients count: the seam; without a registry nothing
    throttling     how long brokers hold a stream back
    python_values  columns as Python values
    records        records and their positions, as users see them
    connection/    metadata, who leads what, calls that are routed and retried
    reading/       bounded ranges as Arrow rows
    metrics/       which metrics clients have, counted into a registry
    producer/      `Producer`
    consumer/      `Consumer`
    admin/         `Admin`

Never here: pyspark, ZooKeeper, files of a log.
"""
