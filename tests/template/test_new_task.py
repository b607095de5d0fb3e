"""scripts/new_task.py: what it writes trains and is in style, in a project made from this one."""

import re
import shutil
import sys
from functools import partial

import pytest
import torch
from copies import ALL, SCRIPTS, refused
from new_tasks import new_task, python

from lit_project.tasks.several_optimizers import Part, SeveralOptimizers

sys.path.insert(0, str(SCRIPTS))

from new_task import TaskError, check_name

KINDS = sorted(path.name for path in (SCRIPTS / "task_kinds").iterdir())


def state(project):
    """All that new_task could write to."""
    files = [path for folder in ("src", "configs", "tests") for path in (project / folder).rglob("*.*")]
    return {path: path.read_text() for path in files if path.suffix in (".py", ".yaml")}


def written(project):
    return [str(path.relative_to(project)) for path in sorted(project.rglob("*tried_*.py"))]


@pytest.fixture(scope="module")
def project(made, tmp_path_factory):
    """A project with a task of each kind."""
    project = tmp_path_factory.mktemp("a project") / "kites"
    shutil.copytree(made(ALL), project)
    for kind in KINDS:
        done = new_task(project, f"tried_{kind}", "--kind", kind)
        assert done.returncode == 0, done.stderr
        assert f"wrote configs/tried_{kind}.yaml" in done.stdout
        assert f"kite-lab fit -c configs/tried_{kind}.yaml" in done.stdout
        assert re.search(rf"^edit next:   configs/tried_{kind}\.yaml:\d+: .*yours", done.stdout, re.MULTILINE)
    return project


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("name-language", "try name_language"),
        ("NameLanguage", "try name_language"),
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
def test_names_that_cannot_be(name, words):
    with pytest.raises(TaskError, match=words):
        check_name(name, "lit_project")


def test_dry_run_writes_nothing_and_nothing_is_overwritten(project):
    before = state(project)
    done = new_task(project, "only_said", "--kind", "sequence", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "would write src/kite_lab/tasks/only_said.py" in done.stdout
    refused(new_task(project, "tried_sequence", "--kind", "regression"), "exists", "choose another name")
    done = new_task(project, "speech", "--kind", "audio")
    assert done.returncode == 2
    assert "sequence" in done.stderr
    assert state(project) == before


def in_style(project, files):
    for command in (["format", "--check"], ["check"]):
        done = python(project, "-m", "ruff", *command, "--no-cache", *[file for file in files if file.endswith(".py")])
        assert done.returncode == 0, done.stdout + done.stderr


def test_style_and_length(project):
    in_style(project, written(project))
    sequence = [project / file for file in written(project) if "tried_sequence" in file]
    assert sum(len(file.read_text().splitlines()) for file in sequence) <= 170
    for name in ("x", "n" * 30):
        for kind in KINDS:
            done = new_task(project, name, "--kind", kind)
            assert done.returncode == 0, done.stderr
            files = re.findall(r"^wrote (.*)", done.stdout, re.MULTILINE)
            in_style(project, files)
            for file in files:
                (project / file).unlink()


def test_what_it_writes_passes_its_own_tests(project):
    tests = [file for file in written(project) if file.startswith("tests/")]
    done = python(
        project, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, "tests/test_configs.py", "-k", "tried"
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_sequence_task_takes_several_optimizers(trainer):
    made = {"__name__": "tried"}
    for part in ("data", "model", "task"):
        text = (SCRIPTS / "task_kinds" / "sequence" / f"{part}.txt").read_text()
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
