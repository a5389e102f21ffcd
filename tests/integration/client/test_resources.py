"""What clients leave behind: nothing. And what a fork leaves them: everything that works."""

import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_log import Admin, Consumer, Producer, read


def use_everything(topic: str) -> None:
    with Admin() as admin, Producer() as producer, Consumer(topic, auto_offset_reset="earliest") as consumer:
        producer.send(topic, b"x").result(20)
        assert consumer.poll(20)
        admin.describe_topic(topic)
        read(topic).read_all()
        partial = read(topic)
        partial.read_next_batch()
        partial.close()
        del partial


def sockets() -> int:
    """How many this process has open; 0 where there is no /proc."""
    count = 0
    for link in Path("/proc/self/fd").glob("*"):
        try:
            count += str(link.readlink()).startswith("socket:")
        except OSError:
            continue
    return count


def test_clients_leave_no_thread_and_no_socket_after_close(new_topic: Callable[..., str]) -> None:
    """W15: threads and sockets are as many as before, however often clients come and go."""
    name = new_topic(1)
    use_everything(name)
    gc.collect()
    threads, open_sockets = set(threading.enumerate()), sockets()
    for _ in range(3):
        use_everything(name)
    deadline = time.monotonic() + 20
    while (set(threading.enumerate()) - threads or sockets() > open_sockets) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert set(threading.enumerate()) - threads == set()  # what was there before may have ended
    assert sockets() <= open_sockets


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_clients_work_in_a_forked_child_and_on_in_the_parent(new_topic: Callable[..., str]) -> None:
    """W6: with live clients in the parent, the parent's and new ones work in the child; the parent loses nothing."""
    name = new_topic(1)
    with Admin() as admin, Producer() as producer, Consumer(name, auto_offset_reset="earliest") as consumer:
        for n in range(20):
            producer.send(name, b"before %d" % n)
        producer.flush(20)
        first = consumer.poll(20, max_records=5)
        producer.send(name, b"open when it forked")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                producer.send(name, b"from the child").result(20)
                with Producer() as own:
                    own.send(name, b"from the child's own").result(20)
                seen = [r.value for r in consumer.poll(20)]
                if admin.list_topics() and seen[0] == b"before %d" % len(first):
                    code = 0
            finally:
                os._exit(code)
        producer.send(name, b"after").result(20)
        assert _exit_code(child, 60) == 0
        seen = [r.value for r in first]
        deadline = time.monotonic() + 20
        while len(seen) < 24 and time.monotonic() < deadline:
            seen += [r.value for r in consumer.poll(0.5)]
    assert seen[:20] == [b"before %d" % n for n in range(20)]
    assert sorted(seen[20:]) == sorted([b"open when it forked", b"from the child", b"from the child's own", b"after"])


def _exit_code(child: int, timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")
