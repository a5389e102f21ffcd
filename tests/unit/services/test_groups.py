"""Requests about groups: what is checked, who answers, and that each entry has its own answer."""

import pytest

from broker_runtime.contract import errors
from broker_runtime.contract.actions import ACTIONS
from broker_runtime.contract.requests import CommittedOffset, PartitionKey
from broker_runtime.groups.offsets import OffsetStore
from broker_runtime.groups.removal import GroupRemoval
from broker_runtime.services.groups import GroupService
from broker_runtime.zookeeper.znodes import topic_deletion_path, topic_path
from tests.callers import CLIENT
from tests.unit.groups.coordinating import ID, World


@pytest.fixture
def world():
    world = World()
    world.create_topic("t", partitions=4)
    world.create_topic("u", partitions=1)
    for broker in world.brokers.values():
        store = OffsetStore(broker.client)
        removal = GroupRemoval(
            broker.client, broker.claims, broker.groups, store, broker_id=broker.number, retention_ms=1_000,
            steady_ms=lambda: world.now_ms, believed_ms=lambda: world.now_ms,
            sleep=lambda s, broker=broker: broker.coordinator.step(),
        )  # fmt: skip
        broker.service = GroupService(
            broker.client, world.cluster, claims=broker.claims, coordinator=broker.coordinator, removal=removal,
            store=store, wall_ms=lambda: world.now_ms,
        )  # fmt: skip
    return world


def call(world, action, /, *, to=1, **fields):
    return getattr(world.brokers[to].service, action)(CLIENT, ACTIONS[action].request(**fields))


def entry(partition=0, offset=1, topic="t", topic_id=None):
    return CommittedOffset(at=PartitionKey(topic=topic, partition=partition, topic_id=topic_id), offset=offset)


def commit(world, *offsets, **fields):
    answer = call(world, "commit_offsets", **{"group_id": "g", "offsets": offsets, **fields})
    return [error and error.code for error in answer.errors]


def committed(world, **fields):
    answer = call(world, "fetch_offsets", **{"group_id": "g", **fields})
    return {(found.at.topic, found.at.partition): found.offset for found in answer.offsets}


def join(world, member_id="m", to=1, **fields):
    epoch = 0
    for _ in range(4):
        member = {"member_id": member_id, "member_epoch": epoch, "topics": ("t",), **fields}
        answer = call(world, "group_heartbeat", to=to, group_id="g", **member)
        epoch = answer.member_epoch
        world.brokers[to].coordinator.step()
    return epoch


def test_all_actions_about_groups_are_served():
    served = {name for name in ACTIONS if hasattr(GroupService, name)}
    assert served == {
        "find_coordinator", "group_heartbeat", "commit_offsets", "fetch_offsets", "list_groups", "describe_group",
        "alter_group_offsets", "delete_group", "remove_group_members",
    }  # fmt: skip


@pytest.mark.parametrize("group_id", ["", "a/b", ".", "x" * 250, "a\nb", "\ud800", "\ufffc", "\U0001f389"])
@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("find_coordinator", {}),
        ("group_heartbeat", {"member_id": "m", "member_epoch": 0, "topics": ("t",)}),
        ("commit_offsets", {"offsets": (entry(),)}),
        ("fetch_offsets", {}),
        ("describe_group", {}),
        ("alter_group_offsets", {"offsets": (entry(),)}),
        ("delete_group", {}),
        ("remove_group_members", {"members": ("m",)}),
    ],
)
def test_group_ids_are_checked_first(world, action, fields, group_id):
    with pytest.raises(errors.InvalidGroupIdError):
        call(world, action, group_id=group_id, **fields)
    assert world.client.children("/consumers") == []


def test_each_entry_of_a_commit_has_its_own_answer(world):
    epoch = join(world)
    codes = commit(
        world,
        entry(0, 5),
        entry(0, topic="none"),
        entry(9),
        entry(1, topic_id=bytes(16)),
        entry(0, 7, topic="u"),
        entry(1, 6, topic_id=ID),
        member_id="m",
        member_epoch=epoch,
    )
    assert codes == [
        None, "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_OR_PARTITION", "INCONSISTENT_TOPIC_ID",
        "STALE_MEMBER_EPOCH", None,
    ]  # fmt: skip
    assert committed(world) == {("t", 0): 5, ("t", 1): 6}


def test_one_write_per_topic_of_a_commit(world):
    """100 groups of 50 partitions that commit each second cause 100 writes a second."""
    commit(world, entry(0, 1), entry(0, 1, topic="u"))
    world.brokers[1].client.transactions.clear()
    assert commit(world, *(entry(number, 9) for number in range(4)), entry(0, 9, topic="u")) == [None] * 5
    assert len(world.brokers[1].client.transactions) == 2


def test_commit_without_a_valid_entry_creates_no_group(world):
    assert commit(world, entry(9)) == ["UNKNOWN_TOPIC_OR_PARTITION"]
    assert commit(world) == []
    assert committed(world) == {}
    with pytest.raises(errors.UnknownMemberIdError):
        commit(world, entry(), member_id="m", member_epoch=1)
    assert world.client.children("/consumers") == []


def test_offsets_of_chosen_partitions_and_existing_topics_are_fetched(world):
    commit(world, entry(0, 5), entry(1, 6), entry(0, 7, topic="u"))
    chosen = (PartitionKey(topic="t", partition=1), PartitionKey(topic="t", partition=3))
    assert committed(world, partitions=chosen) == {("t", 1): 6}
    world.create_topic("t", topic_id=b"\x02" * 16)
    assert committed(world) == {("u", 0): 7}


@pytest.mark.parametrize("partitions", [None, (PartitionKey(topic="t", partition=0),)])
@pytest.mark.parametrize("known", ["earlier", "none"])
def test_offsets_of_a_recreated_topic_are_found_by_a_coordinator_that_has_not_heard_of_it(world, partitions, known):
    """W17: an acknowledged commit is found by whichever broker has the group next, whatever it knows of topics yet."""
    earlier = world.cluster()
    world.create_topic("t", topic_id=b"\x02" * 16)
    assert commit(world, entry(0, 5)) == [None]
    world.brokers[1].leave()
    world.brokers[2].service._cluster = lambda: earlier if known == "earlier" else earlier.without_topic("t")
    assert committed(world, to=2, partitions=partitions) == {("t", 0): 5}


@pytest.mark.parametrize("partitions", [None, (PartitionKey(topic="t", partition=0),)])
@pytest.mark.parametrize("now", ["recreated", "deleted", "being deleted"])
def test_offsets_of_an_earlier_topic_do_not_count_for_a_coordinator_that_has_not_heard_of_its_end(
    world, partitions, now
):
    """W17: they would name positions in another log."""
    assert commit(world, entry(0, 5)) == [None]
    earlier = world.cluster()
    world.brokers[1].service._cluster = lambda: earlier
    if now == "recreated":
        world.create_topic("t", topic_id=b"\x02" * 16)
    elif now == "deleted":
        world.client.delete(topic_path("t"))
    else:
        world.client.create(topic_deletion_path("t"))
    if now != "recreated" and partitions is not None:
        with pytest.raises(errors.UnknownTopicOrPartitionError):
            committed(world, partitions=partitions)
    else:
        assert committed(world, partitions=partitions) == {}


def test_broker_that_is_not_the_coordinator_refuses(world):
    """W19: the client then looks up the coordinator again."""
    epoch = join(world)
    member = {"member_id": "m", "member_epoch": epoch}
    for action, fields in [
        ("group_heartbeat", member),
        ("commit_offsets", {"offsets": (entry(),), **member}),
        ("fetch_offsets", {}),
        ("describe_group", {}),
        ("alter_group_offsets", {"offsets": (entry(),)}),
        ("delete_group", {}),
        ("remove_group_members", {"members": ("m",)}),
    ]:
        with pytest.raises(errors.NotCoordinatorError, match="broker 1 coordinates"):
            call(world, action, to=2, group_id="g", **fields)
    assert [call(world, "find_coordinator", to=to, group_id="g").broker_id for to in (1, 2)] == [1, 1]


def test_groups_are_listed_by_every_broker(world):
    join(world)
    commit(world, entry(), group_id="offsets-only")
    call(world, "commit_offsets", group_id="deleted", offsets=(entry(),))
    call(world, "delete_group", group_id="deleted")
    for to in (1, 2):
        found = call(world, "list_groups", to=to).groups
        assert [(info.group_id, info.state, info.kind, info.members, info.coordinator) for info in found] == [
            ("g", "stable", "consumer", 1, 1),
            ("offsets-only", "empty", "", 0, 1),
        ]
    world.brokers[1].leave()
    assert [info.coordinator for info in call(world, "list_groups", to=2).groups] == [-1, -1]


def test_administrators_change_groups_without_members_only(world):
    join(world)
    with pytest.raises(errors.NonEmptyGroupError):
        call(world, "alter_group_offsets", group_id="g", offsets=(entry(),))
    with pytest.raises(errors.UnknownMemberIdError):
        call(world, "remove_group_members", group_id="g", members=("other",))
    with pytest.raises(errors.InvalidRequestError):
        call(world, "remove_group_members", group_id="g", members=())
    call(world, "remove_group_members", group_id="g", members=("m",))
    with pytest.raises(errors.UnknownMemberIdError):
        join(world)
    call(world, "group_heartbeat", group_id="g", member_id="m", member_epoch=-1)
    world.brokers[1].coordinator.step()
    call(world, "alter_group_offsets", group_id="g", offsets=(entry(2, 8),))
    call(world, "alter_group_offsets", group_id="g", offsets=(entry(2, 3),))
    assert committed(world) == {("t", 2): 3}


def test_reset_is_not_undone_by_a_late_commit_of_a_member_that_has_left(world):
    """A successor of the coordinator has the members from ZooKeeper."""
    signed = {"member_id": "m", "member_epoch": join(world)}
    assert commit(world, entry(0, 9), sequence=0, **signed) == [None]
    call(world, "group_heartbeat", group_id="g", member_id="m", member_epoch=-1)

    def reset():
        call(world, "alter_group_offsets", group_id="g", offsets=(entry(0, 3),))

    with pytest.raises(errors.CoordinatorNotAvailableError, match="left"):
        reset()
    world.brokers[1].coordinator.step()
    reset()
    world.brokers[1].leave()
    with pytest.raises(errors.UnknownMemberIdError):
        call(world, "commit_offsets", to=2, group_id="g", offsets=(entry(0, 12),), sequence=1, **signed)
    answer = call(world, "fetch_offsets", to=2, group_id="g")
    assert [found.offset for found in answer.offsets] == [3]


def test_unknown_groups_are_not_found(world):
    for action, fields in [("describe_group", {}), ("delete_group", {}), ("remove_group_members", {"members": ("m",)})]:
        with pytest.raises(errors.GroupIdNotFoundError):
            call(world, action, group_id="none", **fields)
    commit(world, entry())
    call(world, "delete_group", group_id="g")
    with pytest.raises(errors.GroupIdNotFoundError):
        call(world, "describe_group", group_id="g")


def test_requests_without_zookeeper_fail_at_once(world, monkeypatch):
    client = world.brokers[1].client._client
    client.suspend()
    monkeypatch.setattr(client, "_check", lambda *_: pytest.fail("a call that would wait"))
    with pytest.raises(errors.ZooKeeperUnavailableError):
        commit(world, entry())
    with pytest.raises(errors.ZooKeeperUnavailableError):
        committed(world)
    with pytest.raises(errors.ZooKeeperUnavailableError):
        call(world, "find_coordinator", group_id="g")


@pytest.mark.parametrize("only_forward", [False, True])
def test_duplicate_partition_in_a_commit_is_refused(world, only_forward):
    with pytest.raises(errors.InvalidRequestError, match="t-0 is in the commit twice"):
        commit(world, entry(0, 9), entry(1, 5), entry(0, 3, topic_id=ID), only_forward=only_forward)
    assert world.client.children("/consumers") == []


@pytest.mark.parametrize("topic", ["a/b", "..", "a\nb", "\0", "\U0001f389"])
def test_subscription_to_an_invalid_topic_name_is_refused(world, topic):
    with pytest.raises(errors.InvalidTopicError):
        join(world, topics=("t", topic))
    assert world.client.children("/consumers") == []


def test_subscription_too_large_for_a_znode_is_refused_and_others_continue(world):
    """Otherwise nothing of the group could be written while that member exists."""
    epoch = join(world)
    many = tuple(f"{number:05}" + "x" * 244 for number in range(10_000))
    with pytest.raises(errors.InvalidRequestError, match="10000 topics of a subscription are 2490000 characters"):
        join(world, "n", topics=many)
    with pytest.raises(errors.InvalidRequestError, match="10000 topics"):
        call(world, "group_heartbeat", group_id="g", member_id="m", member_epoch=epoch, topics=many)
    assert call(world, "group_heartbeat", group_id="g", member_id="m", member_epoch=epoch).is_settled


@pytest.mark.parametrize("damage", [b"", b"{", b'{"topic_id": "AQ==", "offsets": {}}'])
def test_damaged_offsets_affect_one_topic_only_and_the_group_can_be_deleted(world, damage):
    """This also holds for a coordinator that has nothing of the group in memory."""
    commit(world, entry(0, 5), entry(0, 7, topic="u"))
    world.client.set("/consumers/g/offsets/t", damage, version=-1)
    for broker in world.brokers.values():
        broker.restart()
    assert commit(world, entry(0, 6), entry(0, 8, topic="u")) == ["CORRUPT_MESSAGE", None]
    with pytest.raises(errors.CorruptRecordError, match="/consumers/g/offsets/t"):
        committed(world)
    assert committed(world, partitions=(PartitionKey(topic="u", partition=0),)) == {("u", 0): 8}
    world.brokers[1].service._removal.step()
    call(world, "delete_group", group_id="g")
    assert commit(world, entry(0, 1)) == [None]
    assert committed(world) == {("t", 0): 1}
