"""Python imports this at the start of every process that has this folder on its path: Spark's drivers and workers."""

from tests.chaos.sink_hooks import install

install()
