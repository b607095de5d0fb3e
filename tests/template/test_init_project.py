"""Tests that scripts/init_project.py creates a project with a new name and only the selected examples."""

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import pytest
from copies import ALL, ROOT, SCRIPTS, checkout, git, refused, run

sys.path.insert(0, str(SCRIPTS))

from families import FAMILIES, dropped_keys, keep_sections
from init_project import check_name, choose_families, generate, remove_keys, rename

OLD = "lit_project"
KEPT = ["classification", "classification,translation", ALL]
KNOWN = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()


def texts(project):
    """Return the content of each text file that git tracks in a project, by path."""
    paths = git(project, "ls-files").splitlines()
    return {p: (project / p).read_text() for p in paths if not p.endswith((".whl", ".npz", ".png"))}


def anchors(page):
    """Return the heading anchors of a Markdown page."""
    headings = re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def in_style(folder):
    for command in (["format", "--check"], ["check"]):
        done = run("-m", "ruff", *command, "--no-cache", folder)
        assert done.returncode == 0, done.stdout


def wheel_of(project):
    """Return the content of the files in a project's wheel, by path."""
    with zipfile.ZipFile(next((project / "vendor").iterdir())) as wheel:
        assert wheel.testzip() is None
        return {name: wheel.read(name) for name in wheel.namelist()}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MyProject", "try my_project"),
        ("проект", "lower-case letters a to z"),
        ("a__b", "try a_b"),
        ("class", "Python keyword"),
        ("json", "standard library module"),
        ("torch", "installed package"),
        ("python", "name of a command"),
        ("lint_imports", "name of a command"),
        ("import_linter", "installed package"),  # a distribution whose module has a different name
        ("tiny", "used in the project"),
        (OLD, "used in the project"),
    ],
)
def test_invalid_project_names_are_rejected(name, words):
    with pytest.raises(SystemExit, match=words):
        check_name(name, KNOWN)
    check_name("kite_lab", KNOWN)


def test_unknown_families_are_rejected_and_classification_is_always_kept():
    with pytest.raises(SystemExit, match="unknown family; choose from classification"):
        choose_families("speech")
    for families in ("regression, classification", "regression"):
        assert choose_families(families) == ("classification", "regression")
    assert ",".join(choose_families(ALL)) == ",".join(FAMILIES) == ALL


def test_rename_replaces_only_whole_tokens():
    text = f"import {OLD}.data; lit-project fit; LIT_PROJECT_DEBUG=1; test_{OLD}_runs; sp{OLD} {OLD}s {OLD}2"
    new = f"import kite_lab.data; kite-lab fit; KITE_LAB_DEBUG=1; test_kite_lab_runs; sp{OLD} {OLD}s {OLD}2"
    assert rename(text, OLD, "kite_lab") == new


def test_remove_keys_removes_lines_or_items():
    text = 'a = {\n    "mean": "mean",\n    "mean_x": "m",\n}\nb = ["x", "mean"]\nc = {"one": "f:g"}\n'
    assert remove_keys(text, ["mean", "one"]) == 'a = {\n    "mean_x": "m",\n}\nb = ["x", "mean"]\nc = {}\n'
    assert remove_keys('f = ["src", "docs"]\n', ["docs"]) == 'f = ["src"]\n'
    with pytest.raises(ValueError, match="no line or item starts with other"):
        remove_keys(text, ["other"])


def test_page_sections_are_kept_only_with_their_families():
    page = """# Page

<!-- only: translation -->
A sentence.
<!-- end -->

- an image<!-- only: table, regression -->
- a row<!-- end -->

| name <!-- only: template -->|
| ours <!-- end -->|

Read it<!-- only: regression --> twice<!-- end -->.

<!-- only: template -->
The last one.
<!-- end -->
"""
    assert keep_sections(page, ("classification",)) == "# Page\n\n- an image\n\n| name |\n\nRead it.\n"
    both = keep_sections(page, ("classification", "regression", "translation"))
    assert both == "# Page\n\nA sentence.\n\n- an image\n- a row\n\n| name |\n\nRead it twice.\n"
    for wrong in ("<!-- only: speech -->x<!-- end -->", "<!-- only: table -->x", "x<!-- end -->"):
        with pytest.raises(ValueError, match=r"unknown families: speech|is unpaired"):
            keep_sections(wrong, ("table",))


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("docs/results.md", b"<!-- end -->", "docs/results.md: <!-- end --> is unpaired"),
        (".dockerignore", b"", ".dockerignore: no line or item starts with benchmarks/results"),
    ],
)
def test_missing_sections_or_keys_are_reported_with_their_file(path, text, words):
    sources = {known: (ROOT / known).read_bytes() for known in KNOWN if (ROOT / known).is_file()}
    with pytest.raises(SystemExit, match=f"error: {words}"):
        generate({**sources, path: text}, "kite_lab", ("classification",), "")


def test_key_shared_by_two_families_is_kept_if_either_family_is_selected():
    def gone(*keep):
        return dropped_keys(keep)["PACKAGE/__main__.py"]

    assert {"translate", "input_size", "vocabularies"} <= gone("classification")
    assert "input_size" not in gone("classification", "sequence") | gone("classification", "regression")


def test_every_package_file_has_a_family_and_every_pattern_matches_files():
    patterns = [p for family in FAMILIES.values() for p in family.files.replace("PACKAGE", f"src/{OLD}").split()]
    assert [path for path in KNOWN if path.startswith("src/") and not any(fnmatchcase(path, p) for p in patterns)] == []
    assert [pattern for pattern in patterns if not any(fnmatchcase(path, pattern) for path in KNOWN)] == []


def test_invalid_target_folders_are_rejected(init, template, tmp_path):
    refused(init("kite_lab", "--dir", template / "inside"), "inside the template", "--dir")
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file"):
        refused(init("kite_lab", "--dir", place), "not an empty folder", "--dir")
    refused(init("kite_lab", "--dir", tmp_path / "file" / "new"), "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_dry_run_lists_files_without_creating_them(init, template, tmp_path):
    done = init("kite_lab", "--dir", tmp_path / "new", "--keep=classification", "--dry-run")
    assert done.returncode == 0
    assert "\n  src/kite_lab/tasks/classification.py\n" in done.stdout
    assert "translation" not in done.stdout
    assert not (tmp_path / "new").exists()
    assert git(template, "status", "--porcelain") == ""


@pytest.mark.parametrize("keep", KEPT)
def test_project_is_renamed_committed_and_passes_ruff(made, template, keep):
    project = made(keep)
    for path, text in texts(project).items():
        assert not re.search(OLD.replace("_", "[^a-z]?"), path + text, re.IGNORECASE), path
    assert git(project, "status", "--porcelain") == ""
    assert git(project, "rev-list", "--count", "HEAD") == "1"
    settings = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert settings["scripts"] == {"kite-lab": "kite_lab.__main__:entry_point"}
    assert any("sacrebleu" in need for need in settings["dependencies"]) == ("translation" in keep)
    record = tomllib.loads((project / ".template.toml").read_text())
    commit = git(template, "rev-parse", "HEAD")
    tree = git(template, "rev-parse", "HEAD^{tree}")
    assert record == {"commit": commit, "tree": tree, "name": "kite_lab", "keep": keep.split(",")}
    in_style(project)


@pytest.mark.parametrize("keep", KEPT)
def test_project_mentions_nothing_that_it_does_not_include(made, keep):
    """Files and modules mentioned in the project exist, and nothing that exists only in the template is mentioned."""
    project = made(keep)
    files = texts(project)
    names = {str(parent) for path in files for parent in (PurePosixPath(path), *PurePosixPath(path).parents)}
    modules = {re.sub(r"^src/|^tests/(\w+/)*|/__init__|\.py$", "", name).replace("/", ".") for name in names}
    helpers = {PurePosixPath(path).stem for path in KNOWN if path.startswith("tests/") and path.endswith(".py")}
    tracked = git(project, "ls-files").splitlines()
    gone = {PurePosixPath(path) for path in KNOWN if rename(path, OLD, "kite_lab") not in tracked}
    stems = {path.stem for path in gone if path.parts[0] in ("configs", "src", "docs") and "_" in path.stem.strip("_")}
    code = "".join((ROOT / path).read_text() for path in gone if path.parts[0] == "src" and path.suffix == ".py")
    classes = {name for name in re.findall(r"^class (\w+)", code, re.MULTILINE) if re.search("[a-z][A-Z]", name)}
    lost = stems - {PurePosixPath(path).stem for path in files} | classes
    for path, text in files.items():
        if path == "requirements.lock":
            continue
        named = re.findall(r"(?<![\w./$}-])((?:configs|docs|tests|scripts|benchmarks|src|\.github)/[\w./-]*\w)", text)
        named = [name for name in named if name != "scripts/update_project.py"]  # only in the template
        if not path.startswith("scripts/"):  # new_task.py mentions files that it will write
            assert [name for name in named if name not in names and f"{name}.yaml" not in names] == [], path
        assert sorted(word for word in lost if re.search(rf"\b{word}\b", text)) == [], path
        if path.endswith(".py"):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ("kite_lab", *helpers):
                    assert node.module in modules, f"{path}: {node.module}"
    assert "engine/" not in "".join(files[path] for path in ("pyproject.toml", "Makefile", "Dockerfile"))
    contracts = tomllib.loads(files["pyproject.toml"])["tool"]["importlinter"]["contracts"]
    assert {module.partition(".")[0] for one in contracts for module in one["source_modules"]} == {"kite_lab"}
    assert ("diabetes" in files["src/kite_lab/data/files/README.md"]) == ("regression" in keep)
    pages = {PurePosixPath(path): text for path, text in files.items() if path.endswith(".md")}
    for page, text in pages.items():
        assert "<!--" not in text, page
        prose = re.sub(r"```.*?```", "CODE", text, flags=re.DOTALL)
        assert not re.search(r"\n\n\n|[^\n]\n#+ ", prose), page  # two blank lines, or none above a heading
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
            linked = PurePosixPath(os.path.normpath(page.parent / target)) if target else page
            assert (project / linked).is_file(), f"{page}: {target}"
            assert not anchor or anchor in anchors(pages[linked]), f"{page}: {target}#{anchor}"
        for family, words in {
            "translation": "sentence|vocabular|BLEU|kite-lab translate|`translate`",
            "table": "--table|a row of a table",
            "autograd": "autograd",
        }.items():
            assert family in keep or not re.search(words, text), f"{page}: {re.search(words, text)}"
    assert ("docs/translation.md" in files) == ("translation" in keep)
    assert ("translate" in files["src/kite_lab/__main__.py"]) == ("translation" in keep)
    rows = re.findall(r"^\| \[`(\w+)`\]\(configs/\1\.yaml\) \| [A-Z].+ \|$", files["README.md"], re.MULTILINE)
    assert rows == sorted(path.stem for path in (project / "configs").glob("*.yaml"))


def test_binary_files_are_copied_unchanged(made):
    place = "src/{}/data/files/digits.npz"
    assert (made("classification") / place.format("kite_lab")).read_bytes() == (ROOT / place.format(OLD)).read_bytes()


def test_vendored_wheel_matches_the_built_library(made, tmp_path):
    """Modules and requirements are the same as in the wheel created by the build backend."""
    build = "import sys, hatchling.build as b; b.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, tmp_path / "vendor"], cwd=ROOT / "engine", check=True)
    built, ours = wheel_of(tmp_path), wheel_of(made("classification"))
    assert {path: text for path, text in built.items() if "dist-info" not in path} == {
        path: text for path, text in ours.items() if "dist-info" not in path
    }
    headers = [
        Parser().parsestr(next(text for path, text in files.items() if path.endswith("METADATA")).decode())
        for files in (built, ours)
    ]
    for field in ("Name", "Version", "Requires-Python"):
        assert headers[0][field] == headers[1][field]
    for field in ("Requires-Dist", "Provides-Extra"):
        parts = [
            {re.sub(r"[ ,]", "", "".join(sorted(re.split(r"(?=[<>!=])|,", line)))) for line in header.get_all(field)}
            for header in headers
        ]
        assert parts[0] == parts[1]


def test_lock_contains_only_the_required_packages_and_the_wheel(made):
    """For example, a small project needs neither text encoders nor tools for the template's pages."""
    wheel = next((made("classification") / "vendor").iterdir())
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    locks = {keep: (made(keep) / "requirements.lock").read_text() for keep in KEPT}
    for lock in locks.values():  # `make lock` sorts packages by name
        before, pinned, after = lock.partition(f"\nvendor/{wheel.name} \\\n    --hash=sha256:{digest}\n    # via\n")
        assert pinned
        assert re.findall(r"^([\w.-]+)==", before, re.MULTILINE)[-1] < "lit-engine"
        assert re.findall(r"^([\w.-]+)==", after, re.MULTILINE)[0] > "lit-engine"
    names = {keep: set(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)) for keep, lock in locks.items()}
    for keep, lock in locks.items():
        dependents = set(re.findall(r"^    # (?:via +|  )([\w.-]+)", lock, re.MULTILINE))
        # otherwise, `make lock` would change the comments
        assert dependents - {"kite-lab", "lit-engine"} <= names[keep]
    template = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert names[ALL] < template
    assert {"torch", "lightning", "wandb", "optuna", "pytest", "ruff", "hatchling"} <= names["classification"]
    assert not {"transformers", "playwright", "zensical", "timm", "sacrebleu", "nbclient"} & names["classification"]
    assert "sacrebleu" in names["classification,translation"]
    assert "transformers" in names[ALL]


def test_copy_of_the_template_is_turned_into_a_project_in_place(tmp_path):
    template = checkout(tmp_path / "template")
    commit = git(template, "rev-parse", "HEAD")
    (template / "data").mkdir()
    (template / "data" / "mine.txt").write_text("kept")
    script = template / "scripts" / "init_project.py"
    refused(run(script, "kite_lab", "--here", "--dir", tmp_path / "new"), "--here")
    done = run(script, "kite_lab", "--here", "--keep=classification")
    assert done.returncode == 0, done.stderr
    assert "nothing is committed" in done.stdout
    assert {path.name for path in (template / "src").iterdir()} == {"kite_lab"}
    assert not (template / "engine").exists()
    assert (template / "data" / "mine.txt").read_text() == "kept"
    assert git(template, "diff", "--name-only") == ""
    other = tmp_path / "other"
    checkout(other)
    assert run(other / "scripts" / "init_project.py", "kite_lab", "--dir", tmp_path / "new").returncode == 0
    assert tomllib.loads((template / ".template.toml").read_text())["commit"] == commit
    git(template, "reset", "--quiet", "--hard")
    assert script.exists()


def test_smallest_project_has_few_files_and_lines(made):
    yours = texts(made("classification"))
    assert len(yours) <= 90
    assert sum(len(text.splitlines()) for path, text in yours.items() if path != "requirements.lock") <= 5000
    assert not any(
        path.startswith(("benchmarks", "notebooks", "tests/integration", "tests/template", ".ci")) for path in yours
    )


def test_rejects_uncommitted_changes_and_accepts_an_unpacked_archive(tmp_path):
    template = checkout(tmp_path / "template")
    for number in range(5):
        (template / "src" / f"new{number}.py").touch()
    refused(
        run(template / "scripts" / "init_project.py", "kite_lab"),
        "uncommitted changes (src/new0.py, src/new1.py, src/new2.py and 2 more)",
        "stash",
    )
    shutil.rmtree(template / ".git")
    (template / "src" / "__pycache__").mkdir()
    (template / "src" / "__pycache__" / "x.pyc").touch()
    (tmp_path / "ignored").write_text("__main__.py")
    (tmp_path / "gitconfig").write_text(f"[core]\n    excludesFile = {tmp_path}/ignored\n")  # the user's own patterns
    command = template / "scripts" / "init_project.py", "kite_lab", "--no-git", "--dir", tmp_path / "new one"
    done = run(*command, GIT_CONFIG_GLOBAL=str(tmp_path / "gitconfig"))
    assert done.returncode == 0, done.stderr
    assert "cannot be updated" in done.stdout
    assert (tmp_path / "new one" / "src" / "kite_lab" / "__main__.py").exists()
    assert not list((tmp_path / "new one").rglob("*.pyc"))
    assert not (tmp_path / "new one" / ".git").exists()


def test_formatting_commands_are_printed_if_ruff_is_not_installed(template, tmp_path):
    (tmp_path / "bin").mkdir()
    for program in (Path(shutil.which("git")), Path(sys.executable).resolve()):
        (tmp_path / "bin" / program.name).symlink_to(program)
    script = template / "scripts" / "init_project.py"
    command = [tmp_path / "bin" / program.name, "-S", script, "zebra", "--dir", tmp_path / "new"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    assert "has not been formatted" in done.stdout
    assert ".venv/bin/ruff format ." in done.stdout
