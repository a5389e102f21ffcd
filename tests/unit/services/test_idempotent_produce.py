"""Frames with a producer id through the produce service, and the source of producer ids."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from broker_runtime.contract.errors import ZooKeeperUnavailableError
from broker_runtime.contract.frame import encode_frame
from broker_runtime.contract.requests import InitProducerIdRequest
from broker_runtime.contract.schema import TopicSchema
from broker_runtime.contract.streams import ProduceRequest, ProduceResponse
from broker_runtime.metrics.counts import Counts
from broker_runtime.services.produce import ProduceService
from broker_runtime.services.producer_ids import BLOCK_SIZE, ProducerIdService
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from tests.callers import CLIENT
from tests.unit.replication.partitions import NOW_MS, Hosted, leadership

REQUEST = ProduceRequest(request_id=1, topic="t")


def numbered(sequence: int, *, producer_id: int = 5, epoch: int = 0) -> pa.Buffer:
    batch = pa.record_batch({"value": pa.array([b"%d" % sequence])})
    return encode_frame(
        batch,
        TopicSchema.untyped(),
        timestamps=NOW_MS,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def produced(service: ProduceService, frame: pa.Buffer, request: ProduceRequest = REQUEST) -> ProduceResponse | None:
    return service.complete(CLIENT, service.append(CLIENT, request, [frame]), 0)


def code_of(response: ProduceResponse | None) -> str:
    assert response is not None
    assert response.error is not None
    return response.error.code


def test_frame_sent_again_is_acknowledged_with_its_first_offset() -> None:
    """A lost acknowledgement costs a retry, not a second copy."""
    hosted = Hosted()
    service = ProduceService(hosted.registry, now_ms=lambda: NOW_MS)
    offsets = [produced(service, numbered(n)).base_offset for n in (0, 1, 2, 1, 0, 3, 3)]  # type: ignore[union-attr]
    assert offsets == [0, 1, 2, 1, 0, 3, 3]
    for n in range(4, 9):
        produced(service, numbered(n))
    assert code_of(produced(service, numbered(1))) == "DUPLICATE_SEQUENCE_NUMBER"
    assert hosted.only.log.log_end_offset == 9


def test_frame_sent_again_is_counted_once() -> None:
    """What came in is what is in the log; each answer is one of a request all the same."""
    registry = CollectorRegistry()
    service = ProduceService(Hosted().registry, now_ms=lambda: NOW_MS, meters=Counts(registry))
    for sequence in (0, 1, 1, 0, 3):  # the last is refused
        produced(service, numbered(sequence))
    assert registry.get_sample_value("pylog_topic_records_in_total", {"topic": "t"}) == 2
    assert registry.get_sample_value("pylog_topic_bytes_in_total", {"topic": "t"}) == sum(
        numbered(sequence).size for sequence in (0, 1)
    )
    assert registry.get_sample_value("pylog_request_seconds_count", {"request": "produce"}) == 5
    refused = {"request": "produce", "code": "OUT_OF_ORDER_SEQUENCE_NUMBER"}
    assert registry.get_sample_value("pylog_request_errors_total", refused) == 1


def test_duplicate_waits_for_what_its_original_waits_for() -> None:
    """A duplicate's acknowledgement waits for its original's condition; one of unknown offset for the newest
    frame's.
    """
    hosted = Hosted()
    hosted.only.become_leader(leadership(2, replicas=(1, 2), in_sync=(1, 2)))
    service = ProduceService(hosted.registry, now_ms=lambda: NOW_MS)
    for n in range(7):
        assert produced(service, numbered(n)) is None
    known = hosted.only.log._state.producers.producers[5]
    known.batches = known.batches[-4:]  # as on a replica that joined after earlier records were deleted
    again, older = (service.append(CLIENT, REQUEST, [numbered(n)]) for n in (6, 0))
    assert service.complete(CLIENT, again, 0) is None
    assert service.complete(CLIENT, older, 0) is None
    assert produced(service, numbered(3), msgspec.structs.replace(REQUEST, acks=1)).base_offset == 3  # type: ignore[union-attr]
    hosted.only.become_leader(leadership(2, replicas=(1, 2), in_sync=(1,)))
    assert service.complete(CLIENT, again, 0).base_offset == 6  # type: ignore[union-attr]
    answer = service.complete(CLIENT, older, 0)
    assert answer is not None
    assert (answer.base_offset, answer.error) == (-1, None)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (numbered(7), "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (numbered(1, producer_id=6), "UNKNOWN_PRODUCER_ID"),
        (numbered(1, epoch=1), "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (numbered(-1), "INVALID_REQUEST"),
        (numbered(1, epoch=-1), "INVALID_REQUEST"),
    ],
)
def test_frame_out_of_its_sequence_is_refused_by_name(frame: pa.Buffer, code: str) -> None:
    """Nothing is appended after a gap."""
    hosted = Hosted()
    service = ProduceService(hosted.registry, now_ms=lambda: NOW_MS)
    produced(service, numbered(0))
    assert code_of(produced(service, frame)) == code
    assert hosted.only.log.log_end_offset == 1


def test_older_epoch_of_a_producer_is_refused() -> None:
    """A late frame from before the producer's new epoch must not count."""
    hosted = Hosted()
    service = ProduceService(hosted.registry, now_ms=lambda: NOW_MS)
    produced(service, numbered(0))
    assert produced(service, numbered(0, epoch=1)).base_offset == 1  # type: ignore[union-attr]
    assert code_of(produced(service, numbered(1))) == "INVALID_PRODUCER_EPOCH"


def test_producer_ids_are_assigned_once_by_all_brokers() -> None:
    """Blocks are claimed by compare-and-set; a restarted broker takes a new one."""
    zookeeper = MemoryZooKeeper()
    first, second = (ProducerIdService(zookeeper.client()) for _ in range(2))
    ids = [service.init_producer_id(CLIENT, InitProducerIdRequest()).producer_id for service in (first, second) * 1500]
    ids.append(ProducerIdService(zookeeper.client()).init_producer_id(CLIENT, InitProducerIdRequest()).producer_id)
    assert len(set(ids)) == 3001
    assert set(ids) <= set(range(5 * BLOCK_SIZE))


def test_remaining_producer_ids_are_assigned_while_zookeeper_is_away() -> None:
    """One id in a thousand needs ZooKeeper; then the error is retriable."""
    client = MemoryZooKeeper().client()
    service = ProducerIdService(client)
    service.init_producer_id(CLIENT, InitProducerIdRequest())
    client.suspend()
    for _ in range(BLOCK_SIZE - 1):
        service.init_producer_id(CLIENT, InitProducerIdRequest())
    with pytest.raises(ZooKeeperUnavailableError):
        service.init_producer_id(CLIENT, InitProducerIdRequest())
    client.resume()
    assert service.init_producer_id(CLIENT, InitProducerIdRequest()).producer_id == BLOCK_SIZE


def test_frame_of_an_unassigned_id_is_refused_and_does_not_fence_its_later_owner() -> None:
    """Another client cannot use an id, with the highest epoch, before its owner does."""
    hosted = Hosted()
    ids = ProducerIdService(MemoryZooKeeper().client())
    service = ProduceService(hosted.registry, now_ms=lambda: NOW_MS, require_given_out=ids.require_given_out)
    assert code_of(produced(service, numbered(0, producer_id=0, epoch=32_000))) == "INVALID_REQUEST"
    assert hosted.only.log.log_end_offset == 0
    given = ids.init_producer_id(CLIENT, InitProducerIdRequest()).producer_id
    assert given == 0
    owned = produced(service, numbered(0, producer_id=given))
    assert owned is not None
    assert owned.error is None
