"""For `export`: a classifier as a function of its inputs, and a comparison with `predict`."""

from typing import Any

import torch

from lit_engine.tools.export.parts import Exported, Part
from lit_project.tasks.classification import Classifier


def exported(task: Classifier, batch: Any) -> Exported:
    """Inputs as `predict` gets them → `probabilities`."""
    name = getattr(batch, "_fields", ("inputs",))[0]
    part = Part(task, task.probabilities, {name: batch[0]}, ["probabilities"])

    def difference(runs: Any, batch: Any, rows: Any) -> float:
        (found,) = runs["model"](batch[0])
        chosen = found.gather(1, torch.tensor(rows["prediction"])[:, None])[:, 0]
        gaps = found - task.probabilities(batch[0]), chosen - torch.tensor(rows["probability"])
        return float(torch.cat([gap.flatten() for gap in gaps]).abs().max())

    return Exported({"model": part}, difference, "probability")
