"""Expands short forms on the command line into full options before the command line is parsed.

`fit quickstart --lr 0.01 --run-name a` becomes
`fit --config=configs/quickstart.yaml --model.optimizer.lr=0.01 --run_name=a`. This module imports neither torch nor
Lightning.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import yaml

from lit_engine.cli.arguments import CONFIG, SUBCOMMANDS, pairs
from lit_engine.cli.options import FLAGS, SHORT
from lit_engine.errors import UserError, did_you_mean
from lit_engine.project import Project
from lit_engine.run.directory import RunDir

# Options that `sweep` and `repeat` define themselves or reject.
_NOT_IN = {"sweep": ("seed", "name"), "repeat": ("name",)}


def expand(project: Project, args: Sequence[str]) -> list[str]:
    """Replace short options, config names and positional arguments on a command line with full options.

    Raises:
        UserError: a word is not an option, a config or a run.
    """
    words = list(_replace_dashes(args))
    command = words[0] if words else ""
    if command not in (*SUBCOMMANDS, *_NOT_IN):
        return words
    configs = project.configs()
    flags = FLAGS if command in SUBCOMMANDS else ("json", "report", "dry_run")
    expanded: list[str] = []
    for option, value in pairs(words[1:]):
        name = option.removeprefix("--")
        if value is None and not re.match(r"--|-[h\d]", option):
            expanded.append(_positional(option, configs, command))
        elif (option, value) == ("--init_from", "latest"):  # record the run that `latest` refers to
            runs_dir = dict(pairs(words)).get("--runs_dir") or "runs"
            expanded.append(f"{option}={RunDir.open('latest', runs_dir).path}")
        elif option == CONFIG and value:
            expanded.append(f"{CONFIG}={_config_file(value, configs) or value}")
        elif option.startswith("--") and name in SHORT and name not in _NOT_IN.get(command, ()):
            if value is None:
                raise UserError(f"{option} needs a value")
            expanded.append(f"--{name if name == 'lr' else SHORT[name]}={value}")
        elif name in flags and value is not None and not _is_boolean(value):
            expanded += [option, _positional(value, configs, command)]
        elif value is None or command not in SUBCOMMANDS:  # argparse expects separate words in `--seeds 1 2 3`
            expanded += [option] if value is None else [option, value]
        else:
            expanded.append(f"{option}={value}")
    for place, word in enumerate(expanded):  # the full name of `--lr` depends on the model
        if word.startswith("--lr="):
            expanded[place] = word.replace("lr", _learning_rate_option(expanded), 1)
    return [command, *expanded]


def _replace_dashes(args: Sequence[str]) -> Iterator[str]:
    """Replace dashes in option names with underscores, up to the word `--`."""
    rest = iter(args)
    for word in rest:
        if word == "--":
            yield from (word, *rest)
        elif word.startswith("--"):
            name, joined, value = word[2:].partition("=")
            yield f"--{name.replace('-', '_')}{joined}{value}"
        else:
            yield word


def _positional(word: str, configs: dict[str, Path], command: str) -> str:
    """Convert a positional argument, such as the name of a config, to an option."""
    if re.match(r"-|[A-Za-z_]\w*(\.\w+)*\+?=", word):
        raise UserError(f"{word} is not an option. Write --{word.lstrip('-')}")
    if command == "sweep":  # the argument of `sweep` is the sweep file
        sweep = configs.get(f"sweeps/{word.removeprefix('sweeps/')}", Path(word))
        if not sweep.exists():
            names = [name.removeprefix("sweeps/") for name in configs if name.startswith("sweeps/")]
            raise UserError(f"no sweep {word}{did_you_mean(sweep.stem, names)}")
        return str(sweep)
    if file := _config_file(word, configs):
        return f"{CONFIG}={file}"
    if (command == "repeat" and word.lstrip("-").isdecimal()) or word in SUBCOMMANDS:  # a seed, or a misplaced command
        return word
    if word == "latest" or Path(word).is_dir():
        return f"--run={RunDir.open(word).path if word != 'latest' else word}"
    if Path("runs", word).is_dir():
        raise UserError(f"no such run directory: {word}; did you mean runs/{word}?")
    if "/" in word and not word.endswith((".yaml", ".yml")):
        RunDir.open(word)  # raises an error that suggests other runs
    names = [name.removeprefix("overlays/") for name in configs if not name.startswith("sweeps/")]
    kinds = "a config, a run nor a seed" if command == "repeat" else "a config nor a run"
    is_yaml = word.endswith((".yaml", ".yml"))
    what = f"no such file: {word}" if is_yaml else f"{word} is neither {kinds}"
    raise UserError(f"{what}{did_you_mean(Path(word).stem, names)}")


def _config_file(name: str, configs: dict[str, Path]) -> str | None:
    """Return the config file for a path or the name of a shipped config or overlay, or None if there is no match."""
    if name.endswith((".yaml", ".yml")) and Path(name).is_file():
        return name
    if not re.fullmatch(r"[\w./-]+", name):
        return None
    stem = name.removeprefix("configs/").removesuffix(".yaml")
    file = configs.get(stem) or configs.get(f"overlays/{stem}")
    return None if file is None else str(file)


def _is_boolean(value: str) -> bool:
    return value.lower() in ("true", "false", "yes", "no", "on", "off", "null", "1", "0")


def _learning_rate_option(words: Sequence[str]) -> str:
    """Return the full name of the learning rate option. For a plain module, this is an argument of its constructor.

    Raises:
        UserError: the model has several optimizers.
    """
    given = list(pairs(words))
    last = dict(given)
    if (model := last.get("--model")) and "." in model:
        return next((f"model.{name}" for name in _rates_among(_parameters_of(model))), SHORT["lr"])
    files = [value for option, value in given if option == CONFIG and value]
    if run := last.get("--fork") or last.get("--run"):
        files.append(str(RunDir.to_fork(run, last.get("--runs_dir") or "runs")[0].config_file))
    for file in files:
        try:
            model = yaml.safe_load(Path(file).read_text(encoding="utf-8"))["model"]
            arguments = {**(model.get("init_args") or {})}
        except (OSError, TypeError, KeyError, ValueError, yaml.YAMLError):  # an overlay, or a file that is not YAML
            continue
        if not {"optimizer", "parts"} & arguments.keys():  # perhaps a plain module that uses its default learning rate
            arguments |= dict.fromkeys(_parameters_of(str(model.get("class_path", ""))))
        if rates := _rates_among(arguments):
            return f"model.{rates[0]}"
        if "class_path" in model and "optimizer" not in arguments and "parts" in arguments:
            raise UserError(f"--lr: the model of {file} has several optimizers. Set their learning rates in the config")
        break
    return SHORT["lr"]


def _rates_among(names: Iterable[str]) -> list[str]:
    return [name for name in names if name in ("lr", "learning_rate")]


def _parameters_of(class_path: str) -> list[str]:
    """Return the names of a class's arguments, or an empty list if the class cannot be imported."""
    module, _, name = class_path.rpartition(".")
    with suppress(ImportError, AttributeError, TypeError, ValueError):
        return list(inspect.signature(getattr(import_module(module), name)).parameters)
    return []
