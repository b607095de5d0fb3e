"""Resolves class names, and restricts which classes a config or a checkpoint may use.

A config may contain a short class name, such as `CNN`, if it is unique in the project. Runs and checkpoints contain
full paths. If a class was moved or its package was renamed, the class is found by its name.

Configs are trusted. A config may use any class that matches the type of an argument, and the module of the class is
imported. Checkpoints may come from anyone. Classes in a checkpoint are imported only from `list_trusted_packages` and
from modules that are already imported. They are instantiated only if they extend `nn.Module` or belong to the project
or the library. Functions are never called.
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

from lit_engine._jsonargparse import find_reason, is_single_key, limited_imports
from lit_engine.errors import CheckpointError, UserError, first_of
from lit_engine.project import current, find_package_folder

LIBRARY = "lit_engine"
INTERNAL = ("lit_engine.cli.", "lit_engine.session.")  # library modules whose classes are not used in configs
FRAMEWORKS = ("lightning.", "torch.", "builtins")
# Lightning has a class with the same name as this torch class.
IN_TORCH = {"ReduceLROnPlateau": "torch.optim.lr_scheduler.ReduceLROnPlateau"}
Made = TypeVar("Made")

# As in jsonargparse 5, reject modules that can run programs, such as `os`.
# Do not create objects for options of type `Any`.
set_parsing_settings(import_path_denylist=[], instantiate_subclass_spec_in_any=False)


def index_classes() -> dict[str, list[str]]:
    """Map each class name allowed in a config to its full paths, with the project's paths first."""
    own, library = index_package(current().name), index_package(LIBRARY)
    library = {name: paths for name, paths in library.items() if not paths[0].startswith(INTERNAL)}
    return {name: [*own.get(name, []), *library.get(name, [])] for name in {**own, **library}}


@cache
def index_package(package: str) -> dict[str, list[str]]:
    """Map each class name in a package to its full paths, without importing the package."""
    root = find_package_folder(package)
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if not all(map(str.isidentifier, parts)):  # an editor's copy, such as .ipynb_checkpoints/cnn-checkpoint.py
            continue
        module = ".".join([package, *parts]).removesuffix(".__init__")
        for name in re.findall(r"^class ([A-Za-z]\w*)", file.read_text(encoding="utf-8"), re.MULTILINE):
            found[name].append(f"{module}.{name}")
    return dict(found)


def resolve_class_name(name: str) -> str:
    """Return the full path of a class in the project or the library, given its name or an outdated path.

    Any other string, such as the path of a class in torch, is returned unchanged.
    """
    own = current().name
    package, _, rest = name.partition(".")
    other = bool(rest) and package not in (own, LIBRARY)
    # "houses.CSV" is the class CSV in houses.py, and "houses.2026.CSV" is a file
    if other and ("." not in rest or not all(map(str.isidentifier, name.split("."))) or Path(name).is_file()):
        return name
    paths = index_classes().get(name.rpartition(".")[2], [])
    # If several classes have the same name, use the class whose path was given, or else the project's class.
    paths = [path for path in paths if path in (name, f"{own}.{rest}")] or paths
    paths = [path for path in paths if path.startswith(f"{own}.")] or paths
    if len(paths) != 1 or (other and (not package.isidentifier() or package in sys.modules or find_spec(package))):
        return IN_TORCH.get(name, name)
    if other:
        _note(package)
    return paths[0]


def resolve_class_paths(value: Any) -> Any:
    """Return a copy of a config with `resolve_class_name` applied to class names and dotted strings."""
    if isinstance(value, Mapping):
        found = {
            key: resolve_class_name(item)
            if isinstance(item, str) and ("." in item or key in ("class_path", "_class_path", "scheduler"))
            else resolve_class_paths(item)
            for key, item in value.items()
        }
        if "class_path" in found and found.get("init_args", {}) is None:  # all arguments are commented out
            found["init_args"] = {}
        for key in ("callbacks", "callbacks+", "schedulers"):  # a list of names, such as `[Figures]`
            if isinstance(found.get(key), list):
                found[key] = [resolve_class_name(item) if isinstance(item, str) else item for item in found[key]]
        return found
    return type(value)(map(resolve_class_paths, value)) if isinstance(value, list | tuple) else value


@cache
def _note(package: str) -> None:
    print(f"note: {package} cannot be imported, so the classes of {current().name} are used", file=sys.stderr)


def check_config(config: Namespace) -> None:
    """Raise UserError if a parsed config names a function in place of a class, because the parser would call it."""
    for key, named in _iterate_named(config):
        if key.endswith(".class_path") and not isinstance(named, type):
            where = key.removesuffix(".class_path").replace(".init_args", "")
            path = f"{named.__module__}.{named.__qualname__}"
            raise UserError(f"{where[1:]}: {path} is a function, but a class is required")


def import_named(config: Path) -> None:
    """Import the modules of all classes in a run's config, as the parser does."""
    for path in re.findall(r"class_path: *[\"']?([\w.]+)", config.read_text(errors="replace")):
        if path.partition(".")[0] not in list_trusted_packages():
            with suppress(ImportError, AttributeError, ValueError):
                resolve_name(path)


def import_class(path: Any, base: type[Made], source: Any) -> type[Made]:
    """Import a class that the checkpoint `source` requires. Raise CheckpointError if this is not allowed or fails."""
    if not isinstance(path, str) or path.partition(".")[0] not in _allowed_packages():
        raise CheckpointError(f"{source} is a checkpoint of {path}: {_rule(path)}")
    try:
        found = resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{source} is a checkpoint of {path}, which cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise CheckpointError(f"{source} is a checkpoint of {path}, which is not a {base.__name__}")
    return found


def instantiate(
    kind: type[Made],
    parameters: Mapping[str, Any],
    given: Mapping[str, Any],
    source: Any,
    placeholders: Mapping[str, Any] | None = None,
) -> Made:
    """Create an object from the parameters in the checkpoint `source`. Values in `given` override these parameters.

    `placeholders` are used for required arguments that the checkpoint lacks.

    Raises:
        CheckpointError: the class does not accept a parameter, or a parameter uses a class that is not allowed.
    """
    parser = ArgumentParser(exit_on_error=False)
    try:
        with limited_imports(sorted(_allowed_packages())):
            names = parser.add_class_arguments(kind, skip=set(given), fail_untyped=False, instantiate=False)
            known = {name: parameters[name] for name in names if name in parameters}
            config = parser.parse_object(known, defaults=False)
            for key, named in _iterate_named(config):
                if not _is_harmless(named, key):
                    raise CheckpointError(f"{source}: {key[1:]} is {named}, which a checkpoint must not contain")
            made = vars(parser.instantiate(config))
        # Add arguments that the parser did not find because they belong to `**kwargs`.
        taken = {name for one in kind.__mro__ for name in inspect.signature(one.__init__).parameters}  # type: ignore[misc]
        more = parameters.keys() - names if _takes_any_name(kind) else taken & parameters.keys() - set(names)
        made |= {name: parameters[name] for name in more if not name.startswith("_")}
        for name, value in (placeholders or {}).items():
            argument = find_argument(kind, name) if name in names and name not in made else None
            if argument is not None and argument.default is argument.empty:
                made[name] = value
        if unused := [n for n in parameters if n not in {*names, *more, *given} and not n.startswith("_")]:
            print(f"warning: {source} contains {first_of(unused)}, which {kind.__name__} ignores", file=sys.stderr)
        return kind(**{**made, **given})
    except (ArgumentError, ValueError, TypeError, ImportError, AttributeError, KeyError, RuntimeError) as error:
        denied = re.search(r"Importing '([^']*)' is not allowed", str(error))
        reason = f"{denied[1]}: {_rule(denied[1])}" if denied else find_reason(str(error))
        raise CheckpointError(f"{source}: {reason}") from error


def _takes_any_name(kind: type) -> bool:
    """Return whether the constructors of a user's class and of its base classes all accept `**kwargs`."""
    own = [one for one in kind.__mro__ if "__init__" in vars(one) and not one.__module__.startswith(FRAMEWORKS)]
    found = [inspect.signature(one.__init__).parameters.values() for one in own]  # type: ignore[misc]
    return bool(found) and all(any(one.kind is one.VAR_KEYWORD for one in parameters) for parameters in found)


def find_argument(kind: Any, name: str) -> inspect.Parameter | None:
    """Find a constructor argument by name. If a class accepts `**kwargs`, its base class is also searched."""
    for one in getattr(kind, "__mro__", ()):
        parameters = inspect.signature(one.__init__).parameters
        if name in parameters:
            return parameters[name]
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return None


def drop_weights(model: Any) -> None:
    """Prevent a network from loading or downloading initial weights that a checkpoint replaces.

    A network's class lists the arguments to change, as in `checkpoint_arguments = {"pretrained": False}`.
    """
    net = model.get("net")
    if not isinstance(net, Namespace | dict) or "class_path" not in net:
        return
    given = net.get("init_args") or {}
    for name, value in getattr(resolve_name(net["class_path"]), "checkpoint_arguments", {}).items():
        if name in given:
            given[name] = value


def list_trusted_packages() -> tuple[str, ...]:
    """Return the packages whose classes a checkpoint may use even if they are not imported yet."""
    return (current().name, LIBRARY, "torch", "torchvision", "torchmetrics", "lightning")


def _rule(path: Any) -> str:
    """Return a message that explains which classes a checkpoint may use."""
    module = str(path).partition(".")[0]
    known = f"{', '.join(list_trusted_packages())} or imported packages"
    hint = f"import {module} first, or pass the run directory instead"
    return f"a checkpoint can only use classes from {known}; if you trust the file, {hint}"


def _allowed_packages() -> set[str]:
    """Return the packages whose classes and functions a checkpoint may use."""
    imported = {name for name in sys.modules if name.isidentifier()} - sys.stdlib_module_names - {"jsonargparse"}
    return {*list_trusted_packages(), *imported}


def _iterate_named(config: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the key and value of each callable, such as a class, in a parsed config. Nothing is imported."""
    if isinstance(config, Namespace | dict):
        for name, value in (vars(config) if isinstance(config, Namespace) else config).items():
            if name == "class_path" and isinstance(config, Namespace):
                yield f"{key}.{name}", _get_imported(value)
            else:
                yield from _iterate_named(value, f"{key}.{name}")
    elif is_single_key(config):
        option = key.replace(".init_args", "")[1:]
        raise UserError(f"{option} has no type, so set the whole dict: --{option}='{{{config.key}: {config.val}}}'")
    elif isinstance(config, list | tuple):
        for number, value in enumerate(config):
            yield from _iterate_named(value, f"{key}[{number}]")
    elif callable(config):
        yield key, config


def _get_imported(path: str) -> Any:
    parts = path.split(".")
    end = next(end for end in range(len(parts) - 1, 0, -1) if ".".join(parts[:end]) in sys.modules)
    return attrgetter(".".join(parts[end:]))(sys.modules[".".join(parts[:end])])


def _is_harmless(named: Any, key: str) -> bool:
    own = str(getattr(named, "__module__", "")).partition(".")[0] in (current().name, LIBRARY)
    if isinstance(named, type):
        return own or issubclass(named, nn.Module)
    if key.endswith(".class_path"):
        return False
    return own or isinstance(named, nn.Module) or getattr(nn.functional, getattr(named, "__name__", ""), None) is named
