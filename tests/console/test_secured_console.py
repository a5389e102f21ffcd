"""The console on a cluster that asks for passwords: logging in, what a user may not do. Real brokers, no browser."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest

from broker_runtime.contract.acls import Acl
from broker_runtime.contract.errors import InvalidRequestError, UnknownTopicOrPartitionError
from pyspark_log import Admin, Producer, TopicPartition
from pyspark_log.console.connection import Entrance
from pyspark_log.console.serving import ConsoleServer
from tests.secured import Secured, secured_cluster

LIMIT_S = 20.0
ANN, EVE = "ann's long password", "eve's long password"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Ann may see everything and read flights; Eve may see one group. There is a group that is behind."""
    with secured_cluster(tmp_path_factory.mktemp("secured"), 1) as cluster, cluster.admin() as root:
        root.create_topic("flights", partitions=1)
        root.set_password("ann", ANN)
        root.set_password("eve", EVE)
        root.create_acls(
            [
                Acl(principal="User:ann", operation="Describe", resource_type="Cluster"),
                Acl(principal="User:ann", operation="Read", resource_type="Topic", name="flights"),
                Acl(principal="User:ann", operation="Alter", resource_type="Group", name="behind"),
                Acl(principal="User:ann", operation="Describe", resource_type="Group", name="*"),
            ]
        )
        root.alter_group_offsets("behind", {TopicPartition("flights", 0): 0})
        yield cluster


@pytest.fixture(scope="module")
def console(secured: Secured) -> Iterator[ConsoleServer]:
    settings = secured.user("nobody", "not used")
    del settings["sasl.username"], settings["sasl.password"]
    server = ConsoleServer(settings, port=0)
    server.start()
    yield server
    server.close()


@contextmanager
def logged_in(console: ConsoleServer, user: str, password: str, *, status: int = 303) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=console.address, timeout=LIMIT_S) as client:
        answer = client.post("/login", data={"user": user, "password": password, "csrf": csrf(client, "/login")})
        assert answer.status_code == status
        yield client


def csrf(client: httpx.Client, path: str) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', client.get(path).text)
    assert found is not None
    return found[1]


def allowed(client: httpx.Client, path: str) -> httpx.Response:
    """The page, once the brokers know the ACLs that were made a moment ago."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        answer = client.get(path)
        if answer.status_code == 200 or time.monotonic() > deadline_s:
            return answer
        time.sleep(0.1)


def test_user_sees_what_brokers_let_the_user_see(console: ConsoleServer) -> None:
    """With the user's own rights."""
    with logged_in(console, "ann", ANN) as client:
        page = allowed(client, "/topics/flights")
        assert page.status_code == 200
        assert "<h1>flights</h1>" in page.text
        assert "behind" in allowed(client, "/groups").text
        assert "User:ann" in allowed(client, "/access").text


@pytest.mark.parametrize("own", [("sasl.username", "sasl.password"), ("token",), ("token.file",)])
def test_password_becomes_a_token(secured: Secured, own: tuple[str, ...]) -> None:
    """It is in no setting of what the session keeps, and the token alone proves the user; what the console itself has
    proves nobody."""
    settings = secured.user("root", "of the console")
    shared = {name: value for name, value in settings.items() if not name.startswith("sasl.")}
    connection = Entrance({**shared, **dict.fromkeys(own, "/of/the/console")}).log_in("ann", ANN)
    try:
        proofs = {"sasl.username", "sasl.password", "sasl.mechanism", "token.file"}
        assert connection.settings.keys().isdisjoint(proofs)
        assert "/of/the/console" not in map(str, connection.settings.values())
        assert ANN not in map(str, connection.settings.values())
        assert connection.admin.list_topics() == ["flights"]
    finally:
        connection.close()


def test_token_has_a_lifetime_that_a_token_can_have(secured: Secured) -> None:
    """At most a day; the error names the value."""
    with Admin(config=secured.user("ann", ANN)) as admin:
        for wrong in (0.5, 86_401.0):
            with pytest.raises(InvalidRequestError, match=f"lifetime_s={wrong}"):
                admin.create_token(wrong)
        assert admin.create_token(1) != admin.create_token(2)


def test_lags_and_offsets_of_many_are_told_at_once(secured: Secured) -> None:
    """What the console's tables are made of."""
    with secured.admin() as root:
        with Producer(secured.cluster.bootstrap_servers_of("IN"), config=secured.root) as producer:
            producer.send("flights", b"a record")
            producer.flush(LIMIT_S)
        lags, unread = root.list_group_lags()
        assert [(each.group_id, each.lag, each.worst) for each in lags] == [("behind", 1, ("flights", 0))]
        assert unread == 0
        (described,) = root.describe_topics(["flights"], with_offsets=True)
        assert described.partitions[0].high_watermark == 1
        assert root.describe_topics(["flights"])[0].partitions[0].high_watermark == -1
        with pytest.raises(UnknownTopicOrPartitionError):
            root.describe_topics(["nix"])


def test_user_changes_what_brokers_let_the_user_change(console: ConsoleServer, secured: Secured) -> None:
    """A reset that is allowed is carried out; a deletion that is not is refused in words, and nothing is done."""
    with logged_in(console, "ann", ANN) as client:
        assert allowed(client, "/groups/behind/reset?to=latest").status_code == 200
        token = csrf(client, "/groups/behind")
        done = client.post("/groups/behind/reset/apply", data={"offset": "flights:0:0", "csrf": token})
        assert done.status_code == 303, done.text
        for path, form in (
            ("/groups/behind/delete", {"confirm": "behind"}),
            ("/topics/flights/delete", {"confirm": "flights"}),
            ("/topics/flights/settings", {"name": "retention.ms", "value": "1h", "do": "set"}),
            ("/topics/flights/partitions", {"total": "2"}),
            ("/topics/flights/produce/send", {"value": "x"}),
            ("/topics-new/create", {"name": "made"}),
            ("/moves/start", {"partition": "flights:0", "replicas": "1"}),
        ):
            refused = client.post(path, data={**form, "csrf": token})
            assert refused.status_code == 403, path
            assert "Nothing was changed." in refused.text
            assert "User:ann" in refused.text, path
    with secured.admin() as root:
        assert root.list_topics() == ["flights"]
        assert [each.group_id for each in root.list_groups()] == ["behind"]
        assert "retention.ms" not in root.describe_topic("flights").config


def test_user_without_rights_sees_nothing_of_others(console: ConsoleServer) -> None:
    """Neither names nor records; no page fails."""
    with logged_in(console, "eve", EVE) as client:
        for path in ("/", "/topics", "/groups", "/brokers", "/moves", "/access", "/queries", "/transactions"):
            answer = client.get(path)
            assert answer.status_code in {200, 403}, (path, answer.status_code)
            assert "flights" not in answer.text, path
            assert "behind</a>" not in answer.text, path
        assert client.get("/topics/flights/records").status_code in {403, 404}


def test_wrong_password_lets_nobody_in(console: ConsoleServer) -> None:
    """Nor does a page without a session."""
    with logged_in(console, "ann", "not this one", status=401) as client:
        answer = client.get("/topics")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Ftopics")


def test_session_ends_with_the_user(console: ConsoleServer, secured: Secured) -> None:
    """A user that is removed is out within seconds, with the session's token."""
    with secured.admin() as root:
        root.set_password("leaver", "leaver's long password")
        with logged_in(console, "leaver", "leaver's long password") as client:
            assert client.get("/topics").status_code == 200
            root.delete_user("leaver")
            deadline_s = time.monotonic() + LIMIT_S
            while client.get("/topics").status_code != 303:
                assert time.monotonic() < deadline_s
                time.sleep(0.1)
            assert "Log in again" in client.get("/login").text


def test_console_has_tls_of_its_own(secured: Secured, tmp_path: Path) -> None:
    """With it, cookies are for encrypted connections alone."""
    import ssl

    own = secured.pki.issue("console", "127.0.0.1")
    settings = secured.user("nobody", "not used")
    del settings["sasl.username"], settings["sasl.password"]
    server = ConsoleServer(settings, port=0, certfile=Path(own["ssl.certfile"]), keyfile=Path(own["ssl.keyfile"]))
    server.start()
    try:
        trusted = ssl.create_default_context(cafile=secured.pki.ca)
        with httpx.Client(base_url=server.address, timeout=LIMIT_S, verify=trusted) as client:
            cookie = client.get("/login").headers["set-cookie"]
            began_s = time.monotonic()
            server.close()
            assert time.monotonic() - began_s < 2  # although a browser's connection is open
        assert server.address.startswith("https://")
        assert cookie.startswith("__Host-pylog-")
        assert "Secure" in cookie
    finally:
        server.close()


def test_brokers_addresses_are_not_for_those_who_are_not_logged_in(console: ConsoleServer, secured: Secured) -> None:
    """No page of an error tells them, either."""
    address = secured.cluster.bootstrap_servers_of("SASL_SSL").split(",")[0]
    with httpx.Client(base_url=console.address, timeout=LIMIT_S) as stranger:
        for path in ("/nix", "/login", "/logout"):
            assert address not in stranger.get(path).text
    with logged_in(console, "ann", ANN) as client:
        assert address in client.get("/nix").text
