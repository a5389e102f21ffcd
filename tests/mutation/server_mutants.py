"""Mutants of what bounds a broker's memory against strangers. See `mutants`."""

from __future__ import annotations

from typing import Final

from tests.mutation.harness import Mutant

_WATCH = ("tests/unit/server/test_memory_watch.py",)
_CREDITS = ("tests/unit/server/test_receive_credits.py",)
_KERNEL = ("tests/integration/server/test_receive_credits.py",)

SERVER: Final = (
    Mutant(
        name="new_connection_is_stopped_by_no_barrier",
        file="broker_runtime/server/connections.py",
        old="(0x35, 1, 0, BETWEEN_BARRIERS_BYTES - _BARRIER_BYTES)",
        new="(0x35, 1, 0, BETWEEN_BARRIERS_BYTES)",
        breaks="A connection that nobody has seen yet receives 4 MiB at most.",
        tests=_KERNEL,
    ),
    Mutant(
        name="new_connection_is_not_bounded",
        file="broker_runtime/server/connections.py",
        old="bounded = TAKES_TO_BARRIER[0] if local_port in _bounded else None",
        new="bounded = None",
        breaks="A connection that nobody has seen yet receives 4 MiB at most.",
        tests=_KERNEL,
    ),
    Mutant(
        name="credits_are_never_lowered",
        file="broker_runtime/server/receive_credits.py",
        old="if self._credits[address].left_bytes > shares[address]:",
        new="if False:",
        breaks="All connections together receive no more than the budget and a quarter of it.",
        tests=_CREDITS,
    ),
    Mutant(
        name="idle_connections_begin_with_little",
        file="broker_runtime/server/receive_credits.py",
        old="least_bytes = 0 if self._is_crowded else _LEAST_BYTES",
        new="least_bytes = 0",
        breaks="Where there are hundreds of connections, an idle one may begin with a large message.",
        tests=_CREDITS,
    ),
    Mutant(
        name="another_connection_of_the_port_has_its_beginning",
        file="broker_runtime/server/receive_credits.py",
        old="if first is not None or (before is not None and each.received_bytes < before.received_bytes):",
        new="if first is not None:",
        breaks="A connection of unknown beginning is not measured from that of another.",
        tests=_CREDITS,
    ),
    Mutant(
        name="unknown_beginning_has_one_filter_for_good",
        file="broker_runtime/server/receive_credits.py",
        old="random.choice(TAKES_TO_BARRIER)",
        new="TAKES_TO_BARRIER[0]",
        breaks="A connection of unknown beginning goes on after each renewal.",
        tests=_CREDITS,
    ),
    Mutant(
        name="credits_are_renewed_at_rest_only",
        file="broker_runtime/server/memory_watch.py",
        old="return came_bytes > self._credits.least_bytes // 4 and passed_s >= _BUSY_CHECKS * self._check_took_s",
        new="return False",
        breaks="Ordinary work never waits for a check that comes in time.",
        tests=_WATCH,
    ),
    Mutant(
        name="credits_are_not_renewed_while_nothing_comes",
        file="broker_runtime/server/memory_watch.py",
        old="        if passed_s >= max(_REST_S, _REST_CHECKS * self._check_took_s):\n            return True\n",
        new="",
        breaks="A connection whose first bytes were refused is renewed though nothing else comes.",
        tests=_WATCH,
    ),
    Mutant(
        name="calls_without_content_weigh_their_bytes",
        file="broker_runtime/server/memory_watch.py",
        old="        return grown_bytes / suspect_bytes\n",
        new="        return 1.0\n",
        breaks="Connections whose few bytes hold much memory are cut.",
        tests=_WATCH,
    ),
    Mutant(
        name="memory_of_actions_is_held_against_others",
        file="broker_runtime/server/memory_watch.py",
        old=" - _ACTION_HOLDS * (acted_bytes - acted_before_bytes)",
        new="",
        breaks="What large requests need while they are served cuts no connection.",
        tests=_WATCH,
    ),
    Mutant(
        name="memory_from_before_is_held_against_new_bytes",
        file="broker_runtime/server/memory_watch.py",
        old="self._clear is None or self._are_freed(now_s) or memory_bytes < self._clear[0]",
        new="self._clear is None or memory_bytes < self._clear[0]",
        breaks="Memory that was there before a connection sent anything is not its own.",
        tests=_WATCH,
    ),
    Mutant(
        name="credits_of_calls_without_content_are_not_divided",
        file="broker_runtime/server/memory_watch.py",
        old=" / min(held, _MOST_DIVIDED)",
        new="",
        breaks="Where few bytes hold much memory, less may come between two checks.",
        tests=_WATCH,
    ),
    Mutant(
        name="connections_are_accepted_near_the_limit",
        file="broker_runtime/server/memory_watch.py",
        old="self._hold_new(is_near or (held > 1 and surplus_bytes > 0))",
        new="self._hold_new(False)",
        breaks="Near the limit no new connections are accepted.",
        tests=_WATCH,
    ),
    Mutant(
        name="connections_are_accepted_before_what_was_cut_is_free",
        file="broker_runtime/server/memory_watch.py",
        old="is_over = held == 1 and self._are_freed(now_s)",
        new="is_over = held == 1",
        breaks="Who was cut does not return before what it held is free.",
        tests=_WATCH,
    ),
    Mutant(
        name="few_calls_on_each_connection_do_not_count",
        file="broker_runtime/server/memory_watch.py",
        old="least_bytes = _LEAST_BYTES / min(held, _LEAST_HELD)",
        new="least_bytes = _LEAST_BYTES",
        breaks="Calls without content count also where each connection has only a few.",
        tests=_WATCH,
    ),
    Mutant(
        name="actions_are_not_counted",
        file="broker_runtime/server/streams.py",
        old="self._acted_bytes += size_bytes",
        new="self._acted_bytes += 0",
        breaks="The memory watch knows what the requests of actions weigh.",
        tests=("tests/unit/server/test_stream_table.py",),
    ),
)
