"""Compare the weight updates of gradient accumulation and multiple processes with the updates of one large batch.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/equivalence.py

Trains in float64 with plain SGD. The error is ‖Δ - Δ_big‖ / ‖Δ_big‖, where Δ is the total weight change in one epoch.
It is measured for this project's tasks, and for the same tasks with the usual loss: the mean over the micro-batch,
which Lightning divides by `accumulate_grad_batches`. Prints a table and writes benchmarks/results/equivalence.json.
"""

import argparse
import json
import tempfile
from functools import partial
from typing import Any

import torch
from common import RESULTS
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from lit_engine.cli.main import quiet_lightning
from lit_engine.data.sampler import derive
from lit_engine.data.tables import TableBatch, TabularData
from lit_engine.training.exact import StepMean
from lit_engine.training.task import Task
from lit_project.data.parallel_text.toy_grammar import ToyGrammar
from lit_project.models.mlp import FFNN
from lit_project.models.seq2seq.rnn import RNNSeq2Seq
from lit_project.tasks.regression import Regressor
from lit_project.tasks.translation.task import Translator

SGD = partial(torch.optim.SGD, lr=0.1)


class Rows(TabularData):
    """Features 0, log x and 5 x for the target x, in float64 so that remaining differences are not rounding errors."""

    def __init__(self, size: int, **kwargs: Any) -> None:
        x = 0.1 + 9.9 * torch.rand(size, generator=torch.Generator().manual_seed(derive(2018)))
        features = torch.stack([torch.zeros(size), x.log(), 5 * x], dim=1)
        names = ["zero", "log x", "5 x"]
        super().__init__(features=features, targets=x[:, None], feature_names=names, target_names=["x"], **kwargs)

    def on_after_batch_transfer(self, batch: TableBatch, dataloader_idx: int) -> TableBatch:
        """Convert to float64."""
        return batch._replace(features=batch.features.double(), targets=batch.targets.double())


class Pairs(ToyGrammar):
    """Data with 120 training pairs from the toy grammar."""

    def pairs(self, split: Any) -> Any:
        """Return the first pairs of a split."""
        return super().pairs(split)[: 120 if split == "train" else 10]


class UsualLoss(Task):
    """Mixin for a task with the usual loss, which weights all micro-batches and processes equally."""

    def step(self, mean: Tensor, count: float | Tensor, **sums: Tensor) -> Tensor:
        """Count the batch, and return its mean unchanged."""
        super().step(mean, count, **sums)
        self._step_mean = StepMean()  # discards the count
        return mean


class MeanRegressor(UsualLoss, Regressor):
    """Regression with the usual loss."""


class MeanTranslator(UsualLoss, Translator):
    """Translation with the usual loss."""


class Final(Callback):
    """Callback that saves the final weights to a file, so that the main process can read them."""

    def __init__(self, file: str) -> None:
        self.file = file

    def on_train_end(self, trainer: Trainer, module: Any) -> None:
        """Save the weights."""
        if trainer.is_global_zero:
            torch.save(module.state_dict(), self.file)


def rows(size: int, batch_size: int, mean: bool) -> tuple[Any, Any]:
    """Return a regression task and its data, with `size` training rows."""
    data = Rows(size=size + 20, val_size=10, test_size=10, batch_size=batch_size, seed=1)
    torch.manual_seed(0)
    task = (MeanRegressor if mean else Regressor)(
        FFNN(data.input_size, data.output_size, hidden_layers=1, hidden_size=16), SGD, data.target_names
    )
    return task.double(), data


def pairs(size: int, batch_size: int, mean: bool) -> tuple[Any, Any]:
    """Return a translation task and its data. `size` is ignored, because `Pairs` has a fixed size."""
    data = Pairs(batch_size=batch_size, seed=1)
    data.prepare_data()
    data.setup("fit")
    torch.manual_seed(0)
    net = RNNSeq2Seq(data.source_size, data.target_size, embedding_size=16, hidden_size=16, dropout=0.0)
    return (MeanTranslator if mean else Translator)(net.double(), SGD, data.vocabularies), data


def change(made: tuple[Any, Any], **options: Any) -> Tensor:
    """Return the change in the weights over one epoch."""
    task, data = made
    before = torch.cat([value.flatten() for value in task.state_dict().values()])
    with tempfile.NamedTemporaryFile() as file:
        if options.get("devices", 1) > 1:
            options["strategy"] = DDPStrategy(start_method="fork", process_group_backend="gloo")
        trainer = Trainer(
            accelerator="cpu", max_epochs=1, limit_val_batches=0, num_sanity_val_steps=0, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[Final(file.name)], **{"devices": 1, **options},
        )  # fmt: skip
        trainer.fit(task, datamodule=data)
        after = torch.cat([value.flatten() for value in torch.load(file.name, weights_only=True).values()])
    return after - before


# Task, training size, batch size and options of each case, followed by the batch size and options of its reference.
CASES: dict[str, tuple[Any, int, int, dict[str, Any], int, dict[str, Any]]] = {
    "full windows": (rows, 256, 64, {"accumulate_grad_batches": 4}, 256, {}),
    "last window of 2 of 4": (rows, 384, 64, {"accumulate_grad_batches": 4}, 256, {}),
    "last batch of 58 of 64": (rows, 250, 64, {"accumulate_grad_batches": 4}, 250, {}),
    "the same, clipped to norm 0.1": (
        rows, 250, 64, {"accumulate_grad_batches": 4, "gradient_clip_val": 0.1}, 250, {"gradient_clip_val": 0.1},
    ),
    "two processes": (rows, 250, 64, {"accumulate_grad_batches": 2, "devices": 2}, 250, {}),
    "tokens": (pairs, 120, 16, {"accumulate_grad_batches": 8}, 120, {}),
    "tokens, two processes": (pairs, 120, 16, {"accumulate_grad_batches": 4, "devices": 2}, 120, {}),
}  # fmt: skip


def main() -> None:
    """Run the benchmark."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    quiet_lightning()
    table = {}
    for name, (task, size, batch, options, big, big_options) in CASES.items():
        whole = change(task(size, big, mean=True), **big_options)
        errors = {}
        for kind, mean in (("usual", True), ("here", False)):
            parts = change(task(size, batch, mean=mean), **options)
            errors[kind] = float((parts - whole).norm() / whole.norm())
        table[name] = errors
    (RESULTS / "equivalence.json").write_text(json.dumps(table, indent=2) + "\n")
    print(f"{'case':<34}{'usual':>12}{'here':>12}")
    for name, errors in table.items():
        print(f"{name:<34}{errors['usual']:>12.1e}{errors['here']:>12.1e}")


if __name__ == "__main__":
    main()
