"""Claims: which broker coordinates a group, and how another takes over."""

import pytest

from broker_runtime.contract.errors import CoordinatorNotAvailableError, NotCoordinatorError, ZooKeeperUnavailableError
from broker_runtime.zookeeper.session import BadVersionError, Set
from broker_runtime.zookeeper.znodes import GroupClaim, from_json, group_claim_path
from tests.unit.groups.coordinating import World

PATH = group_claim_path("g")


@pytest.fixture
def world():
    return World()


def claims(world, number):
    return world.brokers[number].claims


def owner(world):
    node = world.client.find(PATH)
    return None if node is None else (from_json(node.data, GroupClaim, PATH).broker_id, node.version)


def test_all_brokers_name_the_same_candidate_and_spread_groups(world):
    found = [[claims(world, number).find_coordinator(f"g{group}") for group in range(100)] for number in (1, 2)]
    assert found[0] == found[1]
    assert 30 < found[0].count(1) < 70
    assert owner(world) is None, "a lookup claims nothing"


def test_claim_is_visible_to_all_and_refused_to_others(world):
    claim = claims(world, 1).claim("g")
    assert (owner(world), claim.version) == ((1, 0), 0)
    assert [claims(world, number).find_coordinator("g") for number in (1, 2)] == [1, 1]
    with pytest.raises(NotCoordinatorError, match="broker 1 coordinates"):
        claims(world, 2).claim("g")
    assert claims(world, 1).verify([claim]) == [claim]


def test_one_of_two_concurrent_claims_wins(world):
    first, second = world.brokers[1], world.brokers[2]
    first.client.before.append(lambda: second.claims.claim("g"))
    with pytest.raises(NotCoordinatorError):
        first.claims.claim("g")
    assert owner(world) == (2, 0)


@pytest.mark.parametrize("end", ["restart", "leave", "die"])
def test_claim_of_a_gone_owner_is_taken_over(world, end):
    """W19: it is registered again, not registered, or its port refuses while its session lasts."""
    old = claims(world, 1).claim("g")
    getattr(world.brokers[1], end)()
    world.now_ms += 1_000
    taken = claims(world, 2).claim("g")
    assert (owner(world), taken.version) == ((2, 1), 1)
    assert claims(world, 2).find_coordinator("g") == 2
    assert claims(world, 1).verify([old]) == []


def test_writes_in_flight_of_a_deposed_coordinator_are_refused(world):
    old = claims(world, 1).claim("g")
    world.brokers[1].die()
    claims(world, 2).claim("g")
    with pytest.raises(BadVersionError) as caught:
        world.brokers[1].client.transaction([old.guard.check, Set("/consumers/g", b"", -1)], session=old.guard.session)
    assert caught.value.path == PATH


def test_dead_owner_is_not_named_and_is_probed_once_in_a_while(world):
    claims(world, 1).claim("g")
    world.brokers[1].die()
    assert [claims(world, 2).find_coordinator("g") for _ in range(20)] == [2] * 20
    assert world.probed == ["h1"]
    world.now_ms += 500
    claims(world, 2).find_coordinator("g")
    assert world.probed == ["h1", "h1"]


def test_silent_broker_does_not_delay_lookups_of_many_groups(world):
    slow = []

    def refuses(host, port):
        slow.append(host)
        world.now_ms += 1_000
        return False

    world.brokers[2].claims._refuses = refuses
    for group in range(100):
        claims(world, 2).find_coordinator(f"g{group}")
    assert slow == ["h1"]


def test_suspected_and_stopping_brokers_are_no_candidates(world):
    world.brokers[2].suspects.add(1)
    assert {claims(world, 2).find_coordinator(f"g{group}") for group in range(20)} == {2}
    world.brokers[2].suspects.clear()
    world.brokers[2].stop()
    assert {claims(world, 2).find_coordinator(f"g{group}") for group in range(20)} == {1}
    claims(world, 2).claim("g")
    assert claims(world, 1).find_coordinator("g") == 1, "a stopping owner will give it up"
    world.brokers[1].stop()
    with pytest.raises(CoordinatorNotAvailableError, match="no broker can"):
        claims(world, 1).find_coordinator("g")


def test_own_claim_is_renewed_at_a_higher_version(world):
    first = claims(world, 1).claim("g")
    second = claims(world, 1).claim("g")
    assert (second.version, claims(world, 1).verify([first, second])) == (1, [second])


def test_released_claims_are_free_at_once_and_versions_continue(world):
    own = [claims(world, 1).claim(group) for group in ("g", "h")]
    world.brokers[1].die()
    taken = claims(world, 2).claim("h")
    claims(world, 1).release(own)
    assert owner(world) == (-1, 1)
    assert claims(world, 2).verify([taken]) == [taken]
    assert claims(world, 2).claim("g").version == 2


def test_claim_that_keeps_changing_is_given_up(world):
    first, second = world.brokers[1], world.brokers[2]
    second.claims.claim("g")

    def others_claim():
        node = world.client.get(PATH)
        world.client.set(PATH, node.data, version=node.version)

    world.brokers[2].leave()
    first.client.before = [others_claim] * 100
    with pytest.raises(CoordinatorNotAvailableError, match="keeps changing"):
        first.claims.claim("g")
    assert first.client.before, "it ends"


def test_claim_whose_reply_was_lost_is_read_back(world):
    world.brokers[1].client.loses_replies = 1
    assert claims(world, 1).claim("g").version == 0
    world.brokers[1].client.loses_replies = 1
    assert claims(world, 1).claim("g").version == 1
    world.brokers[1].client.fails = 1
    assert claims(world, 1).claim("g").version == 2
    world.brokers[1].client.fails = 2
    with pytest.raises(ZooKeeperUnavailableError):
        claims(world, 1).claim("g")
    assert owner(world) == (1, 2)


def test_claim_taken_by_another_after_a_lost_reply_is_not_ours(world):
    first, second = world.brokers[1], world.brokers[2]

    def other_takes():
        first.die()
        second.claims.claim("g")

    first.client.loses_replies = 1
    first.client.before = [lambda: None, other_takes]
    with pytest.raises(NotCoordinatorError):
        first.claims.claim("g")
    assert owner(world) == (2, 1)


def test_unknown_group_is_claimed_only_when_it_is_to_be_created(world):
    assert claims(world, 1).claim("g", creates=False) is None
    assert world.client.children("/consumers") == []
    claims(world, 1).claim("g")
    assert claims(world, 1).claim("g", creates=False).version == 1


def test_claims_need_the_current_registration_and_session(world):
    broker = world.brokers[1]
    claim = broker.claims.claim("g")
    broker.client._client.expire()
    with pytest.raises(ZooKeeperUnavailableError, match="session"):
        broker.claims.claim("h")
    with pytest.raises(ZooKeeperUnavailableError):
        broker.claims.verify([claim])
    broker.membership = None
    with pytest.raises(CoordinatorNotAvailableError):
        broker.claims.claim("h")
    assert broker.claims.verify([claim]) == []
    broker.register()
    assert broker.claims.verify([claim]) == []
    assert broker.claims.claim("g").version == 1


def test_broker_that_registered_again_elsewhere_claims_nothing_in_its_old_registration(world):
    """The epoch is checked in the same transaction: of two processes with one id the newer one counts."""
    broker = world.brokers[1]
    claim = broker.claims.claim("g")
    world.client.set("/brokers/epochs/1", b"{}", version=-1)
    with pytest.raises(CoordinatorNotAvailableError, match="registered again"):
        broker.claims.claim("h")
    assert broker.claims.verify([claim]) == []


def test_damaged_claim_is_nobodys(world):
    claims(world, 1).claim("g")
    world.client.set(PATH, b"{", version=-1)
    assert claims(world, 2).claim("g").version == 2
