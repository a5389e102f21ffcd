"""The ceilings on the network: a Flight server with nothing but memory and one file behind it, in its own process.

    DoPut  ``sync``        batches are written to a file; one thread fdatasyncs whatever has been written since its last
                           time, then says how many batches are safe (group commit, as a log does it)
    DoPut  ``roundtrip``   each batch is written, fdatasynced and answered before the next is read
    DoGet  ``count size``  ``count`` batches of one binary cell of ``size`` bytes, from memory, by Arrow's own C++ loop

Rule: it checks, indexes and copies nothing. It ends when its standard input does, so it cannot outlive the bench.
``python -m bench.bare_flight FILE`` prints its port.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

import pyarrow as pa
from pyarrow import flight

CELL = pa.schema([("frames", pa.binary())])


class _Server(flight.FlightServerBase):
    def __init__(self, file: Path) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._file = file
        self._cells: dict[int, pa.RecordBatch] = {}

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        descriptor_number = os.open(self._file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        try:
            if descriptor.command == b"roundtrip":
                for chunk in reader:
                    _append(descriptor_number, chunk.data)
                    os.fdatasync(descriptor_number)
                    writer.write(b"1")
            else:
                _write_with_group_commit(descriptor_number, reader, writer)
        finally:
            os.close(descriptor_number)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.RecordBatchStream:
        count, size = map(int, ticket.ticket.split())
        cell = self._cells.get(size)
        if cell is None:
            cell = self._cells[size] = pa.RecordBatch.from_arrays([pa.array([os.urandom(size)])], schema=CELL)
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(CELL, [cell] * count))


def _append(file: int, batch: pa.RecordBatch) -> None:
    os.writev(file, [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None])


def _write_with_group_commit(
    file: int, reader: flight.MetadataRecordBatchReader, writer: flight.FlightMetadataWriter
) -> None:
    state = threading.Condition()
    written = 0
    ended = False

    def make_safe() -> None:
        safe = 0
        while True:
            with state:
                while written == safe:
                    if ended:
                        return
                    state.wait()
                now_written = written
            os.fdatasync(file)
            safe = now_written
            writer.write(str(safe).encode())

    syncing = threading.Thread(target=make_safe, name="fdatasync")
    syncing.start()
    try:
        for chunk in reader:
            _append(file, chunk.data)
            with state:
                written += 1
                state.notify()
    finally:
        with state:
            ended = True
            state.notify()
        syncing.join()


class BareFlight:
    """The server's process and a client of it; a context manager."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "bare-flight.log"

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.bare_flight", str(self._file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        port = int(self._process.stdout.readline())
        self.client = flight.connect(f"grpc://127.0.0.1:{port}")
        return self

    def __exit__(self, *exception: object) -> None:
        self.client.close()
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._file.unlink(missing_ok=True)

    def put(self, batches: list[pa.RecordBatch]) -> None:
        """Sends ``batches`` in one DoPut and returns once the server has fdatasynced them all."""
        writer, answers = self.client.do_put(flight.FlightDescriptor.for_command(b"sync"), batches[0].schema)
        with writer:
            for batch in batches:
                writer.write_batch(batch)
            writer.done_writing()
            safe = 0
            while safe < len(batches):
                safe = int(answers.read().to_pybytes())

    def round_trips(self) -> RoundTrips:
        return RoundTrips(self.client)

    def get(self, count: int, size: int) -> int:
        """Reads ``count`` cells of ``size`` bytes; returns the bytes read."""
        total = 0
        for chunk in self.client.do_get(flight.Ticket(f"{count} {size}".encode())):
            total += chunk.data.nbytes
        return total


class RoundTrips:
    """An open DoPut: each call sends one batch and waits for its answer. A context manager."""

    def __init__(self, client: flight.FlightClient) -> None:
        self._writer, self._answers = client.do_put(flight.FlightDescriptor.for_command(b"roundtrip"), CELL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.done_writing()
        self._writer.close()

    def once(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self._answers.read()


def _serve(file: Path) -> None:
    server = _Server(file)
    print(server.port, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
