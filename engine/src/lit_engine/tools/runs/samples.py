r"""Computes statistics of the test samples of two runs from their prediction tables.

| metric | columns of the prediction table |
| --- | --- |
| accuracy, f1 and iou (means over classes) | prediction and target, or labels and target (separated by `;`) |
| the same metrics over pixels | hits/CLASS, predicted/CLASS and true/CLASS (numbers of pixels) |
| r2, mse, rmse, mae | prediction and target, or prediction/NAME and target/NAME |
| bleu, chrf | hypothesis and references (separated by ` | `, which is written as ` \| ` within a reference) |
| any other NAME | NAME (one number per sample, whose mean is the metric) |
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from shlex import quote
from typing import Any

import numpy as np

from lit_engine.errors import RunError, UserError, did_you_mean
from lit_engine.project import program
from lit_engine.run.directory import RunDir
from lit_engine.tools.runs.reading import Run
from lit_engine.tools.runs.significance import Floats, Outcome, Score, mcnemar, resample

METRICS = ("accuracy", "f1", "iou", "r2", "mse", "rmse", "mae", "bleu", "chrf")
SHARED = re.compile("target(/.*)?|true/.*|references|source")  # columns that do not depend on the model


@dataclass(frozen=True)
class Samples:
    """Statistics `(N, K)` of two models for the same samples, and a function that computes scores from their sums.

    `values` contains each model's score for every sample `(N,)`. If `is_binary`, the sample scores are 0 or 1, and the
    total score is their mean.
    """

    stats: Sequence[Floats]
    score: Score
    values: Sequence[Floats]
    is_binary: bool = False

    def __post_init__(self) -> None:
        if not all(np.isfinite(self.score(rows.sum(axis=0))) for rows in self.stats):
            raise UserError("--test: the metric is undefined for these samples (for example, R² of a constant target)")

    def outcome(self) -> Outcome:
        if self.is_binary:
            return mcnemar(*self.values)
        a, b = self.stats
        return resample(a, b, self.score)


class Table:
    """The test predictions of a run, keyed by index. Only the first prediction per sample or source text is kept."""

    def __init__(self, run: Run) -> None:
        self.run = run
        rows = sorted(RunDir(run.path).predictions(), key=lambda row: (row["index"], row.get("rank", 1)))
        self.names = list(rows[0]) if rows else []
        # Several translations of the same source count once.
        key = "source" if {"source", "hypothesis"} <= {*self.names} else "index"
        first: dict[Any, dict[str, Any]] = {}
        for row in rows:
            first.setdefault(row[key], row)
        self.rows = {row["index"]: row for row in first.values()}

    def column(self, name: str) -> list[Any]:
        """Return a column. Raise RunError if the column is missing or has blank values that are not allowed."""
        if name not in self.names:
            raise RunError(f"the predictions of {self.run.path} have no column {name}")
        values = [row[name] for row in self.rows.values()]
        may_be_blank = name == "hypothesis" or (name in ("labels", "target") and "prediction" not in self.names)
        if not may_be_blank and None in values:
            raise RunError(f"the predictions of {self.run.path} have blank values in the column {name}")
        return values

    def numbers(self, names: Sequence[str]) -> Floats:
        """Return columns as an array `(N, columns)`."""
        try:
            found = np.array([self.column(name) for name in names], float).T
        except ValueError as error:
            raise RunError(f"{self.run.path} has predictions that are not numeric: {', '.join(names)}") from error
        if not np.isfinite(found).all():
            raise RunError(f"the predictions of {self.run.path} contain NaN or infinity in {', '.join(names)}")
        return found

    def labels(self) -> tuple[list[set[str]], list[set[str]]]:
        """Return the predicted and the true classes of each sample."""
        if "prediction" in self.names:  # one class per sample; a column `labels` would be an input
            return [{_name_of(v)} for v in self.column("prediction")], [{_name_of(v)} for v in self.column("target")]
        texts = [["" if value is None else str(value) for value in self.column(name)] for name in ("labels", "target")]
        predicted, true = [[{*text.split(";")} - {""} for text in column] for column in texts]
        return predicted, true


def _name_of(label: Any) -> str:
    """Return a canonical class name, so that the predictions 1, 1.0 and True count as the same class."""
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return {"True": "1", "False": "0"}.get(str(label), str(label))


def check_same_samples(a: Table, b: Table) -> None:
    """Raise RunError unless both tables contain the same samples with the same targets and texts."""
    both = f"{a.run.path} and {b.run.path} have different test sets"
    if a.rows.keys() != b.rows.keys():
        index = min(a.rows.keys() ^ b.rows.keys())
        raise RunError(f"{both}: {len(a.rows)} and {len(b.rows)} samples; only one of them contains index {index}")
    shared = [name for name in a.names if name in b.names and SHARED.fullmatch(name)]
    if not shared:
        raise RunError(f"{a.run.path} and {b.run.path} may have different test sets, because their predictions have no "
                       "column target, references or source: return one of them from predict_step")  # fmt: skip
    for name in shared:
        for index, row in a.rows.items():
            other = b.rows[index][name]
            if row[name] != other and (row[name] == row[name] or other == other):  # NaN does not equal itself
                raise RunError(f"{both}: the {name} of index {index} differs ({row[name]!r} and {other!r})")


def samples_of(metric: str, a: Table, b: Table) -> Samples:
    """Return the statistics of a metric for two runs.

    Raises:
        UserError: the metric is unknown, or the tables lack its columns.
    """
    kind, _, part = metric.removeprefix("mean_").partition("/")
    if metric not in METRICS and metric in a.names:
        return _mean([table.numbers([metric])[:, 0] for table in (a, b)])
    if part and f"target/{part}" not in a.names:  # only the name of a target may follow the slash
        kind = ""
    if kind in ("bleu", "chrf"):
        return _texts(kind, a, b)
    if kind in ("accuracy", "f1", "iou"):
        return _classes(kind, a, b)
    if kind in METRICS:
        return _regression(kind, part, a, b)
    columns = [name for name in a.names if name not in METRICS and name != "index" and not SHARED.fullmatch(name)]
    known = [name for name in (*METRICS, *columns) if _is_available(name, a, b)]
    raise UserError(
        f"--test {metric} cannot be computed from predictions{did_you_mean(metric, known)} "
        f"(available: {', '.join(known)}); "
        f"to compare {metric} across seeds, compare two folders written by `{program()} repeat --seeds 1 2 3 4 5 6`"
    )


def _is_available(metric: str, a: Table, b: Table) -> bool:
    try:
        samples_of(metric, a, b)
    except UserError:
        return False
    return True


def _mean(values: Sequence[Floats], root: bool = False, is_binary: bool = False) -> Samples:
    """Return `Samples` for a metric that is a mean over samples, or (with `root`) the square root of a mean."""
    stats = [np.stack([value, np.ones(len(value))], axis=1) for value in values]
    power = 0.5 if root else 1.0
    return Samples(stats, lambda sums: (sums[..., 0] / sums[..., 1]) ** power, values, is_binary)


def _classes(kind: str, a: Table, b: Table) -> Samples:
    """Return the statistics of accuracy, mean F1 or mean IoU. Classes with neither samples nor predictions are ignored.

    For multi-label targets, however, the score of such a label is 0, as in scikit-learn and torchmetrics.
    """
    known = [] if "prediction" in a.names else [n.partition("/")[2] for n in a.names if n.startswith("probability/")]
    pixels = [name.partition("/")[2] for name in a.names if name.startswith("hits/")]
    if pixels:
        stats = [np.concatenate([table.numbers([f"{what}/{name}" for name in pixels])
                 for what in ("hits", "predicted", "true")], axis=1) for table in (a, b)]  # fmt: skip
    else:
        labels = [table.labels() for table in (a, b)]
        if kind == "accuracy":
            hits = [np.array([p == t for p, t in zip(*both, strict=True)], float) for both in labels]
            return _mean(hits, is_binary=True)
        names = sorted({*known, *(name for both in labels for sets in both for found in sets for name in found)})
        if any(";" in name for name in names):  # not from a `labels` column, which is split at `;`
            print("note: `;` does not separate labels in the `prediction` column. If samples can have several labels, "
                  "name the column `labels`", file=sys.stderr)  # fmt: skip
        stats = []
        for predicted, true in labels:
            hot = [np.array([[name in found for name in names] for found in sets], float) for sets in (predicted, true)]
            stats.append(np.concatenate([hot[0] * hot[1], *hot], axis=1))

    def score(sums: Floats) -> Floats:
        hits, predicted, true = np.split(sums, 3, axis=-1)
        if kind == "accuracy":
            return hits.sum(axis=-1) / true.sum(axis=-1)
        above, below = (2 * hits, predicted + true) if kind == "f1" else (hits, predicted + true - hits)
        return (above / np.maximum(below, 1)).mean(axis=-1) if known else _mean_ratio(above, below)

    def score_of_sample(rows: Floats) -> Floats:
        """Return the F1 or IoU of each sample, which is 1 if both its labels and its prediction are empty."""
        hits, predicted, true = (part.sum(axis=-1) for part in np.split(rows, 3, axis=-1))
        above, below = (2 * hits, predicted + true) if kind == "f1" else (hits, predicted + true - hits)
        return np.divide(above, below, out=np.ones_like(below), where=below > 0)

    return Samples(stats, score, [(score if pixels else score_of_sample)(rows) for rows in stats])


def _mean_ratio(above: Floats, below: Floats) -> Floats:
    """Divide elementwise and average over the last axis, ignoring elements whose denominator is not positive.

    If all elements are ignored, the result is NaN.
    """
    counted = below > 1e-12
    ratios = np.divide(above, below, out=np.zeros_like(below), where=counted)
    count = counted.sum(axis=-1)
    return ratios.sum(axis=-1) / np.where(count, count, np.nan)


def _regression(kind: str, part: str, a: Table, b: Table) -> Samples:
    targets = [
        name
        for name in a.names
        if name.partition("/")[0] == "target"
        and part in ("", name.partition("/")[2])
        and name.replace("target", "prediction", 1) in a.names  # otherwise, the column is an input
    ]
    if kind != "r2" and len(targets) > 1:
        raise UserError(f"there are several targets: use --test {targets[0].replace('target', kind, 1)} or --test r2")
    targets = targets or ["target"]
    true = a.numbers(targets)
    columns = [name.replace("target", "prediction", 1) for name in targets]
    errors = [table.numbers(columns) - true for table in (a, b)]
    if kind == "mae":
        return _mean([np.abs(error[:, 0]) for error in errors])
    if kind != "r2":
        return _mean([error[:, 0] ** 2 for error in errors], root=kind == "rmse")
    scale = np.where(true.std(axis=0) > 0, true.std(axis=0), np.inf)  # a constant target has no R²
    z = (true - true.mean(axis=0)) / scale
    stats = [np.concatenate([(error / scale) ** 2, z, z**2, np.ones((len(z), 1))], axis=1) for error in errors]

    def score(sums: Floats) -> Floats:
        squares, first, second = np.split(sums[..., :-1], 3, axis=-1)
        return 1 - _mean_ratio(squares, second - first**2 / sums[..., -1:])

    return Samples(stats, score, [-(error**2 / scale**2).sum(axis=1) for error in errors])


def _texts(kind: str, a: Table, b: Table) -> Samples:
    """Return the n-gram counts from which sacrebleu computes a score. The tokenizer is the same as in the run."""
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise UserError(f"--test {kind} needs sacrebleu: pip install sacrebleu") from error
    if "test" not in a.run.sections:
        command = f"{program()} test {quote(str(a.run.path))}"
        raise RunError(f"{a.run.path} was not tested: run `{command}`, which records how {kind} is computed")
    signatures = a.run.sections["test"].get("signatures", {})
    signature = dict(pair.split(":", 1) for pair in signatures.get(kind, "").split("|") if pair)
    lowercase = signature.get("case") == "lc"
    if kind == "bleu":
        tokenize = signature.get("tok")
        corpus: Any = BLEU(lowercase, force=True, tokenize=tokenize)
        single: Any = BLEU(lowercase, force=True, tokenize=tokenize, effective_order=True)
    else:
        corpus = single = CHRF(word_order=int(signature.get("nw", 0)), lowercase=lowercase)
    # One list for the first references of all samples, one for the second references, and so on.
    listed = [str(text).split(" | ") for text in a.column("references")]
    references: Any = list(zip_longest(*([one.replace(r" \| ", " | ") for one in own] for own in listed)))
    stats = []
    for table in (a, b):
        texts = ["" if text is None else str(text) for text in table.column("hypothesis")]
        stats.append(np.array(corpus._extract_corpus_statistics(texts, references), np.float64))

    def score(sums: Floats, metric: Any = corpus) -> Floats:
        rows = sums.reshape(-1, sums.shape[-1]).astype(int).tolist()
        scores = [metric._compute_score_from_stats(row).score for row in rows]
        return np.array(scores).reshape(sums.shape[:-1])

    return Samples(stats, score, [score(rows, single) for rows in stats])
