"""Parses and checks the options of a command, and creates its trainer, model and data module.

`session.py` calls `prepare` from `invocation.py`, then `LitCLI`, and runs the command.
"""

import ast
import copy
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from numbers import Number
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

import torch
import yaml
from jsonargparse import Namespace
from jsonargparse.typing import register_type
from lightning.pytorch import LightningDataModule, LightningModule, seed_everything
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lit_engine._jsonargparse import find_reason
from lit_engine._lightning import remember_missing_cuda, skip_data_summary
from lit_engine.checkpoints.weights import rename_compiled
from lit_engine.classes.names import check_config, drop_weights, find_argument, resolve_class_paths
from lit_engine.cli.arguments import CONFIG, SUBCOMMANDS, UsageError
from lit_engine.cli.config_files import as_line, as_yaml, content_of, parse_text
from lit_engine.cli.explain import locate_error
from lit_engine.cli.links import active_links, add_given, check_links, describe_missing_link, hyper_parameters
from lit_engine.cli.options import ABOUT, CKPT_PATH, MATMUL_PRECISION, OPTIONS
from lit_engine.distributed.processes import is_first
from lit_engine.errors import UserError, did_you_mean
from lit_engine.project import Project, program
from lit_engine.run.directory import YAML_LOADER
from lit_engine.run.metric_names import is_loss
from lit_engine.run.options import options_of, same_value
from lit_engine.training.plain import OWN_DATA, OwnData, own_loaders, seed_data_hooks
from lit_engine.training.task import Task

# Options of `predict` for new samples, with a description of their content.
# A data module's `predicts_on` is one of these options.
NEW_SAMPLES = {"images": "a folder of images", "table": "a table"}

# Matches `trainer.callbacks.EarlyStopping.mode` and `trainer.callbacks.mode`, which sets the mode of the last callback.
STOPPING_MODE = re.compile(r"trainer\.callbacks(\.\w*EarlyStopping(\[\d+\])?)?\.mode")


def _to_number(value: Any) -> Any:
    if isinstance(value, str):
        with suppress(ValueError):
            return int(value)
        return float(value)
    if isinstance(value, bool) or not isinstance(value, Number):
        raise ValueError(f"{value!r} is not a number")
    return value


# torchvision annotates some arguments as `Number`, which jsonargparse cannot write to a config.
register_type(Number, serializer=lambda value: value, deserializer=_to_number)

# Options that a run's config.yaml omits, because they do not describe the run itself.
NOT_IN_CONFIG = (*(option.name for option in OPTIONS if not option.is_recorded), "ckpt_path", "config")

# Maps an option to its effect and to the options that conflict with it.
EXCLUDED = {
    "run": ("uses an existing run and its weights", ("run_name", "find", "init_from")),
    "plan": ("measures a new run and then stops", ("run", "resume", "find", "plot_lr")),
    "fork": ("starts a new run from an existing one", ("run", "init_from", "find", "plan", "plot_lr")),
}


def check(subcommand: str, options: Namespace) -> None:
    """Raise UserError for options that contradict each other or are out of range."""
    for option in OPTIONS:
        if options[option.name] and subcommand not in option.commands:
            raise UserError(f"{option.name} is not an option of {subcommand}")
    for name, (reason, excluded) in EXCLUDED.items():
        for other in excluded:
            if options[name] and options[other]:
                raise UserError(f"--{name} {reason}: remove --{'name' if other == 'run_name' else other}")
    for name, needed in (("json", "plan"), ("init_prefixes", "init_from"), ("init_strict", "init_from")):
        if options[name] and not options[needed]:
            raise UserError(f"--{name} needs --{needed}")
    if options.resume and not options.run_name:
        raise UserError("--resume needs the name of the run to continue or create: set --name")
    urls = [os.path.expandvars(url) for url in options.notify or ()]
    if any(not re.match(r"https?://[\w.-]", url) for url in urls):
        raise UserError("notify: a URL needs http:// or https:// and a host, and its environment variables must be set")
    if any(re.match(r"https?://[^/?#]*@", url) for url in urls):  # urllib does not support user names
        raise UserError(
            "notify: a URL must not contain a user name: use a token, as in https://ntfy.sh/TOPIC?auth=TOKEN"
        )
    strategy, known = options.trainer.strategy, ["auto", *StrategyRegistry.available_strategies()]
    if isinstance(strategy, str) and any(word in strategy for word in ("spawn", "fork", "notebook")):
        raise UserError(f"runs with trainer.strategy={strategy} cannot be recorded: use ddp instead")
    if isinstance(strategy, str) and strategy.lower() not in known:
        name = strategy.rpartition(".")[2]
        is_class = name[:1].isupper()
        wrong = f"{strategy!r} does not exist{did_you_mean(strategy, known, '.')}"
        raise UserError(
            f"trainer.strategy: {'a class name is not enough.' if is_class else wrong} "
            f"Write a class as {{class_path: {name if is_class else 'Sharded'}}}"
        )
    trainer = options.trainer
    if trainer.gradient_clip_val is not None and trainer.gradient_clip_val < 0:
        raise UserError(f"trainer.gradient_clip_val must not be negative, got {trainer.gradient_clip_val}")
    if trainer.accumulate_grad_batches < 1:
        raise UserError(f"trainer.accumulate_grad_batches must be at least 1, got {trainer.accumulate_grad_batches}")
    if trainer.deterministic and trainer.benchmark:
        raise UserError(
            "trainer.benchmark may choose different algorithms in each run, so trainer.deterministic has no effect: "
            "set trainer.benchmark=false"
        )
    if trainer.val_check_interval == 0:
        raise UserError("trainer.val_check_interval must be above 0; limit_val_batches=0 turns off validation")
    if not 0 <= options.seed_everything < 2**32:
        raise UserError(f"seed_everything must be from 0 to {2**32 - 1}, got {options.seed_everything}")


class Parser(LightningArgumentParser):
    """Parser that raises `UsageError` instead of printing the usage, and accepts no abbreviated options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def parse_args(self, args: Sequence[str] | None = None, **more: Any) -> Any:  # type: ignore[override]
        """Parse options. For nested objects, jsonargparse passes Python literals, which are first converted to YAML."""
        return super().parse_args([_to_yaml(word) for word in args or ()] if "namespace" in more else args, **more)

    def dump(self, cfg: Namespace, **more: Any) -> str:
        """Return a config as YAML, for example for `--print_config`, without defaults that YAML cannot express."""
        return super().dump(without_objects(cfg), **more)

    def error(self, message: str, ex: Exception | None = None) -> Any:
        """Raise UsageError. The message is later shortened by `explain`."""
        raise UsageError(message, self) from ex


def _to_yaml(word: str) -> str:
    """Convert the value of an option from Python syntax to YAML if it is None, a bool, a list or a dict."""
    option, joined, text = word.partition("=")
    with suppress(ValueError, SyntaxError):
        if isinstance(value := ast.literal_eval(text), bool | list | dict | None):
            return f"{option}{joined}{as_line(value)}"
    return word


class LitCLI(LightningCLI):
    """LightningCLI that parses a command line on construction. `make` creates the data, the model and the trainer.

    LightningCLI's own subcommands are not used, because they would validate all options twice.

    Args:
        project: the project that defines the links between data and model.
        args: the command line without the program's name, as rewritten by `prepare`.

    Attributes:
        command: the subcommand, such as `fit`.
        options: the parsed options.
        plain: the options as plain data, with all defaults.
        drawn: whether the seed was chosen at random.
        links: the links between data and model that apply to this model.
        hyper_parameters: the model's hyperparameters as plain data, stored in checkpoints. Set by `make`.
    """

    def __init__(self, project: Project, args: Sequence[str]) -> None:
        self.project_links, self.command, self.words = project.links, args[0], args[1:]
        super().__init__(
            model_class=LightningModule,
            datamodule_class=LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            parser_class=Parser,
            parser_kwargs={"prog": f"{program()} {self.command}", "description": ABOUT[self.command]},
            seed_everything_default=42,  # Lightning documents its default as a random seed, but always uses 0
            save_config_callback=None,  # RunDir saves the config
            trainer_defaults={"enable_model_summary": False},  # the session prints its own summary
            auto_configure_optimizers=False,  # optimizers and schedulers are arguments of the task
            # With True, Lightning fails if a model lacks a linked argument. `make` stores the hyperparameters instead.
            load_from_checkpoint_support=False,
            run=False,
            args=list(self.words),
        )

    @classmethod
    def parser_of(cls, project: Project, command: str) -> LightningArgumentParser:
        """Return the parser of a subcommand."""
        try:
            cls(project, [command])
        except UsageError as error:  # raised because required options are missing
            return error.parser
        raise AssertionError

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of the run, and link the model to the data."""
        add = parser.add_argument
        for option in OPTIONS:
            only = "" if len(option.commands) == len(SUBCOMMANDS) else f"{', '.join(option.commands)}: "
            add(f"--{option.name}", type=option.type, default=option.default, help=only + option.help)
        if self.command != "fit":  # `fit --ckpt_path last` would find no checkpoint and silently train from scratch
            add("--ckpt_path", type=str | None, default=None, help=CKPT_PATH)
        kind = Literal["highest", "high", "medium"] | None
        add("--trainer.matmul_precision", type=kind, default=None, help=MATMUL_PRECISION)
        parser.set_defaults({"data": {"class_path": OWN_DATA}})
        for source, target in self.project_links.items():
            key = f"model.init_args.{target}"
            parser.link_arguments(f"data.{source}", key, partial(self._linked_value, source, key), "instantiate")

    def _linked_value(self, source: str, key: str, value: Any) -> Any:
        """Return the value of an attribute of the data module, or the value in the config if the link is not active."""
        return value if source in self.links else self.options.get(key)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse and check the options. If `seed_everything` is true, choose and record a random seed."""
        self.options: Namespace = parser.parse_args(args)
        self.config = self.options  # the name that LightningCLI uses
        check_config(self.options)
        self.drawn = self.options.seed_everything is True
        if self.drawn:
            chosen = None if is_first() else os.environ.get("PL_GLOBAL_SEED")  # set by the launching process
            self.options.seed_everything = int(chosen or random.SystemRandom().randrange(2**32))
        check(self.command, self.options)
        self.check_early_stopping()
        self.check_dataloaders()
        self.links = active_links(self.options.model, self.project_links)
        text = parser.dump(self.options, skip_unset=False, skip_validation=True)
        plain = yaml.load(text, YAML_LOADER)
        add_given(plain["model"], self.options.model, self.project_links, self.links)
        self.plain = {name: value for name, value in plain.items() if name not in NOT_IN_CONFIG}

    def seed_again(self, seed: int) -> None:
        """Use a run's recorded seed instead of the random one."""
        self.options.seed_everything = self.plain["seed_everything"] = seed_everything(seed, workers=True)

    def config_text(self) -> str:
        """Return the text of config.yaml."""
        header = f"# Complete config of this run. `{program()} fit -c FILE` starts a new run with the same options.\n"
        return header + as_yaml(self.plain)

    @cached_property
    def given_options(self) -> list[dict[str, Any]]:
        """The options on the command line, with one dictionary per argument."""
        return [_options_in(word) for word in self.words if word.startswith("--")]

    def check_early_stopping(self) -> None:
        """Raise UserError for an `EarlyStopping` if neither a config nor the command line sets its mode.

        Lightning's default `min` is correct for losses, but stops a run too early if the metric should be maximized.
        """
        callbacks = self.options.trainer.get("callbacks") or []
        every = [one.init_args for one in (callbacks if isinstance(callbacks, list) else [callbacks])
                 if isinstance(one, Namespace) and one.class_path.endswith("EarlyStopping")
                 and {"monitor", "mode"} <= vars(one.get("init_args", Namespace())).keys()]  # fmt: skip
        lowest = [one.monitor for one in every if one.mode == "min" and not is_loss(one.monitor)]
        modes = [key for options in self.given_options for key in options if STOPPING_MODE.fullmatch(key)]
        if lowest and len(modes) < len(every):
            raise UserError(
                f"EarlyStopping monitors {lowest[0]} without a mode: set its mode to max (higher is better) or min"
            )

    def check_dataloaders(self) -> None:
        """Raise UserError if neither a data module nor the model itself provides dataloaders."""
        if self.options.data.class_path == OWN_DATA:
            kind = resolve_name(self.options.model.class_path)
            if not own_loaders(kind):
                raise UserError(f"{kind.__name__} has no dataloaders: set --data to a LightningDataModule")

    def changed_options(self) -> dict[str, list[Any]]:
        """Return the options that overlays or the command line changed relative to the first config.

        Each option is mapped to its value in the first config (None if not set) and its new value.
        """
        first, *later = self.given_options or [{}]
        now = dict(options_of(self.plain))
        keys = dict.fromkeys(key for options in later for key in options if key in now)
        return {key: [first.get(key), now[key]] for key in keys if not same_value(first.get(key), now[key])}

    def instantiate_classes(self) -> None:
        """Do nothing while parsing, because the run is not known yet."""

    def make(self, run: Path, weights: bool, parts: Callable[[Namespace], dict[str, Any]]) -> None:
        """Create the data module, the model and the trainer.

        Args:
            run: the run directory, which replaces `{run_dir}` in loggers and callbacks.
            weights: whether a checkpoint provides the weights.
            parts: function that returns the run's trainer arguments, given the trainer section of the config.

        Raises:
            UserError: a class rejects an argument or does not call `super().__init__()`, or the data module lacks an
                attribute that the model needs.
        """
        if weights:
            drop_weights(self.options.model.get("init_args", {}))
        replace_run_dir(self.options.trainer, run)
        self.parts = parts
        try:
            with skip_data_summary():
                super().instantiate_classes()
        except (ValueError, TypeError, ImportError, OSError, MisconfigurationException) as error:
            if missing := describe_missing_link(self.plain["model"], self.plain["data"], self.links):
                raise UserError(missing) from error
            # The class of the object that could not be created.
            class_path = re.findall(r"class_path='([^']*)'", str(error))[:1]
            raise UserError(": ".join([*class_path, find_reason(str(error))]) + locate_error(error)) from error
        if isinstance(self.datamodule, OwnData):
            self.datamodule = None
        for owner in (self.model, self.datamodule):
            if owner is None:
                continue
            if not hasattr(owner, "prepare_data_per_node"):  # set by Lightning's constructors
                raise UserError(f"{type(owner).__name__}.__init__ must call super().__init__()")
            seed_data_hooks(owner, self.options.seed_everything)
        self.model.register_load_state_dict_pre_hook(rename_compiled)
        check_links(self.plain["model"], self.datamodule, self.links)
        self.hyper_parameters = hyper_parameters(copy.deepcopy(self.plain["model"]), self.datamodule, self.links)
        if self.trainer.precision == "64-true":
            self.model.double()  # Lightning converts the model later, so loading would round the weights to float32
        if isinstance(self.model, Task):  # other modules may store objects in their own hparams
            self.model.save_hyperparameters(self.hyper_parameters, logger=False)

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Create the trainer from the config and the run's own arguments, and set torch options."""
        remember_missing_cuda()
        torch.set_flush_denormal(True)  # rounds numbers below 1e-38 to 0, because they slow CPUs down
        config = self.config_init.trainer
        if precision := config.pop("matmul_precision"):
            torch.set_float32_matmul_precision(precision)
        try:
            return super().instantiate_trainer(**self.parts(config), **kwargs)
        except RuntimeError as error:  # SLURM variables are set, but srun was not used
            raise UserError(f"{error} To run a single process without srun, unset SLURM_NTASKS.") from error
        except MisconfigurationException as error:  # the message may have several lines
            raise UserError(" ".join(str(error).split())) from error


def _options_in(word: str) -> dict[str, Any]:
    """Return the options that a command-line argument sets. For `--config`, these are all options of the config."""
    name, _, value = word[2:].partition("=")
    content = {name: parse_text(value)} if f"--{name}" != CONFIG else content_of(value) or {}
    return {key.replace(".init_args", "").replace("+", ""): value
            for key, value in options_of(resolve_class_paths(content))}  # fmt: skip


def replace_run_dir(value: Any, run: Path) -> Any:
    """Replace `{run_dir}` in all strings of a config, so that loggers and callbacks can use the run directory."""
    if isinstance(value, str):
        return value.replace("{run_dir}", str(run))
    if isinstance(value, list):
        return [replace_run_dir(item, run) for item in value]
    if isinstance(value, dict | Namespace):
        for key, item in list((vars(value) if isinstance(value, Namespace) else value).items()):
            value[key] = replace_run_dir(item, run)
    return value


def without_objects(config: Any) -> Any:
    """Return a copy of a config without default values that YAML cannot express, such as functions."""
    if isinstance(config, list):
        return [without_objects(item) for item in config]
    if not isinstance(config, Namespace):
        return config
    found = Namespace(**{name: without_objects(value) for name, value in vars(config).items()})
    given = found.get("init_args")
    for name, value in vars(given).copy().items() if isinstance(given, Namespace) else ():
        if not isinstance(value, Namespace | str | int | float | Sequence | Mapping | None):
            argument = find_argument(resolve_name(found["class_path"]), name)
            if argument is not None and value is argument.default:
                del given[name]
    return found
