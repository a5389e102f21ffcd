"""Orders at named points: carried out once, the n-th time, and only where the sink has the point."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import sink_hooks
from tests.chaos.copying import Driver, Plans, spark_environment
from tests.chaos.sink_hooks import DIRECTORY, POINTS, Order, arm, events, pids, reached, was_carried_out

_ROOT = Path(__file__).parents[2]


def run(directory: Path, program: str) -> subprocess.CompletedProcess[str]:
    """The program in a Python that has the hooks, as Spark's workers have them."""
    environment = {**spark_environment(directory), DIRECTORY: str(directory)}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=_ROOT, capture_output=True, text=True, timeout=60
    )


def test_order_is_carried_out_the_nth_time_and_once(tmp_path: Path) -> None:
    """Of all processes that reach the point, the one that reaches it for the n-th time."""
    arm(tmp_path, Order(point=sink_hooks.AFTER_BEGIN, action="stall", nth=3))
    for _ in range(2):
        reached(tmp_path, sink_hooks.AFTER_BEGIN)
        assert not was_carried_out(tmp_path, sink_hooks.AFTER_BEGIN)
    reached(tmp_path, sink_hooks.BEFORE_BEGIN)
    reached(tmp_path, sink_hooks.AFTER_BEGIN)
    assert was_carried_out(tmp_path, sink_hooks.AFTER_BEGIN)
    assert not was_carried_out(tmp_path, sink_hooks.BEFORE_BEGIN)
    reached(tmp_path, sink_hooks.AFTER_BEGIN)


def test_order_to_die_kills_the_driver_and_the_process_that_got_there(tmp_path: Path) -> None:
    """The driver's processes are those that it told of."""
    victims = [subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) for _ in range(2)]
    try:
        (tmp_path / "pids").write_text(" ".join(str(victim.pid) for victim in victims))
        assert pids(tmp_path) == [victim.pid for victim in victims]
        arm(tmp_path, Order(point=sink_hooks.DECIDED, action="die"))
        program = (
            f"from pathlib import Path; from tests.chaos.sink_hooks import *; reached(Path({str(tmp_path)!r}), DECIDED)"
        )
        assert run(tmp_path, program).returncode == -signal.SIGKILL
        assert [victim.wait(30) for victim in victims] == [-signal.SIGKILL, -signal.SIGKILL]
    finally:
        for victim in victims:
            victim.kill()
            victim.wait()


def test_process_that_has_the_number_of_a_dead_driver_lives_on(tmp_path: Path) -> None:
    """Numbers come again within an hour: it may be a broker, or ZooKeeper."""
    driver = Driver.__new__(Driver)
    driver.directory = tmp_path
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    other = subprocess.Popen(command)
    own = subprocess.Popen(command, env={**os.environ, DIRECTORY: str(tmp_path)})
    try:
        (tmp_path / "pids").write_text(f"{other.pid} {own.pid}")
        driver.kill()
        assert own.wait(30) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for each in (other, own):
            each.kill()
            each.wait()


@pytest.mark.parametrize("point", [sink_hooks.BEFORE_DECISION, sink_hooks.IN_ABORT])
def test_sink_is_wrapped_by_name_in_a_process_of_a_driver(tmp_path: Path, point: str) -> None:
    """Without a change of the product, and before anybody uses it."""
    arm(tmp_path, Order(point=point, action="exit"))
    call = "decide(None, [])" if point == sink_hooks.BEFORE_DECISION else "abort(None, None)"
    found = run(tmp_path, f"import pyspark_log.spark.sink as sink; sink.{call}")
    assert found.returncode == -signal.SIGKILL, found.stderr
    assert was_carried_out(tmp_path, point)


def test_product_is_not_imported_for_its_hooks(tmp_path: Path) -> None:
    """They wait until somebody imports the sink: most of Spark's processes never do."""
    found = run(tmp_path, "import sys; print('pyspark_log' in sys.modules)")
    assert (found.returncode, found.stdout.strip()) == (0, "False"), found.stderr


def test_events_without_the_line_that_a_kill_cut_off(tmp_path: Path) -> None:
    """What the sink did, in the order in which it did it."""
    (tmp_path / "events").write_text("prepared 10\ndecided 10\nprep")
    assert events(tmp_path) == [("prepared", 10), ("decided", 10)]


def test_every_point_is_planned_before_one_comes_again() -> None:
    """With the way to get there: Spark aborts only if something has failed."""
    plans = Plans(random.Random(1))
    dealt = [plans.next() for _ in range(14)]
    assert {plan.name for plan in dealt} >= set(POINTS)
    for plan in dealt:
        if plan.name in sink_hooks.OF_ABORTS:
            assert [order.action for order in plan.orders] == ["exit", "die"]


def test_this_process_has_no_hooks() -> None:
    """They are for drivers alone."""
    assert DIRECTORY not in os.environ
