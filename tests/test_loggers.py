"""The W&B logger with the real client: offline, with a server that does not answer, resumed, and failed runs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from lit_project.checkpoints import resume_step
from lit_project.run import RunDir
from lit_project.wandb_files import reached
from tiny import TINY
from wandb_file import Logged, records
from wandb_server import Server

KEY = "0123456789" * 4
ROOT = Path(__file__).parents[1]
STARTED: list[subprocess.Popen[str]] = []
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
        **kept, **threads, "HOME": str(home),
        "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_ERROR_REPORTING": "false",
    }  # fmt: skip


def run(workspace, environment, command, *more):
    """`lit-project COMMAND` in a process of its own, without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "lit_project", *command.split(), *more], cwd=workspace, env=environment,
        capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def started(workspace, environment, command):
    """`lit-project COMMAND` as a process that a test ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lit_project", *command.split()], cwd=workspace, env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    STARTED.append(process)
    return process


@pytest.fixture(autouse=True)
def _none_is_left():
    """A test that fails leaves no process that slows down those after it."""
    yield
    while STARTED:
        STARTED.pop().kill()


def wait(condition, process=None):
    """Until the condition holds, while the process works."""
    end = time.monotonic() + 200
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def cores_of(process):
    """Wandb's own processes for this one, which write its files."""
    listed = subprocess.run(["ps", "-axww", "-o", "pid=,args="], capture_output=True, text=True, check=True).stdout
    lines = [line for line in listed.splitlines() if "wandb-core" in line and line.endswith(f"--pid {process.pid}")]
    return [int(line.split()[0]) for line in lines]


def step_of(folder):
    """The last step in metrics.csv."""
    lines = (folder / "metrics.csv").read_text().splitlines() if (folder / "metrics.csv").exists() else []
    return int(lines[-1].split(",")[1]) if len(lines) > 1 else 0


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


@pytest.mark.timeout(600)
@pytest.mark.parametrize("online", [False, True])
def test_a_run_that_was_killed_goes_on_with_the_run_of_wandb(workspace, environment, online):
    folder = workspace / "runs" / "quickstart" / "cut"
    last = folder / "checkpoints" / "last.ckpt"
    length = 316  # steps of an epoch

    def step():
        """The last step that the server has, or without one the file that is to be sent later."""
        rows = [row for run in server.runs.values() for row in run.rows] if online else Logged(folder).rows
        return rows[-1].get("trainer/global_step", 0) if rows else 0

    with Server() as server:
        environment |= {"WANDB_BASE_URL": server.url, "WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL": "1"}
        key = {"WANDB_API_KEY": KEY}
        if online:
            environment |= key
        more = "--run_name=cut --data.batch_size=4 --model.schedulers=null --trainer.max_epochs=2000"
        process = started(workspace, environment, f"{FIT} {more}")
        wait(last.exists, process)
        wait(lambda: step() > resume_step(last) + 40, process)
        process.kill()
        process.communicate(timeout=120)
        wait(lambda: not cores_of(process))
        epochs = resume_step(last) // length + 2
        (file,) = folder.glob("wandb/*run-*/run-*.wandb")
        os.truncate(file, file.stat().st_size - 3)  # in the midst of a record, as where the process was writing it
        assert "test" not in RunDir(folder).metrics()
        for command in (f"fit --trainer.max_epochs={epochs}", "test"):
            done = run(workspace, environment, f"{command} --run {folder}")
            assert done.returncode == 0, done.stderr
            assert "note: W&B" not in done.stderr, done.stderr
        if not online:
            files = sorted(map(str, folder.glob("wandb/offline-run-*")))
            words = [sys.executable, "-m", "wandb", "sync", *files]
            subprocess.run(words, cwd=workspace, env={**environment, **key}, check=True, timeout=200)
        assert not server.unknown, server.unknown
        (sent,) = server.runs.values()
    assert sent.name == json.loads((folder / "wandb.json").read_text())["id"]
    steps = [row["trainer/global_step"] for row in sent.rows if "train/loss_step" in row]
    assert steps == list(range(4, length * epochs, 5))
    assert len(sent.logged("val/accuracy")) == epochs
    assert len(sent.logged("test/accuracy")) == 2
    for name in ("trainer/global_step", "epoch"):
        assert sent.logged(name) == sorted(sent.logged(name)), name


def test_a_record_that_was_cut_is_taken_away_and_no_other(offline):
    (file,) = offline[0].glob("wandb/offline-run-*/run-*.wandb")
    content, all_rows = file.read_bytes(), Logged(offline[0]).rows
    process = SimpleNamespace(id=file.stem.removeprefix("run-"), dir="elsewhere/files", summary={})
    kept = set()
    for cut in [1, 2, 3, 8, 30, 100, 5000]:
        file.write_bytes(content[:-cut])
        found = reached(process, {}, file.parents[1], online=False)
        rows = Logged(offline[0]).rows
        assert rows == all_rows[: len(rows)]
        assert found.step == rows[-1]["trainer/global_step"]
        assert file.stat().st_size <= len(content) - cut
        assert list(records(file, complete=True))
        once = file.read_bytes()
        reached(process, {}, file.parents[1], online=False)
        assert file.read_bytes() == once
        kept.add(len(rows))
    assert len(kept) > 1


def test_a_key_and_no_server_is_a_note_and_not_the_end(workspace, environment):
    done = run(
        workspace, {**environment, "WANDB_API_KEY": KEY}, FIT, "--run_name=deaf", "--trainer.logger.init_timeout=2"
    )
    assert done.returncode == 0, done.stderr
    assert "W&B does not answer" in done.stderr
    folder = workspace / "runs" / "quickstart" / "deaf"
    assert json.loads((folder / "wandb.json").read_text())["mode"] == "offline"
    assert any("val/accuracy" in row for row in Logged(folder).rows)


def test_online_without_a_key_is_an_error(workspace, environment):
    done = run(workspace, environment, FIT, "--trainer.logger.mode=online")
    assert done.returncode == 2
    assert "online W&B needs a key" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_goes_on_where_wandb_dies(workspace, environment):
    process = started(workspace, environment, f"{FIT} --run_name=alone --trainer.max_epochs=60 --model.schedulers=null")
    folder = workspace / "runs" / "quickstart" / "alone"
    wait(lambda: step_of(folder) > 20, process)
    (core,) = cores_of(process)
    os.kill(core, signal.SIGKILL)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert err.count("note: W&B has failed") == 1
    assert "Traceback" not in err
    assert "test/accuracy" in out
    assert "test/accuracy" in (folder / "metrics.csv").read_text()


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
