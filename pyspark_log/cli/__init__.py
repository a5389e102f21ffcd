"""`pylog`, the command line.

Rule: data goes to standard output, everything else to standard error. An error is one line that begins with its code.
A command imports what it needs when it runs, so that `pylog --help` is quick. Commands translate between arguments, the
public Python API and text: whatever a command can do, the API can do.

    app             the tree of commands
    options         the options of every command, before or after its name
    invocation      their values: option before environment before config file before default
    config_file     the config file
    exit_status     the exit status of each error
    progress        bars on a terminal
    complete        what Tab completes
    output          table, wide, json, jsonl, yaml, name
    arguments       offsets, times and partitions as people type them
    reset           the target of `group reset`, as offsets
    records/        produce and consume
    access/         users, ACLs and quotas
    topic, partition, group, txn, cluster, health, log, broker, zookeeper, up, console, doctor, shell  the
        commands
"""

from __future__ import annotations


def main() -> None:
    """The `pylog` script. Ends the process with one of the exit statuses that the documentation lists."""
    from pyspark_log.cli.app import run

    run()
