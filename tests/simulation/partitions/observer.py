"""Observes everything that happens: puts it into the trace first, then shows it to the checker."""

from __future__ import annotations

import pyarrow as pa

from broker_runtime.contract.requests import ListOffsetsRequest, ListOffsetsResponse
from broker_runtime.contract.streams import FetchRequest, ProduceRequest, ProduceResponse
from tests.simulation.partitions.broker.node import Node
from tests.simulation.partitions.broker.serving import Fetched
from tests.simulation.partitions.history import History, body_of
from tests.simulation.partitions.invariants import Invariants
from tests.simulation.partitions.states import StateChange
from tests.simulation.simulator.trace import Trace


class TracingObserver:
    """A `NodeObserver` that observes the states of partitions in ZooKeeper too."""

    def __init__(self, trace: Trace, invariants: Invariants, history: History) -> None:
        self._trace = trace
        self._invariants = invariants
        self._history = history

    def observe(self, node: Node) -> None:
        """See `NodeObserver`."""
        self._invariants.observe(node)

    def situation(self, name: str) -> None:
        """See `Observer`."""
        self._trace.situation(name)

    def died(self, node: Node) -> None:
        """See `NodeObserver`."""
        self._invariants.died(node)

    def acknowledged(self, broker_id: int, request: ProduceRequest, frame: pa.Buffer, answer: ProduceResponse) -> None:
        """See `Observer`."""
        batch = self._history.batches[body_of(frame)]
        self._trace.line(f"b{broker_id}", f"acknowledges {batch} at {batch.at}@{answer.base_offset}")
        self._invariants.acknowledged(broker_id, request, frame, answer)

    def served(self, broker_id: int, request: FetchRequest, answer: Fetched) -> None:
        """See `Observer`."""
        for each in answer.response.partitions:
            if each.row >= 0:
                upto = f"{each.topic}-{each.partition} up to {each.next_offset} of {each.high_watermark}"
                self._trace.line(f"b{broker_id}", f"serves {upto}")
        self._invariants.served(broker_id, request, answer)

    def offsets_listed(self, broker_id: int, request: ListOffsetsRequest, answer: ListOffsetsResponse) -> None:
        """See `Observer`."""
        self._invariants.offsets_listed(broker_id, request, answer)

    def state_changed(self, change: StateChange) -> None:
        """A partition's state was written."""
        after = change.after
        self._trace.line(
            "zk", f"{change.at}: leader {after.leader}, epoch {after.leader_epoch}, in sync {list(after.isr)}"
        )
        self._invariants.state_changed(change)

    def registered(self, broker_id: int) -> None:
        """A broker's registration was made."""
        self._invariants.registered(broker_id)
