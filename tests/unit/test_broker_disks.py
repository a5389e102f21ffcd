"""The work of a broker for a data directory, on that directory's own thread."""

import types
import uuid

import pytest

from broker_runtime import broker as composition
from broker_runtime.broker import Broker
from broker_runtime.contract.model import TopicPartition
from broker_runtime.contract.settings import resolve
from broker_runtime.log.checkpoint import OffsetCheckpoint
from broker_runtime.log.directory import RECOVERY_POINT_NAME
from tests.topic_settings import topic_settings
from tests.unit.log.log_samples import fill
from tests.waiting import wait_until

LIMIT_S = 20.0
HOSTING = types.SimpleNamespace(
    look_at_disk=lambda _: None, look_at_kept=lambda _: None, apply_retention_in=lambda *_: None
)


@pytest.fixture
def broker(tmp_path, monkeypatch):
    monkeypatch.setattr(composition, "_CHECKPOINT_S", 3_600.0)
    made = Broker(resolve("broker", {"broker.id": 1, "log.dirs": str(tmp_path), "zookeeper.connect": "127.0.0.1:1"}))
    yield made
    assert made.stop(LIMIT_S)


def test_recovery_point_is_saved_soon_after_a_segment_was_closed(broker, tmp_path):
    """It needs neither the periodic checkpoint nor anybody who waits for it."""
    directory = broker._open_directory(tmp_path / "a", "c")
    broker._run_disk(HOSTING, directory)
    log = directory.log("t", 0, uuid.uuid4(), topic_settings(segment_bytes=8 << 10))
    fill(log, 60, size=200)
    assert len(log.segment_base_offsets) > 1
    points = OffsetCheckpoint(directory.files, tmp_path / "a" / RECOVERY_POINT_NAME)
    wait_until(
        lambda: (points.read() or {}).get(TopicPartition("t", 0), 0) >= log.segment_base_offsets[-1],
        "the recovery point is saved",
        LIMIT_S,
    )
