"""Tests whether B is better than A, worse than A, or not distinguishable from A (`compare A B --test METRIC`).

Single runs are compared by their predictions for the same test samples. Folders are compared by the metrics of their
runs, paired by seed or fold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from lit_engine.errors import UserError, did_you_mean, first_of
from lit_engine.project import program
from lit_engine.run.directory import RunDir
from lit_engine.run.metric_names import counterpart, find_metric, get_stage, strip_stage
from lit_engine.tools.pages.html import Cell, heading, page, paragraph, samples, table, to_png
from lit_engine.tools.runs.columns import cell_of, names_of, number
from lit_engine.tools.runs.reading import Run, lower_is_better, read_runs
from lit_engine.tools.runs.samples import Table, check_same_samples, samples_of
from lit_engine.tools.runs.significance import LEVEL, PERMUTED, Outcome, holm, paired_runs

STATUS = {"better": 0, "not distinguishable": 3, "worse": 4}
SHOWN = 24  # maximum number of samples in each table on the page


@dataclass(frozen=True)
class Finding:
    """The comparison of B with A on one metric. `won` and `lost` are sample indices. The largest changes come first."""

    metric: str
    a: str
    b: str
    outcome: Outcome
    unit: str
    lower: bool  # whether lower values are better
    notes: list[str] = field(default_factory=list)
    tables: tuple[Table, ...] = ()
    won: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    adjusted: float = 1.0  # p-value after Holm's correction

    @property
    def verdict(self) -> str:
        if self.adjusted >= LEVEL or self.outcome.effect == 0:
            return "not distinguishable"
        return "worse" if (self.outcome.effect > 0) == self.lower else "better"

    def lines(self) -> list[str]:
        """Return text lines with the effect and interval, the verdict and p-values, and the required sample size."""
        found, p, direction = self.outcome, _format_p(self.outcome.p), "lower" if self.lower else "higher"
        corrected = f", with Holm's correction {_format_p(self.adjusted)}" if self.adjusted != found.p else ""
        flips = f"; {len(self.won)} samples won, {len(self.lost)} lost" if self.tables else ""
        needed = (
            [f"detecting this difference needs about {found.needed:,} {self.unit} (80 % power)"] if found.needed else []
        )
        return [
            f"{self.metric} ({direction} is better): {number(found.a)} → {number(found.b)}, "
            f"difference {_format_signed(found.effect)} "
            f"(95 % interval {_format_signed(found.low)} to {_format_signed(found.high)}), "
            f"{found.n:,} {self.unit}",
            f"{self.verdict}: p {p} ({found.method}){corrected}{flips}",
            *needed,
            *self.notes,
        ]

    def document(self) -> dict[str, Any]:
        """Return the finding as JSON data. `won` and `lost` contain the indices of samples."""
        found = self.outcome
        values = {name: getattr(found, name) for name in ("a", "b", "effect", "low", "high", "p", "n", "needed")}
        return {"baseline": self.a, "run": self.b, "metric": self.metric, "lower_is_better": self.lower,
                "verdict": self.verdict, **values, "p_holm": self.adjusted, "method": found.method,
                "unit": self.unit, "won": self.won, "lost": self.lost, "notes": self.notes}  # fmt: skip


def find_all(names: Sequence[str], metrics: Sequence[str]) -> list[Finding]:
    """Compare the first run or folder with each of the others on every metric.

    Raises:
        UserError: there are fewer than two runs or folders, or the metrics, test samples or seeds do not match.
    """
    if len(names) < 2:
        raise UserError(f"--test needs two runs or folders of runs: {program()} compare A B --test {metrics[0]}")
    first, *others = ((name, read_runs([name])) for name in names)
    found = []
    for other in others:
        are_single_runs = len(first[1]) == len(other[1]) == 1
        for metric in metrics:
            if are_single_runs:
                found.append(_by_samples(metric, first[1][0], other[1][0]))
            else:
                found.append(_by_runs(metric, first, other))
    adjusted = holm([one.outcome.p for one in found])
    return [replace(one, adjusted=p) for one, p in zip(found, adjusted, strict=True)]


def _by_samples(metric: str, a: Run, b: Run) -> Finding:
    """Compare two runs by their predictions for the same samples."""
    if metric != strip_stage(metric) and get_stage(metric) != "test":
        raise UserError(f"--test {metric}: single runs are compared by their predictions for the test split; "
                        f"use --test {strip_stage(metric)}")  # fmt: skip
    name, (first, second) = strip_stage(metric), (Table(a), Table(b))
    check_same_samples(first, second)
    measured = samples_of(name, first, second)
    outcome, lower = measured.outcome(), lower_is_better(a, name)
    gains = (measured.values[1] - measured.values[0]) * (-1 if lower else 1)
    order, indices = gains.argsort(kind="stable"), list(first.rows)
    notes = ["this compares two models with one seed each; to compare methods, compare folders with several seeds"]
    for run, value in ((a, outcome.a), (b, outcome.b)):
        known = run.metrics.get(counterpart(name, "test", run.metrics) or "")
        if known is not None and abs(known - value) > 1e-4 * max(abs(known), abs(value)):
            notes.append(f"warning: {name} is {number(known)} in {run.path}/metrics.json, but {number(value)} in the "
                         f"predictions: run `{program()} predict {quote(str(run.path))}` again, unless the task "
                         "computes the metric differently")  # fmt: skip
    won = [indices[place] for place in order[::-1] if gains[place] > 0]
    lost = [indices[place] for place in order if gains[place] < 0]
    return Finding(name, str(a.path), str(b.path), outcome, "samples", lower, notes, (first, second), won, lost)


def _by_runs(metric: str, a: tuple[str, list[Run]], b: tuple[str, list[Run]]) -> Finding:
    """Compare two groups, pairing runs with the same seed and fold. Runs with the same fold are averaged."""
    notes: list[str] = []
    groups = [_by_fold_and_seed(name, runs, notes) for name, runs in (a, b)]
    keys = [key for key in groups[0] if key in groups[1]]
    if len(keys) < 2:
        seeds = [", ".join(str(seed) for _, seed in group) or "none" for group in groups]
        raise UserError("--test needs at least two common seeds or folds "
                        f"(seeds of {a[0]}: {seeds[0]}; seeds of {b[0]}: {seeds[1]}): "
                        f"add runs with `{program()} repeat CONFIG --seeds 1 2 3 4 5 6 --dir DIR`")  # fmt: skip
    if unpaired := [run.path for group in groups for key, run in group.items() if key not in keys]:
        notes.append(f"ignored {first_of(unpaired)}: the other group has no run with the same seed or fold")
    is_folds = len({fold for fold, _ in keys}) > 1
    name = _recorded_metric(metric, groups[0][keys[0]])  # use one stage for all runs, because some may be untested
    split = "val" if get_stage(name) == "val" else "test"
    different: list[str] = []
    values: dict[Any, list[tuple[float, float]]] = {}
    for key in keys:
        one, other = groups[0][key], groups[1][key]
        pair = one.all_metrics[_recorded_metric(name, one)], other.all_metrics[_recorded_metric(name, other)]
        sets = [(run.options.get("data"), run.metrics.get(f"{split}/samples")) for run in (one, other)]
        if sets[0] != sets[1]:
            raise UserError(f"{one.path} and {other.path} have different tasks or {split} sets")
        if not np.isfinite(pair).all():
            raise UserError(f"{metric} must be finite: it is {pair[0]} in {one.path} and {pair[1]} in {other.path}")
        values.setdefault(key[0] if is_folds else key, []).append(pair)
        if one.data.get(split) != other.data.get(split):
            different.append(f"{one.path} and {other.path}")
    if different:
        notes.append(f"warning: the {split} data differ between {first_of(different)}")
    if not is_folds and len(keys) < PERMUTED:
        notes.append(f"with at least {PERMUTED} seeds, a permutation test is used, which does not assume normality")
    means = np.array([np.mean(pairs, axis=0) for pairs in values.values()])
    overlap = (_overlap(one) or 1 / (len(values) - 1)) if is_folds else None
    outcome = paired_runs(means[:, 0], means[:, 1], overlap)
    return Finding(name, a[0], b[0], outcome, "folds" if is_folds else "seeds", lower_is_better(one, name), notes)


def _by_fold_and_seed(name: str, runs: list[Run], notes: list[str]) -> dict[tuple[Any, Any], Run]:
    """Return the finished runs of a group, keyed by fold and seed. The other runs are added to the notes."""
    found: dict[tuple[Any, Any], Run] = {}
    for run in runs:
        key = run.options.get("data.fold"), run.options.get("seed_everything")
        if run.state != "finished":
            notes.append(f"left out: {run.path} ({run.state})")
        elif found.setdefault(key, run) is not run:
            raise UserError(f"{name} has several runs with seed {key[1]}: --test needs one run for each seed")
    return found


def _overlap(run: Run) -> float | None:
    """Return the ratio of test samples (or tokens, or pixels) to training samples, or None if it is unknown."""
    for unit in ("tokens", "pixels", "samples"):
        test = run.metrics.get(f"test/{unit}")
        train = max(run.curve(f"train/{unit}", "step").values(), default=0)  # the last epoch may be incomplete
        if test and train:
            return test / train
    return None


def _recorded_metric(metric: str, run: Run) -> str:
    """Return the recorded name of a metric. A name without a stage refers to the test metric if it exists."""
    known = run.all_metrics
    if (name := find_metric(metric, known, ("test", "val"))) not in known:
        hint = did_you_mean(metric, known, f"; it has {first_of([*known])}")
        raise UserError(f"{run.path} has no metric {metric}{hint}")
    return name


def render_page(found: Sequence[Finding], footer: str) -> str:
    """Return the HTML of the page, with the results and the samples that differ most."""
    parts: list[str] = []
    shown_before: list[tuple[str, list[int], list[int]]] = []
    for one in found:
        section = f"{one.metric}: {one.b} compared with {one.a}"
        parts += [heading(section), *map(paragraph, one.lines())]
        changed = (one.b, one.won, one.lost)
        if not one.tables or changed in shown_before:  # there are no samples, or they are already on the page
            continue
        shown_before.append(changed)
        has_classes = "source" not in one.tables[0].names and one.metric in ("accuracy", "f1", "iou")
        wanted = [*one.won[:SHOWN], *one.lost[:SHOWN]]
        images = load_images(one.tables[1].run.path, wanted) if has_classes and wanted else {}
        for title, indices in (("Won", one.won), ("Lost", one.lost)):
            if shown := indices[:SHOWN]:
                count = f"{len(shown)} of {len(indices):,}" if len(shown) < len(indices) else str(len(indices))
                parts.append(heading(f"{title}: {count}", 3, section))
                parts.append(_gallery(one.tables, shown, images) if images else _rows(one.tables, shown))
    return page(f"Is {found[0].b} better?" if len(found) == 1 else f"Compared with {found[0].a}", parts, footer)


def _rows(tables: Sequence[Table], shown: Sequence[int]) -> str:
    """Return a table of predictions for some samples. If the models differ in a column, both columns are shown."""
    columns: dict[str, list[Cell]] = {}
    labels = names_of([one.run.path for one in tables])
    for name in [name for name in tables[0].names if name in tables[1].names and name not in ("rank", "class_name")]:
        a, b = ([cell_of(one.rows[index][name]) for index in shown] for one in tables)
        columns |= {name: a} if a == b else {f"{name} ({labels[0]})": a, f"{name} ({labels[1]})": b}
    return table([*columns], zip(*columns.values(), strict=True))


def _gallery(tables: Sequence[Table], shown: Sequence[int], images: dict[int, bytes]) -> str:
    """Return the images of some samples with the true and predicted classes."""
    names = {row["prediction"]: row["class_name"] for t in tables for row in t.rows.values() if "class_name" in row}
    captions, labels = [], names_of([one.run.path for one in tables])
    for index in shown:
        a, b = (one.rows[index] for one in tables)
        words = [f"index {index}"]
        for what, row, column in (("true", a, "target"), (labels[0], a, "prediction"), (labels[1], b, "prediction")):
            words += [f"{what}: {names.get(row[column], row[column])}"] if column in row else []
        captions.append("\n".join(words))
    return samples([([images[index]], caption) for index, caption in zip(shown, captions, strict=True)])


def load_images(run: Path, indices: Sequence[int]) -> dict[int, bytes]:
    """Return test samples as PNG images, keyed by index. The result is empty if images are not available."""
    try:
        import torch

        from lit_engine.load import load_data

        data: Any = load_data(RunDir(run), download=False)
        if not hasattr(data, "dataset"):
            return {}
        batch = data.on_after_batch_transfer(data.dataset("test")[torch.tensor(indices)], 0)
        if batch[0].ndim != 4:
            return {}
        return dict(zip(indices, map(to_png, batch[0]), strict=True))
    except Exception as error:
        print(f"no images on the page: {' '.join(str(error).split())}")
        return {}


def _format_p(value: float) -> str:
    return "below 0.0001" if value < 1e-4 else f"{value:.2g}"


def _format_signed(value: float) -> str:
    return f"{'−' if value < 0 else '+'}{number(abs(value))}"
