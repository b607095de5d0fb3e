"""Classes of this project by their names alone, and by paths that they had once.

A config may say `class_path: CNN` for a class whose name is unique in the package. Runs and checkpoints name classes by
their full path; if the class has moved since, or the package has another name now, the name alone finds it again. The
sources are read for this and not imported.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from .project import PACKAGE

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@cache
def index() -> dict[str, list[str]]:
    """Name of a class → the full paths of the classes of that name in the package."""
    root = Path(__file__).parents[1]
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(root.rglob("*.py")):
        module = ".".join([PACKAGE, *file.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
        for name in re.findall(r"^class ([A-Za-z]\w*)", file.read_text(encoding="utf-8"), re.MULTILINE):
            found[name].append(f"{module}.{name}")
    return dict(found)


def full_path(name: str) -> str:
    """The full path of a class of this package, by its name alone or by a path that leads nowhere now.

    Any other text, such as the path of a class of torch, is returned as it is.
    """
    if not _NAME.fullmatch(name):
        return name
    package, _, rest = name.partition(".")
    paths = index().get(name.rpartition(".")[2], [])
    if f"{PACKAGE}.{rest}" in paths and (package == PACKAGE or not _is_there(package)):
        found = f"{PACKAGE}.{rest}"
    elif len(paths) == 1 and (not rest or package == PACKAGE or not _is_there(package)):
        found = paths[0]
    else:
        return name
    if rest and package != PACKAGE:
        _note(package)
    return found


def here(value: Any) -> Any:
    """Plain data in which each `class_path` is the `full_path`, and other dotted values of mappings are, too."""
    if isinstance(value, Mapping):
        return {
            key: full_path(item)
            if isinstance(item, str) and ("." in item or key in ("class_path", "_class_path"))
            else here(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        items = [here(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def config_here(file: str | Path) -> str:
    """What `--config` is given for a config file: its path, or its text if class paths had to be changed."""
    try:
        config = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return str(file)  # the parser says what is wrong with it
    changed = here(config)
    return str(file) if changed == config else yaml.safe_dump(changed, sort_keys=False, allow_unicode=True)


def _is_there(package: str) -> bool:
    return package in sys.modules or find_spec(package) is not None


@cache
def _note(package: str) -> None:
    print(f"note: {package} cannot be imported: its classes are taken from {PACKAGE}", file=sys.stderr)
