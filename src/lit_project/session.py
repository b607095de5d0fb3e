"""One command at work: finds or makes its run, gives the trainer the run's parts, and does what was asked."""

import os
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.plugins.io import CheckpointIO

from lit_project.arguments import NEW_SAMPLES
from lit_project.callbacks import PredictionTable, ProgressLines, RichProgress, RunRecord
from lit_project.callbacks.checkpoint import fast_dev_run
from lit_project.callbacks.record import best_checkpoint, shown
from lit_project.checkpoints import SafeCheckpointIO, read, resume_step
from lit_project.data.splits import has_test
from lit_project.errors import RunError, UserError
from lit_project.lean import emulated, remember_missing_cuda
from lit_project.metrics_csv import MetricsCSV
from lit_project.processes import Hold, first_if_alone, is_first, print_once
from lit_project.run import RunDir, provenance, weights_of
from lit_project.tuning import find, plot_lr
from lit_project.warm_start import check_fits, check_kept, warm_start
from lit_project.weights import described

RUN_DIR_OF_PARENT = "LIT_PROJECT_RUN_DIR"
KEPT = ("metrics.json", "predictions", "figures")  # a new run with one of them is not thrown away


class Session:
    """The run and the checkpoint of one command.

    Args:
        run: the run that `--run` names; without it a new one is made.
        config_name: names new runs.

    Attributes:
        checkpoint: to resume from or to evaluate; None begins with initial weights.
        config: text of config.yaml.
        provenance: the entry in provenance.json, of a training.
        status: exit status of the command.
    """

    def __init__(self, run: RunDir | None, config_name: str) -> None:
        self.run = run
        self.config_name = config_name
        self.new = run is None
        self.checkpoint: Path | None = None
        self.status = 0
        self.config = ""
        self.provenance: dict[str, Any] = {}
        self._smoke = False  # a fast_dev_run, of which nothing is kept
        self._record: RunRecord | None = None
        self._table: PredictionTable | None = None
        self._loggers: list[Any] = []
        self._hold: Hold | None = None

    def open(self, subcommand: str, options: Namespace, config: str) -> RunDir:
        """Chooses the checkpoint, and makes the run directory if the run is new.

        Raises:
            UserError: there is no such checkpoint, none was named, or the directory cannot be made.
        """
        self.config = config
        first_if_alone(options.trainer)
        if subcommand == "fit" and is_first():
            self.provenance = {"config": self.config_name, "seed": options.seed_everything, **provenance()}
        if subcommand != "fit":
            self.checkpoint = self._checkpoint_to_evaluate(subcommand, options)
        elif self.run is not None:
            self._hold = self.run.hold() if is_first() else None  # before it is looked what there is
            self.run.metrics(), self.run.entries()  # broken ones are named before anything is trained
            self.checkpoint, damaged = self.run.newest()
            for path in damaged:
                print(f"warning: {path} is damaged and was passed over", file=sys.stderr)
        if self.run is None:
            if is_first():
                self.run = RunDir.create(options.runs_dir, self.config_name, options.run_name)
                os.environ[RUN_DIR_OF_PARENT] = str(self.run.path)  # for the processes that a strategy launches
            else:  # RunRecord has the first process tell the path where it was not inherited
                unknown = Path(options.runs_dir, self.config_name, options.run_name or "of-the-first-process")
                self.run = RunDir(Path(os.environ.get(RUN_DIR_OF_PARENT, unknown)))
        if subcommand == "fit" and is_first() and self._hold is None:
            self._hold = self.run.hold()
        return self.run

    def _checkpoint_to_evaluate(self, subcommand: str, options: Namespace) -> Path | None:
        which = options.ckpt_path
        if self.run is not None:
            return self.run.checkpoint(str(which or "best"))
        if which in ("best", "last", "average"):
            raise UserError(f"ckpt_path {which} needs the run that it is of: --run DIR")
        if which is None and not options.allow_untrained:
            raise UserError(
                f"{subcommand} needs trained weights: --run DIR, or --ckpt_path FILE "
                "(--allow_untrained=true for the initial ones)"
            )
        return None if which is None else Path(which)

    def known(self, name: str, options: Namespace) -> Any:
        """A hyper-parameter in the checkpoint, for data that are not here to tell it; None where there is none.

        A warm start takes the vocabularies of its weights, which mean nothing with others; class names are the data's.
        """
        source = self.checkpoint
        if source is None and options.init_from and name == "vocabularies":
            source = weights_of(options.init_from)
        return None if source is None else read(source).get("hyper_parameters", {}).get(name)

    def trainer_arguments(self, subcommand: str, config: Namespace) -> dict[str, Any]:
        """The run's own parts, added to those that the config gives the trainer."""
        assert self.run is not None
        self._record = RunRecord(self.run, self.config)
        callbacks = [self._record, *_listed(config.callbacks)]  # the books first: a figure may fail
        if config.enable_progress_bar is not False and not config.barebones:
            callbacks.append(RichProgress() if sys.stdout.isatty() else ProgressLines())
        if subcommand == "predict":
            self._table = PredictionTable(self.run.path / "predictions" / "test.csv")
            callbacks.append(self._table)
        loggers = [logger for logger in _listed(config.logger) if logger is not True]
        step = resume_step(self.checkpoint) if self.checkpoint and subcommand == "fit" else None
        for logger in loggers:
            if hasattr(logger, "description"):  # W&B
                text = self.config if subcommand == "fit" or self.new else self.run.config_file.read_text()
                logger.description = yaml.safe_load(text) | ({"provenance": self.provenance} if self.provenance else {})
        if config.logger is not False and subcommand == "fit":
            loggers.insert(0, MetricsCSV(self.run.path, step))
        self._loggers = loggers
        plugins = _listed(config.plugins)
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            plugins.append(SafeCheckpointIO())
        remember_missing_cuda()
        return {
            "callbacks": callbacks,
            "logger": loggers or False,
            "plugins": plugins,
            "default_root_dir": str(self.run.path),
        }

    def begin(self, subcommand: str, model: LightningModule) -> None:
        """Says what runs where, once everything could be made; raises CheckpointError if the weights do not fit."""
        assert self.run is not None
        print_once(f"run: {self.run.path}")
        print_once("\n".join(described(model)))
        if self.checkpoint is not None:
            different = check_fits(model, self.checkpoint)
            if subcommand != "fit":
                print_once(f"checkpoint: {self.checkpoint}")
            if different and is_first():
                print("\n".join(f"warning: {line}" for line in different), file=sys.stderr)

    def fit(self, trainer: Trainer, model: LightningModule, datamodule: Any, options: Namespace) -> None:
        """Trains; then tests the best checkpoint if `test_after_fit` says so and there are data for it."""
        assert self.run is not None
        assert self._record is not None
        before = resume_step(self.checkpoint) if self.checkpoint else 0
        if self.checkpoint is not None:
            check_kept(self.run.path, self.config)
            print_once(f"resuming from {self.checkpoint}")
        if options.init_from:
            weights = weights_of(options.init_from)
            found = warm_start(model, weights, options.init_prefixes, options.init_strict)
            print_once(f"weights from {weights}:\n{found}")
        looks = options.find or options.plot_lr
        self._smoke = fast_dev_run(trainer)
        if looks and is_first() and not self.checkpoint:
            self.run.describe(self.config, self.provenance)
        elif not looks and not self._smoke:
            self._record.provenance = self.provenance
        if options.find:
            find(options.find, trainer, model, datamodule, self.run)
        elif options.plot_lr:
            plot_lr(trainer, model, datamodule, self.run)
        if looks:
            return
        if (warning := emulated(str(trainer.precision), trainer.strategy.root_device.type)) and is_first():
            print(warning, file=sys.stderr)
        tests = options.test_after_fit and not self._smoke and has_test(datamodule)
        trainer.fit(model, datamodule=datamodule, ckpt_path=self.checkpoint, weights_only=True)
        if trainer.received_sigterm:
            self.status = 128 + signal.SIGTERM
            return
        if trainer.global_step == before:
            print_once(f"nothing to do: the run has ended, after {trainer.current_epoch} epochs ({before} steps)")
            tests = tests and "test" not in trainer.strategy.broadcast(self.run.metrics())
        callback = best_checkpoint(trainer)
        self.checkpoint = None
        if callback is not None and callback.best_model_path and callback.best_model_score is not None:
            self.checkpoint = Path(callback.best_model_path)
            print_once(f"best checkpoint: {self.checkpoint} ({callback.monitor} {callback.best_model_score:.4f})")
        if tests:
            self.evaluate("test", trainer, model, datamodule)

    def evaluate(self, subcommand: str, trainer: Trainer, model: LightningModule, datamodule: Any) -> None:
        """Validates or tests the checkpoint (or the weights as they are) and prints the metrics, unwritten ones too."""
        assert self._record is not None
        self._record.checkpoint = self.checkpoint
        _drop_averages(trainer)
        try:
            getattr(trainer, subcommand)(
                model, datamodule=datamodule, ckpt_path=self.checkpoint, weights_only=True, verbose=False
            )
        except (OSError, RunError):  # a full disk, a broken metrics.json
            print_once(shown(trainer.callback_metrics))
            raise
        print_once(shown(trainer.callback_metrics))

    def predict(self, trainer: Trainer, model: LightningModule, datamodule: Any, options: Namespace) -> None:
        """Writes a table of predictions; unreadable image files are named and make the exit status 1."""
        table = self._table
        assert table is not None
        _drop_averages(trainer)
        for kind, what in NEW_SAMPLES.items():
            if options[kind]:
                if getattr(datamodule, "predicts_on", None) != kind:
                    raise UserError(f"{type(datamodule).__name__} cannot predict on {what}")
                table.inputs = datamodule.predict_from(options[kind])
                table.file = table.file.with_name(f"{datamodule.predict_source}.csv")
        trainer.predict(
            model, datamodule=datamodule, ckpt_path=self.checkpoint, weights_only=True, return_predictions=False
        )
        if is_first():
            for sample in table.missing:
                print(f"error: cannot read {sample['file']}", file=sys.stderr)
                self.status = 1
        print_once(f"{table.count} predictions: {table.file}" if table.count else "0 predictions: no table is written")

    def close(self, interrupted: bool = False, failed: bool = False) -> None:
        """Says where the run is, or removes a new one in which nothing happened; loggers are told how it ended."""
        try:
            for logger in self._loggers:
                if hasattr(logger, "finish"):  # W&B takes every process that ends for a run that has finished
                    logger.finish(self.status or int(interrupted or failed))
        finally:
            self._close_run(interrupted)

    def _close_run(self, interrupted: bool) -> None:
        os.environ.pop(RUN_DIR_OF_PARENT, None)
        if self._hold is not None:
            self._hold.release()
        if self.run is None or not is_first() or (self._record is None and not self.new):  # such as --print_config
            return
        kept = (self._record and self._record.started) or any((self.run.path / p).exists() for p in KEPT)
        if self.new and (self._smoke or not kept):
            shutil.rmtree(self.run.path, ignore_errors=True)
            return
        if interrupted and self.run.checkpoints.is_dir():
            print(f"interrupted; go on with: lit-project fit --run {shlex.quote(str(self.run.path))}")
        print(f"run: {self.run.path}", flush=True)


def _drop_averages(trainer: Trainer) -> None:
    """The checkpoint holds the average; Lightning's callback would load the weights that train, if it has trained."""
    kept = [one for one in trainer.callbacks if not isinstance(one, WeightAveraging)]  # type: ignore[attr-defined]
    trainer.callbacks = kept  # type: ignore[attr-defined]


def _listed(value: Any) -> list[Any]:
    """A config value that may be nothing, one or several, as a list."""
    values = value if isinstance(value, list | tuple) else [value]
    return [one for one in values if one is not None and one is not False]
