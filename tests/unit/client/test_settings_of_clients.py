"""Which settings clients accept, and how they refuse others."""

from pathlib import Path

import pytest

from broker_runtime.contract.errors import InvalidConfigError
from broker_runtime.contract.settings import Address, resolve
from pyspark_log import Admin, Consumer, Producer, errors


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Consumer(token="secret"), "token"),
        (lambda: Admin(security_protocol="SSL"), "security.protocol"),
    ],
)
def test_clients_refuse_settings_of_later_versions_by_name(make: object, named: str) -> None:
    """A setting without effect is never accepted silently."""
    with pytest.raises(errors.NotSupportedError, match=named):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Producer(linger=5), "linger.ms"),
        (lambda: Producer(config={"acks": "some"}), "acks"),
        (lambda: Producer(batch_size="big"), "batch.size"),
        (lambda: Producer(acks=1, enable_idempotence=True), r"enable\.idempotence=true needs acks=all, not acks=1"),
        (lambda: Producer(config={"acks": "0", "enable.idempotence": "true"}), r"enable\.idempotence=true needs"),
        (lambda: Consumer(auto_offset_reset="newest"), "auto.offset.reset"),
        (lambda: Consumer(isolation_level="snapshot"), "isolation.level"),
        (lambda: Producer(transactional_id="a/b"), "transactional.id"),
        (lambda: Producer(transactional_id="t", acks=1), "transactional.id"),
        (lambda: Producer(config={"transaction.timeout.ms": 0}), "transaction.timeout.ms"),
        (lambda: Consumer(config={"group.ids": "g"}), "group.id"),
        (lambda: Consumer(group_id="a/b"), "a/b"),
        (lambda: Consumer(group_instance_id="i"), "group.instance.id"),
        (lambda: Admin("localhost:99999"), "99999"),
    ],
)
def test_clients_refuse_unknown_and_wrong_settings_with_what_is_allowed(make: object, match: str) -> None:
    """The error has the nearest known name for an unknown one, and the allowed values for a wrong value."""
    with pytest.raises(ValueError, match=match):
        make()  # type: ignore[operator]


def test_clients_accept_settings_as_keywords_and_by_dotted_name() -> None:
    """Both spellings, sizes and durations as text, and the default address from the environment work; nothing is
    connected.
    """
    with Producer("localhost:1", linger_ms="1s", batch_size="64KiB", config={"max.block.ms": 5}) as producer:
        given = producer._settings
    assert (given.linger_ms, given.batch_size, given.max_block_ms) == (1_000, 64 << 10, 5)
    with Consumer(bootstrap_servers=["localhost:1", "localhost:2"], config={"fetch.max.bytes": "1MiB"}) as consumer:
        assert consumer._settings.fetch_max_bytes == 1 << 20
        assert consumer._settings.bootstrap_servers == (Address("localhost", 1), Address("localhost", 2))
    with Admin(["localhost:1"], request_timeout_ms=100) as admin:
        assert admin._cluster.request_timeout_s == 0.1


def test_producer_is_idempotent_unless_its_acks_forbid_it() -> None:
    """W9: it is the default; `acks=0` and `acks=1` turn it off, as a lost record would not be noticed."""
    for is_on, given in (
        (True, {}),
        (True, {"acks": "all"}),
        (True, {"acks": -1, "enable_idempotence": True}),
        (False, {"enable_idempotence": False}),
        (False, {"acks": 1}),
        (False, {"acks": "0", "enable_idempotence": False}),
    ):
        producer = Producer("localhost:1", **given)  # type: ignore[arg-type]
        assert (producer._accumulator.numbering is not None) == is_on, given
        producer.close()


def test_clients_accept_settings_of_later_versions_that_change_nothing() -> None:
    """A job written for a later version keeps settings whose values describe today's behaviour."""
    for make, at_present, other in (
        (Producer, {"security_protocol": "PLAINTEXT"}, {"security_protocol": "SSL"}),
        (Admin, {"config": {"security.protocol": "PLAINTEXT"}}, {"config": {"security.protocol": "SSL"}}),
    ):
        make(bootstrap_servers="localhost:1", **at_present).close()  # type: ignore[operator]
        with pytest.raises(errors.NotSupportedError):
            make(bootstrap_servers="localhost:1", **other)  # type: ignore[operator]


def test_clients_do_not_read_the_command_lines_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a program does must not depend on the home directory it runs in."""
    (tmp_path / "pylog").mkdir()
    (tmp_path / "pylog" / "config.toml").write_text('bootstrap.servers = "file:1"\nclient.id = "file"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("PYLOG_BOOTSTRAP_SERVERS", raising=False)
    settings = resolve("producer")
    assert (settings.bootstrap_servers, settings.client_id) == ((Address("localhost", 9192),), "pylog")


def test_environment_is_named_when_its_address_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error about a wrong `$PYLOG_BOOTSTRAP_SERVERS` names the variable."""
    monkeypatch.setenv("PYLOG_BOOTSTRAP_SERVERS", "nowhere")
    with pytest.raises(InvalidConfigError, match=r"^\[INVALID_CONFIG\] \$PYLOG_BOOTSTRAP_SERVERS: bootstrap\.servers"):
        resolve("admin")
