"""A drawn chart: SVG for a wide and for a phone's page, with the numbers that it shows; and the pen that draws it.

Colours are CSS classes, so that the page's palette serves light, dark and print. `Chart.standalone` carries the
palette inside the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources

WIDE = 720
NARROW = 340

# Width of a letter as a share of the text size: enough to keep labels apart without a font.
_NARROW_LETTERS = frozenset("iljtfr.,:;|!'()[] I1")
_WIDE_LETTERS = frozenset("mwMWGOQ@%")


def text_width(text: str, size: float = 12.0) -> float:
    """About how wide `text` is, in the units of `size`."""
    ems = sum(0.36 if c in _NARROW_LETTERS else 0.9 if c in _WIDE_LETTERS else 0.62 for c in text)
    return ems * size


def shorten(text: str, width: float, size: float = 12.0) -> str:
    """`text`, cut with an ellipsis where it is wider than `width`."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart as data: `wide` and `narrow` are SVG elements; `columns` and `rows` are the numbers that they show.

    `kind` 'spark' is drawn in the line of text.
    """

    title: str
    description: str
    wide: str
    narrow: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[object, ...], ...] = ()
    kind: str = "figure"

    def standalone(self) -> str:
        """The wide drawing as an SVG file of its own, palette inside."""
        head, tag, rest = self.wide.partition(">")
        return f"{head}{tag}<style>{palette_css()}{chart_css()}</style>{rest}\n"


def palette_css() -> str:
    """The colours of pages and charts, light and dark."""
    return _asset("palette.css")


def chart_css() -> str:
    """How the parts of a chart look."""
    return _asset("chart.css")


def _asset(name: str) -> str:
    return resources.files("vibeserve.report").joinpath("templates", name).read_text(encoding="utf-8")


def number(value: float) -> str:
    """A coordinate, short."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


class Pen:
    """Collects SVG elements; every text is escaped, and a `tip` is what hovering shows."""

    def __init__(self, width: float, height: float):
        self.width = width
        self.height = height
        self._parts: list[str] = []

    def add(self, tag: str, tip: str = "", **attributes: object) -> None:
        """One element. `cls` is its class; an underscore in a name stands for a hyphen; None leaves it out."""
        words = [tag]
        for name, value in attributes.items():
            if value is None:
                continue
            written = "class" if name == "cls" else name.replace("_", "-")
            shown = number(value) if isinstance(value, int | float) else escape(str(value), quote=True)
            words.append(f'{written}="{shown}"')
        body = f"<title>{escape(tip)}</title></{tag}>" if tip else ""
        self._parts.append(f"<{' '.join(words)}{'>' if tip else '/>'}{body}")

    def line(self, x1: float, y1: float, x2: float, y2: float, cls: str, tip: str = "") -> None:
        """A straight line."""
        self.add("path", tip, d=f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}", cls=cls)

    def polyline(self, points: Sequence[tuple[float, float]], cls: str, tip: str = "") -> None:
        """A line through points."""
        if points:
            self.add("path", tip, d="M" + "L".join(f"{number(x)} {number(y)}" for x, y in points), cls=cls)

    def rect(self, x: float, y: float, width: float, height: float, cls: str, tip: str = "", **more: object) -> None:
        """A box; nothing where it has no size."""
        if width > 0 and height > 0:
            self.add("rect", tip, x=x, y=y, width=width, height=height, cls=cls, **more)

    def text(self, x: float, y: float, text: str, cls: str = "", anchor: str = "start", turn: bool = False) -> None:
        """A label; `anchor` is start, middle or end; `turn` reads upwards."""
        words = f' class="{cls}"' if cls else ""
        words += f' text-anchor="{anchor}"' if anchor != "start" else ""
        words += f' transform="rotate(-90 {number(x)} {number(y)})"' if turn else ""
        self._parts.append(f'<text x="{number(x)}" y="{number(y)}"{words}>{escape(text)}</text>')

    def raw(self, markup: str) -> None:
        """Markup that is safe already (made by another pen)."""
        self._parts.append(markup)

    def svg(self, title: str, description: str, cls: str = "vs-chart") -> str:
        """The whole drawing, with its name and description for those who do not see it."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="{cls}" role="img" viewBox="0 0 {number(self.width)} '
            f'{number(self.height)}" aria-label="{escape(title, quote=True)}"><desc>{escape(description)}</desc>'
            f"{''.join(self._parts)}</svg>"
        )


def both(
    draw: Callable[[float], Pen],
    title: str,
    description: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
) -> Chart:
    """A chart drawn at both widths."""
    return Chart(
        title,
        description,
        draw(WIDE).svg(title, description),
        draw(NARROW).svg(title, description),
        tuple(columns),
        tuple(tuple(row) for row in rows),
    )
