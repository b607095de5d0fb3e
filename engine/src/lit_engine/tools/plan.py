"""Predicts the time, memory and energy of a fit from a few steps, and finds the largest micro-batch (`fit --plan`)."""

import gc
import math
from contextlib import suppress
from statistics import fmean
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ProgressBar

from lit_engine._lightning import limit_loops, reconfigure
from lit_engine.callbacks.freezing import Unfreezing
from lit_engine.callbacks.progress import ProgressLines
from lit_engine.data.module import accumulation_steps
from lit_engine.distributed.processes import is_first, measure_peak_memory, print_once
from lit_engine.errors import UserError
from lit_engine.loggers.metrics_csv import MetricsCSV
from lit_engine.session import Session, options_for_accumulation
from lit_engine.tools.lr_finder import PlanDone
from lit_engine.tools.output import json_document
from lit_engine.tools.profile import memory_line, synchronized_time
from lit_engine.tools.runs.columns import duration
from lit_engine.training.exact import totals_of
from lit_engine.training.out_of_memory import is_out_of_memory
from lit_engine.training.schedules import steps_of_epochs
from lit_engine.training.task import Task

# The first epoch has WARM_UP steps. The other two epochs have as many steps as fit into SECONDS, but at least STEPS.
WARM_UP, STEPS, SECONDS = 3, 4, 1.0
BATCHES = 3  # batches per validation


class Count(Callback):
    """A callback that counts the planned steps and validations of a fit, and stops the fit before training starts.

    Args:
        every: the trainer's `check_val_every_n_epoch`.

    Attributes:
        length: numbers of epochs, optimizer steps, validations, and batches per validation.
    """

    def __init__(self, every: int | None) -> None:
        self.every, self.length = every, dict[str, int]()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        steps = steps_of_epochs(trainer)
        if math.isinf(trainer.num_training_batches):
            raise UserError("--plan needs the length of the training dataloader: set trainer.limit_train_batches")
        if steps is None:
            raise UserError("--plan cannot predict the time of an unlimited run: set trainer.max_epochs or max_steps")
        # `max_steps` may end the last epoch early.
        batches = [min(accumulation_steps(trainer) * n, trainer.num_training_batches) for n in steps]
        # If `every` is None, the validation interval counts batches across epochs.
        parts = batches[self.every - 1 :: self.every] if self.every else [sum(batches)]
        interval = trainer.val_check_batch or math.inf
        validated = int(sum(trainer.num_val_batches))
        checks = sum(1 if math.isinf(interval) else int(part // interval) for part in parts) if validated else 0
        self.length = {"epochs": len(steps), "steps": sum(steps), "validations": checks, "batches": validated}
        raise PlanDone


class Meter(Callback):
    """A callback that times the third of three short epochs, starting after the last step of the second epoch.

    The step duration in the first epoch determines how many steps the other epochs have.
    """

    def __init__(self) -> None:
        self.fits, self.length, self.peak = True, dict[str, int](), dict[str, int]()
        # The duration of a step, and the overheads before the first epoch, between epochs and at the end, in seconds.
        self.step = self.starting = self.between = self.ending = 0.0
        self.samples = 0.0  # samples (or tokens) per step
        self.watts: list[float] = []
        self.evaluations: list[float] = []  # seconds per validation batch
        self._ends: list[float] = []  # end times of the steps in this epoch
        self._begun = self._last = self._since = self._validated = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if pl_module.automatic_optimization:  # schedules depend on the length of the actual run
            trainer.strategy.lr_scheduler_configs = []
        self._last = synchronized_time(trainer.strategy.root_device)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ends = []
        self._begun = synchronized_time(trainer.strategy.root_device)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % accumulation_steps(trainer) and not trainer.is_last_batch:
            return
        self._ends.append(synchronized_time(trainer.strategy.root_device))
        self.watts += [watts * trainer.world_size for watts in power(trainer.strategy.root_device)]
        if not trainer.is_last_batch:
            return
        first, last = self._ends[0], self._ends[-1]
        # If the epoch has a single step, its time includes data loading.
        self.step = (last - first) / (len(self._ends) - 1) if len(self._ends) > 1 else first - self._begun
        self.between = first - self.step - self._last - self._validated
        self.starting = self.starting or self.between
        self._last, self._validated = last, 0.0
        if (totals := totals_of(pl_module)) is not None:
            self.samples = float(totals.reduce(pl_module).count) / len(self._ends)

    def on_validation_batch_start(self, trainer: Trainer, *args: Any) -> None:
        self._since = synchronized_time(trainer.strategy.root_device)

    def on_validation_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.evaluations.append(synchronized_time(trainer.strategy.root_device) - self._since)
        self._validated += self.evaluations[-1]

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the length of the second epoch, and reload the data loader. The third epoch reuses the new loader."""
        reconfigure(trainer, reload_dataloaders_every_n_epochs=int(trainer.current_epoch == 0))
        if trainer.current_epoch == 0:
            seconds = torch.tensor(self.step, device=trainer.strategy.root_device)
            longest = float(trainer.strategy.reduce(seconds, reduce_op="mean"))
            steps = max(STEPS, int(SECONDS / longest)) if longest else STEPS
            reconfigure(trainer, limit_train_batches=accumulation_steps(trainer) * steps)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.ending = synchronized_time(trainer.strategy.root_device) - self._last - self._validated

    def predictions(self, unit: str) -> dict[str, Any]:
        """Return the number of epochs and steps, and the predicted times, memory, speed and energy."""
        length, validation = self.length, self.length["batches"] * fmean(self.evaluations or [0.0])
        total = length["steps"] * self.step + length["validations"] * validation
        total += self.starting + (length["epochs"] - 1) * self.between + self.ending
        found: dict[str, Any] = {"seconds": total, **length, "seconds_per_step": self.step}
        found |= {"seconds_per_validation": validation, "peak_bytes": self.peak}
        found |= {f"{unit}_per_second": self.samples / self.step} if self.samples and self.step else {}
        return found | ({"joules": total * fmean(self.watts)} if self.watts else {})


def power(device: torch.device) -> list[float]:
    """Return a list with the power draw of a CUDA device in watts, or an empty list if it cannot be measured."""
    if device.type == "cuda":
        with suppress(ImportError, RuntimeError):
            return [torch.cuda.power_draw(device) / 1000]
    return []


def plan(session: Session) -> None:
    """Print the predicted time, memory and energy of a fit. Closing the session removes its run directory.

    Raises:
        UserError: the run is unlimited, or no micro-batch fits into memory.
    """
    with json_document(session.options.json and is_first()) as document:
        meter = attempt(session)
        trainer, model, data = session.cli.trainer, session.cli.model, session.cli.datamodule
        parts, size = accumulation_steps(trainer), getattr(data, "batch_size", None)
        if "batch_size" not in session.options.data.get("init_args", {}):  # the data class has no such option
            size = None
        step: int = getattr(data, "global_batch_size", None) or (size or 0) * parts
        if trainer.world_size > 1 or not model.automatic_optimization:
            step = 0  # do not try other micro-batch sizes
        largest, options = parts, dict[str, int]()
        # If the configured micro-batch fits, try larger sizes. Otherwise, use the largest size that fits.
        others = range(1, parts) if meter.fits else range(parts + 1, step + 1)
        for number in [number for number in others if step and step % number == 0]:
            changes = options_for_accumulation(session.options.trainer, number)
            changes |= {"data.batch_size": step // number} if size else {}
            other = Session(session.project, [*session.args, *(f"--{name}={value}" for name, value in changes.items())])
            try:
                found = attempt(other)
            finally:
                other.close(0)
            if found.fits:
                meter, largest, options = meter if meter.fits else found, number, changes
                break
        if not meter.fits:
            raise UserError("out of memory with the smallest micro-batch: use --trainer.precision=bf16-mixed, "
                            "--model.checkpoint_blocks=true or a smaller network")  # fmt: skip
        document |= meter.predictions(getattr(model, "unit", "samples"))
        if step:
            document["micro_batch"] = {"samples": step // largest, "samples_per_step": step, "options": options}
        print_once("\n".join(_lines(document)))


def attempt(session: Session) -> Meter:
    """Train for three short epochs in a new run. Stop early if memory runs out."""
    trainer, model, datamodule = session.prepare()
    device, every = trainer.strategy.root_device, trainer.check_val_every_n_epoch
    if isinstance(model, Task):
        model.schedules = []  # schedules depend on the length of the actual run
    callbacks, count, meter = trainer.callbacks, Count(every), Meter()  # type: ignore[attr-defined]
    loggers = [one for one in trainer.loggers if isinstance(one, MetricsCSV)]
    reconfigure(trainer, callbacks=[count], loggers=[], num_sanity_val_steps=0, check_val_every_n_epoch=every and 1)
    with suppress(PlanDone):
        trainer.fit(model, datamodule=datamodule)
    if not count.length:
        raise UserError("there are no training steps: check trainer.max_epochs and limit_train_batches")
    meter.length = count.length
    if isinstance(model, Task):  # callbacks such as SWA depend on the length
        model.length = lambda interval: count.length[f"{interval}s"]  # type: ignore[method-assign]
    for one in callbacks:
        if isinstance(one, Unfreezing):  # the run needs the most memory once all layers train
            one.schedule = {path: None if epoch is None else 0 for path, epoch in one.schedule.items()}
    kept = [one for one in callbacks if not isinstance(one, ProgressBar | ProgressLines | EarlyStopping)]
    reconfigure(
        trainer,
        callbacks=[meter, *kept],
        loggers=loggers,
        reload_dataloaders_every_n_epochs=1,
        check_val_every_n_epoch=1,
        val_check_interval=1.0,
        limit_val_batches=min(BATCHES, count.length["batches"]),
        limit_train_batches=WARM_UP * accumulation_steps(trainer),
    )
    limit_loops(trainer, 3, -1)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        trainer.fit(model, datamodule=datamodule)
    except Exception as error:
        if trainer.world_size > 1 or not is_out_of_memory(error):
            raise
        meter.fits = False
    meter.peak = measure_peak_memory()
    gc.collect()
    return meter


def _lines(found: dict[str, Any]) -> list[str]:
    """Return the plan as lines of text."""
    many = f"{found['epochs']} epochs: {found['steps']:,} steps of {1000 * found['seconds_per_step']:.3g} ms"
    if found["validations"]:
        many += f", {found['validations']} validations of {found['seconds_per_validation']:.2g} s"
    lines = [f"time: {duration(found['seconds'])[0]} ({many}; without startup and testing)"]
    speeds = {name.removesuffix("_per_second"): value for name, value in found.items() if name.endswith("_per_second")}
    lines += [f"speed: {value:,.0f} {unit}/s" for unit, value in speeds.items()]
    lines.append(memory_line(found["peak_bytes"]))
    if "joules" in found:
        lines.append(f"energy: {found['joules'] / 3600:,.3g} Wh (GPU only)")
    if "micro_batch" in found:
        samples, step, options = found["micro_batch"].values()
        words = " ".join(f"--{name}={value}" for name, value in options.items())
        how = f"to keep the same steps, use {words}" if options else "as configured"
        lines.append(f"largest micro-batch that fits: {samples:,} of {step:,} samples per step; {how}")
    return lines
