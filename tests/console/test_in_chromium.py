"""The console in a real Chromium, over real brokers: every page by clicking, what it says to the browser's log, axe.

One cluster and one browser for all. Skipped where the machine has no Chromium.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from pyspark_log import Admin, Consumer, Producer, TopicPartition
from pyspark_log.console.serving import ConsoleServer
from pyspark_log.testing import LocalCluster

CHROMIUM = os.environ.get("PYLOG_TEST_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt install chromium)")

LIMIT_MS = 20_000
expect.set_options(timeout=LIMIT_MS)
RECORDS = 400
MAY_ASK = (
    "document.getElementById('live').dispatchEvent("
    "new CustomEvent('htmx:before:request', {bubbles: true, cancelable: true}))"
)
XSS = "<img src=x onerror=alert(1)>"
ABOUT_COLOURS = ["color-contrast", "link-in-text-block"]  # the rules of axe
NAVIGATION = (
    "Overview",
    "Topics",
    "Groups",
    "Spark queries",
    "Transactions",
    "Brokers",
    "Moves and leaders",
    "Users and ACLs",
)
PAGES = (
    "/", "/topics", "/topics-new", "/topics/flights", "/topics/flights/records?histogram=delay",
    "/topics/plain/records", "/topics/flights/produce", "/groups", "/groups/behind", "/groups/behind/reset?to=latest",
    "/queries", "/transactions", "/brokers", "/brokers/1", "/moves", "/access", "/nix",
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two brokers; a typed topic and a plain one with records, and groups that are behind."""
    with LocalCluster(2) as started, Admin(started.bootstrap_servers) as admin:
        admin.create_topic(
            "flights",
            partitions=2,
            replication_factor=2,
            schema="carrier string, delay int32, at timestamp",
            key="carrier",
        )
        admin.create_topic("plain", partitions=1, replication_factor=2)
        write_flights(started, RECORDS)
        with Producer(started.bootstrap_servers) as producer:
            producer.send("plain", XSS, key=XSS, headers=[(XSS, XSS.encode())])
            producer.send("plain", b"\x00\xff")
            producer.flush(10)
        beginnings = {TopicPartition("flights", number): 0 for number in (0, 1)}
        for group in ("behind", "mended", "watched", XSS.replace("/", "")):
            admin.alter_group_offsets(group, beginnings)
        yield started


def write_flights(cluster: LocalCluster, count: int) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(count):
            producer.send("flights", {"carrier": f"C{number % 7}", "delay": number % 90, "at": None})
        producer.flush(20)


@pytest.fixture(scope="module")
def address(cluster: LocalCluster) -> Iterator[str]:
    server = ConsoleServer({"bootstrap.servers": cluster.bootstrap_servers}, port=0)
    server.start()
    yield server.address.rstrip("/")
    server.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


Visit = Callable[..., Any]


@pytest.fixture
def visit(chromium: Browser, address: str) -> Visit:
    """Opens a tab: a context manager, which ends with no word in the browser's log but those named ``expected``."""

    @contextmanager
    def opened(path: str = "/", *, expected: tuple[str, ...] = (), **options: Any) -> Iterator[Page]:
        said: list[str] = []
        context = chromium.new_context(base_url=address, **options)
        context.set_default_timeout(LIMIT_MS)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(path)
        try:
            yield page
            assert [text for text in said if not any(part in text for part in expected)] == []
        finally:
            context.close()

    return opened


def renewed(page: Page) -> None:
    """Waits until the page has renewed itself once more."""
    with page.expect_response(lambda response: response.request.headers.get("hx-request") == "true"):
        pass


def test_every_page_is_reached_by_clicking(visit: Visit) -> None:
    """From the navigation to each page, and from each to what it names."""
    with visit() as page:
        for name in NAVIGATION:
            page.get_by_role("navigation", name="Main").get_by_role("link", name=name, exact=True).click()
            expect(page.get_by_role("heading", level=1)).to_have_count(1)
            expect(page.locator("nav a[aria-current=page]")).to_have_text(name)
        page.get_by_role("link", name="Topics", exact=True).click()
        page.get_by_role("link", name="flights", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("flights")
        page.get_by_role("link", name="Browse records").click()
        expect(page.get_by_role("heading", name="100 records")).to_be_visible()
        page.get_by_role("link", name="flights", exact=True).click()
        page.get_by_role("link", name="Write a record").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Write a record to flights")
        page.get_by_role("link", name="Brokers", exact=True).click()
        page.get_by_role("link", name="2", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Broker 2")


def test_pages_are_accessible(visit: Visit) -> None:
    """axe finds nothing on any page, not even what is minor, in either theme; no page is wider than a telephone.
    The themes differ in their colours alone."""
    found: dict[str, list[str]] = {}
    with visit(expected=("404",)) as page:
        for path in PAGES:
            page.set_viewport_size({"width": 1280, "height": 800})
            page.emulate_media(color_scheme="light")
            page.goto(path)
            violations = Axe().run(page).response["violations"]
            page.emulate_media(color_scheme="dark")
            violations += Axe().run(page, options={"runOnly": ABOUT_COLOURS}).response["violations"]
            wrong = [f"{each['id']}: {[node['html'][:200] for node in each['nodes'][:3]]}" for each in violations]
            page.set_viewport_size({"width": 390, "height": 844})
            if page.evaluate("document.documentElement.scrollWidth") > 390:
                wrong.append("wider than a telephone")
            if wrong:
                found[path] = wrong
    assert found == {}


def test_login_is_accessible(visit: Visit) -> None:
    """The one page that a cluster without passwords does not have; a failed login says so beside the fields."""
    server = ConsoleServer({"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT"}, port=0)
    server.start()
    try:
        with visit(f"{server.address}groups", expected=("503",)) as page:
            expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
            assert Axe().run(page).response["violations"] == []
            page.get_by_label("User").fill("ann")
            page.get_by_label("Password").fill("a password")
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_role("alert")).to_contain_text("127.0.0.1:1")
            expect(page.get_by_label("Password")).to_have_value("")
            assert Axe().run(page).response["violations"] == []
    finally:
        server.close()


def test_lagging_group_is_found_and_mended(visit: Visit, cluster: LocalCluster) -> None:
    """From the overview to the cause, to a reset whose consequences were shown first."""
    with visit() as page:
        page.get_by_role("link", name="mended", exact=True).click()
        expect(page.locator(".diagnosis")).to_contain_text(f"no members and a lag of {RECORDS} records")
        page.get_by_role("link", name="Reset offsets").click()
        page.get_by_label("Reset to").fill("latest")
        page.get_by_role("button", name="Show what changes").click()
        expect(page.get_by_role("row", name="flights:0")).to_contain_text("skips")
        page.get_by_role("button", name="Reset 2 partitions").click()
        expect(page.locator(".notice")).to_contain_text("Reset 2 partitions of group mended.")
        expect(page.locator(".diagnosis")).to_contain_text("The group keeps up.")
    with Admin(cluster.bootstrap_servers) as admin:
        assert sum(each.lag for each in admin.list_group_offsets("mended").values()) == 0


def test_reset_waits_for_members(visit: Visit, cluster: LocalCluster) -> None:
    """Who reads is named; they can be removed; the reset's button does nothing before."""
    with Consumer(
        "plain",
        bootstrap_servers=cluster.bootstrap_servers,
        group_id="busy",
        client_id="the-reader",
        enable_auto_commit=False,
    ) as consumer:
        consumer.poll(0.1)
        consumer.commit({TopicPartition("plain", 0): 0})
        with visit("/groups/busy") as page:
            expect(page.get_by_role("table").filter(has_text="the-reader").first).to_be_visible()
            page.get_by_role("link", name="Reset offsets").click()
            page.get_by_label("Reset to").fill("latest")
            page.get_by_role("button", name="Show what changes").click()
            expect(page.get_by_role("button", name="Reset 1 partition")).to_be_disabled()
            page.get_by_role("link", name="busy").click()
            page.get_by_label("the-reader").check()
            page.get_by_role("button", name="Remove").click()
            expect(page.locator(".notice")).to_contain_text("Removed 1 member.")


def test_page_renews_itself_and_keeps_focus_and_forms(visit: Visit, cluster: LocalCluster) -> None:
    """What was written meanwhile shows without a reload, the chart grows; focus and what was typed stay; it pauses."""
    with visit("/groups/watched") as page:
        lag = page.locator("dl.tiles dd").first
        expect(lag).to_contain_text(str(RECORDS))
        page.get_by_label("Type watched to delete").fill("half a wo")
        link = page.locator("#p-flights-0")
        link.focus()
        write_flights(cluster, 25)
        expect(lag).to_contain_text(str(RECORDS + 25))
        expect(link).to_be_focused()
        expect(page.get_by_label("Type watched to delete")).to_have_value("half a wo")
        expect(page.locator("#lag-chart canvas")).to_be_visible()
        renewed(page)
        expect(page.locator("#lag-chart canvas")).to_have_count(1)
        pause = page.get_by_role("button", name="Pause")
        pause.click()
        expect(pause).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#freshness")).to_contain_text("Paused")
        assert not page.evaluate(MAY_ASK)
        pause.click()
        assert page.evaluate(MAY_ASK)
        page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true})")
        assert not page.evaluate(MAY_ASK)  # a tab that nobody sees asks nothing


def test_records_are_read_written_and_counted(visit: Visit) -> None:
    """A predicate, a histogram, a record of one's own."""
    with visit("/topics/flights/records", expected=("400",)) as page:
        page.get_by_label("From").fill("earliest")
        page.get_by_label("Where").fill("delay >= 80 AND carrier = 'C1'")
        page.get_by_label("Histogram of").select_option("delay")
        page.get_by_role("button", name="Read").click()
        table = page.get_by_role("region", name="Records", exact=True)
        expect(table.get_by_role("row").nth(1)).to_contain_text("C1")
        expect(page.get_by_role("table", name="Histogram of delay")).to_be_visible()
        page.get_by_label("Where").fill("nix = 1")
        page.get_by_role("button", name="Read").click()
        expect(page.get_by_role("alert")).to_contain_text("nix")
        expect(page.get_by_label("Where")).to_have_value("nix = 1")
    with visit("/topics/flights/produce", expected=("400",)) as page:
        page.get_by_label("The record").fill('{"carrier": "ZZ", "delay": "soon"}')
        page.get_by_role("button", name="Write", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("delay")
        expect(page.get_by_label("The record")).to_have_value('{"carrier": "ZZ", "delay": "soon"}')
        page.get_by_label("The record").fill('{"carrier": "ZZ", "delay": 7, "at": "2026-01-31T12:00:00Z"}')
        page.get_by_label("Headers").fill("made: by hand")
        page.get_by_role("button", name="Write", exact=True).click()
        expect(page.locator(".notice")).to_contain_text("Wrote a record")
        expect(page.get_by_role("region", name="Records", exact=True)).to_contain_text("made: by hand")


def test_topic_is_made_changed_and_deleted(visit: Visit, cluster: LocalCluster) -> None:
    """With what was typed; and its deletion asks for its name."""
    with visit("/topics", expected=("400",)) as page:
        page.get_by_role("link", name="Create a topic").click()
        page.get_by_label("Name", exact=True).fill("made")
        page.get_by_label("Partitions").fill("2")
        page.get_by_label("Columns").fill("id int64")
        page.get_by_role("button", name="Create").click()
        expect(page.locator(".notice")).to_contain_text("Created topic made with 2 partitions.")
        page.get_by_label("Setting", exact=True).select_option("retention.ms")
        page.get_by_label("New value").fill("never ever")
        page.get_by_role("button", name="Set", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("retention.ms='never ever'")
        page.get_by_label("New value").fill("3d")
        page.get_by_role("button", name="Set", exact=True).click()
        expect(page.locator(".notice")).to_contain_text("Set retention.ms to 3d.")
        page.get_by_label("Names and types").fill("note string")
        page.get_by_role("button", name="Add columns").click()
        expect(page.locator(".notice")).to_contain_text("Added note.")
        page.get_by_label("Total partitions").fill("3")
        page.get_by_role("button", name="Add partitions").click()
        expect(page.locator(".notice")).to_contain_text("has 3 partitions now")
        with Admin(cluster.bootstrap_servers) as admin:
            described = admin.describe_topic("made")
        assert (len(described.partitions), described.schema.names) == (3, ["id", "note"])
        assert described.config["retention.ms"] == "3d"
        page.get_by_label("Type made to delete").fill("made")
        page.get_by_role("button", name="Delete", exact=True).click()
        expect(page.locator(".notice")).to_contain_text("Deleted topic made.")


def test_partition_is_moved_and_its_leader_elected(visit: Visit, cluster: LocalCluster) -> None:
    """The move is carried out; then the preferred replica leads."""
    with Admin(cluster.bootstrap_servers) as admin:
        before = admin.describe_topic("plain").partitions[0].replicas
        wanted = list(before)[::-1]
        with visit("/moves", expected=("400",)) as page:
            start = page.locator("form", has=page.get_by_role("heading", name="Move a partition"))
            start.get_by_label("Partition").fill("plain:0")
            start.get_by_label("Brokers").fill("7")
            start.get_by_role("button").click()
            expect(page.get_by_role("alert")).to_contain_text("7")
            start.get_by_label("Brokers").fill(",".join(map(str, wanted)))
            start.get_by_role("button").click()
            expect(page.locator(".notice")).to_contain_text("Moving plain:0")
            expect(page.locator("#live")).to_contain_text("No partition is being moved.")
            page.get_by_role("button", name="Elect").click()
            expect(page.locator(".notice")).to_contain_text("lect")
        moved = admin.describe_topic("plain").partitions[0]
        assert (list(moved.replicas), moved.leader) == (wanted, wanted[0])


def test_strangers_names_and_values_are_text(visit: Visit) -> None:
    """Nothing of a record or a group's id is markup: no image is asked for, no dialog opens."""
    with visit("/topics/plain/records") as page:
        expect(page.get_by_role("region", name="Records", exact=True)).to_contain_text(XSS)
        expect(page.get_by_role("region", name="Records", exact=True)).to_contain_text("0x00ff")
        page.goto("/groups")
        page.get_by_role("link", name=XSS.replace("/", "")).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(XSS.replace("/", ""))
        assert page.locator("img").count() == 0


def test_keyboard_reaches_the_content_first(visit: Visit) -> None:
    """Tab shows the skip link; Enter goes to the content; the next Tab is in it."""
    with visit("/topics") as page:
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.getElementById('main').contains(document.activeElement)")


def test_telephone_has_a_menu(visit: Visit) -> None:
    """It opens and closes without any script of ours."""
    with visit("/topics", viewport={"width": 390, "height": 844}, has_touch=True) as page:
        menu = page.get_by_role("navigation", name="Main")
        expect(menu).to_be_hidden()
        page.get_by_role("button", name="Menu").click()
        menu.get_by_role("link", name="Groups").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Consumer groups")


def test_theme_is_chosen_and_kept(visit: Visit) -> None:
    """System, light, dark; the next page has the same."""
    with visit("/", color_scheme="light") as page:
        button = page.get_by_role("button", name="Theme")
        button.click()
        button.click()
        expect(button).to_have_text("Theme: dark")
        page.get_by_role("link", name="Groups", exact=True).first.click()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_console_works_without_scripts(visit: Visit, cluster: LocalCluster) -> None:
    """Pages and forms need none."""
    with visit("/groups/behind/reset", java_script_enabled=False) as page:
        page.get_by_label("Reset to").fill("5")
        page.get_by_role("button", name="Show what changes").click()
        page.get_by_role("button", name="Reset 2 partitions").click()
        expect(page.locator(".notice")).to_contain_text("Reset 2 partitions")
    with Admin(cluster.bootstrap_servers) as admin:
        assert {each.committed for each in admin.list_group_offsets("behind").values()} == {5}


def test_page_says_when_nobody_answers_and_comes_back(chromium: Browser, visit: Visit) -> None:
    """A cluster that is away: a sentence within seconds, no traceback; when it is back, so is the page."""
    with LocalCluster(1) as small:
        server = ConsoleServer({"bootstrap.servers": small.bootstrap_servers}, port=0)
        server.start()
        try:
            with visit(f"{server.address}topics", expected=("503",)) as page:
                expect(page.locator("#live")).to_contain_text("No topics yet")
                small.stop(1)
                expect(page.get_by_role("alert")).to_contain_text("The cluster does not answer", timeout=30_000)
                expect(page.locator("#freshness")).to_contain_text("Not current since")
                page.goto(f"{server.address}groups")
                expect(page.get_by_role("heading", level=1)).to_have_text("The cluster does not answer")
                small.start(1)
                expect(page.get_by_role("heading", level=1)).to_have_text("Consumer groups", timeout=40_000)
        finally:
            server.close()
