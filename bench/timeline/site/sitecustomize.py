"""Python imports this at its start, wherever this directory is on PYTHONPATH: brokers, consumers, Spark's workers."""

from bench.timeline.recorder import install_from_environment

install_from_environment()
