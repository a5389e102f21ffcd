"""The verdict over the diaries of a group's workers finds each violation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.group_verdict import AFTER_A_FREEZE_NS, Diaries, judge


def verdict(
    tmp_path: Path, diaries: dict[str, str], acknowledged: dict[str, tuple[int, int]], **read: object
) -> list[str]:
    found = Diaries()
    for worker, lines in diaries.items():
        path = tmp_path / worker
        path.write_text("".join(line.strip() + "\n" for line in lines.strip().splitlines()))
        found.read(worker, path, **read)  # type: ignore[arg-type]
    return judge(found, acknowledged)


HANDED_OVER = {
    "a": "10 assign 0\n 20 got 0 0 v0\n 30 done 0 0\n 40 got 0 1 v1\n 50 done 0 1\n 60 revoke 0",
    "b": "70 assign 0\n 80 got 0 2 v2\n 90 done 0 2",
}
ALL = {"v0": (0, 0), "v1": (0, 1), "v2": (0, 2)}


def test_partition_that_was_handed_over_in_order_is_accepted(tmp_path: Path) -> None:
    assert verdict(tmp_path, HANDED_OVER, ALL) == []


def test_record_of_a_killed_worker_may_be_repeated_without_an_acknowledged_commit(tmp_path: Path) -> None:
    lines = {"a": "10 assign 0\n 20 got 0 0 v0", "b": "70 assign 0\n 80 got 0 0 v0\n 90 done 0 0"}
    assert verdict(tmp_path, lines, {"v0": (0, 0)}) == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ({"b": "70 assign 0\n 80 got 0 2 v2\n 90 done 0 2"}, "2 acknowledged records were delivered to nobody"),
        (HANDED_OVER | {"c": "95 assign 0\n 100 got 0 1 v1"}, "0@1 was delivered to c 0.0 ms after its commit"),
        (HANDED_OVER | {"b": "25 assign 0\n 35 got 0 2 v2"}, "0@2 was delivered to b while a kept it"),
        (HANDED_OVER | {"b": "70 assign 0\n 80 got 0 2 v2\n 90 got 0 4 v4"}, "b got 0@4 after 0@2"),
        (HANDED_OVER | {"b": "70 assign 0\n 80 got 0 3 v2"}, "v2 is at (0, 2) and was delivered to b as 0@3"),
    ],
)
def test_violation_is_reported(tmp_path: Path, lines: dict[str, str], said: str) -> None:
    """W19, W24."""
    assert [line for line in verdict(tmp_path, lines, ALL) if said in line]


def test_first_line_of_a_resumed_worker_has_no_reliable_time(tmp_path: Path) -> None:
    late_ns = 100 + AFTER_A_FREEZE_NS // 2
    lines = HANDED_OVER | {"c": f"10 assign 0\n {late_ns} got 0 1 v1"}
    assert verdict(tmp_path, lines, ALL, resumed_ns=[100]) == []
    assert verdict(tmp_path, lines, ALL)


def test_last_line_that_was_cut_by_a_kill_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("10 assign 0\n20 got 0 0 v0\n30 do")
    diaries = Diaries()
    diaries.read("a", path)
    assert (len(diaries.got), diaries.done) == (1, {})
