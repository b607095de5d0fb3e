"""What a project tells its engine, and what the engine derives from the name of the package that it is in."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module

PACKAGE = __name__.partition(".")[0]
PROGRAM = PACKAGE.replace("_", "-")


def variable(name: str) -> str:
    """Name of an environment variable of this project."""
    return f"{PACKAGE.upper()}_{name}"


def debugging() -> bool:
    """Whether errors are to be shown with their traceback."""
    return os.environ.get(variable("DEBUG"), "0") not in ("", "0")


@dataclass(frozen=True)
class Project:
    """The parts of a project that its engine does not know by itself.

    Args:
        links: attribute of the data module → argument of the task, or of what is in it (`net.init_args.NAME`). A link
            counts if both exist.
        functions: function that a config may name in the place of a class → name of the class that calls it.
        commands: command without a config → `module:function` in the package; the function is given the rest of the
            command line and returns the exit status.
    """

    links: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)


def this_project() -> Project:
    """What `__main__.py` of the package says."""
    return import_module(f"{PACKAGE}.__main__").PROJECT
