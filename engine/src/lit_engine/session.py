"""The commands `fit`, `validate`, `test` and `predict`, from parsing the command line to the final report.

`run` executes one command. `Session.fit` contains the steps of a complete training run.
"""

import gc
import os
import shlex
import shutil
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from filelock import BaseFileLock
from jsonargparse import Namespace
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    LearningRateFinder,
    ModelCheckpoint,
    ProgressBar,
    WeightAveraging,
)
from lightning.pytorch.loggers import WandbLogger as LightningWandb
from lightning.pytorch.plugins.io import CheckpointIO
from torch.nn.parameter import is_lazy

from lit_engine._lightning import NoProfiler, attach_callbacks, attach_data, reconfigure, restore_progress
from lit_engine.callbacks.predictions import PredictionTable
from lit_engine.callbacks.progress import ProgressLines, TerminalProgress
from lit_engine.callbacks.record import RunRecord, best_checkpoint, format_metrics, get_headline_metric
from lit_engine.checkpoints.callback import Checkpoint, LossCheckpoint, fast_dev_run
from lit_engine.checkpoints.choose import choose_checkpoint, find_newest_checkpoint, weights_of
from lit_engine.checkpoints.io import SafeCheckpointIO, fill_linked, read, share_loaded
from lit_engine.checkpoints.warm_start import WarmStart, changed_evaluation, check_fits, check_kept, warm_start
from lit_engine.cli.explain import short_message
from lit_engine.cli.invocation import prepare
from lit_engine.cli.parser import NEW_SAMPLES, LitCLI
from lit_engine.data.module import has_test
from lit_engine.distributed.processes import is_first, print_once, set_rank_if_alone, warn_once
from lit_engine.distributed.rendezvous import Connection, follow_launcher
from lit_engine.errors import NonFiniteError, UserError, first_of
from lit_engine.loggers.metrics_csv import MetricsCSV
from lit_engine.project import Project, program
from lit_engine.run.directory import RunDir
from lit_engine.run.metric_names import recorded_name
from lit_engine.run.options import iterate_changes
from lit_engine.run.provenance import hide, provenance, versions
from lit_engine.training.fork import Fork, use_trained_weights
from lit_engine.training.layout import warn_of_emulation
from lit_engine.training.plain import adds_weights_later, complete_prediction
from lit_engine.training.saver import Saver
from lit_engine.training.signals import Interrupted, Signals
from lit_engine.training.task import Task, overrides

# Tools for the options --find, --plot_lr and --plan of `fit`, which are imported only when needed.
FIND, PLOT_LR = "lit_engine.tools.lr_finder:find", "lit_engine.tools.lr_finder:plot_lr"
PLAN = "lit_engine.tools.plan:plan"
NOTIFY = "lit_engine.tools.notify:notify"  # for --notify


def run(project: Project, args: Sequence[str]) -> int:
    """Run one command and return its exit status."""
    session, status = Session(project, args), 1
    try:
        session.signals.install()
        {"fit": session.fit, "predict": session.predict}.get(session.command, session.evaluate)()
        status = session.status
    except Exception as error:
        message = short_message(error, args)
        status = 1 if message is None else 2
        # torchrun sends a signal to the remaining processes. This signal must not interrupt the report.
        session.signals.deferred = True
        session.event = "diverged" if isinstance(error, NonFiniteError) else "failed"
        if session.connection is not None:
            session.connection.report(error, message)
        elif message is None:
            raise
        else:
            print(f"error: {message}", file=sys.stderr, flush=True)
    except Interrupted as ended:
        status, session.event = ended.status, f"received {ended}"
        if session.connection is not None:
            session.connection.stop_watching()
    finally:
        session.close(status)
        session.signals.remove()
    if again := session.again:
        del session  # frees the memory of the session's objects
        gc.collect()
        return run(project, again)
    return status


class Session:
    """Executes one command, from its options to its exit status.

    Attributes:
        cli: the parsed command line, which creates the data module, the model and the trainer.
        existing_run: the run to resume or to evaluate, or None to create a new run.
        checkpoint: the file to resume from or to evaluate, or None to start from initial weights.
        fork: the object that adapts the parent run's checkpoint for `--fork`.
        status: the exit status.
        connection: the connection to the other processes, set after creating the trainer, or None if there are none.
        event: how the command ended, for `--notify`.
        again: the command that continues the run with smaller micro-batches if the run ran out of memory.
    """

    # set by `prepare`
    run: RunDir
    record: RunRecord
    saver: Saver
    table: PredictionTable  # only for `predict`

    def __init__(self, project: Project, args: Sequence[str]) -> None:
        self.project, self.args = project, args
        words, self.existing_run, self.config_name = prepare(args)
        self.cli = LitCLI(project, words)
        self.options, self.command = self.cli.options, self.cli.command
        hide(self.options.notify or ())
        self.checkpoint: Path | None = None
        self.fork: Fork | None = None
        self.status, self.event = 0, "finished"
        self.again: list[str] = []
        self.loggers: list[Any] = []
        self.lock: BaseFileLock | None = None
        self.connection: Connection | None = None
        self.signals = Signals()
        self.loaded: dict[Path, dict[str, Any]] = {}  # contents of the checkpoint files that were already read
        self.has_content = False  # whether the command has written anything worth keeping

    def fit(self) -> None:
        """Train, then test the best checkpoint if `test_after_fit` is set and there is a test split."""
        options = self.options
        if options.plan:
            resolve_name(PLAN)(self)
            return
        trainer, model, datamodule = self.prepare()
        facts = self._provenance(trainer, model) if is_first() else {}
        self._describe_to_loggers(facts, best_checkpoint(trainer))
        self._initialize(trainer, model, datamodule)
        if isinstance(model, Task) or options.find:  # tasks record metrics after each epoch anyway
            warnings.filterwarnings("ignore", r".* is smaller than the logging interval .*")
        if options.find or options.plot_lr:
            if options.find:
                resolve_name(FIND)(options, trainer, model, datamodule)
            else:
                resolve_name(PLOT_LR)(trainer, model, datamodule)
            self.has_content = (self.run.path / "figures").exists()
            return
        warn_of_emulation(trainer)
        smoke = fast_dev_run(trainer)
        self.record.provenance = None if smoke else facts
        try:
            self._train(trainer, model, datamodule)
        finally:
            self.has_content = self.record.started and not smoke
        if self.again:
            return
        self.has_content = not smoke
        tests = options.test_after_fit and not smoke and has_test(datamodule, model)
        if not self.record.started:
            epochs = trainer.current_epoch
            done = f"{epochs} epoch{'s' * (epochs != 1)} ({trainer.global_step} steps)"
            reason = self.run.last_entry().get("stopped_early")
            stopped = f". It stopped early: {reason}" if reason else ""
            if reason and "did not improve" in reason:
                stopped += ". To continue, increase the patience of EarlyStopping"
            print_once(f"nothing to do: the run has already finished, after {done}{stopped}")
            tests = tests and "test" not in trainer.strategy.broadcast(self.run.metrics())
        best, last = best_checkpoint(trainer), self.record.run.checkpoints / "last.ckpt"
        self.checkpoint = last if last.exists() else None
        if best is not None and best.best_model_score is not None and os.path.exists(best.best_model_path):
            self.checkpoint = Path(best.best_model_path)
            print_once(f"best checkpoint: {self.checkpoint} ({best.monitor} {best.best_model_score:.4f})")
        if tests:
            self._score("test", trainer, model, datamodule)

    def _provenance(self, trainer: Trainer, model: LightningModule) -> dict[str, Any]:
        """Return the new entry for provenance.json."""
        options = self.options
        return {
            "config": self.config_name,
            "seed": options.seed_everything,
            "processes": trainer.world_size,
            **{name: options[name] for name in ("init_from", "init_prefixes") if options[name]},
            "headline": get_headline_metric(model),
            **({"fork": self.fork.origin} if self.fork else {}),
            **provenance(),
            "changed": self.cli.changed_options(),
        }

    def _describe_to_loggers(self, facts: dict[str, Any], best: ModelCheckpoint | None) -> None:
        """Pass the config, the provenance and the monitored metric to loggers that record them, such as W&B."""
        for logger in self.loggers:
            if hasattr(logger, "description"):
                logger.description, logger.command = {**self.cli.plain, "provenance": facts}, self.command
                logger.monitor = None if best is None else (str(best.monitor), best.mode)

    def _initialize(self, trainer: Trainer, model: LightningModule, datamodule: Any) -> None:
        """Prepare a resumed or forked run, or load the weights of another run if requested."""
        options, run = self.options, self.run
        if self.fork is not None:
            self.fork.adapt(run.path, self.cli.plain, trainer, model, datamodule)
        elif self.checkpoint is not None:
            check_kept(run.path, self.cli.plain)
            _check_limits(run.config(), self.cli.plain)
            self.record.is_unchanged = not any(iterate_changes(run.config(), self.cli.plain))
            print_once(f"resuming from {self.checkpoint}")
        elif options.init_from:
            weights = weights_of(options.init_from)

            def load(*_: Any) -> None:
                found = warm_start(model, weights, options.init_prefixes, options.init_strict)
                print_once(f"weights from {weights}:\n{found}")

            if adds_weights_later(model, trainer.callbacks):  # type: ignore[attr-defined]
                # first, because other callbacks may copy the weights in this hook
                trainer.callbacks.insert(0, WarmStart(on_fit_start=load))  # type: ignore[attr-defined]
            else:
                load()

    def _train(self, trainer: Trainer, model: LightningModule, datamodule: Any) -> None:
        """Train to completion, or set `again` if memory runs out.

        Raises:
            Interrupted: a signal arrived in the last step or validation, or while the last figures were being drawn.
            UserError: the metric to monitor is not logged.
        """
        try:
            trainer.fit(model, datamodule=datamodule, ckpt_path=self.checkpoint, weights_only=True)
        except (RuntimeError, MemoryError) as error:
            if self.saver.repetition.accumulation:
                self._halve_batches(trainer)
                return
            if not str(error).startswith("Early stopping conditioned on metric"):
                raise
            known = ", ".join(sorted(name for name in trainer.callback_metrics if name.count("/") < 2))
            raise UserError(f"{str(error).partition(' Pass in')[0]} Available metrics: {known}") from error
        self.event = "stopped early" if trainer.should_stop else self.event
        self.signals.deferred = False
        if self.signals.number:
            raise Interrupted(self.signals.number)
        if self.record.stopped_early:
            print_once(f"stopped early: {self.record.stopped_early}")

    def _halve_batches(self, trainer: Trainer) -> None:
        """Make `run` repeat the step in which memory ran out, but with half the micro-batch size."""
        if self.signals.number:
            raise Interrupted(self.signals.number)
        self.status = 1
        options = options_for_accumulation(self.options.trainer, self.saver.repetition.accumulation)
        words = [f"--{name}={value}" for name, value in options.items()]
        urls = [f"--notify={url}" for url in self.options.notify or ()]
        self.again = ["fit", f"--run={self.run.path}", *words, *urls]
        where = f"in epoch {trainer.current_epoch}, step {trainer.global_step}"
        print(f"note: out of memory {where}: trying again with {words[0]}", file=sys.stderr)

    def evaluate(self) -> None:
        """Validate or test the checkpoint, or the initial weights if there is none."""
        trainer, model, datamodule = self.prepare()
        self._score(self.command, trainer, model, datamodule)

    def predict(self) -> None:
        """Write a table of predictions. If image files cannot be read, report them and set the exit status to 1."""
        trainer, model, datamodule = self.prepare()
        table = self.table
        _drop_averages(trainer)
        complete_prediction(model, datamodule)
        if self.options.probabilities:
            if not hasattr(model, "all_probabilities"):
                kind = type(model).__name__
                raise UserError(f"{kind} does not support --probabilities: return them as columns from predict_step")
            model.all_probabilities = True  # type: ignore[assignment]
        for kind, what in NEW_SAMPLES.items():
            if self.options[kind]:
                if getattr(datamodule, "predicts_on", None) != kind:
                    name = type(model if datamodule is None else datamodule).__name__
                    raise UserError(f"{name} cannot predict on {what}: define predicts_on = {kind!r} and predict_from")
                path = Path(self.options[kind]).expanduser()
                datamodule.predict_source = f"{kind}_{path.stem if path.is_file() else path.resolve().name}"
                table.inputs = datamodule.predict_from(self.options[kind])
                table.file = table.file.with_name(f"{datamodule.predict_source}.csv")
        trainer.predict(
            model, datamodule=datamodule, ckpt_path=self.checkpoint, weights_only=True, return_predictions=False
        )
        # `predict_step` may write its own files
        self.has_content = bool(table.rows) or any(file.is_file() for file in self.run.path.rglob("*"))
        for sample in table.missing:
            warn_once(f"error: cannot read {sample['file']}")
            self.status = int(is_first())  # only the first, because a launcher kills it as soon as another fails
        count = f"{len(table.rows)} predictions: " if table.rows or not table.files else ""
        print_once(f"{count}{', '.join(map(str, table.files)) or 'no table was written'}")

    def prepare(self) -> tuple[Trainer, LightningModule, Any]:
        """Find the run and the checkpoint, then create the trainer, the model and the data module.

        Raises:
            UserError: the checkpoint does not exist or does not fit the model, the run cannot be created, another
                process is training the run, or an object in the config cannot be created.
        """
        follow_launcher(self.options.trainer)
        set_rank_if_alone(self.options.trainer)
        self._open_run()
        content = self._read_checkpoint()
        self._fill_data(content)
        self.cli.make(self.run.path, bool(self.checkpoint or self.options.init_from), self._parts)
        trainer, model = self.cli.trainer, self.cli.model
        attach_data(trainer, self.cli.datamodule)  # `configure_callbacks` may use the data
        attach_callbacks(trainer, model)
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        if sum(isinstance(one, Checkpoint) for one in callbacks) > 1:  # `configure_callbacks` returned another one
            callbacks = [one for one in callbacks if not isinstance(one, LossCheckpoint)]
        # Users expect `trainer.checkpoint_callback` to be their own.
        callbacks.sort(key=lambda one: isinstance(one, LossCheckpoint))
        # The fork comes last, because other callbacks may add parameter groups in `on_fit_start`.
        reconfigure(trainer, callbacks=[*callbacks, *_as_list(self.fork)])
        for one in trainer.callbacks:  # type: ignore[attr-defined]
            if self.command == "fit" and isinstance(one, BatchSizeFinder | LearningRateFinder):
                raise UserError(
                    f"{type(one).__name__} would restart a resumed run from its first epoch: "
                    "remove the callback, and use --find lr or --find batch_size"
                )
        self.record.hyper_parameters = self.cli.hyper_parameters
        self.connection = Connection.of(trainer.strategy)
        if not self.options.plan:
            print_once("\n".join([f"run: {self.run.path}", *_describe(model)]))
        if content is not None and self.fork is None:
            self._check_checkpoint(content, trainer, model)
        return trainer, model, self.cli.datamodule

    def _open_run(self) -> None:
        """Find or create the run, and lock it if it will be trained."""
        if self.command != "fit":
            self.checkpoint = self._checkpoint_to_evaluate()
        if self.options.resume:
            self.existing_run = self._named_run()
        run = self.existing_run or self._new_run()
        self.lock = run.lock() if self.command == "fit" and is_first() else None
        self.run = run  # Set this after locking, because `close` must not delete a run of another process.

    def _read_checkpoint(self) -> dict[str, Any] | None:
        """Return the content of the checkpoint to evaluate, to resume from or to fork, or None if there is none."""
        has_started = not self.options.resume or any(self.run.checkpoints.glob("*.ckpt")) or self.run.metrics()
        if self.command == "fit" and self.existing_run is not None and has_started:
            self.run.metrics(), self.run.entries()  # raises an error for broken files before training starts
            self._note_versions()
            self.checkpoint = find_newest_checkpoint(self.run)
        if self.checkpoint is not None:
            return read(self.checkpoint)
        if self.options.fork:
            self.fork = Fork(self.options.fork, self.options.runs_dir)
            self.checkpoint = self.fork.checkpoint
            return self.fork.content
        return None

    def _fill_data(self, content: dict[str, Any] | None) -> None:
        """Fill in data arguments from a checkpoint, such as the class names if the folder of images is missing."""
        data = self.options.data.get("init_args", {})
        if self.checkpoint is not None and content is not None:
            fill_linked(data, self.cli.links, content)
            self.loaded[self.checkpoint] = content
        elif self.options.init_from:
            # If a data option `keep_NAME` is set, such as `keep_vocabularies`, NAME is filled in from the checkpoint.
            kept = {name: argument for name, argument in self.cli.links.items() if data.get(f"keep_{name}")}
            if kept:
                fill_linked(data, kept, read(weights_of(self.options.init_from)))

    def _check_checkpoint(self, content: dict[str, Any], trainer: Trainer, model: LightningModule) -> None:
        """Raise CheckpointError if the checkpoint does not fit the model, and warn about changed options."""
        assert self.checkpoint is not None
        is_partial = adds_weights_later(model, trainer.callbacks)  # type: ignore[attr-defined]
        different = check_fits(model, content, self.checkpoint, self.cli.hyper_parameters, is_partial)
        if self.command == "fit":
            self.saver.state.optimizers = content.get("optimizer_states", ())
            if not (isinstance(model, Task) and model.schedules):
                self.saver.state.schedules = content["lr_schedulers"]
            if different and not isinstance(model, Task):
                different += ["the optimizer and schedules keep their saved options: to change them, use --fork"]
            use_trained_weights(content, trainer.callbacks)  # type: ignore[attr-defined]
        else:
            print_once(f"checkpoint: {self.checkpoint}")
            restore_progress(trainer, content)
            if self.existing_run and self.command != "predict":
                different += changed_evaluation(self.run.path, self.cli.plain)
            self.record.changed = different
        for line in different:
            warn_once(f"warning: {line}")

    def close(self, status: int) -> None:
        """Finish the loggers, record the exit status and release the lock. Then write the page, and notify users.

        A new run without any results is deleted instead.
        """
        # Once another process has exited, torchrun sends SIGTERM, which must not interrupt the steps below.
        self.signals.deferred = True
        self.signals.remove(*([] if self.connection is None else [signal.SIGTERM]))
        for logger in self.loggers:
            if hasattr(logger, "finish"):  # without this call, W&B would show a failed run as finished
                logger.finish(status)
        if self.lock is not None:
            if hasattr(self, "record"):
                self.record.record_exit(status)
            self.lock.release()
        if not is_first() or not hasattr(self, "run") or self.again:
            return
        if self.existing_run is None and not self._is_worth_keeping():
            self._delete_run()
            if status > 128 and self.command == "fit" and not self._only_plans:
                print(f"interrupted before anything was saved; deleted {self.run.path}")
        elif hasattr(self, "record"):
            self._report(status)
        if self.options.notify and not self._only_plans:
            resolve_name(NOTIFY)(self.options.notify, self.run, self.event)

    @property
    def _only_plans(self) -> bool:
        """Whether the command is a `fit` that only plans a run."""
        return self.command == "fit" and any(self.options[name] for name in ("plan", "plot_lr", "find"))

    def _is_worth_keeping(self) -> bool:
        """Return whether the run contains results, or a checkpoint from which it can be resumed."""
        return self.has_content or (not self._only_plans and any(self.run.checkpoints.glob("*.ckpt")))

    def _delete_run(self) -> None:
        shutil.rmtree(self.run.path, ignore_errors=True)
        with suppress(OSError):  # raised if the folder contains other runs
            self.run.path.parent.rmdir()

    def _report(self, status: int) -> None:
        """Print how to continue a stopped run, and write the run's page if there are new results."""
        if self.command == "fit" and status not in (0, 2) and self.run.checkpoints.is_dir():
            how = "interrupted" if status > 128 else "failed"
            again = f"continue with: {program()} fit {shlex.quote(str(self.run.path))}"
            print(f"{how}; {'repeat the command to continue' if self.options.resume else again}")
        if self.has_content and self.command != "predict" and not self._only_plans and self.project.after_command:
            resolve_name(self.project.after_command)(self.run.path)

    def _named_run(self) -> RunDir | None:
        """Return the run to continue, if it exists. A run that was killed before its first save starts from scratch.

        Raises:
            UserError: the run has a different config, or its config.yaml is broken.
        """
        run = RunDir(Path(self.options.runs_dir, self.config_name, self.options.run_name).expanduser())
        if not run.config_file.is_file():
            return run if run.path.is_dir() else None
        recorded = run.config()
        if self.cli.drawn and "seed_everything" in recorded:
            self.cli.seed_again(recorded["seed_everything"])
        found = iterate_changes(recorded, self.cli.plain)
        different = [f"{key} was {old} and is {new}" for key, old, new in found]
        if different:
            raise UserError(
                f"{run.path} has a different config: {first_of(different, separator='; ')}. Choose a new --name, "
                f"or resume this run with the new options: fit {run.path}"
            )
        return run

    def _note_versions(self) -> None:
        before, now = self.run.last_entry().get("versions", {}), versions()
        changed = [f"{name} {before[name]} (now {now[name]})" for name in before if before[name] != now.get(name)]
        if changed:
            warn_once(f"note: the run was trained with {', '.join(changed)}; the metrics' last digits may differ")

    def _new_run(self) -> RunDir:
        runs, name = self.options.runs_dir, self.options.run_name
        if is_first():
            return RunDir.create(runs, self.config_name, name)
        return RunDir(Path(runs, self.config_name, name or "of-the-first"))  # RunRecord sets the first process's path

    def _checkpoint_to_evaluate(self) -> Path | None:
        which = self.options.ckpt_path
        if self.existing_run is not None:
            return choose_checkpoint(self.existing_run, str(which or "best"))
        if which in ("best", "last", "average"):
            raise UserError(f"--ckpt_path {which} refers to a checkpoint of a run: add --run DIR")
        if which is None and not self.options.allow_untrained:
            raise UserError(
                f"{self.command} needs trained weights: specify a run (`{program()} {self.command} RUN`), --ckpt_path "
                "FILE, or --allow_untrained=true to use the initial weights"
            )
        return None if which is None else Path(which)

    def _was_started_by_agent(self) -> bool:
        """Return whether a W&B agent started this run. If so, the run's config contains no W&B logger."""
        if not (self.run.path / "wandb.json").exists():
            return False
        return "Wandb" not in str(self.run.config()["trainer"].get("logger"))

    def _parts(self, config: Namespace) -> dict[str, Any]:
        """Return trainer arguments that add the run's own callbacks, loggers and plugins to the configured ones."""
        metrics = MetricsCSV(self.run.path) if config.logger is not False and self.command == "fit" else None
        self.record = RunRecord(self.run, self.cli.config_text(), metrics)
        self.saver = Saver(self.signals)
        # the record comes first, because drawing a figure may fail
        callbacks = [self.record, self.saver, *_add_checkpoint(config)]
        own_bar = any(isinstance(one, ProgressBar) for one in callbacks)
        if config.enable_progress_bar is not False and not own_bar:
            callbacks.append(TerminalProgress(self.signals) if sys.stdout.isatty() and is_first() else ProgressLines())
        if self.command == "predict":
            self.table = PredictionTable(self.run.path / "predictions" / "test.csv")
            callbacks.append(self.table)
        self.loggers = [logger for logger in _as_list(config.logger) if logger is not True]
        if metrics is not None:
            by_agent = "WANDB_SWEEP_ID" in os.environ or self._was_started_by_agent()
            if by_agent and not any(isinstance(one, LightningWandb) for one in self.loggers):
                from lit_engine.loggers.wandb import WandbLogger

                self.loggers.append(WandbLogger(str(self.run.path)))
            metrics.experiment.has_noted = bool(self.loggers)  # no note if another logger can record images
            self.loggers.append(metrics)  # last, so that a module's `self.logger` is the first configured logger
        plugins = _as_list(config.plugins)
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            plugins.append(SafeCheckpointIO())
        for plugin in plugins:
            if isinstance(plugin, CheckpointIO):
                share_loaded(plugin, self.loaded)
        return {
            "callbacks": callbacks,
            "logger": self.loggers or False,
            "plugins": plugins,
            "profiler": config.profiler or NoProfiler(),
            "default_root_dir": str(self.run.path),
            "enable_progress_bar": own_bar,
        }

    def _score(self, name: str, trainer: Trainer, model: LightningModule, datamodule: Any) -> None:
        """Evaluate and print the metrics, even if the disk is too full to save them."""
        _drop_averages(trainer)
        trainer.callback_metrics.clear()  # the evaluation may fail before Lightning clears the metrics of the fit
        try:
            evaluate = getattr(trainer, name)
            evaluate(model, datamodule=datamodule, ckpt_path=self.checkpoint, weights_only=True, verbose=False)
            self.has_content = not fast_dev_run(trainer)
        finally:
            if metrics := trainer.callback_metrics:
                stage = "val" if name == "validate" else name
                print_once(format_metrics({recorded_name(key, stage): metrics[key] for key in metrics}, model))


def options_for_accumulation(trainer: Mapping[str, Any] | Namespace, number: int) -> dict[str, int]:
    """Return options for `number` micro-batches per step. Micro-batch limits and intervals are rescaled."""
    counts = ("limit_train_batches", "overfit_batches", "val_check_interval")  # floats are fractions of an epoch
    found = {"trainer.accumulate_grad_batches": number}
    for name in counts:
        if isinstance(trainer.get(name), int):
            found[f"trainer.{name}"] = trainer[name] * number // trainer["accumulate_grad_batches"]
    return found


def _check_limits(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise UserError if a resumed run changes the micro-batch size but not the limits that count micro-batches."""
    old, new = before.get("trainer", {}), now["trainer"]
    number = new["accumulate_grad_batches"]
    global_batch_size = ((now.get("data") or {}).get("init_args") or {}).get("global_batch_size")
    if not global_batch_size or old.get("accumulate_grad_batches") in (None, number):
        return
    for option, value in options_for_accumulation(old, number).items():
        name = option.removeprefix("trainer.")
        if new[name] == old[name] != value:
            reason = f"{option} counts micro-batches, and each step would now have {number} of them"
            raise UserError(f"{reason}: also set --{option}={value}")


def _drop_averages(trainer: Trainer) -> None:
    """Remove WeightAveraging callbacks, which would replace a checkpoint's averaged weights with trained weights."""
    kept = [one for one in trainer.callbacks if not isinstance(one, WeightAveraging)]  # type: ignore[attr-defined]
    reconfigure(trainer, callbacks=kept)


def _describe(model: LightningModule) -> list[str]:
    """Return a line with the parameter count of the model, and one line for each module with pretrained weights."""
    net = type(getattr(model, "net", model) if isinstance(model, Task) else model).__name__
    parameters = list(model.parameters())
    if any(map(is_lazy, parameters)) or (not parameters and overrides(model, "setup", "configure_model")):
        line = f"{net}: the layers are created later"
    else:
        count = sum(parameter.numel() for parameter in parameters)
        trainable = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        line = f"{net}: {count:,} parameters" + ("" if trainable == count else f", {trainable:,} trainable")
    reports = [getattr(module, "pretrained", None) for module in model.modules()]
    return [line, *(report for report in reports if isinstance(report, str))]


def _add_checkpoint(config: Namespace) -> list[Any]:
    """Add a Checkpoint to the callbacks if there is none. It also saves the best epoch if no other callback does."""
    callbacks = _as_list(config.callbacks)
    others = [one for one in callbacks if isinstance(one, ModelCheckpoint)]
    if config.enable_checkpointing is False or any(isinstance(one, Checkpoint) for one in others):
        return callbacks
    return [*callbacks, Checkpoint() if others else LossCheckpoint()]


def _as_list(value: Any) -> list[Any]:
    """Convert a config value to a list. The value may be missing, a single object or several objects."""
    values = value if isinstance(value, list | tuple) else [value]
    return [one for one in values if one is not None and one is not False]
