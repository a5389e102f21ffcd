"""Who comes in, and what they may do there: real brokers, TLS, certificates, passwords and ACLs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from broker_runtime.contract.acls import CreateTokenRequest, CreateTokenResponse
from broker_runtime.contract.security import basic_header
from broker_runtime.contract.settings import resolve
from pyspark_log import Acl, AclFilter, Admin, Consumer, Producer, errors, read
from pyspark_log.client.connection.cluster import Cluster
from tests.secured import HOST, Pki, Secured
from tests.waiting import SOON_S, wait_until

IN_FORCE_S = 1.0
"""Within which a change counts on all brokers; tests leave a busy machine `SOON_S`."""

NewUser = Callable[..., dict[str, str]]


def consumed(config: dict[str, str], topic: str, count: int, **more: Any) -> list[bytes | None]:
    with Consumer(topic, config=config, auto_offset_reset="earliest", **more) as consumer:
        values: list[bytes | None] = []
        wait_until(
            lambda: values.extend(r.value for r in consumer.poll(0.5)) or len(values) >= count, "records", SOON_S
        )
        return values


def send(config: dict[str, str], topic: str, *values: bytes) -> None:
    with Producer(config=config) as producer:
        for future in [producer.send(topic, value) for value in values]:
            future.result(SOON_S)


def allow(secured: Secured, config: dict[str, str], *rights: tuple[str, str, str]) -> None:
    with secured.admin() as admin:
        admin.create_acls(
            Acl(principal=f"User:{config['sasl.username']}", operation=operation, resource_type=kind, name=on)  # type: ignore[arg-type]
            for operation, kind, on in rights
        )


def soon(look: Callable[[], object], what: str, *ignoring: type[Exception]) -> None:
    """Waits until ``look`` raises none of these any more."""
    wait_until(lambda: look() or True, what, SOON_S, ignoring=ignoring)


def test_user_with_acls_produces_consumes_and_reads(secured: Secured, topic: str, new_user: NewUser) -> None:
    writer = new_user(("Write", "Topic", topic))
    reader = new_user(("Read", "Topic", topic), ("Read", "Group", "team"))
    soon(lambda: send(writer, topic, b"1", b"2", b"3"), "the writer may write", errors.TopicAuthorizationError)
    assert sorted(consumed(reader, topic, 3, group_id="team")) == [b"1", b"2", b"3"]  # type: ignore[type-var]
    assert sum(batch.num_rows for batch in read(topic, config=reader)) == 3


def test_certificates_name_is_the_principal(secured: Secured, topic: str) -> None:
    """The mapping rules cut the domain off, and ACLs name what is left."""
    config = secured.certified("etl")
    with pytest.raises(errors.TopicAuthorizationError, match="User:etl may not"):
        send(config, topic, b"x")
    with secured.admin() as admin:
        admin.create_acls([Acl(principal="User:etl", operation="Write", resource_type="Topic", name=topic)])
    soon(lambda: send(config, topic, b"x"), "etl may write", errors.TopicAuthorizationError)


def at(secured: Secured, listener: str, **given: str) -> dict[str, str]:
    settings = {name.replace("_", "."): value for name, value in given.items()}
    return {"bootstrap.servers": secured.cluster.bootstrap_servers_of(listener), "request.timeout.ms": "5s", **settings}


def wrong_ways_in(secured: Secured, other: Pki) -> dict[str, tuple[dict[str, str], type[Exception], str]]:
    ca = str(secured.pki.ca)
    old = secured.pki.issue("old", "old.example.org", has_expired=True)
    strange = {**other.issue("stranger", "root.example.org"), "ssl.cafile": ca}
    user = {"security.protocol": "SASL_SSL", "ssl.cafile": ca, "sasl.username": "root"}
    tls, sasl = errors.SslAuthenticationError, errors.SaslAuthenticationError
    return {
        "nothing encrypted": (at(secured, "SASL_SSL"), errors.NotAPylogBrokerError, "expects TLS"),
        "no CA": (at(secured, "SASL_SSL", security_protocol="SSL"), tls, "ssl.cafile does not vouch for"),
        "another CA": (
            at(secured, "SASL_SSL", security_protocol="SSL", ssl_cafile=str(other.ca)), tls, "does not vouch for",
        ),
        "no user": (at(secured, "SASL_SSL", security_protocol="SSL", ssl_cafile=ca), sasl, "a user and a password"),
        "wrong password": ({**at(secured, "SASL_SSL"), **user, "sasl.password": "no"}, sasl, "is wrong"),
        "unknown user": (
            {**at(secured, "SASL_SSL"), **user, "sasl.username": "nobody", "sasl.password": "no"}, sasl, "is wrong",
        ),
        "token of nobody": (
            at(secured, "SASL_SSL", security_protocol="SASL_SSL", ssl_cafile=ca, token="pylog.e30.x"), sasl, "token",
        ),
        "no certificate": (at(secured, "MTLS", security_protocol="SSL", ssl_cafile=ca), tls, "ssl.certfile"),
        "certificate of another CA": ({**at(secured, "MTLS", security_protocol="SSL"), **strange}, tls, "ssl.certfile"),
        "expired certificate": ({**at(secured, "MTLS", security_protocol="SSL"), **old}, tls, "ssl.certfile"),
        "password where a certificate is asked for": (
            {**at(secured, "MTLS"), **user, "sasl.password": "no"}, tls, "ssl.certfile",
        ),
    }  # fmt: skip


WAYS = [
    "nothing encrypted", "no CA", "another CA", "no user", "wrong password", "unknown user", "token of nobody",
    "no certificate", "certificate of another CA", "expired certificate", "password where a certificate is asked for",
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_who_does_not_belong_is_told_in_one_sentence(
    secured: Secured, way: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """At once, by a typed error that says what to do, however the client tries to get in."""
    config, error, says = wrong_ways_in(secured, Pki(tmp_path_factory.mktemp("other")))[way]
    began_s = time.monotonic()
    with Admin(config=config) as admin, pytest.raises(error) as refused:
        admin.list_topics()
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert time.monotonic() - began_s < SOON_S


def test_ways_in_are_all_walked(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert list(wrong_ways_in(secured, Pki(tmp_path_factory.mktemp("other")))) == WAYS


def test_name_that_the_brokers_certificate_does_not_have_is_refused(secured: Secured) -> None:
    port = secured.cluster.bootstrap_servers_of("SASL_SSL").partition(",")[0].rpartition(":")[2]
    given = {"security.protocol": "SSL", "ssl.cafile": str(secured.pki.ca), "bootstrap.servers": f"localhost:{port}"}
    with Admin(config=given) as admin, pytest.raises(errors.SslAuthenticationError, match="for another name"):
        admin.list_topics()


def test_topic_that_may_not_be_described_might_as_well_not_exist(
    secured: Secured, topic: str, new_user: NewUser
) -> None:
    said = []
    with Admin(config=new_user()) as admin:
        assert admin.list_topics() == []
        for name in (topic, "no-such-topic"):
            with pytest.raises(errors.TopicAuthorizationError) as refused:
                admin.describe_topic(name)
            said.append(refused.value.message.replace(name, "X"))
    assert len(set(said)) == 1


def test_producer_ends_within_a_second_of_its_acls_removal(secured: Secured, topic: str, new_user: NewUser) -> None:
    """In the middle of a stream, which stays open: the next record is refused, and nothing of it is in the log. One
    partition: another's leader may hear of it later."""
    config = new_user(("Write", "Topic", topic))
    soon(lambda: send(config, topic, b"first"), "the user may write", errors.TopicAuthorizationError)
    producer = Producer(config=config)
    try:
        producer.send(topic, b"before", partition=0).result(SOON_S)
        with secured.admin() as admin:
            admin.delete_acls(AclFilter(principal=f"User:{config['sasl.username']}"))

        def refused() -> bool:
            try:
                producer.send(topic, b"meanwhile", partition=0).result(SOON_S)
            except errors.TopicAuthorizationError:
                return True
            return False

        wait_until(refused, "the producer is refused", SOON_S)
        with pytest.raises(errors.TopicAuthorizationError):
            producer.send(topic, b"after", partition=0).result(SOON_S)
    finally:
        with suppress(errors.AuthorizationError):
            producer.close()
    root = {"bootstrap.servers": secured.cluster.bootstrap_servers_of("IN"), **secured.root}
    values = [value for batch in read(topic, config=root) for value in batch.column("value").to_pylist()]
    assert {b"first", b"before"} <= set(values)
    assert b"after" not in values


def test_denied_reader_gets_no_further_record(secured: Secured, topic: str, new_user: NewUser) -> None:
    config = new_user(("Read", "Topic", topic))
    root = {"bootstrap.servers": secured.cluster.bootstrap_servers_of("IN"), **secured.root}
    send(root, topic, b"1")
    assert consumed(config, topic, 1) == [b"1"]
    with closing(Consumer(topic, config=config, auto_offset_reset="earliest")) as consumer:
        wait_until(lambda: consumer.poll(0.5), "the first record", SOON_S)
        with secured.admin() as admin:
            user = f"User:{config['sasl.username']}"
            denial = Acl(
                principal=user, operation="Read", resource_type="Topic", name="*", permission="Deny"
            )  # fmt: skip
            admin.create_acls([denial])
        try:
            time.sleep(IN_FORCE_S)
            send(root, topic, b"2")
            with pytest.raises(errors.TopicAuthorizationError):
                wait_until(lambda: consumer.poll(0.5) and pytest.fail("a record came"), "the refusal", SOON_S)
        finally:
            with secured.admin() as admin:
                admin.delete_acls(AclFilter(principal=user))


@pytest.mark.parametrize("what", ["deleted", "another password"])
def test_streams_of_a_user_end_when_its_credential_is_withdrawn(
    secured: Secured, topic: str, new_user: NewUser, what: str
) -> None:
    config = new_user(("Read", "Topic", topic))
    user = config["sasl.username"]
    soon(lambda: consumed(config, topic, 0), "the user may read", errors.TopicAuthorizationError)
    with closing(Consumer(topic, config=config)) as consumer:
        consumer.poll(0.5)
        with secured.admin() as admin:
            if what == "deleted":
                admin.delete_user(user)
            else:
                admin.set_password(user, uuid.uuid4().hex)
        with pytest.raises(errors.SaslAuthenticationError):
            wait_until(lambda: consumer.poll(0.5), "the end", SOON_S)
    with Admin(config=config) as admin, pytest.raises(errors.SaslAuthenticationError):
        admin.list_topics()


def test_token_is_taken_for_its_user_and_ends_with_it(secured: Secured, topic: str, new_user: NewUser) -> None:
    config = new_user(("Write", "Topic", topic))
    soon(lambda: send(config, topic, b"1"), "the user may write", errors.TopicAuthorizationError)
    cluster = Cluster.from_settings(resolve("admin", config))
    with closing(cluster):
        made = cluster.call("create_token", CreateTokenRequest(lifetime_ms=60_000), CreateTokenResponse)
    by_token = {name: value for name, value in config.items() if not name.startswith("sasl.")} | {"token": made.token}
    send(by_token, topic, b"2")
    with secured.admin() as admin:
        admin.delete_user(config["sasl.username"])
    soon_refused = wait_until(lambda: _is_refused(by_token), "the token's end", SOON_S)
    assert soon_refused


def _is_refused(config: dict[str, str]) -> bool:
    try:
        with Admin(config=config) as admin:
            admin.list_topics()
    except errors.SaslAuthenticationError:
        return True
    return False


def test_token_in_a_file_is_renewed_under_open_streams(
    secured: Secured, topic: str, new_user: NewUser, tmp_path: Path
) -> None:
    """When the first token ends the broker closes the producer's stream, and its next one begins with the second."""
    config = new_user(("Write", "Topic", topic), ("Read", "Topic", topic))
    file = tmp_path / "token"

    def renew(lifetime_ms: int) -> None:
        with closing(Cluster.from_settings(resolve("admin", config))) as cluster:
            made = cluster.call("create_token", CreateTokenRequest(lifetime_ms=lifetime_ms), CreateTokenResponse)
        written = file.with_suffix(".new")
        written.write_text(made.token + "\n")
        written.replace(file)

    renew(4_000)
    others = {name: value for name, value in config.items() if not name.startswith("sasl.")}
    with_file = {**others, "token.file": str(file)}
    with Producer(config=with_file, linger_ms=0) as producer:
        producer.send(topic, b"0").result(SOON_S)
        renew(60_000)
        began = time.monotonic()
        sent = 1
        while time.monotonic() - began < 8:
            producer.send(topic, b"%d" % sent).result(SOON_S)
            sent += 1
            time.sleep(0.2)
    assert sorted(consumed(with_file, topic, sent), key=lambda value: int(value or b"-1")) == [
        b"%d" % number for number in range(sent)
    ]


def test_other_flight_clients_are_asked_as_well(secured: Secured, topic: str, new_user: NewUser) -> None:
    """A bare Flight client, over TLS and with a password in its header, sees its own topics and no others."""
    config = new_user(("Read", "Topic", topic))
    server = config["bootstrap.servers"].partition(",")[0]
    name, value = basic_header(config["sasl.username"], config["sasl.password"])
    client = flight.connect(f"grpc+tls://{server}", tls_root_certs=secured.pki.ca.read_bytes())
    with client:
        with pytest.raises(flight.FlightUnauthenticatedError, match="a user and a password"):
            list(client.list_flights())
        options = flight.FlightCallOptions(headers=[(name.encode(), value.encode())])
        listed = wait_until(lambda: list(client.list_flights(b"", options)), "the topic is seen", SOON_S)
        assert [each.descriptor.path for each in listed] == [[topic.encode()]]
        (location,) = listed[0].endpoints[0].locations
        assert location.uri.startswith(b"grpc+tls://")
        with pytest.raises(flight.FlightUnauthorizedError, match="may not Write"):
            _put_a_row(client, listed[0], options)


def _put_a_row(client: Any, info: Any, options: Any) -> None:
    columns = [pa.array([b"x" if field.name == "value" else None], field.type) for field in info.schema]
    writer, _ = client.do_put(flight.FlightDescriptor.for_path(*info.descriptor.path), info.schema, options)
    with writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=info.schema))
        writer.done_writing()


def test_brokers_know_each_other_and_their_secret_lets_in_nobody_else(secured: Secured) -> None:
    """A made-up proof is refused; followers fetch over the brokers' own listener."""
    server = secured.cluster.bootstrap_servers_of("SASL_SSL").partition(",")[0]
    options = flight.FlightCallOptions(headers=[(b"pylog-broker", b"1:" + b"0" * 64)])
    with flight.connect(f"grpc+tls://{server}", tls_root_certs=secured.pki.ca.read_bytes()) as client:
        with pytest.raises(flight.FlightError) as refused:
            list(client.list_flights(b"", options))
        assert "does not know yet that the caller is one" in str(refused.value)
    output = [secured.cluster._broker(number).output_file.read_text() for number in secured.cluster.broker_ids]
    assert any("open stream kind=follower" in text and f"principal={HOST}" in text for text in output)


def test_no_password_is_in_any_file_or_output_of_a_broker(secured: Secured, topic: str, new_user: NewUser) -> None:
    config = new_user(("Write", "Topic", topic))
    soon(lambda: send(config, topic, b"1"), "the user may write", errors.TopicAuthorizationError)
    assert not _is_refused(config)
    secret = config["sasl.password"].encode()
    basic = basic_header(config["sasl.username"], config["sasl.password"])[1].removeprefix("Basic ").encode()
    for broker_id in secured.cluster.broker_ids:
        directory = secured.cluster._broker(broker_id).output_file.parent
        for path in directory.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                assert secret not in data, path
                assert basic not in data, path
