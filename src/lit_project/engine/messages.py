"""Turns jsonargparse's nested messages into a line: the key, the last reason, the value, the nearest valid name."""

import argparse
import inspect
import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Never

from .errors import UserError, did_you_mean, nearest
from .project import PACKAGE, PROGRAM

# Besides this package, where a class written without its module may come from, for "did you mean".
CLASS_MODULES = ("torch.optim", "torch.optim.lr_scheduler", "lightning.pytorch.callbacks", "lightning.pytorch.loggers")
# How the lines of jsonargparse's messages begin that frame the reasons, or tell of another type that was tried.
_FRAME = (
    "Parser key", "Does not validate", "Subtypes:", "Errors:", "Given value", "Problem with given class_path", "tip:",
    "Expected a <class 'NoneType'>", "Expected a path but", "Subclass types expect", "a class path (str)",
    "a dict with",
)  # fmt: skip
_ELSEWHERE = {
    "--ckpt_path": "fit has no --ckpt_path: --run DIR resumes a run, --init_from FILE starts from its weights",
    "--lr_scheduler": "schedulers belong to the task: model.init_args.schedulers in the config",
    "--optimizer": "the optimizer belongs to the task: model.init_args.optimizer in the config",
    '"subcommand" to be one of': f"a command is missing, such as `{PROGRAM} fit -c configs/quickstart.yaml`; "
    f"`{PROGRAM} --help` lists the commands, `{PROGRAM} examples` the configs",
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
    reason = reasons(message)[0]
    key = f"{keys[0]}.{nested[-1]}" if nested else ".".join(dict.fromkeys(keys))  # an option has its whole path
    if "add_function_arguments()" in message:
        return f"{key or 'what a class_path names'} is a function, where a class is wanted"
    if not keys:  # of the command line as a whole, or of a key at the top of a config
        elsewhere = next((text for name, text in _ELSEWHERE.items() if name in message), None)
        return elsewhere or reason + _option_meant(reason, error.parser, commands)
    reason = re.sub(r"^Expected a dot import path string: ", "no class ", reason)
    reason = re.sub(r"^Importing '(.*)' is not allowed, denied.*", r"a config must not name \1", reason)
    if nested and "is not accepted" in reason and re.search(r"Subtypes: .*\b(list|Iterable)\[", message):
        return f"{key}: {reason}; an option reaches the last of a list, others are changed in a config"
    return f"{key}: {reason}{_value_meant(key, reason, args, message)}"


def reasons(message: str) -> list[str]:
    """The innermost reasons in a nested message, the most telling first; types that were expected are one reason."""
    own = message[max(message.rfind("Problem with given class_path"), 0) :]  # not those of other types tried before
    lines = [re.sub(r"^\s*(- )?(Parser key .*: (?=\w)|.* callable class: )?", "", line) for line in own.splitlines()]
    kept = [line.partition(". Got value: Namespace")[0] for line in lines if line and not line.startswith(_FRAME)]
    kept = [re.sub(r"<class '(?:[\w.]*\.)?(\w+)'>|typing\.Literal\[(.*?)\]", r"\1\2", line) for line in kept]
    vague = [line for line in kept if line.startswith(("Expected a dot", "Not a valid subclass"))]
    types = [line for line in kept if line.startswith("Expected a ") and line not in vague]
    found = [line for line in kept if line not in vague and line not in types]
    if types:
        given = re.search(r"Given value: (?:NestedArg.*val=)?'?(\w[^'(]*)'?\)?$", message, re.MULTILINE)
        got = f". Got value: {given[1]}" if given and "Got value" not in types[0] else ""
        found.append(" or ".join([types[0], *(line.removeprefix("Expected a ") for line in types[1:])]) + got)
    return list(dict.fromkeys([*found, *vague])) or [own.strip()]


def _option_meant(reason: str, parser: Any, commands: Iterable[str]) -> str:
    """What may have been meant, where an option or a command is wrong."""
    word, *choices = re.findall(r"'([^']*)'", reason) or [""]
    if "choose from" in reason:
        others = [name for name in commands if name[0] != "-"]
        return (f", or {', '.join(others)}" if others else "") + did_you_mean(word, [*choices, *others])
    if "are required" in reason:
        return ": give a config, such as -c configs/quickstart.yaml"
    options = [option for option in parser._option_string_actions if option.startswith("--")]
    dashed = re.findall(r"(?<!\S)--?\w[\w.]*", reason)
    wrong = dashed[0] if dashed else f"--{choices[-1]}" if choices else ""
    hint = "" if wrong in options else did_you_mean(wrong, options)
    return hint if dashed else hint.replace(" --", " ")


def _value_meant(key: str, reason: str, args: Sequence[str], message: str) -> str:
    """What may have been meant, where the value of a key is wrong or a class has no such argument."""
    quoted, last = re.findall(r"'([^']*)'", reason), reason.split()[-1]
    if reason.startswith("module '") and not quoted[0].startswith(PACKAGE):  # has no attribute
        near = nearest(quoted[1], dir(import_module(quoted[0])))
        return f"; did you mean {quoted[0]}.{near}?" if near else ""
    if reason.startswith(("module '", "no class ")):
        from .classes import index  # which imports torch

        classes = {name: f"{module}.{name}" for module in CLASS_MODULES for name in dir(import_module(module))}
        classes |= {name: name for name in index()}
        near = nearest(quoted[1] if quoted else last, classes)
        return f"; did you mean {classes[near]}?" if near else ""
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


def _parameters_in_use(args: Sequence[str], message: str) -> set[str]:
    """Arguments of all classes that the message, the command line or its config files name."""
    from .classes import full_path

    files = [Path(arg.removeprefix("--config=")) for arg in args if arg.endswith((".yaml", ".yml"))]
    texts = [message, *args, *(file.read_text() for file in files if file.is_file())]
    names: set[str] = set()
    for word in set(re.findall(r"[A-Za-z_][\w.]*", "\n".join(texts))):
        path = full_path(word)
        if "." not in path or not path.rpartition(".")[2][:1].isupper():
            continue
        try:
            kinds = getattr(resolve_name(path), "__mro__", ())
        except (ImportError, AttributeError, ValueError):
            continue
        for kind in kinds:
            names |= {*inspect.signature(vars(kind).get("__init__", object.__init__)).parameters}
    return names - {"self", "args", "kwargs"}
