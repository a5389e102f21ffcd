"""A repetition as a drawing: a group of rows per thread, a bar per span, milliseconds from left to right.

Rule: plain SVG with its own colours, legible on white. A bar has its label where that fits, inside or right of it, else
its number; the table below names every number, with when its spans begin and how long they are together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from bench.timeline.recording import Span, Window

_WIDTH = 1200
_LEFT = 16
_RIGHT = 24
_TOP = 92
_ROW = 20
_BAR = 16
_LANE_HEAD = 18
_LANE_GAP = 8
_LETTER = 6.1  # of 11 px sans-serif, on average
_TABLE_ROW = 16
_STEPS_MS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000)
_KINDS = {
    "work": ("#4c78a8", "#ffffff", "computing"),
    "network": ("#e0902f", "#1b1b1b", "in gRPC"),
    "disk": ("#c44e52", "#ffffff", "disk"),
    "spark": ("#7a6fb0", "#ffffff", "Spark's own"),
    "wait": ("#e3e6ea", "#444444", "waiting"),
}
_STYLE = """
text { font-family: "DejaVu Sans", Verdana, Helvetica, Arial, sans-serif; font-size: 11px; fill: #222; }
.title { font-size: 15px; font-weight: bold; } .lane { font-weight: bold; } .small { fill: #555; }
.axis { stroke: #c9ced6; stroke-width: 1; } .cell { font-size: 11px; }
"""


@dataclass(slots=True)
class Row:
    """The spans of one thread with one label. Times in ms after the window's begin."""

    number: int
    lane: str
    label: str
    kind: str
    begin_ms: float
    total_ms: float
    count: int


def rows_of(spans: Sequence[Span], window: Window) -> list[Row]:
    """The table of the window's spans, lane by lane, in the order in which they begin."""
    rows: dict[tuple[str, str], Row] = {}
    for span in spans:
        key = span.lane, span.label
        begin_ms = (span.begin_ns - window.begin_ns) / 1e6
        row = rows.setdefault(key, Row(0, span.lane, span.label, span.kind, begin_ms, 0.0, 0))
        row.total_ms += (span.end_ns - span.begin_ns) / 1e6
        row.count += 1
    lanes = _lanes(spans)
    ordered = sorted(rows.values(), key=lambda row: (lanes.index(row.lane), row.begin_ms))
    for number, row in enumerate(ordered, 1):
        row.number = number
    return ordered


def draw(title: str, note: str, spans: Sequence[Span], window: Window) -> str:
    """The SVG document."""
    rows = rows_of(spans, window)
    numbers = {(row.lane, row.label): row.number for row in rows}
    scale = (_WIDTH - _LEFT - _RIGHT) / max(window.ms, 1e-6)
    body: list[str] = []
    y: float = _TOP
    for lane in _lanes(spans):
        body.append(_text(_LEFT, y + 11, lane, "lane"))
        y += _LANE_HEAD
        placed = _placed([span for span in spans if span.lane == lane])
        for depth in sorted({depth for depth, _ in placed}):
            level = [span for at, span in placed if at == depth]
            body += _bars(level, numbers, window, scale, y)
            y += _ROW
        y += _LANE_GAP
    bottom = y
    axis = list(_axis(window, scale, bottom))
    table, y = _table(rows, bottom + 34)
    head = [_text(_LEFT, 24, title, "title"), _text(_LEFT, 44, note, "small"), *_legend(58)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" viewBox="0 0 {_WIDTH} {y}">',
            f"<style>{_STYLE}</style>",
            f'<rect width="{_WIDTH}" height="{y}" fill="#ffffff"/>',
            *head,
            *axis,
            *body,
            *table,
            "</svg>",
            "",
        ]
    )


def _lanes(spans: Sequence[Span]) -> list[str]:
    """Processes in the order in which they begin to work, and their threads likewise."""
    first_ns = min(span.begin_ns for span in spans)
    began: dict[str, int] = {}
    for span in spans:
        if span.kind == "wait" or span.begin_ns == first_ns:
            began.setdefault(span.lane, 2 * span.end_ns)  # behind all others until it works
    for span in sorted(spans, key=lambda each: each.begin_ns, reverse=True):
        if span.kind != "wait" and (span.begin_ns > first_ns or span.kind == "spark"):
            began[span.lane] = span.begin_ns
    processes = {
        span.process: min(began[each.lane] for each in spans if each.process == span.process) for span in spans
    }
    owner = {span.lane: span.process for span in spans}
    return sorted(owner, key=lambda lane: (processes[owner[lane]], owner[lane], began[lane]))


def _placed(spans: Sequence[Span]) -> list[tuple[int, Span]]:
    """Each span of a thread with the depth at which it is called."""
    placed: list[tuple[int, Span]] = []
    around: list[Span] = []
    for span in sorted(spans, key=lambda each: (each.begin_ns, -each.end_ns)):
        while around and around[-1].end_ns <= span.begin_ns:
            around.pop()
        placed.append((len(around), span))
        around.append(span)
    return placed


def _bars(
    level: Sequence[Span], numbers: dict[tuple[str, str], int], window: Window, scale: float, y: float
) -> Iterable[str]:
    boxes = []
    for span in level:
        x = _LEFT + (span.begin_ns - window.begin_ns) / 1e6 * scale
        boxes.append((x, max(1.5, (span.end_ns - span.begin_ns) / 1e6 * scale), span))
    for at, (x, width, span) in enumerate(boxes):
        colour, ink, _ = _KINDS[span.kind]
        took_ms = (span.end_ns - span.begin_ns) / 1e6
        hint = escape(f"{span.label}: {took_ms:.3f} ms")
        yield (
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2" fill="{colour}">'
            f"<title>{hint}</title></rect>"
        )
        free = (boxes[at + 1][0] if at + 1 < len(boxes) else _WIDTH - 4) - (x + width) - 4
        number = str(numbers[span.lane, span.label])
        for text in (f"{number} {span.label} {_ms(took_ms)}", f"{number} {span.label}", number):
            wide = len(text) * _LETTER + 6
            if wide <= width:
                yield f'<text x="{x + 3:.1f}" y="{y + 12}" style="fill:{ink}">{escape(text)}</text>'
                break
            if wide <= free:
                yield f'<text x="{x + width + 3:.1f}" y="{y + 12}">{escape(text)}</text>'
                break


def _axis(window: Window, scale: float, bottom: float) -> Iterable[str]:
    step = next(step for step in _STEPS_MS if window.ms / step <= 14)
    for number in range(int(window.ms / step) + 1):
        x = _LEFT + number * step * scale
        yield f'<line class="axis" x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{bottom + 2}"/>'
        if x < _WIDTH - 56:
            yield _text(x + 2, bottom + 14, f"{number * step:g} ms", "small")


def _legend(y: float) -> Iterable[str]:
    x: float = _LEFT
    for colour, _, name in _KINDS.values():
        yield f'<rect x="{x}" y="{y}" width="12" height="12" rx="2" fill="{colour}"/>'
        yield _text(x + 17, y + 10, name, "small")
        x += 17 + len(name) * _LETTER + 22


def _table(rows: Sequence[Row], y: float) -> tuple[list[str], float]:
    columns = (_LEFT, _LEFT + 34, _LEFT + 330, _LEFT + 640, _LEFT + 720, _LEFT + 820)
    heads = ("no.", "thread", "span", "times", "begins", "together")
    lines = [_text(x, y, head, "lane") for x, head in zip(columns, heads, strict=True)]
    for row in rows:
        y += _TABLE_ROW
        cells = (str(row.number), row.lane, row.label, str(row.count), _ms(row.begin_ms), _ms(row.total_ms))
        lines += [_text(x, y, cell, "cell") for x, cell in zip(columns, cells, strict=True)]
    return lines, y + 16


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _ms(value: float) -> str:
    return f"{value:.2f} ms" if value < 10 else f"{value:.1f} ms" if value < 100 else f"{value:,.0f} ms"
