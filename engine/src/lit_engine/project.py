"""Describes a project that uses the library, with its package, its commands and the links from data to models."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from lit_engine.errors import UserError

GROUP = "lit_engine.projects"  # entry point group in which an installed package registers its Project


@dataclass(frozen=True)
class Project:
    """Properties of a project that the library depends on.

    Args:
        name: name of the package. The command has the same name, but with dashes.
        links: maps an attribute of the data module to an argument of the task, or of an object inside the task
            (`net.init_args.NAME`). A link is ignored if the attribute or the argument does not exist. If the model is
            not a `Task`, links only apply to required arguments that are not set.
        commands: maps the name of an additional command to a `module:function` in the package. The function receives
            the rest of the command line and returns the exit status.
        after_command: a `module:function` that `fit`, `validate` and `test` call with the path of the run. By default,
            this function writes the run's page. None disables the call.
    """

    name: str
    links: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    after_command: str | None = "lit_engine.tools.pages.run_page:write"

    @property
    def program(self) -> str:
        """The name of the command and of the distribution."""
        return self.name.replace("_", "-")

    @property
    def folder(self) -> Path:
        """The folder of the package."""
        return find_package_folder(self.name)

    def configs(self) -> dict[str, Path]:
        """Map the names of all shipped configs, such as `quickstart` or `overlays/debug`, to their files.

        In a checkout, the files are in `configs/`, next to the package or to `src/`. In a wheel, the package contains
        the files. Paths are relative if the files are below the current folder.
        """
        roots = [folder / "configs" for folder in (self.folder, *self.folder.parents[:2])]
        root = next(filter(Path.is_dir, roots), roots[0])
        files = sorted(root.glob("[!.]*.yaml")) + sorted(root.glob("[!.]*/[!.]*.yaml"))
        names = {file.relative_to(root).with_suffix("").as_posix(): file for file in files}
        here = Path.cwd()
        return {name: file.relative_to(here) if file.is_relative_to(here) else file for name, file in names.items()}


_used: list[Project] = []


def use(project: Project) -> None:
    """Set the current project. The command line does this when it starts."""
    _used[:] = [project]


def current() -> Project:
    """Return the project passed to `use`, or the installed project if there is exactly one.

    Raises:
        UserError: no project is installed, or several projects are installed.
    """
    if not _used:
        found = {point.value: point for point in entry_points(group=GROUP)}
        if len(found) != 1:
            names = ", ".join(sorted(found)) or "none"
            raise UserError(f"cannot choose a project (installed: {names}): call lit_engine.use(project) first")
        use(next(iter(found.values())).load())
    return _used[0]


def find_package_folder(name: str) -> Path:
    """Return the folder of a package without importing the package.

    Raises:
        UserError: the package does not exist.
    """
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"{name} is not an importable package")
    return Path(next(iter(spec.submodule_search_locations)))


def program() -> str:
    """Return the name of the current project's command."""
    return current().program


def variable(name: str) -> str:
    """Return the name of an environment variable, prefixed with the name of the current project."""
    return f"{current().name.upper()}_{name}"


def is_debugging() -> bool:
    """Return whether errors are shown with a traceback."""
    return os.environ.get(variable("DEBUG"), "0") not in ("", "0")
