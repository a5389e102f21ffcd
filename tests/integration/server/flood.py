"""``python tests/integration/server/flood.py PORT CONNECTIONS CALLS given-up|served|METHOD``: calls as fast as they are
accepted.

Uses that many connections at once and replaces those that are cut, until CALLS were sent in all or 15 s are over.
given-up: each call is reset as soon as it has begun. The name of a method: its calls begin, and nothing follows. Prints
the number of calls and of cut connections.
"""

from __future__ import annotations

import select
import struct
import sys
import threading
import time

from broker_runtime.contract.flight import encode_action
from broker_runtime.contract.requests import MetadataRequest
from tests.integration.server.raw_grpc import Connection, bytes_field

_RST_STREAM, _CANCEL = 3, 8
_LIMIT_S = 15.0
_METHODS = ("DoGet", "DoPut", "DoExchange", "DoAction")


def flood(port: int, connections: int, calls: int, kind: str) -> tuple[int, int]:
    """Returns the number of calls sent and of cut connections."""
    action = encode_action("metadata", MetadataRequest(topics=()))
    message = bytes_field(1, action.type.encode()) + bytes_field(2, bytes(action.body))
    until_s = time.monotonic() + _LIMIT_S
    sent, cuts = [0] * connections, [0] * connections

    def run(number: int) -> None:
        while sum(sent) < calls and time.monotonic() < until_s:
            try:
                connection = Connection(port)
            except OSError:
                continue
            while not connection.is_broken and sum(sent) < calls and time.monotonic() < until_s:
                if kind == "given-up":
                    stream = connection._next_stream
                    connection.call(_METHODS[sent[number] % 4], [], end=False)
                    connection.send_raw(struct.pack(">BHBBII", 0, 4, _RST_STREAM, 0, stream, _CANCEL))
                elif kind == "served":
                    connection.call("DoAction", [message])
                else:
                    connection.call(kind, [], end=False)
                sent[number] += 1
                if sent[number] % 10 == 0 and select.select([connection.socket], [], [], 0)[0]:
                    try:
                        connection.is_broken = connection.is_broken or not connection.socket.recv(1 << 18)
                    except OSError:
                        connection.is_broken = True
            cuts[number] += connection.is_broken
            connection.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(sent), sum(cuts)


if __name__ == "__main__":
    print(*flood(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
