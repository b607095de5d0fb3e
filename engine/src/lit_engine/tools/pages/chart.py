"""Draws charts as inline SVG. The charts need neither JavaScript nor matplotlib, and suit both light and dark pages.

Series are numbered. The CSS class `s3` marks the curve, table row and legend entry of series 3. The CSS from `legend`
highlights these elements together, and hides curves whose checkbox is not checked.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from lit_engine.tools.pages.html import Html

# A random search maximized the smallest CIEDE2000 distance between any two colours.
# The distance is at least 15.4, with and without simulated protanopia and deuteranopia.
# The contrast with light and dark pages is at least 3 : 1.
COLOURS = ("#2d4bff", "#ff5a0f", "#00785a", "#a53c87", "#6996d2", "#c32d0f", "#2da596", "#ff4b87")
DASHES = ("", "7 3", "2 3", "9 3 2 3")
GREY = "#888"  # the colour of any additional series
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 270, 58, 14, 28, 42

STYLE = """<style>
div.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
svg.plot { width: 100%; max-width: 36rem; font-size: 12px; } svg.plot text { fill: currentColor; }
svg.plot path { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg.plot .hit { stroke: #0000; stroke-width: 12; }
svg.plot .grid { stroke: var(--line); stroke-width: 1; } svg.plot .band { fill-opacity: .18; stroke: none; }
svg.plot g { outline: none; } svg.plot g:is(:hover, :focus) .line { stroke-width: 4; }
svg.swatch { width: 26px; height: 10px; margin-right: .4rem; }
.legend, .choice { display: flex; flex-wrap: wrap; gap: .2rem 1rem; border: 0; padding: 0; margin: .5rem 0; }
.legend label, .choice label { cursor: pointer; } .choice legend { float: left; color: var(--soft); }
</style>"""


class Series(NamedTuple):
    """A curve or a set of points."""

    order: int  # number of the series, which determines its colour
    name: str
    points: Sequence[tuple[float, float]]  # (x, y), sorted by x
    sds: Sequence[float] = ()  # half the height of the band or error bar at each point
    dots: bool = False  # separate points instead of a curve


def colour(order: int) -> str:
    """Return the colour of a series."""
    return COLOURS[order] if order < len(COLOURS) else GREY


def stroke(order: int) -> str:
    """Return the SVG attributes for the colour and dashes of a line."""
    dash = DASHES[order % len(DASHES)] if order < len(COLOURS) else ""
    return f'stroke="{colour(order)}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def swatch(order: int) -> str:
    """Return a short sample of a series' line style."""
    line = f'<path d="M0 5H26" stroke-width="3" {stroke(order)}/>'
    return Html(f'<svg class="swatch" viewBox="0 0 26 10" aria-hidden="true">{line}</svg>')


def legend(names: Sequence[str]) -> str:
    """Return checkboxes that hide curves, and the CSS that links the checkboxes to curves and table rows."""
    labels, rules = [], []
    for order, name in enumerate(names):
        box = f'<input type="checkbox" id="show{order}" checked>'
        labels.append(f'<label class="s{order}">{box} {swatch(order)}{escape(name)}</label>')
        active = f"body:has(.s{order}:is(:hover, :focus-within))"
        rules += [
            f"body:has(#show{order}:not(:checked)) .plot .s{order} {{ display: none }}",
            f"{active} .plot g[class]:not(.s{order}) {{ opacity: .15 }}",
            f"{active} :is(tr.s{order} td, label.s{order}) {{ background: var(--band) }}",
        ]
    return f'<div class="legend">{"".join(labels)}</div>\n<style>{" ".join(rules)}</style>'


def choice(label: str, kind: str, names: Sequence[str], checked: Sequence[int], key: str) -> str:
    """Return radio buttons or checkboxes. Elements with the class `KEY-0` are shown if the first box is checked."""
    boxes = [
        f'<label><input type="{kind}" name="{key}" id="{key}{n}"{" checked" * (n in checked)}> {escape(name)}</label>'
        for n, name in enumerate(names)
    ]
    hidden = [f"body:has(#{key}{n}:not(:checked)) .{key}-{n} {{ display: none }}" for n in range(len(names))]
    head = f"<legend>{escape(label)}&nbsp;</legend>"
    return f'<fieldset class="choice">{head}{"".join(boxes)}</fieldset>\n<style>{" ".join(hidden)}</style>'


def chart(title: str, x: str, series: Sequence[Series], logs: tuple[bool, bool] = (False, False),
          categories: Sequence[str] = (), classes: str = "") -> str:  # fmt: skip
    """Return a chart that draws later series on top. `logs` specifies which axes (x, y) are logarithmic.

    If `categories` are given, each x is an index into this list.
    """
    xs, ys = zip(*(point for one in series for point in one.points), strict=True)
    floor = min(ys) / 2 if logs[1] else -math.inf  # mean − sd may be negative, which a logarithmic axis cannot show
    spreads = [
        [(max(y - sd, floor), y + sd) for (_, y), sd in zip(one.points, one.sds or [0] * len(one.points), strict=True)]
        for one in series
    ]
    across = Axis(xs, LEFT, WIDTH - RIGHT, logs[0], len(categories))
    up = Axis([end for spread in spreads for pair in spread for end in pair], HEIGHT - BOTTOM, TOP, logs[1])
    parts = [f'<text x="{LEFT}" y="16" font-weight="600">{escape(title)}</text>',
             f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(x)}</text>']  # fmt: skip
    for value in up.ticks(5):
        place = f"{up(value):.1f}"
        parts.append(f'<path class="grid" d="M{LEFT} {place}H{WIDTH - RIGHT}"/>'
                     f'<text x="{LEFT - 6}" y="{place}" dy="4" text-anchor="end">{value:g}</text>')  # fmt: skip
    for value, text in _x_labels(across, categories):
        parts.append(f'<text x="{across(value):.1f}" y="{HEIGHT - 24}" text-anchor="middle">{escape(text)}</text>')
    for one, spread in zip(series, spreads, strict=True):
        inner = [f"<title>{escape(one.name)}</title>"]
        places = [
            (f"{across(x):.1f}", f"{up(y):.1f}", f"{up(low):.1f}", f"{up(high):.1f}")
            for (x, y), (low, high) in zip(one.points, spread, strict=True)
        ]
        if one.dots or len(places) == 1:
            for x_at, y_at, low_at, high_at in places:
                if low_at != high_at:
                    inner.append(f'<path {stroke(one.order)} d="M{x_at} {low_at}V{high_at}"/>')
                inner.append(f'<circle cx="{x_at}" cy="{y_at}" r="4" fill="{colour(one.order)}"/>')
        else:
            if one.sds:
                upper = [f"{x_at} {high_at}" for x_at, _, _, high_at in places]
                lower = [f"{x_at} {low_at}" for x_at, _, low_at, _ in places]
                band = f"M{'L'.join([*upper, *reversed(lower)])}Z"
                inner.append(f'<path class="band" style="fill: {colour(one.order)}" d="{band}"/>')
            line = "M" + "L".join(f"{x_at} {y_at}" for x_at, y_at, _, _ in places)
            inner.append(f'<path class="line" {stroke(one.order)} d="{line}"/><path class="hit" d="{line}"/>')
        parts.append(f'<g class="s{one.order}" tabindex="0">{"".join(inner)}</g>')
    head = f'<svg class="plot" role="img" aria-label="{escape(title)} by {escape(x)}" viewBox="0 0 {WIDTH} {HEIGHT}">'
    return f'<div class="{classes}">{head}{"".join(parts)}</svg></div>'


def _x_labels(across: "Axis", categories: Sequence[str]) -> list[tuple[float, str]]:
    """Return the labels of the x-axis. Long category names are shortened. If there are too many, some are omitted."""
    if not categories:
        return [(value, f"{value:g}") for value in across.ticks(6)]
    room = (WIDTH - LEFT - RIGHT) // len(categories) // 7  # characters per category
    longest, every = max(room, 4), math.ceil(3 / max(room, 1))
    names = [name if len(name) <= longest else f"{name[: longest - 1]}…" for name in categories]
    if len(set(names)) < len(set(categories)):  # the names share a prefix
        names = [name if len(name) <= longest else f"…{name[1 - longest :]}" for name in categories]
    return [(float(place), name) for place, name in enumerate(names)][::every]


class Axis:
    """An axis that maps values to positions between `start` and `end`."""

    def __init__(
        self, values: Sequence[float], start: float, end: float, log: bool = False, categories: int = 0
    ) -> None:
        self.log, self.whole = log, all(float(value).is_integer() for value in values)
        low, high = (-0.5, categories - 0.5) if categories else (min(values), max(values))
        self.low, self.high = (math.log10(low), math.log10(high)) if log else (low, high)
        margin = 0 if categories else 0.04 * (self.high - self.low) or abs(self.low) * 0.05 or 0.5
        self.low, self.high, self.start, self.end = self.low - margin, self.high + margin, start, end

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        part = ((math.log10(value) if self.log else value) - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        """Return about `most` round numbers as tick values."""
        low, high = (10**self.low, 10**self.high) if self.log else (self.low, self.high)
        if self.log:
            decades = range(math.floor(self.low), math.ceil(self.high) + 1)
            for steps in ((1, 2, 5), (1, 3), (1,)):
                found = [step * 10.0**n for n in decades for step in steps if low <= step * 10.0**n <= high]
                if 3 <= len(found) <= most + 1:
                    return found
            if len(found) > most:
                return found[:: math.ceil(len(found) / most)]
        size = 10 ** math.floor(math.log10((high - low) / most))
        size *= next(step for step in (1, 2, 5, 10) if (high - low) / (step * size) <= most)
        size = max(size, 1) if self.whole else size
        return [n * size for n in range(math.ceil(low / size), math.floor(high / size) + 1)]


def positions(values: Sequence[object]) -> tuple[list[float], bool, list[str]]:
    """Return the axis positions of an option's values, whether to use a logarithmic axis, and the category names."""
    numeric = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numeric) == len(values) and all(map(math.isfinite, numeric)):
        return numeric, min(numeric) > 0 and max(numeric) >= 10 * min(numeric), []
    texts = [str(value) for value in values]
    names = list(dict.fromkeys(texts))
    return [float(names.index(text)) for text in texts], False, names
