"""The parts of the simulator: time and ZooKeeper do what the workloads rely on."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from broker_runtime.contract.errors import NotLeaderOrFollowerError, ZooKeeperUnavailableError
from broker_runtime.zookeeper.session import NodeExistsError, SessionState
from tests.simulation.simulator.lagging import LaggingZooKeeper
from tests.simulation.simulator.network import Weather
from tests.simulation.simulator.scheduler import MS, SECOND, Crashed, DefectError, Scheduler
from tests.simulation.simulator.trace import Trace
from tests.simulation.simulator.world import SimulatedWorld
from tests.simulation.simulator.zookeeper import LOST_AFTER, LOST_BEFORE, SimZooKeeper, ZooKeeperWeather


def test_simulator_knows_no_workload():
    """What the workloads share depends on neither."""
    files = sorted((Path(__file__).parent / "simulator").glob("*.py"))
    found = [
        f"{path.name}: {name}"
        for path in files
        for name in ("partitions", "groups")
        if f"simulation.{name}" in path.read_text()
    ]
    assert len(files) > 10
    assert found == []


@pytest.fixture
def scheduler():
    return Scheduler(random.Random(1))


@pytest.fixture
def zookeeper(scheduler):
    return SimZooKeeper(scheduler, Trace(lambda: scheduler.now_us), ZooKeeperWeather())


# --- time ---------------------------------------------------------------------------------------------------------


def test_others_run_while_one_waits_and_the_one_that_waits_does_not(scheduler):
    """A thread is never entered twice."""
    seen = []

    def wait():
        seen.append("begins")
        scheduler.block(10 * MS, whole_actor=False)
        seen.append("ends")

    scheduler.after(0, "a", wait)
    scheduler.after(MS, "a", lambda: seen.append("same thread"))
    scheduler.after(MS, "a", lambda: seen.append("another thread"), thread="other")
    scheduler.after(MS, "b", lambda: seen.append("another actor"))
    scheduler.run(SECOND)
    assert seen == ["begins", "another thread", "another actor", "ends", "same thread"]


def test_disk_holds_up_all_threads_of_its_broker(scheduler):
    """Locks are held over it."""
    seen = []
    scheduler.after(0, "a", lambda: (scheduler.block(10 * MS, whole_actor=True), seen.append("ends")))
    scheduler.after(MS, "a", lambda: seen.append("another thread"), thread="other")
    scheduler.run(SECOND)
    assert seen == ["ends", "another thread"]


def test_who_dies_while_waiting_does_not_go_on(scheduler):
    """A crash unwinds the stack."""
    seen = []

    def wait():
        try:
            scheduler.block(10 * MS, whole_actor=False)
        except Crashed:
            seen.append("crashed")

    scheduler.after(0, "a", wait)
    scheduler.after(20 * MS, "a", lambda: seen.append("of the old life"))
    scheduler.after(MS, "b", lambda: scheduler.end_life("a"))
    scheduler.run(SECOND)
    assert seen == ["crashed"]


def test_defect_passes_through_the_code_that_waits(scheduler):
    """What one broker raises is never caught by another's error handling."""

    def wait():
        try:
            scheduler.block(10 * MS, whole_actor=False)
        except OSError:
            pytest.fail("another broker's error")

    def fail():
        raise OSError("disk of b")

    scheduler.after(0, "a", wait)
    scheduler.after(MS, "b", fail)
    with pytest.raises(DefectError) as raised:
        scheduler.run(SECOND)
    cause = raised.value
    while isinstance(cause, DefectError):
        cause = cause.__cause__
    assert str(cause) == "disk of b"


def test_who_stands_still_does_later_what_was_due(scheduler):
    """A pause loses nothing."""
    seen = []
    scheduler.pause("a", SECOND)
    scheduler.after(MS, "a", lambda: seen.append(scheduler.now_us))
    scheduler.run(2 * SECOND)
    assert seen == [SECOND]


# --- the network --------------------------------------------------------------------------------------------------


def test_request_has_exactly_one_outcome():
    """An answer, an error's code, a refusal, or none in time; and none comes to a process that has ended."""
    world = SimulatedWorld(
        1, Scheduler, weather=Weather(), zookeeper_weather=ZooKeeperWeather(), situations=(), keep_lines=10
    )
    outcomes = []

    def fail(reply):
        raise NotLeaderOrFollowerError("led by another")

    def answer_twice(reply):
        reply.answer("yes")
        reply.answer("yes")

    def answer_the_dead(reply):
        world.scheduler.end_life("c")
        reply.answer("too late")

    for handle in (answer_twice, fail, lambda reply: reply.refuse(), lambda reply: None, answer_the_dead):
        world.request(
            "c", "b", handle, on_answer=outcomes.append, on_failure=outcomes.append, timeout_us=SECOND, thread="serve"
        )
        world.scheduler.run(world.scheduler.now_us + 2 * SECOND)
    assert outcomes == ["yes", "NOT_LEADER_OR_FOLLOWER", "refused", "no answer"]


# --- ZooKeeper ----------------------------------------------------------------------------------------------------


def test_write_whose_answer_is_lost_happened_and_the_other_did_not(zookeeper):
    """An error leaves open what became of a write."""
    client = zookeeper.connect("a")
    for fate, happened in ((LOST_AFTER, True), (LOST_BEFORE, False)):
        zookeeper.scheduler.run(zookeeper.scheduler.now_us + SECOND)
        client.next_write = fate
        with pytest.raises(ZooKeeperUnavailableError):
            client.create(f"/{int(happened)}")
        assert (zookeeper.find(f"/{int(happened)}") is not None) == happened


def test_session_ends_without_the_client_knowing_until_it_is_back(zookeeper):
    """Until then it believes what it believed."""
    client, news = zookeeper.connect("a"), []
    client.listen(news.append)
    client.create("/mine", ephemeral=True)
    session = client.session_id
    zookeeper.cut_off("a")
    zookeeper.scheduler.run(10 * SECOND)
    assert zookeeper.find("/mine") is None
    assert (client.session_id, news) == (session, [SessionState.SUSPENDED])
    zookeeper.reconnect("a")
    zookeeper.scheduler.run(20 * SECOND)
    assert news == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
    assert client.session_id != session
    with pytest.raises(ZooKeeperUnavailableError, match="has ended"):
        client.create("/late", session=session)


def test_ephemerals_of_a_dead_process_stay_until_its_time_is_over(zookeeper):
    """Its session has to time out."""
    zookeeper.connect("a").create("/mine", ephemeral=True)
    zookeeper.process_died("a")
    with pytest.raises(NodeExistsError):
        zookeeper.connect("a").create("/mine", ephemeral=True)
    zookeeper.scheduler.run(7 * SECOND)
    assert zookeeper.find("/mine") is None


def test_watch_comes_once_and_later(zookeeper):
    """And those of a client that is cut off, when it is back."""
    client, other, seen = zookeeper.connect("a"), zookeeper.connect("b"), []
    other.create("/node")
    client.get("/node", watch=seen.append)
    zookeeper.cut_off("a")
    other.set("/node", b"1", version=0)
    other.set("/node", b"2", version=1)
    zookeeper.scheduler.run(SECOND)
    assert seen == []
    zookeeper.reconnect("a")
    zookeeper.scheduler.run(2 * SECOND)
    assert seen == ["/node"]


def test_server_that_lags_shows_nothing_older_than_its_clients_last_write(scheduler):
    """As ZooKeeper promises; a client of another server sees all that there is."""
    zookeeper = LaggingZooKeeper(scheduler, Trace(lambda: scheduler.now_us), ZooKeeperWeather())
    lagging, other, stale = zookeeper.connect("a"), zookeeper.connect("b"), []
    zookeeper.on_stale_read = lambda: stale.append(scheduler.now_us)
    other.create("/node", b"old")
    scheduler.run(scheduler.now_us + 2 * SECOND)
    zookeeper.lag("a", SECOND, 60 * SECOND)
    other.set("/node", b"new", version=0)
    assert (lagging.get("/node").data, other.get("/node").data) == (b"old", b"new")
    assert len(stale) == 1
    lagging.create("/mine")
    assert lagging.get("/node").data == b"new"
    other.set("/node", b"newest", version=1)
    assert lagging.get("/node").data == b"new"
    zookeeper.heal("a")
    assert lagging.get("/node").data == b"newest"
    assert len(stale) == 2
