"""Writes the page (`RUN/index.html`) and the model card (`RUN/README.md`) of a run.

`write(RUN)` creates both files from the run directory. Sections without data are omitted.
"""

import json
import math
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import UTC
from html import escape
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml

from lit_engine.project import is_debugging, program
from lit_engine.run.directory import RunDir, write_text
from lit_engine.run.metric_names import get_stage, strip_stage
from lit_engine.run.options import options_of
from lit_engine.tools.pages import html
from lit_engine.tools.pages.intervals import RESAMPLES, averages, wilson
from lit_engine.tools.runs.columns import duration, number
from lit_engine.tools.runs.reading import FACTS, Run, numbers, parts_of

MAX_PAIRS, MAX_PER_FOLDER = 12, 4  # maximum number of confused pairs, and of figures per subfolder
SIZES = ("samples", "tokens", "pixels", "dataset_size")
MARK = "rewrites this file after each fit and test. Remove this line to keep your edits. -->"


def write(path: Path) -> None:
    """Write the page and the model card, and print the page's path. On failure, only print a warning."""
    try:
        run = Run.read(path)
        card = path / "README.md"
        if not card.exists() or MARK in card.read_text(encoding="utf-8"):
            write_text(card, render_card(run))
        write_text(path / "index.html", render_page(run))  # after the card, because the page links to it
        print(f"page: {path / 'index.html'}", flush=True)
    except Exception as error:  # an error in the page must not make the run fail
        if is_debugging():
            raise
        print(f"warning: no page was written for the run: {type(error).__name__}: {error}", file=sys.stderr)


def render_page(run: Run) -> str:
    """Return the HTML of the page."""
    drawn = sorted((run.path / "figures").glob("*.png"))
    for folder in sorted({file.parent for file in run.path.glob("figures/*/*.png")}):
        drawn += sorted(folder.glob("*.png"))[-MAX_PER_FOLDER:]
    results = [html.table(*_numbers(run)), html.paragraph(_weights_of(run), soft=True)]
    parts: dict[str, list[str]] = {"Results": results}  # section title → content
    for title, section, split in (("Test", "test", "test"), ("Validation", "validate", "val"), ("Training", "", "")):
        found = [file for file in drawn if file.name.startswith(split)]
        drawn = [file for file in drawn if file not in found]
        samples = run.path / "predictions" / f"{split}_samples.json"
        curves = [] if split else _curves(run, {file.stem for file in found})
        parts[title] = [*curves, *([html.figures(found, run.path)] if found else [])]
        parts[title] += [*_classes(run.sections.get(section, {}), title), *_samples(samples, title)]
    changed = [
        (key, "not set" if before is None else str(before), str(now))
        for entry in run.entries
        for key, (before, now) in entry.get("changed", {}).items()
    ]
    parts["Changed options"] = [html.table(["option", "in the config", "here"], changed)] if changed else []
    parts["Hyperparameters"] = [html.table(["option", "value"], options)] if (options := _hyperparameters(run)) else []
    parts["Provenance"] = [*_origin(run)]
    parts["How to use it"] = [html.code(_commands(run))]
    if (config := run.path / "config.yaml").is_file():
        parts["How to use it"].append(html.code(config.read_text(encoding="utf-8"), "The complete config"))
    parts["Files"] = [_files(run.path)]
    shown = {title: inside for title, inside in parts.items() if inside}
    body = [part for title, inside in shown.items() for part in (html.heading(title), *inside)]
    return html.page(RunDir(run.path).name, [html.paragraph(_summary(run)), html.contents(shown), *body], program())


def _hyperparameters(run: Run) -> list[list[html.Cell]]:
    """Return the configured options that differ from the default arguments of the Trainer and other classes."""
    from lightning.pytorch import Trainer

    defaults = {f"trainer.{name}": one.default for name, one in signature(Trainer).parameters.items()}
    defaults |= {f"trainer.{name}": "auto" for name in ("accelerator", "strategy", "devices")}
    defaults["trainer.enable_model_summary"] = False  # the command line's default
    unset: tuple[Any, ...] = (None, [], {}, "")
    config = RunDir(run.path).config() if RunDir(run.path).config_file.is_file() else {}
    options = dict(options_of(_without_defaults(config)))
    options |= {key: value for key, value in run.options.items() if key in ("fork", "init_from", "init_prefixes")}
    chosen = {k: v for k, v in options.items() if v not in unset and (k not in defaults or v != defaults[k])}
    # allow line breaks after the dots in long names
    shown = [html.Html(escape(key).replace(".", ".<wbr>")) for key in chosen]
    values = [value if isinstance(value, str) else json.dumps(value) for value in chosen.values()]
    return [list(row) for row in zip(shown, values, strict=True)]


def _without_defaults(value: Any) -> Any:
    """Remove arguments with default values from a config. Classes from packages that are not imported are skipped."""
    if isinstance(value, list):
        return [_without_defaults(one) for one in value]
    if not isinstance(value, dict):
        return value
    value = {name: _without_defaults(one) for name, one in value.items()}
    if str(value.get("class_path")).partition(".")[0] in sys.modules:
        with suppress(ImportError, AttributeError, ValueError):  # the class has moved or has no signature
            defaults: dict[str, Any] = {}
            for kind in reversed(resolve_name(value["class_path"]).__mro__):
                for name, parameter in signature(kind.__init__).parameters.items():
                    default = parameter.default
                    defaults[name] = list(default) if isinstance(default, tuple) else default
            given = value.get("init_args", {})
            value["init_args"] = {name: one for name, one in given.items() if one != defaults.get(name)}
    return value


def _files(folder: Path) -> str:
    """Return a table that links to every file of a run."""
    rows: list[list[html.Cell]] = []
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name[0] != "." and file != folder / "index.html":
            size = file.stat().st_size
            rows.append([html.link(str(file.relative_to(folder)), file, folder), (f"{size / 1000:,.1f} kB", size)])
    return html.collapsible(f"All {len(rows)} files", html.table(["file", "size"], rows))


def _class_name(run: Run, key: str) -> str:
    return str(run.options.get(key, "")).rpartition(".")[2]


def _summary(run: Run) -> str:
    """Return a line with the model, the data, the size and duration of the training run, and its state."""
    what = " of ".join(filter(None, (_class_name(run, "model"), _class_name(run, "model.net"))))
    last = run.rows[-1] if run.rows and run.state != "finished" else {}
    known = {name: float(last[name]) + (name == "epoch") for name in ("epoch", "step") if last.get(name)}
    known = {f"{name}s": value for name, value in known.items()} | run.metrics
    sizes = [f"{known[name]:,.0f} {name}" for name in ("parameters", "epochs", "steps") if name in known]
    epochs, seconds = known.get("epochs", 0) - run.forked_at[0], run.seconds
    if len(run.entries) == 1:
        seconds = run.sections.get("fit", {}).get("seconds", seconds)  # excludes setup and test
    pace = f"{seconds / epochs:.3g} s per epoch" if epochs > 0 and run.is_timed and not math.isnan(seconds) else ""
    if devices := run.facts.get("devices"):
        pace = f"{pace} on {devices}" if pace else f"on {devices}"
    peak = max((entry.get("peak_memory_gb", 0) for entry in run.entries), default=0)
    memory = f"peak memory {peak:.2f} GB" if peak else ""
    reason = run.entries[-1].get("stopped_early") if run.entries and run.state == "finished" else None
    state = f"stopped early: {reason}" if reason else run.state
    told = [f"{what} on {_class_name(run, 'data')}", *sizes, str(duration(run.seconds)[0]), pace, memory, state]
    return "; ".join(filter(None, told)) + "."


def _columns(run: Run) -> dict[str, dict[str, float]]:
    """Return the metrics without their stage prefix, grouped by the split or command they come from."""
    validated = numbers(run.sections.get("validate", {}))
    found = {}
    for title, stage in (("train", "train"), ("val", "val"), ("validate", "val"), ("test", "test")):
        given = validated if title == "validate" else run.metrics
        names = [n for n in given if get_stage(n) == stage and n not in FACTS and not n.endswith("_per_second")]
        found[title] = {strip_stage(name): given[name] for name in names}
    return {title: values for title, values in found.items() if values}


def _numbers(run: Run) -> tuple[list[str], list[list[html.Cell]]]:
    """Return the column titles and rows of the metrics table, with counts last."""
    columns = _columns(run)
    names = dict.fromkeys(name for values in columns.values() for name in values)
    ordered = sorted(names, key=lambda name: name in SIZES)
    return ["metric", *columns], [[name, *(_format(of.get(name), name) for of in columns.values())] for name in ordered]


def _format(value: float | None, name: str) -> html.Cell:
    return ("", None) if value is None else (f"{value:,.0f}" if name in SIZES else number(value), value)


def _curves(run: Run, drawn: Collection[str]) -> Iterator[str]:
    """Yield the curves that are missing from the figures because the run did not finish."""
    if "learning_curves" in drawn:
        return
    from lit_engine.callbacks.figures import MAX_CURVES, curve_names, draw_curves  # imports torch

    names = curve_names(run.rows[0] if run.rows else ())
    logged = [name for name in names if strip_stage(name) not in SIZES and not name.endswith("_per_second")]
    metrics = ["loss", *filter(None, [run.monitor]), *logged][:MAX_CURVES]
    for name, (figure, about) in draw_curves(run.rows, metrics).items():
        if name not in drawn:
            yield html.picture(figure, name.replace("_", " ")) + html.paragraph(about, soft=True)


def _classes(section: Mapping[str, Any], title: str) -> Iterator[str]:
    """Yield tables of per-class or per-length metrics, their averages, and the most confused pairs of classes."""
    told: dict[str, Any] = dict(parts_of(section))
    confusion = section.get("confusion") or {}
    samples = {name: sum(row.values()) for name, row in confusion.items()}
    if confusion:
        told.pop("class_accuracy", None)  # the same as recall
        predicted = Counter(dict.fromkeys(confusion, 0))
        for row in confusion.values():
            predicted.update(row)
        both = {name: (samples[name] + predicted[name]) / 2 for name in confusion}
        for kind, of in {"precision": predicted, "recall": samples, "F1": both}.items():
            told[kind] = {name: row.get(name, 0) / of[name] if of[name] else None for name, row in confusion.items()}
        told |= {"samples": samples, "predicted": predicted}
    for names in dict.fromkeys(map(tuple, told.values())):
        kinds = [kind for kind, values in told.items() if tuple(values) == names]
        what = kinds[0].partition("_by_")[2] or ("target" if kinds[0] in ("mse", "mae", "r2") else "class")
        rows = [[name, *(_format(told[kind][name], kind) for kind in kinds)] for name in names]
        titles = [kind.partition("_by_")[0].replace("_", " ") for kind in kinds]
        yield html.heading(f"By {what}", 3, title) + html.table([what, *titles], rows)
    if sum(samples.values()):
        yield from _averages(confusion, title)
    wrong = Counter({(t, other): n for t, row in confusion.items() for other, n in row.items() if other != t})
    if wrong:
        most = [(*pair, n, n / samples[pair[0]]) for pair, n in wrong.most_common(MAX_PAIRS)]
        rows = [[true, other, (str(n), n), (f"{share:.1%}", share)] for true, other, n, share in most]
        titles = ["true", "predicted", "samples", "share of the class"]
        yield html.heading("Most confused", 3, title) + html.table(titles, rows)


def _averages(confusion: Mapping[str, Mapping[str, int]], title: str) -> Iterator[str]:
    """Yield the accuracy and the class averages with confidence intervals, and a note on how they were computed."""
    count = sum(sum(row.values()) for row in confusion.values())
    accuracy = wilson(sum(row.get(name, 0) for name, row in confusion.items()), count)
    rows: list[list[html.Cell]] = [
        [kind, *((f"{value:.4f} ({low:.4f} – {high:.4f})", value) for value, low, high in values)]
        for kind, values in averages(confusion).items()
    ]
    yield html.heading("Averages", 3, title) + html.table(["average", "precision", "recall", "F1"], rows)
    yield html.paragraph(
        f"Accuracy {accuracy[0]:.4f} ({accuracy[1]:.4f} – {accuracy[2]:.4f}). "
        f"The 95 % confidence intervals in parentheses are based on {count:,} samples. "
        f"The interval of the accuracy is a Wilson score interval. The others use {RESAMPLES:,} bootstrap resamples. "
        "The intervals do not include the variation between seeds.",
        soft=True,
    )


def _samples(file: Path, title: str) -> Iterator[str]:
    """Yield the tables in a JSON file. The file maps titles to rows, and each row maps columns to text or numbers."""
    for kind, rows in json.loads(file.read_text(encoding="utf-8")).items() if file.is_file() else ():
        cells = [[v if isinstance(v, str) else (f"{v:g}", v) for v in row.values()] for row in rows]
        yield html.heading(kind, 3, title) + (html.table(list(rows[0]), cells) if rows else "")


def _origin(run: Run) -> Iterator[str]:
    """Yield the commands, commit, versions and machine of a run."""
    yield html.code(
        "\n".join(shlex.join([program(), *entry["command"][1:]]) for entry in run.entries if entry.get("command"))
    )
    last = run.entries[-1] if run.entries else {}
    patch = {"uncommitted": "see code.patch"} if (run.path / "code.patch").exists() else {}
    machine: dict[str, str] = {name: str(last[name]) for name in ("seed", "host", "platform") if name in last}
    speed = {n[6:].replace("_", " "): f"{v:,.0f}" for n, v in run.metrics.items() if n.endswith("_per_second")}
    started = f"{run.started.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    forked = {"forked from": str(run.options["fork"])} if run.options["fork"] else {}
    yield html.facts({"started": started, **forked, **run.facts, **patch, **machine, **speed})


def _commands(run: Run) -> str:
    path = shlex.quote(str(run.path))
    serve = [f"serve {path}"] if run.headline else []  # plain modules have no main metric, and cannot be served
    uses = (f"predict {path}", *serve, f"export {path} --format pt2", f"compare {path} OTHER_RUN")
    more = [] if run.state in ("finished", "running") else [f"fit {path}"]  # resumes
    again = f"fit -c {path}/config.yaml {shlex.join(RunDir(run.path).initial_weights())}".rstrip()
    return "\n".join(f"{program()} {use}" for use in (*more, *uses, again))


def _weights_of(run: Run) -> str:
    """Return a line that states which weights were used for each column of the results."""
    best = f"val: the best epoch by {run.monitor}; " if run.monitor else ""
    used = [f"{name}: {Path(one['checkpoint']).name}" for name, one in run.sections.items() if one.get("checkpoint")]
    trained = "train: the last epoch, with any dropout, augmentation and label smoothing"
    return "; ".join([f"{best}{trained}", *used])


def render_card(run: Run) -> str:
    """Return the model card with metadata in the format of the Hugging Face Hub."""
    data = _class_name(run, "data") or "unknown"
    kind = next((section["task"] for section in run.sections.values() if "task" in section), "other")
    results: list[dict[str, Any]] = []
    columns = _columns(run)
    for title, split in (("val", "validation"), ("test", "test")):
        values = columns.get(title, {})
        counts = {name: int(n) for name, n in values.items() if name in SIZES}
        metrics = [{"type": n, "name": f"{title} {n}", "value": v} for n, v in values.items() if n not in SIZES]
        dataset = {"name": data, "type": data.lower(), "split": split, "args": counts}
        results += [{"task": {"type": kind}, "dataset": dataset, "metrics": metrics}] if metrics else []
    metadata: dict[str, Any] = {"library_name": "pytorch", "tags": ["lightning", program()]}
    if results:
        metadata["metrics"] = list(dict.fromkeys(metric["type"] for one in results for metric in one["metrics"]))
        metadata["model-index"] = [{"name": RunDir(run.path).name, "results": results}]
    if kind != "other":
        metadata["pipeline_tag"] = kind
    names, rows = _numbers(run)
    shown = [names, ["---", *("---:" for _ in names[1:])], *(map(html.text_of, row) for row in rows)]
    return "\n\n".join((
        f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---",
        f"<!-- {program()} {MARK}",
        f"# {RunDir(run.path).name}",
        f"{_summary(run)} Trained with PyTorch Lightning; all options are in `config.yaml`.",
        "## Results",
        "\n".join(f"| {' | '.join(row)} |" for row in shown),
        _weights_of(run),
        "## How to use it",
        f"```bash\n{_commands(run)}\n```\n",
    ))  # fmt: skip
