"""Runs and checkpoints that were made when this package had another name.

They name classes by the package of then. Where that package cannot be imported and this one has the same class at the
same place, it is taken from here, with a note on standard error. A package that is installed is never replaced.
"""

import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

PACKAGE = __name__.partition(".")[0]
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def here(value: Any) -> Any:
    """Plain data, in which the class paths of a package that is not there lead to this one; others stay as they are."""
    if isinstance(value, Mapping):
        return {key: _class_here(item) if isinstance(item, str) else here(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [here(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def config_here(file: str | Path) -> str:
    """What `--config` is given for a config file: its path, or its text where class paths had to be changed."""
    try:
        text = Path(file).read_text()
        packages = set(re.findall(r"class_path: *[\"']?(\w+)\.", text))
        if all(map(_is_there, packages)):
            return str(file)
        config = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return str(file)  # the parser says what is wrong with it
    changed = here(config)
    return str(file) if changed == config else yaml.safe_dump(changed, sort_keys=False, allow_unicode=True)


@cache
def _class_here(text: str) -> str:
    """The class path in this package, if it names one that is not there and this package has it."""
    package, _, rest = text.partition(".")
    if not _DOTTED.fullmatch(text) or _is_there(package):
        return text
    path = f"{PACKAGE}.{rest}"
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return text
    if not callable(found):
        return text
    _note(package)
    return path


def _is_there(package: str) -> bool:
    return package in sys.modules or find_spec(package) is not None


@cache
def _note(package: str) -> None:
    print(f"note: {package} cannot be imported: its classes are taken from {PACKAGE}", file=sys.stderr)
