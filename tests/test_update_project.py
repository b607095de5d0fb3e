"""scripts/update_project.py: what the template has put right since comes into a project that has changes of its own."""

import shutil
import tomllib

import pytest
import torch

from init_copies import checkout, commit, git, install, python, run

SEEDING = "src/kite_lab/seeding.py"


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A template, and a project made from it, with changes of its own."""
    folder = tmp_path_factory.mktemp("before")
    template = checkout(folder / "template")
    done = run(template / "scripts" / "init_project.py", "kite_lab", "--dir", folder / "kites", "--keep=classification")
    assert done.returncode == 0, done.stderr
    project = folder / "kites"
    (project / SEEDING).write_text((project / SEEDING).read_text() + "\n\nOURS = 1\n")
    (project / "src" / "kite_lab" / "tasks" / "kites.py").write_text('"""Ours."""\n')
    (project / "docs" / "images.md").unlink()
    commit(project, "ours")
    return folder


@pytest.fixture
def both(before, tmp_path):
    shutil.copytree(before, tmp_path / "both")
    return tmp_path / "both" / "template", tmp_path / "both" / "kites"


def update(template, project):
    return run(template / "scripts" / "update_project.py", project)


def move_on(template):
    """One commit: a fix of a shared file, a new file, an edit of a family that the project does not have."""
    fixed = template / "src" / "lit_project" / "seeding.py"
    fixed.write_text(fixed.read_text().replace('"""', '"""Put right in lit_project. ', 1))
    (template / "configs" / "overlays" / "fast.yaml").write_text("# lit-project fit\ntrainer: {max_epochs: 1}\n")
    # begin family: translation
    text = template / "src" / "lit_project" / "text" / "scores.py"
    text.write_text(text.read_text() + "\n\nNEW = 1\n")
    # end family: translation
    commit(template, "fixes")


def test_a_fix_of_the_template_comes_into_the_project_beside_its_own_changes(both):
    template, project = both
    move_on(template)
    done = update(template, project)
    assert done.returncode == 0, done.stderr
    seeding = (project / SEEDING).read_text()
    assert seeding.startswith('"""Put right in kite_lab. ')
    assert seeding.endswith("OURS = 1\n")
    assert (project / "configs" / "overlays" / "fast.yaml").read_text().startswith("# kite-lab fit\n")
    assert (project / "src" / "kite_lab" / "tasks" / "kites.py").exists()
    assert not (project / "docs" / "images.md").exists()
    assert not (project / "src" / "kite_lab" / "text").exists()
    changed = git(project, "diff", "--cached", "--name-only").splitlines()
    assert sorted(changed) == [".template.toml", "configs/overlays/fast.yaml", SEEDING]
    recorded = tomllib.loads((project / ".template.toml").read_text())
    assert recorded["commit"] == git(template, "rev-parse", "HEAD")
    commit(project)
    again = update(template, project)
    assert again.returncode == 0
    assert "nothing to do" in again.stdout
    assert git(project, "status", "--porcelain") == ""


def test_records_of_older_tools_are_read_and_renewed(both):
    """They had the address of the template in them, and the password that was in it."""
    template, project = both
    record = project / ".template.toml"
    record.write_text(record.read_text().replace("\nname", '\nurl = "https://me:SECRET@example.com"\nname'))
    commit(project)
    move_on(template)
    done = update(template, project)
    assert done.returncode == 0, done.stderr
    recorded = tomllib.loads(record.read_text())
    assert recorded["commit"] == git(template, "rev-parse", "HEAD")
    assert "url" not in recorded


def test_without_ruff_the_commands_that_format_are_printed(both, tmp_path):
    template, project = both
    move_on(template)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(shutil.which("git"))
    done = run("-S", template / "scripts" / "update_project.py", project, PATH=str(tmp_path / "bin"))
    assert done.returncode == 0, done.stderr
    assert "\n  make setup\n  .venv/bin/ruff check --fix-only --select I,F401 .\n" in done.stdout


def test_conflicts_are_marked_and_named(both):
    template, project = both
    move_on(template)
    (project / SEEDING).write_text('"""Our own words."""\n')
    commit(project)
    done = update(template, project)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: both sides changed {SEEDING}: edit")
    text = (project / SEEDING).read_text()
    assert "<<<<<<< HEAD" in text
    assert "Our own words" in text
    assert "Put right in kite_lab" in text
    assert (project / "configs" / "overlays" / "fast.yaml").exists()


def test_what_cannot_be_updated_is_said_in_one_line(both, tmp_path):
    template, project = both

    def refused(folder, *words):
        done = update(template, folder)
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        assert all(word in done.stderr for word in words), done.stderr

    refused(tmp_path, "no .template.toml")
    record = project / ".template.toml"
    text = record.read_text()
    record.write_text(text + "# mine\n")
    refused(project, "not committed", ".template.toml")
    record.write_text(text.replace(git(template, "rev-parse", "HEAD"), 40 * "1"))
    commit(project)
    refused(project, "no commit 111111111111", "git fetch")
    record.write_text("commit = ")
    commit(project)
    refused(project, "cannot be read")
    record.write_text('name = "kite_lab"\n')
    commit(project)
    refused(project, "no commit")
    (template / "new.txt").touch()
    refused(project, "not committed", "new.txt")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_runs_of_the_template_go_on_in_the_project(before, lit, trained, tmp_path):
    """The project knows nothing of the old name: it takes classes of a package that is not there from its own."""
    run_dir = trained.resolve()
    content = torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True)
    assert content["hyper_parameters"]["_class_path"] == "lit_project.tasks.classification.ImageClassifier"
    project = tmp_path / "kites"
    shutil.copytree(before / "kites", project)
    install(project)
    for command, *options in (["test"], ["predict"], ["fit"]):
        done = python(project, "-m", "kite_lab", command, "--run", str(run_dir), *options)
        assert done.returncode == 0, done.stderr
        assert "note: lit_project cannot be imported: its classes are taken from kite_lab" in done.stderr
    assert "lit_project" not in (run_dir / "config.yaml").read_text()
