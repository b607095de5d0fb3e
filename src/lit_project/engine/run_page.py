"""The page of a run, `RUN/index.html`, and its model card, `RUN/README.md`.

`write(RUN)` makes both from the run directory alone; what a run of another task or version lacks is left out.
"""

import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from .compare.columns import duration, number
from .compare.reading import Run, numbers, parts_of
from .page import Cell, code, facts, figures, heading, page, paragraph, table
from .project import PROGRAM, debugging
from .run import RunDir, write_text

MOST_PAIRS, MOST_PER_FOLDER = 12, 4  # confused classes; figures of a folder within figures/
COUNTS = ("samples", "tokens", "pixels", "dataset_size")
MARK = f"<!-- {PROGRAM} writes this file anew at each fit and test. Remove this line to keep what you write. -->"


def write(path: Path) -> None:
    """Writes page and card, and prints where the page is; what goes wrong costs them alone, and is told in a line."""
    try:
        run = Run.read(path)
        write_text(path / "index.html", page_of(run))
        card = path / "README.md"
        if not card.exists() or MARK in card.read_text(encoding="utf-8"):
            write_text(card, card_of(run))
        print(f"page: {path / 'index.html'}", flush=True)
    except Exception as error:  # a training must not fail for its page
        if debugging():
            raise
        print(f"warning: the run has no page: {type(error).__name__}: {error}", file=sys.stderr)


def page_of(run: Run) -> str:
    """The text of the page."""
    sections, entries = RunDir(run.path).metrics(), RunDir(run.path).entries()
    drawn = sorted((run.path / "figures").glob("*.png"))
    for folder in sorted({file.parent for file in run.path.glob("figures/*/*.png")}):
        drawn += sorted(folder.glob("*.png"))[-MOST_PER_FOLDER:]
    parts = [paragraph(_summary(run)), heading("Numbers"), table(*_numbers(run, sections))]
    best = f"val: the best epoch by {run.monitor}; " if run.monitor else ""
    used = [f"{name}: {Path(one['checkpoint']).name}" for name, one in sections.items() if one.get("checkpoint")]
    parts.append(paragraph("; ".join([f"{best}train: the last epoch", *used]), soft=True))
    for title, section, split in (("Test", "test", "test"), ("Validation", "validate", "val"), ("Training", "", "")):
        found = [file for file in drawn if file.name.startswith(split)]
        drawn = [file for file in drawn if file not in found]
        samples = run.path / "predictions" / f"{split}_samples.md"
        inside = [*([figures(found)] if found else []), *_classes(sections.get(section, {})), *_samples(samples)]
        parts += [heading(title), *inside] if inside else []
    changed = [(key, *map(str, values)) for entry in entries for key, values in entry.get("changed", {}).items()]
    if changed:
        parts += [heading("What differs from the config"), table(["option", "in the config", "here"], changed)]
    parts += [heading("Where it comes from"), *_origin(run, entries), heading("How to use it"), code(_commands(run))]
    if (config := run.path / "config.yaml").is_file():
        parts.append(code(config.read_text(encoding="utf-8"), "The complete config"))
    return page(_name(run), parts, f"{PROGRAM} · {datetime.now():%Y-%m-%d %H:%M}")


def _name(run: Run) -> str:
    return "/".join(run.path.absolute().parts[-2:])


def _short(run: Run, key: str) -> str:
    return str(run.options.get(key, "")).rpartition(".")[2]


def _summary(run: Run) -> str:
    """What was trained on what, and for how long."""
    what = " of ".join(filter(None, (_short(run, "model"), _short(run, "model.net"))))
    sizes = [f"{run.metrics[name]:,.0f} {name}" for name in ("parameters", "epochs", "steps") if name in run.metrics]
    told = [f"{what} on {_short(run, 'data')}", *sizes, str(duration(run.seconds)[0]), run.state]
    return "; ".join(filter(None, told)) + "."


def _columns(run: Run, sections: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Metrics without their prefix, by what they were computed on."""
    validated = numbers(sections.get("validate", {}))
    found = {}
    for title, split in (("train", "train/"), ("val", "val/"), ("validate", "val/"), ("test", "test/")):
        given = validated if title == "validate" else run.metrics
        found[title] = {name.removeprefix(split): value for name, value in given.items() if name.startswith(split)}
    return {title: values for title, values in found.items() if values}


def _numbers(run: Run, sections: Mapping[str, Any]) -> tuple[list[str], list[list[Cell]]]:
    """Titles and rows of a table of the metrics, counts last."""
    columns = _columns(run, sections)
    names = dict.fromkeys(name for values in columns.values() for name in values)
    ordered = sorted(names, key=lambda name: name.startswith(COUNTS))
    return ["metric", *columns], [[name, *(_cell(of.get(name), name) for of in columns.values())] for name in ordered]


def _cell(value: float | None, name: str = "") -> Cell:
    count = name.startswith(COUNTS)  # or so many per second
    return ("", None) if value is None else (f"{value:,.0f}" if count else number(value), value)


def _classes(section: Mapping[str, Any]) -> Iterator[str]:
    """What is told by class or length; the pairs of classes that are most confused."""
    told: dict[str, Any] = dict(parts_of(section))
    confusion = section.get("confusion") or {}
    samples = {name: sum(row.values()) for name, row in confusion.items()}
    if confusion:
        told.pop("class_accuracy", None)  # the recall
        predicted = Counter(dict.fromkeys(confusion, 0))
        for row in confusion.values():
            predicted.update(row)
        both = {name: (samples[name] + predicted[name]) / 2 for name in confusion}
        for title, of in {"precision": predicted, "recall": samples, "F1": both}.items():
            told[title] = {name: row.get(name, 0) / of[name] if of[name] else None for name, row in confusion.items()}
        told |= {"samples": samples, "predicted": predicted}
    for names in dict.fromkeys(map(tuple, told.values())):
        kinds = [kind for kind, values in told.items() if tuple(values) == names]
        yield heading("By class" if len(kinds) > 1 else kinds[0].replace("_", " ").capitalize(), 3)
        rows = [[name, *(_cell(told[kind][name]) for kind in kinds)] for name in names]
        yield table(["of", *(kind.replace("_", " ") for kind in kinds)], rows)
    pairs = [(n, true, other) for true, row in confusion.items() for other, n in row.items() if other != true]
    if pairs:
        most = sorted(pairs, key=lambda pair: -pair[0])[:MOST_PAIRS]
        rows = [[true, other, (str(n), n), _cell(n / samples[true])] for n, true, other in most]
        yield heading("Most confused", 3) + table(["true", "predicted", "samples", "of the class"], rows)


def _samples(file: Path) -> Iterator[str]:
    """The headings and tables of a Markdown file."""
    rows: list[list[str]] = []
    for line in [*(file.read_text(encoding="utf-8").splitlines() if file.is_file() else []), ""]:
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            rows.append([re.sub(r"\\(.)", r"\1", cell.strip().replace("<br>", " / ")) for cell in cells])
        elif rows:
            (names, form, *lines), rows = rows, []
            right = [cell.endswith(":") for cell in form]
            yield table(names, [[(c, float(c)) if r else c for c, r in zip(row, right, strict=True)] for row in lines])
        if line.startswith("#"):
            yield heading(line.lstrip("# "), 3 + line.startswith("##"))


def _origin(run: Run, entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Commands, commit, versions, machine."""
    yield code("\n".join(shlex.join([PROGRAM, *entry["command"][1:]]) for entry in entries if entry.get("command")))
    last = entries[-1] if entries else {}
    patch = {"uncommitted": "see code.patch"} if (run.path / "code.patch").exists() else {}
    machine = {name: str(last[name]) for name in ("seed", "host", "platform") if name in last}
    yield facts({"begun": f"{run.begun.astimezone(UTC):%Y-%m-%d %H:%M} UTC", **run.facts, **patch, **machine})


def _commands(run: Run) -> str:
    path = shlex.quote(str(run.path))
    uses = (f"predict --run {path}", f"serve {path}", f"export --run {path} --format pt2", f"compare {path} OTHER_RUN")
    return "\n".join(f"{PROGRAM} {use}" for use in (*uses, f"fit -c {path}/config.yaml"))


def card_of(run: Run) -> str:
    """The model card, with metadata as the Hugging Face Hub reads them."""
    sections, data = RunDir(run.path).metrics(), _short(run, "data") or "unknown"
    kind = next((section["task"] for section in sections.values() if "task" in section), "other")
    results: list[dict[str, Any]] = []
    columns = _columns(run, sections)
    for title, split in (("val", "validation"), ("test", "test")):
        values = columns.get(title, {})
        counts = {name: int(n) for name, n in values.items() if name in COUNTS}
        metrics = [{"type": n, "name": f"{title} {n}", "value": v} for n, v in values.items() if n not in COUNTS]
        dataset = {"name": data, "type": data.lower(), "split": split, "args": counts}
        results += [{"task": {"type": kind}, "dataset": dataset, "metrics": metrics}] if metrics else []
    metadata: dict[str, Any] = {"library_name": "pytorch", "tags": ["lightning", PROGRAM]}
    if results:
        metadata["metrics"] = list(dict.fromkeys(metric["type"] for one in results for metric in one["metrics"]))
        metadata["model-index"] = [{"name": _name(run), "results": results}]
    if kind != "other":
        metadata["pipeline_tag"] = kind
    names, rows = _numbers(run, sections)
    lines = [[cell if isinstance(cell, str) else cell[0] for cell in row] for row in rows]
    shown = [names, ["---", *("---:" for _ in names[1:])], *lines]
    return "\n\n".join((
        f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---",
        MARK,
        f"# {_name(run)}",
        f"{_summary(run)} Trained with PyTorch Lightning; all options are in `config.yaml`.",
        "## Results",
        "\n".join(f"| {' | '.join(row)} |" for row in shown),
        "## How to use it",
        f"```bash\n{_commands(run)}\n```\n",
    ))  # fmt: skip
