"""Image classification."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lit_engine.training.schedules import OptimizerFactory
from lit_engine.training.task import Task


class ImageClassifier(Task):
    """Image classification that logs loss and accuracy, and passes logits to the metrics."""

    def __init__(
        self,
        net: nn.Module,
        optimizer: OptimizerFactory,
        class_names: Sequence[str],
        mean: Sequence[float] = (0.5,),
        std: Sequence[float] = (0.25,),
        label_smoothing: float = 0.0,
        **kwargs,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        self.net, self.class_names, self.label_smoothing = net, list(class_names), label_smoothing
        self.all_probabilities = False
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, images):
        return self.net((images - self.mean) / self.std)

    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        loss = cross_entropy(logits, batch[1], label_smoothing=self.label_smoothing)
        return self.step(loss, len(logits), accuracy=(logits.argmax(dim=1) == batch[1]).sum())

    def evaluation_step(self, batch, split):
        logits = self(batch[0])
        hits = logits.argmax(dim=1) == batch[1]
        self.step(cross_entropy(logits, batch[1]), len(logits), accuracy=hits.sum())
        return {"logits": logits, "targets": batch[1]}

    def predict_step(self, batch, batch_idx):
        probabilities = self(batch[0]).softmax(dim=1)
        best = probabilities.max(dim=1)
        names = [self.class_names[k] for k in best.indices.tolist()]
        columns = {"index": batch[2].tolist(), "target": batch[1].tolist(), "prediction": best.indices.tolist()}
        columns |= {"class_name": names, "probability": best.values.tolist()}
        if self.all_probabilities:
            columns |= dict(zip((f"p/{name}" for name in self.class_names), probabilities.T.tolist(), strict=True))
        return columns
