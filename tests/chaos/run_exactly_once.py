"""``python -m tests.chaos.run_exactly_once --minutes 3``: Spark queries whose drivers die, over brokers that fail.

Two queries copy one topic into another. Their drivers are killed at each named point of the sink (`sink_hooks`), at
random times, and frozen while the next one works; their workers and executors are killed, slow tasks are speculated,
and brokers and ZooKeeper fail as in `run`. At the end every input row must be in the output once for each query
(`exactly_once_verdict`), by a reader that ran all the time and by two that read then. Rule: however it ends, nothing
that it started is left.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final

import pyarrow as pa
import pyarrow.feather as feather

from pyspark_log import Admin, Consumer, Producer, TopicPartition, read
from pyspark_log.client.producer.delivery import BatchFuture
from pyspark_log.errors import PylogError
from tests.chaos.catalogue import Machine, catalogue, named
from tests.chaos.cluster import ChaosCluster
from tests.chaos.copying import WAYS_TO_DIE, CopyQuery, Deaths, spark_environment
from tests.chaos.exactly_once_verdict import Row, differences, judge
from tests.chaos.faults import Fault, Faults
from tests.chaos.report import end_on_sigterm
from tests.chaos.run import mend
from tests.chaos.sink_hooks import POINTS
from tests.chaos.spark_cluster import SparkCluster, cluster_settings
from tests.chaos.verdict import calm
from tests.waiting import comes_true

log = logging.getLogger("chaos")

SOURCE: Final = "input"
TARGET: Final = "output"
PARTITIONS: Final = 2  # of the input: so many tasks
OUTPUT_PARTITIONS: Final = 3
BROKER_FAULTS: Final = (
    "kill a broker", "stop a broker", "pause a broker", "kill the controller", "expire a session", "cut from ZooKeeper",
    "cut from clients", "cut from peers", "slow network", "kill ZooKeeper", "pause ZooKeeper", "kill all brokers",
)  # fmt: skip
_SENDING_LIMIT_S: Final = 320.0
_ENDS_LIMIT_S: Final = 120.0
_INTERVAL_S: Final = 0.1


@dataclass(slots=True)
class Outcome:
    """The outcome of a round."""

    deaths: Deaths = field(default_factory=Deaths)
    brokers: Counter[str] = field(default_factory=Counter)
    minutes: float = 0.0
    input_rows: int = 0
    written_rows: int = 0
    committed_rows: int = 0
    wrong: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The outcome for people."""
        deaths, width = self.deaths, max(map(len, POINTS)) + 2
        points = [*POINTS, *sorted(set(deaths.by_point) - set(POINTS))]
        of_brokers = ", ".join(f"{name} {count}" for name, count in sorted(self.brokers.items()))
        of_spark = ", ".join(f"{name} {count}" for name, count in sorted(deaths.faults.items()))
        ended = ", ".join(f"{why} {count}" for why, count in deaths.by_themselves.most_common())
        did = deaths.did
        return [
            f"drivers killed {deaths.killed} in {self.minutes:.1f} minutes: where, and for how many it was planned",
            *(f"    {point:<{width}} {deaths.by_point[point]:>4} of {deaths.armed[point]}" for point in points),
            f"never: {', '.join(deaths.never) or 'none'}",
            f"drivers that ended by themselves: {ended or 'none'}",
            f"faults of brokers and ZooKeeper: {of_brokers or 'none'}",
            f"faults of Spark's workers: {of_spark or 'none'}; tasks speculated {did['speculated']}, "
            f"attempts after a first one {did['attempted again']}",
            f"batches decided {did['decided']}, replayed {did['replayed']}; attempts prepared {did['prepared']}, "
            f"that found their batch decided {did['counted']} ({deaths.rows['counted']:,} rows counted)",
            f"input {self.input_rows:,} rows; output: written {self.written_rows:,}, "
            f"aborted {self.written_rows - self.committed_rows:,}, committed {self.committed_rows:,}",
            *(self.wrong or ["every input row is in the output once, and was shown once; nothing is open"]),
        ]


class Input(threading.Thread):
    """Sends numbered rows until it is stopped. ``count``: how many were acknowledged, once it has been stopped."""

    def __init__(self, servers: str, rate: int) -> None:
        super().__init__(name="input", daemon=True)
        self._servers = servers
        self._rows = max(1, int(rate * _INTERVAL_S / PARTITIONS))
        self._ending = threading.Event()
        self.count = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        futures: list[BatchFuture] = []
        try:
            with Producer(self._servers, delivery_timeout_ms=300_000, max_block_ms=300_000) as producer:
                sent = 0
                while not self._ending.wait(_INTERVAL_S):
                    for partition in range(PARTITIONS):  # all alike, so that every micro-batch has several tasks
                        values = [str(number).encode() for number in range(sent, sent + self._rows)]
                        table = pa.table({"value": pa.array(values, pa.binary())})
                        futures.append(producer.send_batch(SOURCE, table, partition=partition))
                        sent += len(values)
                for future in futures:
                    future.result(300)
                self.count = sent
        except BaseException as error:  # noqa: BLE001 - `stop` raises it
            self.error = error

    def stop(self) -> None:
        """Returns when everything is acknowledged. Raises `TimeoutError`, and why it could not be sent."""
        self._ending.set()
        self.join(_SENDING_LIMIT_S)
        if self.error is not None:
            raise self.error
        if self.is_alive():
            raise TimeoutError("the input has not been acknowledged")


class Reader(threading.Thread):
    """Reads the output's committed rows all the time, and never begins again. A context manager."""

    def __init__(self, servers: str) -> None:
        super().__init__(name="reader", daemon=True)
        self._servers = servers
        self._ending = threading.Event()
        self.shown: list[Row] = []
        self.failed: Counter[str] = Counter()
        self.error: BaseException | None = None
        self.ends: dict[int, int] = {}  # the positions, by partition

    def __enter__(self) -> Reader:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self.join(60.0)

    def run(self) -> None:
        partitions = [TopicPartition(TARGET, partition) for partition in range(OUTPUT_PARTITIONS)]
        try:
            with Consumer(bootstrap_servers=self._servers, auto_offset_reset="earliest") as consumer:
                consumer.assign(partitions)
                while not self._ending.is_set():
                    try:
                        for batch in consumer.poll_batches(timeout=0.5):
                            self.shown += _rows(batch.partition, batch.offsets, batch.batch)
                        self.ends = {at.partition: consumer.position(at) for at in partitions}
                    except PylogError as error:
                        self.failed[type(error).__name__] += 1
                        self._ending.wait(0.2)
        except BaseException as error:  # noqa: BLE001 - `wait_for` raises it
            self.error = error

    def wait_for(self, ends: dict[int, int]) -> list[str]:
        """Until it has come to these ends; what is wrong, a line each."""

        def is_there() -> bool:
            if self.error is not None:
                raise self.error
            return all(self.ends.get(partition, -1) >= end for partition, end in ends.items())

        if comes_true(is_there, _ENDS_LIMIT_S):
            return []
        return [f"the reader that ran all the time is at {self.ends}, and the ends are {ends}"]


def one_round(
    rng: random.Random,
    *,
    duration_s: float,
    zookeepers: int = 1,
    queries: int = 2,
    rate: int = 60,
    cluster_share: float = 0.2,
    only: str | None = None,
    has_broker_faults: bool = True,
) -> Outcome:
    """Runs one cluster and its queries, from start to verdict. A failed round keeps its directory.

    ``cluster_share``: the share of drivers whose executors are processes of their own.
    """
    without_disks = catalogue(Machine(has_small_disks=False, has_strace=False))
    kinds = [each for each in without_disks if each.name in BROKER_FAULTS]
    is_way_to_die = only is not None and any(only in name for name in WAYS_TO_DIE)
    if is_way_to_die:
        has_broker_faults = False
    else:
        kinds = named(kinds, only)
    directory = Path(tempfile.mkdtemp(prefix="pylog-chaos-once-"))
    outcome = Outcome()
    with ExitStack() as stack:
        cluster = stack.enter_context(ChaosCluster(brokers=3, zookeepers=zookeepers, directory=directory))
        servers = cluster.proxied_servers
        with Admin(servers) as admin:
            for topic, partitions in ((SOURCE, PARTITIONS), (TARGET, OUTPUT_PARTITIONS)):
                admin.create_topic(topic, partitions=partitions, replication_factor=3)
        spark_cluster = None
        if cluster_share > 0:
            (directory / "spark").mkdir()
            environment = spark_environment(directory / "spark")
            running = stack.enter_context(SparkCluster(directory / "spark", environment))
            spark_cluster = running.master, cluster_settings()
        reader = stack.enter_context(Reader(servers))
        copies = [
            CopyQuery(
                f"copy-{number}",
                directory / f"copy-{number}",
                servers=servers,
                source=SOURCE,
                target=TARGET,
                spark_cluster=spark_cluster,
                cluster_share=cluster_share,
                only=only if is_way_to_die else None,
                rng=random.Random(rng.randrange(1 << 32)),
            )
            for number in range(queries)
        ]
        rows = Input(servers, rate)
        rows.start()
        for copy in copies:
            stack.callback(copy.close)
        for copy in copies:
            copy.start()
        faults = Faults(cluster, TARGET, OUTPUT_PARTITIONS, rng)
        began_s = time.monotonic()
        until_s = began_s + duration_s
        while time.monotonic() < until_s and not any(copy.error or copy.deaths.wrong for copy in copies):
            _sleep(rng.uniform(3.0, 20.0), until_s)
            if has_broker_faults and time.monotonic() < until_s:
                _break_a_broker(faults, kinds, outcome, until_s)
        outcome.minutes = (time.monotonic() - began_s) / 60
        for copy in copies:
            copy.stop()
        rows.stop()
        outcome.input_rows = rows.count
        outcome.wrong += calm(cluster) + faults.wrong
        outcome.wrong += _judge(directory, servers, copies, reader, outcome)
        for copy in copies:
            outcome.deaths.add(copy.deaths)
        outcome.wrong += outcome.deaths.wrong
    if outcome.wrong:
        outcome.wrong.append(f"kept: {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return outcome


def _break_a_broker(faults: Faults, kinds: list[Fault], outcome: Outcome, until_s: float) -> None:
    fault = faults.rng.choice(kinds)
    undo = fault.begin(faults)
    if undo is None:
        return
    log.info("fault=%s", fault.name)
    outcome.brokers[fault.name] += 1
    _sleep(faults.rng.uniform(1.0, fault.longest_s), until_s)
    mend([(fault.name, undo)])


def _sleep(seconds: float, until_s: float) -> None:
    time.sleep(max(0.0, min(seconds, until_s - time.monotonic())))


def _judge(directory: Path, servers: str, copies: list[CopyQuery], reader: Reader, outcome: Outcome) -> list[str]:
    """Lets the queries come to their ends, and looks at everything."""
    wrong: list[str] = []
    for copy in copies:
        is_last = copy is copies[-1]
        wrong += copy.finish(read_to=directory / "by-spark.feather" if is_last else None)
    wrong += _nothing_is_open(servers)
    ends = _ends(servers)
    wrong += reader.wait_for(ends)
    found = _read_committed(servers)
    everything = _read_uncommitted(servers, ends)
    outcome.written_rows, outcome.committed_rows = len(everything), len(found)
    names = [copy.query for copy in copies]
    wrong += judge(range(outcome.input_rows), names, shown=reader.shown, found=found)
    wrong += [
        f"{line}, of those that are in the log" for line in differences(found, {*found} & {*everything}, ("a", "b"))
    ]
    by_spark = directory / "by-spark.feather"
    if by_spark.exists():
        wrong += differences(found, _rows_of(feather.read_table(by_spark)), ("read", "Spark"))
    with Admin(servers) as admin:
        for name in names:
            lags = {str(at): each.lag for at, each in admin.list_group_offsets(name).items() if each.lag}
            if lags:
                wrong.append(f"group {name} is not at the end: {lags}")
    return wrong


def _nothing_is_open(servers: str) -> list[str]:
    """Waits until no transaction is open, and every partition's last stable offset is its high watermark."""
    deadline_s = time.monotonic() + _ENDS_LIMIT_S
    with Admin(servers) as admin:
        while True:
            opened, silent = admin.list_open_transactions()
            unfinished = {
                each.transactional_id: each.unfinished for each in admin.list_transactions() if each.unfinished
            }
            behind = {
                each.partition: (each.last_stable_offset, each.high_watermark)
                for each in admin.describe_topic(TARGET).partitions
                if each.last_stable_offset != each.high_watermark
            }
            if not (opened or silent or unfinished or behind):
                return []
            if time.monotonic() > deadline_s:
                return [
                    f"open: {opened[:3]}; unfinished: {unfinished}; last stable offsets: {behind}; silent: {silent}"
                ]
            time.sleep(0.5)


def _ends(servers: str) -> dict[int, int]:
    with Admin(servers) as admin:
        return {each.partition: each.high_watermark for each in admin.describe_topic(TARGET).partitions}


def _read_committed(servers: str) -> list[Row]:
    table = read(TARGET, columns=["key", "value"], metadata=True, bootstrap_servers=servers).read_all()
    at = table.column("_metadata").combine_chunks()
    columns = {"partition": at.field("partition"), "offset": at.field("offset")}
    return _rows_of(pa.table({**columns, "key": table.column("key"), "value": table.column("value")}))


def _read_uncommitted(servers: str, ends: dict[int, int]) -> list[Row]:
    """All rows that are in the log, those that were aborted too."""
    rows: list[Row] = []
    partitions = [TopicPartition(TARGET, partition) for partition in ends]
    deadline_s = time.monotonic() + _ENDS_LIMIT_S
    with Consumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_uncommitted"
    ) as consumer:
        consumer.assign(partitions)
        while any(consumer.position(at) < ends[at.partition] for at in partitions):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the log cannot be read to its ends {ends}")
            for batch in consumer.poll_batches(timeout=0.5):
                rows += _rows(batch.partition, batch.offsets, batch.batch)
    return rows


def _rows(partition: int, offsets: pa.Array, batch: pa.RecordBatch) -> list[Row]:
    keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
    return [
        Row(partition, offset, key.decode(), int(value))
        for offset, key, value in zip(offsets.to_pylist(), keys, values, strict=True)
    ]


def _rows_of(table: pa.Table) -> list[Row]:
    columns = (table.column(name).to_pylist() for name in ("partition", "offset", "key", "value"))
    return [
        Row(partition, offset, key.decode(), int(value)) for partition, offset, key, value in zip(*columns, strict=True)
    ]


def main() -> int:
    """Returns the exit status: 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--zookeepers", type=int, default=1)
    parser.add_argument("--queries", type=int, default=2)
    parser.add_argument("--rate", type=int, default=20, help="input rows per second: no more than dying queries copy")
    parser.add_argument("--cluster-share", type=float, default=0.2, help="of the drivers whose executors are processes")
    parser.add_argument("--calm", action="store_true", help="brokers and ZooKeeper are left alone")
    parser.add_argument("--only", default=None, help="only points and faults whose name holds this")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    end_on_sigterm()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    log.info("seed=%d", seed)
    outcome = one_round(
        random.Random(seed),
        duration_s=arguments.minutes * 60,
        zookeepers=arguments.zookeepers,
        queries=arguments.queries,
        rate=arguments.rate,
        cluster_share=arguments.cluster_share,
        only=arguments.only,
        has_broker_faults=not arguments.calm,
    )
    print("\n".join(outcome.lines()))
    print(f"seed {seed}")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
