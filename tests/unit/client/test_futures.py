"""The futures of `Producer.send` and `send_batch`, used as asyncio and `concurrent.futures` use futures."""

import asyncio
import concurrent.futures
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from broker_runtime.contract.errors import NotEnoughReplicasError
from pyspark_log.client.producer.delivery import BatchFuture, Delivery, RecordFuture

MAKERS: list[Callable[[Delivery], Future]] = [
    lambda delivery: RecordFuture((delivery, 0)),
    lambda delivery: BatchFuture([delivery]),
]
kinds = pytest.mark.parametrize("make", MAKERS, ids=["record", "batch"])


def a_delivery(topic: str = "t") -> Delivery:
    """The delivery of a frame with one record that is still in flight."""
    delivery = Delivery(topic, 0, base_timestamp_ms=5)
    delivery.count = 1
    return delivery


@kinds
def test_future_is_awaitable_before_and_after_it_is_done(make: Callable[[Delivery], Future]) -> None:
    """`await producer.send(…)` returns what `result` returns, and may be repeated."""

    async def main() -> None:
        delivery = a_delivery()
        future = make(delivery)
        asyncio.get_running_loop().call_later(0.01, lambda: threading.Thread(target=delivery.finish).start())
        assert await future == future.result()
        assert await future == await asyncio.wait_for(future, 1)
        assert await asyncio.gather(future, future) == [future.result()] * 2

    asyncio.run(main())


@kinds
def test_awaiting_raises_the_delivery_error(make: Callable[[Delivery], Future]) -> None:
    """The frame's error is raised where it is awaited, also through `asyncio.wrap_future`."""

    async def main() -> None:
        delivery = a_delivery()
        asyncio.get_running_loop().call_later(0.01, lambda: delivery.finish(error=NotEnoughReplicasError("one of two")))
        with pytest.raises(NotEnoughReplicasError):
            await make(delivery)
        with pytest.raises(NotEnoughReplicasError):
            await asyncio.wrap_future(make(delivery))

    asyncio.run(main())


@kinds
def test_wrapped_future_gives_the_result(make: Callable[[Delivery], Future]) -> None:
    """`asyncio.wrap_future` accepts it as a future of `concurrent.futures`."""

    async def main() -> None:
        delivery = a_delivery()
        wrapped = asyncio.wrap_future(make(delivery))
        delivery.finish(base_offset=7)
        assert await wrapped == make(delivery).result()

    asyncio.run(main())


@kinds
def test_cancelled_wait_leaves_the_record_in_flight(make: Callable[[Delivery], Future]) -> None:
    """Cancelling a wait stops nothing else: a sent record cannot be cancelled, and its outcome is harmless."""

    async def main() -> None:
        delivery = a_delivery()
        future = make(delivery)
        wrapped = asyncio.wrap_future(future)
        wrapped.cancel()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.01)
        await asyncio.sleep(0)
        assert (future.cancel(), future.cancelled(), future.running(), future.done()) == (False, False, True, False)
        delivery.finish(base_offset=7)
        assert await future == future.result()

    asyncio.run(main())


@kinds
def test_outcome_after_the_loop_was_closed_is_no_error(
    make: Callable[[Delivery], Future], caplog: pytest.LogCaptureFixture
) -> None:
    """A record acknowledged after its event loop was closed calls nothing back and logs nothing."""
    delivery = a_delivery()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(make(delivery), 0.01)

    asyncio.run(main())
    delivery.finish()
    assert caplog.text == ""


@kinds
def test_wait_and_as_completed_take_it(make: Callable[[Delivery], Future]) -> None:
    """`concurrent.futures.wait` and `as_completed` work with done, pending and failed futures, and see pending ones
    finish.
    """
    done, failed, pending, later = (a_delivery(name) for name in "abcd")
    done.finish()
    failed.finish(error=NotEnoughReplicasError("one of two"))
    futures = [make(delivery) for delivery in (done, failed, pending, later)]
    found = concurrent.futures.wait(futures, timeout=0)
    assert found.done == set(futures[:2])
    assert found.not_done == set(futures[2:])
    threading.Timer(0.01, later.finish).start()
    found = concurrent.futures.wait(futures[2:], timeout=5, return_when=concurrent.futures.FIRST_COMPLETED)
    assert found.done == {futures[3]}
    threading.Timer(0.01, lambda: pending.finish(error=NotEnoughReplicasError("one of two"))).start()
    assert set(concurrent.futures.as_completed(futures, timeout=5)) == set(futures)
    first_error = concurrent.futures.wait(futures, timeout=5, return_when=concurrent.futures.FIRST_EXCEPTION)
    assert not first_error.not_done


@kinds
def test_equal_futures_of_one_record_are_waited_for_together(make: Callable[[Delivery], Future]) -> None:
    """Two calls of `wait` with the same future, one after the other, both end."""
    delivery = a_delivery()
    future = make(delivery)
    assert not concurrent.futures.wait([future, future], timeout=0).done
    delivery.finish()
    assert concurrent.futures.wait([future, future], timeout=0).done == {future}


@kinds
def test_outcome_belongs_to_the_producer(make: Callable[[Delivery], Future]) -> None:
    """Only the producer sets a record's outcome."""
    future = make(a_delivery())
    for change in (lambda: future.set_result(None), lambda: future.set_exception(ValueError())):
        with pytest.raises(concurrent.futures.InvalidStateError):
            change()
    assert future.set_running_or_notify_cancel()
    assert not future.done()


@kinds
def test_many_threads_may_wait_while_it_is_settled(make: Callable[[Delivery], Future]) -> None:
    """No waiter is missed, even if it begins at the very moment of the outcome."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            delivery = a_delivery()
            future = make(delivery)
            called: list[Future] = []
            future.add_done_callback(called.append)
            waiters = [
                threading.Thread(
                    target=lambda f, to: to.extend(concurrent.futures.wait([f]).done), args=(future, called)
                )
                for _ in range(3)
            ]
            for waiter in waiters:
                waiter.start()
            delivery.finish()
            for waiter in waiters:
                waiter.join()
            assert called == [future] * 4
    finally:
        sys.setswitchinterval(interval_s)
