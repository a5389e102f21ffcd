"""`pylog`, the command line.

Rule: data on standard output, all else on standard error; an error is one line that begins with its code; what a
command needs is imported when it runs, so that `pylog --help` is quick. Commands translate between arguments, the
public Python API and text: whatever a command can do, the API can.

    app             the tree of commands
    options         what every command takes, before or after its name
    invocation      those options made into decisions: flag before environment before config file before default
    exit_status     which error ends with which status
    output          table, wide, json, jsonl, yaml, name
    arguments       offsets, times and partitions as people type them
    record_format   '%k\\t%v\\n'
    reset           where a group shall go on, as offsets
    topic, partition, group, produce, consume, log, cluster, broker, zookeeper, up, doctor, shell      the commands
"""

from __future__ import annotations


def main() -> None:
    """The `pylog` script. Ends the process with the exit status as README lists them."""
    from pyspark_log.cli.app import run

    run()
