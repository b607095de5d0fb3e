"""scripts/init_project.py: a project under another name, with the examples that were chosen, and without a trace."""

import re
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest

from init_copies import ROOT, checkout, commit, git, install, python, run
from new_tasks import refused

sys.path.insert(0, str(ROOT / "scripts"))

from template.families import FAMILIES
from template.names import find_traces

OLD = "lit_project"
ALL = ",".join(FAMILIES)
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
    """Families and other options → a project with them, made once; with `--in-place` in a checkout of its own."""
    projects: dict[tuple[str, ...], Path] = {}

    def make(keep: str, *options: str) -> Path:
        if (keep, *options) not in projects:
            place = projects[keep, *options] = tmp_path_factory.mktemp("made") / "kites"
            if "--in-place" in options:
                done = run(checkout(place) / "scripts" / "init_project.py", "kite_lab", "--keep", keep, *options)
            else:
                done = init("kite_lab", "--dir", place, "--keep", keep, *options)
            assert done.returncode == 0, done.stderr
            if "--in-place" in options:
                commit(place)
        return projects[keep, *options]

    return make


def test_dry_run_says_what_would_happen_and_changes_nothing(init, template, tmp_path):
    done = init("kite_lab", "--dir", tmp_path / "new", "--keep=classification", "--dry-run")
    assert done.returncode == 0
    for line in (
        "drop configs/tatoeba_fra_eng.yaml (translation)",  # family: translation
        "drop benchmarks/speed.py (benchmarks)",  # family: benchmarks
        "drop scripts/init_project.py (this tool)",
        f"move src/{OLD}/cli.py to src/kite_lab/cli.py",
    ):
        assert line in done.stdout
    assert re.search(r"rename in src/kite_lab/cli\.py: \d+", done.stdout)
    assert not (tmp_path / "new").exists()
    assert init("kite_lab", "--in-place", "--dry-run").returncode == 0
    assert git(template, "status", "--porcelain") == ""


@pytest.mark.parametrize("keep", ["classification", ALL])
def test_no_trace_of_the_old_name_is_left(made, keep):
    project = made(keep)
    for path in project.rglob("*"):
        assert not re.search(OLD.replace("_", ".?"), path.relative_to(project).as_posix(), re.IGNORECASE), path
        if path.is_file() and ".git" not in path.parts:
            assert not re.search(OLD.replace("_", "[^a-z]?").encode(), path.read_bytes(), re.IGNORECASE), path
    assert git(project, "status", "--porcelain") == ""
    assert git(project, "rev-list", "--count", "HEAD") == "1"
    assert not find_traces(git(project, "log").encode(), OLD)
    assert "family: " not in (project / "tests" / "conftest.py").read_text()
    settings = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert settings["scripts"] == {"kite-lab": "kite_lab.__main__:entry_point"}
    assert any("sacrebleu" in need for need in settings["dependencies"]) == ("translation" in keep)
    record = tomllib.loads((project / ".template.toml").read_text())
    assert record["keep"] == keep.split(",")


def test_address_and_password_of_the_template_stay_here(tmp_path):
    template = checkout(tmp_path / "template")
    git(template, "remote", "add", "origin", "https://x-access-token:ghp_SECRET@example.com/me/things.git")
    done = run(template / "scripts" / "init_project.py", "kite_lab", "--dir", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    record = (tmp_path / "new" / ".template.toml").read_text()
    assert set(tomllib.loads(record)) == {"commit", "name", "keep", "benchmarks", "tool"}
    assert "SECRET" not in record


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


@pytest.mark.parametrize("keep", ["classification", ALL])
def test_a_project_that_keeps_the_tool_is_a_template(made, init, tmp_path, keep):
    """A project made from it is the same, to the letter, as one made here."""
    template, here, there = made(keep, "--keep-tool"), tmp_path / "here", tmp_path / "there"
    script = template / "scripts" / "init_project.py"
    refused(run(script, "one", "--dir", there, "--keep-tool"), "two words", "one_lab")
    for init_project, place in ((init, here), (partial(run, script), there)):
        done = init_project("other_lab", "--dir", place, "--keep=classification")
        assert done.returncode == 0, done.stderr
    record = (there / ".template.toml").read_text()
    assert tomllib.loads(record)["commit"] == git(template, "rev-parse", "HEAD")
    git(here, "--work-tree", str(there), "add", "--all")
    assert git(here, "diff", "--cached", "--", ".", ":!.template.toml") == ""


def test_lines_that_were_too_long_in_a_template_are_short_again(init, tmp_path):
    template = tmp_path / "template"
    assert init("prediction_of_molecular_properties", "--dir", template, "--keep-tool").returncode == 0
    assert "  # noqa: E501" in (template / "tests" / "conftest.py").read_text()
    script = template / "scripts" / "init_project.py"
    done = run(script, "kite_lab", "--dir", tmp_path / "new", "--keep=classification")
    assert done.returncode == 0, done.stderr
    help_text = (tmp_path / "new" / "src" / "kite_lab" / "cli.py").read_text()
    assert "E501" not in help_text
    assert "translate" not in help_text  # family: translation


@pytest.mark.parametrize(
    "options",
    [
        ["classification"],
        [ALL],
        ["classification,translation"],  # family: translation
        ["classification", "--keep-tool"],
        [ALL, "--keep-tool"],
    ],
    ids=" ".join,
)
def test_readme_says_what_can_be_done(made, options):
    """Its commands of scripts are those of the project, and no paragraph announces what is not there."""
    project = made(*options)
    for page in [project / "README.md", *(project / "docs").glob("*.md")]:
        assert re.findall(r"^.*:\n\n+(?:#.*|\Z)", page.read_text(), re.MULTILINE) == [], page
    commands = re.findall(r"^python (scripts/.*)$", (project / "README.md").read_text(), re.MULTILINE)
    assert len(commands) == 1 + ("--keep-tool" in options)
    for command in commands:
        script, *words = command.split()
        done = run(project / script, *words, "--dry-run")
        assert done.returncode == 0, done.stderr


@pytest.mark.copy
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "options",
    [
        ["classification"],
        ["classification,translation", "--in-place"],  # family: translation
        [ALL, "--keep-tool", "--keep-benchmarks"],
    ],
    ids=" ".join,
)
def test_projects_are_complete(made, options):
    """All modules import, layers and types are right, all tests can be collected, and some of them run."""
    project = made(*options)
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
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("options", [["classification"], [ALL, "--keep-benchmarks"]], ids=" ".join)
def test_a_project_that_keeps_the_tool_passes_the_tests_of_it(made, options):
    keep, *others = options
    project = made(keep, "--keep-tool", *others)
    tests = [f"tests/test_{name}.py" for name in ("init_options", "init_parts", "init_project", "update_project")]
    if not (project / ".venv").exists():
        install(project)
    done = python(project, "-m", "pytest", "-q", "-m", "not copy and not slow", *tests, timeout=1100)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


@pytest.mark.copy
@pytest.mark.timeout(2400)
def test_make_test_and_make_demo_of_the_smallest_project(made):
    project = made("classification")
    if not (project / ".venv").exists():
        install(project)
    for target in ("demo", "test"):
        done = subprocess.run(["make", target], cwd=project, capture_output=True, text=True, timeout=2300)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
