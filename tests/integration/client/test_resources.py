"""Clients leave no threads or sockets behind, and work after a fork."""

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_log import Admin, Consumer, Producer, read
from tests.waiting import SOON_S, comes_true, take, wait_until


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
    """The number of open sockets of this process; 0 where there is no /proc."""
    count = 0
    for link in Path("/proc/self/fd").glob("*"):
        try:
            count += str(link.readlink()).startswith("socket:")
        except OSError:
            continue
    return count


def test_clients_leave_no_thread_and_no_socket_after_close(new_topic: Callable[..., str]) -> None:
    """W15: the number of threads and sockets returns to what it was, however many clients are opened and closed."""
    name = new_topic(1)
    use_everything(name)
    gc.collect()
    threads, open_sockets = set(threading.enumerate()), sockets()
    for _ in range(3):
        use_everything(name)
    wait_until(  # some of the threads from before may have ended
        lambda: gc.collect() is not None and set(threading.enumerate()) <= threads and sockets() <= open_sockets,
        "no thread and no socket is left",
        SOON_S,
    )


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_clients_work_in_a_forked_child_and_in_its_parent(new_topic: Callable[..., str]) -> None:
    """W6: with live clients in the parent, the child can use those and new ones; the parent loses nothing."""
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
        seen += [r.value for r in take(consumer, 24 - len(seen), SOON_S)]
    assert seen[:20] == [b"before %d" % n for n in range(20)]
    assert sorted(seen[20:]) == sorted([b"open when it forked", b"from the child", b"from the child's own", b"after"])


def _exit_code(child: int, timeout_s: float) -> int:
    ended = []
    if not comes_true(lambda: ended.append(os.waitpid(child, os.WNOHANG)) or ended[-1][0], timeout_s):
        os.kill(child, 9)
        os.waitpid(child, 0)
        raise AssertionError("the child hangs")
    return os.waitstatus_to_exitcode(ended[-1][1])
