"""Who may see and change what: hosts, other sites, sessions, cookies, logins. No socket, no broker."""

from __future__ import annotations

import threading
import time

import pytest

from broker_runtime.contract.errors import (
    BrokerUnavailableError,
    InvalidConfigError,
    RequestTimedOutError,
    SaslAuthenticationError,
)
from pyspark_log.console import connection, sessions
from pyspark_log.console.app import local_path
from pyspark_log.console.connection import REQUEST_TIMEOUT_MS, AnswerCache, Entrance
from pyspark_log.console.guard import MOST_BODY_BYTES, is_known_host
from pyspark_log.console.serving import check_listening
from tests.unit.console.fakes import FakeEntrance, browser, csrf_of

MOVE = {"partition": "flights:0", "replicas": "2,1"}


@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        ("localhost:9193", True), ("LOCALHOST", True), ("localhost.", True), ("127.0.0.1:9193", True),
        ("10.1.2.3:80", True), ("[::1]:9193", True), ("evil.example:9193", False), ("localhost.evil.example", False),
        ("", False), ("127.0.0.1.evil.example", False), ("[::1", False), ("a b", False),
    ],
)  # fmt: skip
def test_host_is_known_by_address_or_name(host: str, is_known: bool) -> None:
    """A name that somebody else made to point here (DNS rebinding) is not answered."""
    assert is_known_host(host, {"localhost"}) is is_known


def test_foreign_host_sees_nothing() -> None:
    """The refusal comes before any page, and says how to allow the name."""
    with browser(FakeEntrance()) as client:
        answer = client.get("/topics", headers={"host": "evil.example"})
        assert answer.status_code == 421
        assert "--allowed-hosts" in answer.text
        assert "flights" not in answer.text


def test_every_answer_has_the_headers_of_a_strict_policy() -> None:
    """No inline script or style, no frame, nothing stored: on pages, errors, refusals and files."""
    with browser(FakeEntrance()) as client:
        for path, host in (
            ("/", "localhost"),
            ("/nix", "localhost"),
            ("/", "evil.example"),
            ("/static/console.js", "localhost"),
        ):
            headers = client.get(path, headers={"host": host}).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"


def test_pages_have_no_inline_script_or_style() -> None:
    """The policy would refuse them."""
    with browser(FakeEntrance()) as client:
        for path in ("/", "/topics/flights", "/groups/billing", "/moves", "/brokers/1"):
            text = client.get(path).text
            assert " style=" not in text
            assert "<style" not in text
            assert " onclick" not in text
            assert "<script>" not in text


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"sec-fetch-site": "cross-site"}, "another site"), ({"sec-fetch-site": "same-site"}, "another site"),
        ({"origin": "https://evil.example"}, "another site"), ({"origin": "null"}, "another site"),
        ({"origin": "http://localhost:2"}, "another site"),
    ],
)  # fmt: skip
def test_form_of_another_site_changes_nothing(headers: dict[str, str], why: str) -> None:
    """Whatever cookies the browser adds, and even with the right token."""
    entrance = FakeEntrance()
    with browser(entrance) as client:
        token = csrf_of(client)
        answer = client.post("/moves/start", data={**MOVE, "csrf": token}, headers=headers)
        assert answer.status_code == 403
        assert why in answer.text
        assert entrance.admin.changes == []


@pytest.mark.parametrize("token", ["", "0" * 64, "é", None])
def test_form_without_its_token_changes_nothing(token: str | None) -> None:
    """A form that no page of this session sent is refused."""
    entrance = FakeEntrance()
    with browser(entrance) as client:
        csrf_of(client)
        answer = client.post("/moves/start", data={**MOVE, **({} if token is None else {"csrf": token})})
        assert answer.status_code == 403
        assert entrance.admin.changes == []


def test_token_of_another_session_changes_nothing() -> None:
    """Tokens belong to one cookie."""
    entrance = FakeEntrance()
    with browser(entrance) as client:
        stranger = csrf_of(client)
        client.cookies.clear()
        csrf_of(client)
        assert client.post("/moves/start", data={**MOVE, "csrf": stranger}).status_code == 403
        client.cookies.clear()
        assert client.post("/moves/start", data={**MOVE, "csrf": stranger}).status_code == 403
        assert entrance.admin.changes == []


def test_form_with_its_token_changes_something() -> None:
    """Also as a browser sends it; then it goes to a page that says so, once."""
    entrance = FakeEntrance()
    with browser(entrance) as client:
        headers = {"origin": "http://localhost:1", "sec-fetch-site": "same-origin"}
        answer = client.post("/moves/start", data={**MOVE, "csrf": csrf_of(client)}, headers=headers)
        assert (answer.status_code, answer.headers["location"]) == (303, "/moves")
        assert entrance.admin.changes == [("reassign_partitions", {("flights", 0): [2, 1]})]
        assert "Moving flights:0 to 2, 1." in client.get("/moves").text
        assert "Moving flights:0" not in client.get("/moves").text


def test_long_or_strange_bodies_are_refused() -> None:
    """No form is larger than the limit, in another encoding, or of unknown length."""
    with browser(FakeEntrance()) as client:
        kind = {"content-type": "application/x-www-form-urlencoded"}
        assert client.post("/moves/start", content=b"a" * (MOST_BODY_BYTES + 1), headers=kind).status_code == 413
        assert client.post("/moves/start", content=(part for part in [b"a=1"]), headers=kind).status_code == 413
        assert (
            client.post("/moves/start", content=b"{}", headers={"content-type": "application/json"}).status_code == 415
        )
        assert client.post("/moves/start", content=b"csrf=%ff", headers=kind).status_code == 400
        assert client.post("/moves/start", content=b"a=1&" * 30_000, headers=kind).status_code == 400
        assert client.put("/moves/start", content=b"").status_code == 405


def test_get_changes_nothing() -> None:
    """What changes something cannot be linked to."""
    entrance = FakeEntrance()
    with browser(entrance) as client:
        for path in ("/moves/start", "/topics/flights/delete", "/groups/billing/reset/apply", "/logout"):
            assert client.get(path).status_code in {404, 405}
        assert entrance.admin.changes == []


# --- logging in -------------------------------------------------------------------------------------------------------


def log_in(client: object, user: str = "ann", password: str = "right", **more: str) -> object:
    token = csrf_of(client, "/login")  # type: ignore[arg-type]
    return client.post("/login", data={"user": user, "password": password, "csrf": token, **more})  # type: ignore[attr-defined]


def test_login_is_needed_where_brokers_ask_for_passwords() -> None:
    """Every page leads to it, and back; a fragment is told to go there."""
    with browser(FakeEntrance({"ann": "right"})) as client:
        answer = client.get("/groups/billing")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fgroups%2Fbilling")
        renewed = client.get("/groups/billing", headers={"hx-request": "true"})
        assert (renewed.status_code, renewed.headers["hx-redirect"]) == (401, "/login")
        answer = log_in(client, next="/groups/billing")
        assert (answer.status_code, answer.headers["location"]) == (303, "/groups/billing")
        page = client.get("/groups/billing")
        assert page.status_code == 200
        assert '<span class="who">ann</span>' in page.text


def test_wrong_password_is_refused_without_a_hint() -> None:
    """The same words for an unknown user and a wrong password; the password is not shown again."""
    with browser(FakeEntrance({"ann": "right"})) as client:
        wrong, unknown = log_in(client, password="sesame"), log_in(client, user="bob", password="sesame")
        assert wrong.status_code == unknown.status_code == 401
        for answer in (wrong, unknown):
            assert "Wrong user name or password." in answer.text
            assert "sesame" not in answer.text


def test_login_gives_a_new_cookie() -> None:
    """Session fixation: a cookie that somebody was given beforehand is worth nothing after the login."""
    with browser(FakeEntrance({"ann": "right"})) as client:
        client.get("/login")
        before = client.cookies["pylog-1"]
        log_in(client)
        after = client.cookies["pylog-1"]
        assert before != after
        client.cookies.clear()
        client.cookies.set("pylog-1", before)
        assert client.get("/topics").status_code == 303


def test_who_logs_in_again_leaves_no_session_behind() -> None:
    """The former one ends with its connection: its cookie may be anywhere."""
    entrance = FakeEntrance({"ann": "right"})
    with browser(entrance) as client:
        log_in(client)
        log_in(client)
        assert [each.admin.is_closed for each in entrance.given] == [True, False]  # type: ignore[attr-defined]


def test_page_that_renews_itself_keeps_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser that was left open is logged out after a while."""
    monkeypatch.setattr(sessions, "IDLE_S", 0.3)
    with browser(FakeEntrance({"ann": "right"})) as client:
        log_in(client)
        for _ in range(2):
            time.sleep(0.2)
            answer = client.get("/topics", headers={"hx-request": "true"})
        assert answer.status_code == 401


def test_requests_of_the_console_are_short() -> None:
    """Pages wait for no broker as long as scripts may."""
    for given, used in ((60_000, REQUEST_TIMEOUT_MS), (1_000, 1_000)):
        made = Entrance({"bootstrap.servers": "127.0.0.1:1", "request.timeout.ms": given}).shared()
        assert made.settings["request.timeout.ms"] == used
        made.close()


def test_who_waits_for_anothers_answer_waits_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all threads would wait behind one question."""
    monkeypatch.setattr(connection, "_ASKING_LIMIT_S", 0.05)
    cache, is_asked, is_over = AnswerCache(), threading.Event(), threading.Event()

    def question() -> None:
        is_asked.set()
        is_over.wait(5.0)

    asker = threading.Thread(target=cache.ask, args=("lags", question))
    asker.start()
    try:
        assert is_asked.wait(5.0)
        with pytest.raises(RequestTimedOutError, match=r"has not answered within 0\.05 s"):
            cache.ask("lags", question)
    finally:
        is_over.set()
        asker.join(5.0)


def test_cookie_is_for_this_site_and_no_script() -> None:
    """HttpOnly, SameSite=Strict, Path=/; with TLS Secure and bound to the host."""
    with browser(FakeEntrance({"ann": "right"})) as client:
        cookie = client.get("/login").headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Path=/" in cookie
        assert "Domain" not in cookie
    with browser(FakeEntrance(), is_encrypted=True) as client:
        answer = client.get("/")
        assert answer.headers["set-cookie"].startswith("__Host-pylog-1=")
        assert "Secure" in answer.headers["set-cookie"]


def test_logout_ends_the_session_and_its_connection() -> None:
    """The cookie is worth nothing afterwards, also where somebody kept it."""
    entrance = FakeEntrance({"ann": "right"})
    with browser(entrance) as client:
        log_in(client)
        kept = client.cookies["pylog-1"]
        assert client.post("/logout", data={"csrf": csrf_of(client, "/topics")}).status_code == 303
        assert entrance.given[0].admin.is_closed  # type: ignore[attr-defined]
        client.cookies.set("pylog-1", kept)
        assert client.get("/topics").status_code == 303


def test_guessing_is_slowed_down() -> None:
    """After five wrong passwords even the right one has to wait."""
    with browser(FakeEntrance({"ann": "right"})) as client:
        for _ in range(5):
            assert log_in(client, password="wrong").status_code == 401
        answer = log_in(client)
        assert answer.status_code == 429
        assert "Try again in" in answer.text


def test_session_that_brokers_no_longer_accept_ends() -> None:
    """A user that is gone, or has another password, logs in again and is told why."""
    entrance = FakeEntrance({"ann": "right"})
    with browser(entrance) as client:
        log_in(client)
        entrance.given[0].admin.refuses["*"] = SaslAuthenticationError("the token has ended")  # type: ignore[attr-defined]
        assert client.get("/topics").headers["location"] == "/login?next=%2Ftopics"
        assert "no longer accept this session" in client.get("/login").text
        assert entrance.given[0].admin.is_closed  # type: ignore[attr-defined]
        entrance.given[0].admin.refuses.clear()  # type: ignore[attr-defined]
        assert client.get("/topics").status_code == 303


def test_login_says_when_no_broker_answers() -> None:
    """That is another thing than a wrong password, and does not count as one."""
    entrance = FakeEntrance({"ann": "right"})
    entrance.error = BrokerUnavailableError("nobody answers at h:9001")
    with browser(entrance) as client:
        for _ in range(7):
            answer = log_in(client)
        assert answer.status_code == 503
        assert "Nobody answers at h:9001" in answer.text


@pytest.mark.parametrize(
    ("wanted", "goes_to"),
    [
        ("/topics?q=a", "/topics?q=a"), ("", "/"), ("https://evil.example", "/"), ("//evil.example", "/"),
        ("/\\evil.example", "/"), ("/a\r\nset-cookie: x", "/"), ("javascript:alert(1)", "/"), ("/logout", "/"),
    ],
)  # fmt: skip
def test_login_goes_to_a_page_of_this_console(wanted: str, goes_to: str) -> None:
    """Whatever a link asked for."""
    assert local_path(wanted) == goes_to


def test_password_is_in_no_connection() -> None:
    """The settings of a user's clients have its token in place of what the console was given."""
    entrance = Entrance(
        {"security.protocol": "sasl_ssl", "sasl.username": "root", "sasl.password": "secret", "token": "t"}
    )
    assert entrance.has_login
    assert "secret" not in repr(entrance)
    assert not Entrance({"security.protocol": "SSL"}).has_login
    assert not Entrance({}).has_login


@pytest.mark.parametrize(
    ("host", "has_login", "is_encrypted", "is_allowed"),
    [
        ("127.0.0.1", False, False, True), ("::1", False, False, True), ("localhost", True, False, True),
        ("0.0.0.0", False, False, False), ("10.0.0.1", False, True, False), ("0.0.0.0", True, False, False),
        ("0.0.0.0", True, True, True), ("console.example", False, False, False),
    ],
)  # fmt: skip
def test_listening_beyond_this_machine_needs_a_login_and_encryption(
    host: str, has_login: bool, is_encrypted: bool, is_allowed: bool
) -> None:
    """Where nobody is asked who they are, everybody could do what the console may; --allow-anyone says it is meant."""
    check_listening(host, has_login=has_login, is_encrypted=is_encrypted, allow_anyone=True)
    if is_allowed:
        check_listening(host, has_login=has_login, is_encrypted=is_encrypted, allow_anyone=False)
    else:
        with pytest.raises(InvalidConfigError, match="--allow-anyone"):
            check_listening(host, has_login=has_login, is_encrypted=is_encrypted, allow_anyone=False)
