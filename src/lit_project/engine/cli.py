"""LightningCLI with run directories.

    fit -c configs/quickstart.yaml                    a new run
    fit --run runs/quickstart/2026-01-31_12-00-00     resumes it
    test --run RUN                                    its best checkpoint on the test split
    predict --run RUN --images FOLDER                 classifies your pictures
    predict --run RUN --table FILE                    the numbers for new rows

This file is what LightningCLI is told to do otherwise; `session.py` does the work, `options.py` holds the options.
"""

import os
import random
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import yaml
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException

from .class_checks import check_config, drop_weights
from .distributed import is_first
from .errors import UserError, no_access
from .messages import UsageError, explain, reasons
from .options import (
    NOT_IN_CONFIG,
    add_given,
    add_options,
    check,
    check_links,
    check_nulls,
    hyper_parameters,
    missing_link,
    prepare,
    replace_run_dir,
)
from .project import PROGRAM, Project, debugging
from .session import Session

DESCRIPTION = (
    f"Trains, validates, tests and predicts from one YAML: `{PROGRAM} fit -c configs/quickstart.yaml`, then "
    f"`{PROGRAM} test --run RUN`. Every run is a directory; `--run` is all that a later command needs. "
    "Commands without a config, each with a `--help` of its own: "
)


class Parser(LightningArgumentParser):
    """Raises `UsageError` instead of printing a screenful of usage; accepts no abbreviated options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> Any:
        """Ends parsing with a message that `main` shows shortly."""
        raise UsageError(message, getattr(ex, "subcommand_parser", None) or self) from ex


class LitCLI(LightningCLI):
    """LightningCLI whose `fit` makes a run directory and whose other subcommands use it.

    Args:
        args: the command line without the program's name, `--run` already replaced by the run's config.
        session: does what the command line asks for.
        project: the links from data to model.
        commands: others, named in the help.
    """

    def __init__(self, args: Sequence[str], session: Session, project: Project, commands: Iterable[str] = ()) -> None:
        self.session = session
        self.links = project.links
        super().__init__(
            model_class=LightningModule,
            datamodule_class=LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            parser_class=Parser,
            parser_kwargs={"description": f"{DESCRIPTION}{', '.join(commands)}.", "prog": PROGRAM},
            seed_everything_default=42,  # any fixed number: Lightning's default is 0 and says that it is random
            save_config_callback=None,  # the run directory keeps the config, once
            trainer_defaults={"enable_model_summary": False},  # a line of ours says it
            auto_configure_optimizers=False,  # optimizers and schedulers are injected into the task
            load_from_checkpoint_support=False,  # done below, for it cannot skip links that a model does not have
            args=list(args),
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Subcommands, and the arguments of the Trainer's methods that are not options of theirs."""
        common = {"model", "dataloaders", "datamodule", "weights_only", "verbose", "return_predictions"}
        # fit has no ckpt_path: with it, `--ckpt_path last` in a new process silently trains from scratch
        fit = {*common, "train_dataloaders", "val_dataloaders", "ckpt_path"}
        return {"fit": fit, "validate": common, "test": common, "predict": common}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Options of the run, and what the model takes from the data."""
        add_options(parser, self.links)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parses; `seed_everything: true` becomes a random seed, which is then recorded."""
        self.config = parser.parse_args(args)
        options = self.config[self.config.subcommand]
        check_config(options)
        if options.seed_everything is True:
            chosen = None if is_first() else os.environ.get("PL_GLOBAL_SEED")  # by the process that launched this one
            options.seed_everything = int(chosen or random.SystemRandom().randrange(2**32))
        check(self.config.subcommand, options)

    def _parse_ckpt_path(self) -> None:
        """Lightning lets the hyper-parameters of a checkpoint overrule the command line silently. Not here."""

    def before_instantiate_classes(self) -> None:
        """Finds or makes the run, and tells loggers and callbacks where it is."""
        options = self.config[self.subcommand]
        for part in ("data", "model"):
            check_nulls(self._dumped()[part], part)
        run = self.session.open(self.subcommand or "", options, self._config_text())
        data = options.data.get("init_args", {})
        for name in self.links:
            if (
                name in data and data[name] is None
            ):  # the data cannot tell: such as class names of a folder that is not here
                data[name] = self.session.known(name, options)
        if self.session.checkpoint is not None or options.init_from:
            drop_weights(options.model.get("init_args", {}))
        replace_run_dir(options.trainer, run.path)

    def _dumped(self) -> dict[str, Any]:
        config = yaml.safe_load(self.parser.dump(self.config, skip_unset=False))[self.subcommand]
        add_given(config["model"], self.config[self.subcommand].model, self.links)
        return config

    def _config_text(self) -> str:
        """The config as config.yaml keeps it."""
        config = {name: value for name, value in self._dumped().items() if name not in NOT_IN_CONFIG}
        header = f"# The complete config of this run. `{PROGRAM} fit -c` on it makes a new run of the same kind.\n"
        return header + yaml.safe_dump(config, sort_keys=False, allow_unicode=True)

    def instantiate_classes(self) -> None:
        """Makes data, model and trainer; an argument that a class refuses is the user's to put right."""
        try:
            super().instantiate_classes()
        except (ValueError, TypeError, ImportError, OSError, MisconfigurationException) as error:
            config = self._dumped()
            if missing := missing_link(config["model"], config["data"], self.links):
                raise UserError(missing) from error
            class_path = re.findall(r"class_path='([^']*)'", str(error))[:1]  # of the object that could not be made
            raise UserError(": ".join([*class_path, *reasons(str(error))[:1]])) from error
        check_links(self._dumped()["model"], self.datamodule, self.links)
        values = hyper_parameters(self._dumped()["model"], self.datamodule, self.links)
        self.model.save_hyperparameters(values, logger=False)

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Adds the run's own parts to the trainer that the config describes."""
        config = self.config_init[self.subcommand].trainer
        parts = self.session.trainer_arguments(self.subcommand or "", config)
        try:
            return super().instantiate_trainer(**parts, **kwargs)
        except RuntimeError as error:  # variables of SLURM without srun
            raise UserError(f"{error} One process without srun: unset SLURM_NTASKS.") from error

    def after_instantiate_classes(self) -> None:
        """Everything could be made: the run begins."""
        self.session.begin(self.subcommand or "", self.model)

    def fit(self, model: LightningModule, datamodule: LightningDataModule) -> None:
        """Trains."""
        try:
            self.session.fit(self.trainer, model, datamodule, self.config[self.subcommand])
        except RuntimeError as error:
            if not str(error).startswith("Early stopping conditioned on metric"):
                raise
            known = ", ".join(sorted(name for name in self.trainer.callback_metrics if "class_accuracy" not in name))
            raise UserError(f"{str(error).partition(' Pass in')[0]} There are: {known}") from error

    def validate(self, model: LightningModule, datamodule: LightningDataModule, **kwargs: Any) -> None:
        """Evaluates on the validation split."""
        self.session.evaluate("validate", self.trainer, model, datamodule)

    def test(self, model: LightningModule, datamodule: LightningDataModule, **kwargs: Any) -> None:
        """Evaluates on the test split."""
        self.session.evaluate("test", self.trainer, model, datamodule)

    def predict(self, model: LightningModule, datamodule: LightningDataModule, **kwargs: Any) -> None:
        """Predicts on the test split or on new samples."""
        self.session.predict(self.trainer, model, datamodule, self.config[self.subcommand])


def run(project: Project, args: Sequence[str], commands: Iterable[str]) -> int:
    """Runs one subcommand of LightningCLI and returns its exit status.

    Args:
        project: the links of the project.
        args: the command line without the program's name.
        commands: names of those that have parsers of their own, for messages and help.
    """
    session: Session | None = None
    interrupted, failed = False, True
    try:
        invocation = prepare(args)
        session = Session(invocation.run, invocation.config_name)
        LitCLI(invocation.args, session, project, commands)
        failed = False
        return session.status
    except (UserError, MisconfigurationException, OSError) as error:
        message = no_access(error) if isinstance(error, OSError) else explain(error, args, commands)
        if message is None or debugging():
            raise
        print(f"error: {message}", file=sys.stderr)
        return 2
    except SIGTERMException:  # a SystemExit of status 0
        interrupted = True
        return 128 + signal.SIGTERM
    except (KeyboardInterrupt, SystemExit) as ended:
        if isinstance(ended, SystemExit) and not isinstance(ended.__context__, KeyboardInterrupt):
            raise  # --help
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning turned it off to end in order
        interrupted = True
        return 128 + signal.SIGINT
    finally:
        if session is not None:
            session.close(interrupted, failed)
