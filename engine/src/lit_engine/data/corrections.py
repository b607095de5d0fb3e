"""Corrections of training labels from a CSV file, for the `corrections` option of `SplitData`."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from lit_engine.data.sampling import classes_of
from lit_engine.distributed.processes import print_once
from lit_engine.errors import DataError, did_you_mean, first_of

if TYPE_CHECKING:
    from lit_engine.data.module import Split, SplitData


class Relabelled(Subset):
    """Dataset of `(input, class)` pairs whose classes are replaced by `targets` `(N,)`."""

    def __init__(self, dataset: Dataset, targets: Tensor) -> None:
        super().__init__(dataset, range(len(targets)))
        self.targets = targets

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index][0], int(self.targets[index])

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def describe_samples(data: Any, split: "Split") -> Mapping[int, Mapping[str, str]]:
    """Map each sample's index in the predictions to its description. Return {} if the data have no `inputs` method."""
    return data.inputs(split) if hasattr(data, "inputs") else {}


def sample_ids(data: "SplitData", split: "Split") -> list[str]:
    """Return an id for each sample of a split, such as `s1f0c32ab99e4`. Identical samples have the same id.

    The id is a hash of the sample's description, such as its text or its path relative to `data.root`. If there is no
    description, the id is a hash of the input tensor.
    """
    rows, root = describe_samples(data, split).values(), f"{getattr(data, 'root', '')}/"
    if any(rows):
        return [_hash(repr(sorted((k, str(v).removeprefix(root)) for k, v in row.items())).encode()) for row in rows]
    dataset, found = data.dataset(split), []
    for indices in torch.arange(len(dataset)).split(1000):
        found += [_hash(sample.numpy().tobytes()) for sample in dataset[indices][0].cpu()]
    return found


def _hash(content: bytes) -> str:
    # The first letter prevents spreadsheets from reading an id as a number.
    return "s" + hashlib.blake2b(content, digest_size=6).hexdigest()


def apply_corrections(data: "SplitData", file: str) -> None:
    """Replace labels in a data module's training split with the corrected labels in a file.

    Raises:
        DataError: if the file is invalid, a class or sample is unknown, or a training sample has no class or several.
    """
    old = data.splits["train"]
    if (labels := classes_of(old)) is None:
        raise DataError(
            "data.corrections: each training sample needs exactly one class, in memory or in the dataset's `targets`"
        )
    classes = list(getattr(data, "class_names", None) or map(str, range(int(labels.max()) + 1)))
    wanted = _read(file, classes)
    ids = sample_ids(data, "train")
    outside = unknown = wanted.keys() - ids
    for split in ("val", "test"):
        with suppress(DataError):  # there may be no test split
            if unknown and split not in data.splits and data.has_split(split):
                data.splits[split] = data.load_split(split)
        if unknown and split in data.splits:
            unknown = unknown - {*sample_ids(data, split)}
    if unknown:
        lines = first_of(sorted(wanted[sample][1] for sample in unknown))
        what = f"{len(unknown)} of its {len(wanted)} corrections are for unknown samples (line {lines})"
        raise DataError(f"{file} does not match the data: {what}")
    corrected = labels.clone()
    for place, sample in enumerate(ids):
        if sample in wanted:
            corrected[place] = classes.index(wanted[sample][0])
    is_tensor = isinstance(old, tuple)
    data.splits["train"] = (*old[:-1], corrected.to(old[-1].device)) if is_tensor else Relabelled(old, corrected)
    more = f"; {len(outside)} corrections are for validation or test samples, which keep their labels"
    count = f"{int((corrected != labels).sum())} of {len(labels):,} training labels changed"
    print_once(f"corrections: {count}{more if outside else ''}")


def _read(file: str, classes: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Map each sample id to its corrected class and the line number in the file. Skip blank corrections."""
    from lit_engine.data.tables import CSVFile

    if not Path(file).expanduser().is_file():
        raise DataError(f"data.corrections: the file {file} does not exist; `doubts` creates it")
    table = CSVFile(file)
    if len(table.names) == 1:  # some spreadsheets separate columns with semicolons
        table = CSVFile(file, ";")
    id_column, correction_column = table.places(["id", "correction"])
    found: dict[str, tuple[str, int]] = {}
    for line, cells in table.rows():
        sample, label = cells[id_column].strip(), cells[correction_column].strip()
        if label and label not in classes:
            hint = did_you_mean(label, classes, f"; the classes are {first_of(classes)}")
            raise DataError(f"{file}, line {line}: there is no class {label!r}{hint}")
        if label and found.setdefault(sample, (label, line))[0] != label:
            other, before = found[sample]
            raise DataError(f"{file}, line {line}: {sample} is {label!r}, but {other!r} on line {before}")
    return found
