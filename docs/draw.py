"""Draw the pictures of these pages: `python docs/draw.py` writes docs/pictures/*.svg, the same bytes each time.

The protocol's points are those of the code, in their order. A picture has its own ground, and so can be read on any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from exactsink.protocol.events import POINTS

__all__ = ["FOLDER", "PICTURES", "main"]

FOLDER = Path(__file__).parent / "pictures"

_STYLE = """\
text { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2733 }
.ground { fill: #ffffff; stroke: #d5dae1 } .lane { fill: #f3f5f8 }
.box { fill: #ffffff; stroke: #5b6b82; stroke-width: 1.2 } .point { fill: #e3ebfb; stroke: #3a62b8; stroke-width: 1.2 }
.good { fill: #dff3e4; stroke: #2f7d46; stroke-width: 1.2 } .bad { fill: #fbe6dd; stroke: #b4532a; stroke-width: 1.2 }
.name { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 11.5px; font-weight: 600 }
.small { font-size: 11.5px; fill: #4a5668 } .title { font-size: 15px; font-weight: 600 } .strong { font-weight: 600 }
.line { stroke: #5b6b82; stroke-width: 1.4; fill: none }
.cut { stroke: #b4532a; stroke-width: 2; stroke-dasharray: 6 4 }
.head { fill: #5b6b82 }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e9f0 } .ground { fill: #171b22; stroke: #39424f } .lane { fill: #1f252e }
  .box { fill: #2a323d; stroke: #93a3b8 } .point { fill: #24365c; stroke: #8fb0f5 }
  .good { fill: #1d3b28; stroke: #7cc492 } .bad { fill: #46291c; stroke: #e79a76 }
  .small { fill: #b4bfce } .line { stroke: #93a3b8 } .cut { stroke: #e79a76 } .head { fill: #93a3b8 }
}"""


@dataclass
class _Canvas:
    """Shapes in the order in which they are drawn."""

    width: int
    height: int
    about: str
    shapes: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, style: str = "box", radius: int = 6) -> None:
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self.shapes.append(f'<rect class="{style}" {place} rx="{radius}"/>')

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "start") -> None:
        name = f' class="{style}"' if style else ""
        self.shapes.append(f'<text{name} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def texts(self, x: float, y: float, lines: Iterable[str], anchor: str = "middle") -> None:
        for number, line in enumerate(lines):
            self.text(x, y + 15 * number, line, "small", anchor)

    def line(self, *points: tuple[float, float], style: str = "line", arrow: bool = True) -> None:
        way = " ".join(f"{x:g},{y:g}" for x, y in points)
        end = ' marker-end="url(#arrow)"' if arrow else ""
        self.shapes.append(f'<polyline class="{style}" points="{way}"{end}/>')

    def svg(self) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img">'
        arrow = (
            '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path class="head" d="M0,0 8,4 0,8z"/></marker>'
        )
        ground = f'<rect class="ground" x=".5" y=".5" width="{self.width - 1}" height="{self.height - 1}" rx="8"/>'
        parts = [head, f"<title>{escape(self.about)}</title>", f"<style>\n{_STYLE}\n</style>", f"<defs>{arrow}</defs>"]
        return "\n".join([*parts, ground, *self.shapes, "</svg>"]) + "\n"


_STARTING, _EACH = tuple(POINTS)[:3], tuple(POINTS)[3:]
_LANES = ("Spark's tasks", "driver", "journal", "targets", "a reader sees")
_LEFT, _STEP, _TOP, _LANE, _GAP = 128, 108, 92, 74, 20
_DOES: Mapping[str, tuple[str, Sequence[str]]] = {
    "open_epoch": ("driver", ("tables and", "folders made")),
    "write": ("Spark's tasks", ("rows go to", "each writer")),
    "pre_commit": ("Spark's tasks", ("durable and", "hidden: a vote")),
    "vote": ("driver", ("all votes, all", "rows, in time?")),
    "decide": ("driver", ("one record", "for all sinks")),
    "commit:<sink>": ("driver", ("each sink,", "in parallel")),
    "complete": ("driver", ("leftovers swept,", "state.json")),
    "return": ("driver", ("Spark records", "its batch")),
}
"""Who does each point of an epoch, and what."""


def epoch() -> str:
    """Draw the way of an epoch: who does what at each point, what holds what, and what a crash means on either side."""
    canvas = _Canvas(_LEFT + _STEP * len(_EACH) + _GAP + 16, 584, "How an epoch runs through the protocol's points")
    canvas.text(16, 30, "How an epoch runs", "title")
    canvas.text(16, 52, "Every micro-batch is one epoch. It is decided once, for all sinks, by one record.", "small")
    rows = {name: _TOP + number * _LANE for number, name in enumerate(_LANES)}
    decided = _EACH.index("decide")
    middle = {
        name: _LEFT + _STEP * (number + 0.5) + (_GAP if number > decided else 0) for number, name in enumerate(_EACH)
    }
    cut = middle["decide"] + (_STEP + _GAP) / 2
    for name, y in rows.items():
        canvas.box(8, y, canvas.width - 16, _LANE - 8, "lane")
        canvas.text(18, y + 37, name, "strong")
    _flow(canvas, rows, middle)
    _held(canvas, rows, middle, cut)
    for name, x in middle.items():
        who, does = _DOES[name]
        canvas.box(x - 51, rows[who] + 5, 102, _LANE - 18, "point")
        canvas.text(x, rows[who] + 22, name, "name", "middle")
        canvas.texts(x, rows[who] + 38, does)
    foot = rows["a reader sees"] + _LANE
    canvas.line((cut, _TOP - 14), (cut, foot + 2), style="cut", arrow=False)
    canvas.text(cut, _TOP - 22, "the commit point", "strong", "middle")
    canvas.texts(
        cut - 10,
        foot + 18,
        ("crash before: Spark replays the batch,", "the next start sweeps leftovers"),
        anchor="end",
    )
    canvas.texts(
        cut + 10, foot + 18, ("crash after: the next start commits it again;", "a commit is idempotent"), anchor="start"
    )
    _start(canvas, foot + 58)
    return canvas.svg()


def _held(canvas: _Canvas, rows: Mapping[str, float], middle: Mapping[str, float], cut: float) -> None:
    """Draw what journal and targets hold, and what shows, as bars over the time in which it is so."""
    right = canvas.width - 18

    def bar(lane: str, start: float, end: float, text: str, style: str) -> None:
        canvas.box(start, rows[lane] + 16, end - start, 34, style)
        canvas.text((start + end) / 2, rows[lane] + 38, text, "small", "middle")

    bar("journal", _LEFT, cut - 6, "claim of this driver", "box")
    bar("journal", cut + 6, right, "decision of this epoch", "good")
    prepared, shows = middle["pre_commit"] - 51, middle["commit:<sink>"] + 24
    bar("targets", prepared, shows - 6, "prepared and hidden: outlives its task", "box")
    bar("targets", shows, right, "committed, with the epoch's mark", "good")
    bar("a reader sees", _LEFT, shows - 6, "nothing of this epoch, in any exact sink", "box")
    bar("a reader sees", shows, right, "all of this epoch's rows, once", "good")


def _flow(canvas: _Canvas, rows: Mapping[str, float], middle: Mapping[str, float]) -> None:
    """Draw who hands over to whom."""
    tasks, driver = rows["Spark's tasks"], rows["driver"]
    opened, voted, decided = middle["open_epoch"], middle["vote"], middle["decide"]
    canvas.line((opened, driver + 5), (opened, tasks + 32), (middle["write"] - 53, tasks + 32))
    canvas.line((middle["pre_commit"] + 51, tasks + 32), (voted, tasks + 32), (voted, driver + 3))
    canvas.line((decided, driver + _LANE - 13), (decided, rows["journal"] + 14))
    commits = middle["commit:<sink>"] + 6
    canvas.line((commits, driver + _LANE - 13), (commits, rows["targets"] + 14))


def _start(canvas: _Canvas, y: float) -> None:
    """Draw what a driver does before its first epoch."""
    canvas.text(18, y + 22, "at its start", "strong")
    does = ("fences older drivers", "commits the last decision again", "aborts undecided work")
    for number, (name, text) in enumerate(zip(_STARTING, does, strict=True)):
        x = _LEFT + number * 290
        canvas.box(x, y, 266, 34, "point")
        canvas.text(x + 10, y + 21, name, "name")
        canvas.text(x + 256, y + 21, text, "small", "end")
        if number:
            canvas.line((x - 24, y + 17), (x - 2, y + 17))


_STORES = ("Kafka", "Postgres", "Iceberg")
_STEPS = (
    ("1. Write", "Spark's tasks write hidden rows"),
    ("2. Decide", "one record, for all stores at once"),
    ("3. Commit", "all stores show the rows"),
)


def steps() -> str:
    """Draw an epoch for its first reader: hidden rows, one record, visible rows, and a crash on either side."""
    canvas = _Canvas(900, 266, "An epoch in three steps: hidden rows, one record, visible rows")
    for number, (title, text) in enumerate(_STEPS):
        x = 12 + 296 * number
        canvas.box(x, 12, 284, 202, "lane")
        canvas.text(x + 14, 38, title, "title")
        canvas.text(x + 14, 58, text, "small")
    for x, who in ((24, "tasks"), (616, "driver")):
        canvas.box(x, 112, 64, 50)
        canvas.text(x + 32, 142, who, "strong", "middle")
    canvas.box(336, 98, 232, 78, "point")
    canvas.text(452, 124, "the journal", "strong", "middle")
    canvas.texts(452, 146, ("epoch 7 is decided:", "commit it in all stores"))
    for number, store in enumerate(_STORES):
        y = 74 + 46 * number
        for x, style, text in ((148, "box", "hidden"), (740, "good", "visible")):
            canvas.box(x, y, 136, 36, style)
            canvas.text(x + 10, y + 23, store, "strong")
            canvas.text(x + 128, y + 23, text, "small", "end")
            canvas.line((x - 58, 137), (x - 2, y + 18))
    canvas.line((288, 137), (334, 137))
    canvas.line((568, 137), (614, 137))
    canvas.line((598, 8), (598, 258), style="cut", arrow=False)
    canvas.texts(
        588,
        238,
        ("a crash before the record: the next start", "removes hidden rows, Spark replays the batch"),
        anchor="end",
    )
    canvas.texts(
        608, 238, ("a crash after the record: the next", "start commits the epoch in all stores"), anchor="start"
    )
    return canvas.svg()


_WIDE, _HIGH = 150, 58
_STATES: Mapping[str, tuple[float, float, str, Sequence[str]]] = {
    "open": (24, 92, "box", ("its task writes;", "nothing is durable")),
    "undecided": (262, 92, "box", ("voted yes: durable,", "hidden, no decision")),
    "prepared": (500, 92, "point", ("named by a decision:", "will be committed")),
    "committed": (766, 92, "good", ("its rows show,", "once")),
    "aborted": (262, 252, "box", ("nothing of it remains;", "Spark replays the batch")),
    "lost": (500, 252, "bad", ("proven invisible,", "permanently")),
    "unknown": (766, 252, "bad", ("the job stops: exit 3,", "with the evidence")),
    "foreign": (24, 392, "bad", ("begun under a claim", "of another journal")),
    "given up": (500, 392, "box", ("nobody writes its", "rows again")),
}
"""The states as `exactsink status` and `indoubt` have them: where each is drawn, and what it means."""


def participant() -> str:
    """Draw the states of a participant, and what leads from one to the next."""
    canvas = _Canvas(940, 470, "The states of a participant")
    canvas.text(16, 30, "The states of a participant", "title")
    canvas.text(16, 52, "A participant is one task attempt's part of a sink's transaction, in one epoch.", "small")
    for name, (x, y, style, means) in _STATES.items():
        canvas.box(x, y, _WIDE, _HIGH, style)
        canvas.text(x + _WIDE / 2, y + 18, name, "name", "middle")
        canvas.texts(x + _WIDE / 2, y + 34, means)
    for start, end, point in (("open", "undecided", "pre_commit"), ("undecided", "prepared", "decide")):
        _ahead(canvas, start, end, point)
    _ahead(canvas, "prepared", "committed", "commit:<sink>", up=-12)
    canvas.text(456, 82, "the commit point", "strong", "middle")
    canvas.line((337, 150), (337, 250))
    canvas.text(345, 204, "sweep", "name")
    canvas.line((99, 150), (99, 281), (260, 281))
    canvas.texts(108, 204, ("its task fails;", "killed: by the sweep"), anchor="start")
    canvas.line((540, 150), (540, 250))
    canvas.texts(532, 197, ("its store", "proves it"), anchor="end")
    canvas.line((610, 250), (610, 152))
    canvas.texts(618, 185, ("rows written again,", "equal: redecide"), anchor="start")
    canvas.line((650, 134), (744, 134), (744, 270), (764, 270))
    canvas.texts(752, 197, ("nothing", "proves it"), anchor="start")
    canvas.line((870, 250), (870, 152))
    canvas.line((766, 296), (652, 296))
    canvas.line((575, 310), (575, 390))
    canvas.texts(841, 328, ("an operator's word:", "indoubt resolve"))
    canvas.texts(567, 345, ("an operator's word:", "indoubt resolve"), anchor="end")
    canvas.texts(
        184,
        414,
        ("never touched, and never decided here;", "no start until a person looks"),
        anchor="start",
    )
    return canvas.svg()


def _ahead(canvas: _Canvas, start: str, end: str, point: str, up: float = 0) -> None:
    """Draw the arrow of a protocol point, from a state to the next on its line."""
    assert point in POINTS
    (x, y, *_), (to, *_) = _STATES[start], _STATES[end]
    canvas.line((x + _WIDE, y + _HIGH / 2 + up), (to - 2, y + _HIGH / 2 + up))
    canvas.text((x + _WIDE + to) / 2, y + _HIGH / 2 + up - 8, point, "name", "middle")


def main() -> None:
    """Write the pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")


PICTURES = {"epoch.svg": epoch, "participant.svg": participant, "steps.svg": steps}

if __name__ == "__main__":
    main()
