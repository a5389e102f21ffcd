"""pandas, which pyarrow imports at its first conversion of a value, costs a process 0.2 s and 40 MB. Brokers do without
it, and so do clients that convert none.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_log import Admin, Consumer, Producer
from pyspark_log.testing import LocalCluster

_LIMIT_S = 60
_CLIENT = """
import sys
from pyspark_log import Consumer, Producer, read
topic, servers = sys.argv[1:]
with Producer(servers) as producer:
    producer.send(topic, b"v").result(30)
    producer.send(topic, b"v", key=b"k").result(30)
with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
    found = []
    while len(found) < 2:
        found += consumer.poll(1)
    consumer.seek_to_beginning()
    rows = 0
    while rows < 2:
        for batch in consumer.poll_batches(1):
            rows += len(batch.offsets) - len(batch.timestamps) + len(batch)
assert sum(batch.num_rows for batch in read(topic, bootstrap_servers=servers)) == 2
print("pandas" in sys.modules)
"""


def test_client_imports_no_pandas(bootstrap: str, new_topic: Callable[..., str]) -> None:
    assert importlib.util.find_spec("pandas") is not None, "else this shows nothing"
    command = [sys.executable, "-c", _CLIENT, new_topic(), bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.fixture(scope="module")
def cluster(real_brokers: None) -> Iterator[LocalCluster]:
    """A broker that was started as users start it: what a fork inherits would show nothing."""
    with LocalCluster() as cluster:
        yield cluster


def test_broker_loads_no_pandas(cluster: LocalCluster) -> None:
    """Also when it looks for a time among several of one frame, for which it converts a number."""
    servers = cluster.bootstrap_servers
    with Admin(servers) as admin:
        admin.create_topic("times")
    with Producer(servers) as producer:
        for timestamp in (1_000, 2_000, 3_000):
            producer.send("times", b"v", timestamp=timestamp)
    with Consumer("times", bootstrap_servers=servers) as consumer:
        assert [each.offset for each in consumer.offsets_for_times({("times", 0): 1_500}).values() if each] == [1]
    if sys.platform != "linux":  # only Linux shows what a process has loaded
        return
    for broker_id in cluster.broker_ids:
        loaded = Path(f"/proc/{cluster.pid(broker_id)}/maps").read_text()
        assert "/pyarrow/" in loaded
        assert "/pandas/" not in loaded
