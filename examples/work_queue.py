"""A work queue: several processes share the jobs of a topic, because they consume with the same group id.

pylog up                                                    # in another terminal
python examples/work_queue.py localhost:9192                # 3 workers, 30 jobs; also: … localhost:9192 5 100

Each job is given to one worker. It is acknowledged when it is done, so a job whose worker dies is done by another.
Meanwhile, look at them with `pylog group describe workers`.
"""

import multiprocessing
import sys
import time

from pyspark_log import Admin, Consumer, Producer
from pyspark_log.errors import FencedError

PARTITIONS = 4  # at most this many workers have something to do at a time
IDLE_S = 5.0  # longer than a partition takes to move to a worker that joined: 3 s at most


def work(name: str, bootstrap_servers: str, all_are_there: "multiprocessing.synchronize.Barrier") -> None:
    """One worker: takes a job, does it, acknowledges it; ends when there is none for a while."""
    with Consumer(
        "jobs",
        bootstrap_servers=bootstrap_servers,
        group_id="workers",
        client_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        all_are_there.wait(60)
        # One job at a time: jobs that were not returned yet can go to a worker that joins.
        while records := consumer.poll(timeout=IDLE_S, max_records=1):
            for job in records:
                time.sleep(0.2)  # the work
                try:
                    consumer.commit(job)
                except FencedError:  # this worker was away for too long, and another has the partition
                    said = f"{name} was late with {job.value.decode()}; another does it again"
                else:
                    said = f"{name} did {job.value.decode()}"
                print(said + "\n", end="", flush=True)  # in one piece, as all workers write to the same output


def main(bootstrap_servers: str, workers: str = "3", jobs: str = "30") -> None:
    """Fills the queue, and has the workers empty it."""
    with Admin(bootstrap_servers) as admin:
        admin.create_topic("jobs", partitions=PARTITIONS, exist_ok=True)
    with Producer(bootstrap_servers) as producer:
        for number in range(int(jobs)):
            producer.send("jobs", f"job {number}".encode())  # without a key: spread evenly over the partitions

    spawning = multiprocessing.get_context("spawn")
    all_are_there = spawning.Barrier(int(workers))
    names = [f"worker {number}" for number in range(1, int(workers) + 1)]
    processes = [spawning.Process(target=work, args=(name, bootstrap_servers, all_are_there)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    with Admin(bootstrap_servers) as admin:
        left = sum(offset.lag for offset in admin.list_group_offsets("workers").values())
    print(f"{left} jobs are left")


if __name__ == "__main__":
    main(*sys.argv[1:])
