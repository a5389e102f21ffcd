"""Each page over a cluster that is not there: what it shows, what it asks, what garbage does to it. No socket."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from broker_runtime.contract.acls import Acl
from broker_runtime.contract.errors import (
    BrokerUnavailableError,
    ClusterAuthorizationError,
    ElectionNotNeededError,
    GroupAuthorizationError,
    InvalidConfigError,
    NetworkError,
    PylogError,
    RequestTimedOutError,
)
from broker_runtime.contract.model import GroupOffset, OffsetAndTimestamp, Reassignment, TopicPartition
from broker_runtime.contract.requests import ConfigEntry
from pyspark_log.console.browsing import NOTHING, Browsed, Wanted
from pyspark_log.console.pages import ACTS, VIEWS, records
from tests.unit.console.fakes import FakeEntrance, browser, csrf_of, group, member, partition, topic

PARTS = {"topic": "flights", "group": "billing", "broker": "1"}
READS_RECORDS = "/topics/{topic}/records"  # through a consumer: with real brokers only (tests/console)
SHOWN = [path.format(**PARTS) for path, _ in VIEWS if path != READS_RECORDS]
GARBAGE = (
    "", " ", "0", "-1", "99999999999999999999999", "1e9", "nan", "٣", "a" * 5_000, "\u202e",
    "<script>alert(1)</script>", "'\"><img src=x onerror=alert(1)>", "{{ 7 * 7 }}", "..", "%00",
    "flights:0:9", "flights:0", "a,b,,c", "\x00", "😀", "=x",
)  # fmt: skip


@pytest.mark.parametrize("path", SHOWN)
def test_page_is_one_document(path: str) -> None:
    """One heading of the first level, landmarks, a language, a skip link, a label for each field, a scope for each
    table's heading."""
    with browser(FakeEntrance()) as client:
        answer = client.get(path)
        assert answer.status_code == 200
        text = answer.text
        assert text.count("<h1") == 1
        assert text.startswith('<!doctype html>\n<html lang="en">')
        for needed in ('<main id="main"', '<nav id="menu"', 'href="#main"', 'aria-current="page"'):
            assert needed in text
        labelled = set(re.findall(r'<label for="([^"]+)"', text))
        fields = re.findall(r"<(?:input|select|textarea)\b[^>]*>", text)
        visible = [each for each in fields if 'type="hidden"' not in each]
        assert all(re.search(r'\bid="([^"]+)"', each)[1] in labelled for each in visible)  # type: ignore[index]
        assert "<th>" not in text
        ids = re.findall(r'\bid="([^"]+)"', text)
        assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    "path", ["/", "/topics", "/topics/flights", "/groups", "/groups/billing", "/queries", "/moves"]
)
def test_fragment_is_what_is_live(path: str) -> None:
    """A page that renews itself gets its live part alone, with the same figures."""
    with browser(FakeEntrance()) as client:
        fragment = client.get(path, headers={"hx-request": "true", "hx-request-type": "partial"})
        assert fragment.status_code == 200
        assert "<html" not in fragment.text
        whole = client.get(path).text
        assert fragment.headers["vary"] == "HX-Request"
        steady = re.sub(r'data-series="[^"]*"', "", fragment.text.strip())
        assert steady in re.sub(r'data-series="[^"]*"', "", whole)


def test_overview_says_what_needs_attention() -> None:
    """A partition with a replica out of sync is named, with its state in words."""
    entrance = FakeEntrance()
    with browser(entrance) as client:
        text = client.get("/").text
        assert "1 degraded partition" in text
        assert "flights:1" in text
        assert "under-replicated" in text
        entrance.admin.topics = {"flights": topic("flights", partition(0))}
        assert "The cluster is healthy" in client.get("/").text
        entrance.admin.topics = {"flights": topic("flights", partition(0, leader=None, isr=(3,)))}
        text = client.get("/").text
        assert "1 partition offline" in text
        assert "has no leader" in text


def test_empty_cluster_tells_the_first_command() -> None:
    """Where there is nothing yet, pages say how to begin."""
    entrance = FakeEntrance()
    entrance.admin.topics, entrance.admin.groups, entrance.admin.offsets, entrance.admin.moves = {}, {}, {}, {}
    with browser(entrance) as client:
        assert "pylog topic create hello" in client.get("/").text
        assert "pylog topic create hello" in client.get("/topics").text
        assert "pylog consume TOPIC -g NAME" in client.get("/groups").text
        assert "No partition is being moved" in client.get("/moves").text


def test_thousand_topics_cost_as_many_calls_as_one() -> None:
    """No page asks for each topic; a table shows fifty of them at a time, and finds and sorts all."""
    calls: list[dict[str, int]] = []
    for count in (1, 1_000):
        entrance = FakeEntrance()
        entrance.admin.topics = {f"topic-{each:04}": topic(f"topic-{each:04}") for each in range(count)}
        with browser(entrance) as client:
            for path in ("/", "/topics", "/topics?q=topic&sort=size&page=2", "/groups", "/brokers", "/moves"):
                answer = client.get(path)
                assert answer.status_code == 200
                assert answer.text.count("<tr>") < 120
            if count > 1:
                assert "page 20 of 20" in client.get("/topics?page=99").text
                assert "topic-0777" in client.get("/topics?q=0777").text
            else:
                client.get("/topics?page=99")
                client.get("/topics?q=0777")
        calls.append(dict(entrance.admin.calls))
    assert calls[0] == calls[1]


def test_group_says_why_it_is_behind() -> None:
    """Nobody reads; and what a lag is made of."""
    entrance = FakeEntrance()
    with browser(entrance) as client:
        text = client.get("/groups/nobody").text
        assert "no members and a lag of 9 records" in text
        assert "100 % of the lag is in flights:0" in text
        listed = client.get("/groups").text
        assert "no members" in listed
        assert listed.index("nobody</a>") < listed.index("billing</a>")
        assert "data-series" in client.get("/groups/billing").text


def test_reset_shows_what_changes_before_it_changes() -> None:
    """What is applied is what was shown: the offsets of the form."""
    entrance = FakeEntrance()
    with browser(entrance) as client:
        page = client.get("/groups/nobody/reset?to=latest")
        assert "skips 9 records" in page.text
        assert client.get("/groups/nobody/reset?to=nix").status_code == 400
        assert entrance.admin.changes == []
        offsets = re.findall(r'name="offset" value="([^"]+)"', page.text)
        assert offsets == ["flights:0:10", "flights:1:10"]
        sent = {"csrf": csrf_of(client), "offset": offsets, "to": "latest"}
        answer = client.post("/groups/nobody/reset/apply", data=sent)
        assert (answer.status_code, answer.headers["location"]) == (303, "/groups/nobody")
        assert entrance.admin.changes == [("alter_group_offsets", "nobody", {("flights", 0): 10, ("flights", 1): 10})]


def test_reset_to_the_end_of_a_log_that_grows_is_not_called_outside() -> None:
    """Offsets are resolved before the logs' ends are read, so that records written between do not look lost."""
    entrance = FakeEntrance()
    ends = iter(range(10, 100))

    def list_offsets(wanted: dict[TopicPartition, Any]) -> dict[TopicPartition, OffsetAndTimestamp]:
        end = next(ends)
        return {at: OffsetAndTimestamp(end if place == "latest" else 0, -1) for at, place in wanted.items()}

    entrance.admin.list_offsets = list_offsets  # type: ignore[method-assign,assignment]
    with browser(entrance) as client:
        page = client.get("/groups/nobody/reset?to=latest").text
        assert "outside the log" not in page
        assert "skips" in page


def test_reset_is_refused_while_there_are_members() -> None:
    """Who they are is said, and nothing is changed; what was typed is still there."""
    entrance = FakeEntrance()
    with browser(entrance) as client:
        page = client.get("/groups/billing/reset?to=latest").text
        assert "reader-1 on host-1" in page
        assert "disabled" in page
        sent = {"csrf": csrf_of(client), "offset": "flights:0:10", "to": "latest"}
        answer = client.post("/groups/billing/reset/apply", data=sent)
        assert answer.status_code == 400
        assert "Nothing was changed." in answer.text
        assert "Stop them first" in answer.text
        assert 'name="to" value="latest"' in answer.text
        assert entrance.admin.changes == []


def test_move_shows_how_far_it_has_come() -> None:
    """In percent of what was left when somebody first looked."""
    entrance = FakeEntrance()
    at = TopicPartition("flights", 0)
    with browser(entrance) as client:
        for lag, shown in ((100, "0 %"), (25, "75 %"), (-1, "\N{EN DASH}"), (0, "100 %")):
            entrance.admin.moves = {at: Reassignment(target=(2, 3), original=(1, 2), lag=lag)}
            assert shown in client.get("/moves").text


@pytest.mark.parametrize(
    ("path", "form", "change"),
    [
        ("/topics/flights/settings", {"name": "retention.ms", "value": "1h", "do": "set"},
            ("alter_config", "flights", {"retention.ms": "1h"})),
        ("/topics/flights/settings", {"name": "retention.ms", "value": "", "do": "remove"},
            ("alter_config", "flights", {"retention.ms": None})),
        ("/topics/flights/partitions", {"total": "7"}, ("create_partitions", "flights", 7)),
        ("/topics/flights/delete", {"confirm": "flights"}, ("delete_topic", "flights")),
        ("/topics-new/create", {"name": "made", "partitions": "3", "config": "retention.ms=7d"},
            ("create_topic", "made", 3, None, None, None, {"retention.ms": "7d"})),
        ("/groups/billing/remove", {"member": ["a", "b"]}, ("remove_group_members", "billing", ["a", "b"])),
        ("/groups/billing/delete", {"confirm": "billing"}, ("delete_group", "billing")),
        ("/transactions/abort", {"id": "query-1", "confirm": "yes"}, ("abort_transactions", "query-1")),
        ("/moves/cancel", {"partition": "flights:0"}, ("reassign_partitions", {("flights", 0): None})),
        ("/moves/elect", {"partitions": "flights:0"}, ("elect_leaders", [("flights", 0)], "preferred")),
        ("/moves/elect", {}, ("elect_leaders", None, "preferred")),
        ("/moves/elect", {"partitions": "flights:0", "election": "unclean", "confirm": "unclean"},
            ("elect_leaders", [("flights", 0)], "unclean")),
    ],
)  # fmt: skip
def test_form_asks_for_its_change(path: str, form: dict[str, Any], change: tuple[Any, ...]) -> None:
    """One call of `Admin`, with what was typed, and a page that says what was done."""
    entrance = FakeEntrance()
    with browser(entrance) as client:
        answer = client.post(path, data={**form, "csrf": csrf_of(client)})
        assert answer.status_code == 303
        assert entrance.admin.changes == [change]
        assert 'class="notice"' in client.get(answer.headers["location"]).text


@pytest.mark.parametrize(
    ("path", "form", "said"),
    [
        ("/topics/flights/settings", {"name": "nix", "value": "1"}, "must be one of"),
        ("/topics/flights/settings", {"name": "retention.ms", "value": " "}, "give a value"),
        ("/topics/flights/partitions", {"total": "many"}, "must be a number"),
        ("/topics/flights/columns", {"columns": ""}, "must be given"),
        ("/topics/flights/columns", {"columns": "a nixtype"}, "nixtype"),
        ("/topics/flights/delete", {"confirm": "flight"}, "name, flights, to delete it"),
        ("/topics-new/create", {"name": "a b"}, "cannot name a topic") ,
        ("/topics-new/create", {"name": "made", "config": "retention"}, "must be NAME=VALUE"),
        ("/groups/billing/remove", {}, "hoose the members"),
        ("/groups/billing/delete", {"confirm": "x"}, "ype the group"),
        ("/groups/nobody/reset/apply", {"offset": "flights:0:x"}, "must be TOPIC:PARTITION:OFFSET"),
        ("/groups/nobody/reset/apply", {"offset": "flights:0:" + "9" * 19}, "must be TOPIC:PARTITION:OFFSET"),
        ("/groups/nobody/reset/apply", {}, "here is nothing to change"),
        ("/transactions/abort", {"id": "query-1"}, "ick the box"),
        ("/moves/start", {"partition": "flights", "replicas": "1"}, "must be TOPIC:PARTITION"),
        ("/moves/start", {"partition": "flights:0", "replicas": "one"}, "must be broker ids"),
        ("/moves/elect", {"election": "unclean"}, "an unclean election needs partition names"),
        ("/moves/elect", {"election": "unclean", "partitions": "flights:0"}, "ype unclean"),
    ],
)  # fmt: skip
def test_wrong_form_is_shown_again_with_one_sentence(path: str, form: dict[str, Any], said: str) -> None:
    """Beside the form it is about; nothing was asked of the cluster."""
    entrance = FakeEntrance()
    entrance.admin.refuses["create_topic"] = InvalidConfigError("'a b' cannot name a topic")
    with browser(entrance) as client:
        answer = client.post(path, data={**form, "csrf": csrf_of(client)})
        assert answer.status_code == 400
        assert answer.text.count('role="alert"') == 1
        alert = answer.text.split('role="alert">', 1)[1].split("</p>", 1)[0]
        assert said in alert
        assert "Nothing was changed." in alert
        assert entrance.admin.changes == []


def test_what_a_user_may_not_do_is_said_in_words() -> None:
    """The brokers refuse; the page is shown again with their reason, and the right status."""
    entrance = FakeEntrance()
    entrance.admin.refuses["delete_group"] = GroupAuthorizationError("User:ann may not Delete group 'billing'")
    with browser(entrance) as client:
        answer = client.post("/groups/billing/delete", data={"confirm": "billing", "csrf": csrf_of(client)})
        assert answer.status_code == 403
        assert "User:ann may not Delete group" in answer.text
        assert 'hx-get="/groups/billing"' in answer.text


@pytest.mark.parametrize(
    ("error", "action", "said"),
    [
        (NetworkError("the connection broke"), "/moves/start", "It is not known whether this was done"),
        (RequestTimedOutError("no answer"), "/moves/elect", "It is not known whether this was done"),
        (
            ElectionNotNeededError("flights:0 is led by its preferred replica"),
            "/moves/elect",
            "This may have been done in part.",
        ),
        (ClusterAuthorizationError("no"), "/moves/start", "Nothing was changed."),
    ],
)
def test_what_was_done_is_not_claimed_wrongly(error: Exception, action: str, said: str) -> None:
    """After a lost answer nobody knows; of several partitions, some may be done."""
    entrance = FakeEntrance()
    entrance.admin.refuses.update(reassign_partitions=error, elect_leaders=error)
    with browser(entrance) as client:
        form = {"partition": "flights:0", "replicas": "1", "partitions": "flights:0"}
        answer = client.post(action, data={**form, "csrf": csrf_of(client)})
        assert answer.status_code >= 400
        assert said in answer.text


@pytest.mark.parametrize(
    ("error", "again", "said"),
    [
        (RequestTimedOutError("no answer"), RequestTimedOutError("no answer"), "It is not known whether this was done"),
        (ClusterAuthorizationError("User:ann may not"), NetworkError("it broke"), "User:ann may not"),
        (ClusterAuthorizationError("User:ann may not"), NetworkError("it broke"), "Nothing was changed."),
        (RequestTimedOutError("no answer"), RuntimeError("a defect"), "It is not known whether this was done"),
        (RuntimeError("a defect"), None, "It is not known whether this was done"),
    ],
)
def test_outcome_is_said_where_the_page_cannot_be_shown_again(
    error: Exception, again: Exception | None, said: str
) -> None:
    """A controller that does not carry out a move does not list moves either."""
    entrance = FakeEntrance()
    with browser(entrance) as client:
        token = csrf_of(client)
        entrance.admin.refuses.update(reassign_partitions=error)
        if again is not None:
            entrance.admin.refuses.update(list_reassignments=again)
        answer = client.post("/moves/start", data={"partition": "flights:0", "replicas": "1", "csrf": token})
        assert answer.status_code >= 400
        assert said in answer.text


def test_page_of_a_wide_topic_has_fewer_rows_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand rows of a thousand columns would keep the console busy for minutes. What was asked for stays typed."""
    asked: list[Wanted] = []

    def browse(_: Any, __: Any, wanted: Wanted) -> Browsed:
        asked.append(wanted)
        return NOTHING

    monkeypatch.setattr(records, "browse", browse)
    entrance = FakeEntrance()
    entrance.admin.topics["wide"] = topic(
        "wide", schema=pa.schema([(f"c{number}", pa.int64()) for number in range(1_000)])
    )
    with browser(entrance) as client:
        page = client.get("/topics/wide/records?rows=1000").text
        assert "a page shows at most 50 rows" in page
        assert 'value="1000"' in page
        assert "a page shows at most" not in client.get("/topics/wide/records?rows=1000&columns=c1,c2").text
    assert [each.rows for each in asked] == [50, 1_000]
    assert asked[0].start == "-50"


def test_what_a_user_may_not_see_leaves_the_rest() -> None:
    """Sizes and ACLs need rights that not everybody has."""
    entrance = FakeEntrance()
    for name in ("describe_log_dirs", "describe_acls", "list_users", "describe_config", "list_group_lags"):
        entrance.admin.refuses[name] = ClusterAuthorizationError("no")
    with browser(entrance) as client:
        for path in ("/topics", "/topics/flights", "/access", "/brokers/1", "/groups"):
            answer = client.get(path)
            assert answer.status_code == 200
            assert "You may not see this." in answer.text


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (BrokerUnavailableError("h:9001 refused for 5 s"), 503, "The cluster does not answer"),
        (ClusterAuthorizationError("User:ann may not Describe"), 403, "You may not see this"),
        (RuntimeError("a secret detail"), 500, "This is a bug in pylog"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [path for path in SHOWN if path not in {"/topics-new", "/access"}])
def test_failure_is_a_page(path: str, error: Exception, status: int, said: str) -> None:
    """Never a traceback; a cluster that is away is asked again by the page itself."""
    entrance = FakeEntrance()
    entrance.admin.refuses["*"] = error
    with browser(entrance) as client:
        answer = client.get(path)
        assert answer.status_code == status
        assert said in answer.text
        assert "Traceback" not in answer.text
        assert "a secret detail" not in answer.text
        if status == 503:
            assert "hx-trigger" in answer.text
        fragment = client.get(path, headers={"hx-request": "true"})
        assert fragment.status_code == status
        assert "<html" not in fragment.text


def test_unknown_things_are_not_found() -> None:
    """404, with the name."""
    with browser(FakeEntrance()) as client:
        for path, said in (
            ("/topics/nix", "nix"),
            ("/groups/nix", "nix"),
            ("/nix", "no such page"),
            ("/brokers/7", "broker 7"),
        ):
            answer = client.get(path)
            assert answer.status_code in {400, 404}
            assert said in answer.text


@pytest.mark.parametrize("path", [path for path, _ in VIEWS if path != READS_RECORDS])
def test_garbage_is_refused_in_words(path: str) -> None:
    """In every part of a path and every parameter: a page with a status below 500, and nothing of it as markup."""
    names = ("q", "sort", "page", "to", "topics", "partition", "replicas", "from", "rows")
    with browser(FakeEntrance()) as client:
        for text in GARBAGE:
            answers = [client.get(path.format(**PARTS), params={name: text}) for name in names]
            if "{" in path and text.isprintable() and text not in {"", ".."} and "/" not in text:
                answers.append(
                    client.get(path.replace("{topic}", text).replace("{group}", text).replace("{broker}", text))
                )
            for answer in answers:
                assert answer.status_code < 500, (path, text)
                assert "<script>alert" not in answer.text
                assert "<img" not in answer.text


@pytest.mark.parametrize("path", [path for path, _ in ACTS if not path.endswith("/send")])
def test_garbage_in_forms_is_refused_in_words(path: str) -> None:
    """Likewise for what is sent, by any name."""
    names = (
        "name", "value", "do", "total", "columns", "confirm", "partitions", "replicas", "schema", "key", "config",
        "member", "offset", "id", "partition", "election", "to", "topics",
    )  # fmt: skip
    entrance = FakeEntrance()
    with browser(entrance) as client:
        token = csrf_of(client)
        for text in GARBAGE:
            answer = client.post(path.format(**PARTS), data={**dict.fromkeys(names, text), "csrf": token})
            assert answer.status_code < 500, (path, text)
            assert "<script>alert" not in answer.text
            assert "<img" not in answer.text


XSS = "<img src=x onerror=alert(1)>\"'"


def test_names_of_strangers_are_text() -> None:
    """Group ids, client ids, hosts, settings, principals and users are whatever somebody chose."""
    entrance = FakeEntrance()
    admin = entrance.admin
    nasty = member(XSS, host=XSS, member_id=XSS)
    admin.groups = {XSS.replace("/", ""): group(XSS, nasty), "spark": group("spark", nasty, kind="spark")}
    admin.offsets = {XSS: {TopicPartition("flights", 0): GroupOffset(1, 5, 4)}}
    admin.acls = [Acl(principal=f"User:{XSS}", operation="Read", resource_type="Topic", name=XSS)]
    admin.users = [XSS]
    admin.describe_config = lambda resource: {"retention.ms": ConfigEntry(value=XSS, source=XSS)}  # type: ignore[method-assign]
    admin.topics["flights"] = topic("flights", schema=pa.schema([pa.field(XSS, pa.int64())]))
    with browser(entrance) as client:
        from urllib.parse import quote

        one = f"/groups/{quote(XSS, safe='')}"
        for path in ("/groups", one, f"{one}/reset?to=earliest", "/queries", "/access", "/topics/flights", "/brokers/1",
                     "/topics/flights/produce", f"/access?q={quote(XSS)}", f"/topics?q={quote(XSS)}"):  # fmt: skip
            answer = client.get(path)
            assert answer.status_code == 200, path
            assert "<img" not in answer.text, path
            assert "&lt;img" in answer.text, path
        admin.refuses["delete_group"] = PylogError(XSS)
        refused = client.post(f"{one}/delete", data={"confirm": XSS, "csrf": csrf_of(client)})
        assert refused.status_code == 400
        assert "<img" not in refused.text


def test_group_whose_id_is_strange_has_working_links() -> None:
    """Its links lead to it: every character of an id is one part of a path."""
    entrance = FakeEntrance()
    name = "a b?c#d&é"  # the client of these tests would decode a % twice
    entrance.admin.groups = {name: group(name)}
    entrance.admin.offsets = {name: {}}
    with browser(entrance) as client:
        link = re.search(r'href="(/groups/[^"]+)"', client.get("/groups").text)
        assert link is not None
        page = client.get(link[1])
        assert page.status_code == 200
        assert f'hx-get="{link[1]}"' in page.text
        assert client.get(f"{link[1]}/reset").status_code == 200
