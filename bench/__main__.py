"""``python -m bench [names…] [--quick] [--rounds N] [--before PATH] [--json FILE]``: runs comparisons, prints a
table, writes JSON.

Exit: 0 all promises kept, 1 one is not or a comparison failed, 2 usage. ``--quick`` takes a tenth of the rows: to see
that everything runs, not to judge by.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import traceback
from pathlib import Path

from rich.console import Console

from bench.harness import Figure, show, write_json
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
    "memory": "what serving 4 GB, idling and 200 idle consumers cost a broker",
    "start": "a broker that holds a lot starts, beside an empty one",
    "groups": "what a join, many commits and idle members cost",
    "replication": "three replicas, beside one",
    "many_partitions": "brokers that lead 1,000 partitions stop, die and come back, beside 250",
    "catch_up": "a follower fetches 2 GB, beside a plain DoGet of the same bytes, while a producer sends",
    "failover": "how long nobody acknowledges when a leader is killed, silent or stopped",
}
"""In the order in which they run; the name is also the module's."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="pylog beside the machine's own limits.",
        epilog="\n".join(f"  {name:12} {text}" for name, text in COMPARISONS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="name", help="comparisons to run (all)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--rounds", type=int, default=None, help="pairs per comparison (5; 2 with --quick)")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where all figures go (%(default)s)")
    parser.add_argument(
        "--before", type=Path, metavar="PATH", help="a checkout of an earlier version, for transactions to compare with"
    )
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in COMPARISONS]
    if unknown:
        parser.error(f"no comparison {', '.join(unknown)}. There are: {', '.join(COMPARISONS)}")

    figures: list[Figure] = []
    failures: list[tuple[str, str]] = []
    rounds = options.rounds or (2 if options.quick else 5)
    # When ended from outside, everything that was started still ends and the directory is removed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with Workspace(quick=options.quick, rounds=rounds, before=options.before) as workspace:
        for name in options.names or COMPARISONS:
            print(f"{name}: {COMPARISONS[name]}", file=sys.stderr, flush=True)
            try:
                for figure in importlib.import_module(f"bench.{name}").run(workspace):
                    figures.append(figure)  # noqa: PERF402  what was measured stays when a later one breaks
            except Exception as error:  # noqa: BLE001  one broken comparison must not hide the others' figures
                traceback.print_exc()
                failures.append((name, f"{type(error).__name__}: {error}".splitlines()[0]))
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    show(figures, failures, console)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.json, figures, failures, quick=options.quick)
    print(f"all figures and pairs: {options.json}", file=sys.stderr)
    return 0 if not failures and all(figure.kept for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
