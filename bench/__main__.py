"""``python -m bench [names…] [--quick] [--rounds N] [--before PATH] [--json FILE]``: runs comparisons, prints a
table, writes JSON. See `bench.command` for the rest of the command line, `bench.kafka` for more beside Kafka.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.command import Command
from bench.workspace import Workspace

RESULTS = Path("build/bench.json")
COMPARISONS = {
    "send": "one record at a time into a producer, beside a loop that only makes Arrow arrays",
    "send_batch": "Arrow batches into a producer, beside a bare Flight DoPut with the same fsyncs",
    "poll": "Arrow batches out of a consumer, beside a bare Flight DoGet",
    "poll_records": "records out of a consumer, beside confluent-kafka's from Kafka (needs mvn and confluent-kafka)",
    "latency": "one record to its acknowledgement, beside a bare DoPut round trip and fdatasync",
    "source": "Spark reads a topic, beside a Python source that only yields the same batches",
    "columns": "Spark reads 1 of 20 columns, beside all 20",
    "where": "reads with a predicate that 1 % of 4 GB match, nothing, or everything, beside reads without",
    "sink": "Spark writes a topic, beside a Python sink that drops its batches",
    "micro_batch": "a micro-batch of one row, beside that of a bare Python source",
    "transactions": "what transactions cost; with --before also what they changed for everything else",
    "metrics": "a broker with http.listener and clients with metrics=, beside those without",
    "quotas": "a modest client beside a greedy one with quotas, beside alone",
    "memory": "what serving 4 GB, idling and 200 idle consumers cost a broker",
    "start": "a broker that holds a lot starts, beside an empty one",
    "groups": "what a join, many commits and idle members cost",
    "replication": "three replicas, beside one",
    "many_partitions": "brokers that lead 1,000 partitions stop, die and come back, beside 250",
    "catch_up": "a follower fetches 2 GB, beside a plain DoGet of the same bytes, while a producer sends",
    "console": "each page of the console with 1,000 topics",
    "failover": "how long nobody acknowledges when a leader is killed, silent or stopped",
}
"""In the order in which they run; the name is also the module's."""


def main() -> int:
    command = Command(
        package="bench", title="pylog beside the machine's own limits", comparisons=COMPARISONS, results=RESULTS
    )
    parser = command.parser()
    parser.add_argument(
        "--before", type=Path, metavar="PATH", help="a checkout of an earlier version, for transactions to compare with"
    )
    options = command.options(parser)
    return command.run(options, Workspace(quick=options.quick, rounds=options.rounds, before=options.before))


if __name__ == "__main__":
    sys.exit(main())
