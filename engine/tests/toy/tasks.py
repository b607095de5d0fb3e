"""Image classification."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassConfusionMatrix

from lit_engine.tools.export.parts import Exported, Part
from lit_engine.training.schedules import OptimizerFactory
from lit_engine.training.task import Task


class ImageClassifier(Task):
    """Image classification that logs loss and accuracy, and passes logits to the metrics."""

    def __init__(
        self,
        net: nn.Module,
        optimizer: OptimizerFactory,
        class_names: Sequence[str],
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        label_smoothing: float = 0.0,
        top_k: int | None = None,
        loss: nn.Module | None = None,
        **kwargs,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        if top_k is not None and top_k > len(class_names):
            raise ValueError(f"top_k must be at most {len(class_names)}, got {top_k}")
        self.net, self.class_names, self.top_k = net, list(class_names), top_k
        self.loss = loss or nn.CrossEntropyLoss(label_smoothing=label_smoothing)
        self.confusion = MulticlassConfusionMatrix(len(self.class_names), validate_args=False)
        self.all_probabilities = False
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, images):
        return self.net(((images - self.mean) / self.std).to(self.mean.dtype))

    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        return self.step(self.loss(logits, batch[1]), len(logits), accuracy=(logits.argmax(dim=1) == batch[1]).sum())

    def evaluation_step(self, batch, split):
        logits = self(batch[0])
        sums = {"accuracy": (logits.argmax(dim=1) == batch[1]).sum()}
        if self.top_k:
            sums[f"top{self.top_k}_accuracy"] = (logits.topk(self.top_k).indices == batch[1][:, None]).sum()
        self.step(cross_entropy(logits, batch[1]), len(logits), **sums)
        self.confusion.update(logits, batch[1])
        return {"logits": logits, "targets": batch[1]}

    def evaluation_start(self):
        super().evaluation_start()
        self.confusion.reset()

    def evaluation_metrics(self, totals, split):
        self.confusion_matrix = counts = self.confusion.compute().cpu().double()
        hits = zip(self.class_names, counts.diagonal(), counts.sum(dim=1), strict=True)
        recalls = {f"class_accuracy/{name}": (right / size).item() for name, right, size in hits if size}
        return super().evaluation_metrics(totals, split) | recalls

    def probabilities(self, images):
        return self(images).softmax(dim=1)

    def exported(self, batch):
        """Return the model to export, and a function that compares it with `predict`."""

        def difference(runs, batch, rows):
            found = runs["model"](batch[0])[0].max(dim=1).values
            return float((found - torch.tensor(rows["probability"])).abs().max())

        part = Part(self, self.probabilities, {"images": batch[0]}, ["probabilities"])
        return Exported({"model": part}, difference, "probability")

    def predict_step(self, batch, batch_idx):
        probabilities = self.probabilities(batch[0])
        best = probabilities.max(dim=1)
        names = [self.class_names[k] for k in best.indices.tolist()]
        columns = {"index": batch[2].tolist(), "target": batch[1].tolist(), "prediction": best.indices.tolist()}
        columns |= {"class_name": names, "probability": best.values.tolist()}
        if self.all_probabilities:
            names = (f"probability/{name}" for name in self.class_names)
            columns |= dict(zip(names, probabilities.T.tolist(), strict=True))
        return columns
