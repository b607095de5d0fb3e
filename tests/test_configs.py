"""Every shipped config runs through every subcommand, offline, on small data of the same shapes."""

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from sklearn.metrics import r2_score

from lit_project.engine.checkpoints import read

ROOT = Path(__file__).parents[1]
CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))
OVERLAYS = sorted(path.name for path in (ROOT / "configs" / "overlays").glob("*.yaml"))
# what makes an overlay for other machines run here, in one process; test_ddp.py runs two
ELSEWHERE = {
    "gpu.yaml": "--trainer.accelerator=cpu",
    "ddp.yaml": "--trainer.devices=1 --trainer.strategy=auto",
    "compile.yaml": "--model.compile=eager",  # without a C++ compiler
}
FIGURES = {"learning_curves.png", "learning_rate.png"}
FAMILY_FIGURES = {
    "accuracy": "test_confusion_matrix.png",
    "bleu": "test_bleu_by_length.png",
    "r2": "test_predicted.png",
}
# subwords of a corpus of a few sentences; a schedule of three epochs that debug.yaml would cut
SMALLER = {
    name: "--data.vocabulary_size=80" for name in CONFIGS if name.startswith(("multi30k", "tatoeba_eng_fra_full"))
} | {"mnist_resnet18_from_fashion.yaml": "--trainer.max_epochs=3"}


def has_its_own_test(config: str) -> bool:
    """As a task made by `new_task.py` has, whose data may be a file that is not here and whose scores are its own."""
    return (ROOT / "tests" / f"test_{Path(config).stem}.py").exists()


@pytest.mark.parametrize("config", [name for name in CONFIGS if not has_its_own_test(name)])
def test_fit_validate_test_predict(lit, small_data, image_folder, imagenet_weights, config):
    fit = lit(f"fit -c configs/{config} -c configs/overlays/debug.yaml {SMALLER.get(config, '')}")
    assert fit.status == 0, fit.err
    run = fit.run
    assert run.parent == Path("runs") / Path(config).stem
    assert {p.name for p in run.iterdir()} >= {"config.yaml", "metrics.csv", "metrics.json", "provenance.json"}
    assert len(list((run / "checkpoints").glob("best*.ckpt"))) == 1
    assert (run / "checkpoints" / "last.ckpt").exists()
    after_fit = json.loads((run / "metrics.json").read_text())["test"]
    family = next(name for name in FAMILY_FIGURES if f"test/{name}" in after_fit)
    assert {path.name for path in (run / "figures").iterdir()} >= {*FIGURES, FAMILY_FIGURES[family]}

    for command in ("validate", "test", "predict"):
        result = lit(f"{command} --run {run}")
        assert result.status == 0, result.err
        assert result.run == run
    metrics = json.loads((run / "metrics.json").read_text())
    best = next(name for name in metrics["fit"] if name.startswith("best val/"))
    if best != "best val/bleu":  # greedy while fitting, by beam search afterwards
        assert metrics["validate"][best.removeprefix("best ")] == pytest.approx(metrics["fit"][best], rel=1e-5)
    assert metrics["test"] == after_fit
    rows = list(csv.DictReader((run / "predictions" / "test.csv").open()))
    if family == "bleu":
        assert len(rows) == metrics["test"]["test/samples"]
        assert all(row["source"] and row["references"] for row in rows)
        return
    assert [int(row["index"]) for row in rows] == list(range(len(rows)))
    if family == "r2":
        predicted, true = ([float(row[name]) for row in rows] for name in ("prediction", "target"))
        assert r2_score(true, predicted) == pytest.approx(metrics["test"]["test/r2"], rel=1e-4)
        return
    accuracy = sum(row["prediction"] == row["target"] for row in rows) / len(rows)
    assert accuracy == pytest.approx(metrics["test"]["test/accuracy"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay(lit, overlay):
    here = ELSEWHERE.get(overlay, "")
    result = lit(f"fit -c configs/quickstart.yaml -c configs/overlays/{overlay} -c configs/overlays/debug.yaml {here}")
    assert result.status == 0, result.err
    config = yaml.safe_load((result.run / "config.yaml").read_text())
    names = [callback["class_path"].rpartition(".")[2] for callback in config["trainer"]["callbacks"]]
    assert names[:2] == ["Checkpoint", "Figures"]  # those of the config are still there


@pytest.mark.parametrize("overlay", ["accumulate", "bf16", "ddp", "debug", "early_stopping", "ema", "gpu", "nan_guard",
                                     "no_decay", "swa", "tensorboard", "wandb"])  # fmt: skip
def test_overlays_of_the_trainer_fit_every_family(lit, overlay):
    for config in CONFIGS:
        if config.endswith("quickstart.yaml"):
            with pytest.raises(SystemExit) as ended:  # the end of --print_config; a mistake would return 2
                lit(f"fit -c configs/{config} -c configs/overlays/{overlay}.yaml --print_config")
            assert ended.value.code == 0


def test_tensorboard_gets_scalars_images_and_graph(lit):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = lit("fit -c configs/quickstart.yaml -c configs/overlays/tensorboard.yaml -c configs/overlays/debug.yaml")
    assert result.status == 0, result.err
    events = EventAccumulator(str(result.run / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    assert {"train/loss", "val/accuracy", "lr"} <= set(tags["scalars"])
    assert {"train/images", "learning_curves", "test_confusion_matrix"} <= set(tags["images"])
    assert tags["graph"]


# family: translation
def test_tensorboard_gets_attention_maps(lit):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    overlays = "-c configs/overlays/tensorboard.yaml -c configs/overlays/debug.yaml"
    result = lit(f"fit -c configs/translation_quickstart.yaml {overlays}")
    assert result.status == 0, result.err
    events = EventAccumulator(str(result.run / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    assert {"train/loss", "val/bleu", "lr"} <= set(tags["scalars"])
    assert {"attention_1", "learning_curves", "test_bleu_by_length"} <= set(tags["images"])


@pytest.mark.parametrize("file", [*CONFIGS, *(f"overlays/{name}" for name in OVERLAYS)])
def test_the_commands_of_a_header_are_accepted(lit, file):
    header = re.split(r"\n(?!#)", (ROOT / "configs" / file).read_text(), maxsplit=1)[0]
    commands = re.findall(r"^# {3}lit-project (fit|test|predict) (.+?)(?: {2,}.*)?$", header, re.MULTILINE)
    assert any(f"-c configs/{file}" in options for _, options in commands)
    for command, options in commands:
        words = shlex.split(options.replace("--run RUN", "-c configs/quickstart.yaml"))
        with pytest.raises(SystemExit) as ended:  # the end of --print_config; a mistake would return 2
            lit([command, *words, "--print_config"])
        assert ended.value.code == 0


@pytest.mark.parametrize("config", CONFIGS)
def test_header_gives_the_command_and_what_to_expect(config):
    text = (ROOT / "configs" / config).read_text()
    header = text[: text.index("\nseed_everything")]
    assert f"lit-project fit -c configs/{config}" in header
    assert "Expect: " in header
    assert "%" in header or "your" in header or "BLEU" in header
    assert isinstance(yaml.safe_load(text)["seed_everything"], int)


def test_loggers_of_overlays_add_up(lit):
    overlays = "-c configs/overlays/tensorboard.yaml -c configs/overlays/wandb.yaml -c configs/overlays/debug.yaml"
    result = lit(f"fit -c configs/quickstart.yaml {overlays}")
    assert result.status == 0, result.err
    assert list((result.run / "tensorboard").glob("events*"))
    assert (result.run / "wandb").is_dir()


def test_tensorboard_moves_no_frozen_statistics_and_needs_no_graph(lit):
    unfreezing = (
        "[{class_path: lit_project.engine.callbacks.freezing.Unfreezing, init_args: {schedule: {net.features: null}}}]"
    )
    result = lit(
        "fit -c configs/quickstart.yaml",
        [f"--trainer.callbacks+={unfreezing}", "--model.compile=aot_eager"],
        "-c configs/overlays/tensorboard.yaml --trainer.max_epochs=1 --test_after_fit=false",
    )
    assert result.status == 0, result.err
    assert "note: TensorBoard gets no graph of the model" in result.out
    weights = read(result.run / "checkpoints" / "last.ckpt")["state_dict"]
    counts = [int(value) for name, value in weights.items() if name.endswith("num_batches_tracked")]
    assert counts
    assert not any(counts)


def test_precision_without_autocast(lit):
    result = lit("fit -c configs/quickstart.yaml -c configs/overlays/debug.yaml --trainer.precision=bf16-true")
    assert result.status == 0, result.err
