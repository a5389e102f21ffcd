"""A broker process for tests, and actions sent to it without the client."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
from pyarrow import flight

from broker_runtime.contract.actions import ACTIONS
from broker_runtime.contract.flight import STREAM_OPTIONS, decode_result, encode_action, from_flight_error
from pyspark_log.local import broker_process
from tests.waiting import wait_until

LIMIT_S = 60.0


class RunningBroker:
    """One broker process that can be restarted on the same port."""

    def __init__(self, directory: Path, zookeeper: str, **settings):
        self.directory = directory
        self.zookeeper = zookeeper
        self.settings = settings
        self.program = ["-m", "broker_runtime"]
        self.port = 0
        self.process = None
        self.client = None
        self.ready = {}  # what it wrote when it served

    @property
    def output(self) -> str:
        return (self.directory / "broker.out").read_text()

    def launch(self):
        """Starts the process without waiting until it serves."""
        self.directory.mkdir(parents=True, exist_ok=True)
        ready = self.directory / "ready.json"
        ready.unlink(missing_ok=True)
        settings = {
            "broker.id": 1,
            "listeners": f"127.0.0.1:{self.port}",
            "log.dirs": str(self.directory / "log"),
            "zookeeper.connect": self.zookeeper,
            "log.dir.min.free.bytes": 0,
            **self.settings,
        }
        config = self.directory / "broker.toml"
        config.write_text("".join(f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in settings.items()))
        command = [sys.executable, "-P", *self.program, "--config", config, "--ready-file", ready]
        self.process = broker_process.GuardedProcess(command, output=self.directory / "broker.out")
        return ready

    def start(self):
        """Starts the process and returns when it serves."""
        ready = self.launch()
        wait_until(lambda: ready.exists() or self.process.poll() is not None, f"ready: {self.output}")
        assert self.process.poll() is None, self.output
        self.ready = json.loads(ready.read_text())
        assert self.ready["pid"] == self.process.pid
        self.port = self.ready["port"]
        return self

    def exit_code(self):
        code = self.process.wait(LIMIT_S)
        assert code is not None, f"still running: {self.output}"
        return code

    def stop(self):
        """Sends SIGTERM; returns the exit code."""
        self.close_client()
        self.process.signal(signal.SIGTERM)
        return self.exit_code()

    def kill(self):
        """Sends SIGKILL."""
        self.close_client()
        self.process.signal(signal.SIGKILL)
        self.exit_code()

    def close_client(self):
        if self.client is not None:
            self.client.close()
            self.client = None

    def close(self):
        self.close_client()
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)
            self.process.stop(20)

    def call(self, action, /, **fields):
        """Sends one action; raises pylog's own error."""
        kind = ACTIONS[action].request
        options = flight.FlightCallOptions(timeout=LIMIT_S)
        with self._translating():
            (result,) = self._connected().do_action(encode_action(action, kind(**fields)), options)
        return decode_result(action, result.body)

    def topic(self, name, /, **fields):
        """The topic's description."""
        return self.call("metadata", topics=(name,), **fields).topics[0]

    def produce(self, topic, values, partition=0):
        """Appends records with these values; returns when they are acknowledged."""
        schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
        table = pa.table({"key": pa.nulls(len(values), pa.binary()), "value": pa.array(values, pa.binary())}, schema)
        descriptor = flight.FlightDescriptor.for_path(topic, str(partition))
        with self._translating():
            writer, _ = self._connected().do_put(descriptor, schema, flight.FlightCallOptions(timeout=LIMIT_S))
            writer.write_table(table)
            writer.done_writing()
            writer.close()

    def consume(self, topic, partition=0):
        """All values of a partition."""
        with self._translating():
            info = self._connected().get_flight_info(flight.FlightDescriptor.for_path(topic))
            ticket = info.endpoints[partition].ticket
            reader = self._connected().do_get(ticket, flight.FlightCallOptions(timeout=LIMIT_S))
            return reader.read_all()["value"].to_pylist()

    def _connected(self):
        if self.client is None:
            self.client = flight.connect(f"grpc://127.0.0.1:{self.port}", generic_options=STREAM_OPTIONS)
        return self.client

    @contextlib.contextmanager
    def _translating(self):
        try:
            yield
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise from_flight_error(error, f"127.0.0.1:{self.port}") from None
