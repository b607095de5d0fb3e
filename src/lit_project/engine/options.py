"""The options of a run, and the command line as the parser is to get it: `prepare` rewrites it, once."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from .classes import full_path, here
from .errors import UserError
from .lr_finder import What
from .run import RunDir

SUBCOMMANDS = ("fit", "validate", "test", "predict")
CONFIG = "--config"
NEED_A_VALUE = (CONFIG, "--run", "--run_name", "--runs_dir", "--init_from", "--ckpt_path", "--images", "--table")

# Options of predict that name new samples → what they are. Data modules say in `predicts_on` which they can read.
NEW_SAMPLES = {"images": "a folder of images", "table": "a table"}

# Options that say where a run goes and not what it is: they are not kept in its config.
NOT_IN_CONFIG = (
    "run", "run_name", "runs_dir", "init_from", "init_prefixes", "init_strict", "find", "plot_lr", "allow_untrained",
    "images", "table", "ckpt_path", "config",
)  # fmt: skip


@dataclass(frozen=True)
class Invocation:
    """A command line, rewritten.

    Args:
        args: to parse. With `--run DIR`, the run's config stands before all other options.
        run: the run that `--run` names.
        config_name: stem of the first config file, which names new runs.
    """

    args: list[str]
    run: RunDir | None
    config_name: str


def prepare(args: Sequence[str]) -> Invocation:
    """Rewrites a command line for the parser, which knows neither runs nor classes by their names alone.

    The parser also mixes the elements of a later list with those of an earlier one, so that a list of mappings is
    preceded by an empty one.

    Raises:
        UserError: an option lacks its value, or a config holds no options; RunError: `--run` is not a run directory.
    """
    given = list(_pairs(args))
    run_path = next((value for option, value in given if option == "--run"), None)
    first_config = next((value for option, value in given if option == CONFIG), None)
    run: RunDir | None = None
    words: list[str] = []
    begun = False  # whether a config stands before
    for option, value in given:
        if option in NEED_A_VALUE and value in (None, "", "~"):  # which YAML reads as nothing
            raise UserError(f"{option} needs a value")
        if value is None:
            words.append(option)
            if option in SUBCOMMANDS and run_path is not None and run is None:
                run, begun = RunDir.open(run_path), True
                words += _config(str(run.config_file), alone=True)
        elif option == CONFIG:
            words += _config(value, alone=not begun)
            begun = True
        else:
            if not option.endswith("+") and value.startswith("[") and _holds_mappings(_parsed(value)):
                words.append(f"{option}=[]")
            is_class = option.startswith(("--data", "--model", "--trainer")) and value[:1].isupper()
            words.append(f"{option}={full_path(value) if is_class else value}")
    if run is None:
        return Invocation(words, None, name_of(first_config))
    if "--print_config" in words:
        words.append("--run=null")  # which no config may name
    return Invocation(words, run, run.path.absolute().parent.name)


def _pairs(args: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Options with their values, however they are spelled; other words, and options without a value, with None."""
    rest = list(reversed(args))
    while rest:
        word = rest.pop()
        if short := re.fullmatch(r"-c=?(.*)", word, re.DOTALL):
            word = f"{CONFIG}={short[1]}" if short[1] else CONFIG
        option, joined, value = word.partition("=")
        if not option.startswith("--") or option in ("--help", "--print_config"):
            yield word, None
        elif joined:
            yield option, value
        else:
            yield option, None if not rest or re.match(r"-[^\d.]", rest[-1]) else rest.pop()


def _config(file: str, alone: bool) -> list[str]:
    """The options that stand for a config file, or for the text of one; `alone` if no config stands before it."""
    content = content_of(file)
    if content is None:
        return [f"{CONFIG}={file}"]
    found = here(content)
    words = [f"{CONFIG}={file if found == content else _text(found)}"]
    return words if alone or not _holds_mappings(found) else [f"{CONFIG}={_text(_emptied(found))}", *words]


def content_of(config: str) -> dict[str, Any] | None:
    """What a config file holds; None for the text of one, and where there is no file: the parser knows those near it.

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
        raise UserError(f"{file}: run is no key of a config; --run {content['run']} goes on with that run")
    return content


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, of which YAML would drop the first."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        seen: set[str] = set()
        for key in keys:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value} stands twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """What YAML holds; raises yaml.YAMLError if it is none, or a key stands twice."""
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


def name_of(config: str | None) -> str:
    """`configs/quickstart.yaml` → `quickstart`; the config.yaml of a run → the name that this run had."""
    if config is None:
        return "unnamed"
    path = Path(config)
    in_run = path.stem == "config" and (path.parent / "provenance.json").exists()
    return path.resolve().parent.parent.name if in_run else path.stem


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


def check(subcommand: str, options: Namespace) -> None:
    """Raises UserError for options that contradict each other or leave nothing to do."""
    fit, trainer = subcommand == "fit", options.trainer
    belongs = dict.fromkeys(("init_from", "find", "plot_lr"), fit)
    belongs |= {**dict.fromkeys(NEW_SAMPLES, subcommand == "predict"), "allow_untrained": not fit}
    for name, right in belongs.items():
        if options[name] and not right:
            raise UserError(f"{name} is not an option of {subcommand}")
    for name in ("init_prefixes", "init_strict"):
        if options[name] and not options.init_from:
            raise UserError(f"{name} belongs to --init_from")
    if options.run and options.run_name:
        raise UserError("run_name names a new run, and --run goes on with an old one: give one of them")
    if options.run and options.init_from:
        raise UserError("--run resumes with the weights of the run: --init_from does not go with it")
    if not 0 <= options.seed_everything < 2**32:
        raise UserError(f"seed_everything must be from 0 to {2**32 - 1}, got {options.seed_everything}")
    for name in ("strategy", "accelerator"):
        value = trainer.get(name)
        if isinstance(value, str) and ("." in value or value[:1].isupper()):
            raise UserError(f"trainer.{name} takes the name of one; a class is --trainer.{name}.class_path={value}")
    split = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}[subcommand]
    if trainer.get(f"limit_{split}_batches") == 0:
        raise UserError(f"trainer.limit_{split}_batches is 0: that leaves no batch to {subcommand}")
    if fit and (trainer.max_epochs == 0 or trainer.max_steps == 0):
        raise UserError("trainer.max_epochs or max_steps is 0: that leaves nothing to fit")
    if fit and trainer.max_epochs is None and trainer.max_steps == -1:
        raise UserError("the run has no end: set trainer.max_epochs (or max_steps; -1 epochs to run until stopped)")
