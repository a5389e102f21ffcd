"""The faults, each a pair: break something, and repair it after a while. A seed decides which, where and for how
long.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from pyspark_log import Admin, TopicPartition
from pyspark_log.errors import PylogError
from tests.chaos.cluster import ChaosCluster, broker_name

log = logging.getLogger(__name__)

Undo = Callable[[], None]

_FILL_STEP_BYTES: Final = 256 << 10
_ZOOKEEPER_LIMIT_S: Final = 5.0
_SESSION_TIMEOUT_S: Final = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """``begin`` breaks something and returns the function that repairs it; None: it could not be done just now."""

    name: str
    begin: Callable[[Faults], Undo | None]
    longest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A bit that was flipped in a broker's file: which file, where, and the new byte."""

    broker_id: int
    partition: int
    path: Path
    inode: int
    position: int
    value: int

    def is_there(self) -> bool:
        """Whether the damage is still in the log, that is, has not been found yet."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.position)
                return os.fstat(file.fileno()).st_ino == self.inode and file.read(1) == bytes([self.value])
        except FileNotFoundError:
            return False


class Faults:
    """Everything that can be broken in one cluster. Not thread-safe."""

    def __init__(self, cluster: ChaosCluster, topic: str, partitions: int, rng: random.Random) -> None:
        self.cluster = cluster
        self.topic = topic
        self.partitions = partitions
        self.rng = rng
        self.busy: set[int] = set()  # brokers that a fault keeps down
        self.flips: list[Flip] = []
        self.wrong: list[str] = []  # what a fault observed that must not be
        self.others_are_under_way = False  # while a fault begins: whether another one has begun and is not repaired
        self._orders: list[tuple[int, ...]] = []

    def pick(self) -> int | None:
        """A broker that runs and is not kept down; None if there is none."""
        free = [b for b in self.cluster.broker_ids if b not in self.busy and self.cluster.is_running(b)]
        return self.rng.choice(free) if free else None

    def next_order(self) -> tuple[int, ...]:
        """An order of all brokers; none is repeated before all others were used."""
        brokers = set(self.cluster.broker_ids)
        self._orders = [order for order in self._orders if set(order) == brokers]
        if not self._orders:
            self._orders = list(itertools.permutations(sorted(brokers)))
            self.rng.shuffle(self._orders)
        return self._orders.pop()

    def controller(self) -> int | None:
        """The controller, as a broker reports it."""
        try:
            with Admin(self.cluster.proxied_servers, request_timeout_ms=3_000) as admin:
                return admin.describe_cluster().controller_id
        except PylogError:
            return None


def hold(faults: Faults, broker_id: int | None, begin: Callable[[int], Undo | None]) -> Undo | None:
    if broker_id is None or broker_id in faults.busy:
        return None
    undo = begin(broker_id)
    if undo is None:
        return None
    faults.busy.add(broker_id)

    def mend() -> None:
        undo()
        faults.busy.discard(broker_id)

    return mend


def killed(faults: Faults, broker_id: int) -> Undo:
    faults.cluster.kill(broker_id)
    return lambda: faults.cluster.start(broker_id)


def stopped(faults: Faults, broker_id: int) -> Undo:
    faults.cluster.stop(broker_id)
    return lambda: faults.cluster.start(broker_id)


def paused(faults: Faults, broker_id: int) -> Undo:
    faults.cluster.pause(broker_id)
    return lambda: faults.cluster.resume(broker_id)


def cut(faults: Faults, broker_id: int, others: Sequence[str], *, one_way: bool = False) -> Undo:
    network, name = faults.cluster.network, broker_name(broker_id)
    links = [(name, other) for other in others]
    links += [(other, name) for other in others if other.startswith("broker-") or other == "client"]
    links = [(source, target) for source, target in links if target != "client"]
    for source, target in links:
        network.cut(source, target, one_way=one_way)

    def heal() -> None:
        for source, target in links:
            network.heal(source, target)

    return heal


def peers(faults: Faults, broker_id: int) -> list[str]:
    return [broker_name(other) for other in faults.cluster.broker_ids if other != broker_id]


def slow(faults: Faults, broker_id: int) -> Undo:
    network, name = faults.cluster.network, broker_name(broker_id)
    delay_s = faults.rng.uniform(0.02, 0.2)
    links = [(source, name) for source in (*peers(faults, broker_id), "client")]
    links += [(name, target) for target in (*peers(faults, broker_id), "zookeeper")]
    for source, target in links:
        network.delay(source, target, delay_s)

    def heal() -> None:
        for source, target in links:
            network.delay(source, target, 0.0)

    return heal


def zookeeper_killed(faults: Faults) -> Undo:
    server = faults.rng.choice(faults.cluster.zookeeper_ids)
    faults.cluster.kill_zookeeper(server)
    return lambda: faults.cluster.start_zookeeper(server)


def zookeeper_paused(faults: Faults) -> Undo:
    server = faults.rng.choice(faults.cluster.zookeeper_ids)
    faults.cluster.pause_zookeeper(server)
    return lambda: faults.cluster.resume_zookeeper(server)


def session_expired(faults: Faults, broker_id: int) -> Undo | None:
    """Somebody else who knows the password of its ZooKeeper session closes it: for the broker that is an expiry."""
    session = faults.cluster.zookeeper_session(broker_id)
    if session is None:
        return None
    servers = faults.cluster.zookeeper_connect.partition("/")[0]
    other = KazooClient(hosts=servers, client_id=session, timeout=_SESSION_TIMEOUT_S)
    try:
        other.start(_ZOOKEEPER_LIMIT_S)
        was_its_own = other.client_id is not None and other.client_id[0] == session[0]
    except (KazooException, KazooTimeoutError) as error:
        log.info("cannot expire broker=%d error=%r", broker_id, error)
        return None
    finally:
        other.stop()  # closes the session
        other.close()
    log.info("expired broker=%d session=%#x done=%s", broker_id, session[0], was_its_own)
    return (lambda: None) if was_its_own else None


def disk_full(faults: Faults, broker_id: int) -> Undo:
    """The free space of a data directory is used up; only on a disk of limited size."""
    ballast = faults.cluster.log_dirs(broker_id)[0].parent / "ballast"
    try:
        with ballast.open("wb") as file:
            while True:
                file.write(bytes(_FILL_STEP_BYTES))
                file.flush()
    except OSError:
        log.info("full broker=%d", broker_id)

    def mend() -> None:
        ballast.unlink(missing_ok=True)
        # A log on a full disk is offline until its broker restarts.
        faults.cluster.stop(broker_id)
        faults.cluster.start(broker_id)

    return mend


def bit_flipped(faults: Faults) -> Undo | None:
    """Flips one bit of a closed segment of a follower while it is down, as a bad disk would.

    Only one replica of a partition is ever damaged: nobody can repair what all of them have lost.
    """
    broker_id = faults.pick()
    if broker_id is None:
        return None
    log_dir = faults.cluster.log_dirs(broker_id)[0]
    segments = [
        segment
        for partition in _followed(faults, broker_id)
        if all(flip.broker_id == broker_id for flip in faults.flips if flip.partition == partition)
        for segment in sorted((log_dir / f"{faults.topic}-{partition}").glob("*.log"))[:-1]
    ]
    if not segments:
        return None
    segment = faults.rng.choice(segments)

    def begin(broker_id: int) -> Undo:
        faults.cluster.stop(broker_id)
        partition = int(segment.parent.name.rpartition("-")[2])
        faults.flips.append(_flip(segment, faults.rng, broker_id, partition))
        return lambda: faults.cluster.start(broker_id)

    return hold(faults, broker_id, begin)


def _followed(faults: Faults, broker_id: int) -> list[int]:
    """The partitions that the broker follows."""
    try:
        with Admin(faults.cluster.proxied_servers, request_timeout_ms=3_000) as admin:
            partitions = admin.describe_topic(faults.topic).partitions
    except PylogError:
        return []
    return [
        each.partition for each in partitions if broker_id in each.replicas and each.leader not in {None, broker_id}
    ]


def _flip(path: Path, rng: random.Random, broker_id: int, partition: int) -> Flip:
    position, bit = rng.randrange(path.stat().st_size), rng.randrange(8)
    with path.open("r+b") as file:
        file.seek(position)
        value = file.read(1)[0] ^ 1 << bit
        file.seek(position)
        file.write(bytes([value]))
    log.info("flip a bit path=%s position=%d bit=%d", path, position, bit)
    return Flip(
        broker_id=broker_id, partition=partition, path=path, inode=path.stat().st_ino, position=position, value=value
    )


def partitions_moved(faults: Faults) -> Undo | None:
    try:
        with Admin(faults.cluster.proxied_servers, request_timeout_ms=10_000) as admin:
            live = sorted(admin.describe_cluster().brokers)
            if len(live) < 3:
                return None
            admin.reassign_partitions(
                {
                    TopicPartition(faults.topic, partition): faults.rng.sample(live, 3)
                    for partition in range(faults.partitions)
                    if faults.rng.random() < 0.5
                }
            )
    except PylogError as error:
        log.info("cannot move error=%s", error)
        return None
    return lambda: None


def broker_added(faults: Faults) -> Undo | None:
    if len(faults.cluster.broker_ids) >= 5:
        return None
    try:
        log.info("added broker=%d", faults.cluster.add_broker())
    except PylogError as error:
        log.info("cannot add error=%s", error)
        return None
    return partitions_moved(faults) or (lambda: None)


def topic_comes_and_goes(faults: Faults) -> Undo | None:
    name = f"passing-{faults.rng.randrange(1_000_000)}"
    try:
        with Admin(faults.cluster.proxied_servers, request_timeout_ms=10_000) as admin:
            admin.create_topic(name, partitions=3, replication_factor=min(3, len(admin.describe_cluster().brokers)))
    except PylogError as error:
        log.info("cannot create error=%s", error)
        return None

    def delete() -> None:
        try:
            with Admin(faults.cluster.proxied_servers, request_timeout_ms=20_000) as admin:
                admin.delete_topic(name, missing_ok=True)
        except PylogError as error:
            log.info("cannot delete error=%s", error)

    return delete
