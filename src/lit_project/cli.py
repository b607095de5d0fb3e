"""The command line: LightningCLI with run directories.

    lit-project fit -c configs/quickstart.yaml                    a new run
    lit-project fit --run runs/quickstart/2026-01-31_12-00-00     goes on with it
    lit-project test --run RUN                                    its best checkpoint on the test split
    lit-project predict --run RUN --images FOLDER                 classifies your pictures
"""

import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lit_project import arguments
from lit_project.callbacks import PredictionTable, ProgressLines, RichProgress, RunRecord
from lit_project.callbacks.record import best_checkpoint
from lit_project.checkpoints import SafeCheckpointIO, read
from lit_project.errors import UserError
from lit_project.explain import UsageError, explain, reasons
from lit_project.metrics_csv import MetricsCSV
from lit_project.quiet import quiet_lightning
from lit_project.run import RunDir, resume_step
from lit_project.warm_start import check_fits, warm_start

EVALUATIONS = ("validate", "test", "predict")
RUN_DIR_OF_PARENT = "LIT_PROJECT_RUN_DIR"


class Parser(LightningArgumentParser):
    """Raises `UsageError` instead of printing a screenful of usage; accepts no abbreviated options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> Any:  # type: ignore[override]
        """Ends parsing with a message that `main` shows shortly."""
        raise UsageError(message, getattr(ex, "subcommand_parser", None) or self) from ex


class LitCLI(LightningCLI):
    """LightningCLI whose `fit` makes a run directory and whose other subcommands use it.

    Args:
        args: the command line without the program's name.
    """

    def __init__(self, args: Sequence[str]) -> None:
        self.invocation = arguments.prepare(args)
        self.run: RunDir | None = None  # made or opened once the command line has been parsed
        self.record: RunRecord | None = None
        self.status = 0
        super().__init__(
            model_class=LightningModule,
            datamodule_class=LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            parser_class=Parser,
            seed_everything_default=42,  # any fixed number: Lightning's default is 0 and says that it is random
            save_config_callback=None,  # the run directory keeps the config, once
            trainer_defaults={"enable_model_summary": False},  # a line of ours says it
            auto_configure_optimizers=False,  # optimizers and schedulers are injected into the task
            load_from_checkpoint_support=False,  # done below, for it cannot skip links that a model does not have
            args=self.invocation.args,  # type: ignore[arg-type]
        )

    # --- what can be said on the command line -------------------------------------------------------------------

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Subcommands, and the arguments of the Trainer's methods that are not options of theirs."""
        common = {"model", "dataloaders", "datamodule", "weights_only", "verbose", "return_predictions"}
        # fit has no ckpt_path: with it, `--ckpt_path last` in a new process silently trains from scratch
        return {"fit": {*common, "train_dataloaders", "val_dataloaders", "ckpt_path"}, **dict.fromkeys(EVALUATIONS, common)}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Options of the run, and what the model takes from the data."""
        arguments.add_options(parser)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parses; `seed_everything: true` becomes a random seed, which is then recorded."""
        self.config = parser.parse_args(args)
        options = self.config[self.config.subcommand]
        if options.seed_everything is True:
            options.seed_everything = random.SystemRandom().randrange(2**32)
        arguments.check(self.config.subcommand, options)

    def _parse_ckpt_path(self) -> None:
        """Lightning lets the hyper-parameters of a checkpoint overrule the command line silently. Not here."""

    # --- from the config to objects -----------------------------------------------------------------------------

    @property
    def options(self) -> Any:
        """The parsed options of the subcommand."""
        return self.config[self.subcommand]

    def before_instantiate_classes(self) -> None:
        """Finds or makes the run directory and the checkpoint to start from."""
        options, fit = self.options, self.subcommand == "fit"
        self.config_text = self._config_text()
        self.run = self.invocation.run
        self.checkpoint: Path | None = None
        if fit and self.run:
            self.checkpoint, damaged = self.run.newest()
            for path in damaged:
                print(f"warning: {path} is damaged and was passed over", file=sys.stderr)
        elif not fit:
            self.checkpoint = self._checkpoint_to_evaluate()
        if self.checkpoint is not None:
            names = read(self.checkpoint).get("hyper_parameters", {}).get("class_names")
            init_args = options.data.get("init_args", {})
            if names and "class_names" in init_args and init_args.class_names is None:
                init_args.class_names = list(names)  # the checkpoint knows them, also where the training data are not
        if self.run is None:
            if rank_zero_only.rank == 0:
                self.run = RunDir.create(options.runs_dir, self.invocation.config_name, options.run_name)
                os.environ[RUN_DIR_OF_PARENT] = str(self.run.path)  # for the processes that a strategy launches
            else:  # RunRecord has the first process tell the path where it was not inherited
                self.run = RunDir(Path(os.environ.get(RUN_DIR_OF_PARENT, options.runs_dir)))
        arguments.replace_run_dir(options.trainer, self.run.path)

    def _checkpoint_to_evaluate(self) -> Path | None:
        which, run = self.options.ckpt_path, self.run
        if run is not None:
            return run.checkpoint(str(which or "best"))
        if which in ("best", "last"):
            raise UserError(f"ckpt_path {which} needs the run that it is of: --run DIR")
        if which is None and not self.options.allow_untrained:
            raise UserError(
                f"{self.subcommand} needs trained weights: --run DIR, or --ckpt_path FILE "
                "(--allow_untrained=true for the initial ones)"
            )
        return None if which is None else Path(which)

    def _config_text(self) -> str:
        """The config as config.yaml keeps it."""
        config = yaml.safe_load(self.parser.dump(self.config, skip_unset=False))[self.subcommand]
        for name in arguments.NOT_IN_CONFIG:
            config.pop(name, None)
        header = "# The complete config of this run. `lit-project fit -c` on it makes a new run of the same kind.\n"
        return header + yaml.safe_dump(config, sort_keys=False, allow_unicode=True)

    def instantiate_classes(self) -> None:
        """Makes data, model and trainer; an argument that a class refuses is the user's to put right."""
        try:
            super().instantiate_classes()
        except (ValueError, TypeError, ImportError, OSError, MisconfigurationException) as error:
            class_path = re.findall(r"class_path='([^']*)'", str(error))[:1]  # of the object that could not be made
            raise UserError(": ".join([*class_path, *reasons(str(error))[:1]])) from error
        model_config = yaml.safe_load(self.parser.dump(self.config, skip_unset=False))[self.subcommand]["model"]
        self.model.save_hyperparameters(arguments.hyper_parameters(model_config, self.datamodule), logger=False)

    def after_instantiate_classes(self) -> None:
        """Everything could be made: the run begins."""
        assert self.run is not None
        print_once(f"run: {self.run.path}")
        trainable = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        everything = sum(p.numel() for p in self.model.parameters())
        net = type(getattr(self.model, "net", self.model)).__name__
        print_once(f"{net}: {everything:,} parameters" + ("" if trainable == everything else f", {trainable:,} trainable"))
        if self.subcommand == "fit" and self.checkpoint is not None:
            print_once(f"resuming from {self.checkpoint}")

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Adds the run's own parts to the trainer that the config describes."""
        assert self.run is not None
        config = self.config_init[self.subcommand].trainer
        self.record = RunRecord(self.run)
        callbacks = [*_listed(config.callbacks), self.record]
        if config.enable_progress_bar is not False and not config.barebones:
            callbacks.append(RichProgress() if sys.stdout.isatty() else ProgressLines())
        loggers = [logger for logger in _listed(config.logger) if logger is not True]
        if config.logger is not False and self.subcommand == "fit":
            step = resume_step(self.checkpoint) if self.checkpoint else None
            loggers.insert(0, MetricsCSV(self.run.path, step))
        plugins = _listed(config.plugins)
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            plugins.append(SafeCheckpointIO())
        if self.subcommand == "predict":
            self.table = PredictionTable(self.run.path / "predictions" / "test.csv")
            callbacks.append(self.table)
        return super().instantiate_trainer(
            callbacks=callbacks, logger=loggers or False, plugins=plugins, default_root_dir=str(self.run.path), **kwargs
        )

    # --- running ------------------------------------------------------------------------------------------------

    def fit(self, model: LightningModule, **kwargs: Any) -> None:
        """Trains; then tests the best checkpoint if the config says so."""
        assert self.run is not None
        if self.checkpoint is not None:
            check_fits(model, self.checkpoint)
        if self.options.init_from:
            source = Path(self.options.init_from)
            checkpoint = RunDir.open(source).checkpoint() if source.is_dir() else source
            print_once(f"weights from {checkpoint}:\n{warm_start(model, checkpoint)}")
        if rank_zero_only.rank == 0:
            self.run.save_config(self.config_text)
            self.run.add_provenance(self.options.seed_everything, self.invocation.config_name)
        trainer = self.trainer
        before = resume_step(self.checkpoint) if self.checkpoint else 0
        trainer.fit(model, ckpt_path=self.checkpoint, weights_only=True, **kwargs)
        if trainer.received_sigterm:
            self.status = 128 + signal.SIGTERM
            return
        if trainer.global_step == before:
            print_once(f"nothing to do: the run has its {trainer.max_epochs} epochs; more with --trainer.max_epochs")
        best = best_checkpoint(trainer)
        path = best.best_model_path if best else ""
        if path and best is not None and best.best_model_score is not None:
            print_once(f"best checkpoint: {path} ({best.monitor} {best.best_model_score:.4f})")
        if self.options.test_after_fit and not trainer.fast_dev_run:
            self._evaluate("test", model, Path(path) if path else None, **kwargs)

    def validate(self, model: LightningModule, **kwargs: Any) -> None:
        """Evaluates on the validation split."""
        self._evaluate("validate", model, self.checkpoint, **kwargs)

    def test(self, model: LightningModule, **kwargs: Any) -> None:
        """Evaluates on the test split."""
        self._evaluate("test", model, self.checkpoint, **kwargs)

    def _evaluate(self, name: str, model: LightningModule, checkpoint: Path | None, **kwargs: Any) -> None:
        assert self.record is not None
        kwargs.pop("ckpt_path", None)
        if checkpoint is not None:
            check_fits(model, checkpoint)
        self.record.checkpoint = checkpoint
        getattr(self.trainer, name)(model, ckpt_path=checkpoint, weights_only=True, verbose=False, **kwargs)
        metrics = {k: v.item() for k, v in self.trainer.callback_metrics.items() if "class_accuracy" not in k}
        samples = metrics.pop(next((k for k in metrics if k.endswith("/samples")), ""), None)
        count = "" if samples is None else f"  ({samples:.0f} samples)"
        print_once("  ".join(f"{k} {v:.4f}" for k, v in metrics.items()) + count)

    def predict(self, model: LightningModule, datamodule: Any, **kwargs: Any) -> None:
        """Writes a table of predictions; unreadable image files are named and make the exit status 1."""
        assert self.run is not None
        kwargs.pop("ckpt_path", None)
        if self.checkpoint is not None:
            check_fits(model, self.checkpoint)
        if self.options.images:
            if not hasattr(datamodule, "predict_from"):
                raise UserError(f"{type(datamodule).__name__} cannot predict on a folder of images")
            datamodule.predict_from(self.options.images)
            self.table.files = datamodule.pictures.files
            self.table.file = self.table.file.with_stem(datamodule.predict_source)
        self.trainer.predict(
            model, datamodule=datamodule, ckpt_path=self.checkpoint, weights_only=True, return_predictions=False, **kwargs
        )
        for index in self.table.missing if rank_zero_only.rank == 0 else []:
            print(f"error: cannot read {self.table.files[index]}", file=sys.stderr)  # type: ignore[index]
            self.status = 1
        print_once(f"{self.table.count} predictions: {self.table.file}")


def _listed(value: Any) -> list[Any]:
    """A config value that may be nothing, one or several, as a list."""
    if value is None or value is False:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def print_once(text: str) -> None:
    """Prints in the first process only."""
    if rank_zero_only.rank == 0:
        print(text, flush=True)


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status.

    Status 2 is an error that the user can put right, in a few lines; LIT_PROJECT_DEBUG=1 shows its traceback.
    """
    quiet_lightning()
    cli = LitCLI.__new__(LitCLI)  # kept where __init__, which does everything, raises
    debug = os.environ.get("LIT_PROJECT_DEBUG", "0") not in ("", "0")
    args = list(sys.argv[1:] if args is None else args)
    try:
        cli.__init__(args)  # type: ignore[misc]
        return cli.status
    except (UserError, MisconfigurationException) as error:
        if debug:
            raise
        print(f"error: {explain(error, args)}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, SystemExit) as ended:
        if isinstance(ended, SystemExit) and not isinstance(ended.__context__, KeyboardInterrupt):
            raise  # --help
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning turned it off to end in order
        if getattr(cli, "record", None) is not None and cli.subcommand == "fit" and cli.run.checkpoints.is_dir():  # type: ignore[union-attr]
            print_once(f"interrupted; go on with: lit-project fit --run {cli.run.path}")  # type: ignore[union-attr]
        return 128 + signal.SIGINT
    finally:
        _leave(cli)


def _leave(cli: LitCLI) -> None:
    """Says where the run is, or removes a new one in which nothing happened."""
    inherited = os.environ.pop(RUN_DIR_OF_PARENT, None)
    run = getattr(cli, "run", None)
    if run is None or rank_zero_only.rank != 0:
        return
    new = cli.invocation.run is None and inherited == str(run.path)
    started = cli.record is not None and cli.record.started
    if new and not started and not any((run.path / name).exists() for name in ("metrics.json", "predictions")):
        shutil.rmtree(run.path, ignore_errors=True)
    else:
        print(f"run: {run.path}", flush=True)


def entry_point() -> None:
    """What the `lit-project` command calls."""
    sys.exit(main())
