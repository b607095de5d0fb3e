"""Tests that the workflows, make targets, container image and documentation pages are consistent."""

import fnmatch
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import lit_engine

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text() + (ROOT / "template.mk").read_text()
TARGETS = {name for line in re.findall(r"^\.PHONY: (.*)", MAKEFILE, re.MULTILINE) for name in line.split()}
WORKFLOWS = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
JOBS = {name: job for workflow in WORKFLOWS for name, job in workflow["jobs"].items()}
DOCKERFILE = re.sub(r"\\\n", "", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE))
PAGES = sorted((ROOT / "docs").glob("*.md"))


def made(commands: str) -> list[str]:
    """Return the targets of all `make TARGET…` commands in a text."""
    return re.findall(r"(?:^|[\n;&(\"]|&& )\s*make ([a-z-]+)", commands)


# ---------------------------------------------------------------------------------------------- workflow and hooks


def test_every_make_target_is_phony_and_passes_a_dry_run():
    rules = {rule for line in re.findall(r"^([a-z -]+):", MAKEFILE, re.MULTILINE) for rule in line.split()}
    assert rules == TARGETS >= set(made((ROOT / "README.md").read_text()))
    for target in TARGETS - {"clean"}:
        done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


def test_workflow_calls_only_existing_make_targets_and_runs_what_ci_runs():
    steps = [step for job in JOBS.values() for step in job["steps"]]
    called = {target for step in steps for target in made(step.get("run", ""))}
    local = set(made((ROOT / ".ci" / "run").read_text()))
    assert {"test", "lint", "demo", "docs"} <= local <= TARGETS
    assert local - {"test"} | {"test-all"} <= called <= TARGETS
    for step in steps:
        assert ("run" in step) != ("uses" in step)
        # A commit cannot be changed later, unlike a tag. Dependabot updates the commits.
        assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])


def test_workflow_tests_every_supported_python_version():
    versions = JOBS["test"]["strategy"]["matrix"]["python"]
    assert versions == ["3.11", "3.12", "3.13"]
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in WORKFLOWS)
    assert all(job["timeout-minutes"] <= 60 for job in JOBS.values())


# ------------------------------------------------------------------------------------------------------------- image


def copied(text: str) -> list[str]:
    """Return the sources of the COPY instructions."""
    lines = re.findall(r"^COPY (.*)$", text, re.MULTILINE)
    return [word for line in lines for word in line.split()[:-1] if not word.startswith("--")]


def test_dockerfile_installs_with_make_and_copies_only_files_that_exist():
    commands = re.findall(r"^RUN (.*)", DOCKERFILE, re.MULTILINE)
    assert [target for command in commands for target in made(command)] == ["setup"]
    assert not any("pip install" in command for command in commands)
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    for source in copied(DOCKERFILE):
        assert (ROOT / source).exists(), source
        assert not any(fnmatch.fnmatch(source, pattern) for pattern in ignored if source != "."), source
    assert {".git", ".venv", "data", "runs"} <= set(ignored)


def test_devcontainer_is_set_up_by_the_makefile():
    content = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert made(content["postCreateCommand"]) == ["clean", "setup"]  # the host's .venv must not be used


# ------------------------------------------------------------------------------------------------------------- pages


def test_docs_build_without_warnings_and_load_no_remote_assets(tmp_path):
    """Build the pages as `make docs` does."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    recipe = re.search(r"^docs:.*\n((?:[\t#].*\n)+)", MAKEFILE, re.MULTILINE)[1]
    for command in re.findall(
        r"^\t(.*)", recipe.replace("$(BIN)/zensical", f"{sys.executable} -m zensical"), re.MULTILINE
    ):
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    for page in PAGES:
        html = (tmp_path / "site" / page.with_suffix(".html").name).read_text()
        assert not re.findall(r"<(?:script|img)[^>]*src=\"?https?:|<link[^>]*stylesheet[^>]*https?:", html), page
    names = re.findall(r"^::: (\S+)", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)
    reference = (tmp_path / "site" / "reference.html").read_text()
    assert {name for name in names if f'id="{name}"' not in reference} == set()
    public = (ROOT / "docs" / "reference.md").read_text().partition("## Figures")[0]  # can be imported from lit_engine
    assert sorted(lit_engine.__all__) == sorted(re.findall(r"^::: \S+\.(\w+)$", public, re.MULTILINE))
    assert all(hasattr(lit_engine, name) for name in lit_engine.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_family_markers_are_not_visible_in_pages(page):
    """Markers would be visible in code, and would break a paragraph if text followed them on the same line."""
    text = page.read_text()
    for code in re.findall(r"^```.*?^```|`[^`\n]*`", text, re.DOTALL | re.MULTILINE):
        if page.name != "make-it-yours.md":  # this page explains the markers
            assert "<!--" not in code, code
    assert not re.findall(r"^<!-- (?:only: [\w, ]+|end) -->.+", text, re.MULTILINE)


def test_every_page_is_in_the_menu():
    text = (ROOT / "mkdocs.yml").read_text()
    menu = {name for entry in yaml.safe_load(text)["nav"] for name in entry.values()}
    assert menu <= {page.name for page in PAGES}
    assert {page.name for page in PAGES} <= menu | set(re.findall(r"# - .*: (\S+\.md)", text))


# Files written by a run, a sweep or a tool, and names that stand for the user's own files.
OF_A_RUN = (
    r"RUN|config\.|mine|checkpoints/$|predictions/$|figures/|wandb/$|runs/|data/images|htmlcov|site/|best\.yaml|logs/|"
    r"values/|vendor/|reproductions/"
)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_files_mentioned_in_a_page_exist(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for name in re.findall(r"`([\w./-]+\.(?:py|yaml|yml|toml)|[\w/]+/)`", text):
        if not re.search(OF_A_RUN, name):
            places = (ROOT, ROOT / "src" / "lit_project", ROOT / "configs" / "overlays")
            assert any((place / name).exists() for place in places), name


def test_library_readme_describes_every_folder_and_file():
    library = ROOT / "engine" / "src" / "lit_engine"
    page = (ROOT / "engine" / "README.md").read_text()
    entries = {path.name if path.suffix == ".py" else f"{path.name}/" for path in library.glob("[!_p]*")}
    assert {name for name in entries if f"`{name}`" not in page} == set()


def test_library_and_its_tests_do_not_mention_the_project_name():
    for file in (ROOT / "engine").rglob("*.py"):
        assert not re.search("lit.project", file.read_text(), re.IGNORECASE), file
