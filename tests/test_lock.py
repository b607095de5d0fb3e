"""Tests that requirements.lock contains everything that pyproject.toml requires."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DEV = PYPROJECT["dependency-groups"]["dev"]
LIBRARY = tomllib.loads((ROOT / "engine" / "pyproject.toml").read_text())["project"]


def test_malicious_releases_are_excluded():
    for project in (PROJECT, LIBRARY):
        lightning = next(need for need in map(Requirement, project["dependencies"]) if need.name == "lightning")
        assert not lightning.specifier.contains("2.6.2")
        assert not lightning.specifier.contains("2.6.3")


def test_the_library_has_upper_bounds_for_packages_whose_private_apis_it_uses():
    needs = {need.name: need.specifier for need in map(Requirement, LIBRARY["dependencies"])}
    for name in ("torch", "lightning", "torchmetrics", "jsonargparse"):
        assert not needs[name].contains("99"), name


def test_lock_satisfies_all_dependencies_and_extras():
    needed = [
        need
        for project in (PROJECT, LIBRARY)
        for needs in (project["dependencies"], *project["optional-dependencies"].values(), DEV)
        for need in needs
    ]
    locked = re.findall(r"^([a-z0-9][\w.-]*)==([^\s;\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    for need in map(Requirement, needed):
        if need.name not in (PROJECT["name"], LIBRARY["name"]):
            versions = [version for name, version in locked if name == need.name.lower().replace("_", "-")]
            assert versions, need
            assert all(map(need.specifier.contains, versions)), need


def test_the_development_group_contains_all_extras():
    extras = {extra for need in DEV for extra in Requirement(need).extras}
    names = {Requirement(need).name for need in DEV}
    for name, needs in PROJECT["optional-dependencies"].items():
        assert name in extras or {Requirement(need).name for need in needs} <= names


def test_workflow_resolves_every_torch_backend_mentioned_in_files():
    (line,) = re.findall(r"backend: \[(.*)\]", (ROOT / ".github/workflows/ci.yml").read_text())
    files = [ROOT / "Dockerfile", ROOT / "Makefile", *(ROOT / "docs").glob("*.md")]
    named = {name for file in files for name in re.findall(r"\bcu\d{3}\b", file.read_text())}
    assert named
    assert named <= set(line.split(", "))


def test_later_installations_use_the_same_torch_backend(tmp_path):
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed").write_text("cu130\n")
    os.utime(tmp_path / ".venv" / ".installed", (0, 0))  # an edit of pyproject.toml makes it outdated
    for words, expected in ([], "cu130"), (["TORCH_BACKEND=cpu"], "cpu"):
        done = subprocess.run(["make", "-n", "-C", tmp_path, "setup", *words], capture_output=True, text=True)
        assert f"--torch-backend={expected} " in done.stdout
        assert f'echo "{expected}" > .venv/.installed' in done.stdout


def test_constraints_for_other_torch_backends_exclude_only_cuda_libraries(tmp_path):
    for name in ("Makefile", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    subprocess.run(["make", "-C", tmp_path, ".venv/constraints.txt"], check=True)
    lock, constraints = (
        set(re.findall(r"^([a-z0-9][\w.-]*)==", (tmp_path / name).read_text(), re.MULTILINE))
        for name in ("requirements.lock", ".venv/constraints.txt")
    )
    assert {name for name in lock if name.startswith(("cuda-", "nvidia-"))} == lock - constraints != set()
    assert constraints < lock
