"""Builds self-contained HTML pages about runs. Images are embedded, and nothing is loaded from other servers.

`page(title, [heading("Runs"), table(…), picture(…)])` returns the HTML. All text arguments are escaped.
"""

from __future__ import annotations

import base64
import io
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from lit_engine.callbacks.drawing import CHART

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

Cell = str | tuple[str, float | None]  # the displayed text, and a sort key in numeric columns (None for blank cells)

STYLE = """
:root { color-scheme: light dark; --text: #1c2128; --soft: #59636e; --line: #d8dee4; --back: #fff; --band: #f3f5f7;
  --shade: #0003; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e3e7ec; --soft: #9aa4af; --line: #363c44; --back: #15181c; --band: #1e2227;
    --shade: #fff3; }
  img.chart { filter: invert(1) hue-rotate(180deg) brightness(1.3); }
  img.sheet { filter: invert(.93) hue-rotate(180deg) brightness(1.25); }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 80rem;
  margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .5rem 0; } p.soft, footer { color: var(--soft); } footer { margin-top: 2.5rem; font-size: .85rem; }
div.table { overflow-x: auto; width: fit-content; max-width: 100%; border: 1px solid var(--line); border-radius: 6px;
  background: linear-gradient(270deg, var(--back) 1rem, transparent) 100% / 2rem 100% no-repeat local,
    linear-gradient(270deg, var(--shade), transparent) 100% / 1rem 100% no-repeat; } /* a shadow marks hidden columns */
table { border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .35rem .7rem; text-align: left; white-space: nowrap; border-top: 1px solid var(--line); }
td.long { white-space: normal; min-width: 14rem; } th.number, td.number { text-align: right; }
thead th { background: var(--band); border-top: 0; }
tbody tr:hover td { background: var(--band); }
@media (max-width: 30rem) {
  th, td { padding: .35rem .45rem; } th:not([aria-sort]) button::after { content: none !important; }
  td:first-child { white-space: normal; max-width: 40vw; overflow-wrap: anywhere; }
  td:first-child:has(a, svg, wbr) { min-width: 8rem; }
}
th:first-child, td:first-child { position: sticky; left: 0; } td:first-child { background: var(--back); }
@media (min-width: 40rem) {
  figure img { min-width: calc(.55 * var(--width)); }
}
th button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
th button::after { content: "↕"; color: var(--soft); padding-left: .3rem; }
th[aria-sort=ascending] button::after { content: "↑"; } th[aria-sort=descending] button::after { content: "↓"; }
img { max-width: 100%; height: auto; display: block; } img.chart { width: 44rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; } a { color: inherit; } nav { margin: .8rem 0; }
:is(h2, h3) a { text-decoration: none; } :is(h2, h3) a:hover { text-decoration: underline; }
details { margin: .5rem 0; } figure a { cursor: zoom-in; }
div.figures { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; margin: .8rem 0; }
figure { margin: 0; flex: 1 1 calc(.55 * var(--width)); max-width: min(100%, .75 * var(--width)); overflow-x: auto;
  border: 1px solid var(--line); border-radius: 6px; box-sizing: border-box; }
figure img { width: 100%; } figure:has(img.sheet) { order: -1; }
figcaption { color: var(--soft); font-size: .85rem; padding: .3rem .7rem; position: sticky; left: 0; }
div.samples { display: flex; flex-wrap: wrap; gap: .8rem; margin: .5rem 0; }
div.samples figure { flex: 0 0 8rem; } div.samples img { image-rendering: pixelated; min-width: 0; }
div.samples figcaption { white-space: pre-line; }
div.samples figure > div { display: flex; align-items: start; gap: 6%; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; } summary { cursor: pointer; }
pre { background: var(--band); border-radius: 6px; padding: .7rem; white-space: pre-wrap; font-size: .85rem; }
"""
# Clicking a column name sorts the table by this column, and a second click reverses the order. Blank cells stay last.
SCRIPT = """
for (const button of document.querySelectorAll("th button")) button.onclick = () => {
  const head = button.parentNode, body = head.closest("table").tBodies[0], up = head.ariaSort != "ascending";
  const key = row => row.cells[head.cellIndex].dataset.key ?? row.cells[head.cellIndex].textContent;
  const order = (a, b) => (a == "") - (b == "") || (up ? 1 : -1) * (a - b || a.localeCompare(b, "en", {numeric: true}));
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.ariaSort = up ? "ascending" : "descending";
  body.append(...[...body.rows].sort((a, b) => order(key(a), key(b))));
};
"""


def page(title: str, parts: Iterable[str], footer: str = "", script: str = "") -> str:
    """Return an HTML page with `parts` built by the functions below. The current time is added to the footer.

    The `script` may send requests to the server.
    """
    footer = footer and f"{footer} · {datetime.now():%Y-%m-%d %H:%M}"
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    policy += "; connect-src 'self'" if script else ""
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>",
            *parts,
            f"<footer>{escape(footer)}</footer>\n<script>{SCRIPT}{script}</script>\n</body>\n</html>\n",
        ]
    )


class Html(str):
    """A string that is already HTML and must not be escaped."""


def escape_html(text: str) -> Html:
    """Escape a string, unless it is already HTML."""
    return text if isinstance(text, Html) else Html(escape(text))


def link(text: str, file: Path, folder: Path) -> str:
    """Return a link from a page in `folder` to a file, or plain text if the file does not exist."""
    address = quote(os.path.relpath(file, folder))
    return Html(f'<a href="{escape(address)}">{escape_html(text)}</a>') if file.exists() else text


def heading(text: str, level: int = 2, within: str = "") -> str:
    """Return a heading that links to itself. For subsections, `within` is the title of the section."""
    anchor = _anchor(f"{within} {text}")
    return f'<h{level} id="{anchor}"><a href="#{anchor}">{escape(text)}</a></h{level}>'


def _anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title.strip().lower())


def contents(titles: Iterable[str]) -> str:
    """Return a line of links to sections."""
    links = (f'<a href="#{_anchor(title)}">{escape(title)}</a>' for title in titles)
    return f"<nav>{' · '.join(links)}</nav>"


def facts(pairs: Mapping[str, str]) -> str:
    """Return a definition list of names and values."""
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(value)}</dd>' for name, value in pairs.items())}</dl>"


def code(text: str, summary: str = "") -> str:
    """Return a code block. If a `summary` is given, the block is collapsed and labelled with the summary."""
    block = f'<pre tabindex="0">{escape(text)}</pre>'
    return collapsible(summary, block) if summary else block


def collapsible(summary: str, part: str) -> str:
    """Return a page section that is hidden until its summary is clicked."""
    return f"<details><summary>{escape(summary)}</summary>{part}</details>"


def figures(files: Iterable[Path], folder: Path) -> str:
    """Return the figures of a run (see `save_figure`), with charts first. The default caption is the file name.

    The page is in `folder`. Clicking a figure opens its file.
    """
    return f'<div class="figures">{"".join(_render_file(file, folder) for file in files)}</div>'


def _render_file(file: Path, folder: Path) -> str:
    """Return an image with its caption. Charts have the CSS class `sheet`."""
    from PIL import Image

    name = file.stem.replace("_", " ")
    with Image.open(file) as image:
        kind, width = "sheet" if image.info.get("Description") == CHART else "photos", image.width
        caption = escape(image.info.get("Comment") or name)
    shown = Html(f'<img class="{kind}" alt="{escape(name)}" src="{embed_png(file.read_bytes())}">')
    inside = f"{link(shown, file, folder)}<figcaption>{caption}</figcaption>"
    return f'<figure tabindex="0" style="--width: {width}px">{inside}</figure>'


def samples(entries: Iterable[tuple[Sequence[bytes], str]]) -> str:
    """Return small figures side by side. Each figure has one or more PNG images and a caption of one or more lines."""
    shown = []
    for images, caption in entries:
        pictures = "".join(f'<img alt="{escape(caption)}" src="{embed_png(image)}">' for image in images)
        shown.append(f"<figure><div>{pictures}</div><figcaption>{escape(caption)}</figcaption></figure>")
    return f'<div class="samples">{"".join(shown)}</div>'


def paragraph(text: str, soft: bool = False) -> str:
    """Return a paragraph, which is shown in a muted colour if `soft` is true."""
    kind = ' class="soft"' if soft else ""
    return f"<p{kind}>{escape(text)}</p>"


def table(names: Sequence[str], rows: Iterable[Sequence[Cell]], row_classes: Sequence[str] = ()) -> str:
    """Return a table that can be sorted by clicking a column name. Numeric columns are right-aligned."""
    rows = list(rows)
    numeric = [any(isinstance(row[column], tuple) for row in rows) for column in range(len(names))]
    classes = [' class="number"' if number else "" for number in numeric]
    head = "".join(
        f'<th{kind} scope="col"><button>{escape(name)}</button></th>' for name, kind in zip(names, classes, strict=True)
    )
    lines = ["".join(map(_render_cell, row, classes)) for row in rows]
    kinds = [f' class="{kind}"' for kind in row_classes] or [""] * len(lines)
    body = "\n".join(f"<tr{kind}>{line}</tr>" for kind, line in zip(kinds, lines, strict=True))
    return f'<div class="table"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def text_of(cell: Cell) -> str:
    """Return the displayed text of a cell."""
    return cell if isinstance(cell, str) else cell[0]


def _render_cell(cell: Cell, kind: str) -> str:
    text, key = cell if isinstance(cell, tuple) else (cell, None)
    kind = kind or (' class="long"' if len(text) > 60 and not isinstance(text, Html) else "")
    data = "" if key is None else f' data-key="{"" if math.isnan(key) else key}"'
    return f"<td{kind}{data}>{escape_html(text)}</td>"


def picture(figure: Figure, what: str) -> str:
    """Return a matplotlib figure as an embedded PNG, with `what` as its alternative text."""
    return f'<img class="chart" alt="{escape(what)}" src="{embed_figure(figure)}">'


def embed_figure(figure: Figure) -> str:
    """Return a figure as a data URL."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, transparent=True)
    return embed_png(buffer.getvalue())


def to_png(image: Tensor) -> bytes:
    """Return an image `(C, H, W)` with values in [0, 1] as a PNG file, in colour if C is 3."""
    from torchvision.io import encode_png

    pixels = (255 * image.float().clamp(0, 1)).round().byte().cpu()
    return encode_png(pixels if len(pixels) == 3 else pixels[:1]).numpy().tobytes()


def embed_png(data: bytes) -> str:
    """Return the content of a PNG file as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"
