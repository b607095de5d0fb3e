"""Classes by name: how a name leads to a class, and which classes a config and a checkpoint may name.

A config may say `class_path: CNN` for a class whose name is unique in the package. Runs and checkpoints name classes by
their full path; if the class has moved since, or the package has another name now, the name alone finds it again.

A config is trusted: it may name any class that fits the type of an argument, and the module of that class is imported.
A checkpoint may come from anyone: the classes that it names are imported only from `trusted_packages` or from modules
that the program has already imported, and instantiated only if they are an `nn.Module` or a class of the project or the
library. Functions are never called.
"""

import inspect
import re
import sys
from argparse import ArgumentError
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeVar

from jsonargparse import ArgumentParser, Namespace, set_parsing_settings
from torch import nn

from lit_engine._jsonargparse import limited_imports, reason_in
from lit_engine.errors import CheckpointError, UserError
from lit_engine.project import current, package_folder

LIBRARY = "lit_engine"
Made = TypeVar("Made")

# as in jsonargparse 5: nothing that runs programs can be named, such as `os`, and free values stay what they are
set_parsing_settings(import_path_denylist=[], instantiate_subclass_spec_in_any=False)


def classes_by_name() -> dict[str, list[str]]:
    """Return the full paths of all classes in the project and the library by name, those of the project first."""
    found: dict[str, list[str]] = defaultdict(list)
    for package in (current().name, LIBRARY):
        for name, paths in classes_in(package).items():
            found[name] += paths
    return dict(found)


@cache
def classes_in(package: str) -> dict[str, list[str]]:
    """Return the full paths of the classes in a package by name, read from its source files."""
    root = package_folder(package)
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(root.rglob("*.py")):
        module = ".".join([package, *file.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
        for name in re.findall(r"^class ([A-Za-z]\w*)", file.read_text(encoding="utf-8"), re.MULTILINE):
            found[name].append(f"{module}.{name}")
    return dict(found)


def resolve_class_name(name: str) -> str:
    """Return the full path of a class of the project or the library, given its name or a path that no longer exists.

    Any other text, such as the path of a class in torch, is returned unchanged.
    """
    own = current().name
    name = current().functions.get(name, name)
    package, _, rest = name.partition(".")
    other = bool(rest) and package not in (own, LIBRARY)
    if other and "." not in rest:  # such as the file houses.CSV: no module of this package holds classes by itself
        return name
    paths = classes_by_name().get(name.rpartition(".")[2], [])
    # the one at this place, of several classes with this name
    paths = [path for path in paths if path in (name, f"{own}.{rest}")] or paths
    if len(paths) != 1 or (other and (not package.isidentifier() or package in sys.modules or find_spec(package))):
        return name
    if other:
        _note(package)
    return paths[0]


def resolve_class_paths(value: Any) -> Any:
    """Plain data in which each `class_path`, and other dotted values of mappings, are the `resolve_class_name`."""
    if isinstance(value, Mapping):
        found = {
            key: resolve_class_name(item)
            if isinstance(item, str) and ("." in item or key in ("class_path", "_class_path"))
            else resolve_class_paths(item)
            for key, item in value.items()
        }
        for key in ("callbacks", "callbacks+"):  # `[Figures]`
            if isinstance(found.get(key), list):
                found[key] = [resolve_class_name(item) if isinstance(item, str) else item for item in found[key]]
        return found
    return type(value)(map(resolve_class_paths, value)) if isinstance(value, list | tuple) else value


@cache
def _note(package: str) -> None:
    print(f"note: {package} cannot be imported: its classes are taken from {current().name}", file=sys.stderr)


def check_config(config: Namespace) -> None:
    """Raises UserError where a parsed config has a function in the place of a class: it would be called."""
    for key, named in _named(config):
        if key.endswith(".class_path") and not isinstance(named, type):
            where = key.removesuffix(".class_path").replace(".init_args", "")
            path = f"{named.__module__}.{named.__qualname__}"
            raise UserError(f"{where[1:]}: {path} is a function, where a class is wanted")


def import_named(config: Path) -> None:
    """Imports the modules that the config of a run names, as every command with that config does."""
    for path in re.findall(r"class_path: *[\"']?([\w.]+)", config.read_text(errors="replace")):
        if path.partition(".")[0] not in trusted_packages():
            with suppress(ImportError, AttributeError, ValueError):
                resolve_name(path)


def import_class(path: Any, base: type[Made], source: Any) -> type[Made]:
    """The class at a path in the checkpoint `source`; raises CheckpointError if it must not, or cannot, be imported."""
    if not isinstance(path, str) or path.partition(".")[0] not in _allowed():
        raise CheckpointError(f"{source} is a checkpoint of {path}: {_rule(path)}")
    try:
        found = resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{source} is a checkpoint of {path}, which cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise CheckpointError(f"{source} is a checkpoint of {path}, which is no {base.__name__}")
    return found


def instantiate(kind: type[Made], parameters: Mapping[str, Any], given: Mapping[str, Any], source: Any) -> Made:
    """An object made from the parameters in the checkpoint `source`; those in `given` take precedence.

    Raises:
        CheckpointError: a parameter is not what the class takes, or names what a checkpoint must not.
    """
    parser = ArgumentParser(exit_on_error=False)
    try:
        with limited_imports(sorted(_allowed())):
            names = parser.add_class_arguments(kind, skip=set(given), fail_untyped=False, instantiate=False)
            known = {name: parameters[name] for name in names if name in parameters}
            config = parser.parse_object(known, defaults=False)
            for key, named in _named(config):
                if not _harmless(named, key):
                    raise CheckpointError(f"{source}: {key[1:]} is {named}, which a checkpoint must not name")
            made = vars(parser.instantiate(config))
        # arguments that are passed on by `**kwargs` and that the parser did not find
        taken = {name for one in kind.__mro__ for name in inspect.signature(one.__init__).parameters}  # type: ignore[misc]
        made |= {name: value for name, value in parameters.items() if name in taken and name not in names}
        return kind(**{**made, **given})
    except (ArgumentError, ValueError, TypeError, ImportError, AttributeError, KeyError, RuntimeError) as error:
        denied = re.search(r"Importing '([^']*)' is not allowed", str(error))
        reason = f"{denied[1]}: {_rule(denied[1])}" if denied else reason_in(str(error))
        raise CheckpointError(f"{source}: {reason}") from error


def drop_weights(model: Any) -> None:
    """If a checkpoint gives the weights, the net must not fetch those that it once began with."""
    net = model.get("net")
    given = {} if isinstance(net, str) else (net or {}).get("init_args") or {}
    for name, none in {"weights": None, "pretrained": False}.items():
        if name in given:
            given[name] = none


def trusted_packages() -> tuple[str, ...]:
    """Return the packages whose classes a checkpoint may name without having been imported."""
    return (current().name, LIBRARY, "torch", "torchvision", "torchmetrics", "lightning")


def _rule(path: Any) -> str:
    """Why a checkpoint must not name something."""
    module = str(path).partition(".")[0]
    known = f"{', '.join(trusted_packages())} or of what is imported"
    return f"a checkpoint names classes of {known}; if you trust it, import {module} before, or give the whole run"


def _allowed() -> set[str]:
    """Packages whose classes and functions a checkpoint may name."""
    imported = {name for name in sys.modules if name.isidentifier()} - sys.stdlib_module_names - {"jsonargparse"}
    return {*trusted_packages(), *imported}


def _named(config: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The classes, functions and other callables in a parsed config, each with its key; nothing is imported."""
    if isinstance(config, Namespace | dict):
        for name, value in (vars(config) if isinstance(config, Namespace) else config).items():
            if name == "class_path" and isinstance(config, Namespace):
                yield f"{key}.{name}", _imported(value)
            else:
                yield from _named(value, f"{key}.{name}")
    elif isinstance(config, list | tuple):
        for number, value in enumerate(config):
            yield from _named(value, f"{key}[{number}]")
    elif callable(config):
        yield key, config


def _imported(path: str) -> Any:
    parts = path.split(".")
    ends = (end for end in range(len(parts) - 1, 0, -1) if ".".join(parts[:end]) in sys.modules)
    end = next(ends)
    return attrgetter(".".join(parts[end:]))(sys.modules[".".join(parts[:end])])


def _harmless(named: Any, key: str) -> bool:
    own = str(getattr(named, "__module__", "")).partition(".")[0] in (current().name, LIBRARY)
    if isinstance(named, type):
        return own or issubclass(named, nn.Module)
    if key.endswith(".class_path"):
        return False
    return own or isinstance(named, nn.Module) or getattr(nn.functional, getattr(named, "__name__", ""), None) is named
