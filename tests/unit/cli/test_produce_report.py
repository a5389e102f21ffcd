"""What a failed `produce` reports about its records."""

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from broker_runtime.contract.errors import DeliveryTimeoutError, NotEnoughReplicasError, PylogError, RecordTooLargeError
from pyspark_log.cli.records.produce import _Sender, _Sending
from pyspark_log.cli.records.produce_inputs import InputRecord, Unit
from pyspark_log.cli.records.skip import parse_skip
from pyspark_log.client.producer.delivery import Delivery, RecordFuture
from pyspark_log.local.foreground import Ending, ending_between


class NoProducer:
    """A producer that has settled all of its records."""

    def flush(self, timeout: float | None = None) -> None:
        pass


def outcome(error: PylogError | None, count: int = 1) -> Delivery:
    delivery = Delivery("t", 0, base_timestamp_ms=0)
    delivery.count = count
    delivery.finish(base_offset=0, error=error)
    return delivery


TIMEOUT, REFUSED = DeliveryTimeoutError("late"), RecordTooLargeError("large")


@pytest.mark.parametrize(
    ("outcomes", "skip", "acks", "said"),
    [
        ([None, None, REFUSED], "0", "all", "The first 2 records of the input are in the log. To send the rest"),
        ([None, REFUSED], "0", "all", "The first record of the input is in the log. To send the rest: --skip 1"),
        (
            [REFUSED, None],
            "0",
            "all",
            "1 record of the input, but not the first, is in the log. To send the rest: --skip 2-2",
        ),
        ([None, TIMEOUT, None], "0", "all", "in the log; 1 more were sent and may or may not be in the log"),
        ([None, TIMEOUT, None], "0", "all", "--skip 1-1,3-3"),
        ([REFUSED], "0", "all", "No record was written"),
        ([TIMEOUT], "0", "all", "No record was acknowledged; 1 more were sent and may or may not be in the log"),
        ([NotEnoughReplicasError("few")], "0", "all", "may or may not be in the log"),
        (
            [None, REFUSED],
            "3",
            "all",
            "The first 4 records of the input are in the log. To send the rest: --skip 4",
        ),
        ([REFUSED], "3", "all", "No record was written. To send the rest: --skip 3"),
        ([None, None], "0", "0", "With acks=0 it is unknown"),
    ],
)
def test_report_distinguishes_acknowledged_records(
    outcomes: list[PylogError | None], skip: str, acks: str, said: str
) -> None:
    """Only acknowledged records count as being in the log; records in doubt are reported as such."""
    skipped = parse_skip(skip)
    sending = _Sending(skipped, Ending(), acks=acks)
    for number, error in enumerate(outcomes, len(skipped) + 1):
        try:
            sending.add(number, f"line {number}", RecordFuture((outcome(error), 0)))
        except PylogError as raised:
            assert raised.message.startswith("line ")  # noqa: PT017 - later ones were sent meanwhile
    assert said in sending.report(NoProducer())  # type: ignore[arg-type]


def test_report_of_batches_counts_rows_by_their_frames() -> None:
    """The rows of a batch for several partitions are counted by acknowledged frame."""
    sending = _Sending(parse_skip("1-2"), Ending(), acks="all")
    good, bad = outcome(None, 2), outcome(REFUSED, 2)
    good.rows, bad.rows = (0, [0, 2]), (0, range(1, 4, 2))
    sending.add_batch([3, 4, 5, 6], [good, bad])
    with pytest.raises(RecordTooLargeError):
        sending.finish()
    assert "The first 3 records of the input and 1 of the later ones" in (said := sending.report(NoProducer()))  # type: ignore[arg-type]
    assert "--skip 1-3,5-5" in said


def test_record_during_which_a_signal_came_is_counted() -> None:
    """It was taken by the producer, and is sent."""
    with ending_between() as ending:
        sending = _Sending(parse_skip("0"), ending, acks="all")
        sending.add(1, "line 1", RecordFuture((outcome(None), 0)))
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            sending.add(2, "line 2", RecordFuture((outcome(None), 0)))
        assert "The first 2 records of the input are in the log" in sending.report(NoProducer())  # type: ignore[arg-type]


def test_batch_before_which_a_signal_came_is_not_sent() -> None:
    with ending_between() as ending:
        sending = _Sending(parse_skip("0"), ending, acks="all")
        good = outcome(None, 2)
        good.rows = (0, range(2))
        sending.add_batch([1, 2], [good])
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            sending.add_batch([3, 4], [])
        assert "--skip 2" in sending.report(NoProducer())  # type: ignore[arg-type]


def test_signal_interrupts_reading_at_once_and_sending_never() -> None:
    """What is read is not sent yet; what is being sent has to be counted first."""
    seen: list[tuple[str, bool]] = []

    class Reading:
        def __iter__(self) -> Iterator[Unit]:
            for number in (1, 2):
                seen.append(("read", ending.at_once))
                yield Unit(f"line {number}", b"x")

    class Sending:
        def send(self, *given: object, **more: object) -> RecordFuture:
            seen.append(("send", ending.at_once))
            return RecordFuture((outcome(None), 0))

    topic: Any = SimpleNamespace(name="t")
    producer: Any = Sending()
    with ending_between() as ending:
        sending = _Sending(parse_skip("0"), ending, acks="all")
        sender = _Sender(producer, topic, None, sending, lambda records: None, ending, keeps_partition=False)
        sender.send_records(iter(Reading()), lambda content: InputRecord(content))
        assert not ending.at_once
    assert seen == [("read", True), ("send", False)] * 2
