"""Helpers for testing scripts/: a clean checkout of the template, and projects created from it."""

import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
ALL = (
    "classification,regression,lightning,multilabel,segmentation,table,sequence,"
    "translation,autograd,notebook,sharding,kubernetes"
)
WHO = {f"GIT_{role}_{what}": "a@b.c" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(folder: Path, *args: str) -> str:
    """Run git without this machine's settings."""
    environment = {**os.environ, **WHO, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(["git", "-C", folder, *args], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(folder: Path, message: str = "changed") -> None:
    """Commit everything."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)


def checkout(folder: Path) -> Path:
    """Create a repository whose only commit contains the files of this working tree."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, "template")
    return folder


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the template with this interpreter."""
    command = [sys.executable, *map(str, command)]
    settings = {**os.environ, **WHO, "GIT_CONFIG_GLOBAL": os.devnull, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=settings, timeout=240)


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Check that a command failed with a one-line error that contains these words."""
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


def install(project: Path) -> Path:
    """Create a project's `.venv` as `make` would, from this environment's packages. Return its `bin` folder.

    The library comes from the project's wheel. Neither the template nor its library can be imported there.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project / ".venv"], check=True)
    commands = project / ".venv" / "bin"
    site = next((project / ".venv" / "lib").glob("python*/site-packages"))
    here = [path for path in sys.path if path.endswith("site-packages")]
    (site / "environment.pth").write_text("\n".join(here) + "\n")
    for vendored in (project / "vendor").glob("*.whl"):
        with zipfile.ZipFile(vendored) as wheel:
            wheel.extractall(site)
    build = "import sys, hatchling.build as b; print(b.build_editable(sys.argv[1]))"
    made = subprocess.run([commands / "python", "-c", build, site], cwd=project, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    with zipfile.ZipFile(site / made.stdout.split()[-1]) as wheel:
        wheel.extractall(site)
    entry_points = next(site.glob("*.dist-info/entry_points.txt")).read_text().partition("[lit_engine")[0]
    scripts = {
        "pytest": "from pytest import main",
        "mypy": "from mypy.__main__ import console_entry as main",
        "lint-imports": "from importlinter.cli import lint_imports_command as main",
    }
    (commands / "ruff").symlink_to(Path(sys.executable).parent / "ruff")
    for name, module, function in re.findall(r"^([\w-]+) = ([\w.]+):(\w+)$", entry_points, re.MULTILINE):
        scripts[name] = f"from {module} import {function} as main"
    for name, line in scripts.items():
        file = commands / name
        file.write_text(f"#!{commands / 'python'}\nimport sys\n{line}\nsys.exit(main())\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    (project / ".venv" / ".installed").touch()
    return commands
