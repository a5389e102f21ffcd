"""A disk in memory that stalls on demand: calls of an operation wait until it recovers."""

import threading

from broker_runtime.log.faulty_files import FaultyFiles

LIMIT_S = 20.0


class StandingFiles(FaultyFiles):
    """`FaultyFiles`; `stand_still` makes one operation wait, in any thread, `go_on` ends that."""

    def __init__(self):
        super().__init__()
        self._goes_on = {}
        self.waits = threading.Semaphore(0)

    def stand_still(self, *operations):
        self._goes_on = dict.fromkeys(operations, threading.Event())

    def go_on(self):
        standing, self._goes_on = self._goes_on, {}
        for event in standing.values():
            event.set()

    def wait_until_one_waits(self):
        assert self.waits.acquire(timeout=LIMIT_S)

    def _wait(self, operation):
        event = self._goes_on.get(operation)
        if event is not None:
            self.waits.release()
            event.wait(LIMIT_S)

    def sync(self, descriptor):
        self._wait("sync")
        super().sync(descriptor)

    def write(self, descriptor, buffers, position):
        self._wait("write")
        super().write(descriptor, buffers, position)

    def open(self, path, *, create=False, read_only=False):
        self._wait("open")
        return super().open(path, create=create, read_only=read_only)

    def rename(self, source, target):
        self._wait("rename")
        super().rename(source, target)

    def free_bytes(self, path):
        self._wait("free_bytes")
        return super().free_bytes(path)
