"""Turns jsonargparse's nested messages into a line: the key, the last reason, the value, the nearest valid name."""

import argparse
import inspect
import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Never

from lit_project.errors import UserError, did_you_mean, nearest

# Where a class written without its module may come from, for "did you mean".
CLASS_MODULES = (
    *(f"lit_project.{part}" for part in ("tasks", "models", "data", "callbacks", "optim", "data.transforms")),
    "torch.optim", "torch.optim.lr_scheduler", "lightning.pytorch.callbacks", "lightning.pytorch.loggers",
)  # fmt: skip
# How the lines of jsonargparse's messages begin that frame the reasons, or tell of another type that was tried.
_FRAME = (
    "Parser key", "Does not validate", "Subtypes:", "Errors:", "Given value", "Problem with given class_path", "tip:",
    "Expected a <class 'NoneType'>", "Expected a path but", "Subclass types expect", "a class path (str)",
    "a dict with",
)  # fmt: skip
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
    keys, nested = re.findall(r'Parser key "([^"]*)"', message), re.findall(r"NestedArg\(key='([^']*)'", message)
    reason, *others = reasons(message)
    if reason.startswith("Expected a"):  # of a union of types
        types = [
            line.removeprefix("Expected a ")
            for line in others
            if line.startswith(("Expected a <", "Expected a typing"))
        ]
        value = re.search(r"Given value: (?:NestedArg.*val=)?'?(\w[^'(]*)'?\)?$", message, re.MULTILINE)
        got = f". Got value: {value[1]}" if value and "value" not in reason and "import path" not in reason else ""
        reason = " or ".join([reason, *types]) + got
    reason = re.sub(r"<class '(?:[\w.]*\.)?(\w+)'>|typing\.Literal\[(.*?)\]", r"\1\2", reason)
    if not keys:  # of the command line as a whole, or of a key at the top of a config
        renamed = next((text for name, text in _RENAMED.items() if name in message), None)
        return renamed or reason + _of_command(reason, error.parser, commands)
    key = f"{keys[0]}.{nested[-1]}" if nested else ".".join(dict.fromkeys(keys))  # an option has its whole path
    if "add_function_arguments()" in message:
        return f"{key} is a function, where a class is wanted"
    if nested and "is not accepted" in reason and re.search(r"Subtypes: .*\b(list|Iterable)\[", message):
        return f"{key}: {reason}; an option reaches the last of a list, others are changed in a config"
    return f"{key}: {reason}{_of_key(key, reason, args, message)}"


def reasons(message: str) -> list[str]:
    """The innermost reasons in a nested message, the most telling first, without the frame around them."""
    own = message[max(message.rfind("Problem with given class_path"), 0) :]  # not those of other types tried before
    lines = [re.sub(r"^\s*(- )?(Parser key .*: (?=\w)|.* callable class: )?", "", line) for line in own.splitlines()]
    kept = [line.partition(". Got value: Namespace")[0] for line in lines if line and not line.startswith(_FRAME)]
    vague = ("Expected a dot", "Not a valid subclass"), ("Expected a",)
    kept.sort(key=lambda line: 2 * line.startswith(vague[0]) or int(line.startswith(vague[1])))
    return list(dict.fromkeys(kept)) or [own.strip()]


def _of_command(reason: str, parser: Any, commands: Iterable[str]) -> str:
    """What may have been meant, where an option or a command is wrong."""
    word, *choices = re.findall(r"'([^']*)'", reason) or [""]
    if "choose from" in reason:
        others = [name for name in commands if name[0] != "-"]
        return (f", or {', '.join(others)}" if others else "") + did_you_mean(word, [*choices, *others])
    if "are required" in reason:
        return ": give a config, such as -c configs/quickstart.yaml"
    dashed = [part.partition("=")[0] for part in reason.split() if part.startswith("-")]
    options = [option for option in parser._option_string_actions if option.startswith("--")]
    if dashed:
        return "" if dashed[0].rstrip(":") in options else did_you_mean(dashed[0], options)
    return did_you_mean(choices[-1], [name[2:] for name in options]) if choices else ""


def _of_key(key: str, reason: str, args: Sequence[str], message: str) -> str:
    """What may have been meant, where the value of a key is wrong or a class has no such argument."""
    quoted, last = re.findall(r"'([^']*)'", reason), reason.split()[-1]
    if reason.startswith("module '"):  # has no attribute
        near = nearest(quoted[1], dir(import_module(quoted[0])))
        return f"; did you mean {quoted[0]}.{near}?" if near else ""
    if "import path string" in reason:
        classes = {name: module for module in CLASS_MODULES for name in _public_classes(module)}
        near = nearest(last, classes)
        return f"; did you mean {classes[near]}.{near}?" if near else ""
    if reason.startswith("File does not exist"):
        path = Path(quoted[-1])
        return did_you_mean(path.name, [file.name for file in path.parent.glob("*.yaml")])
    if reason.startswith("Expected a"):
        return did_you_mean(last, quoted)
    if not reason.startswith(("Option", "unrecognized")):
        return ""
    known = _parameters_in_use(args, message)
    wrong = [name for name in (*key.split(".")[1:], *quoted) if name not in known]
    return next((hint for name in wrong if (hint := did_you_mean(name, known))), "")


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
