"""Lists likely label errors and near-duplicates, and writes a page and a table for corrections (`doubts REPEAT`)."""

import argparse
import csv
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lit_engine.cli.arguments import OptionParser, at_least, expanded_path
from lit_engine.errors import UserError
from lit_engine.project import program
from lit_engine.run.directory import csv_text
from lit_engine.tools.output import HELP, json_document, write_file

# Maps each reason in the table to a section title and the number of rows per entry.
REASONS = {
    "label": ("Likely label errors", 1),
    "different labels": ("Near-duplicates with different labels", 2),
    "different folds": ("Near-duplicates in different folds", 2),
}


def option_parser() -> argparse.ArgumentParser:
    """Return the argument parser of `doubts`."""
    what = "Finds likely label errors and near-duplicates after `repeat --folds`, and writes a table for corrections."
    parser = OptionParser("doubts", what)
    add = parser.add_argument
    add("repeat", type=Path, metavar="REPEAT", help="folder written by `repeat --folds`")
    add("--first", type=at_least(1), metavar="N", help="number of label errors to list (default: the estimated number)")
    add("--csv", type=expanded_path, metavar="FILE", help="file for the table (default: REPEAT/doubts.csv)")
    add("--json", action="store_true", help=HELP)
    return parser


def doubts(args: Sequence[str]) -> int:
    """Find doubtful samples, write the table and the page, and return the exit status.

    Raises:
        UserError: the folder does not contain all folds of a classification task, or the table was edited.
    """
    options = option_parser().parse_args(args)
    file = options.csv or options.repeat / "doubts.csv"
    with json_document(options.json) as document:
        _check_unedited(file)
        from lit_engine.tools.doubts.page import render_page
        from lit_engine.tools.doubts.samples import read_samples

        samples = read_samples(options.repeat)
        rows, errors = list_doubts(samples, options.first)
        counts, total = Counter(row["reason"] for row in rows), len(samples.rows)
        lines = [f"{total:,} samples, estimated label errors: {errors:,} ({100 * errors / total:.1f} %)"]
        lines += [f"{title}: {counts[reason] // size:,}" for reason, (title, size) in REASONS.items()]
        if samples.features is None:
            lines.append("near-duplicates: unknown, because the network has no linear layer with one output per class")
        print("\n".join(lines))
        write_file("table", "csv", file, csv_text(rows, () if rows else ["correction", "id"]))
        again = shlex.join([program(), "fit", "CONFIG", f"--data.corrections={file}"])
        print(f"fill in the `correction` column, then run `{again}`")
        page = file.with_suffix(".html")
        write_file("page", "csv", page, render_page(samples, rows, lines, f"{program()} doubts {shlex.join(args)}"))
        document.update(samples=total, estimated_errors=errors, doubts=rows, table=file, page=page)
    return 0


def list_doubts(samples: Any, first: int | None) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of the table, grouped by reason, and the estimated number of label errors.

    Within each group, the most doubtful rows come first. Each pair of near-duplicates occupies two consecutive rows.
    """
    from lit_engine.tools.doubts.statistics import find_label_errors, find_near_duplicates

    labels, others = samples.labels, samples.probabilities.copy()
    others[range(len(labels)), labels] = -1
    order, errors = find_label_errors(samples.probabilities, labels)
    pairs = [] if samples.features is None else find_near_duplicates(samples.features, labels, samples.folds)

    def row(place: int, reason: str, other: int, distance: float | str = "") -> dict[str, Any]:
        own, suggested = samples.probabilities[place, [labels[place], other]].tolist()
        return {"correction": "", "label": samples.classes[labels[place]],
                "suggestion": samples.classes[other] if suggested > own else "", "reason": reason,
                "probability": round(own, 6), "distance": distance, **samples.rows[place]}  # fmt: skip

    rows = [row(place, "label", others[place].argmax()) for place in order[: first or errors]]
    pairs.sort(key=lambda pair: labels[pair[0]] == labels[pair[1]])  # pairs with different labels come first
    for i, j, distance in pairs:
        reason = "different folds" if labels[i] == labels[j] else "different labels"
        rows += [row(i, reason, labels[j], round(distance, 6)), row(j, reason, labels[i], round(distance, 6))]
    return rows, errors


def _check_unedited(file: Path) -> None:
    """Raise UserError if the file contains corrections or is not a table of doubtful samples."""
    if file.is_file():
        with file.open(newline="", encoding="utf-8-sig", errors="replace") as handle:
            if any(row.get("correction") != "" for row in csv.DictReader(handle)):
                raise UserError(f"{file} contains corrections or other data: rename it, or choose another --csv FILE")
