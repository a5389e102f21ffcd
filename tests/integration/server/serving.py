"""A process that serves Flight over real logs in a directory, without ZooKeeper; and what tests need to talk to it."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import json
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from broker_runtime.contract import requests, streams
from broker_runtime.contract.actions import ACTIONS
from broker_runtime.contract.flight import STREAM_OPTIONS, decode_result, encode_action, from_flight_error
from broker_runtime.contract.frame import encode_frame
from broker_runtime.contract.schema import SchemaHistory, TopicSchema
from broker_runtime.memory import arrow_environment
from broker_runtime.zookeeper.guarded_process import GuardedProcess
from tests.fork_server import CAN_FORK, ForkedProcess, ForkServer
from tests.waiting import wait_until

MEMORY_BYTES = 1 << 30
_START_LIMIT_S = 60.0
CLUSTER_ID = "the cluster of the tests"
TYPED = TopicSchema(
    schema_id=0,
    arrow=pa.schema([pa.field("carrier", pa.string()), pa.field("delay", pa.int32())]),
    is_typed=True,
    key=None,
)
TOPICS = {
    "untyped": (uuid.UUID(int=1), 2, TopicSchema.untyped()),
    "typed": (uuid.UUID(int=2), 2, TYPED),
}


class Witness:
    """A service whose calls are recorded: which method, and by whom. Each method takes its `Caller` first."""

    def __init__(self, service: object, noted: dict[str, dict[str, object]]) -> None:
        self._service = service
        self._noted = noted

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._service, name)
        return noting(f"{type(self._service).__name__}.{name}", method, self._noted)


def noting(name: str, call: Callable[..., Any], noted: dict[str, dict[str, object]]) -> Callable[..., Any]:
    """Makes the same call and records its caller under the method's name."""

    def noting_call(caller: Any, *args: Any, **kwargs: Any) -> Any:
        noted[name] = {"type": type(caller).__name__, **dataclasses.asdict(caller)}
        return call(caller, *args, **kwargs)

    return noting_call


def serve(directory: str, max_streams: int, *, notes_callers: bool = False) -> None:
    """Serves until SIGTERM; prints its port as JSON first. `serving` has a process of its own execute it.

    ``notes_callers``: serves every action, most of them with an empty answer, and reports who called what.
    """
    from broker_runtime.contract.errors import StaleBrokerEpochError
    from broker_runtime.contract.settings import Address, resolve
    from broker_runtime.log import LogDirectory
    from broker_runtime.membership.disk_room import DiskRoom
    from broker_runtime.replication import Leadership, Partition, PartitionRegistry
    from broker_runtime.replication.registry import KnownTopic
    from broker_runtime.server.flight import ListenerPlan, PylogFlightServer, Services
    from broker_runtime.services.byte_budget import ByteBudget
    from broker_runtime.services.caller import BrokerCaller, Caller
    from broker_runtime.services.fetch import FetchService
    from broker_runtime.services.plain import PlainService
    from broker_runtime.services.produce import ProduceService
    from broker_runtime.services.read import ReadService
    from tests.integration.server.serving_groups import group_actions

    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    logs = LogDirectory.open(directory, cluster_id="test", broker_id=1)
    room = DiskRoom(logs, min_free_bytes=0, stall_limit_s=60.0)
    registry = PartitionRegistry()
    for name, (topic_id, count, schema) in TOPICS.items():
        known = KnownTopic(topic_id=topic_id.bytes, partition_count=count, schemas=SchemaHistory([schema]))
        registry.know_topic(name, known)
        for number in range(count):
            log = logs.log(name, number, topic_id, resolve("topic", {}))
            partition = Partition(log, broker_id=1, disk=room)
            state = Leadership(leader=1, leader_epoch=3, replicas=(1, 2), in_sync=frozenset({1}))
            partition.become_leader(state)
            registry.host(partition)

    elsewhere = KnownTopic(
        topic_id=bytes(15) + b"\x09", partition_count=1, schemas=SchemaHistory([TopicSchema.untyped()])
    )
    registry.know_topic("elsewhere", elsewhere)

    def metadata(caller: Caller, request: requests.MetadataRequest) -> requests.MetadataResponse:
        return requests.MetadataResponse(
            protocol_version=1,
            software_version="0",
            cluster_id="test",
            controller_id=1,
            brokers=(requests.BrokerInfo(broker_id=1, host="127.0.0.1", port=server.port, epoch=1),),
            topics=tuple(
                requests.TopicInfo(
                    name=name,
                    topic_id=topic_id.bytes,
                    partitions=tuple(
                        requests.PartitionInfo(partition=n, leader=1, leader_epoch=3, replicas=(1,), isr=(1,))
                        for n in range(count)
                    ),
                )
                for name, (topic_id, count, _) in TOPICS.items()
            ),
        )

    def defect(caller: Caller, request: requests.DescribeLogDirsRequest) -> requests.DescribeLogDirsResponse:
        raise ZeroDivisionError("secret of the broker")

    def open_streams(caller: Caller, request: requests.DescribeConfigRequest) -> requests.DescribeConfigResponse:
        kinds = ",".join(server.open_streams)
        reported = {"open": kinds, "most_at_work": str(most_at_work[0]), "callers": json.dumps(noted)}
        return requests.DescribeConfigResponse(
            entries={name: requests.ConfigEntry(value=value, source="test") for name, value in reported.items()}
        )

    noted: dict[str, dict[str, object]] = {}
    at_work: list[int] = []
    most_at_work = [0]

    def work(caller: Caller, request: requests.CreatePartitionsRequest) -> requests.Empty:
        at_work.append(len(request.name))
        most_at_work[0] = max(most_at_work[0], sum(at_work))
        time.sleep(request.total / 1000)
        at_work.remove(len(request.name))
        return requests.Empty()

    def admit_replica(caller: Caller, hello: streams.FetchHello) -> BrokerCaller:
        if hello.replica_id != 2:
            raise StaleBrokerEpochError(f"broker {hello.replica_id} is not registered here")
        return BrokerCaller(
            client_id=caller.client_id,
            address=caller.address,
            broker_id=hello.replica_id,
            broker_epoch=hello.broker_epoch,
        )

    budget = ByteBudget(256 << 20)
    produce: Any = ProduceService(registry)
    read: Any = ReadService(registry, budget=budget)
    fetch: Any = FetchService(registry, max_bytes=55 << 20, budget=budget)
    plain: Any = PlainService(registry, produce=produce, read=read, now_ms=lambda: time.time_ns() // 1_000_000)
    actions: dict[str, Callable[[Caller, Any], Any]] = {
        "metadata": metadata,
        "describe_log_dirs": defect,
        "describe_config": open_streams,
        "create_partitions": work,
        **group_actions(TOPICS),
    }
    if notes_callers:
        produce, read, fetch, plain = (Witness(each, noted) for each in (produce, read, fetch, plain))
        silent = {name: lambda caller, request: requests.Empty() for name in ACTIONS}
        answering = {name: actions[name] for name in ("metadata", "describe_config")}
        actions = {name: noting(name, call, noted) for name, call in {**silent, **answering}.items()}
    server = PylogFlightServer(
        [ListenerPlan(address=Address("127.0.0.1", 0))],
        services=Services(
            cluster_id=CLUSTER_ID,
            produce=produce,
            fetch=fetch,
            read=read,
            plain=plain,
            actions=actions,
            admit_replica=admit_replica,
            produce_budget=ByteBudget(256 << 20),
        ),
        max_streams=max_streams,
        memory_bytes=MEMORY_BYTES,
    )
    print(json.dumps({"port": server.port}), flush=True)
    signal.sigwait({signal.SIGTERM})
    registry.step_down_all()
    began = time.monotonic()
    done = server.stop(10.0)
    print(json.dumps({"stopped": done, "stop_s": time.monotonic() - began}), flush=True)
    logs.close()
    os._exit(0)


@dataclass
class Server:
    """The process, from its tests' side."""

    process: ForkedProcess | GuardedProcess
    port: int
    directory: Path
    log: Path
    output: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def threads(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/task").iterdir())

    @property
    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def most_rss_bytes(self) -> int:
        """The most that it ever had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def connect(self) -> flight.FlightClient:
        return flight.FlightClient(f"grpc://{self.address}", generic_options=STREAM_OPTIONS)

    def act(self, name: str, request: requests.Message) -> requests.Message:
        with self.connect() as client:
            try:
                (result,) = client.do_action(encode_action(name, request), flight.FlightCallOptions(timeout=20))
            except (flight.FlightError, pa.ArrowException) as error:
                raise from_flight_error(error, self.address) from None
            return decode_result(name, result.body)

    def open_streams(self) -> list[str]:
        """The kinds of the streams that are open, sorted."""
        return [kind for kind in self._reported("open").split(",") if kind]

    def most_at_work_bytes(self) -> int:
        """The most memory that requests of concurrent actions had (``create_partitions``)."""
        return int(self._reported("most_at_work"))

    def callers(self) -> dict[str, dict[str, Any]]:
        """The last caller of each method, of a server that records them."""
        reported: dict[str, dict[str, Any]] = json.loads(self._reported("callers"))
        return reported

    def _reported(self, name: str) -> str:
        response = self.act("describe_config", requests.DescribeConfigRequest(broker_id=1))
        assert isinstance(response, requests.DescribeConfigResponse)
        return response.entries[name].value

    def stored_bytes(self) -> dict[str, bytes]:
        """The content of every segment file that is not empty (loading a log creates an empty one)."""
        return {str(path): data for path in sorted(self.directory.rglob("*.log")) if (data := path.read_bytes())}


@contextmanager
def serving(directory: Path, *, max_streams: int = 1000, notes_callers: bool = False) -> Iterator[Server]:
    """The process; killed at the end in any case. ``notes_callers``: see `serve`."""
    log, output = (directory.parent / f"{directory.name}.{name}" for name in ("stderr", "stdout"))
    arguments = [str(directory), str(max_streams), *(["callers"] if notes_callers else [])]
    with Path(os.devnull).open("rb") as nothing, output.open("wb") as said, log.open("wb") as errors:
        files = [nothing.fileno(), said.fileno(), errors.fileno()]
        process = _forks().start(arguments, files=files) if CAN_FORK else _real(arguments, output, log)
    try:
        wait_until(lambda: _port(output) or process.poll() is not None, "it serves", _START_LIMIT_S)
        port = _port(output)
        assert port is not None, output.read_text() + log.read_text()
        yield Server(process, port, directory, log, output)
    finally:
        process.signal(signal.SIGCONT)
        process.stop(0)


def _port(output: Path) -> int | None:
    ports = [json.loads(line)["port"] for line in output.read_text().splitlines() if line.startswith('{"port": ')]
    return ports[0] if ports else None


@functools.cache
def _forks() -> ForkServer:
    forks = ForkServer("serving", **arrow_environment(MEMORY_BYTES))
    atexit.register(forks.close)
    return forks


def _real(arguments: list[str], output: Path, log: Path) -> GuardedProcess:
    command = ["/bin/sh", "-c", 'exec "$@" 2>>"$0"', str(log), sys.executable, __file__, *arguments]
    return GuardedProcess(command, output=output, environment={**os.environ, **arrow_environment(MEMORY_BYTES)})


def untyped_frame(values: list[bytes], timestamp_ms: int = 1_700_000_000_000) -> pa.Buffer:
    """A frame of an untyped topic."""
    return encode_frame(
        pa.record_batch({"value": pa.array(values, pa.binary())}), TOPICS["untyped"][2], timestamps=timestamp_ms
    )


def big_frame(size_bytes: int) -> pa.Buffer:
    """A frame of about that size."""
    return untyped_frame([bytes(size_bytes // 8)] * 8)


def main(arguments: list[str]) -> None:
    """Serves until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    serve(arguments[0], int(arguments[1]), notes_callers=arguments[2:] == ["callers"])


if __name__ == "__main__":
    main(sys.argv[1:])
