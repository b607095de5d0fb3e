"""Builds the HTML page that `doubts` writes. Images are shown in galleries, and all other data in tables."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lit_engine.tools.doubts.command import REASONS
from lit_engine.tools.doubts.samples import Samples
from lit_engine.tools.pages.html import heading, page, paragraph, samples, table
from lit_engine.tools.runs.columns import cell_of
from lit_engine.tools.runs.verdict import load_images

SHOWN = 60  # maximum number of samples or pairs in each section
ABOUT = {
    "label": "Samples are ranked by the label's probability, according to networks that were not trained on them. "
    "Confident learning estimates how many labels are wrong (Northcutt et al., 2021).",
    "different labels": "In each pair, at least one label is wrong, or the classes overlap. "
    "The closest pairs come first.",
    "different folds": "One sample of each pair is used for testing and the other for training. "
    "This makes test scores too high. The closest pairs come first.",
}


def render_page(found: Samples, rows: Sequence[dict[str, Any]], lines: Sequence[str], footer: str) -> str:
    """Return the HTML of the page."""
    parts = [*map(paragraph, lines)]
    numbered = [{**row, "line": line} for line, row in enumerate(rows, 2)]
    by_reason = {reason: [row for row in numbered if row["reason"] == reason] for reason in REASONS}
    shown = {reason: own[: SHOWN * REASONS[reason][1]] for reason, own in by_reason.items() if own}
    images = _images(found, [row for own in shown.values() for row in own]) if found.has_images else {}
    for reason, own in shown.items():
        title, size = REASONS[reason]
        parts.append(heading(f"{title}: {len(own) // size:,} of {len(by_reason[reason]) // size:,}"))
        parts.append(paragraph(ABOUT[reason], soft=True))
        if reason == "label":
            pairs = Counter((row["label"], row["suggestion"]) for row in by_reason[reason]).most_common(10)
            parts.append(table(["label", "suggestion", "samples"], [(*pair, (str(n), n)) for pair, n in pairs]))
            parts.append(paragraph("The line numbers refer to the CSV table, where you can correct the labels."))
        parts.append(_gallery(images, own, size) if images else _table(own))
    return page("Which samples are doubtful?", parts, footer)


def _images(found: Samples, rows: Sequence[dict[str, Any]]) -> dict[tuple[int, int], bytes]:
    """Return PNG images keyed by fold and index. The result is empty if the data are not on this machine."""
    images: dict[tuple[int, int], bytes] = {}
    for fold, run in enumerate(found.runs):
        if wanted := sorted({row["index"] for row in rows if row["fold"] == fold}):
            images |= {(fold, index): image for index, image in load_images(run, wanted).items()}
    return images


def _table(rows: Sequence[dict[str, Any]]) -> str:
    names = [name for name in rows[0] if name != "reason" and any(row[name] != "" for row in rows)]
    return table(names, [[cell_of(row[name]) for name in names] for row in rows])


def _gallery(images: dict[tuple[int, int], bytes], rows: Sequence[dict[str, Any]], size: int) -> str:
    """Return a gallery in which each figure shows the images of `size` consecutive rows."""
    figures = []
    for start in range(0, len(rows), size):
        group = rows[start : start + size]
        captions = ["\n".join([*(f"{name}: {row[name]}" for name in ("label", "suggestion", "line") if row[name]),
                               *([Path(row["file"]).name] if "file" in row else [])]) for row in group]  # fmt: skip
        figures.append(([images[row["fold"], row["index"]] for row in group], "\n\n".join(captions)))
    return samples(figures)
