"""Every fault that a run chooses from, by the name that FAULT= takes."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import faults as f
from tests.chaos.bad_peers import hostile_client
from tests.chaos.disks import can_mount
from tests.chaos.faults import Fault, Faults, Undo, hold
from tests.chaos.lost_disks import all_killed, disk_emptied, partition_lost
from tests.chaos.system_calls import (
    FAILED_SYNC,
    FAILED_WRITE,
    NO_ROOM,
    CallFault,
    CallFaults,
    can_inject,
    stalled_sync,
    stalled_write,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a run can break on this machine."""

    has_small_disks: bool
    has_strace: bool

    @classmethod
    def find(cls) -> Machine:
        """Finds out by trying."""
        directory = Path(tempfile.mkdtemp(prefix="pylog-chaos-strace-"))
        try:
            return cls(has_small_disks=can_mount(), has_strace=can_inject(directory))
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    @property
    def left_out(self) -> list[str]:
        """What a run cannot do here, and why."""
        return [
            text
            for is_there, text in (
                (self.has_small_disks, "fill a disk: this machine lets nobody mount a small one (tmpfs, as root)"),
                (self.has_strace, "failing and stalled writes and fsyncs: no strace here that may attach"),
            )
            if not is_there
        ]


def catalogue(machine: Machine) -> list[Fault]:
    """All faults that the machine allows."""
    faults = [
        _on_broker("kill a broker", f.killed, 12),
        _on_broker("stop a broker", f.stopped, 12),
        _on_broker("pause a broker", f.paused, 30),
        _on_broker("expire a session", f.session_expired, 8),
        _on_broker("slow network", f.slow, 15),
        _on_broker("cut from peers", lambda faults, b: f.cut(faults, b, f.peers(faults, b)), 15),
        _on_broker("cut from peers, one way", lambda faults, b: f.cut(faults, b, f.peers(faults, b), one_way=True), 15),
        _on_broker("cut from ZooKeeper", lambda faults, b: f.cut(faults, b, ["zookeeper"]), 15),
        _on_broker("cut from clients", lambda faults, b: f.cut(faults, b, ["client"]), 15),
        _on_broker(
            "cut from all", lambda faults, b: f.cut(faults, b, [*f.peers(faults, b), "zookeeper", "client"]), 15
        ),
        Fault(
            name="kill the controller",
            longest_s=12,
            begin=lambda faults: hold(faults, faults.controller(), lambda broker_id: f.killed(faults, broker_id)),
        ),
        Fault(name="kill all brokers", longest_s=5, begin=all_killed),
        Fault(
            name="kill all brokers, empty a disk",
            longest_s=5,
            begin=lambda faults: all_killed(faults, is_one_emptied=True),
        ),
        _on_broker("empty a disk", disk_emptied, 8),
        _on_broker("lose a partition's directory", partition_lost, 8),
        Fault(name="kill ZooKeeper", longest_s=12, begin=f.zookeeper_killed),
        Fault(name="pause ZooKeeper", longest_s=12, begin=f.zookeeper_paused),
        Fault(name="flip a bit", longest_s=3, begin=f.bit_flipped),
        Fault(name="move partitions", longest_s=5, begin=f.partitions_moved),
        Fault(name="add a broker", longest_s=5, begin=f.broker_added),
        Fault(name="topic comes and goes", longest_s=5, begin=f.topic_comes_and_goes),
        _on_broker("decompression bombs", lambda faults, b: hostile_client(faults, b, "bombs"), 10),
        _on_broker("silent calls", lambda faults, b: hostile_client(faults, b, "silence"), 15),
    ]
    if machine.has_small_disks:
        faults.append(_on_broker("fill a disk", f.disk_full, 8))
    if machine.has_strace:
        faults += [
            _on_broker("fsyncs fail", lambda faults, b: _calls(faults, b, FAILED_SYNC, breaks_logs=True), 6),
            _on_broker("writes fail", lambda faults, b: _calls(faults, b, FAILED_WRITE, breaks_logs=True), 6),
            _on_broker("writes find no room", lambda faults, b: _calls(faults, b, NO_ROOM, breaks_logs=True), 6),
            _on_broker("fsyncs stall", lambda faults, b: _calls(faults, b, stalled_sync(_stall_s(faults))), 15),
            _on_broker("writes stall", lambda faults, b: _calls(faults, b, stalled_write(_stall_s(faults))), 15),
        ]
    return faults


def named(kinds: Sequence[Fault], part: str | None) -> list[Fault]:
    """The faults whose names contain ``part``; None: all. Raises `ValueError` that names what is allowed."""
    found = [fault for fault in kinds if part is None or part in fault.name]
    if not found:
        raise ValueError(f"FAULT={part!r}: allowed is any part of: {', '.join(fault.name for fault in kinds)}")
    return found


def _on_broker(name: str, begin: Callable[[Faults, int], Undo | None], longest_s: float) -> Fault:
    return Fault(
        name=name,
        longest_s=longest_s,
        begin=lambda faults: hold(faults, faults.pick(), lambda broker_id: begin(faults, broker_id)),
    )


def _stall_s(faults: Faults) -> float:
    return faults.rng.choice((0.3, 2.0, 8.0))


def _calls(faults: Faults, broker_id: int, fault: CallFault, *, breaks_logs: bool = False) -> Undo | None:
    """System calls of a broker fail or stall. ``breaks_logs``: affected logs are offline until their broker
    restarts, which it does in order or not: bytes whose fsync failed are still in the page cache.
    """
    cluster = faults.cluster
    try:
        calls = CallFaults(cluster.pid(broker_id), fault, cluster.directory / f"strace-{broker_id}.out")
    except OSError as error:
        log.info("cannot inject broker=%d error=%s", broker_id, error)
        return None

    def mend() -> None:
        if not breaks_logs:
            calls.end()
            return
        if faults.rng.random() < 0.5:
            cluster.kill(broker_id)
            calls.end()
        else:
            calls.end()
            cluster.stop(broker_id)
        cluster.start(broker_id)

    return mend
