"""What a chaos run reports."""

from __future__ import annotations

import pytest

from tests.chaos.catalogue import Machine, catalogue, named
from tests.chaos.report import Report
from tests.chaos.silence import Silence


def test_report_has_faults_alone_and_paired_and_the_longest_times() -> None:
    """The report has everything by which two runs are compared."""
    report = Report(acknowledged=1234, longest_silence_s=2.04, rounds=2)
    report.note_faults(["kill"])
    report.note_faults(["kill", "cut"])
    report.note_faults([])
    report.ensembles.update([1, 3])
    report.longest_without_leader = (1.5, ("t", 3))
    report.longest_silence_of_one = (3.0, ("t", 1))
    assert report.faults == 3
    assert report.lines() == [
        "rounds 2 (ZooKeeper servers: 1 with 1, 1 with 3); faults 3: alone / as part of a pair",
        "    cut      0 / 1",
        "    kill     1 / 1",
        "records acknowledged 1,234, read 0; given up: none",
        "longest time without a leader 1.5 s (t-3)",
        "longest time without an acknowledgement 2.0 s; of one partition 3.0 s (t-1)",
        "nothing lost, duplicated, reordered, skipped or made up; replicas identical",
    ]


def test_faults_that_never_happened_are_reported() -> None:
    """A blind spot is visible."""
    report = Report(never=["kill", "cut"])
    assert "never happened: kill, cut" in report.lines()


def test_silence_is_measured_for_all_and_for_each_partition() -> None:
    """The time from the beginning on counts."""
    silence = Silence()
    silence.begin(10.0, range(2))
    for now_s, partition in ((11.0, 0), (12.5, 0), (14.0, 1), (14.5, 0)):
        silence.note(now_s, partition)
    assert (silence.all_s, silence.partition_s) == (1.5, {0: 2.0, 1: 4.0})


def test_unknown_fault_is_refused_with_the_names_of_all() -> None:
    """A FAULT= that matches nothing must not pass as a run without faults."""
    kinds = catalogue(Machine(has_small_disks=True, has_strace=True))
    assert [fault.name for fault in named(kinds, "controller")] == ["kill the controller"]
    assert named(kinds, None) == kinds
    with pytest.raises(
        ValueError, match=r"FAULT='burn': allowed is any part of: kill a broker, .*fill a disk, .*writes stall"
    ):
        named(kinds, "burn")
