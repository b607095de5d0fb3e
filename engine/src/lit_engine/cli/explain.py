"""Reduces jsonargparse's nested messages to a key, a reason and a suggestion."""

import inspect
import re
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from traceback import extract_tb
from typing import Any

from lit_engine._jsonargparse import find_reason, list_actions
from lit_engine.cli.arguments import UsageError
from lit_engine.cli.config_files import content_of
from lit_engine.cli.options import SHORT
from lit_engine.errors import UserError, did_you_mean, explain_no_access, nearest
from lit_engine.project import is_debugging

# Suggestions for a class name without a module come from the project, the library and these modules.
CLASS_MODULES = (
    "torch.optim", "torch.optim.lr_scheduler", "lightning.pytorch.callbacks", "lightning.pytorch.loggers",
    "torchmetrics.classification", "torchmetrics.regression",
)  # fmt: skip
# Aliases for Lightning's precisions, because the most similar spelling is often the wrong precision.
PRECISIONS = {
    **dict.fromkeys(("fp16", "float16", "half", "amp"), "16-mixed"), "bfloat16": "bf16-mixed",
    **dict.fromkeys(("fp32", "float32", "float"), "32-true"), **dict.fromkeys(("fp64", "float64", "double"), "64-true"),
}  # fmt: skip
_ELSEWHERE = {
    "--ckpt_path": "fit has no --ckpt_path: use --run DIR to resume, or --init_from FILE to load weights",
    **dict.fromkeys(
        ("--lr_scheduler", "Option 'lr_scheduler"),
        "schedulers are arguments of the task: set model.init_args.schedulers in the config",
    ),
    **dict.fromkeys(
        ("--optimizer", "Option 'optimizer"),
        "the optimizer is an argument of the task: set model.init_args.optimizer in the config",
    ),
    "Option 'fit.": "remove the top-level key `fit`, because configs do not contain command names",
    **dict.fromkeys(
        ("--gpus", "trainer.gpu", "option 'gpu"),
        "set the number of GPUs with trainer.devices, and require GPUs with trainer.accelerator=gpu",
    ),
    "'init_args.": "indent init_args below model or data, next to class_path",
    "arguments are required: ": (
        "pass a config with data and model, such as -c configs/quickstart.yaml; without a config, set --model, "
        "and also --data unless the module has its own dataloaders"
    ),
}


# Hints for options that require a data module of the library.
BASES = {
    **dict.fromkeys(
        ("data.folds", "data.fold"), "`load` must call `hold_out`, which returns the test split of the fold"
    ),
    "data.global_batch_size": "these classes divide the samples of a step among the processes",
}


def short_message(error: Exception, args: Sequence[str]) -> str | None:
    """Return a short message for an error that the user can fix, or None if the traceback should be shown."""
    if is_debugging():
        return None
    # raised by torch's inductor
    if re.search(r"No working C\+\+ compiler|Failed to find C compiler", str(error)):
        return "torch.compile needs a C++ compiler: install g++, or set model.compile to null"
    if "SyncBatchNorm layers only work with GPU" in str(error):  # raised by torch
        return "trainer.sync_batchnorm needs GPUs: remove it, or set trainer.accelerator=gpu"
    # These errors concern an invalid logged value (such as a tensor with several elements), a checkpoint that does not
    # fit the layers created by a hook, a Lightning 1 hook, or an interval longer than an epoch.
    told = str(error).strip()
    if told.startswith(("`self.log(", "Error(s) in loading state_dict for ", "Support for `", "`val_check_interval`")):
        return told
    if isinstance(error, ValueError) and "different number of parameter groups" in str(error):
        return (
            "the optimizer in the checkpoint has a different number of parameter groups. If a hook adds groups, create "
            "them in configure_optimizers, or continue from the last weights as a new run with --fork"
        )
    if isinstance(error, OSError):
        return explain_no_access(error)
    # Lightning's class is compared by name, because importing Lightning takes seconds.
    is_expected = isinstance(error, UserError) or type(error).__name__ == "MisconfigurationException"
    return explain(error, args) if is_expected else None


def explain(error: Exception, args: Sequence[str] = ()) -> str:
    """Return a short message for an error. The message for a UsageError contains the innermost reason and a hint."""
    message = str(error)
    if "than one `__init__` argument can be passed" in message:  # raised by Lightning
        return "Lightning cannot replace a DataLoader's sampler: pass the loader's arguments by name (batch_size=32)"
    if "No supported gpu backend found" in message:  # raised by Lightning
        return "no GPU was found: set trainer.accelerator to cpu, or to auto, which uses a GPU if available"
    if not isinstance(error, UsageError):
        return message
    keys, nested = re.findall(r'Parser key "([^"]*)"', message), re.findall(r"NestedArg\(key='([^']*)'", message)
    reason = find_reason(message)
    key = f"{keys[0]}.{nested[-1]}" if nested else ".".join(dict.fromkeys(keys))  # the full path of an option
    if "add_function_arguments()" in message:
        return f"{key or 'a class_path'} is a function, but a class is required"
    if asked := re.fullmatch(r"(--\w+\.help): Expected a dot import path string: (\S+)", reason):
        return f"{asked[1]}: no class {asked[2]}{_value_meant('', f'no class {asked[2]}', args, message)}"
    # The message names no key if the error concerns the whole command line or a top-level key of a config.
    if not keys:
        elsewhere = next((text for name, text in _ELSEWHERE.items() if name in message), None)
        return elsewhere or reason + _option_meant(reason, error.parser)
    reason = re.sub(r"^Expected a dot import path string: ", "no class ", reason)
    if re.search(r"required: (params|optimizer)\b", reason):  # as in lightning-hydra-template
        reason += "; annotate your argument as OptimizerCallable or LRSchedulerCallable (in lightning.pytorch.cli)"
    if file := re.match(r"Invalid content in sub-config file (\S+)\.py\b", reason):
        return f"{key}: {file[1]}.py is a file; use a class instead, such as {file[1].replace('/', '.')}.NAME"
    reason = re.sub(r"^Importing '(.*)' is not allowed, denied.*", r"a config must not use \1", reason)
    if key in BASES and "is not accepted" in reason:
        return f"{key} needs a data module that extends lit_engine's SplitData, ImageData or TabularData: {BASES[key]}"
    hint = _value_meant(key, reason, args, message)
    if nested and not hint and "is not accepted" in reason and re.search(r"Subtypes: .*\b(list|Iterable)\[", message):
        hint = f" by the last element of {keys[0]}. To set options of other elements, use a config"
    where = "" if nested else _locate_option(key, reason, args)
    return f"{key}: {reason}{where}{hint}{locate_error(error)}"


def _locate_option(key: str, reason: str, args: Sequence[str]) -> str:
    """Return ` (in FILE)` if there are several config files, and only one of them sets the unknown option."""
    option = re.match(r"Option '(?:[^']*\.)?(\w+)' is not accepted", reason)
    files = [arg.removeprefix("--config=") for arg in args if arg.startswith("--config=")]
    if option is None or len(files) < 2:
        return ""
    found = [file for file in files if _sets((content_of(file) or {}).get(key.partition(".")[0]), option[1])]
    is_typed = any(option[1] in arg for arg in args if not arg.startswith("--config="))
    return f" (in {found[0]})" if len(found) == 1 and not is_typed else ""


def _sets(config: Any, name: str) -> bool:
    """Return whether a part of a config contains a key at any depth."""
    inner = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    return (isinstance(config, dict) and name in config) or any(_sets(value, name) for value in inner)


def locate_error(error: BaseException) -> str:
    """Return ` (FILE:LINE)` of the last traceback frame in the user's code, or "" for deliberately raised errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ValueError | OSError | ImportError | UserError):  # not a bug
        return ""
    installed = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    libraries = *installed, str(Path(__file__).parents[1]), "<frozen"
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(libraries)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _option_meant(reason: str, parser: Any) -> str:
    """Return a suggestion for an unknown option or command."""
    quoted = re.findall(r"'([^']*)'", reason) or [""]
    if "choose from" in reason:
        # newer versions of Python do not quote the choices
        choices = quoted[1:] or reason.partition("choose from ")[2].rstrip(")").split(", ")
        return did_you_mean(quoted[0], choices)
    strings = (string for action in list_actions(parser) for string in action.option_strings)
    options = [string for string in strings if string.startswith("--")]
    dashed = re.findall(r"(?<!\S)--?\w[\w.]*", reason)
    if dashed:
        short = [f"--{name}" for name in SHORT] if f"--{SHORT['epochs']}" in options else []
        name = "--lr" if dashed[0] == "--learning_rate" else dashed[0]
        return "" if name in options else did_you_mean(name, [*options, *short])
    if config := re.search(r"\S+\.ya?ml$", reason):
        return f"; did you mean -c {config[0]}?"
    top = quoted[-1].partition(".")[0]  # a top-level key of a config
    if quoted[-1] in SHORT:
        return f"; did you mean {SHORT[quoted[-1]]}?"
    names = [option.removeprefix("--") for option in options]
    return did_you_mean(quoted[-1] if top in names else top, names)


def _value_meant(key: str, reason: str, args: Sequence[str], message: str) -> str:
    """Return a suggestion for an invalid value, an unknown class or an unknown argument of a class."""
    quoted, last = re.findall(r"'([^']*)'", reason), reason.split()[-1]
    if reason.startswith(("module '", "no class ")):
        from lit_engine.classes.names import index_classes  # imports torch

        # In "module 'torch.nn' has no attribute 'Liner'", the first quoted word is the module.
        modules = [*CLASS_MODULES, *quoted[:1]]
        classes = {name: f"{module}.{name}" for module in modules for name in dir(import_module(module))}
        classes |= {name: name for name in index_classes()}
        wrong = quoted[1] if quoted else last
        if len(paths := index_classes().get(wrong, [])) > 1:
            return f": several classes have this name, so write {' or '.join(paths)}"
        if wrong in classes:  # a config needs more than the name of the class
            return f": write {{class_path: {classes[wrong]}}}"
        if wrong.isidentifier() and find_spec(wrong):
            return f", because {wrong} is a module: write {wrong}.NAME"
        near = nearest(wrong, classes)
        return f"; did you mean {classes[near]}?" if near else ""
    if reason.startswith("Import path") and (given := re.search(r"Given value: (?:.*class_path\W+)?([\w.]+)", message)):
        with suppress(ImportError, AttributeError, ValueError):
            if any(kind.__module__.startswith("pytorch_lightning.") for kind in resolve_name(given[1]).__mro__):
                return f": {given[1]} uses pytorch_lightning, so import lightning.pytorch instead"
        return ""
    misplaced = "; put the arguments of a class in init_args, not next to class_path"
    if reason.startswith("Option 'class_path'"):
        return misplaced
    if reason.startswith("Not a valid subclass"):
        words = set(re.findall(r"(\w+)'?[:=]", message)) - {"class_path"}
        hints = (f"; {word}: did you mean class_path?" for word in words if nearest(word, ["class_path"]))
        return next(hints, misplaced)
    if reason.startswith("No module named"):
        tops = re.findall(r"(?:class_path|val|value:)\W+(\w+)\.\w", message)
        is_clear = len(set(tops)) == 1 and quoted[0].partition(".")[0] not in tops  # if in `tops`, it may be misspelt
        importer = f" (imported by {tops[0]})" if is_clear else ""
        return f"{importer}: install it, or run the command in the folder that contains {quoted[0]}.py"
    if reason.startswith("Expected a"):
        is_precision = key == "trainer.precision" and last in PRECISIONS
        return f"; did you mean {PRECISIONS[last]}?" if is_precision else did_you_mean(last, quoted)
    if not reason.startswith(("Option", "unrecognized")):
        return ""
    known = _parameters_in_use(args, message) | {"class_path", "init_args"}
    named = [name.partition(".")[0] for name in quoted]  # `nett` in nett.init_args.layers
    wrong = [name for name in (*named, *key.split(".")[1:]) if name not in known]
    has_class = re.search("class_path|init_args", message)
    form = "" if has_class or "." in key else f"; write {key}: {{class_path: NAME, init_args: {{{named[0]}: …}}}}"
    return next((hint for name in wrong if (hint := did_you_mean(name, known))), form)


def _parameters_in_use(args: Sequence[str], message: str) -> set[str]:
    """Return the arguments of all classes that the message, the command line or the config files mention."""
    from lit_engine.classes.names import resolve_class_name

    files = [Path(arg.removeprefix("--config=")) for arg in args if arg.endswith((".yaml", ".yml"))]
    text = "\n".join([message, *args, *(file.read_text(encoding="utf-8") for file in files if file.is_file())])
    names: set[str] = set()
    found = set(map(resolve_class_name, set(re.findall(r"[A-Za-z_][\w.]*", text))))
    named = {f"{module}.{name}" for name in found if name[:1].isupper() and "." not in name for module in CLASS_MODULES}
    for path in found | named:
        if path.rpartition(".")[2][:1].isupper() and "." in path:
            with suppress(ImportError, AttributeError, ValueError):
                for kind in getattr(resolve_name(path), "__mro__", ()):
                    names |= {*inspect.signature(vars(kind).get("__init__", object.__init__)).parameters}
    return names - {"self", "args", "kwargs"}
