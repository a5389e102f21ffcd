"""A broker's registration: its ephemeral znode and its epoch.

    1  the epoch rises, alone: from here on nothing that an earlier life of the broker has under way succeeds
    2  lost directories are noted as lost; the broker leaves the in-sync sets that must no longer count on it
       (`returning`)
    3  the epoch is written into every data directory
    4  the ephemeral is created, and the directories are noted (`disks`), in one transaction that checks the epoch; if
       that has changed, everything begins again

Rules: each registration has a higher epoch than all before it. The znode that a killed predecessor left behind (it
stays until the session times out) is replaced at once if it names the same data directories: their lock, which the
caller holds, proves that the predecessor is dead. A znode with other directories is another broker's, or that of this
one's predecessor with another disk, which only the end of its session shows. It is refused before anything changes.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from broker_runtime.contract.errors import SetupError
from broker_runtime.contract.events import event
from broker_runtime.contract.model import TopicPartition
from broker_runtime.zookeeper.disks import DiskNews, Disks, Generation, next_record
from broker_runtime.zookeeper.guarded import Guard, Planned, change
from broker_runtime.zookeeper.returning import Return, leave_in_sync_sets, missed_logs
from broker_runtime.zookeeper.session import (
    Check,
    Create,
    Delete,
    NoNodeError,
    Operation,
    Set,
    ZNodeError,
    ZooKeeperClient,
)
from broker_runtime.zookeeper.znodes import (
    BrokerEpoch,
    BrokerRegistration,
    DiskRecord,
    DiskTroubles,
    Endpoint,
    announcing,
    broker_disks_path,
    broker_epoch_path,
    broker_path,
    broker_unwritable_path,
    from_json,
    to_json,
)

_logger = logging.getLogger(__name__)

_MOST_NAMED: Final = 10_000  # partitions in a report
_REGISTER_LIMIT_S: Final = 300.0  # an attempt reads all topics, and may ask many brokers whether they serve


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """The part of a registration that does not change during a process's life; see `BrokerRegistration`.

    ``was_clean``: every data directory was closed in order, so that nothing its logs had is missing. ``disks``: the
    data directories; None: the broker has none that count.
    """

    broker_id: int
    host: str
    port: int
    instance: str
    pid: int
    boot_id: str
    software_version: str
    was_clean: bool = False
    disks: Disks | None = None
    endpoints: tuple[Endpoint, ...] = ()
    secret: str = field(default="", repr=False)  # of the process; each registration's own is derived from it


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A registration that was made: its epoch, and the session it lives and ends with."""

    broker_id: int
    epoch: int
    session: int
    secret: str = field(default="", repr=False)

    @property
    def guard(self) -> Guard:
        """For writes that succeed only while this is the broker's newest registration."""
        return Guard(Check(broker_epoch_path(self.broker_id), self.epoch), self.session)


def register(
    client: ZooKeeperClient,
    identity: BrokerIdentity,
    *,
    now_ms: int,
    answers: Callable[[str, int], bool] = lambda host, port: True,
) -> Membership:
    """Registers the broker in the client's present session. Called again in the same session, it finds its znode.

    ``answers(host, port)``: whether another broker serves there now; a registered broker that does not may be
    dead, its session not timed out yet. Used only after an unclean stop. Raises `SetupError` if another broker has the
    id, `ZooKeeperUnavailableError` while ZooKeeper is away or if its znodes keep changing, `OSError` if a disk cannot
    be read.
    """

    def on_conflict(refusal: ZNodeError) -> None:
        event(_logger, "register broker again", broker=identity.broker_id, znode=refusal.path)

    return change(
        client,
        lambda: Planned(_register_once(client, identity, now_ms, answers)),
        what=f"the registration of broker {identity.broker_id}",
        on_conflict=on_conflict,
        limit_s=_REGISTER_LIMIT_S,
    )


def zookeepers_ms(client: ZooKeeperClient, membership: Membership) -> int | None:
    """The time on ZooKeeper's clock when the registration began; None: not known.

    Raises `ZooKeeperUnavailableError`.
    """
    node = client.find(broker_epoch_path(membership.broker_id))
    return node.modified_ms or None if node is not None and node.version == membership.epoch else None


def mark_stopping(client: ZooKeeperClient, membership: Membership) -> None:
    """Announces that the broker is stopping: others take over what they can. Idempotent; does nothing if the
    registration is gone. Raises `ZooKeeperUnavailableError`."""
    path = broker_path(membership.broker_id)

    def plan() -> Planned[bool]:
        node = client.find(path)
        present = None if node is None else from_json(node.data, BrokerRegistration, path)
        if node is None or present is None or present.is_stopping or present.epoch != membership.epoch:
            return Planned(False)
        stopping = Set(path, to_json(msgspec.structs.replace(present, is_stopping=True)), node.version)
        return Planned(True, [stopping, announcing(())])

    if change(client, plan, what=path, session=membership.session):
        event(_logger, "mark broker stopping", broker=membership.broker_id, epoch=membership.epoch)


def deregister(client: ZooKeeperClient, membership: Membership) -> None:
    """Removes the registration, so that others know at once. Raises `ZooKeeperUnavailableError`."""
    try:
        client.delete(broker_path(membership.broker_id), session=membership.session)
    except NoNodeError:
        return
    event(_logger, "deregister broker", broker=membership.broker_id, epoch=membership.epoch)


def note_stopped(client: ZooKeeperClient, broker_id: int, disks: Disks, failed: Collection[TopicPartition]) -> None:
    """Notes which of these data directories were closed in order, and say so durably: a copy that does not was made
    earlier. Only for the present registration's epoch; does nothing if there was another since. ``failed``: all logs
    that a disk error ended, perhaps when they were closed; they are reported as `DiskTroubles.failed`.

    Done last, so that no good disk is taken for an older one, however the stop ends. Raises
    `ZooKeeperUnavailableError`.
    """
    path, epoch_path = broker_disks_path(broker_id), broker_epoch_path(broker_id)
    stopped, epochs = disks.stopped(), disks.epochs()

    def plan() -> Planned[None]:
        node, epoch_node = client.find(path), client.find(epoch_path)
        if node is None or epoch_node is None:
            return Planned(None)
        known = from_json(node.data, DiskRecord, path)
        epoch = epoch_node.version
        ended = {
            each: epoch
            for each in stopped
            if stopped[each] == epoch and each in known.directories and known.stopped.get(each) != epoch
        }
        writes: list[Operation] = []
        if ended:
            record = msgspec.structs.replace(known, stopped={**known.stopped, **ended})
            writes.append(Set(path, to_json(record), node.version))
        if failed and epoch in epochs.values():
            writes += _report_failed(client, broker_id, epoch, failed)
        return Planned(None, [Check(epoch_path, epoch), *writes] if writes else [])

    change(client, plan, what=path)


def _report_failed(
    client: ZooKeeperClient, broker_id: int, epoch: int, failed: Collection[TopicPartition]
) -> list[Operation]:
    path = broker_unwritable_path(broker_id)
    node = client.find(path)
    reported = DiskTroubles(epoch=epoch, partitions={})
    if node is not None:
        found = from_json(node.data, DiskTroubles, path)
        reported = found if found.epoch == epoch else reported
    new = [at for at in failed if not reported.has_failed(at.topic, at.partition)]
    if not new:
        return []
    named: dict[str, tuple[int, ...]] | None = None
    if reported.failed is not None and len(failed) <= _MOST_NAMED:
        together = {topic: set(numbers) for topic, numbers in reported.failed.items()}
        for at in new:
            together.setdefault(at.topic, set()).add(at.partition)
        named = {topic: tuple(sorted(numbers)) for topic, numbers in sorted(together.items())}
    data = to_json(msgspec.structs.replace(reported, failed=named))
    return [Create(path, data) if node is None else Set(path, data, node.version)]


def note_generations(client: ZooKeeperClient, membership: Membership, found: Mapping[str, Generation]) -> None:
    """Notes the generations that these data directories show durably: a directory with an older one is a copy that was
    made earlier. One read, and one small write if something changed. ``found``: see `Disks.generations`.

    Raises `GuardFailedError` if a later life of the broker has begun, `ZooKeeperUnavailableError`. Idempotent.
    """
    path = broker_disks_path(membership.broker_id)

    def plan() -> Planned[None]:
        node = client.find(path)
        if node is None:
            return Planned(None)
        known = from_json(node.data, DiskRecord, path)
        newer = {
            each: there
            for each, there in found.items()
            if each in known.directories and there > (known.directories[each], known.generations.get(each, 0))
        }
        if not newer:
            return Planned(None)
        record = msgspec.structs.replace(
            known,
            directories={**known.directories, **{each: there.epoch for each, there in newer.items()}},
            generations={**known.generations, **{each: there.number for each, there in newer.items()}},
        )
        return Planned(None, [Set(path, to_json(record), node.version)])

    change(client, plan, what=path, guard=membership.guard)


def _register_once(
    client: ZooKeeperClient, identity: BrokerIdentity, now_ms: int, answers: Callable[[str, int], bool]
) -> Membership:
    path, epoch_path = broker_path(identity.broker_id), broker_epoch_path(identity.broker_id)
    session = client.session_id
    operations: list[Operation] = []
    there = client.find(path)
    if there is not None:
        other = from_json(there.data, BrokerRegistration, path)
        if other.instance != identity.instance:
            raise SetupError(
                f"broker.id {identity.broker_id} is registered by {other.host}:{other.port} pid {other.pid}, "
                "which has other data directories. Choose another broker.id, or stop that broker"
            )
        if there.owner == session != 0:
            return Membership(broker_id=identity.broker_id, epoch=other.epoch, session=session, secret=other.secret)
        operations.append(Delete(path, there.version))
        event(_logger, "replace registration", broker=identity.broker_id, epoch=other.epoch, pid=other.pid)
    epoch = _next_epoch(client, epoch_path, session)
    check = Check(epoch_path, epoch)
    disks = identity.disks
    disks_path = broker_disks_path(identity.broker_id)
    disks_node = None if disks is None else client.find(disks_path)
    known = None if disks_node is None else from_json(disks_node.data, DiskRecord, disks_path)
    news = _news(known, disks)
    if disks_node is not None and known is not None and news.lost.difference(known.sought):
        # Before any mark: if this start ends here, the marks are removed when the directory is back at a later one.
        older = known.older if known.older and missed_logs(client, identity.broker_id) else ()
        known = msgspec.structs.replace(known, sought=tuple(sorted({*known.sought, *news.lost})), older=older)
        client.transaction([check, Set(disks_path, to_json(known), disks_node.version)], session=session)
        disks_node = client.get(disks_path)
        news = _news(known, disks)
    for disk_id in news.lost:
        event(_logger, "lose data directory", level=logging.ERROR, broker=identity.broker_id, disk_id=disk_id)
    reported_path = broker_unwritable_path(identity.broker_id)
    reported = client.find(reported_path)
    troubles = DiskTroubles(epoch=-1) if reported is None else from_json(reported.data, DiskTroubles, reported_path)
    returning = Return(
        broker_id=identity.broker_id,
        epoch=check,
        session=session,
        was_clean=identity.was_clean,
        has_lost_power=known is None or not identity.boot_id or known.boot_id != identity.boot_id,
        disks=disks,
        news=news,
        troubles=troubles,
        answers=answers,
    )
    leave_in_sync_sets(client, returning)
    if reported is not None:
        operations.append(Delete(reported_path, reported.version))
    if disks is not None:
        present = disks.remember(epoch, news.outdated)
        record = next_record(known, present, identity.boot_id)
        if record.older or not returning.changes_nothing:
            record = _with_older(client, identity.broker_id, record, disks)
        operations.append(
            Create(disks_path, to_json(record))
            if disks_node is None
            else Set(disks_path, to_json(record), disks_node.version)
        )
    registration = BrokerRegistration(
        host=identity.host,
        port=identity.port,
        epoch=epoch,
        instance=identity.instance,
        pid=identity.pid,
        boot_id=identity.boot_id,
        software_version=identity.software_version,
        registered_at_ms=now_ms,
        secret=_secret_of(identity, epoch),
        endpoints=identity.endpoints,
    )
    operations = [check, *operations, Create(path, to_json(registration), ephemeral=True)]
    client.transaction(operations, session=session)
    event(
        _logger, "register broker", broker=identity.broker_id, epoch=epoch, address=f"{identity.host}:{identity.port}"
    )
    return Membership(broker_id=identity.broker_id, epoch=epoch, session=session, secret=registration.secret)


def _news(record: DiskRecord | None, disks: Disks | None) -> DiskNews:
    return DiskNews.of(record, {} if disks is None else disks.generations(), () if disks is None else disks.stopped())


def _with_older(client: ZooKeeperClient, broker_id: int, record: DiskRecord, disks: Disks) -> DiskRecord:
    """The log that is missed is in none of the directories that could have it by name."""
    missed = missed_logs(client, broker_id)
    places = [disks.place_of(at, topic_id) for at, topic_id in missed]
    older = {place.disk_id for place in places if place is not None}
    return msgspec.structs.replace(record, older=tuple(sorted(older.union(record.older))) if missed else ())


def _secret_of(identity: BrokerIdentity, epoch: int) -> str:
    """A new secret for each registration, so that those of earlier ones prove nothing."""
    if not identity.secret:
        return ""
    return hmac.digest(identity.secret.encode(), b"%d" % epoch, "sha256").hex()


def _next_epoch(client: ZooKeeperClient, path: str, session: int) -> int:
    """Raises the epoch. It is the znode's version, so that a check of the version is a check of the epoch."""
    node = client.find(path)
    if node is None:
        client.create(path, to_json(BrokerEpoch(epoch=0)))
        node = client.get(path)
    return client.set(path, to_json(BrokerEpoch(epoch=node.version + 1)), version=node.version, session=session)
