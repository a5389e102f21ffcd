"""A process that forks with live clients: run by `test_resources`.

python -m tests.integration.client.forked_clients <topic>      exit status 0: child and parent lost nothing
"""

from __future__ import annotations

import faulthandler
import os
import sys
import warnings

from prometheus_client import CollectorRegistry

from pyspark_log import Admin, Consumer, Producer
from tests.waiting import SOON_S, comes_true, take

_CHILD_LIMIT_S = 60


def main(topic: str) -> None:
    """With live clients in the parent, the child can use those and new ones; the parent loses nothing."""
    warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: that is what is tested
    registry = CollectorRegistry()
    with (
        Admin() as admin,
        Producer(metrics=registry) as producer,
        Consumer(topic, auto_offset_reset="earliest", metrics=registry) as consumer,
    ):
        for n in range(20):
            producer.send(topic, b"before %d" % n)
        producer.flush(20)
        first = consumer.poll(20, max_records=5)
        producer.send(topic, b"open when it forked")
        counted = _counted(registry, topic)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                faulthandler.dump_traceback_later(_CHILD_LIMIT_S - 5)
                producer.send(topic, b"from the child").result(20)
                with Producer() as own:
                    own.send(topic, b"from the child's own").result(20)
                seen = [r.value for r in take(consumer, 20 - len(first) + 1, SOON_S)]
                assert _counted(registry, topic) == counted, "the counts are the parent's"
                if admin.list_topics() and seen[0] == b"before %d" % len(first):
                    code = 0
            finally:
                os._exit(code)
        producer.send(topic, b"after").result(20)
        assert _exit_code(child) == 0
        seen = [r.value for r in first]
        seen += [r.value for r in take(consumer, 24 - len(seen), SOON_S)]
        assert _counted(registry, topic) == (22, 24), "from the child are 2"
    assert seen[:20] == [b"before %d" % n for n in range(20)]
    assert sorted(seen[20:]) == sorted([b"open when it forked", b"from the child", b"from the child's own", b"after"])


def _counted(registry: CollectorRegistry, topic: str) -> tuple[float | None, float | None]:
    """Records that were sent, and read."""
    labels = {"client_id": "pylog", "topic": topic}
    sent, read = (registry.get_sample_value(f"pylog_{kind}_records_total", labels) for kind in ("producer", "consumer"))
    return sent, read


def _exit_code(child: int) -> int:
    ended = []
    if not comes_true(lambda: ended.append(os.waitpid(child, os.WNOHANG)) or ended[-1][0], _CHILD_LIMIT_S):
        os.kill(child, 9)
        os.waitpid(child, 0)
        raise AssertionError("the child hangs")
    return os.waitstatus_to_exitcode(ended[-1][1])


if __name__ == "__main__":
    main(sys.argv[1])
