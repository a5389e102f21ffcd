"""A process that forks with every user of a `Link` open, one of them blocked in it: run by `test_link`.

python -m tests.contract.forked_links <port>      exit status 0: child and parent continue as they should
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from types import SimpleNamespace
from typing import Any

from broker_runtime.contract.errors import NetworkError
from broker_runtime.contract.settings import Address
from tests.contract.test_link import STREAMS, USERS, Asking, Read

_FORKS = 3
_CHILD_LIMIT_S = 20


def main(port: int) -> None:
    """Forks several times, since a child that hangs may not hang each time."""
    warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: that is what is tested
    address = Address("127.0.0.1", port)
    for _ in range(_FORKS):
        users = [opened(kind, address) for kind in USERS]
        blocked = Asking(SimpleNamespace(ask=users[0].stream.read))
        child = os.fork()
        if child == 0:
            signal.alarm(_CHILD_LIMIT_S)
            check(users, address)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert status == 0, f"the child ended by {status}"
        assert blocked.result() is None, "the produce stream has ended, with all answers delivered"
        check(users, address)


def check(users: list[Any], address: Address) -> None:
    """After the fork, in either process: streams have ended, the action and new streams work."""
    for user in users[: len(STREAMS)]:
        outcome = Asking(user).result()
        if isinstance(user, Read):
            assert outcome is None
        else:
            assert isinstance(outcome, NetworkError), outcome
            assert "was ended" in str(outcome)
    assert users[-1].ask() is not None
    for user in [*users, *(opened(kind, address) for kind in USERS)]:
        user.close()


def opened(kind: type[Any], address: Address) -> Any:
    """A user with its connection made."""
    user = kind(address, SimpleNamespace(reads=SimpleNamespace(release=lambda: None)))
    assert user.ask() is not None
    return user


if __name__ == "__main__":
    main(int(sys.argv[1]))
