"""Quotas: which one counts, who shares it, and how long whoever took more waits."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable

import pytest

from broker_runtime.contract.errors import InvalidRequestError, TooManyStreamsError
from broker_runtime.contract.quotas import (
    CONSUMER_BYTE_RATE,
    DEFAULT,
    LIMITS,
    MAX_CONNECTIONS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Quota,
    QuotaChange,
    QuotaEntity,
    altered,
    check_change,
)
from broker_runtime.contract.waiting import Clock
from broker_runtime.meters import Meters
from broker_runtime.security import quotas as module
from broker_runtime.security.quotas import LONGEST_WAIT_S, ProcessorTime, Quotas, QuotaTable, Share
from pyspark_log.client.connection.cluster import _QUICK_ATTEMPT_LIMIT_S

KAFKAS_ORDER = [  # org.apache.kafka.server.quota.ClientQuotaCallback's default implementation, most specific first
    ("alice", "etl"),
    ("alice", DEFAULT),
    ("alice", None),
    (DEFAULT, "etl"),
    (DEFAULT, DEFAULT),
    (DEFAULT, None),
    (None, "etl"),
    (None, DEFAULT),
]


class SleptClock(Clock):
    """Time passes only while somebody sleeps."""

    __slots__ = ("now", "slept")

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    def now_s(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds


class Throttled(Meters):
    def __init__(self) -> None:
        self.noted: list[tuple[str, float]] = []

    def throttled(self, limit: str, wait_s: float) -> None:
        self.noted.append((limit, round(wait_s, 2)))


class World:
    """Quotas of one broker, whose table a test replaces."""

    def __init__(self, *quotas: Quota) -> None:
        self.table = QuotaTable(quotas)
        self.clock = SleptClock()
        self.meters = Throttled()
        self.quotas = Quotas(lambda: self.table, meters=self.meters, clock=self.clock)

    def of(self, user: str, client_id: str, *limits: str) -> module.Allowance:
        return self.quotas.of(user, client_id, limits or (PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE))


def quota(user: str | None = None, client_id: str | None = None, **limits: float) -> Quota:
    return Quota(entity=QuotaEntity(user=user, client_id=client_id), limits=limits)


def table_of(entities: Iterable[tuple[str | None, str | None]]) -> QuotaTable:
    """Each entity's limit is its place in Kafka's order."""
    return QuotaTable(quota(*each, producer_byte_rate=float(1 + KAFKAS_ORDER.index(each))) for each in entities)


@pytest.mark.parametrize("count", range(9))
def test_most_specific_quota_counts_in_kafkas_order(count: int) -> None:
    """Of every set of entities that concern a client."""
    for entities in itertools.combinations(KAFKAS_ORDER, count):
        found = table_of(entities).find(PRODUCER_BYTE_RATE, "alice", "etl")
        assert (None if found is None else found[1]) == (1.0 + KAFKAS_ORDER.index(entities[0]) if entities else None)


@pytest.mark.parametrize(
    ("entity", "share"),
    [
        (("alice", "etl"), Share("alice", "etl")),
        (("alice", DEFAULT), Share("alice", "etl")),
        (("alice", None), Share("alice", None)),
        ((DEFAULT, "etl"), Share("alice", "etl")),
        ((DEFAULT, DEFAULT), Share("alice", "etl")),
        ((DEFAULT, None), Share("alice", None)),
        ((None, "etl"), Share(None, "etl")),
        ((None, DEFAULT), Share(None, "etl")),
    ],
)
def test_quota_is_shared_by_those_to_whom_its_entity_applies(
    entity: tuple[str | None, str | None], share: Share
) -> None:
    """A default grants as much to each user, or client id."""
    found = table_of([entity]).find(PRODUCER_BYTE_RATE, "alice", "etl")
    assert found is not None
    assert found[0] == share


def test_others_quota_concerns_nobody_else() -> None:
    table = QuotaTable([quota("bob", producer_byte_rate=1.0), quota(None, "other", producer_byte_rate=1.0)])
    assert table.find(PRODUCER_BYTE_RATE, "alice", "etl") is None


def test_each_limit_is_looked_up_by_itself() -> None:
    """A specific entity without one leaves that to the next."""
    table = QuotaTable([quota("alice", "etl", producer_byte_rate=1.0), quota("alice", consumer_byte_rate=2.0)])
    assert table.find(PRODUCER_BYTE_RATE, "alice", "etl") == (Share("alice", "etl"), 1.0)
    assert table.find(CONSUMER_BYTE_RATE, "alice", "etl") == (Share("alice", None), 2.0)


def test_client_over_its_rate_waits_until_what_it_took_is_paid() -> None:
    """One second of it is free; the rest is waited for, and counted."""
    world = World(quota("alice", producer_byte_rate=100.0))
    allowance = world.of("alice", "etl")
    allowance.spend(PRODUCER_BYTE_RATE, 100)
    assert allowance.throttle_ms() <= 1
    allowance.spend(PRODUCER_BYTE_RATE, 250)
    assert allowance.throttle_ms() == 2_501
    calls: list[float] = []
    allowance.wait(lambda: calls.append(world.clock.now_s()))
    assert sum(world.clock.slept) == pytest.approx(2.5, abs=0.01)
    assert len(calls) == 2, "every second"
    assert allowance.throttle_ms() == 0
    assert world.meters.noted == [(PRODUCER_BYTE_RATE, 2.5)]
    allowance.wait()
    assert len(world.meters.noted) == 1, "who does not wait is not counted"


def test_rate_is_kept_by_any_number_of_streams() -> None:
    """They share it, and each waits for its own part: together they take no more."""
    world = World(quota("alice", producer_byte_rate=1_000.0))
    streams = [world.of("alice", f"client-{number}") for number in range(20)]
    began, taken, turns = world.clock.now, 0, 0
    while world.clock.now - began < 100:
        due = min(streams, key=lambda each: each.throttle_ms())
        if due.throttle_ms():
            world.clock.now += due.throttle_ms() / 1000
        due.spend(PRODUCER_BYTE_RATE, 700)
        taken, turns = taken + 700, turns + 1
    assert 0.95 < taken / (1_000 * (world.clock.now - began)) < 1.05 + 15_000 / 100_000
    assert turns > 100


def test_other_clients_do_not_wait() -> None:
    world = World(quota(DEFAULT, producer_byte_rate=100.0))
    world.of("alice", "etl").spend(PRODUCER_BYTE_RATE, 1_000)
    assert world.of("bob", "etl").throttle_ms() == 0
    assert world.of("alice", "other").throttle_ms() > 8_000


def test_new_stream_owes_what_the_client_owes_but_only_of_its_own_kind() -> None:
    """Otherwise each request would come in a stream of its own."""
    world = World(quota("alice", producer_byte_rate=100.0, consumer_byte_rate=100.0))
    world.of("alice", "etl").spend(PRODUCER_BYTE_RATE, 600)
    assert 5_000 <= world.of("alice", "etl").throttle_ms() <= 5_001
    assert world.of("alice", "etl", CONSUMER_BYTE_RATE).throttle_ms() == 0


def test_nobody_waits_longer_than_any_client_would() -> None:
    """However large a request was: a client that is slowed must not give up. And what is forgiven is forgiven."""
    world = World(quota("alice", producer_byte_rate=1.0))
    allowance = world.of("alice", "etl")
    for _ in range(3):
        allowance.spend(PRODUCER_BYTE_RATE, 1 << 30)
        assert allowance.throttle_ms() <= LONGEST_WAIT_S * 1000 + 1
    allowance.wait()
    assert sum(world.clock.slept) <= LONGEST_WAIT_S + 0.01
    assert world.of("alice", "etl").throttle_ms() <= 1


def test_quota_that_changes_ends_waits_and_counts_from_then_on() -> None:
    world = World(quota("alice", producer_byte_rate=10.0))
    allowance = world.of("alice", "etl")
    allowance.spend(PRODUCER_BYTE_RATE, 150)

    def raise_it() -> None:
        world.table = QuotaTable([quota("alice", producer_byte_rate=1_000.0)])

    allowance.wait(raise_it)
    assert sum(world.clock.slept) == pytest.approx(1.0, abs=0.01)
    allowance.spend(PRODUCER_BYTE_RATE, 3_000)
    assert 2_000 <= allowance.throttle_ms() <= 2_001
    world.table = QuotaTable()
    assert allowance.throttle_ms() == 0
    assert not allowance.limits(PRODUCER_BYTE_RATE)


def test_change_of_other_quotas_forgives_nobody() -> None:
    """Otherwise whoever changes quotas often lifts them all. A wait that is under way gets no longer either."""
    world = World(quota("alice", producer_byte_rate=100.0), quota("bob", producer_byte_rate=1.0))
    allowance, other = world.of("alice", "etl"), world.of("alice", "other")
    allowance.spend(PRODUCER_BYTE_RATE, 600)
    other.spend(PRODUCER_BYTE_RATE, 300)
    for rate in range(2, 50):
        world.table = QuotaTable([quota("alice", producer_byte_rate=100.0), quota("bob", producer_byte_rate=rate)])
        assert 5_000 <= allowance.throttle_ms() <= 5_001
        assert 8_000 <= world.of("alice", "new").throttle_ms() <= 8_001
    world.table = QuotaTable()
    assert allowance.throttle_ms() == 0


def test_stream_that_looks_while_quotas_change_shares_the_rate_of_all_others() -> None:
    """It has seen the old quotas, and another stream the new ones before it goes on."""
    old = QuotaTable([quota("alice", producer_byte_rate=10.0)])
    new = QuotaTable([quota("alice", producer_byte_rate=100.0)])
    looks: list[QuotaTable] = []
    clock = SleptClock()
    quotas = Quotas(lambda: looks.pop() if looks else new, clock=clock)
    first = quotas.of("alice", "first", (PRODUCER_BYTE_RATE,))
    assert first.throttle_ms() == 0
    looks.append(old)
    quotas.of("alice", "late", (PRODUCER_BYTE_RATE,)).spend(PRODUCER_BYTE_RATE, 1)
    first.spend(PRODUCER_BYTE_RATE, 600)
    assert quotas.of("alice", "last", (PRODUCER_BYTE_RATE,)).throttle_ms() >= 4_999


def test_nobody_is_held_back_by_a_broker_that_stops() -> None:
    """Readers of ranges and ordinary Flight clients show nothing meanwhile, so that nothing else would end them."""
    world = World(quota("alice", consumer_byte_rate=1.0, request_percentage=1.0))
    allowance = world.of("alice", "etl", CONSUMER_BYTE_RATE)
    allowance.spend(CONSUMER_BYTE_RATE, 1_000)
    world.quotas.begin_action("alice", "etl").spend(REQUEST_PERCENTAGE, 1_000)
    allowance.wait(world.quotas.end_waits)
    assert sum(world.clock.slept) == pytest.approx(1.0, abs=0.01)
    before = list(world.clock.slept)
    with world.quotas.holding(1 << 40):
        allowance.wait_for_room(lambda: None)
    allowance.wait()
    world.quotas.begin_action("alice", "etl")
    assert world.clock.slept == before


def test_pieces_are_no_larger_than_a_second_of_the_quota() -> None:
    world = World(quota("alice", consumer_byte_rate=100.0))
    allowance = world.of("alice", "etl", CONSUMER_BYTE_RATE)
    assert allowance.most_in_one_second(CONSUMER_BYTE_RATE, 1_000) == 100
    assert allowance.most_in_one_second(CONSUMER_BYTE_RATE, 50) == 50
    world.table = QuotaTable([quota("alice", consumer_byte_rate=0.5)])
    assert allowance.most_in_one_second(CONSUMER_BYTE_RATE, 50) == 1
    world.table = QuotaTable()
    assert allowance.most_in_one_second(CONSUMER_BYTE_RATE, 50) == 50


def test_processor_time_is_a_percentage_of_one_core() -> None:
    """50 % are 500 ms a second."""
    world = World(quota("alice", request_percentage=50.0))
    allowance = world.of("alice", "etl")
    allowance.spend(REQUEST_PERCENTAGE, 1_500)
    assert 2_000 <= allowance.throttle_ms() <= 2_001


def test_processor_time_is_that_of_the_thread_and_from_the_quota_on() -> None:
    """What a thread did before is nobody's."""
    world = World()
    allowance = world.of("alice", "etl")
    timer = ProcessorTime(allowance)
    _work(50_000)
    world.table = QuotaTable([quota("alice", request_percentage=0.001)])
    timer.spend()
    assert allowance.throttle_ms() == 0
    _work(500_000)
    timer.spend()
    assert allowance.throttle_ms() > 0


def _work(count: int) -> int:
    return sum(number * number for number in range(count))


def test_action_of_a_client_over_its_quota_waits_less_than_clients_do() -> None:
    """Otherwise none is answered in time: consumers could not even say that they are alive."""
    world = World(quota("alice", request_percentage=1.0))
    world.quotas.begin_action("alice", "etl").spend(REQUEST_PERCENTAGE, 1_000)
    world.quotas.begin_action("alice", "etl")
    assert sum(world.clock.slept) == pytest.approx(1.0, abs=0.01)
    assert _QUICK_ATTEMPT_LIMIT_S >= 2.0, "there is time left for the answer"
    assert world.meters.noted == [(REQUEST_PERCENTAGE, 1.0)]
    before = list(world.clock.slept)
    world.quotas.begin_action("bob", "etl")
    world.quotas.begin_action("alice", "etl", is_broker=True)
    assert world.clock.slept == before


def test_actions_that_wait_are_so_many_and_one_client_alone_keeps_no_others_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They hold threads."""
    users = ("alice", "bob", "carol")
    world = World(*(quota(user, request_percentage=1.0) for user in users))
    for user in users:
        world.quotas.begin_action(user, "etl").spend(REQUEST_PERCENTAGE, 1_000)
    entered, leave = threading.Semaphore(0), threading.Event()

    def sleep(self: SleptClock, seconds: float) -> None:
        entered.release()
        leave.wait(30)
        self.now += seconds

    monkeypatch.setattr(SleptClock, "sleep", sleep)
    waiting = []
    try:
        for user, waiting_before in (("alice", 0), ("bob", 25)):
            for _ in range(25):
                waiting.append(threading.Thread(target=world.quotas.begin_action, args=(user, "etl"), daemon=True))
                waiting[-1].start()
                assert entered.acquire(timeout=30)
            with pytest.raises(TooManyStreamsError, match=f"{waiting_before + 25} actions of clients over their"):
                world.quotas.begin_action(user, "etl")
        with pytest.raises(TooManyStreamsError, match="50 actions of clients over their quotas are already waiting"):
            world.quotas.begin_action("carol", "etl")
        world.quotas.begin_action("dave", "etl")
    finally:
        leave.set()
        for thread in waiting:
            thread.join(30)
    assert not any(thread.is_alive() for thread in waiting)
    world.quotas.begin_action("carol", "etl")


def test_action_that_has_waited_makes_room_for_others() -> None:
    """One after the other, any number may wait, and one that was interrupted counts no more either."""
    world = World(quota("alice", request_percentage=1.0))

    def wait() -> None:
        world.quotas.begin_action("alice", "etl").spend(REQUEST_PERCENTAGE, 1_000)

    for _ in range(60):
        wait()
    assert len(world.clock.slept) == 59
    with pytest.raises(ZeroDivisionError), world.quotas._one_more_waiting_action(Share("alice", None)):
        raise ZeroDivisionError
    assert not world.quotas._waiting_actions


def test_streams_beyond_the_quota_are_refused_and_open_ones_stay() -> None:
    """All clients of a user count; when one ends there is room again."""
    world = World(quota("alice", max_connections=2.0), quota(None, DEFAULT, max_connections=1.0))
    first = world.quotas.streaming("alice", "a")
    first.__enter__()
    with world.quotas.streaming("alice", "b"):
        with (
            pytest.raises(
                TooManyStreamsError,
                match="user 'alice' is max_connections=2, and that many streams are open",
            ),
            world.quotas.streaming("alice", "c"),
        ):
            pass
        with world.quotas.streaming("alice", "c", is_broker=True):
            pass
        with (
            world.quotas.streaming("bob", "a"),
            world.quotas.streaming("bob", "b"),
            pytest.raises(TooManyStreamsError, match="quota of client id 'b' is max_connections=1"),
            world.quotas.streaming("carol", "b"),
        ):
            pass
    assert world.meters.noted == [(MAX_CONNECTIONS, 0.0)] * 2
    with world.quotas.streaming("alice", "c"):
        pass
    first.__exit__(None, None, None)
    assert not world.quotas._open


def test_names_of_clients_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_RATES", 10)
    world = World(quota(None, DEFAULT, producer_byte_rate=100.0))
    for number in range(1_000):
        world.of("alice", f"client-{number}").spend(PRODUCER_BYTE_RATE, 1_000)
    assert len(world.quotas._rates) == 10
    assert world.of("alice", "client-999").throttle_ms() > 0


def test_client_that_comes_often_is_not_forgotten_for_names_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_RATES", 10)
    world = World(quota(None, DEFAULT, producer_byte_rate=100.0))
    world.of("alice", "etl").spend(PRODUCER_BYTE_RATE, 1_000)
    for number in range(1_000):
        world.of("alice", f"client-{number}").throttle_ms()
        assert world.of("alice", "etl").throttle_ms() > 0


@pytest.mark.parametrize(
    ("entity", "limits", "said"),
    [
        ({}, {PRODUCER_BYTE_RATE: 1.0}, "a quota needs a user, a client id, or both"),
        ({"user": "a\nb"}, {PRODUCER_BYTE_RATE: 1.0}, "contains characters that are not printable"),
        ({"user": "a"}, {"byte_rate": 1.0}, "quota 'byte_rate': must be one of producer_byte_rate, consumer_byte_rate"),
        ({"user": "a"}, {"byte_rate": None}, "quota 'byte_rate': must be one of"),
        ({"user": "a"}, {PRODUCER_BYTE_RATE: 0.0}, "producer_byte_rate=0.0: must be a number above 0"),
        ({"user": "a"}, {PRODUCER_BYTE_RATE: -1.0}, "must be a number above 0"),
        ({"user": "a"}, {REQUEST_PERCENTAGE: float("nan")}, "must be a number above 0"),
        ({"user": "a"}, {REQUEST_PERCENTAGE: float("inf")}, "must be a number above 0"),
        ({"user": "a"}, {MAX_CONNECTIONS: 1.5}, "max_connections=1.5: must be a whole number"),
    ],
)
def test_change_that_means_nothing_is_refused(
    entity: dict[str, str], limits: dict[str, float | None], said: str
) -> None:
    change = QuotaChange(entity=QuotaEntity(**entity), limits=tuple(limits.items()))
    with pytest.raises(InvalidRequestError) as refused:
        check_change(change)
    assert said in refused.value.message


def test_changes_set_and_remove_limits_and_leave_others() -> None:
    """An entity without limits is gone; the result is sorted."""
    old = (quota("bob", producer_byte_rate=1.0), quota(None, "etl", consumer_byte_rate=2.0, request_percentage=3.0))
    changes = [
        QuotaChange(entity=QuotaEntity(user="bob"), limits=((PRODUCER_BYTE_RATE, None),)),
        QuotaChange(
            entity=QuotaEntity(client_id="etl"), limits=((CONSUMER_BYTE_RATE, 5.0), (REQUEST_PERCENTAGE, None))
        ),
        QuotaChange(entity=QuotaEntity(user="alice"), limits=((MAX_CONNECTIONS, 7.0),)),
        QuotaChange(entity=QuotaEntity(user="nobody"), limits=((MAX_CONNECTIONS, None),)),
    ]
    assert altered(old, changes) == (
        quota(None, "etl", consumer_byte_rate=5.0),
        quota("alice", max_connections=7.0),
    )
    assert set(LIMITS) == {PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, MAX_CONNECTIONS}


def test_requests_that_are_held_back_have_room_for_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it the next one is not read, so a hundred streams over their quota take no memory but that."""
    monkeypatch.setattr(module, "_MOST_HELD_BYTES", 1_000)
    world = World(quota("alice", producer_byte_rate=100.0))
    allowance = world.of("alice", "etl")
    allowance.spend(PRODUCER_BYTE_RATE, 600)
    allowance.wait_for_room(lambda: None)
    assert world.clock.slept == [], "there is room: it is read"
    with world.quotas.holding(1_000):
        allowance.wait_for_room(lambda: None)
    assert sum(world.clock.slept) == pytest.approx(5.0, abs=0.01), "until it need not be held"
    allowance.spend(PRODUCER_BYTE_RATE, 600)
    held = []
    allowance.wait(lambda: held.append(world.quotas._held_bytes), holding_bytes=700)
    assert set(held) == {700}
    assert world.quotas._held_bytes == 0
    with pytest.raises(ZeroDivisionError), world.quotas.holding(5):
        raise ZeroDivisionError
    assert world.quotas._held_bytes == 0
