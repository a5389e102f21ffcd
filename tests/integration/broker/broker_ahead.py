"""A broker whose clock is ten days ahead of its ZooKeeper's."""

import runpy
import time

AHEAD_MS = 10 * 86_400_000

if __name__ == "__main__":
    time_ns = time.time_ns
    time.time_ns = lambda: time_ns() + AHEAD_MS * 1_000_000
    runpy.run_module("broker_runtime", run_name="__main__", alter_sys=True)
