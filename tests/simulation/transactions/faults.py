"""What goes wrong with writers, beside what goes wrong with brokers (`partitions.faults`)."""

from __future__ import annotations

from collections.abc import Callable

from broker_runtime.contract.transactions import AbortTransactionsRequest
from tests.callers import CLIENT
from tests.simulation.partitions.faults import Faults as BrokerFaults
from tests.simulation.simulator.faults import FaultInjector
from tests.simulation.simulator.scheduler import MS, SECOND
from tests.simulation.transactions.plan import WRITERS, Plan
from tests.simulation.transactions.query import Driver, Query
from tests.simulation.transactions.world import World

_MOST_DRIVERS, _MOST_PROCESSES = 3, 3


class Faults(FaultInjector):
    """See the module."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, interval_us=plan.writer_fault_interval_us)
        self._world = world
        of_brokers = [kind for kind in plan.faults if kind not in WRITERS]
        self._of_brokers = BrokerFaults(world, kinds=of_brokers, interval_us=plan.fault_interval_us)
        known: dict[str, Callable[[], None]] = {
            "driver killed": self._kill_driver,
            "executor killed": self._kill_executor,
            "driver stands still": self._pause_driver,
            "executor stands still": self._pause_executor,
            "checkpoint copied": self._copy_checkpoint,
            "checkpoint rewound": self._rewind_checkpoint,
            "transactions aborted": self._abort_transactions,
            "process taken over from": self._take_over,
            "process killed": self._kill_process,
            "writer cut off": self._cut_off,
            "driver killed after a decision": self._kill_driver_after_decision,
            "broker killed after a decision": self._kill_broker_after_decision,
        }
        self._kinds = [known[kind] for kind in plan.faults if kind in WRITERS]
        if self._kinds:
            self.begin()

    def heal(self) -> None:
        """Nothing goes wrong any more, with brokers either."""
        super().heal()
        self._of_brokers.heal()

    def strike(self) -> None:
        """One kind, on one writer."""
        self._rng.choice(self._kinds)()

    # --- queries --------------------------------------------------------------------------------------------------

    def _query(self) -> Query:
        return self._rng.choice(self._world.queries)

    def _driver(self) -> Driver:
        drivers = [driver for query in self._world.queries for driver in query.drivers if not driver.is_ended]
        return self._rng.choice(drivers)

    def _kill_driver(self) -> None:
        driver = self._driver()
        self._trace.fault("driver killed", driver.name)
        driver.kill(self._between(200 * MS, 3 * SECOND))

    def _kill_driver_after_decision(self) -> None:
        """Before it knows of it, or has noted it."""
        driver, delay_us = self._driver(), self._between(0, 4 * MS)

        def kill() -> None:
            if not driver.is_ended:
                self._trace.fault("driver killed after a decision", driver.name)
                driver.kill(self._between(200 * MS, 2 * SECOND))

        self._world.on_next_decision.append((driver.query.name, lambda broker: self._later(delay_us, kill)))

    def _kill_broker_after_decision(self) -> None:
        """Whoever has just written one, and before all partitions know of it."""
        name = self._rng.choice([each.name for each in (*self._world.queries, *self._world.transfers)])

        def kill(broker: str) -> None:
            node = next((node for node in self._world.nodes.values() if node.actor == broker), None)
            if node is not None and node.life is not None:
                self._trace.fault("broker killed after a decision", broker)
                node.kill(power_lost=False)
                node.start(self._between(200 * MS, 5 * SECOND))

        delay_us = self._between(0, 3 * MS)
        self._world.on_next_decision.append((name, lambda broker: self._later(delay_us, lambda: kill(broker))))

    def _pause_driver(self) -> None:
        driver, duration_us = self._driver(), self._between(200 * MS, 9 * SECOND)
        self._trace.fault("driver stands still", driver.name, f"{duration_us / SECOND:.1f} s")
        self._scheduler.pause(driver.name, duration_us)

    def _kill_executor(self) -> None:
        executor = self._rng.choice(self._world.executors)
        self._trace.fault("executor killed", executor.name)
        executor.kill()

    def _pause_executor(self) -> None:
        executor, duration_us = self._rng.choice(self._world.executors), self._between(200 * MS, 9 * SECOND)
        self._trace.fault("executor stands still", executor.name, f"{duration_us / SECOND:.1f} s")
        self._scheduler.pause(executor.name, duration_us)

    def _copy_checkpoint(self) -> None:
        """Somebody starts the query a second time, on a copy of its checkpoint."""
        query = self._query()
        if len(query.drivers) < _MOST_DRIVERS:
            driver = query.add_driver(query.newest.checkpoint.copy())
            self._trace.fault("checkpoint copied", driver.name)

    def _rewind_checkpoint(self) -> None:
        """The query is restarted from its checkpoint of some batches ago, which may have the plan of the next one."""
        driver = self._query().newest
        present = driver.checkpoint
        batches = self._rng.randint(1, 2)
        if present.committed < batches:
            return
        self._trace.fault("checkpoint rewound", driver.name, f"by {batches} from batch {present.committed}")
        rewound = present.copy()
        rewound.committed -= batches
        rewound.ends = rewound.ends[: rewound.committed + 1 + self._rng.randint(0, 1)]
        driver.kill(self._between(200 * MS, 2 * SECOND))
        driver.checkpoint = rewound

    # --- producers ------------------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        for transfer in self._world.transfers:
            if not transfer.is_done and len(transfer.processes) < _MOST_PROCESSES:
                self._trace.fault("process taken over from", transfer.name)
                if self._rng.random() < 0.5:
                    self._scheduler.pause(transfer.processes[-1].name, self._between(SECOND, 6 * SECOND))
                transfer.add_process()

    def _kill_process(self) -> None:
        for transfer in self._world.transfers:
            process = transfer.processes[-1]
            self._trace.fault("process killed", process.name)
            process.kill(self._between(200 * MS, 3 * SECOND))

    # --- both -----------------------------------------------------------------------------------------------------

    def _abort_transactions(self) -> None:
        """An administrator aborts whatever is open of a transactional id."""
        name = self._rng.choice([each.name for each in (*self._world.queries, *self._world.transfers)])
        self._trace.fault("transactions aborted", "adm", name)
        request = AbortTransactionsRequest(transactional_id=name)
        self._world.call(
            "adm",
            self._rng.choice(sorted(self._world.nodes)),
            lambda life, reply: reply(life.transactions.service.abort_transactions(CLIENT, request)),  # type: ignore[attr-defined]
            on_answer=lambda answer: None,
            on_failure=lambda reason: None,
            timeout_us=5 * SECOND,
        )

    def _cut_off(self) -> None:
        world = self._world
        writers = [
            *(executor.name for executor in world.executors),
            *(query.newest.name for query in world.queries),
            *(transfer.processes[-1].name for transfer in world.transfers),
        ]
        writer = self._rng.choice(writers)
        others = [node.actor for node in world.nodes.values()]
        others = self._rng.sample(others, self._rng.randint(1, len(others)))
        self._trace.fault("writer cut off", writer, f"from {', '.join(others)}")
        world.network.isolate(writer, others)
        self._later(self._between(300 * MS, 9 * SECOND), lambda: world.network.rejoin(writer, others))
