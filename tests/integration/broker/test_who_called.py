"""The log of a real broker names clients by their client id."""

from __future__ import annotations

import re

import pytest

from pyspark_log import Admin, Consumer, Producer
from pyspark_log.errors import TopicAlreadyExistsError
from tests.integration.broker.running_broker import wait_until


def test_log_names_the_clients_of_streams_and_the_administrators_of_changes(broker):
    """Each line has the address that the client connected from; refused requests are logged, too."""
    servers = f"127.0.0.1:{broker.port}"
    with Admin(servers, client_id="console") as admin:
        admin.create_topic("t", partitions=1)
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topic("t", partitions=1)
        admin.alter_config("t", {"retention.ms": "1d"})
        with Producer(servers, client_id="nightly load") as producer:
            producer.send("t", b"a").result(20)
        with Consumer("t", bootstrap_servers=servers, client_id="reader", auto_offset_reset="earliest") as consumer:
            assert [record.value for record in consumer.poll(timeout=20)] == [b"a"]
        admin.create_partitions("t", 2)
        admin.delete_topic("t")

    def is_logged(line: str) -> bool:
        return re.search(rf" INFO broker_runtime\.[a-z_.]+ {line}", broker.output) is not None

    at = r"address=127\.0\.0\.1:\d+"
    for line in (
        rf"create topic topic=t client_id=console {at}\n",
        rf"create topic topic=t client_id=console {at} error=\"\[TOPIC_ALREADY_EXISTS\] ",
        rf"alter config topic=t settings=retention.ms client_id=console {at}\n",
        rf'open stream kind=produce client_id="nightly load" {at}\n',
        rf'close stream kind=produce client_id="nightly load" {at} open_s=',
        rf"open stream kind=fetch client_id=reader {at}\n",
        rf"add partitions topic=t total=2 client_id=console {at}\n",
        rf"delete topic topic=t client_id=console {at}\n",
    ):
        wait_until(lambda line=line: is_logged(line), line, 20)
