"""Restores the code and the environment of a run."""

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from lit_engine.errors import RunError, UserError
from lit_engine.project import current, find_package_folder, program
from lit_engine.run.directory import RunDir

# Matches a package with its version and marker in requirements.lock. torch pins the excluded packages.
PIN = re.compile(r"^(?!nvidia-|cuda-|triton)([\w.-]+)==[^\\\n]*", re.MULTILINE)


class Code(NamedTuple):
    """A run's source code, checked out in a temporary worktree."""

    project: Path  # the folder with pyproject.toml
    python_path: list[str]  # folders to import from
    left_out: list[str]  # new Python files that code.patch does not contain


def irreproducible(run: RunDir, why: str) -> RunError:
    """Return the error for a run that cannot be reproduced."""
    return RunError(f"{run.path} cannot be reproduced: {why}")


@contextmanager
def checkout(run: RunDir, git: Mapping[str, Any], folder: Path) -> Iterator[Code]:
    """Create a Git worktree with the run's code in an empty folder, and remove the worktree at the end.

    Raises:
        RunError: no repository contains the commit, or code.patch is missing or does not apply.
    """
    package, tree, patch = current().folder.resolve(), folder / "code", run.path / "code.patch"
    changes = patch.read_text(errors="replace").splitlines() if git.get("dirty") and patch.exists() else []
    if git.get("dirty") and (not changes or changes[0].startswith("The changes are not ")):
        raise irreproducible(run, "the code had uncommitted changes, which were not recorded")
    root = Path(_git(run, package, "rev-parse", "--show-toplevel"))
    _git(run, root, "worktree", "add", "--detach", str(tree), git["commit"])
    try:
        if any(line.startswith("diff --git ") for line in changes):
            _git(run, tree, "apply", str(patch.absolute()))
        inside = tree / package.relative_to(root)  # missing if the package is installed as a wheel
        inside = inside if inside.is_dir() else tree / "src" / package.name
        if not inside.is_dir():
            raise irreproducible(run, f"the commit has no package {package.name}")
        project = next(path for path in inside.parents if (path / "pyproject.toml").exists() or path == tree)
        path, library = [inside.parent], find_package_folder("lit_engine").resolve().parent
        if library.is_relative_to(root) and (tree / library.relative_to(root)).is_dir():
            path.append(tree / library.relative_to(root))
        elif wheels := sorted(project.glob("vendor/lit_engine-*.whl")):
            path.append(folder / "library")
            with zipfile.ZipFile(wheels[-1]) as wheel:
                wheel.extractall(path[-1])
        here = Path.cwd()
        if here.is_relative_to(root) and (tree / here.relative_to(root)).is_dir():  # for modules next to the configs
            path.append(tree / here.relative_to(root))
        new = [name for line in changes if (name := line.removeprefix("New file, not in this patch: ")) != line]
        left_out = [name for name in new if name.endswith(".py")]  # other files cannot be imported
        yield Code(project, [str(place) for place in path], left_out)
    finally:
        _git(run, root, "worktree", "remove", "--force", str(tree))


def create_environment(run: RunDir, recorded: Mapping[str, str | None], project: Path, folder: Path) -> Path:
    """Create a virtual environment with uv, and return its interpreter.

    The environment contains the project and the recorded package versions. All other packages have the versions in
    the project's requirements.lock.

    Raises:
        UserError: uv is not installed or fails, for example because there is no network.
    """
    beside = Path(sys.executable).with_name("uv")
    uv = shutil.which("uv") or (str(beside) if beside.exists() else None)
    if uv is None:
        raise UserError("uv is needed to install the recorded versions: `pip install uv`, or use --here")
    versions = {name: version for name, version in recorded.items() if version and name not in ("python", program())}
    lock, requirements = project / "requirements.lock", folder / "requirements.txt"
    pins = {match[1]: match[0].strip() for match in PIN.finditer(lock.read_text() if lock.exists() else "")}
    pins |= {name: f"{name}=={version}" for name, version in versions.items()}
    requirements.write_text("\n".join(pins.values()))
    python, local = folder / "environment" / "bin" / "python", str(versions.get("torch")).partition("+")[2]
    print(f"installing {', '.join(f'{name} {version}' for name, version in versions.items())}", flush=True)
    for words in (
        ["venv", "--python", str(recorded["python"]), str(python.parents[1])],
        ["pip", "install", "--python", str(python), *(["--torch-backend", local] if local else []),
         "--requirements", str(requirements), "--editable", str(project)],
    ):  # fmt: skip
        # With `--project /`, uv ignores the settings of this folder, such as `exclude-newer`.
        done = subprocess.run([uv, "--quiet", "--project", "/", *words], capture_output=True, text=True)
        if done.returncode:
            why = shorten(" ".join(re.sub(r"[×╰─▶│├]", " ", done.stderr).split()), 300)
            raise irreproducible(run, f"uv {words[0]} failed: {why}; --here uses the current environment")
    return python


def _git(run: RunDir, folder: Path, *args: str) -> str:
    """Return the output of a git command without trailing line breaks."""
    try:
        command = ["git", "-C", str(folder), "-c", "core.hooksPath=/dev/null", *args]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        raise irreproducible(run, f"git {args[0]} failed in {folder}: {said.removeprefix('fatal: ')}") from error
    return done.stdout.rstrip("\n")
