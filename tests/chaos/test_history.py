"""The checker of the chaos runs finds each anomaly, and none in a sound history."""

from __future__ import annotations

import pytest

from tests.chaos import workload
from tests.chaos.history import History, check, value_of

_AT = ("t", 0)


def _log(*numbers: int) -> dict[int, bytes]:
    return {offset: value_of("p0", 0, number) for offset, number in enumerate(numbers)}


def _acknowledged(log: dict[int, bytes]) -> History:
    history = History()
    for offset, value in log.items():
        history.acknowledge(_AT, offset, value)
    history.consume(_AT, list(log), list(log.values()))
    return history


def test_sound_history_has_no_anomaly() -> None:
    """Records that were given up may be there or not."""
    log = _log(0, 1, 3, 4)
    assert check(_acknowledged(log), {_AT: {**log, 4: value_of("p0", 0, 5)}}) == []


@pytest.mark.parametrize(
    ("final", "anomaly"),
    [
        (_log(0, 1), "lost"),
        (_log(0, 1, 3), "lost"),
        (_log(0, 1, 2, 2), "duplicated"),
        ({**_log(0, 1, 2), 3: value_of("p0", 0, 7), 4: value_of("p0", 0, 5)}, "reordered"),
        ({**_log(0, 1, 2), 4: value_of("p0", 0, 5)}, "gap"),
        (_log(0, 1), "unreal"),
    ],
)
def test_anomaly_is_found(final: dict[int, bytes], anomaly: str) -> None:
    """Each anomaly has its name."""
    found = check(_acknowledged(_log(0, 1, 2)), {_AT: final})
    assert any(line.startswith(anomaly) for line in found), found


def test_acknowledged_records_that_no_consumer_got_are_known() -> None:
    history = _acknowledged(_log(0, 1))
    assert history.unread() == {}
    history.acknowledge(_AT, 2, value_of("p0", 0, 2))
    history.acknowledge(("t", 1), 0, value_of("p0", 1, 0))
    history.acknowledge(("t", 2), -1, value_of("p0", 2, 0))
    assert history.unread() == {_AT: [2], ("t", 1): [0]}
    history.consume(_AT, [2], [value_of("p0", 0, 2)])
    assert history.unread() == {("t", 1): [0]}


def test_consumers_that_stand_still_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "_READ_LIMIT_S", 0.0)
    still = workload.Workload("127.0.0.1:1", "t", 1, producers=0, consumers=0, rate=1)
    still.history.acknowledge(_AT, 7, value_of("p0", 0, 0))
    still.stop()
    assert len(still.history.anomalies) == 1
    assert still.history.anomalies[0].startswith("unread: ('t', 0): consumers did not get 1 acknowledged records")


def test_two_contents_at_one_offset_are_found_by_acknowledgements_and_by_readers() -> None:
    """An offset has one content, for everybody and at all times."""
    history = _acknowledged(_log(0))
    history.acknowledge(_AT, 0, value_of("p1", 0, 0))
    history.consume(_AT, [0], [value_of("p1", 0, 0)])
    found = check(history, {_AT: _log(0)})
    assert [line.split(" ")[4] for line in found[:2]] == ["acknowledged", "read"]


def test_consumer_that_skips_an_offset_is_found() -> None:
    """The gap may be between two polls, or within one."""
    history, log = History(), _log(0, 1, 2, 3)
    history.consume(_AT, [0], [log[0]])
    history.consume(_AT, [2], [log[2]], expected=1)
    history.consume(_AT, [0, 3], [log[0], log[3]])
    found = check(history, {_AT: log})
    assert [line.split(":")[0] for line in found] == ["skipped", "skipped"]


def test_acknowledged_record_without_an_offset_must_be_somewhere() -> None:
    """A duplicate's offset may be unknown, but the record is there."""
    history = History()
    history.acknowledge(_AT, -1, value_of("p0", 0, 1))
    assert check(history, {_AT: _log(0, 1)}) == []
    assert check(history, {_AT: _log(0)}) == ["lost: ('t', 0) lacks 1 acknowledged records, one is b'p0/0/1'"]
    assert history.acknowledged_records == 1


def test_record_of_one_partition_in_another_is_found() -> None:
    """A log contains only its own partition's records."""
    found = check(History(), {("t", 1): _log(0)})
    assert found == ["misplaced: ('t', 1) has b'p0/0/0' at 0"]
