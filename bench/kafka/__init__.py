"""pylog beside Apache Kafka: ``make bench-kafka``, ``python -m bench.kafka [names…]``.

The same work on both sides in turns, in one run, on one machine, as ratios: Kafka's broker with Spark's own connector
to it in the same Spark session, and with confluent-kafka in Python. One module per comparison.

    jars        Kafka and the connector, fetched by Maven
    peer        Kafka's brokers as processes
    settings    what both sides run with
    workspace   the directory, the Spark session with both connectors, a broker of each
"""
