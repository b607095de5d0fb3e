"""Turns jsonargparse's nested messages into one or two lines: the key, the value, the nearest valid name."""

import argparse
import ast
import inspect
import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Never

from .errors import UserError, nearest

# Where a class written without its module may come from, for "did you mean".
CLASS_MODULES = (
    "lit_project.tasks",
    "lit_project.models",
    "lit_project.data",
    "lit_project.engine.callbacks",
    "lit_project.engine.schedules",
    "lit_project.data.augmentation",
    "torch.optim",
    "torch.optim.lr_scheduler",
    "lightning.pytorch.callbacks",
    "lightning.pytorch.loggers",
)
# Lines of jsonargparse's messages that frame the reasons.
_FRAME = re.compile(
    r"Does not validate|Subtypes:|Errors:|Given value|Parser key|Problem with given class_path|"
    r"Expected a <class 'NoneType'>|Expected a path but|tip:"
)
# Of a value that was tried as a class before it was tried as a list of them.
_SHAPE = re.compile(r"Not a valid subclass|Subclass types expect|a class path \(str\)|a dict with")
_RENAMED = {
    "--ckpt_path": "fit has no --ckpt_path: --run DIR resumes a run, --init_from FILE starts from its weights",
    "--lr_scheduler": "schedulers belong to the task: model.init_args.schedulers in the config",
    "--optimizer": "the optimizer belongs to the task: model.init_args.optimizer in the config",
}


class UsageError(UserError):
    """The command line or a config could not be parsed.

    Args:
        message: jsonargparse's.
        parser: the parser that failed, which knows the valid options.
    """

    def __init__(self, message: str, parser: Any) -> None:
        super().__init__(message)
        self.parser = parser


class OptionParser(argparse.ArgumentParser):
    """For commands with options of their own: raises what is shown in one line, instead of printing the usage."""

    def error(self, message: str) -> Never:
        """Ends the parsing.

        Raises:
            UserError: always; a `UsageError` where another word may have been meant.
        """
        _, required, missing = message.partition("arguments are required: ")
        if required:
            raise UserError(f"{self.prog} needs {missing}; see {self.prog} --help")
        raise UsageError(message.removeprefix("argument "), self)


def explain(error: Exception, args: Sequence[str], commands: Iterable[str] = ()) -> str:
    """What is wrong, in a few lines.

    Args:
        error: what was raised; anything but a UsageError is already written for the user.
        args: the command line, whose config files tell which classes are in use.
        commands: names of those that have parsers of their own.
    """
    message = str(error)
    if not isinstance(error, UsageError):
        return message
    options = [option for option in error.parser._option_string_actions if option.startswith("--")]
    if found := re.search(r"unrecognized arguments: (.*)", message, re.IGNORECASE | re.DOTALL):
        option = next((word for word in found[1].split() if word.startswith("-")), found[1].split()[0]).partition("=")[
            0
        ]
        root = option.partition(".")[0]
        if root in _RENAMED:
            return _RENAMED[root]
        given = [arg.partition("=")[0] for arg in args]
        if option not in given and (whole := next((arg for arg in given if arg.endswith(f".{option[2:]}")), None)):
            return f"no such key: {whole[2:]}{_nearest(root[2:], _parameters_in_use(args, message))}"
        return f"no such option: {option}{_nearest(option, options)}"
    if found := re.search(r"(?:argument )?(?:-\w/)?(--\S+): expected one argument", message):
        return f"{found[1]} needs a value, as in {found[1]}=true or {found[1]}=3"
    if found := re.search(r"does not accept option '([^']*)'", message):
        return f"no such key: {found[1]}{_nearest(found[1], [option[2:] for option in options])}"
    if found := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
        choices = [*re.findall(r"'([^']*)'", found[2]), *(name for name in commands if name[0] != "-")]
        return f"no such command: {found[1]}{_nearest(found[1], choices)} (one of: {', '.join(choices)})"
    if "arguments are required" in message:
        if found := re.search(r"are required: (.*)(?s:.*?)class_path='([^']*)'", message):  # of a class in a list
            return f"{found[2]}: the class needs a value for {found[1]!r}"
        required = message.rpartition(":")[2].strip()
        return (
            f"nothing describes {re.sub(r'[a-z]+[.]', '', required)}: give a config, such as -c configs/quickstart.yaml"
        )
    if found := re.search(r"File does not exist: '([^']*)'", message):
        path = Path(found[1])
        files = [file.name for file in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
        return f"no such config file: {path}{_nearest(path.name, files)}"
    return _nested(message, args)


def reasons(message: str) -> list[str]:
    """The innermost reasons in a nested message, without the frame around them."""
    own = message[max(message.rfind("Problem with given class_path"), 0) :]  # not those of other types tried before
    lines = [line.strip().removeprefix("- ").strip() for line in own.splitlines()]
    lines = [line for line in lines if line]
    kept = [line for line in lines if not _FRAME.match(line)]
    return list(dict.fromkeys(line for line in kept if not _SHAPE.match(line))) or kept[:1] or lines[:1]


def _nested(message: str, args: Sequence[str]) -> str:
    """Explains a message about a value somewhere in the config."""
    key = ".".join(re.findall(r'Parser key "([^"]*)":', message))
    nested = re.findall(r"NestedArg\(key='([^']*)'", message)
    if nested:  # an option of the command line: the outermost one has the whole path
        key = f"{key.partition('.')[0]}.{nested[-1]}"
    if found := re.search(r"Importing '([^']*)' is not allowed", message):
        return f"{key}: {found[1]} is nothing that a config may name"
    if "add_function_arguments()" in message:
        return f"{key} is a function, where a class is wanted"
    if found := re.search(r"Expected '([^']*)' to be a .* <class '(?:.*\.)?([^']*)'>", message):
        return f"{key}: {found[1]} is no subclass of {found[2]}"
    if found := re.search(r"Option '([^']*)' is not accepted", message):
        name = found[1]
        if nested and re.search(r"Subtypes: .*\b(?:list|Iterable)\[", message):
            parts = re.search(r'Parser key "([^"]*)":', message)
            where = f"{parts[1] if parts else ''}.{nested[-1]}"
            return f"{where}: an option reaches the last of a list, which has no {name}; others are changed in a config"
        given = re.findall(r"Given value: (\{.*\})", message)
        path = _path_to(name, ast.literal_eval(given[-1])) if given else None
        where = key if key.endswith(name) else ".".join(filter(None, (key.partition(".")[0], path or name)))
        return f"no such key: {where}{_nearest(name, _parameters_in_use(args, message))}"
    if found := re.search(r"module '([^']*)' has no attribute '([^']*)'", message):
        return f"{key}: no class {found[1]}.{found[2]}{_nearest(found[2], dir(import_module(found[1])), found[1])}"
    if found := re.search(r"No module named '([^']*)'", message):
        return f"{key}: no module {found[1]}"
    if found := re.search(r"Key \"([^\"]*)\" is required", message):
        return f"{key}: the class needs a value for {found[1]!r}"
    got = re.search(r"Got value: (.*)", message) or re.search(r"Given value: (.*)", message)
    value = got[1].strip() if got else ""
    if found := re.search(r"Expected a dot import path string: (\S*)", message):
        types = re.findall(r"Expected a (<class '(?:int|float|bool)'>)", message)
        if not types:
            classes = {name: module for module in CLASS_MODULES for name in _public_classes(module)}
            return f"{key}: no class {found[1]}{_nearest(found[1], classes, classes)}"
    types = re.findall(r"Expected an? ((?:<class|typing.Literal).*?)(?:\. Got value.*)?$", message, re.MULTILINE)
    expected = [name for name in dict.fromkeys(map(_type_name, types)) if name != "NoneType"]
    if expected:
        choices = re.findall(r"'([^']*)'", " ".join(expected))
        return f"{key}: expected {' or '.join(expected)}, got {value}{_nearest(value, choices)}"
    return "\n  ".join([f"{key}: {reasons(message)[0]}" if key else reasons(message)[0], *reasons(message)[1:3]])


def _nearest(name: str, candidates: Iterable[str], module: Any = None) -> str:
    """`; did you mean X?` for the candidate nearest to a name, or nothing."""
    found = nearest(name, candidates)
    if found is None:
        return ""
    prefix = module.get(found, "") if isinstance(module, dict) else module or ""
    return f"; did you mean {prefix}{'.' if prefix else ''}{found}?"


def _path_to(name: str, value: Any) -> str | None:
    """Where a key stands in nested dicts and lists: `init_args.net.init_args.hiden`."""
    if isinstance(value, dict):
        if name in value:
            return name
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return None
    paths = ((key, _path_to(name, item)) for key, item in items)
    return next((f"{key}.{path}" for key, path in paths if path), None)


def _type_name(text: str) -> str:
    """`<class 'int'>` → `int`; `typing.Literal['a', 'b']` → `'a' or 'b'`."""
    if found := re.match(r"<class '(?:.*\.)?([^']*)'>", text):
        return found[1]
    if found := re.match(r"typing.Literal\[(.*)\]", text):
        return " or ".join(repr(choice) for choice in ast.literal_eval(f"[{found[1]}]"))
    return text


def _public_classes(module: str) -> list[str]:
    return [name for name, value in vars(import_module(module)).items() if isinstance(value, type) and name[0] != "_"]


def _parameters_in_use(args: Sequence[str], message: str) -> set[str]:
    """Arguments of all classes that the message, the command line or its config files name."""
    texts = [message, *args]
    for arg in args:
        path = Path(arg.partition("=")[2] if arg.startswith("--config=") else arg)
        if path.suffix in (".yaml", ".yml") and path.is_file():
            texts.append(path.read_text())
    names: set[str] = set()
    for class_path in set(re.findall(r"[A-Za-z_][\w.]*\.[A-Za-z_]\w*", "\n".join(texts))):
        module, _, name = class_path.rpartition(".")
        try:
            value = getattr(import_module(module), name, None)
        except ImportError:
            continue
        for kind in value.__mro__ if isinstance(value, type) else []:
            names |= set(inspect.signature(vars(kind).get("__init__", object.__init__)).parameters) - {
                "self",
                "args",
                "kwargs",
            }
    return names
