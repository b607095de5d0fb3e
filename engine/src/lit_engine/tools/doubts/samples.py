"""Reads the samples of a cross-validation and classifies each sample with networks that were not trained on it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_engine.checkpoints.choose import choose_checkpoint
from lit_engine.data.corrections import describe_samples, sample_ids
from lit_engine.data.images import ImageData
from lit_engine.data.module import Split
from lit_engine.data.sampling import classes_of
from lit_engine.errors import RunError, UserError, first_of
from lit_engine.load import load_for_prediction
from lit_engine.project import program
from lit_engine.run.directory import RunDir
from lit_engine.tools.doubts.statistics import Floats, Integers

OWN = ("correction", "label", "suggestion", "reason", "probability", "distance", "id", "fold", "index")
SPLITS: tuple[Split, ...] = ("train", "val", "test")


@dataclass(frozen=True)
class Samples:
    """N samples with K classes. Each row contains a sample's id, fold, description, and index in `predictions.csv`.

    `probabilities` `(N, K)` are averaged over the seeds. `features` `(N, D)` are the inputs of the last linear layer of
    one network, or None if the network has no such layer. `runs` contains the directory of each fold's first run.
    """

    classes: list[str]
    runs: list[Path]
    rows: list[dict[str, Any]]
    labels: Integers
    folds: Integers
    probabilities: Floats
    features: Floats | None
    has_images: bool


def read_samples(folder: Path) -> Samples:
    """Read the samples of a cross-validation, and predict their classes.

    Raises:
        UserError: the runs are incomplete, files cannot be read, or the task is not single-label classification.
    """
    folds = _runs_by_fold(folder)
    rows: list[dict[str, Any]] = []
    labels, probabilities = [], []
    features: dict[str, Floats] | None = None
    for fold, runs in enumerate(folds):
        by_seed = []
        for run in runs:
            parts: Any = load_for_prediction(RunDir(run), choose_checkpoint(RunDir(run)))
            task, data, device = parts[0], parts[1], parts[2].strategy.root_device
            _set_up(data, "test")
            by_seed.append(_probabilities(task.to(device), data, device))
            features = _features(task, data, device) if features is None else features
        ids = sample_ids(data, "test")
        known = describe_samples(data, "test") or {place: {} for place in range(len(ids))}
        for sample, (index, more) in zip(ids, known.items(), strict=True):
            named = {f"input/{name}" if name in OWN else name: value for name, value in more.items()}
            rows.append({"id": sample, "fold": fold, "index": index, **named})
        labels.append(np.asarray(classes_of(data.splits["test"])))
        probabilities.append(np.mean(by_seed, axis=0))
    return Samples(
        classes=list(data.class_names),
        runs=[runs[0] for runs in folds],
        rows=rows,
        labels=np.concatenate(labels),
        folds=np.array([row["fold"] for row in rows]),
        probabilities=np.concatenate(probabilities),
        features=np.stack([features[row["id"]] for row in rows]) if features else None,
        has_images=isinstance(data, ImageData),
    )


def _runs_by_fold(folder: Path) -> list[list[Path]]:
    """Return the run directories of each fold. Raise RunError if there are no folds or a run has not finished."""
    file = folder / "summary.json"
    runs = list(json.loads(file.read_text(encoding="utf-8"))["runs"].values()) if file.is_file() else []
    if not runs or not all("data.fold" in run for run in runs):
        raise RunError(f"{folder} contains no cross-validation: run `{program()} repeat CONFIG --folds 5` first")
    if left := [run for run in runs if run["state"] != "finished"]:
        paths = first_of([folder / run["path"] for run in left])
        raise RunError(f"{paths} did not finish: run the same `{program()} repeat` command again")
    return [[folder / run["path"] for run in runs if run["data.fold"] == k] for k in range(runs[0]["data.folds"])]


def _set_up(data: Any, stage: str) -> None:
    """Load the splits of a stage. Raise UserError unless each sample has a single class."""
    data.prepare_data()
    data.setup(stage)
    if not hasattr(data, "class_names") or any(classes_of(split) is None for split in data.splits.values()):
        raise UserError(f"doubts needs one class label per sample, which {type(data).__name__} does not provide")


def _batches(data: Any, split: Split, device: torch.device) -> Iterator[Any]:
    """Yield a split's batches on the device, in order and without augmentation."""
    for batch in data.batches(data.dataset(split), "test"):
        yield data.on_after_batch_transfer(data.transfer_batch_to_device(batch, device, 0), 0)


@torch.inference_mode()
def _probabilities(task: Any, data: Any, device: torch.device) -> Floats:
    """Return the class probabilities `(N, K)` of the test split. Raise UserError if `predict_step` omits them."""
    task.all_probabilities = True
    found = []
    for number, batch in enumerate(_batches(data, "test", device)):
        columns = task.predict_step(batch, number)
        by_class = (
            {name.partition("/")[2]: column for name, column in columns.items()} if isinstance(columns, dict) else {}
        )
        if not {*data.class_names} <= by_class.keys():
            kind = type(task).__name__
            raise UserError(f"doubts needs the columns probability/CLASS, which {kind}.predict_step does not return")
        found.append(np.array([by_class[name] for name in data.class_names]).T)
    return np.concatenate(found)


@torch.inference_mode()
def _features(task: Any, data: Any, device: torch.device) -> dict[str, Floats]:
    """Map sample ids to features `(D,)`, the inputs of the last linear layer that has one output per class."""
    _set_up(data, "fit")
    seen: list[Tensor] = []
    for module in task.modules():
        if isinstance(module, nn.Linear) and module.out_features == len(data.class_names):
            module.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    found: dict[str, Floats] = {}
    for split in SPLITS:
        ids = iter(sample_ids(data, split))
        for batch in _batches(data, split, device):
            seen.clear()
            task(batch[0])
            if not seen or seen[-1].shape[:-1] != batch[1].shape:
                return {}
            found |= {sample: row for row, sample in zip(seen[-1].float().cpu().numpy(), ids, strict=False)}
    return found
