"""scripts/init_project.py: a project under another name, with the examples that were chosen, and without a trace."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from init_copies import ROOT, checkout, commit, git, install, python, run

sys.path.insert(0, str(ROOT / "scripts"))

from template.families import FAMILIES, chosen
from template.names import find_traces

OLD = "lit_project"
IMPORT_ALL = """
import importlib, pkgutil, kite_lab
names = [module.name for module in pkgutil.walk_packages(kite_lab.__path__, "kite_lab.")]
assert len(names) > 40
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return checkout(tmp_path_factory.mktemp("a folder") / "template")


@pytest.fixture(scope="module")
def init(template):
    return lambda *args, **environment: run(template / "scripts" / "init_project.py", *args, **environment)


@pytest.fixture(scope="module")
def made(init, tmp_path_factory):
    """Name of families → a project with them, made once."""
    projects: dict[str, Path] = {}

    def make(keep: str) -> Path:
        if keep not in projects:
            projects[keep] = tmp_path_factory.mktemp("made") / "kites"
            done = init("kite_lab", "--dir", projects[keep], "--keep", keep)
            assert done.returncode == 0, done.stderr
        return projects[keep]

    return make


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


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
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_families_that_others_need_cannot_be_dropped(init, tmp_path):
    place = ("--dir", tmp_path / "new")
    refused(init("kite_lab", *place, "--keep=translation"), "translation depends on it", "classification,translation")
    refused(init("kite_lab", *place, "--keep=speech"), "no such family", "classification, translation, regression")
    refused(init("kite_lab", *place, "--keep="), "choose from")
    assert chosen("regression, classification") == ("classification", "regression")
    assert chosen(None) == tuple(FAMILIES)


def test_a_template_with_changes_is_refused(tmp_path):
    template = checkout(tmp_path / "template")
    (template / "src" / "new.py").touch()
    refused(run(template / "scripts" / "init_project.py", "kite_lab"), "not committed", "src/new.py", "stash")


def test_dry_run_says_what_would_happen_and_changes_nothing(init, template, tmp_path):
    done = init("kite_lab", "--dir", tmp_path / "new", "--keep=classification", "--dry-run")
    assert done.returncode == 0
    for line in (
        "drop configs/tatoeba_fra_eng.yaml (translation)",
        "drop benchmarks/speed.py (benchmarks)",
        "drop scripts/init_project.py (this tool)",
        f"move src/{OLD}/cli.py to src/kite_lab/cli.py",
    ):
        assert line in done.stdout
    assert re.search(r"rename in src/kite_lab/cli\.py: \d+", done.stdout)
    assert not (tmp_path / "new").exists()
    assert init("kite_lab", "--in-place", "--dry-run").returncode == 0
    assert git(template, "status", "--porcelain") == ""


@pytest.mark.parametrize("keep", ["classification", "classification,translation,regression"])
def test_no_trace_of_the_old_name_is_left(made, keep):
    project = made(keep)
    for path in project.rglob("*"):
        assert not re.search(r"lit.?project", path.relative_to(project).as_posix(), re.IGNORECASE), path
        if path.is_file() and ".git" not in path.parts:
            assert not re.search(rb"lit[^a-z]?project", path.read_bytes(), re.IGNORECASE), path
    assert git(project, "status", "--porcelain") == ""
    assert git(project, "rev-list", "--count", "HEAD") == "1"
    assert not find_traces(git(project, "log").encode(), OLD)
    assert "family: " not in (project / "tests" / "conftest.py").read_text()
    settings = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert settings["scripts"] == {"kite-lab": "kite_lab.__main__:entry_point"}
    assert any("sacrebleu" in need for need in settings["dependencies"]) == ("translation" in keep)
    record = tomllib.loads((project / ".template.toml").read_text())
    assert record["keep"] == keep.split(",")


def test_what_is_left_by_name_is_an_error(tmp_path):
    template = checkout(tmp_path / "template")
    (template / "picture.bin").write_bytes(b"\0 LIT-Project \xff")
    commit(template)
    done = run(template / "scripts" / "init_project.py", "kite_lab", "--dir", tmp_path / "new")
    refused(done, "picture.bin", "by hand")


@pytest.mark.parametrize("name", ["aa", "zebra", "prediction_of_molecular_properties"])
def test_formatter_and_linter_have_nothing_to_say(init, tmp_path, name):
    assert init(name, "--dir", tmp_path / "new").returncode == 0
    for command in (["format", "--check"], ["check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
            cwd=tmp_path / "new",
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout
    assert max(len(path.read_text().splitlines()) for path in (tmp_path / "new" / "src").rglob("*.py")) <= 250


def test_without_git_there_is_a_project_and_no_history(init, tmp_path):
    done = init("kite_lab", "--dir", tmp_path / "new one", PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "git is not on PATH: the project has no history" in done.stdout
    assert "cannot be updated" in done.stdout
    assert not (tmp_path / "new one" / ".git").exists()
    assert (tmp_path / "new one" / "src" / "kite_lab" / "cli.py").exists()
    assert not (tmp_path / "new one" / "src" / OLD).exists()
    refused(init("kite_lab", "--in-place", PATH=str(tmp_path)), "needs git")


def test_in_place_once(tmp_path):
    template = checkout(tmp_path / "template")
    (template / "data").mkdir()
    (template / "data" / "mine.csv").touch()
    script = template / "scripts" / "init_project.py"
    done = run(script, "kite_lab", "--in-place", "--keep-tool", "--keep-benchmarks")
    assert done.returncode == 0, done.stderr
    assert (template / "data" / "mine.csv").exists()
    assert (template / "benchmarks" / "speed.py").exists()
    assert not (template / "src" / OLD).exists()
    assert (template / "src" / "kite_lab" / "cli.py").exists()
    assert git(template, "rev-list", "--count", "HEAD") == "1"
    commit(template)
    refused(run(script, "other_lab", "--in-place"), "already", ".template.toml")


@pytest.mark.copy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("keep", ["classification", "classification,translation", "classification,regression"])
def test_projects_of_one_family_are_complete(made, keep):
    """All modules import, layers and types are right, all tests can be collected, and some of them run."""
    project = made(keep)
    install(project)
    some = ["tests/test_project.py", "tests/test_run.py", "tests/data/test_digits.py", "tests/test_metrics_csv.py"]
    for command in (
        ["-c", IMPORT_ALL],
        ["-c", "from importlinter.cli import lint_imports_command as main; main()"],
        ["-m", "mypy"],
        ["-m", "pytest", "--collect-only", "-q"],
        ["-m", "pytest", "-q", *some],
    ):
        done = python(project, *command)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.copy
@pytest.mark.timeout(2400)
def test_make_test_and_make_demo_of_the_smallest_project(made):
    project = made("classification")
    if not (project / ".venv").exists():
        install(project)
    for target in ("demo", "test"):
        done = subprocess.run(["make", target], cwd=project, capture_output=True, text=True, timeout=2300)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
