"""Every method of every service begins with its Caller, and every action is served by one that does."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import pytest

from broker_runtime import services
from broker_runtime.broker_services import make_services
from broker_runtime.contract.actions import ACTIONS
from broker_runtime.contract.settings import resolve
from broker_runtime.following.peers import Peers
from broker_runtime.meters import NO_METERS
from broker_runtime.replication import PartitionRegistry
from broker_runtime.security.authorizer import ALLOW_ALL
from broker_runtime.security.quotas import NO_QUOTAS
from broker_runtime.services.caller import Caller
from broker_runtime.services.groups import GroupService
from broker_runtime.services.producer_ids import ProducerIdService
from broker_runtime.services.security import SecurityService
from broker_runtime.services.transactions import TransactionService
from broker_runtime.zookeeper.memory import MemoryZooKeeper
from tests.unit.membership.members import Broker

_NO_CALLS = {
    "GroupService.committing",
    "ProducerIdService.keep_ready",
    "ProducerIdService.ready_producer_id",
    "ProducerIdService.require_given_out",
    "TransactionService.forget_if_anew",
    "TransactionService.require_may_begin",
}
"""Methods for the broker itself: a loop's step, and what other services need."""


def _methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    for module in pkgutil.iter_modules(services.__path__):
        found = importlib.import_module(f"{services.__name__}.{module.name}")
        for kind_name, kind in inspect.getmembers(found, inspect.isclass):
            if kind.__module__ != found.__name__ or not kind_name.endswith("Service"):
                continue
            for name, method in inspect.getmembers(kind, inspect.isfunction):
                if not name.startswith("_"):
                    yield f"{kind_name}.{name}", method


METHODS = dict(_methods())


def test_services_are_found() -> None:
    """The next test is worth no more than this one."""
    assert {name.partition(".")[0] for name in METHODS} == {
        "ConfigService",
        "FetchService",
        "GroupService",
        "LagService",
        "LogOffsetService",
        "MetadataService",
        "MovementService",
        "PlainService",
        "ProduceService",
        "ProducerIdService",
        "ReadService",
        "SecurityService",
        "TopicService",
        "TransactionService",
    }
    assert METHODS.keys() >= _NO_CALLS


@pytest.mark.parametrize("name", sorted(METHODS.keys() - _NO_CALLS))
def test_method_of_a_service_begins_with_its_caller(name: str) -> None:
    parameters = list(inspect.signature(METHODS[name]).parameters)
    assert parameters[1] == "caller"
    assert issubclass(get_type_hints(METHODS[name])["caller"], Caller)


def test_each_action_of_the_protocol_is_served_with_its_caller() -> None:
    """The broker's own table is checked."""
    member: Any = Broker(MemoryZooKeeper(), 1).member
    served = make_services(
        resolve("broker", {"broker.id": "1", "log.dirs": "unused"}),
        client=MemoryZooKeeper().client(),
        registry=PartitionRegistry(),
        member=member,
        directories=(),
        cluster_id="c",
        producer_ids=ProducerIdService(MemoryZooKeeper().client()),
        groups=GroupService.__new__(GroupService),
        transactions=TransactionService.__new__(TransactionService),
        peers=Peers(1),
        meters=NO_METERS,
        security=SecurityService.__new__(SecurityService),
        authorizer=ALLOW_ALL,
        is_current=lambda caller: True,
        quotas=NO_QUOTAS,
    ).actions
    assert served.keys() == ACTIONS.keys()
    for name, serve in served.items():
        assert next(iter(inspect.signature(serve).parameters)) == "caller", name
