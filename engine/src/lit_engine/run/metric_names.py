"""Functions that find the stage in a metric's name, and the corresponding metrics of other stages.

If the name of a logged metric contains its stage, as in `val/acc`, `val_acc`, `acc/val` or `test_f1`, the metric is
recorded under that name. Otherwise, `val/` or `test/` is prepended, so `acc` becomes `val/acc` if it is logged during
validation. Recorded names without a stage belong to training metrics.
"""

import re
from collections.abc import Iterable
from functools import cache

STAGES = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test",
    "testing": "test",
}  # fmt: skip
_ANY = "|".join(STAGES)
_FIRST = re.compile(rf"({_ANY})[/_.-](?P<rest>.+)", re.IGNORECASE | re.DOTALL)  # class names may contain line breaks
_LAST = re.compile(rf"(?P<rest>.+)[/_.-]({_ANY})", re.IGNORECASE | re.DOTALL)
_LOADER = re.compile(r"/dataloader_idx_\d+$")  # appended by Lightning if there are several dataloaders
COUNTERS = ("epoch", "step")  # logged along with metrics, as their x-axis values
INTERVAL = re.compile(r"_(step|epoch)$")  # appended by Lightning if a metric is logged both per step and per epoch


@cache
def split_stage(name: str) -> tuple[str | None, str]:
    """Return the stage in a metric's name (`train`, `val`, `test` or None), and the name without the stage.

    >>> split_stage("val_acc"), split_stage("loss/train_epoch"), split_stage("lr")
    (('val', 'acc'), ('train', 'loss'), (None, 'lr'))
    """
    loader = _LOADER.search(name)
    plain = INTERVAL.sub("", _LOADER.sub("", name))
    found = _FIRST.fullmatch(plain) or _LAST.fullmatch(plain)
    stage = next((STAGES[word.lower()] for word in found.groups() if word.lower() in STAGES), None) if found else None
    return stage, (found["rest"] if found else plain) + (loader[0] if loader else "")


def get_stage(name: str) -> str:
    """Return the stage of a recorded metric: `train`, `val` or `test`."""
    return split_stage(name)[0] or "train"


def strip_stage(name: str) -> str:
    """Return a metric's name without stages, such as `acc` for both `test/val_acc` and `val_acc`."""
    stage, rest = split_stage(name)
    # The last part of a name such as `val/accuracy/train` may be a class name.
    if stage and ("/" not in rest or _FIRST.match(rest)):
        return split_stage(rest)[1]
    return rest


def is_loss(name: str) -> bool:
    """Return whether a metric is the loss of any stage, even if it belongs to one of several dataloaders."""
    return strip_stage(_LOADER.sub("", name)) == "loss"


@cache
def recorded_name(name: str, stage: str) -> str:
    """Return the recorded name of a metric that was logged in a stage.

    >>> recorded_name("acc", "val"), recorded_name("loss/kl", "val")  # a second slash would mark a detail
    ('val/acc', 'val_loss/kl')
    """
    separator = "_" if "/" in _LOADER.sub("", name) else "/"
    return name if stage in ("train", get_stage(name)) else f"{stage}{separator}{name}"


def find_metric(name: str, known: Iterable[str], stages: tuple[str, str] = ("val", "test")) -> str:
    """Return the recorded name of a metric, such as `val_acc` for `acc`. Unknown names are returned unchanged.

    If the name has no stage, both stages are tried in order.
    """
    names = (recorded_name(name, stages[0]), name, recorded_name(name, stages[1]))
    stage = split_stage(name)[0]
    similar = (counterpart(name, one, known) for one in ((stage,) if stage else stages))
    return next((one for one in names if one in known), None) or next(filter(None, similar), name)


def counterpart(name: str, stage: str, known: Iterable[str]) -> str | None:
    """Return the name of the same metric in a given stage, such as `test_acc` for the metric `val_acc`."""
    return next((one for one in known if get_stage(one) == stage and strip_stage(one) == strip_stage(name)), None)


def is_detail(name: str) -> bool:
    """Return whether a metric belongs to a single class or target, such as `val/class_accuracy/cat`."""
    return _LOADER.sub("", name).count("/") > 1
