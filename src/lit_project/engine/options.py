"""The options of a run: what is read before LightningCLI parses, what is added to its parser, what is checked after."""

import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from .class_checks import drop_weights
from .class_names import config_here, full_path, here
from .errors import UserError
from .lr_finder import What
from .run import RunDir

FLAG = "--config"
MOST_VALUES = 100_000  # of a file, with all that its aliases stand for


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, of which YAML would drop the first, and aliases without end."""

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None and (values := _expanded(node, {})) > MOST_VALUES:
            raise yaml.MarkedYAMLError(problem=f"its aliases (*NAME) stand for {values:,.0f} values")
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = getattr(key, "value", None)
            if isinstance(name, str) and name != "<<" and name in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {name} stands twice", problem_mark=key.start_mark)
            seen.add(name if isinstance(name, str) else None)
        return super().construct_mapping(node, deep)


def _expanded(node: Any, known: dict[int, float]) -> float:
    """How many values a node stands for; infinitely many if it holds itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        flat = [one for part in parts for one in part] if isinstance(node, yaml.MappingNode) else parts
        known[id(node)] = 1 + sum(_expanded(part, known) for part in flat)
    return known[id(node)]


def load_yaml(text: str) -> Any:
    """What YAML holds.

    Raises:
        yaml.YAMLError: it is none, a key stands twice, or its aliases or brackets are too many.
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError as error:
        raise yaml.MarkedYAMLError(problem="too many levels") from error


def spelled_out(args: Sequence[str]) -> list[str]:
    """`-c FILE`, `-c=FILE`, `-cFILE` and `--config=FILE` as `--config FILE`."""
    found: list[str] = []
    for arg in args:
        attached = re.fullmatch(r"(?:--config=|-c=?)(.+)", arg, re.DOTALL)
        found += [FLAG, attached[1]] if attached else [FLAG if arg == "-c" else arg]
    return found


def with_full_paths(args: Sequence[str]) -> list[str]:
    """The full path for a class of this package that an option names by its name alone: `--model.net=CNN`."""
    found: list[str] = []
    for before, arg in zip(["", *args], args, strict=False):
        option, is_pair, value = arg.partition("=")
        if not is_pair and before.startswith("--"):
            option, value = before, arg
        named = option.startswith(("--data", "--model", "--trainer")) and value[:1].isupper()
        found.append(f"{arg[: len(arg) - len(value)]}{full_path(value)}" if named else arg)
    return found


def with_configs(args: Sequence[str], first: bool) -> list[str]:
    """A command line as the parser is to get it.

    The parser mixes the elements of a later list with those of an earlier one, so that a list of mappings is preceded
    by an empty one.

    Args:
        args: `spelled_out`.
        first: whether no config stands before them.

    Raises:
        UserError: a config is a folder, no YAML or holds no options.
    """
    found: list[str] = []
    for before, arg in zip(["", *args], args, strict=False):
        if before == FLAG:
            content = content_of(arg)
            empty = None if first or content is None else emptied(content)
            if empty:
                found += [yaml.safe_dump(here(empty), sort_keys=False, allow_unicode=True), FLAG]
            found.append(arg if content is None else config_here(arg))
            first = False
            continue
        key, _, value = arg.partition("=")
        option, value = (before, arg) if before.startswith("--") and "=" not in before else (key, value)
        if option.startswith("--") and not option.endswith("+") and _holds_mappings(value):
            if option is before:
                found[-1:] = [f"{option}=[]", option]
            else:
                found.append(f"{option}=[]")
        found.append(arg)
    return found


def _holds_mappings(text: str) -> bool:
    if not text.startswith("["):
        return False
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:  # the parser says what is wrong
        return False
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def emptied(content: dict[str, Any]) -> dict[str, Any] | None:
    """A config with its lists of mappings empty, without what is appended (`key+`); None if it has no such list."""
    found = False

    def copy(value: Any) -> Any:
        nonlocal found
        if isinstance(value, dict):
            return {key: copy(item) for key, item in value.items() if not str(key).endswith("+")}
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            found = True
            return []
        return value

    empty = copy(content)
    return empty if found else None


def content_of(arg: str) -> dict[str, Any] | None:
    """What a config holds; None for text of one, and for a file that is not there: the parser knows those that are."""
    file = Path(arg)
    if "\n" in arg or not file.exists():
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
        raise UserError(f"{file}: run is no key of a config; --run {content['run']} goes on with that run")
    return content


def name_of(config: str | None) -> str:
    """`configs/quickstart.yaml` → `quickstart`; the config.yaml of a run → the name that this run had."""
    if config is None:
        return "unnamed"
    path = Path(config)
    in_run = path.stem == "config" and (path.parent / "provenance.json").exists()
    return path.resolve().parent.parent.name if in_run else path.stem


def check_nulls(value: Any, where: str) -> None:
    """Raises UserError for a null where the class takes none, which the parser lets through."""
    if isinstance(value, list):
        for item in value:
            check_nulls(item, where)
    elif isinstance(value, dict):
        kind = resolve_name(value["class_path"]) if "class_path" in value else None
        for name, item in value.get("init_args", value).items():
            argument = argument_of(kind, name) if item is None else None
            if argument and argument.annotation in (int, float, bool, str) and argument.default is not None:
                raise UserError(f"{where}.{name} must not be null: it is of type {argument.annotation.__name__}")
            check_nulls(item, f"{where}.{name}")


def argument_of(kind: Any, name: str) -> inspect.Parameter | None:
    """An argument of a class, or of the one before it that its `*args` and `**kwargs` go to."""
    for one in getattr(kind, "__mro__", ()):
        parameters = inspect.signature(one.__init__).parameters
        if name in parameters:
            return parameters[name]
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return None


SUBCOMMANDS = ("fit", "validate", "test", "predict")


@dataclass(frozen=True)
class Invocation:
    """A command line.

    Args:
        args: to parse: with `--run DIR`, the run's config stands before all other options.
        run: the run that `--run` names.
        config_name: stem of the first config file, which names new runs.
    """

    args: list[str]
    run: RunDir | None
    config_name: str


def prepare(args: Sequence[str]) -> Invocation:
    """Reads `--run` and the first `-c`/`--config` of a command line.

    Raises:
        UserError: `--run` without a folder; RunError: it is not a run directory.
    """
    args = with_full_paths(spelled_out(args))
    for flag in ("--run", "--run_name", "--runs_dir", "--init_from", "--ckpt_path", "--images", "--table"):
        if _value(args, flag) in ("", "~"):  # which YAML reads as nothing
            raise UserError(f"{flag} needs a value")
    position = next((i for i, arg in enumerate(args) if arg in SUBCOMMANDS), None)
    run_path = _value(args, "--run")
    first = _value(args, FLAG)
    args = with_configs(args, first=run_path is None)
    if run_path is None or position is None:
        return Invocation(args, None, name_of(first))
    run = RunDir.open(run_path)
    content_of(str(run.config_file))  # refuses what is no config
    args[position + 1 : position + 1] = [FLAG, config_here(run.config_file)]
    if "--print_config" in args:
        args.append("--run=null")  # which no config may name
    return Invocation(args, run, run.path.absolute().parent.name)


def _value(args: list[str], flag: str) -> str | None:
    for i, arg in enumerate(args):
        if arg == flag:
            if i + 1 == len(args) or args[i + 1].startswith("--"):
                raise UserError(f"{flag} needs a value")
            return args[i + 1]
        if flag.startswith("--") and arg.startswith(f"{flag}="):
            return arg.partition("=")[2]
    return None


def add_options(parser: LightningArgumentParser, links: Mapping[str, str]) -> None:
    """Adds the options of the run and the links from data to model to the parser of a subcommand."""
    add = parser.add_argument
    add("--run", type=str | None, default=None, help="A run directory: `fit` resumes it, the others evaluate it.")
    add("--run_name", type=str | None, default=None, help="Name of a new run; default: the time.")
    add("--runs_dir", type=str, default="runs", help="Where new runs are made, as RUNS_DIR/CONFIG/NAME.")
    add("--init_from", type=str | None, default=None, help="fit: a run or checkpoint whose weights to start from.")
    add("--init_prefixes", type=dict[str, str | None] | None, default=None,
        help='fit: how names of those weights begin → how they begin here, null: left out.')  # fmt: skip
    add("--init_strict", type=bool, default=False, help="fit: whatever of those weights does not fit is an error.")
    add("--find", type=What | None, default=None, help="fit: look for a learning rate or batch size, train nothing.")
    add("--plot_lr", type=bool, default=False, help="fit: draw the planned learning rate, train nothing.")
    add("--test_after_fit", type=bool, default=False, help="fit: then test the best checkpoint.")
    add("--allow_untrained", type=bool, default=False, help="validate, test, predict: without --run or a checkpoint.")
    add("--images", type=str | None, default=None, help="predict: a folder of image files, not the test split.")
    add("--table", type=str | None, default=None, help="predict: a file of rows (or texts), not the test split.")
    for source, target in links.items():
        parser.link_arguments(f"data.{source}", f"model.init_args.{target}", apply_on="instantiate")


# Options of predict that name new samples → what they are. Data modules say in `predicts_on` which they can read.
NEW_SAMPLES = {"images": "a folder of images", "table": "a table"}

# Options that say where a run goes and not what it is: they are not kept in its config.
NOT_IN_CONFIG = (
    "run", "run_name", "runs_dir", "init_from", "init_prefixes", "init_strict", "find", "plot_lr", "allow_untrained",
    "images", "table", "ckpt_path", "config",
)  # fmt: skip


def check(subcommand: str, options: Namespace) -> None:
    """Raises UserError for options that contradict each other or leave nothing to do."""
    fit = subcommand == "fit"
    for name in ("init_prefixes", "init_strict"):
        if options[name] and not options.init_from:
            raise UserError(f"{name} belongs to --init_from")
    for name, belongs in (
        ("init_from", fit),
        ("find", fit),
        ("plot_lr", fit),
        ("images", subcommand == "predict"),
        ("table", subcommand == "predict"),
        ("allow_untrained", not fit),
    ):
        if options[name] and not belongs:
            raise UserError(f"{name} is not an option of {subcommand}")
    if options.run and options.run_name:
        raise UserError("run_name names a new run, and --run goes on with an old one: give one of them")
    if not 0 <= options.seed_everything < 2**32:
        raise UserError(f"seed_everything must be from 0 to {2**32 - 1}, got {options.seed_everything}")
    if fit and options.run and options.init_from:
        raise UserError("--run resumes with the weights of the run: --init_from does not go with it")
    for name in ("strategy", "accelerator"):
        value = options.trainer.get(name)
        if isinstance(value, str) and ("." in value or value[:1].isupper()):
            raise UserError(f"trainer.{name} takes the name of one; a class is --trainer.{name}.class_path={value}")
    split = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}[subcommand]
    if options.trainer.get(f"limit_{split}_batches") == 0:
        raise UserError(f"trainer.limit_{split}_batches is 0: that leaves no batch to {subcommand}")
    if fit and (options.trainer.max_epochs == 0 or options.trainer.max_steps == 0):
        raise UserError("trainer.max_epochs or max_steps is 0: that leaves nothing to fit")
    if fit and options.trainer.max_epochs is None and options.trainer.max_steps == -1:
        raise UserError("the run has no end: set trainer.max_epochs (or max_steps; -1 epochs to run until stopped)")


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
    """Raises UserError for a value given by hand that the data give otherwise: it would be ignored."""
    for source, argument, owner in _linked(model, links):
        by_hand = owner.get("init_args", {}).get(argument.name)
        if by_hand is not None and hasattr(data, source) and by_hand != _plain(getattr(data, source)):
            told = f"{getattr(data, source)}"
            raise UserError(
                f"{owner['class_path']}: {argument.name} comes from {type(data).__name__}, which says "
                f"{told if len(told) < 60 else told[:60] + '…'}, and was given as {by_hand}: leave it out"
            )


def missing_link(model: dict[str, Any], data: dict[str, Any], links: Mapping[str, str]) -> str | None:
    """What a model must be told by the data and is not, for the case that it could not be made; None if nothing."""
    try:
        known = resolve_name(data["class_path"])(**data.get("init_args", {}))
        missing = [s for s, a, _ in _linked(model, links) if a.default is a.empty and not hasattr(known, s)]
    except Exception:  # then it is the data that cannot be made, or cannot tell
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


def replace_run_dir(value: Any, run: Path) -> Any:
    """Replaces `{run_dir}` in all texts of a config, so that loggers and callbacks can be told where the run is."""
    if isinstance(value, str):
        return value.replace("{run_dir}", str(run))
    if isinstance(value, list):
        return [replace_run_dir(item, run) for item in value]
    if isinstance(value, dict | Namespace):
        for key, item in list(value.items(branches=True) if isinstance(value, Namespace) else value.items()):
            if not isinstance(item, Namespace):
                value[key] = replace_run_dir(item, run)
    return value
