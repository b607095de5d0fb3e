"""Rewrites a command line before it is parsed, by expanding class names and inserting the config of the given run."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from lit_engine.classes.names import resolve_class_name, resolve_class_paths
from lit_engine.cli.arguments import CONFIG, pairs
from lit_engine.cli.config_files import (
    as_line,
    as_yaml,
    content_of,
    empty_lists,
    has_mappings,
    is_complete,
    name_of,
    parse_text,
)
from lit_engine.cli.options import FLAGS, OPTIONS
from lit_engine.errors import UserError
from lit_engine.run.directory import RunDir

NEED_A_VALUE = (
    CONFIG, "--ckpt_path", "--notify",
    *(f"--{option.name}" for option in OPTIONS if option.type in (str, str | None)),
)  # fmt: skip


class Invocation(NamedTuple):
    """A rewritten command line."""

    args: list[str]  # the words to parse; the config of `--run` or `--fork` comes before all other options
    run: RunDir | None  # the run given by `--run`
    config_name: str  # name of the given run's config or the first config, used in the path of new runs


def prepare(args: Sequence[str]) -> Invocation:
    """Expand short class names on a command line, and insert the config of the run given by `--run` or `--fork`.

    The parser merges a list of mappings with an earlier list. Inserting an empty list between them prevents this.

    Raises:
        UserError: an option has no value, a config contains no options, or `--run` is not a run directory.
    """
    given = list(pairs(args))
    first = dict(reversed(given))  # the first value of each option
    run_path, first_config, fork = first.get("--run"), first.get(CONFIG), first.get("--fork")
    runs = first.get("--runs_dir") or "runs"
    # Resume the latest run of the given config. The run's own config replaces the given config.
    if run_path == "latest":
        config = first_config if first_config and is_complete(first_config) else None  # not an overlay
        run_path = str(RunDir.latest(runs, config and name_of(config)).path)
        given = [(o, run_path if o == "--run" else v) for o, v in given if config is None or (o, v) != (CONFIG, config)]
    run = RunDir.open(run_path) if run_path else None
    source = run or (RunDir.to_fork(fork, runs)[0] if fork else None)
    words = [args[0]]
    if source is not None:
        words += _config(str(source.config_file), is_first=True)
    has_config = source is not None
    for option, value in (pair for one in given[1:] for pair in _without_dots(*one)):
        if option in NEED_A_VALUE and value in (None, "", "~"):  # YAML reads these as null
            raise UserError(f"{option} needs a value")
        if value is None:
            words.append(f"{option}=true" if option.removeprefix("--") in FLAGS else option)
        elif option == CONFIG:
            if source is None and is_complete(value):
                if has_config:
                    raise UserError(
                        f"{value} is a complete config and would replace the others: "
                        "pass one config, followed by overlays"
                    )
                keys = content_of(value) or {}
                if early := [word for word in words[1:] if re.split(r"[.=+]", word[2:])[0] in keys]:
                    raise UserError(f"{value} would replace {early[0]}: write options after the config")
            words += _config(value, is_first=not has_config)
            has_config = True
        elif option == "--notify":
            words.append(f"{option}+={value}")
        else:
            words += _option(option, value)
    if any(word.startswith("--print_config") for word in words):  # a config must not contain `run` or `fork`
        words += [f"--{name}=null" for name in ("run", "fork") if f"--{name}" in first]
    return Invocation(words, run, source.path.absolute().parent.name if source else name_of(first_config))


def _without_dots(option: str, value: str | None) -> list[tuple[str, str | None]]:
    """Return an option as a list of (name, value). Config keys with dots, as in sweeps, become separate options.

    Otherwise, the parser would ignore either a class (`model.optimizer`) or its argument (`model.optimizer.lr`).
    """
    content = (content_of(value) if option == CONFIG and value else None) or {}
    dotted = sorted((key for key in content if "." in str(key)), key=lambda key: key.count("."))
    if not dotted:
        return [(option, value)]
    rest = {key: part for key, part in content.items() if key not in dotted}
    return [(CONFIG, as_yaml(rest)), *((f"--{key}", as_line(content[key])) for key in dotted)]


def _option(name: str, value: str) -> list[str]:
    """Return the words for an option other than `--config`, with full class names."""
    content = parse_text(value) if value[:1] in ("[", "{") else None
    if isinstance(content, dict) and [(type(k), v) for k, v in content.items()] == [(int, None)]:
        raise UserError(f"{name}={value}: a mapping needs a space after each colon, as in {{3: 0.5}}")
    key = name.rpartition(".")[2]
    if (found := resolve_class_paths({key: content})[key]) != content:
        value = as_line(found)
    # Other data options are kept as strings, because a column name may look like a class name.
    of_data = name in ("--data", "--data.help") or name.rstrip("+").endswith("transforms")
    # A nested trainer option, such as the name of a logger, is a plain string.
    of_trainer = re.fullmatch(r"--trainer\.(\w+\+?|.+\.(class_path|help))", name) is not None
    is_class = value[:1].isupper() and (of_data or of_trainer or name.startswith("--model"))
    word = f"{name}={resolve_class_name(value) if is_class else value}"
    replaces = isinstance(content, list) and not name.endswith("+") and has_mappings(content)
    return [f"{name}=[]", word] if replaces else [word]


def _config(file: str, is_first: bool) -> list[str]:
    """Return the `--config` options for a config file or the text of a config."""
    content = content_of(file)
    if content is None:
        return [f"{CONFIG}={file}"]
    found = resolve_class_paths(content)
    if found.get("trainer", {}) is None:  # all options are commented out
        del found["trainer"]
    if found.get("ckpt_path", "") is None:  # in configs that LightningCLI saved
        del found["ckpt_path"]
    words = [f"{CONFIG}={file if found == content else as_yaml(found)}"]
    return words if is_first or not has_mappings(found) else [f"{CONFIG}={as_yaml(empty_lists(found))}", *words]
