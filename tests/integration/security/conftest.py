"""One secured cluster for all tests of a module that change nothing of its brokers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from pyspark_log import Acl, Admin
from pyspark_log.errors import SaslAuthenticationError
from tests.secured import Secured, secured_cluster
from tests.waiting import SOON_S, wait_until


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_cluster(tmp_path_factory.mktemp("secured"), 3) as made:
        yield made


@pytest.fixture
def topic(secured: Secured) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    with secured.admin() as admin:
        admin.create_topic(name, partitions=2, replication_factor=3)
    return name


@pytest.fixture
def new_user(secured: Secured) -> Callable[..., dict[str, str]]:
    """Makes a user with these ACLs, as (operation, type of resource, name); returns a client's settings when all
    brokers know the user (its ACLs may take as long)."""

    def make(*rights: tuple[str, str, str], name: str | None = None) -> dict[str, str]:
        user, password = name or f"user-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
        with secured.admin() as admin:
            admin.set_password(user, password)
            admin.create_acls(
                Acl(principal=f"User:{user}", operation=operation, resource_type=kind, name=on)  # type: ignore[arg-type]
                for operation, kind, on in rights
            )
        settings = secured.user(user, password)
        for address in settings["bootstrap.servers"].split(","):
            with Admin(config={**settings, "bootstrap.servers": address}) as client:
                wait_until(
                    lambda client=client: client.list_topics() is not None,
                    f"{address} knows the user",
                    SOON_S,
                    ignoring=(SaslAuthenticationError,),
                )
        return settings

    return make
