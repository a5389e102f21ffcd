"""Settings: their defaults, how wrong ones are refused, and what is generated from their definitions."""

import typing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_runtime.contract.errors import InvalidConfigError
from broker_runtime.contract.settings import (
    SCOPES,
    Address,
    Listener,
    load_broker_settings,
    parse_duration,
    parse_size,
    reference_table,
    resolve,
    settings_of,
)
from broker_runtime.contract.settings.definitions import CLASSES
from broker_runtime.contract.settings.kinds import PARSERS, Kind, show

TYPES = {
    Kind.TEXT: str,
    Kind.INTEGER: int,
    Kind.SIZE: int,
    Kind.DURATION: int,
    Kind.BOOLEAN: bool,
    Kind.NAMES: tuple[str, ...],
    Kind.PATHS: tuple[Path, ...],
    Kind.ADDRESS: Address,
    Kind.ADDRESSES: tuple[Address, ...],
}
BROKER = {"broker.id": 1, "log.dirs": "/data"}


@pytest.mark.parametrize("scope", SCOPES)
def test_every_default_is_allowed_and_reads_back_as_shown(scope):
    for setting in settings_of(scope).values():
        if setting.default is not None:
            value = setting.parse(setting.default)
            assert setting.parse(setting.show(value)) == value


@pytest.mark.parametrize("scope", SCOPES)
def test_fields_have_the_types_of_their_parsed_values(scope):
    """The annotation of a field is the type that its kind's parser returns."""
    types = typing.get_type_hints(CLASSES[scope])
    for setting in settings_of(scope).values():
        parsed = types[setting.keyword]
        if setting.kind in TYPES:
            assert parsed in (TYPES[setting.kind], TYPES[setting.kind] | None), setting.name
        else:
            assert bool(setting.choices) == (setting.kind in (Kind.CHOICE, Kind.CHOICE_OR_CALLABLE)), setting.name


@pytest.mark.parametrize(
    ("scope", "name", "value"),
    [
        ("broker", "listeners", (Listener("PLAINTEXT", Address("127.0.0.1", 9192)),)),
        ("broker", "zookeeper_connect", "localhost:2181/pylog"),
        ("broker", "zookeeper_session_timeout_ms", 18_000),
        ("broker", "log_retention_check_interval_ms", 300_000),
        ("broker", "log_dir_min_free_bytes", 1 << 30),
        ("broker", "max_connections", 1_000),
        ("broker", "fetch_max_bytes", 55 << 20),
        ("broker", "replica_lag_time_max_ms", 30_000),
        ("broker", "replica_fetch_wait_max_ms", 500),
        ("broker", "auto_leader_rebalance_enable", True),
        ("broker", "controlled_shutdown_enable", True),
        ("topic", "min_insync_replicas", None),
        ("topic", "unclean_leader_election_enable", False),
        ("topic", "retention_ms", 604_800_000),
        ("topic", "retention_bytes", -1),
        ("topic", "segment_bytes", 1 << 30),
        ("topic", "max_message_bytes", 16 << 20),
        ("topic", "message_timestamp_type", "CreateTime"),
        ("topic", "flush_mode", "ack"),
        ("topic", "flush_ms", 1_000),
        ("producer", "acks", "all"),
        ("producer", "linger_ms", 5),
        ("producer", "batch_size", 1 << 20),
        ("producer", "buffer_memory", 64 << 20),
        ("producer", "delivery_timeout_ms", 120_000),
        ("consumer", "auto_offset_reset", "latest"),
        ("consumer", "max_poll_records", 500),
        ("consumer", "fetch_max_bytes", 50 << 20),
        ("admin", "request_timeout_ms", 30_000),
    ],
)
def test_defaults_are_the_promised_ones(scope, name, value):
    """The settings have the promised defaults."""
    assert getattr(resolve(scope, BROKER if scope == "broker" else None), name) == value


@pytest.mark.parametrize(
    ("config", "replication_factor", "least"),
    [({}, 1, 1), ({}, 2, 1), ({}, 3, 2), ({}, 4, 3), ({}, 5, 3), ({"min.insync.replicas": 1}, 3, 1)],
)
def test_records_need_a_majority_in_sync_from_three_replicas_on(config, replication_factor, least):
    """From three replicas on ``min.insync.replicas`` is a majority."""
    assert resolve("topic", config).min_in_sync(replication_factor) == least


def test_waiting_follower_must_not_count_as_behind():
    with pytest.raises(InvalidConfigError, match=r"replica\.fetch\.wait\.max\.ms=500 is not less than .*=500"):
        resolve("broker", {**BROKER, "replica.lag.time.max.ms": 500})


def test_one_name_may_mean_two_things_in_two_scopes():
    assert resolve("broker", BROKER).fetch_max_bytes != resolve("consumer").fetch_max_bytes


def test_unknown_name_is_refused_with_the_nearest_known_one():
    with pytest.raises(
        InvalidConfigError, match=r"'retention\.msec' is not a topic setting; did you mean 'retention\.ms'"
    ):
        resolve("topic", {"retention.msec": 1})


def test_unknown_keyword_is_refused_with_its_dotted_name():
    with pytest.raises(InvalidConfigError, match=r"'lingr\.ms'.*'linger\.ms'"):
        resolve("producer", None, {"lingr_ms": 1})


def test_name_of_another_scope_is_refused_with_that_scope():
    with pytest.raises(InvalidConfigError, match=r"'acks' is not a topic setting; it is a producer setting"):
        resolve("topic", {"acks": "all"})


def test_name_unlike_any_other_is_refused_with_the_list():
    with pytest.raises(InvalidConfigError, match=r"choose from retention\.ms, "):
        resolve("topic", {"zzzzzz": 1})


@pytest.mark.parametrize(
    ("scope", "name", "value", "allowed"),
    [
        ("topic", "segment.bytes", "4XB", "a number of bytes"),
        ("topic", "segment.bytes", "4KB", "4KiB to"),
        ("topic", "segment.bytes", True, "a number of bytes"),
        ("topic", "segment.bytes", "9" * 40, "a number of bytes"),
        ("topic", "retention.ms", "7 days", "a number of milliseconds"),
        ("topic", "retention.ms", -2, "or -1"),
        ("topic", "retention.ms", 1.5, "a number of milliseconds"),
        ("topic", "flush.mode", "never", "one of ack, interval, os"),
        ("topic", "flush.mode", "", "text that is not empty"),
        ("topic", "max.message.bytes", "65MiB", "1KiB to 64MiB"),
        ("producer", "acks", "2", "one of all, 1, 0"),
        ("producer", "acks", True, "text"),
        ("producer", "partitioner", "best", "or a callable"),
        ("producer", "key.serializer", "str", "a Python callable"),
        ("consumer", "enable.auto.commit", "maybe", "true or false"),
        ("consumer", "columns", [1], "a list of names"),
        ("consumer", "columns", "", "at least one"),
        ("consumer", "max.poll.records", "many", "a whole number"),
        ("admin", "bootstrap.servers", "localhost", "host:port"),
        ("admin", "bootstrap.servers", "a:1,b:99999", "host:port"),
        ("admin", "bootstrap.servers", "SSL://a:1", "SSL is not served"),
        ("admin", "bootstrap.servers", [], "host:port"),
        ("admin", "bootstrap.servers", 9192, "host:port"),
        ("broker", "zookeeper.session.timeout.ms", "1s", "2s to 1m"),
    ],
)
def test_wrong_value_is_refused_with_name_value_and_what_is_allowed(scope, name, value, allowed):
    with pytest.raises(InvalidConfigError) as caught:
        resolve(scope, {**(BROKER if scope == "broker" else {}), name: value})
    assert caught.value.message.startswith(f"{name}={value!r}: must be ")
    assert allowed in caught.value.message


def test_missing_required_setting_is_named():
    with pytest.raises(InvalidConfigError, match=r"log\.dirs is missing"):
        resolve("broker", {"broker.id": 1})


def test_setting_given_twice_is_refused():
    with pytest.raises(InvalidConfigError, match=r"linger\.ms is given twice: 1 and 2"):
        resolve("producer", {"linger.ms": 1}, {"linger_ms": 2})


def test_none_counts_as_not_given():
    assert resolve("consumer", {"group.id": None}, {"group_id": None}).group_id is None
    assert resolve("consumer", {"group.id": "g"}, {"group_id": None}).group_id == "g"


def test_max_message_bytes_above_segment_bytes_is_refused():
    with pytest.raises(InvalidConfigError, match=r"max\.message\.bytes=2097152 is more than segment\.bytes=1048576"):
        resolve("topic", {"segment.bytes": "1MiB", "max.message.bytes": "2MiB"})


def test_default_max_message_bytes_is_reduced_to_a_smaller_segment():
    assert resolve("topic", {"segment.bytes": "1MiB"}).max_message_bytes == 1 << 20


@pytest.mark.parametrize(("given_acks", "acks"), [("all", "all"), (-1, "all"), ("-1", "all"), (1, "1"), ("ALL", "all")])
def test_acks_may_be_a_number_or_a_word(given_acks, acks):
    """W9: acks=0 | 1 | all."""
    assert resolve("producer", None, {"acks": given_acks}).acks == acks


@pytest.mark.parametrize(
    ("text", "size"), [("16MiB", 16 << 20), ("1GiB", 1 << 30), ("100kB", 100_000), ("1.5 KiB", 1536), (7, 7), ("7", 7)]
)
def test_sizes_are_numbers_or_have_units(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "ms"), [("7d", 604_800_000), ("500ms", 500), ("1.5s", 1500), ("15m", 900_000), (3, 3), ("-1", -1)]
)
def test_durations_are_numbers_or_have_units(text, ms):
    assert parse_duration(text) == ms


@given(st.sampled_from([Kind.SIZE, Kind.DURATION, Kind.INTEGER]), st.integers(-1, 2**62))
def test_shown_numbers_read_back_the_same(kind, value):
    assert PARSERS[kind](show(kind, value)) == value


def test_addresses_are_lists_or_text_and_ipv6_has_brackets():
    servers = resolve("admin", {"bootstrap.servers": ["a:1", "PLAINTEXT://b:2", "[::1]:3"]}).bootstrap_servers
    assert servers == (Address("a", 1), Address("b", 2), Address("::1", 3))
    assert str(servers[2]) == "[::1]:3"


def test_bootstrap_servers_come_from_the_environment_when_not_given(monkeypatch):
    """`$PYLOG_BOOTSTRAP_SERVERS`, then localhost:9192."""
    monkeypatch.delenv("PYLOG_BOOTSTRAP_SERVERS", raising=False)
    assert resolve("admin").bootstrap_servers == (Address("localhost", 9192),)
    monkeypatch.setenv("PYLOG_BOOTSTRAP_SERVERS", "x:1,y:2")
    assert resolve("admin").bootstrap_servers == (Address("x", 1), Address("y", 2))
    assert resolve("admin", {"bootstrap.servers": "z:3"}).bootstrap_servers == (Address("z", 3),)


@pytest.mark.parametrize(
    "text",
    [
        '"broker.id" = 3\n"log.dirs" = ["/a", "/b"]\nlisteners = "h:1"',
        'broker.id = 3\nlog.dirs = "/a,/b"\nlisteners = "h:1"',
        'listeners = "h:1"\n[broker]\nid = 3\n[log]\ndirs = ["/a", "/b"]',
    ],
)
def test_broker_file_accepts_quoted_bare_and_nested_names(tmp_path, text):
    path = tmp_path / "broker.toml"
    path.write_text(text)
    settings = load_broker_settings(path)
    assert (settings.broker_id, settings.log_dirs) == (3, (Path("/a"), Path("/b")))
    assert settings.listeners == (Listener("PLAINTEXT", Address("h", 1)),)
    assert settings.num_partitions == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('broker.id = 1\nlog.dirs = "/a', "not TOML"),
        ('broker.id = 1\nlog.dir = "/a"', "did you mean 'log.dirs'"),
        ('"broker.id" = 1\nlog.dirs = "/a"\n[broker]\nid = 2', "broker.id is given twice"),
        ('broker.id = "one"\nlog.dirs = "/a"', "broker.id='one': must be a whole number"),
    ],
)
def test_broker_file_errors_name_the_file_and_the_problem(tmp_path, text, problem):
    path = tmp_path / "broker.toml"
    path.write_text(text)
    with pytest.raises(InvalidConfigError) as caught:
        load_broker_settings(path)
    assert caught.value.message.startswith(f"{path}: ")
    assert problem in caught.value.message


def test_broker_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(InvalidConfigError, match=r"none\.toml: cannot be read: No such file"):
        load_broker_settings(tmp_path / "none.toml")


@pytest.mark.parametrize("scope", SCOPES)
def test_reference_has_every_setting(scope):
    for name in settings_of(scope):
        assert f"| `{name}` |" in reference_table(scope)
