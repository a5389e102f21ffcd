"""The znodes of a cluster: their paths and what is in them, all below the chroot of ``zookeeper.connect``.

    path                                  what                                               written by
    /cluster/id                           `ClusterIdentity`                                  the first broker
    /brokers/ids/<id>          ephemeral  `BrokerRegistration`                               that broker
    /brokers/epochs/<id>                  `BrokerEpoch`, counts the broker's registrations   that broker
    /brokers/disks/<id>                   `DiskRecord`: the data directories of its last     that broker
                                          registration, which have that one's epoch on disk
    /brokers/unwritable/<id>              `DiskTroubles`, where a disk takes no records,     that broker
                                          a log is damaged, or one is kept
    /controller                ephemeral  `ControllerClaim`                                  the controller
    /controller_epoch                     a number; its version guards the controller's      a new controller
                                          other writes, all in one multi with a check of it
    /topics/<name>                        `TopicRecord`                                      the controller
    /topics/<name>/partitions/<p>/state   `PartitionState`, changed by compare-and-set       controller, leader
    /config/topics/<name>                 `TopicConfig`                                      the controller
    /admin/delete_topics/<name>           `DeletionRecord`: while it is there the topic      the controller
                                          is being deleted
    /admin/deleted_logs/<topic id>        `DeletedLogs`: brokers that still have to remove   the controller, then
                                          the logs of a topic that is gone                   each of them
    /admin/draining/<id>                  `DrainingBroker`: it gets no new replicas          the controller
    /changes                              `ChangeNews`: what the last change of topics       whoever changed it
                                          was about; its version counts the changes
    /consumers/<group>/coordinator        `GroupClaim`; its version guards all else about    the group's coordinator
                                          the group, in one multi with a check of it
    /consumers/<group>/members            `GroupMembers`, all in one znode                   the group's coordinator
    /consumers/<group>/offsets/<topic>    `GroupOffsets`, all partitions in one znode        the group's coordinator
    /producer_id_block                    `ProducerIdBlock`: the first id not given out      a broker
    /transactions/<id>                    `TransactionRecord`: what was decided for a        any broker
                                          transactional id, changed by compare-and-set
    /security/users                       `UsersRecord`: users and their passwords' hashes   any broker, or an operator
    /security/acls                        `AclsRecord`: who may do what                      any broker
    /security/token_key                   `TokenKey`: what tokens are signed with            any broker
    /security/quotas                      `QuotasRecord`: how much clients may take          any broker

Every transaction that changes a topic's record, settings, states or deletion also contains `announcing` its name, so
that a data watch on one znode tells every broker what to read again.

Everything is JSON, so that an operator can read it with any ZooKeeper shell; bytes are base64, times are ms. A field
added later has a default; a reader ignores what it does not know. A large group's members and offsets, and a large
decision, are compressed (zlib).
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from typing import Annotated, Final, TypeVar

import msgspec

from broker_runtime.contract.acls import Acl, PasswordHash
from broker_runtime.contract.errors import CorruptRecordError, InvalidRequestError
from broker_runtime.contract.quotas import Quota
from broker_runtime.contract.requests import Int32, Int64, PartitionNumber, Uuid, WaitMs
from broker_runtime.zookeeper.session import ANY_VERSION, MAX_REQUEST_BYTES, Set

CLUSTER_ID: Final = "/cluster/id"
BROKER_IDS: Final = "/brokers/ids"
BROKER_EPOCHS: Final = "/brokers/epochs"
BROKER_DISKS: Final = "/brokers/disks"
BROKER_UNWRITABLE: Final = "/brokers/unwritable"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
TOPICS: Final = "/topics"
TOPIC_CONFIGS: Final = "/config/topics"
TOPIC_DELETIONS: Final = "/admin/delete_topics"
DELETED_LOGS: Final = "/admin/deleted_logs"
DRAINING: Final = "/admin/draining"
CHANGES: Final = "/changes"
CONSUMERS: Final = "/consumers"
PRODUCER_ID_BLOCK: Final = "/producer_id_block"
TRANSACTIONS: Final = "/transactions"
SECURITY_USERS: Final = "/security/users"
SECURITY_ACLS: Final = "/security/acls"
SECURITY_TOKEN_KEY: Final = "/security/token_key"  # noqa: S105 - a path
SECURITY_QUOTAS: Final = "/security/quotas"

PERMANENT: Final = (
    "/cluster", BROKER_IDS, BROKER_EPOCHS, BROKER_DISKS, BROKER_UNWRITABLE, TOPICS, TOPIC_CONFIGS, TOPIC_DELETIONS,
    DELETED_LOGS, DRAINING, CHANGES, CONSUMERS, TRANSACTIONS,
)  # fmt: skip
"""Created by every broker that starts, unless they exist."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the contents of znodes."""


class ClusterIdentity(Record, frozen=True, kw_only=True):
    """Written once; data directories remember it."""

    cluster_id: str


class Endpoint(Record, frozen=True, kw_only=True):
    """Where a broker is reached through one of its listeners."""

    name: str
    security_protocol: str
    host: str
    port: int


class BrokerRegistration(Record, frozen=True, kw_only=True):
    """A live broker. ``host``, ``port``: where other brokers reach it. ``instance``: of its data directories, so a
    broker knows its own killed predecessor.

    ``boot_id``: of the machine; a changed one distinguishes a power loss from the death of a process. ``is_stopping``:
    it leads and is in sync only if nobody else can. Nothing else in a registration changes, so a version above zero
    says the same.
    """

    host: str
    port: int
    epoch: int
    instance: str
    pid: int
    boot_id: str = ""
    software_version: str = ""
    registered_at_ms: int = 0
    is_stopping: bool = False
    secret: str = ""  # by which the broker proves to others who it is; in no answer, no log, no repr
    endpoints: tuple[Endpoint, ...] = ()  # all listeners, ``host`` and ``port`` among them; none: an older broker's

    def address_at(self, listener: str) -> tuple[str, int] | None:
        """Host and port of the broker's listener of that name; None: it has none such. A broker that does not say, or
        a caller without a listener: where other brokers reach it."""
        if not self.endpoints or not listener:
            return self.host, self.port
        return next(((each.host, each.port) for each in self.endpoints if each.name == listener), None)

    def __repr__(self) -> str:
        return f"BrokerRegistration(host={self.host!r}, port={self.port}, epoch={self.epoch}, pid={self.pid})"


class BrokerEpoch(Record, frozen=True, kw_only=True):
    """The epoch of the last registration of a broker. Invariant: it is the version of the znode."""

    epoch: int


class DiskRecord(Record, frozen=True, kw_only=True):
    """The data directories of a broker's last registration, by their ids: the epoch that each shows on its disk, or a
    higher one. ``missing``: those of earlier registrations that were not there, the newest last. ``boot_id``: as in
    `BrokerRegistration`, and it stays when the broker is gone. ``stopped``: those that were closed in order, and say so
    themselves, and in which epoch; of these an orderly stop was the end. ``generations``: a generation that each showed
    on its disk in that epoch (absent: 0); by now it may show a higher one. ``sought``: those of ``directories`` that a
    later start did not find; it may have written `PartitionState.lost`, and did not register. ``older``: those that
    were registered with a log which was not the one that is missed, as long as any is.
    """

    boot_id: str = ""
    directories: dict[str, int] = {}
    missing: dict[str, int] = {}
    stopped: dict[str, int] = {}
    generations: dict[str, int] = {}
    sought: tuple[str, ...] = ()
    older: tuple[str, ...] = ()


class DiskTroubles(Record, frozen=True, kw_only=True):
    """The data directories of a broker that take no records at present: what is wrong, by path, and the partitions that
    are concerned, by topic (None: too many to name; count on none).

    ``epoch``: the registration in which this was reported; it says nothing about others. ``damaged``: the partitions
    whose logs the broker found damaged, by topic; if very many, some of them. Elections do not depend on them: a broker
    leaves the in-sync set of such a partition by itself if another can lead. ``diverged``: paths of logs that it set
    aside as diverged and keeps; if very many, some of them. ``failed``: the partitions whose logs a disk error ended,
    by topic (None: too many to name; count on none). What such a log had only in memory may be gone from there when it
    is opened again, so this one counts until the broker registers again. Until then nothing is left to such logs alone,
    and the controller takes those that are named out of the in-sync sets that others lead.
    """

    epoch: int
    directories: dict[str, str] = {}
    partitions: dict[str, tuple[int, ...]] | None = None
    damaged: dict[str, tuple[int, ...]] = {}
    diverged: tuple[str, ...] = ()
    failed: dict[str, tuple[int, ...]] | None = {}

    def concerns(self, topic: str, partition: int) -> bool:
        """Whether the broker should not lead the partition if another can."""
        return self.partitions is None or partition in self.partitions.get(topic, ())

    def has_failed(self, topic: str, partition: int) -> bool:
        """Whether a disk error ended the partition's log, so that the next process may find less in it."""
        return self.failed is None or partition in self.failed.get(topic, ())


class ControllerClaim(Record, frozen=True, kw_only=True):
    """Who is the controller, since when (its epoch) and in which registration."""

    broker_id: int
    broker_epoch: int
    epoch: int


class SchemaRecord(Record, frozen=True, kw_only=True):
    """One version of a topic's schema: Arrow's IPC bytes."""

    schema_id: int
    arrow: bytes


class ReassignmentRecord(Record, frozen=True, kw_only=True):
    """A partition that is moving: the replicas it will have, and those it had before."""

    target: tuple[int, ...]
    original: tuple[int, ...]


class TopicRecord(Record, frozen=True, kw_only=True):
    """A topic. ``assignment``: for each partition its replicas, the preferred leader first; while it moves (it is in
    ``reassignments``, by its number) the target's, followed by those that will be removed.

    ``schemas`` is empty for Kafka's columns. Invariant: partitions are never removed, schema ids never change.
    """

    topic_id: bytes
    assignment: tuple[tuple[int, ...], ...]
    schemas: tuple[SchemaRecord, ...] = ()
    key: str | None = None
    created_at_ms: int = 0
    reassignments: dict[int, ReassignmentRecord] = {}


class TopicConfig(Record, frozen=True, kw_only=True):
    """The settings set for a topic, by dotted name, as given. ``topic_id``: of which topic of that name."""

    topic_id: bytes
    config: dict[str, str]


class PartitionState(Record, frozen=True, kw_only=True):
    """Who leads a partition. ``leader_broker_epoch``: the registration it was elected in, so that a broker that
    registered again leads only after a new election. ``lost``: replicas that came back without the log that they were
    in sync with (another disk, an older one, or the log's directory is gone), until they are in sync again. If no other
    is in sync, such a broker stays in ``isr``: its log is the one that is missing. ``unproven``: members of ``isr``
    whose machine lost power, so that their logs may lack what was acknowledged without being flushed. ``eligible``:
    replicas that left ``isr`` and have all that is committed; a leader commits nothing while there are any (KIP-966's
    eligible leader replicas). When nobody in sync is registered any more, one of them leads. If the log of the only
    replica that stayed in sync turns out to be damaged, they are in sync again; if it is gone, an operator's choice
    among them loses nothing. ``last_known_eligible``: replicas that were in sync or eligible and whose logs may lack
    the last of what they had, because a disk error ended them, or, of an eligible one, the machine lost power, without
    ``flush.mode=ack`` (KIP-966's last known eligible leader replicas). They do not lead for those in sync that are only
    away; where nobody in sync is proven, one of them leads if its log goes furthest.
    Invariants: leader ∈ isr ⊆ replicas; leader ∉ lost; lost ∩ isr is empty or is isr; unproven ⊆ isr;
    leader ∉ unproven; eligible, last_known_eligible ⊆ replicas; no replica is in two of isr, eligible and
    last_known_eligible; the leader epoch only rises.
    """

    leader: int | None
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    leader_broker_epoch: int = -1
    lost: tuple[int, ...] = ()
    unproven: tuple[int, ...] = ()
    eligible: tuple[int, ...] = ()
    last_known_eligible: tuple[int, ...] = ()

    def with_eligible(self, eligible: Collection[int]) -> PartitionState:
        """The same with these ``eligible`` replicas."""
        last_known = tuple(broker_id for broker_id in self.last_known_eligible if broker_id not in eligible)
        return msgspec.structs.replace(self, eligible=tuple(sorted(set(eligible))), last_known_eligible=last_known)

    def with_last_known_eligible(self, last_known: Collection[int]) -> PartitionState:
        """The same with these replicas as ``last_known_eligible``; they are not ``eligible``."""
        eligible = tuple(broker_id for broker_id in self.eligible if broker_id not in last_known)
        return msgspec.structs.replace(self, eligible=eligible, last_known_eligible=tuple(sorted(set(last_known))))

    def with_in_sync(self, in_sync: tuple[int, ...], *, whole: Collection[int] = ()) -> PartitionState:
        """The same with another in-sync set. A broker that leaves it is no longer ``unproven``. ``whole``: brokers
        that have all that is committed, apart from the ``unproven``; if a single one stays in sync, those of them that
        leave are ``eligible``."""
        left = {broker_id for broker_id in whole if broker_id in self.isr and broker_id not in in_sync}
        is_kept = bool(self.eligible) or len(in_sync) == 1
        eligible = {*self.eligible, *left}.difference(in_sync, self.lost, self.unproven) if is_kept else ()
        unproven = tuple(broker_id for broker_id in self.unproven if broker_id in in_sync)
        last_known = tuple(broker_id for broker_id in self.last_known_eligible if broker_id not in in_sync)
        changed = msgspec.structs.replace(self, isr=in_sync, unproven=unproven, last_known_eligible=last_known)
        return changed.with_eligible(eligible)

    def without(self, broker_id: int, *, whole: Collection[int] = ()) -> PartitionState:
        """The same when that broker leaves the in-sync set; it does not lead. If nobody else is in sync, the
        ``eligible`` are so now. ``whole``: as in `with_in_sync`."""
        others = tuple(member for member in self.isr if member != broker_id) or self.eligible
        return self.with_in_sync(others, whole=whole).not_led_by(broker_id)

    def handed_over(self, broker_id: int) -> PartitionState:
        """The same when that broker, whose disk takes no records, leaves it to the others in sync; if there are none,
        to the ``eligible``. The broker is eligible then, however many are in sync: they may have lost their power just
        before, and with it what only this one still has."""
        state = self.without(broker_id)
        return state.with_eligible({*state.eligible, broker_id})

    def left_by_doubtful(self, broker_id: int) -> PartitionState:
        """The same when that broker, in sync or eligible, comes back with a log that may lack the last of what it had:
        it leaves the partition to the others in sync that are proven; if there are none, to the ``eligible``. Without
        any it stays, ``unproven`` if there are others whose logs may go further. It does not lead then."""
        if broker_id in self.eligible:
            return self.with_last_known_eligible({*self.last_known_eligible, broker_id})
        if broker_id not in self.isr:
            return self
        state = self
        if {broker_id, *self.lost, *self.unproven}.issuperset(self.isr):
            state = msgspec.structs.replace(self, isr=(*self.isr, *self.eligible), eligible=())
        if not {broker_id, *self.lost, *self.unproven}.issuperset(state.isr):
            left = state.without(broker_id)
            return left.with_last_known_eligible({*left.last_known_eligible, broker_id})
        if self.isr == (broker_id,) and not self.last_known_eligible:
            return self
        unproven = tuple(sorted({*self.unproven, broker_id}))
        return msgspec.structs.replace(self, unproven=unproven).not_led_by(broker_id)

    def without_damaged(self, broker_id: int, *, failed: Collection[int] = ()) -> PartitionState | None:
        """The state when that broker's log turns out to be damaged: it is neither in sync nor eligible; if it was the
        only one in sync, the eligible ones are so now. It does not lead. None: nobody else surely has all. ``failed``:
        brokers whose logs a disk error ended: it is not left to them alone."""
        others = tuple(member for member in self.isr if member != broker_id)
        eligible = [member for member in self.eligible if member not in (broker_id, *self.lost)]
        if {*self.lost, *failed}.issuperset(others):
            eligible += [member for member in others if member not in (*self.lost, *self.unproven)]
            others = tuple(member for member in eligible if member not in failed)
        if not others:
            return None
        left = [member for member in eligible if member not in others]
        return self.with_in_sync(others).with_eligible(left).not_led_by(broker_id)

    def not_led_by(self, broker_id: int) -> PartitionState:
        """The same without a leader, if that is the one."""
        if self.leader != broker_id:
            return self
        return msgspec.structs.replace(self, leader=None, leader_epoch=self.leader_epoch + 1, leader_broker_epoch=-1)


class DeletionRecord(Record, frozen=True, kw_only=True):
    """A topic whose deletion was decided; whichever broker is the controller then finishes it."""

    topic_id: bytes


class DeletedLogs(Record, frozen=True, kw_only=True):
    """The logs of a topic that is gone, and the brokers that may still have some. The last one removes the znode."""

    name: str
    brokers: tuple[int, ...]


class DrainingBroker(Record, frozen=True, kw_only=True):
    """A broker that is being emptied."""

    since_ms: int = 0


class ChangeNews(Record, frozen=True, kw_only=True):
    """The last change: the names of the topics it was about; none: of brokers alone."""

    topics: tuple[str, ...] = ()


class ProducerIdBlock(Record, frozen=True, kw_only=True):
    """Producer ids below ``next`` are given out. Changed by compare-and-set, a block at a time."""

    next: int


Epoch = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class GroupClaim(Record, frozen=True, kw_only=True):
    """The broker that coordinates a group, and in which registration; it stays when the broker is gone."""

    broker_id: int
    broker_epoch: int


class HeldPartitions(Record, frozen=True, kw_only=True):
    """What a member may hold of one topic. ``granted``: by partition the epoch in which it was given. ``releasing``:
    those of them that it is asked to release and has not reported as released."""

    topic: str
    topic_id: Uuid
    granted: dict[PartitionNumber, Epoch]
    releasing: tuple[int, ...] = ()


class MemberRecord(Record, frozen=True, kw_only=True):
    """What the successor of a group's coordinator has to know of a member. ``state``: `groups.member.MemberState`."""

    member_id: str
    epoch: Epoch
    state: str
    kind: str = "consumer"
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    session_timeout_ms: WaitMs
    rebalance_timeout_ms: WaitMs
    held: tuple[HeldPartitions, ...] = ()


class GroupMembers(Record, frozen=True, kw_only=True):
    """A group's members. ``epoch``: rises with every change of who has what. ``empty_since_ms``: when the last one had
    gone; 0 while there are some."""

    epoch: Epoch
    members: tuple[MemberRecord, ...] = ()
    empty_since_ms: int = 0


class StoredOffset(Record, frozen=True, kw_only=True, array_like=True):
    """A committed offset, as an array to stay small: offset, leader epoch, time of the commit, metadata, and which of
    the group's commits it was: the member's epoch and its number of the commit; -1: of nobody, or not numbered."""

    offset: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    leader_epoch: Int32 = -1
    committed_at_ms: int = 0
    metadata: str = ""
    member_epoch: Int32 = -1
    sequence: Int64 = -1


class GroupOffsets(Record, frozen=True, kw_only=True):
    """What a group has committed in a topic, by partition. Offsets of another topic id are of a topic that is gone."""

    topic_id: Uuid
    offsets: dict[PartitionNumber, StoredOffset]


class DecidedPartitions(Record, frozen=True, kw_only=True, array_like=True):
    """Partitions of a topic that a decision is about."""

    topic: str
    topic_id: Uuid
    partitions: tuple[PartitionNumber, ...]


class DecisionRecord(Record, frozen=True, kw_only=True):
    """The decision about a batch: ``producer_ids`` (ranges: first, last) are committed, and nothing else of that batch
    or of those before. ``partitions``: those that do not all know of it yet. ``rows``, ``payload_bytes``: of what was
    committed. ``run_id``: who asked for it."""

    batch_id: int
    run_id: str
    is_commit: bool
    producer_ids: tuple[tuple[int, int], ...] = ()
    partitions: tuple[DecidedPartitions, ...] = ()
    rows: int = 0
    payload_bytes: int = 0
    decided_at_ms: int = 0


class TransactionRecord(Record, frozen=True, kw_only=True):
    """A transactional id. ``epoch``: counts the runs; ``run_id``: of the present one, "" if none is to go on;
    ``earlier_runs``: the last ones before it. ``last``: the last decision; ``unfinished``: decisions that not all
    partitions know of, oldest first, ``last`` among them. ``aborted``: producer ids beyond the last decided batch
    that will not be committed. ``used_at_ms``, ``keep_ms``: the znode goes when it has not been used for so long.
    ``created_at_ms``: tells this znode from one that was forgotten and whose epochs were the same.

    Invariants: ``epoch`` and ``last.batch_id`` only rise; a decision is never changed; ``unfinished`` has at most
    `MOST_UNFINISHED` (`transactions.transactional_id`).
    """

    epoch: int
    run_id: str
    earlier_runs: tuple[str, ...] = ()
    last: DecisionRecord | None = None
    unfinished: tuple[DecisionRecord, ...] = ()
    aborted: tuple[tuple[int, int], ...] = ()
    timeout_ms: int = 60_000
    keep_ms: int = 30 * 86_400_000
    used_at_ms: int = 0
    created_at_ms: int = 0


class UsersRecord(Record, frozen=True, kw_only=True):
    """The users that prove themselves with a password, by name."""

    users: dict[str, PasswordHash] = {}


class AclsRecord(Record, frozen=True, kw_only=True):
    """All access control lists, sorted."""

    acls: tuple[Acl, ...] = ()


class QuotasRecord(Record, frozen=True, kw_only=True):
    """All quotas, sorted by their entities."""

    quotas: tuple[Quota, ...] = ()


class TokenKey(Record, frozen=True, kw_only=True):
    """The secret that signs tokens, made once. An operator who removes the znode's content ends all tokens."""

    key: bytes

    def __repr__(self) -> str:
        return "TokenKey()"


def broker_path(broker_id: int) -> str:
    """A broker's registration."""
    return f"{BROKER_IDS}/{broker_id}"


def broker_epoch_path(broker_id: int) -> str:
    """A broker's epoch."""
    return f"{BROKER_EPOCHS}/{broker_id}"


def broker_disks_path(broker_id: int) -> str:
    """A broker's data directories."""
    return f"{BROKER_DISKS}/{broker_id}"


def broker_unwritable_path(broker_id: int) -> str:
    """What a broker reports to be wrong with its disks."""
    return f"{BROKER_UNWRITABLE}/{broker_id}"


def topic_path(topic: str) -> str:
    """A topic."""
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    """The parent of a topic's partitions."""
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    """The parent of a partition's state."""
    return f"{TOPICS}/{topic}/partitions/{partition}"


def partition_state_path(topic: str, partition: int) -> str:
    """A partition's state."""
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def topic_config_path(topic: str) -> str:
    """A topic's settings."""
    return f"{TOPIC_CONFIGS}/{topic}"


def topic_deletion_path(topic: str) -> str:
    """A topic's deletion."""
    return f"{TOPIC_DELETIONS}/{topic}"


def deleted_logs_path(topic_id: bytes) -> str:
    """The logs that are left of a topic that is gone."""
    return f"{DELETED_LOGS}/{topic_id.hex()}"


def draining_path(broker_id: int) -> str:
    """A broker that is being emptied."""
    return f"{DRAINING}/{broker_id}"


def group_path(group_id: str) -> str:
    """The parent of all about a group."""
    return f"{CONSUMERS}/{group_id}"


def group_claim_path(group_id: str) -> str:
    """Who coordinates a group."""
    return f"{CONSUMERS}/{group_id}/coordinator"


def group_members_path(group_id: str) -> str:
    """A group's members."""
    return f"{CONSUMERS}/{group_id}/members"


def group_offsets_parent(group_id: str) -> str:
    """The parent of a group's offsets."""
    return f"{CONSUMERS}/{group_id}/offsets"


def group_offsets_path(group_id: str, topic: str) -> str:
    """A group's offsets in a topic."""
    return f"{CONSUMERS}/{group_id}/offsets/{topic}"


def transaction_path(transactional_id: str) -> str:
    """A transactional id."""
    return f"{TRANSACTIONS}/{transactional_id}"


_LARGEST_PLAIN_BYTES: Final = MAX_REQUEST_BYTES // 4
MAX_COMPACT_BYTES: Final = 8 << 20
"""Of a record that is compressed: its JSON."""
_FAST: Final = 1
_ZLIB: Final = b"\x78"  # JSON begins otherwise

_R = TypeVar("_R", bound=Record)
_encoder = msgspec.json.Encoder()
# Made before any thread decodes, as msgspec asks for (see `requests.make_decoders`).
_decoders: dict[type[Record], msgspec.json.Decoder[Record]] = {
    kind: msgspec.json.Decoder(kind) for kind in Record.__subclasses__()
}


def announcing(topics: Iterable[str]) -> Set:
    """The operation that announces to every broker what its transaction changes: topics by name, or brokers only."""
    return Set(CHANGES, to_json(ChangeNews(topics=tuple(dict.fromkeys(topics)))), ANY_VERSION)


def to_json(record: Record) -> bytes:
    """The znode's bytes."""
    return _encoder.encode(record)


def to_compact_json(record: Record, path: str) -> bytes:
    """As `to_json`, compressed if it is large: for records that grow with what users do. `from_json` reads both.

    Raises `InvalidRequestError` above `MAX_COMPACT_BYTES`, however small it would be: it is decoded for each change.
    """
    data = to_json(record)
    if len(data) > MAX_COMPACT_BYTES:
        raise InvalidRequestError(f"{path} would have {len(data)} bytes; at most {MAX_COMPACT_BYTES} are allowed")
    return data if len(data) <= _LARGEST_PLAIN_BYTES else zlib.compress(data, _FAST)


def from_json(data: bytes, kind: type[_R], path: str) -> _R:
    """The record in a znode. Raises `CorruptRecordError` naming the path and what is wrong."""
    try:
        if data[:1] == _ZLIB:
            data = zlib.decompressobj().decompress(data, MAX_COMPACT_BYTES)
        record = _decoders[kind].decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, zlib.error) as error:
        raise CorruptRecordError(f"znode {path}: not a {kind.__name__}: {error}") from None
    assert isinstance(record, kind)
    return record
