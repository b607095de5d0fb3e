"""The W&B logger with the real client: offline, with a server that does not answer, resumed, and failed runs."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tiny import TINY
from wandb_file import Logged

KEY = "0123456789" * 4
ROOT = Path(__file__).parents[1]
FIT = (
    f"fit -c configs/quickstart.yaml {TINY} -c configs/overlays/wandb.yaml --test_after_fit=true --trainer.max_epochs=2"
)


@pytest.fixture
def environment(tmp_path):
    """Of a process that has no key, no home of the user's, and no server: port 9 of this machine refuses."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    home = tmp_path / "home"
    home.mkdir()
    return {
        **kept,
        **threads,
        "HOME": str(home),
        "WANDB_BASE_URL": "http://127.0.0.1:9",
        "WANDB_ERROR_REPORTING": "false",
    }


def run(workspace, environment, command, *more):
    """`lit-project COMMAND` in a process of its own, without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "lit_project", *command.split(), *more], cwd=workspace, env=environment,
        capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture
def offline(workspace, environment):
    """A run without a key, and where it is."""
    done = run(workspace, environment, FIT, "--run_name=first", "--trainer.logger.log_checkpoints=true")
    assert done.returncode == 0, done.stderr
    return workspace / "runs" / "quickstart" / "first", done


def test_without_a_key_it_logs_offline_into_the_run_directory(offline, environment):
    folder, _ = offline
    logged = Logged(folder)
    rows, config = logged.rows, logged.config
    steps = [row["trainer/global_step"] for row in rows if "train/loss_step" in row]
    assert steps == sorted(steps)
    assert len(steps) > 2
    assert {name for row in rows for name in row} >= {
        "train/loss", "val/accuracy", "test/accuracy", "lr", "train/gradient_norm", "train/samples_per_second",
        "learning_curves", "test_confusion_matrix",
    }  # fmt: skip
    assert config["model"]["class_path"] == "lit_project.tasks.ImageClassifier"
    assert "versions" in config["provenance"]
    assert logged.exit_code == 0
    assert "last.ckpt" in logged.artifacts
    record = json.loads((folder / "wandb.json").read_text())
    assert record["mode"] == "offline"
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["logger"][0]["class_path"].endswith(
        "WandbLogger"
    )
    assert not list(Path(environment["HOME"]).rglob("*.ckpt"))  # nothing is staged in the home folder
    assert (folder / "metrics.csv").exists()


# family: translation
def test_translations_are_a_table_and_attention_maps_images(workspace, environment):
    overlays = "-c configs/overlays/debug.yaml -c configs/overlays/wandb.yaml"
    done = run(workspace, environment, f"fit -c configs/translation_quickstart.yaml {overlays} --run_name=words")
    assert done.returncode == 0, done.stderr
    folder = workspace / "runs" / "translation_quickstart" / "words"
    logged = {name: value for row in Logged(folder).rows for name, value in row.items()}
    assert logged["test_samples"]["_type"] == "table-file"
    table = json.loads(next(folder.glob("wandb/*run-*/files/media/table/test_samples_*.json")).read_text())
    assert table["columns"] == ["which", "BLEU", "source", "translation", "references"]
    assert {row[0] for row in table["data"]} == {"Best", "Worst", "Random"}
    assert len(table["data"]) == logged["test_samples"]["nrows"] > 3
    assert logged["test_attention_1"]["_type"] == "images/separated"


def test_a_resumed_run_goes_on_with_the_run_of_wandb(workspace, environment, offline):
    folder, _ = offline
    first = json.loads((folder / "wandb.json").read_text())["id"]
    done = run(workspace, environment, f"fit --run {folder} --trainer.max_epochs=3 --model.schedulers=null")
    assert done.returncode in (0, 2), done.stderr  # the schedule of the quickstart ends with the run
    done = run(workspace, environment, f"test --run {folder}")
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "wandb.json").read_text())["id"] == first
    ids = {file.name.rpartition("-")[2] for file in (folder / "wandb").glob("offline-run-*")}
    assert ids == {first}


def test_a_key_and_no_server_is_a_note_and_not_the_end(workspace, environment):
    start = time.monotonic()
    done = run(
        workspace, {**environment, "WANDB_API_KEY": KEY}, FIT, "--run_name=deaf", "--trainer.logger.init_timeout=2"
    )
    assert done.returncode == 0, done.stderr
    assert "W&B does not answer" in done.stderr
    assert time.monotonic() - start < 120
    folder = workspace / "runs" / "quickstart" / "deaf"
    assert json.loads((folder / "wandb.json").read_text())["mode"] == "offline"
    assert any("val/accuracy" in row for row in Logged(folder).rows)


def test_online_without_a_key_is_an_error(workspace, environment):
    done = run(workspace, environment, FIT, "--trainer.logger.mode=online")
    assert done.returncode == 2
    assert "online W&B needs a key" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_failed_does_not_look_finished(workspace, environment):
    done = run(
        workspace,
        environment,
        FIT,
        "--run_name=bad",
        "--model.optimizer.lr=1e30",
        "-c",
        "configs/overlays/nan_guard.yaml",
    )
    assert done.returncode == 2, done.stderr
    assert Logged(workspace / "runs" / "quickstart" / "bad").exit_code not in (0, None)
