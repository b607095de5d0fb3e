"""scripts/new_task.py: what it writes trains and is in style."""

import difflib
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from lit_project.tasks.several_optimizers import Part, SeveralOptimizers
from new_tasks import NOT_COPIED, ROOT, copied, new_task, python, refused

KINDS = sorted(path.parent.name for path in (ROOT / "scripts" / "task_kinds").glob("*/about.toml"))


def state(project: Path) -> dict[str, str]:
    """All that new_task could write to."""
    return {
        str(path.relative_to(project)): path.read_text()
        for folder in ("src", "configs", "tests")
        for path in [*(project / folder).rglob("*.*"), project / "README.md"]
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The parts of this project that a new task touches."""
    return copied(tmp_path_factory.mktemp("a project"))


@pytest.fixture(scope="module")
def project(checkout):
    """The same with a task of each kind."""
    for kind in KINDS:
        done = new_task(checkout, f"tried_{kind}", "--kind", kind)
        assert done.returncode == 0, done.stderr
        assert f"wrote configs/tried_{kind}.yaml" in done.stdout
        assert f"fit -c configs/tried_{kind}.yaml" in done.stdout
        assert "edit next: " in done.stdout
    return checkout


def written(project: Path) -> list[str]:
    return [str(path.relative_to(project)) for path in sorted(project.rglob("*tried_*.py"))]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("name-language", "try name_language"),
        ("name language", "try name_language"),
        ("NameLanguage", "try name_language"),
        ("naïve", "try naive"),
        ("язык", "lower-case letters a to z"),
        ("2nd", "beginning with a letter"),
        ("", "lower-case letters"),
        ("a__b", "single underscores"),
        ("../a", "lower-case letters"),
        ("class", "keyword of Python"),
        ("n" * 31, "at most 30"),
        ("lit_project", "name of the package"),
        ("digits", "data/digits.py exists"),
        ("quickstart", "configs/quickstart.yaml exists"),
        ("image", "has a class Image"),
    ],
)
def test_names_that_cannot_be(checkout, name, words):
    before = state(checkout)
    refused(new_task(checkout, name, "--kind", "classification"), words)
    assert state(checkout) == before


def test_dry_run_writes_nothing(checkout):
    before = state(checkout)
    done = new_task(checkout, "only_said", "--kind", "sequence", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert re.search(r"would write src/\w+/tasks/only_said\.py", done.stdout)
    assert state(checkout) == before


def test_a_kind_that_is_not_there(checkout):
    done = new_task(checkout, "speech", "--kind", "audio")
    assert done.returncode == 2
    assert "sequence" in done.stderr


def test_nothing_is_overwritten(project):
    before = state(project)
    for kind in KINDS:
        refused(new_task(project, "tried_sequence", "--kind", kind), "exists", "choose another name")
    assert state(project) == before


def test_readme_and_headers_are_what_the_tests_of_the_project_want(project):
    text = (project / "README.md").read_text()
    section = text[text.index("## Your tasks\n") :].split("\n## ")[0]
    for kind in KINDS:
        row = rf"^\| \[`tried_{kind}`\]\(configs/tried_{kind}\.yaml\) (\|.+){{3}}\|$"
        assert len(re.findall(row, section, re.MULTILINE)) == 1
        config = (project / "configs" / f"tried_{kind}.yaml").read_text()
        header = config[: config.index("\nseed_everything")]
        for wanted in (f"lit-project fit -c configs/tried_{kind}.yaml", "Expect: ", "your"):
            assert wanted in header
    assert section.count("\n| --- |") == text.count("## Your tasks") == 1
    before = (ROOT / "README.md").read_text().splitlines()
    assert [line for line in difflib.ndiff(before, text.splitlines()) if line.startswith("- ")] == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# A\n", "# A\n\n## Your tasks\n\nTABLE| mine |\n"),
        ("## Your tasks\n\nTABLE| x |\n", "## Your tasks\n\nTABLE| x |\n| mine |\n"),
        ("## Your tasks\n\nTABLE| x |\n\nOh.\n\n## B\n", "## Your tasks\n\nTABLE| x |\n| mine |\n\nOh.\n\n## B\n"),
        ("## Your tasks\n\nNo.\n\n## B\n\n| a |\n", "## Your tasks\n\nNo.\n\nTABLE| mine |\n\n## B\n\n| a |\n"),
        ("## Your tasks\n\nNo.\n", "## Your tasks\n\nNo.\n\nTABLE| mine |\n"),
        ("## Examples\n\n| a |\n\n## B\n", "## Examples\n\n| a |\n\n## Your tasks\n\nTABLE| mine |\n\n## B\n"),
    ],
)
def test_the_row_goes_into_the_table_of_your_tasks_and_no_other(before, after, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from new_task import TABLE, with_row

    assert with_row(before.replace("TABLE", TABLE), "| mine |\n") == after.replace("TABLE", TABLE)


def test_style_and_length(project):
    for command in (["format", "--check"], ["check"]):
        done = python(project, "-m", "ruff", *command, "--no-cache", *written(project))
        assert done.returncode == 0, done.stdout + done.stderr
    assert max(len((project / file).read_text().splitlines()) for file in written(project)) <= 175


@pytest.mark.parametrize("name", ["x", "n" * 30, "a_b_c_d_e_f_g_h_i_j_k_l_m_n"])
def test_short_and_long_names_are_in_style_too(checkout, tmp_path, name):
    copy = tmp_path / "copy"
    shutil.copytree(checkout, copy, ignore=NOT_COPIED)
    for kind in KINDS:
        done = new_task(copy, name, "--kind", kind)
        assert done.returncode == 0, done.stderr
        files = [path for path in copy.rglob(f"*{name}.py") if path.stem in (name, f"test_{name}")]
        for command in (["format", "--check"], ["check"]):
            done = python(copy, "-m", "ruff", *command, "--no-cache", *files)
            assert done.returncode == 0, done.stdout + done.stderr
        for path in [*files, copy / "configs" / f"{name}.yaml"]:
            path.unlink()


def test_types(project):
    files = [file for file in written(project) if file.startswith("src/")]
    done = python(project, "-m", "mypy", "--cache-dir", project / "mypy", *files)
    assert done.returncode == 0, done.stdout


def test_what_it_writes_passes_its_own_tests(project):
    tests = [file for file in written(project) if file.startswith("tests/")]
    done = python(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert done.returncode == 0, done.stdout[-3000:]
    assert f"{len(KINDS) + 3} passed" in done.stdout


def test_a_sequence_task_takes_several_optimizers(trainer):
    made = {"__name__": "tried"}
    for part in ("data", "model", "task"):
        text = (ROOT / "scripts" / "task_kinds" / "sequence" / f"{part}.txt").read_text()
        exec(text.replace("PACKAGE", "lit_project").replace("TaskName", "Tried"), made)
    data = made["TriedData"]()
    kind = type("OfParts", (SeveralOptimizers, made["TriedClassifier"]), {})
    sgd = partial(torch.optim.SGD, lr=0.1)
    parts = [Part("body", ["net.embedding", "net.rnn"], sgd), Part("head", ["net.head"], sgd)]
    task = kind(parts, net=made["TriedNet"](data.input_size, data.num_classes), class_names=data.class_names)
    runner = trainer(max_epochs=1, limit_train_batches=3)
    runner.fit(task, datamodule=data)
    assert runner.global_step == 3
    assert "val/accuracy" in runner.callback_metrics
