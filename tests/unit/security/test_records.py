"""What ZooKeeper keeps of users and ACLs: changed by compare-and-set, watched, and never opened by damage."""

from __future__ import annotations

import threading

import pytest

from broker_runtime.contract.acls import Acl, AclFilter
from broker_runtime.contract.errors import CorruptRecordError, InvalidRequestError, ZooKeeperUnavailableError
from broker_runtime.contract.passwords import hash_password
from broker_runtime.contract.quotas import Quota, QuotaChange, QuotaEntity
from broker_runtime.security import records as module
from broker_runtime.security.records import SecurityRecords
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from broker_runtime.zookeeper.znodes import SECURITY_ACLS, SECURITY_QUOTAS, SECURITY_TOKEN_KEY, SECURITY_USERS

ALICE = hash_password("correct horse", cost=2**14)
READ = Acl(principal="User:bob", operation="Read", resource_type="Topic", name="t")
WRITE = Acl(principal="User:bob", operation="Write", resource_type="Topic", name="t")

BOB = QuotaEntity(user="bob")


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    return MemoryZooKeeper()


@pytest.fixture
def records(zookeeper: MemoryZooKeeper) -> SecurityRecords:
    made = SecurityRecords(zookeeper.client())
    made.read()
    return made


def may_read(of: SecurityRecords) -> bool:
    return of.access_list.allows("bob", "h", "Read", "Topic", "t")


def test_what_one_broker_changes_another_knows_after_its_watch(
    zookeeper: MemoryZooKeeper, records: SecurityRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when it looks anyway, every ten seconds."""
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 30.0)
    other = SecurityRecords(zookeeper.client())
    other.read()
    assert not may_read(other)
    for change, is_allowed in (
        (lambda: records.create_acls([READ]), True),
        (lambda: records.delete_acls([AclFilter()]), False),
    ):
        change()
        stepping = threading.Thread(target=other.step, daemon=True)
        stepping.start()
        stepping.join(10)
        assert not stepping.is_alive()
        assert may_read(other) is is_allowed
    records.alter_users({"alice": ALICE}, ())
    other.step()
    assert other.users["alice"] == ALICE


def test_looking_again_adds_no_watch(zookeeper: MemoryZooKeeper, records: SecurityRecords) -> None:
    """A broker looks every ten seconds for months, and at all of them when one has changed."""
    for number in range(1, 6):
        records.alter_quotas([QuotaChange(entity=BOB, limits=(("producer_byte_rate", float(number)),))])
        records.step()
    for path in (SECURITY_ACLS, SECURITY_QUOTAS, SECURITY_TOKEN_KEY, SECURITY_USERS):
        assert len(zookeeper._tree.data_watches[path]) == 1


def test_acls_are_added_and_deleted_once(records: SecurityRecords) -> None:
    assert records.create_acls([WRITE, READ, READ]) == (READ, WRITE)
    assert records.create_acls([READ]) == ()
    assert records.acls(AclFilter(operation="Read")) == (READ,)
    assert records.delete_acls([AclFilter(operation="Write"), AclFilter(principal="User:eve")]) == (WRITE,)
    assert records.acls(AclFilter()) == (READ,)


def test_acl_or_user_that_may_not_be_is_refused_and_nothing_is_changed(records: SecurityRecords) -> None:
    """Brokers check what clients should have checked."""
    for wrong in (
        Acl(principal="bob", operation="Read", resource_type="Topic", name="t"),
        Acl(principal="User:bob", operation="Read", resource_type="Topic", name="*", pattern="Prefixed"),
        Acl(principal="User:bob", operation="Read", resource_type="Topic", name="t", host="10.0.0.0/8"),
        Acl(principal="User:bob", operation="Read", resource_type="Topic", name="t", host="0:0:0:0:0:0:0:1"),
        Acl(principal="User:bob", operation="Read", resource_type="Topic", name="t", host="localhost"),
    ):
        with pytest.raises(InvalidRequestError):
            records.create_acls([READ, wrong])
    for name in ("a:b", "*", "ANONYMOUS", " a", "a\nb", ""):
        with pytest.raises(InvalidRequestError, match="user "):
            records.alter_users({"alice": ALICE, name: ALICE}, ())
    assert records.acls(AclFilter()) == ()
    assert records.user_names() == ()


def test_users_come_and_go(records: SecurityRecords) -> None:
    assert records.alter_users({"alice": ALICE, "bob": ALICE}, ()) == ("alice", "bob")
    assert records.user_names() == ("alice", "bob")
    assert records.alter_users({}, ("bob", "nobody")) == ("alice",)
    assert records.user_names() == ("alice",)
    records.step()
    assert list(records.users) == ["alice"]


def test_quotas_are_changed_all_or_none_and_known_to_other_brokers(
    zookeeper: MemoryZooKeeper, records: SecurityRecords
) -> None:
    """Limits that a change does not name stay."""
    other = SecurityRecords(zookeeper.client())
    other.read()
    first = QuotaChange(entity=BOB, limits=(("producer_byte_rate", 5.0), ("max_connections", 2.0)))
    assert records.alter_quotas([first]) == records.quotas()
    wrong = QuotaChange(entity=QuotaEntity(client_id="x"), limits=(("bytes", 5.0),))
    with pytest.raises(InvalidRequestError, match="quota 'bytes': must be one of"):
        records.alter_quotas([QuotaChange(entity=BOB, limits=(("producer_byte_rate", None),)), wrong])
    assert records.quotas() == (Quota(entity=BOB, limits={"producer_byte_rate": 5.0, "max_connections": 2.0}),)
    other.step()
    found = other.quota_table.find("producer_byte_rate", "bob", "x")
    assert found is not None
    assert found[1] == 5.0
    version = zookeeper.client().get(SECURITY_QUOTAS).version
    records.alter_quotas([first])
    assert zookeeper.client().get(SECURITY_QUOTAS).version == version, "nothing new, nothing written"
    assert records.alter_quotas([QuotaChange(entity=BOB, limits=tuple((name, None) for name, _ in first.limits))]) == ()
    other.step()
    assert not other.quota_table


def test_key_of_tokens_is_made_once(zookeeper: MemoryZooKeeper, records: SecurityRecords) -> None:
    other = SecurityRecords(zookeeper.client())
    other.read()
    assert records.token_key is not None
    assert len(records.token_key) == 32
    assert other.token_key == records.token_key


def test_damage_changes_nothing_and_lets_nobody_in(zookeeper: MemoryZooKeeper, records: SecurityRecords) -> None:
    """Neither the rights that were there are lost, nor those that deny."""
    deny = Acl(principal="User:bob", operation="Read", resource_type="Topic", name="t", permission="Deny")
    records.create_acls([Acl(principal="User:*", operation="Read", resource_type="Topic", name="*"), deny])
    records.alter_users({"alice": ALICE}, ())
    records.step()
    client = zookeeper.client()
    records.alter_quotas([QuotaChange(entity=BOB, limits=(("producer_byte_rate", 5.0),))])
    records.step()
    for path in (SECURITY_ACLS, SECURITY_USERS, SECURITY_QUOTAS, SECURITY_TOKEN_KEY):
        client.set(path, b"{damaged", version=client.get(path).version)
    records.step()
    assert not may_read(records)
    assert records.access_list.allows("eve", "h", "Read", "Topic", "t")
    assert list(records.users) == ["alice"]
    assert records.token_key is not None
    assert records.quota_table.find("producer_byte_rate", "bob", "x") is not None
    with pytest.raises(CorruptRecordError):
        records.create_acls([READ])
    begun_now = SecurityRecords(zookeeper.client())
    with pytest.raises(CorruptRecordError):
        begun_now.acls(AclFilter())


def test_record_that_was_deleted_and_made_anew_is_read(zookeeper: MemoryZooKeeper, records: SecurityRecords) -> None:
    """With the version that the one before had."""
    records.create_acls([READ])
    records.step()
    assert may_read(records)
    client = zookeeper.client()
    version = client.get(SECURITY_ACLS).version
    client.delete(SECURITY_ACLS)
    client.create(SECURITY_ACLS)
    for _ in range(version):
        client.set(SECURITY_ACLS, b'{"acls":[]}', version=client.get(SECURITY_ACLS).version)
    assert client.get(SECURITY_ACLS).version == version
    records.wake()
    records.step()
    assert not may_read(records)


def test_what_changed_while_zookeeper_was_away_is_read_when_it_is_back(
    zookeeper: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its watches ended with its session."""
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 30.0)
    client = zookeeper.client()
    records = SecurityRecords(client)
    records.read()
    records.step()  # what `read` has woken
    records._client = zookeeper.client()  # as after an expiry: no watch of the old session calls
    client.expire()
    other = SecurityRecords(zookeeper.client())
    other.create_acls([READ])
    stepping = threading.Thread(target=records.step, daemon=True)
    stepping.start()
    stepping.join(10)
    assert not stepping.is_alive()
    assert may_read(records)


def test_without_zookeeper_what_was_read_last_counts(
    zookeeper: MemoryZooKeeper, records: SecurityRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    records.create_acls([READ])
    records.step()

    def away() -> None:
        raise ZooKeeperUnavailableError("away")

    monkeypatch.setattr(records, "_look", away)
    records.wake()
    assert records.step() == 0.5
    assert may_read(records)


@pytest.mark.parametrize("path", [SECURITY_USERS, SECURITY_ACLS, SECURITY_QUOTAS, SECURITY_TOKEN_KEY])
def test_znode_that_somebody_deleted_is_made_again_and_the_others_are_read(
    zookeeper: MemoryZooKeeper, records: SecurityRecords, path: str
) -> None:
    """Whoever finds one damaged may delete it. A user that is gone must be out even then."""
    client = zookeeper.client()
    records.alter_users({"alice": ALICE}, ())
    records.step()
    assert records.users
    client.delete(path)
    if path != SECURITY_USERS:
        client.set(SECURITY_USERS, b"", version=client.get(SECURITY_USERS).version)
    records.wake()
    records.step()
    assert not records.users
    records.alter_users({"bob": ALICE}, ())
    records.alter_quotas([QuotaChange(entity=BOB, limits=(("max_connections", 5.0),))])
    assert records.create_acls([READ]) == (READ,)
    records.step()
    assert (list(records.users), bool(records.quota_table), may_read(records)) == (["bob"], True, True)
    assert records.token_key is not None
