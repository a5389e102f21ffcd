"""A proxy in the environment, as on machines that need one for the web, is ignored by brokers and clients."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from pyspark_log import Admin, Consumer, Producer
from pyspark_log.errors import BrokerUnavailableError, NotAPylogBrokerError
from pyspark_log.testing import LocalCluster

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class RefusingProxy:
    """Accepts connections, records the first request of each, and closes them."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            self.asked.append(b"")
            with (
                connection,
                contextlib.suppress(OSError),
            ):  # a client that was refused before may have given up the connection
                self.asked[-1] = connection.recv(1_000)
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[RefusingProxy]:
    """A proxy in the environment of this process and of all its children."""
    made = RefusingProxy()
    for name in VARIABLES:
        monkeypatch.setenv(name, f"http://{made.address}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("GRPC_ADDRESS_HTTP_PROXY", made.address)
    monkeypatch.setenv("GRPC_ADDRESS_HTTP_PROXY_ENABLED_ADDRESSES", "127.0.0.0/8")
    yield made
    made.close()


def test_proxy_in_the_environment_is_ignored_unless_a_setting_names_it(proxy: RefusingProxy) -> None:
    """Three brokers replicate, and a producer, a consumer and `pylog` reach them; only a setting makes a client use
    the proxy.
    """
    with LocalCluster(brokers=3) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", replication_factor=3)
        with Producer(cluster.bootstrap_servers, acks="all", delivery_timeout_ms=20_000) as producer:
            for future in [producer.send("t", str(number).encode()) for number in range(100)]:
                future.result(20)
        with Consumer("t", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            found = 0
            while found < 100:
                found += len(consumer.poll(10))
        listed = subprocess.run(
            [
                sys.executable,
                "-m",
                "pyspark_log.cli",
                "topic",
                "list",
                "-b",
                cluster.bootstrap_servers,
                "--timeout",
                "30",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (listed.returncode, "t" in listed.stdout.split()) == (0, True), listed
        assert proxy.asked == []
        with (
            pytest.raises((BrokerUnavailableError, NotAPylogBrokerError), match="go through the proxy that grpc_proxy"),
            Admin(cluster.bootstrap_servers.split(",")[0], enable_http_proxy=True, request_timeout_ms=3_000) as admin,
        ):
            admin.list_topics()
        assert any(proxy.asked)
        assert all(asked.startswith(b"CONNECT 127.0.0.1:") for asked in proxy.asked if asked)
