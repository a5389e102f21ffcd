"""Which settings clients accept, and how they refuse others."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from broker_runtime.contract.errors import InvalidConfigError
from broker_runtime.contract.security import TokenFile, access_of
from broker_runtime.contract.settings import Address, resolve
from pyspark_log import Admin, Consumer, Producer, errors
from pyspark_log.client.admin.security import check_password


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"token": "abc"}, "token needs security.protocol=SASL_SSL or SASL_PLAINTEXT, not PLAINTEXT"),
        ({"sasl_username": "a"}, "sasl.username needs security.protocol=SASL_SSL"),
        ({"ssl_cafile": "ca.pem"}, "ssl.cafile needs security.protocol=SSL or SASL_SSL, not PLAINTEXT"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "needs sasl.username and sasl.password"),
        ({"security_protocol": "SASL_SSL", "sasl_username": "a"}, "security.protocol=SASL_SSL needs sasl.password"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "a:b", "sasl_password": "secret8"},
            "must be a name without ':'",
        ),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "a\udce9", "sasl_password": "secret8"},
            r"sasl.username='a\udce9': must be a name without ':', in valid Unicode",
        ),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "a", "sasl_password": "secret8\udce9"},
            "sasl.password=[hidden]: must be text that is not empty, in valid Unicode",
        ),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_password": "secret8", "token": "abc"},
            "token and sasl.password are given",
        ),
        (
            {"security_protocol": "SASL_PLAINTEXT", "token_file": "/some/file", "token": "abc"},
            "token and token.file are given: only one of them is allowed",
        ),
        ({"token_file": "/some/file"}, "token.file needs security.protocol=SASL_SSL or SASL_PLAINTEXT"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "token_file": "/no/where"},
            "token.file=/no/where: cannot be read: No such file or directory",
        ),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "token": "abc"},
            "sasl.mechanism=PLAIN does not fit: a token is given",
        ),
        ({"security_protocol": "SSL", "ssl_keyfile": "k.pem"}, "ssl.certfile and ssl.keyfile need each other"),
        ({"security_protocol": "SSL", "ssl_cafile": "/no/where.pem"}, "ssl.cafile=/no/where.pem: cannot be read"),
        ({"security_protocol": "TLSv1"}, "security.protocol='TLSv1': must be one of PLAINTEXT, SSL"),
    ],
)
@pytest.mark.parametrize("make", [Admin, Producer, Consumer])
def test_settings_that_secure_nothing_are_refused_when_a_client_is_made(
    make: Any, given: dict[str, str], says: str
) -> None:
    """A setting without effect is never accepted silently, and no error shows a secret."""
    with pytest.raises(errors.InvalidConfigError) as refused:
        make(bootstrap_servers="localhost:1", **given)
    assert says in str(refused.value)
    assert "secret8" not in str(refused.value)
    assert "abc" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"\xff\xfe", b"a\nb", b"a" * 20_000])
def test_file_that_holds_no_token_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    settings = resolve("admin", {"security.protocol": "SASL_PLAINTEXT", "token.file": str(path)})
    with pytest.raises(errors.InvalidConfigError, match="must be one token, of at most 16 KiB"):
        access_of(settings)


def test_token_is_read_again_when_its_file_has_changed_and_kept_when_it_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever renews it may be at it; a thousand calls meanwhile make one line."""
    path = tmp_path / "token"
    path.write_text("first\n")
    access = access_of(resolve("admin", {"security.protocol": "SASL_PLAINTEXT", "token.file": str(path)}))
    assert access.credentials is not None
    assert access.credentials() == [("authorization", "Bearer first")]
    renewed = tmp_path / "renewed"
    renewed.write_text("other")
    renewed.replace(path)
    assert access.credentials() == [("authorization", "Bearer other")]
    path.unlink()
    for _ in range(1_000):
        assert access.credentials() == [("authorization", "Bearer other")]
    path.write_text("no token at all")
    assert access.credentials() == [("authorization", "Bearer other")]
    path.write_text("third")
    assert access.credentials() == [("authorization", "Bearer third")]
    assert len([record for record in caplog.records if "read token" in record.message]) == 1
    assert "other" not in caplog.text


def test_password_is_in_no_repr_of_a_clients_settings() -> None:
    settings = resolve(
        "admin", {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "alice", "sasl.password": "secret8"}
    )
    assert settings.sasl_password is not None
    assert settings.sasl_password.reveal() == "secret8"
    assert pickle.loads(pickle.dumps(settings)) == settings
    for shown in (repr(settings), str(settings.sasl_password), f"{access_of(settings)}"):
        assert "secret8" not in shown


def test_secret_is_not_shown_where_it_is_given_twice_or_wrong() -> None:
    with pytest.raises(errors.InvalidConfigError, match=r"sasl.password is given twice\Z"):
        resolve("admin", {"sasl.password": "secret8"}, {"sasl_password": "secret9"})
    with pytest.raises(errors.InvalidConfigError, match=r"token=\[hidden\]: must be text"):
        resolve("admin", {"token": b"secret8"})


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


def test_token_file_that_is_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """Nor is one that takes the place of the file later."""
    path = tmp_path / "token"
    os.mkfifo(path)
    given = {"security.protocol": "SASL_PLAINTEXT", "token.file": str(path)}
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(access_of, resolve("admin", given))
        try:
            assert isinstance(asked.exception(5), InvalidConfigError)
        finally:  # or the thread would never end
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    path.unlink()
    path.write_text("first")
    file = TokenFile(path)
    assert file.token == "first"
    path.unlink()
    os.mkfifo(path)
    assert file.token == "first"


def test_password_that_utf_8_cannot_hold_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(
        errors.InvalidRequestError, match=r"the password is not valid Unicode: .* is allowed\Z"
    ) as refused:
        check_password("secret8\udce9")
    assert "secret8" not in str(refused.value)
