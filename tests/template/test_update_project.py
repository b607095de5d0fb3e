"""Tests that scripts/update_project.py merges template fixes into a project that has its own changes."""

import re
import shutil
import tomllib
import zipfile

import pytest
from copies import checkout, commit, git, refused, run

MODEL = "src/kite_lab/models/cnn.py"


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """Create a template and a project generated from it."""
    folder = tmp_path_factory.mktemp("before")
    template = checkout(folder / "template")
    (template / "configs" / "overlays" / "größer.yaml").write_text("# lit-project fit\ntrainer: {max_epochs: 1}\n")
    commit(template)
    done = run(template / "scripts" / "init_project.py", "kite_lab", "--dir", folder / "kites", "--keep=classification")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def both(before, tmp_path):
    shutil.copytree(before, tmp_path / "both")
    return tmp_path / "both" / "template", tmp_path / "both" / "kites"


def update(template, project, *options):
    return run(template / "scripts" / "update_project.py", project, *options)


def edit(file, add):
    file.write_text(file.read_text() + add)


def test_template_fixes_are_merged_with_project_changes(both):
    """Covers files deleted on one or both sides, files added on both sides, and umlauts in file names."""
    template, project = both
    src = template / "src" / "lit_project"
    # Changes in the template.
    library = template / "engine" / "src" / "lit_engine"
    edit(library / "errors.py", "\nNEW = 1\n")
    init = library / "__init__.py"
    init.write_text(init.read_text().replace('__version__ = "', '__version__ = "1'))
    cnn = src / "models" / "cnn.py"
    cnn.write_text(cnn.read_text().replace('"""', '"""Put right in lit_project. ', 1))
    edit(src / "models" / "resnet.py", "\nNEW = 1\n")  # deleted in the project
    edit(template / "configs" / "overlays" / "größer.yaml", "# lit-project test\n")
    edit(src / "text" / "scores.py", "\nNEW = 1\n")  # from a family that the project does not include
    overlays = template / "configs" / "overlays"
    for gone in ("ema", "swa"):
        (overlays / f"{gone}.yaml").unlink()
    (overlays / "both.yaml").write_text("# lit-project fit\n")
    (overlays / "same.yaml").write_text("# lit-project fit\n")
    commit(template, "fixes")
    # Changes in the project.
    edit(project / MODEL, "\n\nOURS = 1\n")
    (project / "src" / "kite_lab" / "tasks" / "kites.py").write_text('"""Ours."""\n')
    ours = project / "configs" / "overlays"
    for gone in (ours / "mixup.yaml", ours / "swa.yaml", project / "src" / "kite_lab" / "models" / "resnet.py"):
        gone.unlink()
    (ours / "both.yaml").write_text("# ours\n")
    (ours / "same.yaml").write_text("# kite-lab fit\n")
    commit(project, "ours")

    checked = update(template, project, "--check")
    assert checked.returncode == 1
    assert "changed in the template: configs/overlays/both.yaml, configs/overlays/ema.yaml, " in checked.stdout
    assert git(project, "status", "--porcelain") == ""

    done = update(template, project)
    assert done.returncode == 1
    assert done.stderr.startswith("error: both sides changed configs/overlays/both.yaml: resolve")
    both_added = (ours / "both.yaml").read_text()
    assert "<<<<<<< HEAD\n# ours\n" in both_added
    assert "# kite-lab fit\n" in both_added
    text = (project / MODEL).read_text()
    assert text.startswith('"""Put right in kite_lab. ')
    assert text.endswith("OURS = 1\n")
    (wheel,) = (project / "vendor").iterdir()
    assert wheel.name.startswith("lit_engine-10.")
    with zipfile.ZipFile(wheel) as content:
        assert content.read("lit_engine/errors.py").endswith(b"NEW = 1\n")
    for file in ("requirements.lock", "pyproject.toml"):
        assert wheel.name in (project / file).read_text()
    assert (ours / "größer.yaml").read_text().endswith("# kite-lab test\n")
    assert not any((ours / f"{gone}.yaml").exists() for gone in ("ema", "swa", "mixup"))
    assert "still deleted in the project: src/kite_lab/models/resnet.py" in done.stdout
    assert not (project / "src" / "kite_lab" / "models" / "resnet.py").exists()
    assert (project / "src" / "kite_lab" / "tasks" / "kites.py").exists()
    assert not (project / "src" / "kite_lab" / "text").exists()
    assert git(project, "diff", "--name-only", "--diff-filter=U") == "configs/overlays/both.yaml"
    recorded = tomllib.loads((project / ".template.toml").read_text())
    assert recorded["commit"] == git(template, "rev-parse", "HEAD")

    commit(project)
    for options in ([], ["--check"]):
        again = update(template, project, *options)
        assert again.returncode == 0
        assert "up to date" in again.stdout
    assert git(project, "status", "--porcelain") == ""


def test_an_older_template_is_refused(both):
    template, project = both
    git(template, "branch", "older")
    edit(template / MODEL.replace("kite_lab", "lit_project"), "\n\nNEW = 1\n")
    commit(template, "fixes")
    assert update(template, project).returncode == 0
    commit(project)
    git(template, "checkout", "--quiet", "older")
    for options in ([], ["--check"]):
        refused(update(template, project, *options), "is older than the project's", "run `git pull`")
    assert git(project, "status", "--porcelain") == ""


def test_deletion_in_the_template_conflicts_with_a_change_in_the_project(both):
    template, project = both
    (template / "configs" / "overlays" / "ema.yaml").unlink()
    commit(template, "fixes")
    edit(project / "configs" / "overlays" / "ema.yaml", "# ours\n")
    commit(project, "ours")
    done = update(template, project)
    assert done.returncode == 1
    assert done.stderr.startswith("error: both sides changed configs/overlays/ema.yaml:")
    assert (project / "configs" / "overlays" / "ema.yaml").read_text().endswith("# ours\n")


def test_template_commit_is_found_by_its_file_tree(both):
    """GitHub's "Use this template" creates a repository with different commits."""
    template, project = both
    edit(template / "engine" / "src" / "lit_engine" / "errors.py", "\nNEW = 1\n")
    commit(template, "fixes")
    record = project / ".template.toml"
    record.write_text(re.sub(r'commit = "\w+"', f'commit = "{40 * "1"}"', record.read_text()))
    commit(project)
    checked = update(template, project, "--check")
    assert checked.returncode == 1
    assert "changed in the template: requirements.lock, vendor/lit_engine" in checked.stdout


def test_failed_updates_are_reported_with_a_one_line_error(both, tmp_path):
    template, project = both
    refused(update(template, tmp_path), "No such file", ".template.toml")
    record = project / ".template.toml"
    text = record.read_text()
    record.write_text(text + "# mine\n")
    refused(update(template, project), "uncommitted changes", ".template.toml")
    for wrong, words in (
        (re.sub(r'(commit|tree) = "\w+"', rf'\1 = "{40 * "1"}"', text), ("no commit 111111111111", "git pull")),
        (text.replace(git(template, "rev-parse", "HEAD"), ""), ("has no 'commit'", "create a new project")),
        (re.sub(r'commit = ".*"', "", text), ("has no 'commit'", "create a new project")),
        (f"<<<<<<< HEAD\n{text}", ("Invalid statement",)),
    ):
        record.write_text(wrong)
        commit(project)
        refused(update(template, project), *words)
    (template / "new.txt").touch()
    refused(update(template, project), "uncommitted changes", "new.txt")
