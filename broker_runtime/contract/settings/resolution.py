"""From what a user gave, in a call or in a TOML file, to a frozen dataclass per scope: checked, complete, in one unit.

Rule: everything past the edge takes these dataclasses, never a mapping.

In a file dotted names may be quoted (``"broker.id" = 1``), bare (``broker.id = 1``) or nested tables (``[broker]``
``id = 1``); all mean the same. Lists stand for comma lists.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload

from broker_runtime.contract.errors import InvalidConfigError
from broker_runtime.contract.settings.definitions import (
    BOOTSTRAP_VARIABLE,
    CLASSES,
    SECURITY_PROTOCOLS,
    SSL_BY_ANOTHER_NAME,
    AdminSettings,
    BrokerSettings,
    ConsumerSettings,
    ProducerSettings,
    Scope,
    Settings,
    TopicSettings,
    find_setting,
    settings_of,
)
from broker_runtime.contract.settings.kinds import Kind, is_unicode

_MAX_FILE_BYTES = 1 << 20
_Given: TypeAlias = Mapping[str, Any] | None

TRANSACTIONAL_ID_RULE = "1 to 255 printable characters up to U+FFEF are allowed, without '/', and not '.' or '..'"


@overload
def resolve(scope: Literal["broker"], config: _Given = None, keywords: _Given = None) -> BrokerSettings: ...
@overload
def resolve(scope: Literal["topic"], config: _Given = None, keywords: _Given = None) -> TopicSettings: ...
@overload
def resolve(scope: Literal["producer"], config: _Given = None, keywords: _Given = None) -> ProducerSettings: ...
@overload
def resolve(scope: Literal["consumer"], config: _Given = None, keywords: _Given = None) -> ConsumerSettings: ...
@overload
def resolve(scope: Literal["admin"], config: _Given = None, keywords: _Given = None) -> AdminSettings: ...
def resolve(scope: Scope, config: _Given = None, keywords: _Given = None) -> Settings:
    """The scope's settings: ``config`` by dotted names, ``keywords`` with ``_`` for ``.``; None means "not given".

    Clients that are given no ``bootstrap.servers`` take `$PYLOG_BOOTSTRAP_SERVERS`. Raises `InvalidConfigError` for an
    unknown name (with the nearest known one), a wrong value (with what is allowed), a name given twice, a required one
    missing, and values that do not fit together.
    """
    given = parse_given(scope, config, keywords)
    values: dict[str, Any] = {}
    for name, setting in settings_of(scope).items():
        if name in given:
            values[setting.keyword] = given[name]
        elif name == "bootstrap.servers" and os.environ.get(BOOTSTRAP_VARIABLE):
            try:
                values[setting.keyword] = setting.parse(os.environ[BOOTSTRAP_VARIABLE])
            except InvalidConfigError as error:
                raise InvalidConfigError(f"${BOOTSTRAP_VARIABLE}: {error.message}") from None
        elif setting.required:
            raise InvalidConfigError(f"{name} is missing: {setting.doc} Allowed: {setting.allowed}")
        else:
            values[setting.keyword] = None if setting.default is None else setting.parse(setting.default)
    if issubclass(CLASSES[scope], AdminSettings):
        _fit_client(given, values)
    if scope == "topic":
        _fit_topic(given, values)
    elif scope == "broker":
        _fit_broker(values)
    elif scope == "producer":
        _fit_producer(given, values)
    elif scope == "consumer":
        _fit_consumer(values)
    return CLASSES[scope](**values)


def parse_given(scope: Scope, config: _Given = None, keywords: _Given = None) -> dict[str, object]:
    """Only what was given, by dotted name. Each value is checked on its own. Raises as `resolve`."""
    parsed: dict[str, object] = {}
    for name, value in (config or {}).items():
        if value is not None:
            parsed[name] = find_setting(scope, str(name)).parse(value)
    for keyword, value in (keywords or {}).items():
        name = keyword.replace("_", ".")
        setting = find_setting(scope, name)
        if value is None:
            continue
        if name in parsed:
            values = "" if setting.kind is Kind.SECRET else f": {(config or {})[name]!r} and {value!r}"
            raise InvalidConfigError(f"{name} is given twice{values}")
        parsed[name] = setting.parse(value)
    return parsed


def load_broker_settings(path: Path) -> BrokerSettings:
    """The broker's settings in ``path``.

    Raises `InvalidConfigError` that names the file and the cause: the file cannot be read, is not TOML, or has settings
    that `resolve` refuses.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise InvalidConfigError(f"{path}: larger than {_MAX_FILE_BYTES} bytes, so no file of settings")
    try:
        tree = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"{path}: not TOML: {error}") from None
    try:
        return resolve("broker", flatten(tree))
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{path}: {error.message}") from None


def flatten(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """The values by dotted name. Raises `InvalidConfigError` for a name that is spelled in two ways."""
    flat: dict[str, object] = {}
    for key, value in tree.items():
        name = prefix + key
        found = flatten(value, name + ".") if isinstance(value, Mapping) else {name: value}
        twice = flat.keys() & found.keys()
        if twice:
            raise InvalidConfigError(f"{min(twice)} is given twice")
        flat.update(found)
    return flat


def _fit_topic(given: Mapping[str, object], values: dict[str, Any]) -> None:
    segment_bytes, max_message_bytes = values["segment_bytes"], values["max_message_bytes"]
    if max_message_bytes > segment_bytes:
        if "max.message.bytes" in given:
            raise InvalidConfigError(
                f"max.message.bytes={max_message_bytes} is more than segment.bytes={segment_bytes}: "
                "a frame must fit in a segment"
            )
        values["max_message_bytes"] = segment_bytes


def _fit_broker(values: Mapping[str, Any]) -> None:
    wait_ms, lag_ms = values["replica_fetch_wait_max_ms"], values["replica_lag_time_max_ms"]
    if wait_ms >= lag_ms:
        raise InvalidConfigError(
            f"replica.fetch.wait.max.ms={wait_ms} is not less than replica.lag.time.max.ms={lag_ms}: a follower that "
            "waits for data would count as behind"
        )
    least_ms, most_ms = values["group_min_session_timeout_ms"], values["group_max_session_timeout_ms"]
    if least_ms > most_ms:
        raise InvalidConfigError(
            f"group.min.session.timeout.ms={least_ms} is more than group.max.session.timeout.ms={most_ms}"
        )

    _fit_listeners(values)
    _fit_zookeeper(values)
    needed = ("sasl_oauthbearer_expected_issuer", "sasl_oauthbearer_expected_audience")
    if values["sasl_oauthbearer_jwks_endpoint_url"] is not None and None in [values[name] for name in needed]:
        raise InvalidConfigError(
            "sasl.oauthbearer.jwks.endpoint.url needs sasl.oauthbearer.expected.issuer and "
            "sasl.oauthbearer.expected.audience: a provider signs tokens for others, too"
        )


def _fit_zookeeper(values: Mapping[str, Any]) -> None:
    if (values["zookeeper_username"] is None) != (values["zookeeper_password"] is None):
        raise InvalidConfigError("zookeeper.username and zookeeper.password need each other")
    if (values["zookeeper_ssl_certfile"] is None) != (values["zookeeper_ssl_keyfile"] is None):
        raise InvalidConfigError("zookeeper.ssl.certfile and zookeeper.ssl.keyfile need each other")
    if values["zookeeper_ssl_certfile"] is not None and values["zookeeper_ssl_cafile"] is None:
        raise InvalidConfigError("zookeeper.ssl.certfile needs zookeeper.ssl.cafile: whose servers count")
    if values["zookeeper_username"] is not None and ":" in values["zookeeper_username"]:
        raise InvalidConfigError(f"zookeeper.username={values['zookeeper_username']!r}: must be a name without ':'")
    proves = values["zookeeper_username"] is not None or values["zookeeper_ssl_certfile"] is not None
    if values["zookeeper_set_acl"] and not proves:
        raise InvalidConfigError(
            "zookeeper.set.acl=true needs zookeeper.username or zookeeper.ssl.certfile: who else could read it then?"
        )


def _fit_listeners(values: Mapping[str, Any]) -> None:
    names = [each.name for each in values["listeners"]]
    protocols = {**dict.fromkeys(SECURITY_PROTOCOLS), **dict(values["listener_security_protocol_map"] or ())}
    for name, protocol in protocols.items():
        if protocol is not None and _protocol(protocol) not in SECURITY_PROTOCOLS:
            raise InvalidConfigError(
                f"listener.security.protocol.map: {name}:{protocol}: must be one of {', '.join(SECURITY_PROTOCOLS)}"
            )
    for name in names:
        if name not in protocols and name not in SSL_BY_ANOTHER_NAME:
            raise InvalidConfigError(
                f"listeners: {name} is none of {', '.join(SECURITY_PROTOCOLS)}, so listener.security.protocol.map must "
                f"say which it speaks ({name}:SASL_SSL)"
            )
    speaks_ssl = [name for name in names if _protocol(protocols.get(name) or name).endswith("SSL")]
    if speaks_ssl and (values["ssl_certfile"] is None or values["ssl_keyfile"] is None):
        raise InvalidConfigError(f"listeners: {speaks_ssl[0]} speaks TLS, which needs ssl.certfile and ssl.keyfile")
    for asking in values["ssl_client_auth"]:
        if asking.upper() not in speaks_ssl and asking not in ("none", "required"):
            raise InvalidConfigError(
                f"ssl.client.auth={asking}: must be none, required or listeners that speak SSL"
                + (f" ({', '.join(speaks_ssl)})" if speaks_ssl else "; there are none")
            )
        if asking != "none" and values["ssl_cafile"] is None:
            raise InvalidConfigError(f"ssl.client.auth={asking} needs ssl.cafile: whose certificates count")
    for setting, others in (
        ("advertised.listeners", [each.name for each in values["advertised_listeners"] or ()]),
        ("inter.broker.listener.name", [values["inter_broker_listener_name"] or names[0]]),
    ):
        for other in others:
            if other.upper() not in names:
                raise InvalidConfigError(f"{setting}: {other} is none of the listeners; they are {', '.join(names)}")


def _protocol(name: str) -> str:
    return SSL_BY_ANOTHER_NAME.get(name, name)


def _fit_client(given: Mapping[str, object], values: Mapping[str, Any]) -> None:
    protocol = values["security_protocol"]
    tls = [name for name in given if name.startswith("ssl.")]
    sasl = [name for name in given if name.startswith(("sasl.", "token"))]
    if tls and not protocol.endswith("SSL"):
        raise InvalidConfigError(f"{tls[0]} needs security.protocol=SSL or SASL_SSL, not {protocol}")
    if sasl and not protocol.startswith("SASL"):
        raise InvalidConfigError(f"{sasl[0]} needs security.protocol=SASL_SSL or SASL_PLAINTEXT, not {protocol}")
    if (values["ssl_certfile"] is None) != (values["ssl_keyfile"] is None):
        raise InvalidConfigError("ssl.certfile and ssl.keyfile need each other")
    if not protocol.startswith("SASL"):
        return
    secrets = {"token": "token", "token.file": "token_file", "sasl.password": "sasl_password"}
    present = [name for name, field in secrets.items() if values[field] is not None]
    if len(present) > 1:
        raise InvalidConfigError(f"{' and '.join(present)} are given: only one of them is allowed")
    is_token = present not in ([], ["sasl.password"])
    mechanism = "OAUTHBEARER" if is_token else "PLAIN"
    if values["sasl_mechanism"] not in (None, mechanism):
        what = "a token" if is_token else "a user and a password, not a token"
        raise InvalidConfigError(f"sasl.mechanism={values['sasl_mechanism']} does not fit: {what} is given")
    needed = () if is_token else ("sasl_username", "sasl_password")
    missing = [name.replace("_", ".") for name in needed if values[name] is None]
    if missing:
        raise InvalidConfigError(f"security.protocol={protocol} needs {' and '.join(missing)}")
    if not is_token and (":" in values["sasl_username"] or not is_unicode(values["sasl_username"])):
        raise InvalidConfigError(
            f"sasl.username={values['sasl_username']!r}: must be a name without ':', in valid Unicode"
        )


def _fit_consumer(values: Mapping[str, Any]) -> None:
    if values["group_instance_id"] is not None and values["group_id"] is None:
        raise InvalidConfigError(
            f"group.instance.id={values['group_instance_id']!r} needs a group.id: it names a member of a group"
        )


def is_transactional_id(name: str) -> bool:
    """Whether it may name a transactional id (`TRANSACTIONAL_ID_RULE`, which ZooKeeper sets)."""
    is_allowed = 1 <= len(name) <= 255 and "/" not in name and name.isprintable() and name not in {".", ".."}
    return is_allowed and max(name) <= "\uffef"


def _fit_producer(given: Mapping[str, object], values: dict[str, Any]) -> None:
    if values["acks"] != "all":
        if given.get("enable.idempotence"):
            raise InvalidConfigError(
                f"enable.idempotence=true needs acks=all, not acks={values['acks']}: leave one of the two out"
            )
        values["enable_idempotence"] = False
    name = values["transactional_id"]
    if name is None:
        return
    if not values["enable_idempotence"]:
        raise InvalidConfigError(f"transactional.id={name!r} needs acks=all and enable.idempotence=true")
    if not is_transactional_id(name):
        raise InvalidConfigError(f"transactional.id={name!r}: {TRANSACTIONAL_ID_RULE}")
