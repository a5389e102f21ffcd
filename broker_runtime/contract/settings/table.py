"""THE table of settings: every name a user can set, once per scope it has a meaning of its own in.

From it come the checks (`resolution`), the command line's help and README's reference (`reference`). Rule: a setting
stands here only if it does something; names are Kafka's where Kafka has the thing, and ``kafka`` says where the
default is not Kafka's. Nothing outside this package reads settings by name: they are frozen dataclasses by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from broker_runtime.contract.errors import InvalidConfigError
from broker_runtime.contract.settings.kinds import PARSERS, Kind, show
from broker_runtime.contract.suggestion import suggestion

Scope = Literal["broker", "topic", "producer", "consumer", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

BOOTSTRAP_VARIABLE: Final = "PYLOG_BOOTSTRAP_SERVERS"
"""The environment variable that stands in for ``bootstrap.servers`` where it is not given."""

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_SECOND, _MINUTE, _DAY = 1_000, 60_000, 86_400_000
_FOREVER_MS = 10 * 366 * _DAY

MAX_MESSAGE_BYTES_LIMIT: Final = 64 * _MIB
"""No frame is larger, whatever ``max.message.bytes`` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row. ``default`` is in the kind's own unit (bytes, ms); None with ``required=False``: no value.

    Choices are read in any case, ``aliases`` are other words for them. ``unlimited``: -1 is allowed as well and means
    "no limit". ``kafka``: Kafka's default, where ours differs.
    """

    name: str
    scopes: tuple[Scope, ...]
    kind: Kind
    doc: str
    default: object = None
    required: bool = False
    minimum: int | None = None
    maximum: int | None = None
    unlimited: bool = False
    choices: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    kafka: str | None = None

    @property
    def keyword(self) -> str:
        """The name as a Python keyword and a dataclass field: ``_`` for ``.``."""
        return self.name.replace(".", "_")

    @property
    def allowed(self) -> str:
        """What values are allowed, for the reference and for errors."""
        if self.choices:
            text = ", ".join(self.choices)
            return f"{text}, or a callable" if self.kind is Kind.CHOICE_OR_CALLABLE else text
        if self.minimum is None or self.maximum is None:
            return self.kind.value
        bounds = f"{show(self.kind, self.minimum)} to {show(self.kind, self.maximum)}"
        return f"{bounds}, or -1 (no limit)" if self.unlimited else bounds

    def parse(self, value: object) -> object:
        """The value in the kind's own unit; raises `InvalidConfigError` naming setting, value and what is allowed."""
        try:
            parsed = PARSERS[self.kind](value)
        except ValueError as error:
            raise self._refused(value, str(error)) from None
        if self.choices and not callable(parsed):
            text = str(parsed).lower()
            text = dict(self.aliases).get(text, text)
            chosen = [choice for choice in self.choices if choice.lower() == text]
            if not chosen:
                raise self._refused(value, f"one of {self.allowed}")
            return chosen[0]
        if isinstance(parsed, int) and self.minimum is not None and self.maximum is not None:
            if self.unlimited and parsed == -1:
                return parsed
            if not self.minimum <= parsed <= self.maximum:
                raise self._refused(value, self.allowed)
        return parsed

    def show(self, value: object) -> str:
        """The value as a user would type it."""
        return show(self.kind, value)

    def _refused(self, value: object, allowed: str) -> InvalidConfigError:
        return InvalidConfigError(f"{self.name}={value!r}: must be {allowed}")


_CLIENTS: tuple[Scope, ...] = ("producer", "consumer", "admin")

SETTINGS: Final[tuple[Setting, ...]] = (
    # --- broker -----------------------------------------------------------------------------------------------
    Setting(name="broker.id", scopes=("broker",), kind=Kind.INTEGER, required=True, minimum=0, maximum=2**31 - 1,
            doc="The broker's number in its cluster; its replicas carry it."),
    Setting(name="listeners", scopes=("broker",), kind=Kind.ADDRESS, default="127.0.0.1:9192", kafka=":9092",
            doc="Where the broker listens. Port 0: any free one."),
    Setting(name="advertised.listeners", scopes=("broker",), kind=Kind.ADDRESS,
            doc="Where clients reach the broker; without it, `listeners`."),
    Setting(name="log.dirs", scopes=("broker",), kind=Kind.PATHS, required=True,
            doc="Directories for data, one per disk, none inside another. A new partition goes where the fewest are."),
    Setting(name="zookeeper.connect", scopes=("broker",), kind=Kind.TEXT, default="localhost:2181/pylog",
            doc="ZooKeeper's servers, with commas between, and the path that is the cluster's root."),
    Setting(name="zookeeper.session.timeout.ms", scopes=("broker",), kind=Kind.DURATION, default=18 * _SECOND,
            minimum=2 * _SECOND, maximum=_MINUTE,
            doc="How long ZooKeeper waits for a silent broker before it counts as gone."),
    Setting(name="num.partitions", scopes=("broker",), kind=Kind.INTEGER, default=1, minimum=1, maximum=10_000,
            doc="Partitions of a topic that does not say."),
    Setting(name="default.replication.factor", scopes=("broker",), kind=Kind.INTEGER, default=1, minimum=1, maximum=32,
            doc="Replicas of a topic that does not say."),
    Setting(name="delete.topic.enable", scopes=("broker",), kind=Kind.BOOLEAN, default=True,
            doc="Whether topics may be deleted."),
    Setting(name="offsets.retention.minutes", scopes=("broker",), kind=Kind.INTEGER, default=10_080, minimum=1,
            maximum=5_256_000, doc="How long a group's offsets are kept after its last commit and its last member."),
    Setting(name="group.min.session.timeout.ms", scopes=("broker",), kind=Kind.DURATION, default=6 * _SECOND,
            minimum=1_000, maximum=30 * _MINUTE, doc="The least `session.timeout.ms` that a member may ask for."),
    Setting(name="group.max.session.timeout.ms", scopes=("broker",), kind=Kind.DURATION, default=30 * _MINUTE,
            minimum=1_000, maximum=30 * _MINUTE, doc="The most `session.timeout.ms` that a member may ask for."),
    Setting(name="group.max.size", scopes=("broker",), kind=Kind.INTEGER, default=1_000, minimum=1, maximum=10_000,
            kafka="2147483647", doc="The most members of a group."),
    Setting(name="log.retention.check.interval.ms", scopes=("broker",), kind=Kind.DURATION, default=5 * _MINUTE,
            minimum=100, maximum=_DAY, doc="How often old segments are looked for."),
    Setting(name="log.dir.min.free.bytes", scopes=("broker",), kind=Kind.SIZE, default=_GIB, minimum=0,
            maximum=1 << 50, kafka="none", doc="With less room than this on its disk, a directory takes no appends."),
    Setting(name="max.connections", scopes=("broker",), kind=Kind.INTEGER, default=1_000, minimum=8, maximum=10_000,
            kafka="2147483647", doc="Streams served at once; further ones are refused and may try again."),
    Setting(name="memory.max.bytes", scopes=("broker",), kind=Kind.SIZE, minimum=832 * _MIB, maximum=1 << 40,
            kafka="none", doc="The resident memory that a broker keeps to: it cuts connections that send more than "
            "fits. What may pass it for a moment is told in Guarantees and limits. A large `fetch.max.bytes` or "
            "`replica.fetch.max.bytes` needs more; the broker says how much. Without it a quarter of the machine's, "
            "from 1 GiB to 4 GiB."),
    Setting(name="fetch.max.bytes", scopes=("broker",), kind=Kind.SIZE, default=55 * _MIB, minimum=_MIB,
            maximum=_GIB, doc="The most that one fetch is answered with."),
    Setting(name="replica.lag.time.max.ms", scopes=("broker",), kind=Kind.DURATION, default=30 * _SECOND,
            minimum=100, maximum=_DAY,
            doc="How long a replica may lack what its leader has before it leaves the in-sync set."),
    Setting(name="replica.fetch.max.bytes", scopes=("broker",), kind=Kind.SIZE, default=10 * _MIB, minimum=1,
            maximum=_GIB, kafka="1048576", doc="The most that one fetch of a follower asks its leader for, all "
            "partitions together; a single larger frame still comes."),
    Setting(name="replica.fetch.wait.max.ms", scopes=("broker",), kind=Kind.DURATION, default=500, minimum=0,
            maximum=_MINUTE, doc="How long a leader keeps a follower's fetch waiting for data; less than "
            "`replica.lag.time.max.ms`."),
    Setting(name="replication.throttled.rate", scopes=("broker",), kind=Kind.SIZE, default=-1, minimum=1,
            maximum=1 << 40, unlimited=True, kafka="none", doc="How many bytes per second a broker fetches for "
            "replicas that are not in sync, so that moving partitions leaves room for others."),
    Setting(name="auto.leader.rebalance.enable", scopes=("broker",), kind=Kind.BOOLEAN, default=True,
            doc="Whether a partition's leadership goes back to its first replica when that is in sync again."),
    Setting(name="controlled.shutdown.enable", scopes=("broker",), kind=Kind.BOOLEAN, default=True,
            doc="Whether a broker that is stopped hands its leaderships over first."),
    # --- topic ------------------------------------------------------------------------------------------------
    Setting(name="retention.ms", scopes=("topic",), kind=Kind.DURATION, default=7 * _DAY, minimum=0,
            maximum=100 * _FOREVER_MS, unlimited=True, doc="How long records stay after they were appended. A broker's "
            "clock that is set ahead while it runs is not believed before its restart, and then only if ZooKeeper's "
            "agrees."),
    Setting(name="retention.bytes", scopes=("topic",), kind=Kind.SIZE, default=-1, minimum=0, maximum=1 << 60,
            unlimited=True, doc="How much of a partition stays; whole segments beyond it are removed, oldest first."),
    Setting(name="segment.bytes", scopes=("topic",), kind=Kind.SIZE, default=_GIB, minimum=4 * _KIB,
            maximum=2**31 - 1, doc="How large a segment file becomes."),
    Setting(name="segment.ms", scopes=("topic",), kind=Kind.DURATION, default=7 * _DAY, minimum=100,
            maximum=100 * _FOREVER_MS, doc="How old a segment with records becomes before the next one begins."),
    Setting(name="min.insync.replicas", scopes=("topic",), kind=Kind.INTEGER, minimum=1, maximum=32, kafka="1",
            doc="How many replicas, the leader included, must be in sync for records to be acknowledged with "
            "`acks=all`. Without it 1 below three replicas, else RF // 2 + 1."),
    Setting(name="unclean.leader.election.enable", scopes=("topic",), kind=Kind.BOOLEAN, default=False,
            doc="Whether a replica that was not in sync may lead when nobody else is left: records are lost then."),
    Setting(name="max.message.bytes", scopes=("topic",), kind=Kind.SIZE, default=16 * _MIB, minimum=_KIB,
            maximum=MAX_MESSAGE_BYTES_LIMIT, kafka="1048588",
            doc="The largest frame (a record batch as sent); never above `segment.bytes`."),
    Setting(name="message.timestamp.type", scopes=("topic",), kind=Kind.CHOICE, default="CreateTime",
            choices=("CreateTime", "LogAppendTime"), doc="Whose clock a record's timestamp is from."),
    Setting(name="index.interval.bytes", scopes=("topic",), kind=Kind.SIZE, default=4 * _KIB, minimum=64,
            maximum=_GIB, doc="How much log lies between two entries of its index."),
    Setting(name="flush.mode", scopes=("topic",), kind=Kind.CHOICE, default="ack", choices=("ack", "interval", "os"),
            kafka="os", doc="When records go to the disk: before they are acknowledged, every `flush.ms`, or when the "
            "operating system likes."),
    Setting(name="flush.ms", scopes=("topic",), kind=Kind.DURATION, default=_SECOND, minimum=10, maximum=_DAY,
            kafka="9223372036854775807", doc="How often `flush.mode=interval` writes to the disk."),
    # --- all clients ------------------------------------------------------------------------------------------
    Setting(name="bootstrap.servers", scopes=_CLIENTS, kind=Kind.ADDRESSES, default="localhost:9192",
            kafka="required", doc=f"Brokers to ask first; without it `${BOOTSTRAP_VARIABLE}`."),
    Setting(name="client.id", scopes=_CLIENTS, kind=Kind.TEXT, default="pylog", kafka="generated",
            doc="A name for the broker's log."),
    Setting(name="request.timeout.ms", scopes=_CLIENTS, kind=Kind.DURATION, default=30 * _SECOND, minimum=100,
            maximum=_DAY, doc="How long a request may take before it is tried again or fails."),
    Setting(name="enable.http.proxy", scopes=_CLIENTS, kind=Kind.BOOLEAN, default=False, kafka="none",
            doc="Whether connections to brokers go through the proxy that `grpc_proxy`, `https_proxy` or `http_proxy` "
            "in the environment names."),
    # --- producer ---------------------------------------------------------------------------------------------
    Setting(name="acks", scopes=("producer",), kind=Kind.CHOICE, default="all", choices=("all", "1", "0"),
            aliases=(("-1", "all"),),
            doc="Who must have a record before it is acknowledged: all in-sync replicas, the leader, nobody."),
    Setting(name="enable.idempotence", scopes=("producer",), kind=Kind.BOOLEAN, default=True,
            doc="Whether a record that has to be sent again is in the log once, and in order. Needs `acks=all`: with "
            "another `acks` it is off."),
    Setting(name="linger.ms", scopes=("producer",), kind=Kind.DURATION, default=5, minimum=0, maximum=10 * _MINUTE,
            doc="How long a record waits for company before it is sent."),
    Setting(name="batch.size", scopes=("producer",), kind=Kind.SIZE, default=_MIB, minimum=1,
            maximum=MAX_MESSAGE_BYTES_LIMIT, kafka="16384", doc="How much of a partition goes into one frame."),
    Setting(name="buffer.memory", scopes=("producer",), kind=Kind.SIZE, default=64 * _MIB, minimum=64 * _KIB,
            maximum=1 << 40, kafka="33554432", doc="The most that waits to be acknowledged; then `send` blocks."),
    Setting(name="max.block.ms", scopes=("producer",), kind=Kind.DURATION, default=_MINUTE, minimum=0, maximum=_DAY,
            doc="How long `send` blocks for room, or for a topic's metadata, before it fails."),
    Setting(name="delivery.timeout.ms", scopes=("producer",), kind=Kind.DURATION, default=2 * _MINUTE, minimum=1,
            maximum=_DAY, doc="How long a record is tried, retries included, before its future fails."),
    Setting(name="compression.type", scopes=("producer",), kind=Kind.CHOICE, default="none",
            choices=("none", "lz4", "zstd"), doc="How frames are compressed."),
    Setting(name="partitioner", scopes=("producer",), kind=Kind.CHOICE_OR_CALLABLE, default="round_robin",
            choices=("round_robin", "sticky"), kafka="sticky",
            doc="Which partition a record without a key goes to; a callable `(topic, key, partitions) -> int` decides "
            "for every record."),
    Setting(name="key.serializer", scopes=("producer",), kind=Kind.CALLABLE, kafka="required",
            doc="Makes a key's bytes from what `send` is given."),
    Setting(name="value.serializer", scopes=("producer",), kind=Kind.CALLABLE, kafka="required",
            doc="Makes a value's bytes from what `send` is given."),
    # --- consumer ---------------------------------------------------------------------------------------------
    Setting(name="group.id", scopes=("consumer",), kind=Kind.TEXT,
            doc="The group whose offsets are read and committed; without it nothing is committed."),
    Setting(name="group.instance.id", scopes=("consumer",), kind=Kind.TEXT,
            doc="Makes the member static: a process that comes back with it within the session timeout gets the "
            "partitions it had."),
    Setting(name="session.timeout.ms", scopes=("consumer",), kind=Kind.DURATION, default=45 * _SECOND, minimum=1_000,
            maximum=30 * _MINUTE, doc="How long a member that is not heard of keeps its partitions."),
    Setting(name="max.poll.interval.ms", scopes=("consumer",), kind=Kind.DURATION, default=5 * _MINUTE, minimum=1_000,
            maximum=60 * _MINUTE, doc="How long a member may take between two polls before it gives up its share."),
    Setting(name="auto.offset.reset", scopes=("consumer",), kind=Kind.CHOICE, default="latest",
            choices=("latest", "earliest", "none"), doc="Where to begin where the group has no offset, or it is gone."),
    Setting(name="enable.auto.commit", scopes=("consumer",), kind=Kind.BOOLEAN, default=True,
            doc="Whether offsets are committed by themselves."),
    Setting(name="auto.commit.interval.ms", scopes=("consumer",), kind=Kind.DURATION, default=5 * _SECOND, minimum=10,
            maximum=_DAY, doc="How often that is done."),
    Setting(name="max.poll.records", scopes=("consumer",), kind=Kind.INTEGER, default=500, minimum=1,
            maximum=2**31 - 1, doc="The most records that one `poll` returns."),
    Setting(name="fetch.max.bytes", scopes=("consumer",), kind=Kind.SIZE, default=50 * _MIB, minimum=1,
            maximum=_GIB, doc="The most that one fetch asks for; a single larger frame still comes."),
    Setting(name="fetch.max.wait.ms", scopes=("consumer",), kind=Kind.DURATION, default=500, minimum=0,
            maximum=_MINUTE, doc="How long a broker keeps a fetch waiting for data."),
    Setting(name="columns", scopes=("consumer",), kind=Kind.NAMES, kafka="none",
            doc="The columns wanted; the broker leaves the others out."),
    Setting(name="key.deserializer", scopes=("consumer",), kind=Kind.CALLABLE, kafka="required",
            doc="Makes a record's key from its bytes."),
    Setting(name="value.deserializer", scopes=("consumer",), kind=Kind.CALLABLE, kafka="required",
            doc="Makes a record's value from its bytes."),
)  # fmt: skip

_BY_SCOPE: Final[dict[Scope, dict[str, Setting]]] = {
    scope: {setting.name: setting for setting in SETTINGS if scope in setting.scopes} for scope in SCOPES
}


def settings_of(scope: Scope) -> dict[str, Setting]:
    """The scope's settings by dotted name, in the table's order. The caller owns the dict."""
    return dict(_BY_SCOPE[scope])


def find_setting(scope: Scope, name: str) -> Setting:
    """The setting; raises `InvalidConfigError` that names the nearest known one. ``name`` is dotted."""
    known = _BY_SCOPE[scope]
    setting = known.get(name)
    if setting is not None:
        return setting
    elsewhere = [other for other in SCOPES if name in _BY_SCOPE[other]]
    hint = f"it is {_a_setting_of(elsewhere[0])}" if elsewhere else suggestion(name, known)
    raise InvalidConfigError(f"{name!r} is not {_a_setting_of(scope)}; {hint}")


def _a_setting_of(scope: Scope) -> str:
    return f"{'an' if scope[0] in 'aeiou' else 'a'} {scope} setting"
