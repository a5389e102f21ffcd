"""`make demo`: the story, step by step. Exit status 0 only if the figures are identical at the end."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from rich.console import Console

from examples.demo import report
from examples.demo.flights import SCHEMA, STATS_SCHEMA, CarrierStats, expected_stats, flights_table
from examples.demo.job import JobFailedError, SparkJob
from pyspark_log import Admin, Consumer, Producer, TopicPartition
from pyspark_log.errors import BrokerUnavailableError, PylogError
from pyspark_log.local.foreground import terminable
from pyspark_log.testing import LocalCluster

EXAMPLES = Path(__file__).parent.parent
STEPS = 6
_FAILOVER_LIMIT_S = 60.0
_COUNT_LIMIT_S = 60.0

console = Console(highlight=False)
started_at = time.monotonic()


def main() -> int:
    """Runs the demo; returns the exit status."""
    print_whole("[bold]pylog[/]: a partitioned log that Spark reads and writes. This takes one to three minutes.")
    with tempfile.TemporaryDirectory(prefix="pylog-demo-") as directory, terminable():
        return run(Path(directory))


def run(directory: Path) -> int:
    """All steps, with everything that is written below ``directory``."""
    step(1, "Starting a cluster: a ZooKeeper (it comes with PySpark) and three brokers, as processes of their own")
    with LocalCluster(brokers=3, directory=directory / "cluster") as cluster:
        servers = cluster.bootstrap_servers
        for broker_id, server in zip(cluster.broker_ids, servers.split(","), strict=True):
            say(f"broker {broker_id} is pid {cluster.pid(broker_id)} and listens on {server}")
        say(f"ZooKeeper, where the brokers agree on who leads which partition, listens on {cluster.zookeeper_connect}")

        step(2, "Creating the topic flights: typed, 3 partitions, key carrier; producing 336,776 real flights")
        produce(servers)

        step(3, "A streaming job (spark-submit) reads flights as columns and writes figures per carrier to a topic")
        say("examples/flights_pipeline.py; it takes 42,000 flights per micro-batch, Spark needs some seconds to start")
        checkpoint = directory / "checkpoint"
        killed_broker = run_until_half_way(cluster, checkpoint, directory / "job-1.log")

        step(4, "The same job is started again: it continues from its checkpoint. The broker comes back too")
        micro_batches = run_to_the_end(cluster, killed_broker, checkpoint, directory / "job-2.log")

        step(5, "A second streaming job, another process, reads the figures' topic: the newest row of each carrier")
        figures = directory / "figures.json"
        with running(
            SparkJob(EXAMPLES / "latest_per_key.py", servers, str(figures), output=directory / "job-3.log")
        ) as job:
            job.wait()
        found = {carrier: CarrierStats(**row) for carrier, row in json.loads(figures.read_text()).items()}
        say(f"{len(found)} carriers")
        written, readable = (rows_of_figures(servers, level) for level in ("read_uncommitted", "read_committed"))

        step(6, "Comparing with the same figures computed by pandas straight from the data set")
        is_same = report.show(console, found, expected_stats())
        is_once = report.show_rows(console, written, readable, micro_batches)
    console.print(f"\n{time.monotonic() - started_at:.0f} s. All processes are stopped, all files removed.")
    return 0 if is_same and is_once else 1


def produce(servers: str) -> None:
    """Creates both topics and sends the flights as one Arrow table."""
    with Admin(servers) as admin:
        admin.create_topic("flights", partitions=3, replication_factor=3, schema=SCHEMA, key="carrier")
        admin.create_topic("carrier_stats", replication_factor=3, schema=STATS_SCHEMA, key="carrier")
    say("replication factor 3: each broker has a copy of every partition; one of the three leads it, the others follow")
    flights = flights_table()
    began = time.monotonic()
    with Producer(servers) as producer:
        producer.send_batch("flights", flights)
        producer.flush()
    took_s = time.monotonic() - began
    with Admin(servers) as admin:
        sizes = [partition.high_watermark for partition in admin.describe_topic("flights").partitions]
    say(f"{flights.num_rows:,} flights on the disks of all three brokers after {took_s:.1f} s; per partition: {sizes}")


def run_until_half_way(cluster: LocalCluster, checkpoint: Path, output: Path) -> int:
    """Starts the pipeline, kills a broker after the first micro-batch and the pipeline after half of the flights.
    Returns which broker."""
    half, read, killed_broker = sum(stats.flights for stats in expected_stats().values()) // 2, 0, None
    with running(pipeline(cluster, checkpoint, output)) as job:
        for batch_id, flights in job.micro_batches():
            read += flights
            say(f"micro-batch {batch_id}: {read:,} flights")
            if killed_broker is None:
                killed_broker = kill_a_leader(cluster)
            elif read >= half:
                job.kill()
                say(
                    f"[bold red]SIGKILL to the job[/] after {read:,} flights: it is gone in the middle of a micro-batch"
                )
                return killed_broker
    raise JobFailedError(f"it ended after {read:,} flights, before it could be killed")


def kill_a_leader(cluster: LocalCluster) -> int:
    """Sends SIGKILL to the broker that leads most partitions of flights; returns its id when others lead them."""
    with Admin(cluster.bootstrap_servers) as admin:
        leaders = [partition.leader for partition in admin.describe_topic("flights").partitions]
        victim = max(cluster.broker_ids, key=leaders.count)
        led = [number for number, leader in enumerate(leaders) if leader == victim]
        cluster.kill(victim)
        killed_at = time.monotonic()
        say(f"[bold red]SIGKILL to broker {victim}[/], the leader of partition {listed(led)} of flights")
        while True:
            # Only leaders report offsets, so the brokers that report them lead.
            partitions = admin.describe_topic("flights").partitions
            if all(partitions[number].high_watermark >= 0 and partitions[number].leader != victim for number in led):
                break
            if time.monotonic() - killed_at > _FAILOVER_LIMIT_S:
                raise BrokerUnavailableError(f"nobody leads partition {listed(led)} after {_FAILOVER_LIMIT_S:g} s")
            time.sleep(0.02)
    heirs = sorted({partitions[number].leader or 0 for number in led})
    took_s = time.monotonic() - killed_at
    say(
        f"after {took_s:.1f} s broker {listed(heirs)} leads in its place, with all it had acknowledged; the job runs on"
    )
    return victim


def run_to_the_end(cluster: LocalCluster, killed_broker: int, checkpoint: Path, output: Path) -> int:
    """Starts the pipeline again, and the broker after its first micro-batch, and lets the pipeline read the rest.
    Returns how many micro-batches there were, in both runs."""
    with running(pipeline(cluster, checkpoint, output)) as job:
        is_back, micro_batches = False, 0
        for batch_id, flights in job.micro_batches():
            say(f"micro-batch {batch_id}: {flights:,} flights")
            micro_batches = batch_id + 1
            if not is_back:
                is_back = True
                cluster.start(killed_broker)
                say(f"broker {killed_broker} is started again, and copies what it missed from the others")
    cluster.wait_until_ready()
    say(f"broker {killed_broker} has caught up: every partition has three copies again")
    return micro_batches


def rows_of_figures(servers: str, level: Literal["read_committed", "read_uncommitted"]) -> Counter[str]:
    """How many rows a carrier has in the topic, for readers of this isolation level: those of uncommitted records also
    get what attempts wrote that do not count."""
    at, deadline = TopicPartition("carrier_stats", 0), time.monotonic() + _COUNT_LIMIT_S
    with Consumer(bootstrap_servers=servers, isolation_level=level, columns=["carrier"]) as consumer:
        consumer.assign([at])
        consumer.seek_to_beginning(at)
        end, rows = consumer.end_offsets([at])[at], Counter[str]()
        while consumer.position(at) < end:
            if time.monotonic() > deadline:
                raise BrokerUnavailableError(f"carrier_stats cannot be read to its end within {_COUNT_LIMIT_S:g} s")
            for found in consumer.poll_batches(timeout=0.5):
                rows.update(found.batch.column("carrier").to_pylist())
    return rows


def pipeline(cluster: LocalCluster, checkpoint: Path, output: Path) -> SparkJob:
    """Starts `flights_pipeline.py`."""
    return SparkJob(EXAMPLES / "flights_pipeline.py", cluster.bootstrap_servers, str(checkpoint), output=output)


def listed(numbers: Iterable[int]) -> str:
    """The numbers as text: "0", "0 and 2"."""
    return " and ".join(map(str, numbers))


@contextmanager
def running(job: SparkJob) -> Iterator[SparkJob]:
    """Makes sure that nothing of the job is left, whatever happens."""
    try:
        yield job
    finally:
        job.kill()


def step(number: int, text: str) -> None:
    """Prints a heading."""
    print_whole(f"\n[bold cyan]{number}/{STEPS}[/] [bold]{text}[/]")


def say(text: str) -> None:
    """Prints a line below a heading, with the seconds since the start."""
    print_whole(f"  [dim]{time.monotonic() - started_at:5.1f} s[/]  {text}")


def print_whole(text: str) -> None:
    """Prints a line without breaking it, even where the width of the terminal is unknown."""
    console.print(text, soft_wrap=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        console.print("\nInterrupted. All processes are stopped, all files removed.")
        sys.exit(130)
    except (PylogError, JobFailedError) as error:
        console.print(f"\n[bold red]The demo failed.[/] {error}", markup=True)
        sys.exit(1)
