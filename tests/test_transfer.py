"""Tests fine-tuning from the command line: sources of weights, and common mistakes."""

import shutil
from pathlib import Path

import pytest
import torch

from lit_engine.checkpoints.io import read
from lit_engine.run.directory import RunDir
from lit_project.tasks.classification import ImageClassifier

DEBUG = "-c configs/overlays/debug.yaml --test_after_fit=false --trainer.limit_train_batches=1"
FOLDER = f"fit -c configs/finetune_imagefolder.yaml {DEBUG} --data.num_workers=0 --data.batch_size=8"
SECOND = "-c configs/mnist_resnet18_from_fashion.yaml"


def test_warm_start_from_another_dataset_loads_only_the_backbone(lit, small_data):
    """Load the weights of the backbone but not of the head."""
    result = lit(f"fit -c configs/fashion_mnist_resnet18.yaml {DEBUG} --run_name=first")
    assert result.status == 0, result.err
    first = result.run
    schedule = "{net.backbone: null}"
    result = lit(
        f"fit {SECOND} {DEBUG} --init_from {first} --init_prefixes", ['{"net.head.": null}'],
        "--trainer.callbacks.schedule", [schedule], "--trainer.max_epochs=1",
    )  # fmt: skip
    assert result.status == 0, result.err
    assert "missing: 2 (net.head.1.weight, net.head.1.bias)" in result.out
    old = read(next((first / "checkpoints").glob("best*.ckpt")))["state_dict"]
    new = read(result.run / "checkpoints" / "last.ckpt")["state_dict"]
    assert all(torch.equal(new[name], old[name]) for name in old if name.startswith("net.backbone"))  # still frozen
    assert not torch.equal(new["net.head.1.weight"], old["net.head.1.weight"])
    strict = lit(
        f"fit {SECOND} {DEBUG} --init_from {first} --init_strict=true", "--init_prefixes", ['{"net.head.": "head."}']
    )
    assert strict.status == 2
    assert "missing: 2 (net.head.1.weight, net.head.1.bias)" in strict.err
    unknown = lit(
        f"fit {SECOND} {DEBUG} --trainer.max_epochs=3 --init_from {first} --init_prefixes",
        ['{"body.": "net."}'],
    )
    assert unknown.status == 2
    assert "no weight name starts with 'body.'; names start with net" in unknown.err


def test_trained_run_no_longer_needs_the_pretrained_weights(lit, image_folder, imagenet_weights, tmp_path):
    result = lit(FOLDER)
    assert result.status == 0, result.err
    assert "weights DEFAULT:\n  loaded: 120" in result.out
    shutil.rmtree(tmp_path / "torch")  # nothing is cached any more, and there is no network
    for command in ("test --run", "predict --run", "fit --run"):
        again = lit(f"{command} {result.run}")
        assert again.status == 0, again.err
    rows = RunDir(result.run).predictions("test")
    assert [Path(row["file"]).parent.name for row in rows] == [("cat", "dog")[int(row["target"])] for row in rows]
    file = result.run / "checkpoints" / "last.ckpt"
    task = ImageClassifier.load_from_checkpoint(file, weights_only=True)
    assert torch.equal(task.net.head[1].weight, read(file)["state_dict"]["net.head.1.weight"])
    warm = lit(f"{FOLDER} --init_from {result.run}")
    assert warm.status == 0, warm.err
    assert "missing" not in warm.out


FASHION = "fit -c configs/fashion_mnist_resnet18.yaml -c configs/overlays/debug.yaml"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{FASHION} --model.net.architecture=resnet81", "did you mean resnet18?"),
        (f"{FASHION} --model.net.weights=IMAGENET1K_V3", "did you mean IMAGENET1K_V1?"),
        (f"{FASHION} --model.test_time_flips=[diagonal]", "diagonal"),
    ],
    ids=["architecture", "weights", "flip"],
)  # fmt: skip
def test_invalid_option_values_cause_a_short_error(lit, small_data, command, message):
    result = lit(command)
    assert result.status == 2
    assert message in result.err
    assert "Traceback" not in result.err
    assert len(result.err.splitlines()) < 12


def test_training_skips_the_test_if_the_folder_has_no_test_split(lit, image_folder, imagenet_weights):
    """The config requests a test after training."""
    split = image_folder.parent / "split"
    for name in ("cat", "dog"):
        shutil.copytree(image_folder / name, split / "train" / name)
        shutil.copytree(image_folder / name, split / "val" / name)
    result = lit(f"{FOLDER} --test_after_fit=true --data.root={split}")
    assert result.status == 0, result.err
    assert result.out.count("ImageFolder has no test split, so the run is not tested after training") == 1
    assert "test/accuracy" not in result.out
    tested = lit(f"test --run {result.run}")
    assert tested.status == 2
    assert "ImageFolder has no test split" in tested.err
