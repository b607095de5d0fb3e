"""The page of a run, `RUN/index.html`, and its model card, `RUN/README.md`.

`write(RUN)` makes both from the run directory alone; what a run of another task or version lacks is left out.
"""

import re
import shlex
import sys
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
COUNTS = ("samples", "tokens", "dataset_size")
EVALUATIONS = {"Test": ("test", "test"), "Validation": ("validate", "val")}  # section of metrics.json, prefix
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
    home = RunDir(run.path)
    sections, entries = home.metrics(), home.entries()
    pictures = sorted((run.path / "figures").glob("*.png"))
    for folder in sorted(path for path in (run.path / "figures").glob("*") if path.is_dir()):
        pictures += sorted(folder.glob("*.png"))[-MOST_PER_FOLDER:]
    parts = [paragraph(_summary(run)), *_numbers(run, sections)]
    for title, (section, split) in EVALUATIONS.items():
        found = [file for file in pictures if file.name.startswith(f"{split}_")]
        pictures = [file for file in pictures if file not in found]
        inside = [
            *([figures(found)] if found else []),
            *_classes(sections.get(section, {})),
            *_samples(run.path / "predictions" / f"{split}_samples.md"),
        ]
        parts += [heading(title), *inside] if inside else []
    if pictures:
        parts += [heading("Training"), figures(pictures)]
    parts += [*_changes(entries), *_origin(run, entries)]
    parts += [heading("How to use it"), code(_commands(run.path))]
    if home.config_file.is_file():
        parts.append(code(home.config_file.read_text(encoding="utf-8"), "The complete config"))
    return page(_name(run), parts, f"{PROGRAM} · {datetime.now():%Y-%m-%d %H:%M}")


def _name(run: Run) -> str:
    return "/".join(run.path.absolute().parts[-2:])


def _short(run: Run, key: str) -> str:
    return str(run.options.get(key, "")).rpartition(".")[2]


def _summary(run: Run) -> str:
    """What was trained on what, and for how long."""
    net, task, data = (_short(run, key) for key in ("model.net", "model", "data"))
    size = run.metrics.get("parameters")
    what = " of ".join(filter(None, (task, net))) + (f" ({size:,.0f} parameters)" if size else "")
    steps = [f"{run.metrics[name]:,.0f} {name}" for name in ("epochs", "steps") if name in run.metrics]
    took = [duration(run.seconds)[0]] if run.seconds == run.seconds else []
    told = [what + (f" on {data}" if data else ""), ", ".join(steps), *map(str, took), run.state]
    return "; ".join(filter(None, told)) + "."


def _columns(run: Run, sections: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Metrics without their prefix, by what they were computed on."""
    found: dict[str, dict[str, float]] = {}
    for title, values in {"train": run.metrics, "val": run.metrics, "validate": numbers(sections.get("validate", {})),
                          "test": run.metrics}.items():  # fmt: skip
        prefix = "val/" if title == "validate" else f"{title}/"
        found[title] = {name.removeprefix(prefix): v for name, v in values.items() if name.startswith(prefix)}
    return {title: values for title, values in found.items() if values}


def _numbers(run: Run, sections: Mapping[str, Any]) -> Iterator[str]:
    columns = _columns(run, sections)
    names = dict.fromkeys(name for values in columns.values() for name in values)
    rows = [[name, *(_cell(values.get(name), name) for values in columns.values())] for name in names]
    if rows:
        yield heading("Numbers")
        yield table(["metric", *columns], sorted(rows, key=lambda row: str(row[0]).startswith(COUNTS)))
    used = {title: sections.get(title, {}).get("checkpoint") for title in ("validate", "test")}
    best = f"the best epoch by {run.monitor}" if run.monitor else "the last validation"
    told = {"train": "the last epoch", "val": best} | {title: Path(file).name for title, file in used.items() if file}
    if told := {title: of for title, of in told.items() if title in columns}:
        yield paragraph(f"{'; '.join(f'{title}: of {of}' for title, of in told.items())}.", soft=True)


def _cell(value: float | None, name: str = "") -> Cell:
    count = name.startswith(COUNTS)  # or so many per second
    return ("", None) if value is None else (f"{value:,.0f}" if count else number(value), value)


def _classes(section: Mapping[str, Any]) -> Iterator[str]:
    """What is told by class or length; the pairs of classes that are most confused."""
    told: dict[str, Any] = {**parts_of(section)}
    told.pop("calibration", None)  # its figure shows it
    confusion = section.get("confusion") or {}
    if confusion:
        told.pop("class_accuracy", None)  # the recall
        right = {name: row.get(name, 0) for name, row in confusion.items()}
        samples = {name: sum(row.values()) for name, row in confusion.items()}
        predicted = {name: sum(row.get(name, 0) for row in confusion.values()) for name in confusion}
        both = {name: (samples[name] + predicted[name]) / 2 for name in confusion}
        for title, of in {"precision": predicted, "recall": samples, "F1": both}.items():
            told[title] = {name: right[name] / of[name] if of[name] else None for name in confusion}
        told |= {"samples": samples, "predicted": predicted}
    groups: dict[tuple[str, ...], list[str]] = {}
    for kind, values in told.items():
        groups.setdefault(tuple(values), []).append(kind.replace("_", " "))
    for names, kinds in groups.items():
        of_classes = len(kinds) > 1 or "class" in kinds[0]
        yield heading("By class" if of_classes else kinds[0].capitalize(), 3)
        columns = [told[kind.replace(" ", "_")] for kind in kinds]
        yield table(
            ["class" if of_classes else "group", *kinds],
            [[name, *(_cell(values[name]) for values in columns)] for name in names],
        )
    pairs = [(n, true, other) for true, row in confusion.items() for other, n in row.items() if other != true]
    lines: list[list[Cell]] = []
    for n, true, other in sorted(pairs, key=lambda pair: -pair[0])[:MOST_PAIRS]:
        lines.append([true, other, (f"{n:,}", n), (f"{n / samples[true]:.1%}", n / samples[true])])
    if lines:
        yield heading("Most confused", 3)
        yield table(["true", "predicted", "samples", "of the class"], lines)


def _samples(file: Path) -> Iterator[str]:
    """The headings and tables of a Markdown file."""
    rows: list[list[str]] = []
    for line in [*(file.read_text(encoding="utf-8").splitlines() if file.is_file() else []), ""]:
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            rows.append([re.sub(r"\\(.)", r"\1", cell.strip().replace("<br>", " / ")) for cell in cells])
        elif rows:
            names, form, *lines = rows
            right = [cell.endswith(":") for cell in form]
            yield table(names, [[(c, float(c)) if r else c for c, r in zip(row, right, strict=True)] for row in lines])
            rows = []
        if line.startswith("#"):
            marks, _, title = line.partition(" ")
            yield heading(title, min(len(marks) + 2, 4))


def _changes(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What overlays, options and resumes changed."""
    told = [(entry, key, *values) for entry in entries for key, values in entry.get("changed", {}).items()]
    rows = [
        [key, *("" if value is None else str(value) for value in (old, new)), entry.get("time", "")[:10]]
        for entry, key, old, new in told
    ]
    if rows:
        yield heading("What differs from the config")
        yield table(["option", f"in {entries[0].get('config', 'the config')}", "here", "since"], rows)
    elif entries and "changed" in entries[0]:
        yield paragraph(f"Nothing differs from the config {entries[0].get('config', '')}.", soft=True)


def _origin(run: Run, entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not entries:
        return
    last = entries[-1]
    commands = [shlex.join([PROGRAM, *entry["command"][1:]]) for entry in entries if entry.get("command")]
    versions = {name: version for name, version in last.get("versions", {}).items() if version}
    told = {
        "begun": f"{run.begun.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        "seed": str(last.get("seed", "")),
        "commit": run.facts.get("commit", "") + (", with code.patch" if (run.path / "code.patch").exists() else ""),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "machine": ", ".join(filter(None, (last.get("host"), last.get("platform")))),
        "devices": run.facts.get("devices", ""),
        "processes": run.facts.get("processes", ""),
    }
    yield heading("Where it comes from")
    yield code("\n".join(commands))
    yield facts({name: text for name, text in told.items() if text})


def _commands(path: Path) -> str:
    run = shlex.quote(str(path))
    return "\n".join(
        f"{PROGRAM} {command}"
        for command in (
            f"predict --run {run}",
            f"test --run {run}",
            f"serve {run}",
            f"export --run {run} --format pt2",
            f"compare {run} OTHER_RUN",
            f"fit -c {run}/config.yaml",
        )
    )


def card_of(run: Run) -> str:
    """The model card, with metadata as the Hugging Face Hub reads them."""
    home = RunDir(run.path)
    sections, entries = home.metrics(), home.entries()
    data, columns = _short(run, "data") or "unknown", _columns(run, sections)
    columns.pop("train", None), columns.pop("validate" if "val" in columns else "", None)
    kind = next((s["task"] for s in sections.values() if "task" in s), None)
    results: list[dict[str, Any]] = []
    for title, values in columns.items():
        counts = {name: int(value) for name, value in values.items() if name in COUNTS}
        kept = {name: value for name, value in values.items() if name not in counts}
        split = "test" if title == "test" else "validation"
        results.append({
            "task": {"type": kind or "other"},
            "dataset": {"name": data, "type": data.lower(), "split": split, "args": counts},
            "metrics": [{"type": name, "name": f"{title} {name}", "value": value} for name, value in kept.items()],
        })  # fmt: skip
    metadata: dict[str, Any] = {"library_name": "pytorch", "tags": ["lightning", PROGRAM]}
    if kind:
        metadata["pipeline_tag"] = kind
    if results:
        metadata["metrics"] = list(dict.fromkeys(metric["type"] for one in results for metric in one["metrics"]))
        metadata["model-index"] = [{"name": _name(run), "results": results}]
    names = dict.fromkeys(name for values in columns.values() for name in values)
    shown = [[n, *(_cell(values.get(n), n)[0] for values in columns.values())] for n in names]
    rows = [["", *columns], ["---", *("---:" for _ in columns)], *shown] if shown else []
    commit = run.facts.get("commit")
    lines = [
        f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---",
        MARK,
        f"# {_name(run)}",
        f"{_summary(run)} Trained with [PyTorch Lightning](https://lightning.ai).",
        "## Results",
        "\n".join(f"| {' | '.join(row)} |" for row in rows) or "It has not been evaluated.",
        "## Training",
        f"Data: {data}, of this config: `config.yaml`." + (f" Code: commit {commit}." if commit else ""),
        "\n".join(f"- `{k}`: {new}, was {old}" for e in entries for k, (old, new) in e.get("changed", {}).items()),
        "## How to use it",
        f"```bash\n{_commands(run.path)}\n```",
    ]
    return "\n\n".join(lines) + "\n"
