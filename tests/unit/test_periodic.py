"""A broker's periodic tasks."""

from broker_runtime.contract.errors import LogStorageError
from broker_runtime.periodic import PeriodicTask, Schedule


def test_tasks_run_when_they_are_due_and_the_next_time_is_returned():
    ran = []
    tasks = [
        PeriodicTask(name="often", interval_s=1, run=lambda: ran.append("often")),
        PeriodicTask(name="seldom", interval_s=10, run=lambda: ran.append("seldom")),
    ]
    schedule = Schedule(tasks, start_s=100)
    assert schedule.step(100.5) == 101
    assert ran == []
    assert schedule.step(101) == 102
    assert ran == ["often"]
    assert schedule.step(110) == 111
    assert ran == ["often", "often", "seldom"], "a missed run is not made up for"


def test_failed_task_is_due_again_and_stops_no_other():
    ran = []

    def fails():
        ran.append("fails")
        raise [LogStorageError("disk"), OSError(28, "No space left on device")][len(ran) % 2]

    tasks = [
        PeriodicTask(name="fails", interval_s=1, run=fails),
        PeriodicTask(name="works", interval_s=1, run=lambda: ran.append("works")),
    ]
    schedule = Schedule(tasks, start_s=0)
    schedule.step(1)
    schedule.step(2)
    assert ran == ["fails", "works", "fails", "works"]
