"""The drawings of the concepts, as SVG: ``python -m docs`` writes them.

Each has a light ground of its own, so that it can be looked at on a dark page as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

FOLDER: Final = Path(__file__).parent / "pages" / "images"

# What a colour stands for, in all drawings.
PLAIN: Final = "#ffffff"
LOG: Final = "#dfe6f5"
LEADER: Final = "#ffccbc"
NEW: Final = "#fff3c4"
KEEPER: Final = "#dcefdc"
_INK: Final = "#263238"
_LINE: Final = "#607d8b"


class Drawing:
    """A drawing on a light ground; lengths are pixels, and y goes down."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = width, height
        self._title = title
        self._parts: list[str] = []

    def box(
        self, x: int, y: int, width: int, height: int, *lines: str, fill: str = PLAIN, dashed: bool = False
    ) -> None:
        """A box with lines of text in its middle."""
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{fill}" stroke="{_LINE}"{dashes}/>'
        )
        top = y + height / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(x + width // 2, int(top + 18 * number), line, anchor="middle")

    def heading(self, x: int, y: int, text: str) -> None:
        """Bold text that begins at a place."""
        self._parts.append(f'<text x="{x}" y="{y}" font-weight="bold">{escape(text)}</text>')

    def text(self, x: int, y: int, text: str, *, anchor: str = "start", small: bool = False) -> None:
        """Text at a place."""
        size = ' font-size="12"' if small else ""
        self._parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}"{size}>{escape(text)}</text>')

    def arrow(
        self, x1: int, y1: int, x2: int, y2: int, label: str = "", *, both: bool = False, dashed: bool = False
    ) -> None:
        """An arrow with a label above its middle."""
        begin = ' marker-start="url(#head)"' if both else ""
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<path d="M{x1} {y1}L{x2} {y2}" stroke="{_LINE}" stroke-width="1.6" marker-end="url(#head)"'
            f"{begin}{dashes}/>"
        )
        if label:
            self.text((x1 + x2) // 2, (y1 + y2) // 2 - 7, label, anchor="middle", small=True)

    def cells(
        self, x: int, y: int, texts: list[str], *, width: int = 44, fill: str = LOG, new: tuple[str, ...] = ()
    ) -> None:
        """Records of a log, side by side."""
        for number, text in enumerate(texts):
            self.box(x + number * width, y, width, 34, text, fill=NEW if text in new else fill)

    def svg(self) -> str:
        """The file."""
        width, height = self._size
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" font-family="DejaVu Sans, Verdana, Helvetica, sans-serif" font-size="14" fill="{_INK}">',
            f"<title>{escape(self._title)}</title>",
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{_LINE}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="8" fill="#f7f9fb"/>',
            *self._parts,
            "</svg>",
            "",
        ])  # fmt: skip


def architecture() -> Drawing:
    """Who speaks with whom."""
    drawing = Drawing(960, 430, "Producers, brokers, readers and ZooKeeper")
    drawing.heading(30, 34, "producers")
    drawing.box(30, 50, 170, 60, "Producer", "send · send_batch")
    drawing.box(30, 130, 170, 60, "Spark's sink", "writeStream · write")
    drawing.heading(330, 34, "brokers")
    drawing.box(310, 50, 340, 76, "", fill=PLAIN)
    drawing.heading(324, 74, "broker 1")
    drawing.box(324, 84, 150, 32, "flights-0 leader", fill=LEADER)
    drawing.box(486, 84, 150, 32, "flights-1 follower", fill=LOG)
    drawing.box(310, 150, 340, 76, "", fill=PLAIN)
    drawing.heading(324, 174, "broker 2")
    drawing.box(324, 184, 150, 32, "flights-0 follower", fill=LOG)
    drawing.box(486, 184, 150, 32, "flights-1 leader", fill=LEADER)
    drawing.arrow(444, 116, 444, 184)
    drawing.arrow(561, 184, 561, 116)
    drawing.text(502, 142, "the same bytes", anchor="middle", small=True)
    drawing.heading(770, 34, "readers")
    drawing.box(770, 50, 160, 60, "Consumer, read()", "Arrow batches")
    drawing.box(770, 130, 160, 60, "Spark's source", "readStream · read")
    drawing.arrow(200, 80, 310, 80, "frames")
    drawing.arrow(200, 160, 310, 168)
    drawing.arrow(650, 80, 770, 80, "frames")
    drawing.arrow(650, 180, 770, 165)
    drawing.box(30, 262, 620, 60, "", fill=LOG)
    drawing.heading(44, 284, "disks")
    drawing.text(44, 308, "flights-0/00000000000000000000.log   …index      flights-1/…")
    drawing.arrow(430, 226, 430, 262)
    drawing.box(30, 346, 900, 62, "", fill=KEEPER)
    drawing.heading(44, 370, "ZooKeeper: what brokers have agreed on")
    drawing.text(
        44,
        394,
        "who lives · who is controller · leaders, epochs and in-sync sets · topics · groups' offsets · decisions",
    )
    drawing.arrow(690, 226, 690, 346, both=True)
    drawing.text(700, 290, "each broker", small=True)
    return drawing


def partitions() -> Drawing:
    """A topic, its partitions, their records and segments."""
    drawing = Drawing(960, 330, "A topic of three partitions")
    drawing.heading(30, 34, "topic flights")
    for number, (count, key) in enumerate([(9, "UA"), (6, "AA"), (8, "DL")]):
        y = 56 + 66 * number
        drawing.text(30, y + 22, f"partition {number}")
        drawing.cells(130, y, [str(offset) for offset in range(count)], new=(str(count - 1),))
        drawing.text(140 + count * 44, y + 22, f"← appended at the end (key {key})", small=True)
    drawing.text(130, 264, "offset: a record's number in its partition", small=True)
    drawing.box(130, 280, 220, 34, "00000000000000000000.log", fill=PLAIN)
    drawing.box(350, 280, 220, 34, "00000000000000000005.log", fill=PLAIN)
    drawing.text(584, 302, "partition 0's segments: files, named after their first offset", small=True)
    return drawing


def replication() -> Drawing:
    """How far replicas are, and what may be read."""
    drawing = Drawing(960, 330, "A partition with three replicas")
    drawing.heading(30, 34, "partition flights-0, three replicas")
    rows = [("broker 1: leader", 10, LEADER), ("broker 2: in sync", 9, LOG), ("broker 3: in sync", 8, LOG)]
    for number, (name, count, fill) in enumerate(rows):
        y = 76 + 66 * number
        drawing.text(30, y + 22, name)
        drawing.cells(180, y, [str(offset) for offset in range(count)], width=52, fill=fill)
        if number:
            drawing.box(180 + count * 52, y, 52, 34, str(count), dashed=True)
    drawing.text(716, 98, "← producers append here")
    drawing.text(716, 156, "dashed: what it fetches next; with", small=True)
    drawing.text(716, 174, "that it says how far its disk is", small=True)
    drawing.arrow(596, 52, 596, 268)
    drawing.text(604, 58, "high watermark: 8", small=True)
    drawing.text(
        180,
        296,
        "offsets 0 to 7: on all in-sync replicas, so committed and acknowledged; readers see these",
        small=True,
    )
    drawing.text(180, 316, "offsets 8 and 9: not yet; whoever leads next has 0 to 7 for certain", small=True)
    return drawing


def groups() -> Drawing:
    """A group that shares, and one that has all."""
    drawing = Drawing(960, 340, "Consumer groups")
    drawing.heading(30, 34, "topic jobs")
    drawing.heading(340, 34, "group workers: each record goes to one member")
    drawing.heading(766, 34, "group audit: all")
    for number in range(4):
        drawing.box(30, 52 + 48 * number, 130, 36, f"partition {number}", fill=LOG)
    drawing.box(340, 62, 170, 64, "worker a", fill=LEADER)
    drawing.box(340, 148, 170, 36, "worker b", fill=LEADER)
    drawing.box(340, 196, 170, 36, "worker c", fill=LEADER)
    drawing.box(766, 100, 144, 84, "auditor", "0 · 1 · 2 · 3")
    for y1, y2 in [(70, 80), (118, 108), (166, 166), (214, 214)]:
        drawing.arrow(160, y1, 340, y2)
    drawing.text(530, 92, "worker d joins: it gets one of a's", small=True)
    drawing.text(530, 110, "partitions, and nothing else moves", small=True)
    drawing.box(
        340, 266, 570, 50, "coordinator, a broker: members and acknowledged offsets", "→ ZooKeeper", fill=KEEPER
    )
    drawing.arrow(425, 232, 425, 266, both=True)
    drawing.arrow(838, 184, 838, 266, both=True)
    drawing.text(436, 254, "heartbeats, commits", small=True)
    return drawing


def exactly_once() -> Drawing:
    """A micro-batch, from tasks to readers."""
    drawing = Drawing(960, 330, "A micro-batch that is written once")
    drawing.heading(30, 34, "1  tasks write")
    drawing.box(30, 52, 150, 40, "task 0")
    drawing.box(30, 104, 150, 40, "task 1: dies", dashed=True)
    drawing.box(30, 156, 150, 40, "task 1, again")
    drawing.heading(300, 34, "rows are in the log, hidden")
    drawing.cells(300, 55, ["a", "b", "c"], fill=NEW)
    drawing.cells(300, 107, ["d"], fill=PLAIN)
    drawing.cells(300, 159, ["d", "e"], fill=NEW)
    for y in (72, 124, 176):
        drawing.arrow(180, y, 300, y)
    drawing.heading(540, 34, "2  the driver decides, once")
    drawing.box(540, 70, 210, 110, "ZooKeeper:", "batch 7 = task 0", "and task 1's second try", fill=KEEPER)
    drawing.arrow(432, 76, 540, 100)
    drawing.arrow(388, 176, 540, 150)
    drawing.heading(800, 34, "3  leaders show it")
    drawing.cells(800, 92, ["a", "b", "c"], fill=LEADER)
    drawing.cells(800, 140, ["d", "e"], fill=LEADER)
    drawing.arrow(750, 124, 800, 124)
    drawing.text(
        30, 240, "If the query dies before 2, nothing of the batch is shown; it is written again and decided then."
    )
    drawing.text(30, 266, "If it dies after 2, the replay finds batch 7 decided, and writes nothing.")
    drawing.text(30, 292, "What no decision names (the first try of task 1) is aborted, and readers leave it out.")
    return drawing


def drawings() -> dict[Path, str]:
    """All files, and what is to be in them."""
    made = (architecture, partitions, replication, groups, exactly_once)
    return {FOLDER / f"{each.__name__.replace('_', '-')}.svg": each().svg() for each in made}
