"""Clients leave no threads or sockets behind, and work after a fork."""

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from pyspark_log import Admin, Consumer, Producer, read
from tests.waiting import LIMIT_S, SOON_S, wait_until


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


def test_clients_work_in_a_forked_child_and_in_its_parent(new_topic: Callable[..., str]) -> None:
    """W6. In a process of its own: where another test left a Flight client behind, no child could use Flight."""
    command = [sys.executable, "-m", "tests.integration.client.forked_clients", new_topic(1)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=3 * LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stderr
