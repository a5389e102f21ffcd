"""Tests marked ``alone`` run in a process of their own.

A run gives the product's modules a simulated clock and simulated locks, and reads what they log. In a process that has
run other tests, clients of those may still have threads: they would wait in simulated time, and write into the trace.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.simulation.simulator.pool import call_named, stay_on_one_processor

ROOT = Path(__file__).parents[2]
_LIMIT_S = 590.0
_pool = pytest.StashKey[ProcessPoolExecutor]()


@pytest.fixture(scope="session", autouse=True)
def process_without_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Starts when the first test is to run there."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, stay_on_one_processor) as request.config.stash[_pool]:
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Calls the test there, with the values of its parameters and fixtures."""
    if pyfuncitem.get_closest_marker("alone") is None:
        return None
    code = pyfuncitem.obj.__code__
    arguments = {name: pyfuncitem.funcargs[name] for name in code.co_varnames[: code.co_argcount]}
    module = ".".join(pyfuncitem.path.relative_to(ROOT).with_suffix("").parts)
    pyfuncitem.config.stash[_pool].submit(call_named, module, code.co_name, arguments).result(_LIMIT_S)
    return True
