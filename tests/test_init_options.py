"""What scripts/init_project.py refuses, and what it does with folders, without git and without ruff."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from init_copies import ROOT, checkout, commit, git, run
from new_tasks import refused

sys.path.insert(0, str(ROOT / "scripts"))

from template.families import FAMILIES, chosen

OLD = "lit_project"


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return checkout(tmp_path_factory.mktemp("a folder") / "template")


@pytest.fixture(scope="module")
def init(template):
    return lambda *args, **environment: run(template / "scripts" / "init_project.py", *args, **environment)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my-project", "try my_project"),
        ("my project", "try my_project"),
        ("MyProject", "try myproject"),
        ("projét", "try projet"),
        ("проект", "lower-case letters a to z"),
        ("2nd", "beginning with a letter"),
        ("", "lower-case letters"),
        ("class", "keyword of Python"),
        ("json", "standard library"),
        ("torch", "installed package"),
        ("import_linter", "installed package"),  # a distribution, whose module has another name
        ("tiny", "of the project itself"),
        ("build", "of the project itself"),
        (OLD, "the template's own name"),
        (f"my_{OLD}", "the template's own name"),
        ("a__b", "underscores"),
    ],
)
def test_names_that_cannot_be(init, tmp_path, name, words):
    refused(init(name, "--dir", tmp_path / "new"), words)
    assert not any(tmp_path.iterdir())


def test_places_that_cannot_be(init, template, tmp_path):
    refused(init("kite_lab", "--dir", template / "inside"), "inside the template", "--dir")
    (tmp_path / "file").touch()
    refused(init("kite_lab", "--dir", tmp_path), "not empty", "--dir")
    refused(init("kite_lab", "--dir", tmp_path / "file"), "is a file", "--dir")
    refused(init("kite_lab", "--dir", tmp_path / "file" / "new"), "file")
    refused(init("kite_lab", "--dir", tmp_path / "new", "--in-place"), "leave out --dir")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refused(init("kite_lab", "--dir", tmp_path / "link"), "is a link", "--dir")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_families_that_others_need_cannot_be_dropped(init, tmp_path):
    place = ("--dir", tmp_path / "new")
    refused(init("kite_lab", *place, "--keep=speech"), "no such family", ", ".join(FAMILIES))
    refused(init("kite_lab", *place, "--keep="), "choose from")
    # family: translation
    refused(init("kite_lab", *place, "--keep=translation"), "translation depends on it", "classification,translation")
    assert chosen("regression, classification") == ("classification", "regression")  # family: regression
    assert chosen(None) == tuple(FAMILIES)


def test_a_template_with_changes_is_refused(tmp_path):
    template = checkout(tmp_path / "template")
    (template / "src" / "new.py").touch()
    refused(run(template / "scripts" / "init_project.py", "kite_lab"), "not committed", "src/new.py", "stash")


def test_an_empty_folder_that_is_there_is_filled_and_stays_the_same_folder(init, tmp_path):
    """It may be a mount, in a folder that one may not write to, or a link to a folder elsewhere."""
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir(mode=0o700)
    before = folder.stat()
    link.symlink_to(folder)
    done = init("kite_lab", "--dir", link)
    assert done.returncode == 0, done.stderr
    assert link.is_symlink()
    assert (folder.stat().st_ino, folder.stat().st_mode) == (before.st_ino, before.st_mode)
    assert (folder / "src" / "kite_lab" / "cli.py").exists()
    assert git(folder, "status", "--porcelain") == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link"]


def test_in_place(tmp_path):
    template = checkout(tmp_path / "template")
    (template / "data").mkdir()
    (template / "data" / "mine.csv").touch()
    script = template / "scripts" / "init_project.py"
    done = run(script, "kite_lab", "--in-place", "--keep-tool", "--keep-benchmarks")
    assert done.returncode == 0, done.stderr
    assert (template / "data" / "mine.csv").exists()
    assert (template / "benchmarks" / "speed.py").exists()  # family: benchmarks
    assert not (template / "src" / OLD).exists()
    assert (template / "src" / "kite_lab" / "cli.py").exists()
    assert git(template, "rev-list", "--count", "HEAD") == "1"
    refused(run(script, "other_lab", "--in-place"), "not committed")
    commit(template)
    refused(run(script, "kite_lab", "--in-place"), "the template's own name")
    assert run(script, "other_lab", "--in-place", "--dry-run").returncode == 0
    record = template / ".template.toml"
    record.write_text(record.read_text().replace("tool = true", "tool = false"))
    commit(template)
    refused(run(script, "other_lab", "--in-place"), "already", ".template.toml")


def test_without_git_there_is_a_project_and_no_history(init, tmp_path):
    done = init("kite_lab", "--dir", tmp_path / "new one", PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "git is not on PATH: the project has no history" in done.stdout
    assert "cannot be updated" in done.stdout
    assert not (tmp_path / "new one" / ".git").exists()
    assert (tmp_path / "new one" / "src" / "kite_lab" / "cli.py").exists()
    assert not (tmp_path / "new one" / "src" / OLD).exists()
    refused(init("kite_lab", "--in-place", PATH=str(tmp_path)), "needs git")


def test_without_ruff_the_commands_that_format_are_printed(template, tmp_path):
    """Neither beside the interpreter (-S: nothing is installed), nor in the template's .venv, nor on PATH."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(shutil.which("git"))
    new = tmp_path / "new"
    done = run("-S", template / "scripts" / "init_project.py", "zebra", "--dir", new, PATH=str(tmp_path / "bin"))
    assert done.returncode == 0, done.stderr
    first, *commands = re.findall(r"^  (.*)$", done.stdout, re.MULTILINE)
    assert first == "make setup"
    ruff = [sys.executable, "-m", "ruff"]
    assert subprocess.run([*ruff, "check", "--quiet", "--no-cache"], cwd=new, capture_output=True).returncode == 1
    for command in [*commands, ".venv/bin/ruff check .", ".venv/bin/ruff format --check ."]:
        name, *options = command.split()
        assert name == ".venv/bin/ruff"
        done = subprocess.run([*ruff, *options, "--no-cache"], cwd=new, capture_output=True, text=True)
        assert done.returncode == 0, command + done.stdout


@pytest.mark.parametrize("folder", ["template/.venv/bin", "on path"])
def test_ruff_of_the_template_or_on_path_formats_for_a_python_that_has_none(tmp_path, folder):
    template = checkout(tmp_path / "template")
    ruff = tmp_path / folder / "ruff"
    ruff.parent.mkdir(parents=True)
    ruff.write_text(f'#!/bin/sh\nexec {sys.executable} -m ruff "$@"\n')
    ruff.chmod(0o755)
    path = f"{tmp_path / 'on path'}:{os.environ['PATH']}"
    done = run("-S", template / "scripts" / "init_project.py", "zebra", "--dir", tmp_path / "new", PATH=path)
    assert done.returncode == 0, done.stderr
    assert "not formatted" not in done.stdout
    command = [ruff, "format", "--check", "--no-cache"]
    assert subprocess.run(command, cwd=tmp_path / "new", capture_output=True).returncode == 0
