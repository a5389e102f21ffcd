"""`python -m pyspark_log.cli` is `pylog`."""

from pyspark_log.cli import main

main()
