"""Consume, transform, produce, exactly once: workers are killed again and again, and at the end everything is counted.

pylog up                                                    # in another terminal
python examples/exactly_once.py localhost:9192              # 2 workers, 10 kills, 4,000 payments; also: … 3 50 20000

A worker reads payments and writes a receipt for each. Its receipts, and how far it has read, are one transaction: both
become visible or neither does, so it does not matter at which line a worker dies. The process that takes its place has
the same transactional id, which aborts what was left open. Meanwhile, look at them with `pylog txn list`.
"""

import multiprocessing
import os
import random
import signal
import sys
import time
import uuid
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from pyspark_log import Admin, Consumer, Producer, Record, TopicPartition
from pyspark_log.errors import FencedError, ProducerFencedError

PARTITIONS = 4
LIMIT_S = 60.0  # for a worker to begin, for the last payments, and for the count


def work(name: str, bootstrap_servers: str, parent: Connection) -> None:
    """One worker: a receipt for each payment, until it is killed, or interrupted."""
    with (
        suppress(KeyboardInterrupt),
        Consumer(
            "payments",
            bootstrap_servers=bootstrap_servers,
            group_id="cashiers",
            group_instance_id=name,  # whoever has this name next has its partitions at once
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
        Producer(bootstrap_servers, transactional_id=name) as producer,
    ):
        parent.send("at work")
        while True:
            payments = consumer.poll(timeout=1.0, max_records=25)
            if not payments:
                continue
            mark = [("transaction", uuid.uuid4().bytes)]  # for the count at the end; the log needs no such thing
            began: dict[TopicPartition, int] = {}
            positions: dict[TopicPartition, int] = {}
            try:
                with producer.transaction():  # commits at the end, or aborts if anything in it raises
                    for payment in payments:
                        time.sleep(0.005)  # the work
                        producer.send("receipts", b"receipt of " + payment.value, headers=mark)
                        at = TopicPartition(payment.topic, payment.partition)
                        began.setdefault(at, payment.offset)
                        positions[at] = payment.offset + 1
                    producer.send_offsets_to_transaction(positions, consumer.group_metadata())
            except ProducerFencedError:
                raise  # another process has this name now
            except FencedError as error:
                # Others have some of its partitions by now, because it stood still, or they joined: they do that work.
                # Nothing of this transaction counts, so what it still has it reads again.
                print(f"{name} came too late ({error.code})", flush=True)
                for at in began.keys() & consumer.assignment():
                    consumer.seek(at, began[at])


def main(bootstrap_servers: str, workers: str = "2", kills: str = "10", payments: str = "4000") -> None:
    """Has workers write receipts for payments that come in meanwhile, kills them at random, and counts."""
    with Admin(bootstrap_servers) as admin:
        admin.create_topic("payments", partitions=PARTITIONS, exist_ok=True)
        admin.create_topic("receipts", partitions=PARTITIONS, exist_ok=True)
    seed = int(os.environ.get("SEED", time.time_ns() % 1_000_000))
    print(f"who is killed when: SEED={seed}", flush=True)
    kill_again_and_again(bootstrap_servers, int(workers), int(kills), int(payments), random.Random(seed))
    sys.exit(count(bootstrap_servers))


def kill_again_and_again(bootstrap_servers: str, workers: int, kills: int, payments: int, drawn: random.Random) -> None:
    """Sends the payments in ``kills`` portions; at a random moment after each a random worker is killed and replaced.
    Returns when a receipt was written for each."""
    spawning = multiprocessing.get_context("spawn")
    running: dict[str, BaseProcess] = {}

    def start(name: str) -> None:
        mine, its = spawning.Pipe()
        running[name] = spawning.Process(target=work, args=(name, bootstrap_servers, its), daemon=True)
        running[name].start()
        if not mine.poll(LIMIT_S):
            raise TimeoutError(f"{name} is not at work after {LIMIT_S:g} s")

    try:
        for number in range(1, workers + 1):
            start(f"cashier {number}")
        with Producer(bootstrap_servers) as producer, Admin(bootstrap_servers) as admin:
            for killed in range(kills):
                for number in range(payments * killed // kills, payments * (killed + 1) // kills):
                    producer.send("payments", f"payment {number}")
                producer.flush()
                time.sleep(drawn.uniform(0.0, 0.5))
                name = drawn.choice(sorted(running))
                running[name].kill()  # SIGKILL: it can clean nothing up
                running[name].join()
                start(name)
            print(f"killed {kills} times, each time in the middle of whatever it was doing", flush=True)
            deadline = time.monotonic() + LIMIT_S
            while sum(offset.lag for offset in admin.list_group_offsets("cashiers").values()):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"payments are left after {LIMIT_S:g} s")
                time.sleep(0.1)
        for process in running.values():
            os.kill(process.pid or 0, signal.SIGINT)
            process.join(LIMIT_S)
    finally:
        for process in running.values():
            process.kill()


def count(bootstrap_servers: str) -> int:
    """Prints what is in the log, and what a reader of committed records sees of it. Returns 0 if that is one receipt
    for each payment, else 1."""
    payments = Counter(b"receipt of " + record.value for record in everything(bootstrap_servers, "payments"))
    written = everything(bootstrap_servers, "receipts", isolation_level="read_uncommitted")
    committed = everything(bootstrap_servers, "receipts")
    begun, ended_well = ({record.headers[0] for record in records} for records in (written, committed))
    print(f"{len(begun)} transactions: {len(ended_well)} committed, {len(begun - ended_well)} aborted")
    print(f"{len(written)} receipts in the log: {len(committed)} committed, {len(written) - len(committed)} aborted")
    receipts = Counter(record.value for record in committed)
    missing, extra = (payments - receipts).total(), (receipts - payments).total()
    print(f"{payments.total()} payments: {missing} without a receipt, {extra} receipts too many")
    return 1 if missing or extra else 0


def everything(bootstrap_servers: str, topic: str, *, isolation_level: str = "read_committed") -> list[Record]:
    """All records of a topic, up to where it ends now. Waits for transactions that are open."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with Consumer(bootstrap_servers=bootstrap_servers, isolation_level="read_uncommitted") as consumer:
        ends = consumer.end_offsets(partitions)
    found: list[Record] = []
    deadline = time.monotonic() + LIMIT_S
    with Consumer(bootstrap_servers=bootstrap_servers, isolation_level=isolation_level) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} cannot be read to its end within {LIMIT_S:g} s")
            found += consumer.poll(timeout=0.2)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
