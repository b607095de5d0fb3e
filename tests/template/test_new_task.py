"""Tests that tasks from scripts/new_task.py in a generated project train, pass their own tests and follow the style."""

import json
import re
import shutil
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from copies import ALL, ROOT, SCRIPTS, commit, git, refused, run
from torch import nn
from torch.nn.functional import cross_entropy

from lit_project.tasks.classification import Classifier
from lit_project.tasks.several_optimizers import Part, SeveralOptimizers

sys.path.insert(0, str(SCRIPTS))

from new_task import check_name, fill_placeholders

KINDS = sorted(path.name for path in (SCRIPTS / "task_kinds").iterdir())


def new_task(project, *args):
    return run(project / "scripts" / "new_task.py", *args)


@pytest.fixture(scope="module")
def project(made, tmp_path_factory):
    """Create a project with a task of each kind."""
    project = shutil.copytree(made(ALL), tmp_path_factory.mktemp("a project") / "kites")
    for kind in KINDS:
        done = new_task(project, f"tried_{kind}", "--kind", kind)
        assert done.returncode == 0, done.stderr
        assert f"wrote configs/tried_{kind}.yaml" in done.stdout
        assert f"kite-lab fit tried_{kind}" in done.stdout
        assert re.search(rf"^edit next:   configs/tried_{kind}\.yaml:\d+: .*yours", done.stdout, re.MULTILINE)
    commit(project)
    return project


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NameLanguage", "try name_language"),
        ("язык", "lower-case letters a to z"),
        ("../a", "lower-case letters"),
        ("class", "Python keyword"),
        ("digits", "data/digits.py already exists"),
        ("ema", "configs/overlays/ema.yaml already exists"),
        ("image", "already has a class Image"),
        ("tabular", "lit_engine/data/tables.py already has a class TabularData"),
    ],
)
def test_invalid_task_names_are_rejected(name, words):
    with pytest.raises(SystemExit, match=words):
        check_name(name, "lit_project")


def test_existing_tasks_are_not_overwritten(project):
    refused(new_task(project, "tried_sequence", "--kind", "classification"), "exists", "choose a different name")
    assert git(project, "status", "--porcelain") == ""


def test_written_tasks_pass_ruff_and_are_short(project):
    for kind in KINDS:
        assert new_task(project, f"{kind}_{15 * 'n'}", "--kind", kind).returncode == 0
    for command in (["format", "--check"], ["check"]):
        done = run("-m", "ruff", *command, "--no-cache", project / "src", project / "tests")
        assert done.returncode == 0, done.stdout + done.stderr
    sequence = project.rglob("*tried_sequence.py")
    assert sum(len(file.read_text().splitlines()) for file in sequence) <= 175


def test_other_files_among_the_templates_are_ignored(project):
    templates = project / "scripts" / "task_kinds"
    for folder in (templates, templates / "table"):
        (folder / ".DS_Store").write_bytes(b"\xff")
    done = new_task(project, "from_a_mac", "--kind", "table")
    assert done.returncode == 0, done.stderr
    assert ".DS_Store" not in new_task(project, "--help").stdout


@pytest.mark.slow
def test_types(project):
    files = project.glob("src/*/*/tried_*.py")
    cache = f"--cache-dir={ROOT}/.mypy_cache"  # shared with `make lint`
    done = run("-m", "mypy", cache, "--config-file", project / "pyproject.toml", *files, MYPYPATH=str(project / "src"))
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("which", ["tried and not pretrained", "tried_pretrained"])
def test_written_tasks_pass_their_own_tests(project, which):
    tests = [*project.glob("tests/test_tried_*.py"), project / "tests" / "test_configs.py"]
    options = ["-q", "-p", "no:cacheprovider", "-k", which]
    done = run("-m", "pytest", *options, *tests, PYTHONPATH=str(project / "src"), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
def test_the_test_of_a_segmentation_task_passes_with_a_dataset_whose_root_is_required(project):
    assert new_task(project, "edited", "--kind", "segmentation").returncode == 0
    (data,) = project.glob("src/*/data/edited.py")
    text = data.read_text().replace("return images, masks", "return torch.utils.data.TensorDataset(images, masks)")
    text = text.replace("__init__(self, **kwargs: Any)", "__init__(self, root: str, **kwargs: Any)")
    data.write_text(text.replace("super().__init__(**kwargs)", "super().__init__(root=root, **kwargs)"))
    config = project / "configs" / "edited.yaml"
    config.write_text(config.read_text().replace("batch_size: 8", "root: mine\n    batch_size: 8"))
    tests = project / "tests" / "test_edited.py"
    done = run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, PYTHONPATH=str(project / "src"), OMP_NUM_THREADS="1"
    )
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["multilabel", "segmentation", "pretrained_sequence"])
def test_two_processes_report_the_same_metrics_as_one(project, kind, tmp_path):
    """Test batches are not full, and some labels and pixels occur in only one process."""
    lit = partial(run, "-m", "kite_lab", PYTHONPATH=str(project / "src"), OMP_NUM_THREADS="1")
    found = []
    two = "--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.accelerator=cpu", "--data.eval_batch_size=7"
    one = "--trainer.devices=1", "--trainer.strategy=auto", "--data.eval_batch_size=100"
    fit = "fit", "-c", project / "configs" / f"tried_{kind}.yaml", "--trainer.max_epochs=2", f"--runs_dir={tmp_path}"
    fit = *fit, "--trainer.precision=64-true"
    for command in ([*fit, "--run_name=two", *two], ["test", f"--run={tmp_path / f'tried_{kind}' / 'two'}", *one]):
        done = lit(*command)
        assert done.returncode == 0, done.stderr
        metrics = json.loads((tmp_path / f"tried_{kind}" / "two" / "metrics.json").read_text())["test"]
        found.append({name: value for name, value in metrics.items() if name.startswith("test/")})
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def execute(kind, *parts):
    """Execute parts of a kind's template files, and return the names that they define."""
    made = {"__name__": "tried"}
    for part in parts:
        text = (SCRIPTS / "task_kinds" / kind / f"{part}.txt").read_text()
        exec(fill_placeholders(text, "tried", "lit_project"), made)
    return made


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_segmentation_loss_is_computed_in_float32(dtype):
    """In float16, the sum over all pixels would overflow."""
    made = execute("segmentation", "task")
    net, sgd = nn.Conv2d(1, 3, 1), partial(torch.optim.SGD, lr=0.1)
    task = made["TriedSegmenter"](net, ["a", "b", "c"], [0.4], [0.3], optimizer=sgd).to(dtype)
    images, masks = torch.rand(1, 1, 256, 256), torch.randint(3, (1, 256, 256))
    loss = task.training_step(SimpleNamespace(images=images, targets=masks), 0)
    assert loss.item() == pytest.approx(cross_entropy(task(images).float(), masks).item(), rel=1e-4)


@pytest.mark.parametrize("kind", ["sequence", "pretrained_sequence"])
def test_texts_without_tokens_are_loaded_as_integers(kind):
    """Custom tokens may be words, so that a line of punctuation contains none."""
    tokens, _ = execute(kind, "data")["TriedData"]().encoded([("", ""), ("abc", "")])
    assert (tokens.shape, tokens.dtype) == ((2, 3), torch.long)


def test_a_text_task_trains_with_several_optimizers(trainer):
    made = execute("sequence", "data", "model")
    data = made["TriedData"]()
    net = made["TriedNet"](data.input_size, data.num_classes)
    adam = partial(torch.optim.AdamW, lr=0.01)
    parts = [Part("body", ["net.embedding", "net.rnns"], adam), Part("head", ["net.head"], adam)]
    kind = type("OfParts", (SeveralOptimizers, Classifier), {})
    task = kind(parts, net=net, class_names=data.class_names)
    runner = trainer(max_epochs=10)
    runner.fit(task, datamodule=data)
    (metrics,) = runner.test(task, datamodule=data, verbose=False)
    assert metrics["test/accuracy"] > 0.8  # chance level: 1/2
