"""THE list of settings: each is defined once, as an annotated field of its scope's dataclass.

The field's name, with ``.`` for ``_``, is the setting's name, its type is the type of the value, and the words of a
`Literal` are the choices; `Setting` says the rest. `AdminSettings` has what all clients have. The checks, the defaults,
the reference and the clients' keywords all come from these fields: after a change,
``python tests/unit/contract/test_generated.py`` writes the keywords again, and ``python -m docs`` the reference.

Rule: a setting stands here only if it does something, and has Kafka's name where Kafka has the thing. Code outside this
package takes the dataclasses and never reads a setting by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypedDict, get_args, get_origin, get_type_hints

from broker_runtime.contract import DEFAULT_PORT
from broker_runtime.contract.errors import InvalidConfigError
from broker_runtime.contract.settings.kinds import Address, Kind, Listener, Secret
from broker_runtime.contract.settings.setting import Setting
from broker_runtime.contract.suggestion import suggestion

Scope = Literal["broker", "topic", "producer", "consumer", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

BOOTSTRAP_VARIABLE: Final = "PYLOG_BOOTSTRAP_SERVERS"
"""The environment variable that stands in for ``bootstrap.servers`` where it is not given."""

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SSL_BY_ANOTHER_NAME: Final = {"TLS": "SSL", "SASL_TLS": "SASL_SSL"}
"""What Kafka still calls SSL is TLS, so that is understood as well."""

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_SECOND, _MINUTE, _DAY = 1_000, 60_000, 86_400_000
_FOREVER_MS = 10 * 366 * _DAY

MAX_MESSAGE_BYTES_LIMIT: Final = 64 * _MIB
"""No frame is larger, whatever ``max.message.bytes`` says."""

# A setting reads as a paragraph, so it is not laid out by the formatter.
# fmt: off

@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """One broker's settings. Sizes in bytes, durations in ms, -1: no limit."""

    broker_id: Annotated[int, Setting(Kind.INTEGER, minimum=0, maximum=2**31 - 1,
        doc="The broker's number in its cluster; its replicas carry it.")]
    listeners: Annotated[tuple[Listener, ...], Setting(Kind.LISTENERS, f"PLAINTEXT://127.0.0.1:{DEFAULT_PORT}",
        kafka="PLAINTEXT://:9092",
        doc="Where the broker listens. Port 0: any free one.")]
    advertised_listeners: Annotated[tuple[Listener, ...] | None, Setting(Kind.LISTENERS,
        doc="Where clients reach the listeners; those that are not named: at `listeners`.")]
    listener_security_protocol_map: Annotated[tuple[tuple[str, str], ...] | None, Setting(Kind.PAIRS,
        doc="What each listener speaks: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. One with such a name speaks that.")]
    inter_broker_listener_name: Annotated[str | None, Setting(Kind.TEXT,
        doc="The listener over which brokers reach each other; without it, the first.")]
    ssl_certfile: Annotated[Path | None, Setting(Kind.PATH,
        doc="The broker's certificate, and those between it and its CA: a PEM file. A changed file is used within "
            "seconds.")]
    ssl_keyfile: Annotated[Path | None, Setting(Kind.PATH,
        doc="Its key: a PEM file that is not encrypted.")]
    ssl_cafile: Annotated[Path | None, Setting(Kind.PATH,
        doc="The CAs whose certificates are trusted, of clients and of other brokers: a PEM file.")]
    ssl_client_auth: Annotated[tuple[str, ...], Setting(Kind.NAMES, "none",
        doc="Which listeners ask for a client's certificate: `none`, `required` (all that speak SSL) or their names. "
            "Its name is the principal then, unless the listener speaks SASL_SSL.")]
    ssl_principal_mapping_rules: Annotated[str, Setting(Kind.TEXT, "DEFAULT",
        doc="How a certificate's name becomes a principal, as in Kafka: `RULE:^(.*)\\.example\\.org$/$1/L,DEFAULT`; "
            "the first that matches counts. A name that none matches is refused.")]
    sasl_oauthbearer_jwks_endpoint_url: Annotated[str | None, Setting(Kind.TEXT,
        doc="Where an OpenID provider publishes its keys: `https://…`. With it, listeners that speak SASL "
            "accept its tokens beside users' passwords.")]
    sasl_oauthbearer_expected_issuer: Annotated[str | None, Setting(Kind.TEXT,
        doc="Who must have issued a token (`iss`).")]
    sasl_oauthbearer_expected_audience: Annotated[tuple[str, ...] | None, Setting(Kind.NAMES,
        doc="For whom a token must be (`aud`): one of these.")]
    sasl_oauthbearer_sub_claim_name: Annotated[str, Setting(Kind.TEXT, "sub",
        doc="The claim that is the principal.")]
    sasl_oauthbearer_clock_skew_seconds: Annotated[int, Setting(Kind.INTEGER, 30, minimum=0, maximum=3_600,
        doc="How far the provider's clock may be off.")]
    authorizer_class_name: Annotated[Literal["none", "AclAuthorizer"], Setting(Kind.CHOICE, "none",
        doc="`AclAuthorizer`: nobody may do anything that no ACL allows, super users and brokers excepted.")]
    super_users: Annotated[tuple[str, ...] | None, Setting(Kind.PRINCIPALS,
        doc="Who may do everything: `User:alice;User:bob`.")]
    http_listener: Annotated[Address | None, Setting(Kind.ADDRESS, kafka="none",
        doc="Where the broker tells over HTTP how it is: `/metrics` for Prometheus, `/healthz`, `/readyz`. Whoever "
            "reaches it may read it. Without it nothing is counted.")]
    metrics_max_group_partitions: Annotated[int, Setting(Kind.INTEGER, 1_000, minimum=0, maximum=1_000_000,
        kafka="none",
        doc="Of how many partitions of consumer groups the broker tells the lag, with `http.listener`; 0: of none. "
            "`group_partitions_omitted` says how many there are beyond that.")]
    logging_format: Annotated[Literal["text", "json"], Setting(Kind.CHOICE, "text", kafka="none",
        doc="How the broker writes its log: an event as a line of text, or as a line with one JSON object.")]
    log_dirs: Annotated[tuple[Path, ...], Setting(Kind.PATHS,
        doc="Directories for data, one per disk, none inside another. A new partition goes where the fewest are.")]
    zookeeper_connect: Annotated[str, Setting(Kind.TEXT, "localhost:2181/pylog",
        doc="ZooKeeper's servers, with commas between, and the path that is the cluster's root.")]
    zookeeper_session_timeout_ms: Annotated[int, Setting(Kind.DURATION, 18 * _SECOND, minimum=2 * _SECOND,
        maximum=_MINUTE,
        doc="How long ZooKeeper waits for a silent broker before it counts as gone.")]
    zookeeper_ssl_cafile: Annotated[Path | None, Setting(Kind.PATH,
        doc="The CAs whose ZooKeeper servers are trusted: a PEM file. With it, connections to ZooKeeper use TLS.")]
    zookeeper_ssl_certfile: Annotated[Path | None, Setting(Kind.PATH,
        doc="The broker's certificate for ZooKeeper, where that asks for one: a PEM file.")]
    zookeeper_ssl_keyfile: Annotated[Path | None, Setting(Kind.PATH,
        doc="Its key: a PEM file that is not encrypted.")]
    zookeeper_username: Annotated[str | None, Setting(Kind.TEXT,
        doc="Who all brokers are to ZooKeeper (its scheme digest).")]
    zookeeper_password: Annotated[Secret | None, Setting(Kind.SECRET,
        doc="The password. ZooKeeper is sent it as it is: use TLS.")]
    # Invariant: only with a username or a certificate.
    zookeeper_set_acl: Annotated[bool, Setting(Kind.BOOLEAN, False,
        doc="Whether what brokers write in ZooKeeper is closed to everybody else. What is there already stays as it "
            "is: `pylog zookeeper acl`.")]
    num_partitions: Annotated[int, Setting(Kind.INTEGER, 1, minimum=1, maximum=10_000,
        doc="Partitions of a topic that does not say.")]
    default_replication_factor: Annotated[int, Setting(Kind.INTEGER, 1, minimum=1, maximum=32,
        doc="Replicas of a topic that does not say.")]
    delete_topic_enable: Annotated[bool, Setting(Kind.BOOLEAN, True,
        doc="Whether topics may be deleted.")]
    offsets_retention_minutes: Annotated[int, Setting(Kind.INTEGER, 10_080, minimum=1, maximum=5_256_000,
        doc="How long a group's offsets are kept after its last commit and its last member.")]
    group_min_session_timeout_ms: Annotated[int, Setting(Kind.DURATION, 6 * _SECOND, minimum=1_000,
        maximum=30 * _MINUTE,
        doc="The least `session.timeout.ms` that a member may ask for.")]
    # Invariant: group_min_session_timeout_ms ≤ group_max_session_timeout_ms.
    group_max_session_timeout_ms: Annotated[int, Setting(Kind.DURATION, 30 * _MINUTE, minimum=1_000,
        maximum=30 * _MINUTE,
        doc="The most `session.timeout.ms` that a member may ask for.")]
    group_max_size: Annotated[int, Setting(Kind.INTEGER, 1_000, minimum=1, maximum=10_000, kafka="2147483647",
        doc="The most members of a group.")]
    transaction_max_timeout_ms: Annotated[int, Setting(Kind.DURATION, 15 * _MINUTE, minimum=1_000, maximum=7 * _DAY,
        doc="The most `transaction.timeout.ms` that a producer may ask for.")]
    log_retention_check_interval_ms: Annotated[int, Setting(Kind.DURATION, 5 * _MINUTE, minimum=100, maximum=_DAY,
        doc="How often old segments are looked for.")]
    log_dir_min_free_bytes: Annotated[int, Setting(Kind.SIZE, _GIB, minimum=0, maximum=1 << 50, kafka="none",
        doc="With less room than this on its disk, a directory takes no appends.")]
    max_connections: Annotated[int, Setting(Kind.INTEGER, 1_000, minimum=8, maximum=10_000, kafka="2147483647",
        doc="Streams served at once; further ones are refused and may try again.")]
    # None: `memory.limit_bytes` says how much.
    memory_max_bytes: Annotated[int | None, Setting(Kind.SIZE, minimum=832 * _MIB, maximum=1 << 40, kafka="none",
        doc="The resident memory that a broker keeps to: it cuts connections that send more than fits. What may pass "
            "it for a moment stands in the page Careless and hostile clients. A large `fetch.max.bytes` or "
            "`replica.fetch.max.bytes` needs more; the broker says how much. Without it a quarter of the machine's, "
            "from 1 GiB to 4 GiB.")]
    fetch_max_bytes: Annotated[int, Setting(Kind.SIZE, 55 * _MIB, minimum=_MIB, maximum=_GIB,
        doc="The most that one fetch is answered with.")]
    replica_lag_time_max_ms: Annotated[int, Setting(Kind.DURATION, 30 * _SECOND, minimum=100, maximum=_DAY,
        doc="How long a replica may lack what its leader has before it leaves the in-sync set.")]
    replica_fetch_max_bytes: Annotated[int, Setting(Kind.SIZE, 10 * _MIB, minimum=1, maximum=_GIB, kafka="1048576",
        doc="The most that one fetch of a follower asks its leader for, all partitions together; a single larger frame "
            "still comes.")]
    # Invariant: replica_fetch_wait_max_ms < replica_lag_time_max_ms.
    replica_fetch_wait_max_ms: Annotated[int, Setting(Kind.DURATION, 500, minimum=0, maximum=_MINUTE,
        doc="How long a leader keeps a follower's fetch waiting for data; less than `replica.lag.time.max.ms`.")]
    # Bytes per second.
    replication_throttled_rate: Annotated[int, Setting(Kind.SIZE, -1, minimum=1, maximum=1 << 40, unlimited=True,
        kafka="none",
        doc="How many bytes per second a broker fetches for replicas that are not in sync, so that moving partitions "
            "leaves room for others.")]
    auto_leader_rebalance_enable: Annotated[bool, Setting(Kind.BOOLEAN, True,
        doc="Whether a partition's leadership goes back to its first replica when that is in sync again.")]
    controlled_shutdown_enable: Annotated[bool, Setting(Kind.BOOLEAN, True,
        doc="Whether a broker that is stopped hands its leaderships over first.")]

    def security_protocol_of(self, listener: str) -> str:
        """One of `SECURITY_PROTOCOLS`: what the map says of the listener, or else its name."""
        name = dict(self.listener_security_protocol_map or ()).get(listener, listener)
        return SSL_BY_ANOTHER_NAME.get(name, name)

    @property
    def inter_broker_listener(self) -> str:
        """The listener over which brokers reach each other."""
        name = self.inter_broker_listener_name
        return self.listeners[0].name if name is None else name.upper()

    def asks_for_certificates(self, listener: str) -> bool:
        """Whether clients need a certificate there. ``required`` means those that speak SSL, not SASL_SSL, as in
        Kafka."""
        protocol = self.security_protocol_of(listener)
        if not protocol.endswith("SSL"):
            return False
        is_named = listener in (each.upper() for each in self.ssl_client_auth)
        return is_named or ("required" in self.ssl_client_auth and protocol == "SSL")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """One topic's settings, its own and the defaults. Sizes in bytes, durations in ms, -1: no limit."""

    retention_ms: Annotated[int, Setting(Kind.DURATION, 7 * _DAY, minimum=0, maximum=100 * _FOREVER_MS, unlimited=True,
        doc="How long records stay after they were appended. A broker's clock that is set ahead while it runs is not "
            "believed before its restart, and then only if ZooKeeper's agrees.")]
    retention_bytes: Annotated[int, Setting(Kind.SIZE, -1, minimum=0, maximum=1 << 60, unlimited=True,
        doc="How much of a partition stays; whole segments beyond it are removed, oldest first.")]
    segment_bytes: Annotated[int, Setting(Kind.SIZE, _GIB, minimum=4 * _KIB, maximum=2**31 - 1,
        doc="How large a segment file becomes.")]
    segment_ms: Annotated[int, Setting(Kind.DURATION, 7 * _DAY, minimum=100, maximum=100 * _FOREVER_MS,
        doc="How old a segment with records becomes before the next one begins.")]
    # None: `min_in_sync` says how many.
    min_insync_replicas: Annotated[int | None, Setting(Kind.INTEGER, minimum=1, maximum=32, kafka="1",
        doc="How many replicas, the leader included, must be in sync for records to be acknowledged with `acks=all`. "
            "Without it 1 below three replicas, else RF // 2 + 1.")]
    unclean_leader_election_enable: Annotated[bool, Setting(Kind.BOOLEAN, False,
        doc="Whether a replica that was not in sync may lead when nobody else is left: records are lost then.")]
    # Invariant: max_message_bytes ≤ segment_bytes.
    max_message_bytes: Annotated[int, Setting(Kind.SIZE, 16 * _MIB, minimum=_KIB, maximum=MAX_MESSAGE_BYTES_LIMIT,
        kafka="1048588",
        doc="The largest frame (a record batch as sent); never above `segment.bytes`.")]
    message_timestamp_type: Annotated[Literal["CreateTime", "LogAppendTime"], Setting(Kind.CHOICE, "CreateTime",
        doc="Whose clock a record's timestamp is from.")]
    index_interval_bytes: Annotated[int, Setting(Kind.SIZE, 4 * _KIB, minimum=64, maximum=_GIB,
        doc="How much log lies between two entries of its index.")]
    flush_mode: Annotated[Literal["ack", "interval", "os"], Setting(Kind.CHOICE, "ack", kafka="os",
        doc="When records go to the disk: before they are acknowledged, every `flush.ms`, or when the operating system "
            "likes.")]
    flush_ms: Annotated[int, Setting(Kind.DURATION, _SECOND, minimum=10, maximum=_DAY, kafka="9223372036854775807",
        doc="How often `flush.mode=interval` writes to the disk.")]

    def min_in_sync(self, replication_factor: int) -> int:
        """``min.insync.replicas`` of a topic with that many replicas: what was set, else 1 below three replicas, a
        majority from three on."""
        if self.min_insync_replicas is not None:
            return self.min_insync_replicas
        return 1 if replication_factor < 3 else replication_factor // 2 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """What every client has. Durations in ms."""

    bootstrap_servers: Annotated[tuple[Address, ...], Setting(Kind.ADDRESSES, f"localhost:{DEFAULT_PORT}",
        kafka="required",
        doc=f"Brokers to ask first; without it `${BOOTSTRAP_VARIABLE}`.")]
    client_id: Annotated[str, Setting(Kind.TEXT, "pylog", kafka="generated",
        doc="A name for the broker's log.")]
    request_timeout_ms: Annotated[int, Setting(Kind.DURATION, 30 * _SECOND, minimum=100, maximum=_DAY,
        doc="How long a request may take before it is tried again or fails.")]
    enable_http_proxy: Annotated[bool, Setting(Kind.BOOLEAN, False, kafka="none",
        doc="Whether connections to brokers go through the proxy that `grpc_proxy`, `https_proxy` or `http_proxy` in "
            "the environment names.")]
    security_protocol: Annotated[Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], Setting(Kind.CHOICE,
        "PLAINTEXT", aliases=(("tls", "ssl"), ("sasl_tls", "sasl_ssl")),
        doc="What the brokers' listener speaks.")]
    ssl_cafile: Annotated[Path | None, Setting(Kind.PATH,
        doc="The CAs whose brokers are trusted: a PEM file. Without it, those that the system trusts.")]
    ssl_certfile: Annotated[Path | None, Setting(Kind.PATH,
        doc="The client's certificate, for brokers that ask for one: a PEM file.")]
    ssl_keyfile: Annotated[Path | None, Setting(Kind.PATH,
        doc="Its key: a PEM file that is not encrypted.")]
    # Invariant: what is given below decides.
    sasl_mechanism: Annotated[Literal["PLAIN", "OAUTHBEARER"] | None, Setting(Kind.CHOICE, kafka="GSSAPI",
        doc="What the client proves itself with: a user's password, or a token. Without it, what is given.")]
    sasl_username: Annotated[str | None, Setting(Kind.TEXT,
        doc="The user.")]
    sasl_password: Annotated[Secret | None, Setting(Kind.SECRET,
        doc="The user's password.")]
    token: Annotated[Secret | None, Setting(Kind.SECRET,
        doc="The token, in place of user and password.")]
    token_file: Annotated[Path | None, Setting(Kind.PATH, kafka="none",
        doc="The file that the token is in, which is read again whenever it has changed: for tokens that somebody "
            "renews.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(AdminSettings):
    """A producer's settings. Sizes in bytes, durations in ms."""

    acks: Annotated[Literal["all", "1", "0"], Setting(Kind.CHOICE, "all", aliases=(("-1", "all"),),
        doc="Who must have a record before it is acknowledged: all in-sync replicas, the leader, nobody.")]
    # Invariant: only with acks="all".
    enable_idempotence: Annotated[bool, Setting(Kind.BOOLEAN, True,
        doc="Whether a record that has to be sent again is in the log once, and in order. Needs `acks=all`: with "
            "another `acks` it is off.")]
    # Invariant: only with acks="all".
    transactional_id: Annotated[str | None, Setting(Kind.TEXT,
        doc="Makes the producer transactional: what it sends becomes visible when its transaction is committed. A new "
            "producer with the same id takes over from the one before.")]
    transaction_timeout_ms: Annotated[int, Setting(Kind.DURATION, _MINUTE, minimum=1, maximum=7 * _DAY,
        doc="How long a transaction may stay open; then it is aborted.")]
    linger_ms: Annotated[int, Setting(Kind.DURATION, 5, minimum=0, maximum=10 * _MINUTE,
        doc="How long a record waits for company before it is sent.")]
    batch_size: Annotated[int, Setting(Kind.SIZE, _MIB, minimum=1, maximum=MAX_MESSAGE_BYTES_LIMIT, kafka="16384",
        doc="How much of a partition goes into one frame.")]
    buffer_memory: Annotated[int, Setting(Kind.SIZE, 64 * _MIB, minimum=64 * _KIB, maximum=1 << 40, kafka="33554432",
        doc="The most that waits to be acknowledged; then `send` blocks.")]
    max_block_ms: Annotated[int, Setting(Kind.DURATION, _MINUTE, minimum=0, maximum=_DAY,
        doc="How long `send` blocks for room, or for a topic's metadata, before it fails.")]
    delivery_timeout_ms: Annotated[int, Setting(Kind.DURATION, 2 * _MINUTE, minimum=1, maximum=_DAY,
        doc="How long a record is tried, retries included, before its future fails.")]
    compression_type: Annotated[Literal["none", "lz4", "zstd"], Setting(Kind.CHOICE, "none",
        doc="How frames are compressed.")]
    partitioner: Annotated[Literal["round_robin", "sticky"] | Callable[..., int], Setting(Kind.CHOICE_OR_CALLABLE,
        "round_robin", kafka="sticky",
        doc="Which partition a record without a key goes to; a callable `(topic, key, partitions) -> int` decides for "
            "every record.")]
    key_serializer: Annotated[Callable[[Any], bytes | None] | None, Setting(Kind.CALLABLE, kafka="required",
        doc="Makes a key's bytes from what `send` is given.")]
    value_serializer: Annotated[Callable[[Any], bytes | None] | None, Setting(Kind.CALLABLE, kafka="required",
        doc="Makes a value's bytes from what `send` is given.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(AdminSettings):
    """A consumer's settings. Sizes in bytes, durations in ms."""

    group_id: Annotated[str | None, Setting(Kind.TEXT,
        doc="The group whose offsets are read and committed; without it nothing is committed.")]
    # Invariant: only with a group_id.
    group_instance_id: Annotated[str | None, Setting(Kind.TEXT,
        doc="Makes the member static: a process that comes back with it within the session timeout gets the partitions "
            "it had.")]
    session_timeout_ms: Annotated[int, Setting(Kind.DURATION, 45 * _SECOND, minimum=1_000, maximum=30 * _MINUTE,
        doc="How long a member that is not heard of keeps its partitions.")]
    max_poll_interval_ms: Annotated[int, Setting(Kind.DURATION, 5 * _MINUTE, minimum=1_000, maximum=60 * _MINUTE,
        doc="How long a member may take between two polls before it gives up its share.")]
    auto_offset_reset: Annotated[Literal["latest", "earliest", "none"], Setting(Kind.CHOICE, "latest",
        doc="Where to begin where the group has no offset, or it is gone.")]
    enable_auto_commit: Annotated[bool, Setting(Kind.BOOLEAN, True,
        doc="Whether offsets are committed by themselves.")]
    auto_commit_interval_ms: Annotated[int, Setting(Kind.DURATION, 5 * _SECOND, minimum=10, maximum=_DAY,
        doc="How often that is done.")]
    isolation_level: Annotated[Literal["read_committed", "read_uncommitted"], Setting(Kind.CHOICE, "read_committed",
        kafka="read_uncommitted",
        doc="Whether records of transactions that are open or aborted are left out.")]
    max_poll_records: Annotated[int, Setting(Kind.INTEGER, 500, minimum=1, maximum=2**31 - 1,
        doc="The most records that one `poll` returns.")]
    fetch_max_bytes: Annotated[int, Setting(Kind.SIZE, 50 * _MIB, minimum=1, maximum=_GIB,
        doc="The most that one fetch asks for; a single larger frame still comes.")]
    fetch_max_wait_ms: Annotated[int, Setting(Kind.DURATION, 500, minimum=0, maximum=_MINUTE,
        doc="How long a broker keeps a fetch waiting for data.")]
    columns: Annotated[tuple[str, ...] | None, Setting(Kind.NAMES, kafka="none",
        doc="The columns wanted; the broker leaves the others out.")]
    where: Annotated[str | None, Setting(Kind.TEXT, kafka="none",
        doc="Only records that match, in the words of Spark SQL: `delay > 15 AND carrier LIKE 'U%'`.")]
    key_deserializer: Annotated[Callable[[bytes], Any] | None, Setting(Kind.CALLABLE, kafka="required",
        doc="Makes a record's key from its bytes.")]
    value_deserializer: Annotated[Callable[[bytes], Any] | None, Setting(Kind.CALLABLE, kafka="required",
        doc="Makes a record's value from its bytes.")]

# fmt: on


# --- made from the classes above by `python tests/unit/contract/test_generated.py`: typed keyword arguments ----------
class AdminKeywords(TypedDict, total=False):
    """`Admin`'s settings."""

    client_id: str | None
    request_timeout_ms: int | str
    enable_http_proxy: bool
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "tls", "sasl_tls"]
    ssl_cafile: str | Path | None
    ssl_certfile: str | Path | None
    ssl_keyfile: str | Path | None
    sasl_mechanism: Literal["PLAIN", "OAUTHBEARER"] | None
    sasl_username: str | None
    sasl_password: str | Secret | None
    token: str | Secret | None
    token_file: str | Path | None


class ProducerKeywords(AdminKeywords, total=False):
    """`Producer`'s settings."""

    acks: Literal["all", "1", "0", "-1", 1, 0, -1]
    enable_idempotence: bool
    transactional_id: str | None
    transaction_timeout_ms: int | str
    linger_ms: int | str
    batch_size: int | str
    buffer_memory: int | str
    max_block_ms: int | str
    delivery_timeout_ms: int | str
    compression_type: Literal["none", "lz4", "zstd"]
    partitioner: Literal["round_robin", "sticky"] | Callable[..., int]
    key_serializer: Callable[[Any], bytes | None] | None
    value_serializer: Callable[[Any], bytes | None] | None


class ConsumerKeywords(AdminKeywords, total=False):
    """`Consumer`'s settings."""

    group_id: str | None
    group_instance_id: str | None
    session_timeout_ms: int | str
    max_poll_interval_ms: int | str
    auto_offset_reset: Literal["latest", "earliest", "none"]
    enable_auto_commit: bool
    auto_commit_interval_ms: int | str
    isolation_level: Literal["read_committed", "read_uncommitted"]
    max_poll_records: int
    fetch_max_bytes: int | str
    fetch_max_wait_ms: int | str
    columns: Sequence[str] | str | None
    where: str | None
    key_deserializer: Callable[[bytes], Any] | None
    value_deserializer: Callable[[bytes], Any] | None


# --- end of what is made ----------------------------------------------------------------------------------------------

Settings = BrokerSettings | TopicSettings | ProducerSettings | ConsumerSettings | AdminSettings
CLASSES: Final[dict[Scope, type[Settings]]] = {
    "broker": BrokerSettings,
    "topic": TopicSettings,
    "producer": ProducerSettings,
    "consumer": ConsumerSettings,
    "admin": AdminSettings,
}


def settings_of(scope: Scope) -> dict[str, Setting]:
    """The scope's settings by dotted name, in the order of their definition. The caller owns the dict."""
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


def reference_table(scope: Scope) -> str:
    """The scope's settings as the reference has them: a markdown table, one row each, ending with a newline."""
    rows = ["| setting | default | allowed | |", "|---|---|---|---|"]
    for setting in settings_of(scope).values():
        shown = setting.show(setting.default)
        default = "required" if setting.required else f"`{shown}`" if shown else ""
        rows.append(f"| `{setting.name}` | {default} | {setting.allowed} | {setting.sentence} |")
    return "\n".join(rows) + "\n"


def _defined_in(settings_class: type[Settings]) -> dict[str, Setting]:
    """What the fields of the class say, by dotted name."""
    found: dict[str, Setting] = {}
    for keyword, annotated in get_type_hints(settings_class, include_extras=True).items():
        kind, setting = get_args(annotated)
        # A type such as `Literal["a", "b"] | Callable` has its choices one level down.
        literals = [part for part in (kind, *get_args(kind)) if get_origin(part) is Literal]
        choices = tuple(word for part in literals for word in get_args(part))
        required = setting.default is None and type(None) not in get_args(kind)
        found[keyword.replace("_", ".")] = replace(setting, keyword=keyword, choices=choices, required=required)
    return found


_BY_SCOPE: Final[dict[Scope, dict[str, Setting]]] = {scope: _defined_in(CLASSES[scope]) for scope in SCOPES}
