"""A write that ZooKeeper may have done: one protocol for every znode that is changed by compare-and-set.

    change      plan from a fresh read ─▶ transaction ─▶ done
                  refused (another writer was quicker)   ─▶ pause, plan again
                  no answer (it may be done)             ─▶ barrier, read back, plan again where it is not done
                  the guard does not hold                ─▶ `GuardFailedError`: the writer has lost its claim
    write       one transaction of that, for callers that answer a refusal themselves
    write_most  one transaction over many znodes, without those that other writers changed
    barrier     all earlier writes of this client are applied, or never will be
    Claim       a znode that says who may write about something, and the guard for those writes

ZooKeeper carries out the writes of a session in order, and refuses those of a session that has ended. So a write of
checks alone, once it is answered, comes after everything that was under way, and reads after it are as new as that.

Rules: an unknown outcome is never taken for a failure, nor for a success, before a barrier and a read. A caller that is
told that its change failed for certain (`GuardFailedError`, or what its plan raised) can rely on it never being applied
later. `ZooKeeperUnavailableError` leaves that open; ``doubts`` lets the next change of the same znode begin with a
barrier, so that it plans from what is true by then.

A decision that is made once, such as whether a transaction commits, is a plan that accepts what it finds:

    def plan() -> Planned[str]:
        node = client.find(path)
        decided = from_json(node.data, Transaction, path)
        if decided.outcome is not None:  # by this coordinator, whose answer was lost, or by the one before
            return Planned(decided.outcome)
        data = to_json(replace(decided, outcome="commit"))
        return Planned("commit", [Set(path, data, node.version)])

    outcome = change(client, plan, what=path, guard=claim.guard, doubts=doubts)

``outcome`` is then the one decision there is, whoever made it, and only the broker whose claim stands makes one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from broker_runtime.contract.errors import PylogError, ZooKeeperUnavailableError
from broker_runtime.contract.waiting import Backoff, Deadline
from broker_runtime.zookeeper.session import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    Operation,
    Set,
    ZNode,
    ZNodeError,
    ZooKeeperClient,
)
from broker_runtime.zookeeper.znodes import CHANGES

ATTEMPTS: Final = 20
LIMIT_S: Final = 10.0
WRITES_AT_ONCE: Final = 200
"""Operations on small znodes in one transaction: far below `session.MAX_REQUEST_BYTES` with the longest paths."""
_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.1
_CONFLICTS: Final = (BadVersionError, NodeExistsError, NoNodeError)

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_C = TypeVar("_C", bound="Claim")


class GuardFailedError(BadVersionError):
    """The guard of a write does not hold: it changed nothing, and no write under that guard ever will."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What makes a write hold only while a claim stands: a check in the same transaction, and the session to write
    in."""

    check: Check
    session: int


@dataclass(frozen=True, slots=True)
class Planned(Generic[_T]):
    """What a change returns once ``operations`` are carried out; without any, there is nothing left to write.

    ``is_done`` reads back, after a barrier, whether these very operations were carried out; None: the next plan finds
    out by itself. It must not take another writer's operations for these: for a counter that two brokers may raise to
    the same value only None is right.
    """

    result: _T
    operations: Sequence[Operation] = ()
    is_done: Callable[[], bool] | None = None


def _plan_again(conflict: ZNodeError) -> None:
    pass


def change(
    client: ZooKeeperClient,
    plan: Callable[[], Planned[_T]],
    *,
    what: str,
    guard: Guard | None = None,
    session: int | None = None,
    doubts: set[str] | None = None,
    on_conflict: Callable[[ZNodeError], None] = _plan_again,
    attempts: int = ATTEMPTS,
    limit_s: float = LIMIT_S,
    exhausted: type[PylogError] = ZooKeeperUnavailableError,
) -> _T:
    """Carries out what ``plan`` plans, and returns its result. Blocks on ZooKeeper, and in short pauses.

    ``plan`` reads what it plans from, every time. It may write as well, what may be repeated; a conflict that it meets
    counts as one of its operations'. ``what`` names what is changed, in errors and in ``doubts``. ``session``: the one
    to write in, where there is no ``guard``; None: any. ``on_conflict`` is called with a refusal before the next plan,
    and ends the change by raising.

    ``doubts``, which all changes of a writer share, keeps every ``what`` whose last write may still be under way.
    Changes of the same ``what`` must then come one after another.

    Raises `GuardFailedError`; `ZooKeeperUnavailableError` while ZooKeeper is away, or if ``is_done`` cannot be read;
    ``exhausted`` if other writers were quicker ``attempts`` times or for ``limit_s`` (no attempt begins after it);
    whatever ``plan`` and ``on_conflict`` raise, and the refusals that no other plan helps against (`NotEmptyError`,
    `InvalidRequestError`).

    Not guaranteed: after `ZooKeeperUnavailableError` the change may have been made, or may still be made. Only
    ``is_done`` waits for a connection that broke: otherwise the error is raised at once, as the caller may have others
    to ask.
    """
    session = session if guard is None else guard.session
    doubts = set() if doubts is None else doubts
    deadline, backoff = Deadline(limit_s), Backoff(first_s=_FIRST_PAUSE_S, limit_s=_LONGEST_PAUSE_S)
    for attempt in range(1, attempts + 1):
        is_last = attempt == attempts
        planned: Planned[_T] | None = None
        try:
            if what in doubts:
                barrier(client, guard=guard, session=session)
                doubts.discard(what)
            planned = plan()
            if planned.operations:
                _send(client, planned.operations, guard, session)
            return planned.result
        except GuardFailedError:
            raise
        except _CONFLICTS as conflict:
            on_conflict(conflict)
        except ZooKeeperUnavailableError:
            doubts.add(what)
            if planned is not None and planned.is_done is not None:
                barrier(client)
                is_done = planned.is_done()
                doubts.discard(what)
                if is_done:
                    return planned.result
            has_ended = session is not None and session != client.session_id
            if has_ended or not client.is_connected or is_last or deadline.expired:
                raise
        if is_last or deadline.expired:
            break
        deadline.sleep(backoff.next_s())
    raise exhausted(f"{what} keeps changing. Try again later")


def write(
    client: ZooKeeperClient,
    operations: Sequence[Operation],
    *,
    guard: Guard | None = None,
    session: int | None = None,
    is_done: Callable[[], bool] | None = None,
) -> list[int]:
    """One transaction, for callers to whom a refusal is an answer. Returns the operations' versions; after a success
    that was read back they are -1.

    Raises the `ZNodeError` of an operation, `GuardFailedError`, `ZooKeeperUnavailableError`: with ``is_done`` (see
    `Planned`) it was not carried out, or that cannot be read; without, that is unknown.
    """
    try:
        return _send(client, operations, guard, session if guard is None else guard.session)
    except ZooKeeperUnavailableError:
        if is_done is None:
            raise
        barrier(client)
        if not is_done():
            raise
        return [ANY_VERSION] * len(operations)


def write_most(
    items: Sequence[_T],
    send: Callable[[Sequence[_T]], Sequence[int]],
    *,
    concerns: Callable[[_T, str], bool],
    leave_out: Callable[[Sequence[_T], ZNodeError], None],
) -> list[tuple[_T, int]]:
    """Writes many items in one transaction, without those that other writers changed since they were planned: each such
    refusal costs the items that it ``concerns`` (by its path); ``leave_out`` is called with them, and the others are
    sent again. Returns what was written, and its versions, as ``send`` returns them.

    A refusal that concerns no item leaves out all. Raises `GuardFailedError`, and what else ``send`` raises.
    """
    left = list(items)
    while left:
        try:
            return list(zip(left, send(left), strict=True))
        except GuardFailedError:
            raise
        except _CONFLICTS as refusal:
            changed = [each for each in left if concerns(each, refusal.path)] or left
            leave_out(changed, refusal)
            left = [each for each in left if each not in changed]
    return []


def barrier(client: ZooKeeperClient, *, guard: Guard | None = None, session: int | None = None) -> None:
    """Returns when all earlier writes of this client are applied, or never will be; what is read afterwards is not
    older. With ``session`` or ``guard`` that is so in this session, and the guard holds.

    Raises `GuardFailedError`, `ZooKeeperUnavailableError` (also where the session has ended).
    """
    if guard is not None:
        _send(client, (), guard, guard.session)
        return
    with contextlib.suppress(ZNodeError):  # a refusal has its place in the order of writes, too
        client.transaction([Check(CHANGES, ANY_VERSION)], session=session)


def has_happened(client: ZooKeeperClient, operations: Sequence[Operation]) -> bool:
    """Reads back whether a transaction was carried out: by its last operation that leaves a trace. For ``is_done``
    where nobody else writes the same. Raises `ZooKeeperUnavailableError`."""
    last = next(each for each in reversed(operations) if not isinstance(each, Check) and each.path != CHANGES)
    node = client.find(last.path)
    if isinstance(last, Delete):
        return node is None
    assert isinstance(last, Create | Set)
    return node is not None and node.data == last.data


def in_parts(items: Sequence[_T], count: int = WRITES_AT_ONCE) -> Iterator[Sequence[_T]]:
    """``items`` in order, at most ``count`` at a time."""
    for start in range(0, len(items), count):
        yield items[start : start + count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A znode that says who may write about something. It stands while the znode has this version, which is the claim's
    epoch and rises when another takes the claim over. ``session``: the one that the holder writes in.

    ``holder`` are the znode's bytes. They name one life of one holder, or another's claim could be taken for this one.
    """

    path: str
    holder: bytes
    version: int
    session: int

    @property
    def guard(self) -> Guard:
        """For every write that depends on the claim."""
        return Guard(Check(self.path, self.version), self.session)

    @staticmethod
    def acquire(
        client: ZooKeeperClient,
        plan: Callable[[], tuple[_C, Sequence[Operation]] | None],
        *,
        session: int,
        what: str,
        on_conflict: Callable[[ZNodeError], None] = _plan_again,
        exhausted: type[PylogError] = ZooKeeperUnavailableError,
    ) -> _C | None:
        """Writes the claim that ``plan`` makes over the znode as it reads it (`version_over`), with the operations
        beside it in the same transaction; None where ``plan`` says so. ``plan`` raises where the znode is another's.

        When it returns, reads in this session see all that was written under earlier claims. Raises as `change`, which
        explains ``what``, ``on_conflict`` and ``exhausted``.
        """

        def planned() -> Planned[_C | None]:
            taking = plan()
            if taking is None:
                return Planned(None)
            claim, beside = taking
            return Planned(claim, [*beside, claim._operation()], is_done=lambda: claim._is_written(client))

        return change(client, planned, what=what, session=session, on_conflict=on_conflict, exhausted=exhausted)

    @staticmethod
    def verify(client: ZooKeeperClient, claims: Sequence[_C], *, guard: Guard) -> list[_C]:
        """Those that still stand, after all that was claimed before the call: one write, which changes nothing, and one
        read. Raises as `barrier`."""
        barrier(client, guard=guard)
        nodes = client.find_all([claim.path for claim in claims], are_small=True)
        return [claim for claim, node in zip(claims, nodes, strict=True) if claim.stands(node)]

    @staticmethod
    def release(client: ZooKeeperClient, claims: Sequence[_C], nobody: bytes) -> list[_C]:
        """Gives claims of one session up, so that others need not wait: their znodes say ``nobody``, at a higher
        version. Returns those that did not stand any more, which are left alone. Raises `ZooKeeperUnavailableError`."""
        gone: list[_C] = []
        for some in in_parts(claims):
            try:
                client.transaction([Set(each.path, nobody, each.version) for each in some], session=some[0].session)
            except ZNodeError:
                if len(some) == 1:
                    gone += some
                else:
                    gone += [lost for each in some for lost in Claim.release(client, [each], nobody)]
        return gone

    def stands(self, node: ZNode | None) -> bool:
        """Whether its znode, as it was read, is this claim."""
        return node is not None and (node.version, node.data) == (self.version, self.holder)

    def _operation(self) -> Operation:
        if self.version == 0:
            return Create(self.path, self.holder)
        return Set(self.path, self.holder, self.version - 1)

    def _is_written(self, client: ZooKeeperClient) -> bool:
        return self.stands(client.find(self.path)) and client.session_id == self.session


def version_over(node: ZNode | None) -> int:
    """The version of what is written over ``node``, as it was read."""
    return 0 if node is None else node.version + 1


def _send(
    client: ZooKeeperClient, operations: Sequence[Operation], guard: Guard | None, session: int | None
) -> list[int]:
    if guard is None:
        return client.transaction(operations, session=session)
    try:
        return client.transaction([guard.check, *operations], session=guard.session)[1:]
    except ZNodeError as refusal:
        if refusal.path != guard.check.path:
            raise
        raise GuardFailedError(refusal.path) from None
