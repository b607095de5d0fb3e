"""The command line: rewritten once (`prepare`), parsed by LightningCLI, made into data, model and trainer (`LitCLI`).

`session.py` calls these in order, and does the rest.
"""

import copy
import inspect
import os
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from textwrap import shorten
from typing import Any, NamedTuple

import yaml
from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule, LightningModule, seed_everything
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lit_engine._jsonargparse import actions_of, reason_in, subcommand_parsers
from lit_engine._lightning import ParsingCLI
from lit_engine.classes.names import check_config, drop_weights, resolve_class_name, resolve_class_paths
from lit_engine.cli.explain import CONFIG, SUBCOMMANDS, UsageError, pairs, place_of
from lit_engine.cli.options import CKPT_PATH, FLAGS, OPTIONS
from lit_engine.data.module import build_datamodule
from lit_engine.distributed.processes import is_first
from lit_engine.errors import UserError, did_you_mean
from lit_engine.project import Project, current, program
from lit_engine.run.directory import RunDir
from lit_engine.run.options import options_of, same_value
from lit_engine.training.task import Task

NEED_A_VALUE = (CONFIG, "--run", "--run_name", "--runs_dir", "--init_from", "--ckpt_path", "--images", "--table")

# Options of predict that name new samples → what they are. Data modules say in `predicts_on` which they can read.
NEW_SAMPLES = {"images": "a folder of images", "table": "a table"}

# Options that say where a run goes and not what it is: they are not kept in its config.
NOT_IN_CONFIG = (*(option.name for option in OPTIONS if not option.is_recorded), "ckpt_path", "config")


class Invocation(NamedTuple):
    """A command line, rewritten."""

    args: list[str]  # to parse; with `--run DIR`, the run's config stands before all other options
    run: RunDir | None  # that `--run` names
    config_name: str  # stem of the first config file, which names new runs


def prepare(args: Sequence[str]) -> Invocation:
    """Rewrites a command line for the parser, which knows neither runs nor classes by their names alone.

    The parser also mixes the elements of a later list with those of an earlier one, so that a list of mappings is
    preceded by an empty one.

    Raises:
        UserError: an option lacks its value, or a config holds no options; RunError: `--run` is not a run directory.
    """
    given = list(pairs(args))
    first = dict(reversed(given))  # of an option that is given several times
    run_path, first_config = first.get("--run"), first.get(CONFIG)
    if run_path == "latest":  # of the config, which is that of the run then
        runs = first.get("--runs_dir") or "runs"
        run_path = str(RunDir.latest(runs, first_config and name_of(first_config)).path)
        given = [(o, run_path if o == "--run" else v) for o, v in given if (o, v) != (CONFIG, first_config)]
    run: RunDir | None = None
    words: list[str] = []
    begun = False  # whether a config stands before
    for option, value in given:
        if option in NEED_A_VALUE and value in (None, "", "~"):  # which YAML reads as nothing
            raise UserError(f"{option} needs a value")
        if value is None:
            words.append(f"{option}=true" if option.removeprefix("--") in FLAGS else option)
            if option in SUBCOMMANDS and run_path is not None and run is None:
                run, begun = RunDir.open(run_path), True
                words += _config(str(run.config_file), alone=True)
        elif option == CONFIG:
            if begun and run is None and is_complete(value):
                raise UserError(
                    f"{value} is a complete config, which replaces the one before it: give it first, and alone"
                )
            words += _config(value, alone=not begun)
            begun = True
        else:
            content = _parsed(value) if value[:1] in ("[", "{") else None
            if isinstance(content, list) and not option.endswith("+") and _holds_mappings(content):
                words.append(f"{option}=[]")
            key = option.rpartition(".")[2]
            if (found := resolve_class_paths({key: content})[key]) != content:
                value = yaml.safe_dump(found, default_flow_style=True, sort_keys=False, width=100_000).strip()
            named = value[:1].isupper() or value in current().functions
            # other values of the data are texts: a column may be called Group, as a class here is
            of_data = option == "--data" or option.rstrip("+").endswith("transforms")
            is_class = named and (of_data or option.startswith(("--model", "--trainer")))
            words.append(f"{option}={resolve_class_name(value) if is_class else value}")
    if run is not None and any(word.startswith("--print_config") for word in words):
        words.append("--run=null")  # which no config may name
    return Invocation(words, run, run.path.absolute().parent.name if run else name_of(first_config))


def _config(file: str, alone: bool) -> list[str]:
    """The options that stand for a config file, or for the text of one; `alone` if no config stands before it."""
    content = content_of(file)
    if content is None:
        return [f"{CONFIG}={file}"]
    found = resolve_class_paths(content)
    words = [f"{CONFIG}={file if found == content else _text(found)}"]
    return words if alone or not _holds_mappings(found) else [f"{CONFIG}={_text(_emptied(found))}", *words]


def name_of(config: str | None) -> str:
    """`configs/quickstart.yaml` → `quickstart`; the config.yaml of a run → the name that this run had."""
    if config is None:
        return "unnamed"
    path = Path(config)
    in_run = path.stem == "config" and (path.parent / "provenance.json").exists()
    return path.resolve().parent.parent.name if in_run else path.stem


def content_of(config: str) -> dict[str, Any] | None:
    """What a config file holds; None for the text of a config and for a missing file: the parser names those near it.

    Raises:
        UserError: it is a folder, no YAML, or holds no options.
    """
    file = Path(config)
    if "\n" in config or not file.exists():
        return None
    if file.is_dir():
        raise UserError(f"{file} is a folder: -c takes a YAML file")
    try:
        content = load_yaml(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{file}{where} is not YAML: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} holds no options: a config begins with keys such as model, data and trainer")
    if content.get("run") is not None:
        raise UserError(f"{file}: run is no key of a config; --run {content['run']} resumes that run")
    return content


def is_complete(config: str) -> bool:
    """Whether a config file names the class of the model and that of the data, so that it is not an overlay."""
    content = content_of(config) or {}
    return all(isinstance(part := content.get(key), dict) and "class_path" in part for key in ("data", "model"))


MOST_NODES = 100_000  # of a YAML file, with its aliases expanded


class _Loader(yaml.SafeLoader):
    """Rejects duplicate keys, of which YAML would silently drop the first, and aliases that expand without limit."""

    def get_single_node(self) -> Any:
        root = super().get_single_node()
        counts: dict[int, int] = {}

        def count(node: Any) -> int:
            if id(node) not in counts:
                counts[id(node)] = 0  # ends the recursion if a node contains itself
                inner = getattr(node, "value", None)
                parts = (
                    [one for pair in inner for one in (pair if isinstance(pair, tuple) else [pair])]
                    if isinstance(inner, list)
                    else []
                )
                counts[id(node)] = 1 + sum(map(count, parts))
            return counts[id(node)]

        if root is not None and count(root) > MOST_NODES:
            problem = f"with its aliases it has more than {MOST_NODES:,} values"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=root.start_mark)
        return root

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen - {"<<"}:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value} stands twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """What YAML holds; raises yaml.YAMLError if the text is no YAML, or a key occurs twice."""
    return yaml.load(text, _Loader)


def _parsed(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:  # the parser says what is wrong
        return None


def _text(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _holds_mappings(value: Any) -> bool:
    """Whether a config has a list of mappings, other than one to append (`key+`)."""
    if isinstance(value, dict):
        return any(_holds_mappings(item) for key, item in value.items() if not str(key).endswith("+"))
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _emptied(value: Any) -> Any:
    """A config with its lists of mappings empty, and without what is to be appended."""
    if isinstance(value, dict):
        return {key: _emptied(item) for key, item in value.items() if not str(key).endswith("+")}
    return [] if _holds_mappings(value) else value


def check(subcommand: str, options: Namespace) -> None:
    """Raises UserError for options that contradict each other."""
    for option in OPTIONS:
        if options[option.name] and subcommand not in option.commands:
            raise UserError(f"{option.name} is not an option of {subcommand}")
    if options.run and options.run_name:
        raise UserError("run_name names a new run, and --run opens an existing one: give one of them")
    if options.run and options.find:
        raise UserError("--find begins with initial weights: it takes a config, not --run")
    if options.resume and not options.run_name:
        raise UserError("--resume continues the run of a --run_name, or makes it: give it a name")
    if options.run and options.init_from:
        raise UserError("--run resumes with the weights of the run: --init_from does not go with it")
    strategy, known = options.trainer.strategy, ["auto", *StrategyRegistry.available_strategies()]
    if isinstance(strategy, str) and strategy.lower() not in known:
        name = strategy.rpartition(".")[2]
        is_class = name[:1].isupper()
        wrong = f"there is no {strategy!r}{did_you_mean(strategy, known, '.')}"
        raise UserError(
            f"trainer.strategy: {'it was given by its name alone.' if is_class else wrong} A class is given as "
            f"{{class_path: {name if is_class else 'Sharded'}}}"
        )
    trainer = options.trainer
    if trainer.gradient_clip_val is not None and trainer.gradient_clip_val < 0:
        raise UserError(f"trainer.gradient_clip_val must not be negative, got {trainer.gradient_clip_val}")
    if trainer.accumulate_grad_batches < 1:
        raise UserError(f"trainer.accumulate_grad_batches must be at least 1, got {trainer.accumulate_grad_batches}")
    if trainer.val_check_interval == 0:
        raise UserError("trainer.val_check_interval must be above 0; limit_val_batches 0 turns validation off")
    if not 0 <= options.seed_everything < 2**32:
        raise UserError(f"seed_everything must be from 0 to {2**32 - 1}, got {options.seed_everything}")


def _callbacks(options: Namespace) -> list[Namespace]:
    found = options.trainer.get("callbacks") or []
    return found if isinstance(found, list) else [found]


def check_early_stopping(given: Namespace) -> None:
    """Raises UserError for an `EarlyStopping` without a mode in the options as given, without their defaults.

    Lightning's default is `min`, which stops a run whose metric improves by rising.
    """
    for callback in _callbacks(given):
        arguments = callback.get("init_args") or {}
        if callback.class_path.endswith("EarlyStopping") and "mode" not in arguments:
            raise UserError(
                f"EarlyStopping monitors {arguments.get('monitor')} without a mode: set max (higher is better) or min"
            )


class Parser(LightningArgumentParser):
    """Raises `UsageError` instead of printing a screenful of usage; accepts no abbreviated options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> Any:
        """Ends parsing with a message that `explain` shortens."""
        raise UsageError(message, getattr(ex, "subcommand_parser", None) or self) from ex


class LitCLI(ParsingCLI):
    """Parses a command line when it is made, and makes data, model and trainer when `make` is called.

    Args:
        project: its links from data to model.
        args: the command line without the program's name, as `prepare` has rewritten it.

    Attributes:
        options: what was parsed.
        plain: the same as plain data, with all defaults.
        drawn: whether the seed was drawn.
        hyper_parameters: of the model, as plain data for its checkpoints, once it has been made.
    """

    def __init__(self, project: Project, args: Sequence[str]) -> None:
        self.links, self.given, self.words = project.links, args[:1], args
        super().__init__(
            model_class=LightningModule,
            datamodule_class=LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            parser_class=Parser,
            parser_kwargs={"prog": program()},
            seed_everything_default=42,  # any fixed number, because Lightning calls its default of 0 random
            save_config_callback=None,  # the run directory keeps the config, once
            trainer_defaults={"enable_model_summary": False},  # we print a line of our own
            auto_configure_optimizers=False,  # optimizers and schedulers are injected into the task
            load_from_checkpoint_support=False,  # done below, because it cannot skip links that a model does not have
            args=list(args),
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Subcommands, and the arguments of the Trainer's methods that are not options of theirs."""
        common = {"model", "dataloaders", "datamodule", "weights_only", "verbose", "return_predictions"}
        # fit has no ckpt_path: with it, `--ckpt_path last` in a new process silently trains from scratch
        fit = {*common, "train_dataloaders", "val_dataloaders", "ckpt_path"}
        return {"fit": fit, "validate": common, "test": common, "predict": common}

    @classmethod
    def parsers(cls, project: Project, *command: str) -> dict[str, LightningArgumentParser]:
        """The parsers of `fit` and the others; with options in that of the given command, or in all."""
        try:
            cls(project, command)
        except UsageError as error:  # something is missing: the parsers are made, and nothing else
            return subcommand_parsers(error.parser)
        raise AssertionError

    def needs_options(self, subcommand: str) -> bool:
        """Adding options takes a third of the time of parsing. Completion, which names no subcommand, needs all."""
        return not self.given or subcommand in self.given

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the options of the run, and links the model to the data."""
        add = parser.add_argument
        for option in OPTIONS:
            only = "" if len(option.commands) == len(SUBCOMMANDS) else f"{', '.join(option.commands)}: "
            add(f"--{option.name}", type=option.type, default=option.default, help=only + option.help)
        for action in actions_of(parser):
            if action.dest == "ckpt_path":
                action.help = CKPT_PATH
        for source, target in self.links.items():
            parser.link_arguments(f"data.{source}", f"model.init_args.{target}", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parses and checks; `seed_everything: true` becomes a random seed, which is then recorded."""
        self.config = parser.parse_args(args)
        self.options: Namespace = self.config[self.config.subcommand]
        check_config(self.options)
        self.drawn = self.options.seed_everything is True
        if self.drawn:
            chosen = None if is_first() else os.environ.get("PL_GLOBAL_SEED")  # by the process that launched this one
            self.options.seed_everything = int(chosen or random.SystemRandom().randrange(2**32))
        check(self.config.subcommand, self.options)
        if any(
            isinstance(one, Namespace) and one.class_path.endswith("EarlyStopping") for one in _callbacks(self.options)
        ):
            check_early_stopping(parser.parse_args(args, defaults=False)[self.config.subcommand])
        self.plain = self._plain(self.config)

    def _plain(self, config: Namespace) -> dict[str, Any]:
        """What was parsed, and so checked, as plain data, with all defaults."""
        text = self.parser.dump(config, skip_unset=False, skip_validation=True)
        plain = yaml.safe_load(text)[config.subcommand]
        add_given(plain["model"], config[config.subcommand].model, self.links)
        return {name: value for name, value in plain.items() if name not in NOT_IN_CONFIG}

    def seed_again(self, seed: int) -> None:
        """Takes the seed that a run has recorded in the place of the one drawn."""
        self.options.seed_everything = self.plain["seed_everything"] = seed_everything(seed, workers=True)

    def config_text(self) -> str:
        """The config as config.yaml keeps it."""
        header = f"# The complete config of this run. `{program()} fit -c` on it makes a new run of the same kind.\n"
        return header + yaml.safe_dump(self.plain, sort_keys=False, allow_unicode=True)

    def changed(self) -> dict[str, list[Any]]:
        """Return the options that overlays and the command line change in the first config.

        Each option is mapped to its value there, which is None if that config does not set it, and its value now.
        """
        first, *later = [_options_in(word) for word in self.words if word.startswith("--")] or [{}]
        now = dict(options_of(self.plain))
        keys = dict.fromkeys(key for options in later for key in options if key in now)
        return {key: [first.get(key), now[key]] for key in keys if not same_value(first.get(key), now[key])}

    def make(self, run: Path, weights: bool, parts: Callable[[Namespace], dict[str, Any]]) -> None:
        """Makes data, model and trainer.

        Args:
            run: its directory, which stands for `{run_dir}` in loggers and callbacks.
            weights: whether a checkpoint gives the weights.
            parts: the arguments that the run adds to those that the config gives the trainer.

        Raises:
            UserError: a class refuses an argument, or the data lack what the model needs.
        """
        if weights:
            drop_weights(self.options.model.get("init_args", {}))
        replace_run_dir(self.options.trainer, run)
        self.parts = parts
        try:
            self.instantiate_now()
        except (ValueError, TypeError, ImportError, OSError, MisconfigurationException) as error:
            if missing := missing_link(self.plain["model"], self.plain["data"], self.links):
                raise UserError(missing) from error
            class_path = re.findall(r"class_path='([^']*)'", str(error))[:1]  # of the object that could not be made
            raise UserError(": ".join([*class_path, reason_in(str(error))]) + place_of(error)) from error
        check_links(self.plain["model"], self.datamodule, self.links)
        self.hyper_parameters = hyper_parameters(copy.deepcopy(self.plain["model"]), self.datamodule, self.links)
        if isinstance(self.model, Task):  # other modules may use their hparams, which may contain objects
            self.model.save_hyperparameters(self.hyper_parameters, logger=False)

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Adds the run's own parts to the trainer that the config describes."""
        try:
            return super().instantiate_trainer(**self.parts(self.config_init[self.subcommand].trainer), **kwargs)
        except RuntimeError as error:  # variables of SLURM without srun
            raise UserError(f"{error} One process without srun: unset SLURM_NTASKS.") from error
        except MisconfigurationException as error:  # of several lines, such as about devices
            raise UserError(" ".join(str(error).split())) from error


def _options_in(word: str) -> dict[str, Any]:
    """Return the options that a word of the command line sets: an option, or all options of a config."""
    name, _, value = word[2:].partition("=")
    content = {name: _parsed(value)} if f"--{name}" != CONFIG else content_of(value) or _parsed(value)
    return {key.replace(".init_args", "").replace("+", ""): value
            for key, value in options_of(resolve_class_paths(content))}  # fmt: skip


def replace_run_dir(value: Any, run: Path) -> Any:
    """Replaces `{run_dir}` in all texts of a config, so that loggers and callbacks can be told where the run is."""
    if isinstance(value, str):
        return value.replace("{run_dir}", str(run))
    if isinstance(value, list):
        return [replace_run_dir(item, run) for item in value]
    if isinstance(value, dict | Namespace):
        for key, item in list((vars(value) if isinstance(value, Namespace) else value).items()):
            value[key] = replace_run_dir(item, run)
    return value


def argument_of(kind: Any, name: str) -> inspect.Parameter | None:
    """An argument of a class, or of the one before it that its `*args` and `**kwargs` go to."""
    for one in getattr(kind, "__mro__", ()):
        parameters = inspect.signature(one.__init__).parameters
        if name in parameters:
            return parameters[name]
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return None


def hyper_parameters(model: dict[str, Any], data: Any, links: Mapping[str, str]) -> dict[str, Any]:
    """The model's config with the values that the links gave it: plain data, from which it can be made again.

    In the form that `load_from_checkpoint` reads.
    """
    values: dict[str, Any] = {**model.get("init_args", {}), **model.get("dict_kwargs", {})}
    for source, argument, owner in _linked({"class_path": model["class_path"], "init_args": values}, links):
        if hasattr(data, source):
            owner.setdefault("init_args", {})[argument.name] = _plain(getattr(data, source))
    drop_weights(values)
    return {"_instantiator": "lightning.pytorch.cli.instantiate_module", "_class_path": model["class_path"], **values}


def add_given(dumped: dict[str, Any], parsed: Namespace, links: Mapping[str, str]) -> dict[str, Any]:
    """Adds to a dumped model, which lacks what the data may give, what of that was given by hand."""
    for (_, argument, owner), (_, _, source) in zip(_linked(dumped, links), _linked(parsed, links), strict=True):
        value = source.get("init_args", {}).get(argument.name)
        if value is not None and _plain(value) != _plain(argument.default):
            owner.setdefault("init_args", {})[argument.name] = _plain(value)
    return dumped


def check_links(model: dict[str, Any], data: Any, links: Mapping[str, str]) -> None:
    """Raises UserError for a value given by hand that differs from the data's: it would be ignored."""
    for source, argument, owner in _linked(model, links):
        by_hand = owner.get("init_args", {}).get(argument.name)
        if by_hand is not None and hasattr(data, source) and by_hand != _plain(getattr(data, source)):
            raise UserError(
                f"{owner['class_path']}: {argument.name} comes from {type(data).__name__}, which says "
                f"{shorten(str(getattr(data, source)), 60)}, and was given as {by_hand}: leave it out"
            )


def missing_link(model: dict[str, Any], data: dict[str, Any], links: Mapping[str, str]) -> str | None:
    """What a model that could not be made needs from the data but does not get; None if nothing."""
    try:
        known = build_datamodule(data)
        missing = [s for s, a, _ in _linked(model, links) if a.default is a.empty and not hasattr(known, s)]
    except Exception:  # then the data cannot be made, or lack it
        return None
    needs = f"{data['class_path']} must have {', '.join(missing)}: {model['class_path']} and what is in it need that"
    return needs if missing else None


def _linked(model: Any, links: Mapping[str, str]) -> Iterator[tuple[str, inspect.Parameter, Any]]:
    """The links that a model has: attribute of the data, argument, config of the class that takes it."""
    for source, target in links.items():
        *path, name = target.split(".init_args.")
        owner: dict[str, Any] | None = model
        for key in path:
            owner = owner.get("init_args", {}).get(key) if owner else None
        if owner and "class_path" in owner:
            argument = argument_of(resolve_name(owner["class_path"]), name)
            if argument is not None:
                yield source, argument, owner


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
