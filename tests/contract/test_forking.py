"""Around a fork every link releases its connection, whatever other threads do meanwhile."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from pyarrow import flight

from broker_runtime.contract import forking
from broker_runtime.contract.errors import ClientStateError
from broker_runtime.contract.link import open_client
from broker_runtime.contract.settings import Address

ROOT = Path(__file__).parents[2]
LIMIT_S = 20.0
_MANY = 2_000
_FORKS = 200


class Counting(forking.Forkable):
    """Counts the calls of its hooks."""

    def __init__(self) -> None:
        self.interrupted = self.dropped = 0

    def _interrupt_for_fork(self) -> None:
        self.interrupted += 1

    def _drop_for_fork(self) -> None:
        self.dropped += 1

    def _after_fork_in_child(self) -> None:
        raise AssertionError("nobody forked")


@pytest.fixture
def switching_often() -> Iterator[None]:
    """Switches threads often."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before_s)


def fork_as_parent() -> None:
    """Does what a fork does in the parent."""
    try:
        forking._before_fork()
    finally:
        forking._after_fork_in_parent()


@pytest.mark.usefixtures("switching_often")
def test_fork_reaches_every_client_while_others_open_and_close() -> None:
    """Many threads open and close streams continuously."""
    clients = [Counting() for _ in range(_MANY)]
    for client in clients:
        forking.register(client)
    is_over = threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            another = Counting()
            forking.register(another)
            forking.unregister(another)

    thread = threading.Thread(target=come_and_go, daemon=True)
    thread.start()
    try:
        for _ in range(_FORKS):
            fork_as_parent()
    finally:
        is_over.set()
        thread.join(LIMIT_S)
    assert {(client.interrupted, client.dropped) for client in clients} == {(_FORKS, _FORKS)}
    for client in clients:
        forking.unregister(client)


def test_fork_does_not_reach_a_client_that_was_closed() -> None:
    client = Counting()
    forking.register(client)
    forking.unregister(client)
    fork_as_parent()
    assert (client.interrupted, client.dropped) == (0, 0)


def test_forkable_has_only_the_hooks_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that only starts again in the child needs no hook for the parent."""
    began_again = threading.Event()

    class StartingAgain(forking.Forkable):
        def _after_fork_in_child(self) -> None:
            began_again.set()

    monkeypatch.setattr(forking, "_gate", forking._Gate())
    monkeypatch.setattr(forking, "_live", weakref.WeakSet[forking.Forkable]())
    client = StartingAgain()
    forking.register(client)
    fork_as_parent()
    assert not began_again.is_set()
    forking._after_fork_in_child()
    assert began_again.is_set()


def test_fork_waits_for_current_calls_and_delays_new_ones() -> None:
    """At the moment of the fork no Flight client is being created or used."""
    inside, may_leave, has_left, was_let_in = (threading.Event() for _ in range(4))

    def call() -> None:
        with forking.flight_use():
            inside.set()
            may_leave.wait(LIMIT_S)
            has_left.set()

    def call_later() -> None:
        with forking.flight_use():
            was_let_in.set()

    class Leaving(Counting):
        def _interrupt_for_fork(self) -> None:
            super()._interrupt_for_fork()
            may_leave.set()

        def _drop_for_fork(self) -> None:
            super()._drop_for_fork()
            assert has_left.is_set(), "the current call has ended"
            later.start()
            assert not was_let_in.wait(0.05), "a new call waits until the fork is done"

    later = threading.Thread(target=call_later, daemon=True)
    client = Leaving()
    forking.register(client)
    under_way = threading.Thread(target=call, daemon=True)
    under_way.start()
    assert inside.wait(LIMIT_S)
    fork_as_parent()
    assert client.dropped == 1
    assert was_let_in.wait(LIMIT_S)
    for thread in (under_way, later):
        thread.join(LIMIT_S)
    forking.unregister(client)


def test_fork_continues_as_soon_as_the_last_call_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork that comes while a call is under way waits for the call's end, and no longer."""
    monkeypatch.setattr(forking, "FORK_WAIT_S", LIMIT_S)  # which a busy machine does not need for anything else
    monkeypatch.setattr(forking, "_thread_names", lambda: iter(()))  # servers of other tests may have theirs
    inside, may_leave = threading.Event(), threading.Event()

    def call() -> None:
        with forking.flight_use():
            inside.set()
            may_leave.wait(LIMIT_S)

    class Leaving(Counting):
        def _interrupt_for_fork(self) -> None:
            threading.Timer(0.05, may_leave.set).start()

    client = Leaving()
    forking.register(client)
    under_way = threading.Thread(target=call, daemon=True)
    under_way.start()
    assert inside.wait(LIMIT_S)
    began_s = time.monotonic()
    fork_as_parent()
    assert time.monotonic() - began_s < LIMIT_S / 2
    under_way.join(LIMIT_S)
    forking.unregister(client)


def test_call_inside_which_a_process_was_forked_counts_for_the_parent_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's count begins at 0 and stays right when that call ends there."""
    monkeypatch.setattr(forking, "_gate", forking._Gate())
    monkeypatch.setattr(forking, "_live", weakref.WeakSet[forking.Forkable]())
    with forking.flight_use():
        forking._after_fork_in_child()
    with forking.flight_use():
        assert forking._gate.inside == 1
    assert forking._gate.inside == 0


def test_child_forked_during_a_call_is_told_so_and_its_children_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Flight client would hang there for ever; an error names the way out. The parent goes on."""
    monkeypatch.setattr(forking, "_gate", forking._Gate())
    monkeypatch.setattr(forking, "_live", weakref.WeakSet[forking.Forkable]())
    with forking.flight_use():
        forking.check_child()  # the parent
        forking._after_fork_in_child()
    for _ in range(2):
        with pytest.raises(ClientStateError, match="forked while a call to a broker"):
            open_client(Address("127.0.0.1", 1), [])
        forking._after_fork_in_child()


def test_child_forked_between_calls_may_use_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "_gate", forking._Gate())
    monkeypatch.setattr(forking, "_live", weakref.WeakSet[forking.Forkable]())
    with forking.flight_use():
        pass
    forking._after_fork_in_child()
    open_client(Address("127.0.0.1", 1), []).close()


@pytest.mark.parametrize("name", ["event_engine", "grpc_shutdown", "lifeguard"])
def test_fork_waits_until_grpc_has_no_thread(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A machine that is busy may need longer than `SETTLE_S` for them."""
    monkeypatch.setattr(forking, "SETTLE_S", 0.0)
    seen = [["python", name], [name, "python"], ["python"]]
    monkeypatch.setattr(forking, "_thread_names", lambda: iter(seen.pop(0) if len(seen) > 1 else seen[0]))
    with forking.flight_use():
        pass
    fork_as_parent()
    assert seen == [["python"]]


_GRPC = ["event_engine"]


def fork_with(monkeypatch: pytest.MonkeyPatch, names: list[str], *, used: bool) -> None:
    """Does what a fork does in the child, where the parent had threads of these names and ``used`` Flight or not."""
    monkeypatch.setattr(forking, "_gate", forking._Gate())
    monkeypatch.setattr(forking, "_live", weakref.WeakSet[forking.Forkable]())
    monkeypatch.setattr(forking, "SETTLE_S", 0.0)
    monkeypatch.setattr(forking, "FORK_WAIT_S", 0.05)
    monkeypatch.setattr(forking, "_thread_names", lambda: iter(names))
    monkeypatch.delitem(sys.modules, forking._GRPCIO, raising=False)
    if used:
        with forking.flight_use():
            pass
    forking._before_fork()
    forking._after_fork_in_child()


@pytest.mark.parametrize("used", [True, False])
def test_child_of_a_process_with_a_flight_client_of_its_own_is_told_so(
    monkeypatch: pytest.MonkeyPatch, used: bool
) -> None:
    fork_with(monkeypatch, _GRPC, used=used)
    with pytest.raises(ClientStateError, match="forked while it had an Arrow Flight client or server of its own"):
        open_client(Address("127.0.0.1", 1), [])


def test_child_may_try_where_the_threads_may_be_those_of_another_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark Connect, for one, has grpcio, with which children work."""
    fork_with(monkeypatch, [], used=True)
    forking.check_child()
    monkeypatch.setattr(forking, "_thread_names", lambda: iter(_GRPC))
    monkeypatch.setitem(sys.modules, forking._GRPCIO, cast(Any, object()))
    forking._before_fork()
    forking._after_fork_in_child()
    forking.check_child()


def test_fork_collects_a_flight_client_that_is_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in a cycle, as an exception and its traceback are, would live until something collects it."""
    monkeypatch.setattr(forking, "_gate", forking._Gate())
    monkeypatch.setattr(forking, "FORK_WAIT_S", LIMIT_S)  # which a busy machine does not need for anything else
    monkeypatch.setattr(forking, "_COLLECT_AFTER_S", 0.01)

    class Holder:
        """Holds itself and a client."""

        def __init__(self, port: int) -> None:
            self.itself = self
            self.client = flight.connect(f"grpc://127.0.0.1:{port}")
            with suppress(flight.FlightError):
                list(self.client.do_action("x", options=flight.FlightCallOptions(timeout=1)))

    gc.collect()
    holder = weakref.ref(Holder(1))
    monkeypatch.setattr(forking, "_thread_names", lambda: iter([] if holder() is None else _GRPC))
    with forking.flight_use():
        pass
    began_s = time.monotonic()
    forking._before_fork()
    assert holder() is None
    assert not forking._gate.is_grpc_alive
    assert time.monotonic() - began_s < LIMIT_S / 2
    forking._after_fork_in_parent()


def test_child_of_a_process_with_a_flight_server_gets_an_error_and_does_not_hang() -> None:
    """A real one: gRPC lives in it, and a client of the child would never come back."""
    program = """
import os, signal, warnings
from pyarrow import flight
from broker_runtime.contract.errors import ClientStateError
from pyspark_log import Admin
warnings.simplefilter("ignore", DeprecationWarning)
server = flight.FlightServerBase("grpc://127.0.0.1:0")
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        Admin(f"127.0.0.1:{server.port}").list_topics()
    except ClientStateError as error:
        os._exit(7 if "server of its own" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert printed.stdout.strip() == "7", printed.stderr


def test_fork_waits_for_threads_of_another_user_of_grpc_no_longer_than_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forking, "SETTLE_S", 0.0)
    monkeypatch.setattr(forking, "FORK_WAIT_S", 0.05)
    looks: list[None] = []
    monkeypatch.setattr(forking, "_thread_names", lambda: looks.append(None) or iter(["event_engine"]))
    with forking.flight_use():
        pass
    fork_as_parent()
    assert looks


def test_fork_during_a_call_does_not_wait_for_threads_that_the_call_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "_gate", forking._Gate())
    monkeypatch.setattr(forking, "FORK_WAIT_S", 0.05)
    looks: list[None] = []
    monkeypatch.setattr(forking, "_thread_names", lambda: looks.append(None) or iter(["event_engine"]))
    with forking.flight_use():
        fork_as_parent()
    assert not looks


def test_threads_of_grpc_are_recognised_where_the_system_tells_their_names() -> None:
    """Those of a server are named as those of a client."""
    with flight.FlightServerBase("grpc://127.0.0.1:0") as server:
        are_seen = any(name.startswith(forking._GRPC_THREADS) for name in forking._thread_names())
        assert are_seen is forking._TASKS.exists(), server.port


def test_call_that_outlasts_a_fork_is_waited_for_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has ended when the next fork comes, and gRPC's threads have not."""
    monkeypatch.setattr(forking, "FORK_WAIT_S", 0.01)
    with forking.flight_use():
        forking._before_fork()
        forking._after_fork_in_parent()
    waits: list[None] = []
    monkeypatch.setattr(forking, "_await_end_of_grpc", lambda: waits.append(None))
    for _ in range(2):
        forking._before_fork()
        forking._after_fork_in_parent()
    assert len(waits) == 1


def test_name_of_a_thread_that_is_cut_within_a_character_is_no_error(tmp_path: Path) -> None:
    """The kernel keeps 15 bytes of a script's name."""
    script = tmp_path / "fourteenbytes-ä.py"
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom broker_runtime.contract import forking\n"
    script.write_text(f"#!{sys.executable}\n{program}print(*forking._thread_names())\n")
    script.chmod(0o755)
    ended = subprocess.run([script], capture_output=True, text=True, timeout=60, check=True)
    assert "fourteenbytes-" in ended.stdout
