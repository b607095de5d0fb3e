"""Tests TensorBoard, and W&B with its real client: offline, with a server in this process, and when W&B fails."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import wandb

from helpers import TINY
from lit_engine.checkpoints.io import read
from lit_engine.errors import RunError
from lit_engine.loggers.metrics_csv import MetricsCSV
from lit_engine.loggers.wandb import WandbLogger
from lit_engine.run.directory import RunDir
from wandb_server import Server

KEY = "0123456789" * 4
FIT = (
    f"fit -c configs/quickstart.yaml {TINY} -c configs/overlays/wandb.yaml --test_after_fit=true --trainer.max_epochs=2"
)


@pytest.fixture(autouse=True)
def _nothing_of_the_user(tmp_path, monkeypatch):
    """Remove API keys, and use an empty home folder and a local port (9) that rejects connections."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):  # the logger sets these
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    wandb.teardown()
    monkeypatch.setattr(wandb, "run", None)  # an earlier test may have left a run whose server is gone
    yield
    wandb.teardown()


@pytest.fixture
def server(monkeypatch):
    """Start a server, and set its URL and API key."""
    with Server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL", "1")
        yield server
        # tables are artifacts, which the server does not support
        unknown = [query for query in server.unknown if "rtifact" not in query]
        assert not unknown, unknown


def test_without_an_api_key_wandb_logs_offline_into_the_run_directory(lit, tmp_path):
    done = lit(FIT, "--trainer.logger.log_checkpoints=true")
    assert done.status == 0, done.err
    assert "anonymous" not in done.err
    files = list(done.run.glob("wandb/offline-run-*"))
    assert len(files) == 1
    assert not [file for file in (tmp_path / "home").rglob("*") if file.suffix in (".ckpt", ".wandb")]
    with Server() as server:
        environment = {**os.environ, "WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY}
        words = [sys.executable, "-m", "wandb", "sync", *map(str, files)]
        subprocess.run(words, env=environment, check=True, timeout=200, capture_output=True)
        (sent,) = server.runs.values()
    assert sent.name == json.loads((done.run / "wandb.json").read_text())["id"]
    assert sent.state == "finished"
    assert {name for row in sent.rows for name in row} >= {
        "train/loss", "val/accuracy", "test/accuracy", "lr", "train/gradient_norm", "train/samples_per_second",
        "learning_curves", "test/confusion_matrix",
    }  # fmt: skip
    assert sent.config["model"]["class_path"] == "toy.tasks.ImageClassifier"
    assert "versions" in sent.config["provenance"]
    # log_checkpoints creates artifacts, which the server does not support.
    assert any("CreateArtifact" in query for query in server.unknown)
    # In the client's protobuf message, field 2 is the pattern.
    axes = [metric for metric in sent.config["_wandb"]["m"] if metric.get("2") == "*"]
    assert len(axes) == 1  # all charts use the run's step as their x axis


def test_runs_of_a_wandb_agent_log_to_wandb_without_the_overlay(lit, server, monkeypatch):
    """If they are resumed by hand, they continue their W&B run, and keep its group and name."""
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep")
    monkeypatch.setenv("WANDB_RUN_GROUP", "trials")
    other = ["--trainer.logger={class_path: CSVLogger, init_args: {save_dir: other}}"]
    fit = f"fit -c configs/quickstart.yaml {TINY} --test_after_fit=false --model.schedulers=null --epochs 1"
    run = lit(fit, other).run
    (sent,) = server.runs.values()
    assert (sent.group, sent.title) == ("trials", f"quickstart/{run.name}")
    sent.title = "renamed"
    monkeypatch.delenv("WANDB_SWEEP_ID")
    monkeypatch.delenv("WANDB_RUN_GROUP")
    wandb.teardown()  # wandb caches the variables
    assert lit(f"fit {run} --epochs 2").status == 0
    assert len(sent.logged("val/loss")) == 2
    assert (sent.group, sent.title) == ("trials", "renamed")


def test_the_summary_contains_the_best_epoch_and_no_metrics_are_printed(lit, server):
    # with this learning rate, the loss rises in a later epoch, which the second callback selects
    second = ["--trainer.callbacks+={class_path: ModelCheckpoint, init_args: {monitor: val/loss, mode: max}}"]
    done = lit(FIT, "--trainer.max_epochs=3 --model.optimizer.lr=1.0 --trainer.log_every_n_steps=1", second)
    assert done.status == 0, done.err
    (sent,) = server.runs.values()
    assert (sent.group, sent.job_type) == ("quickstart", "fit")
    losses = sent.logged("val/loss")
    best = losses.index(min(losses))
    assert sent.summary["val/loss"]["min"] == pytest.approx(min(losses))
    assert sent.summary["best"]["val/accuracy"] == sent.logged("val/accuracy")[best]
    assert sent.summary["best"]["epoch"] == best
    assert "test/most_wrong" in sent.summary
    assert "history" not in done.err.lower()
    assert lit(f"predict --run {done.run}").status == 0
    assert sent.summary["predictions/test"]["nrows"] == 360


def test_the_error_for_a_broken_wandb_json_file_reports_its_path(tmp_path):
    (tmp_path / "wandb.json").write_text('{"id": "a1')
    with pytest.raises(RunError, match=f"{tmp_path}/wandb.json is broken"):
        WandbLogger(str(tmp_path))


@pytest.mark.slow
def test_repeated_runs_share_a_wandb_group(lit, server):
    done = lit(f"repeat quickstart wandb {TINY} --epochs 1 --seeds 1 2")
    assert done.status == 0, done.err
    assert [run.group for run in server.runs.values()] == ["quickstart"] * 2
    assert all(run.logged("val/loss") for run in server.runs.values())


PLAIN = """
from lightning.pytorch.demos.boring_classes import BoringDataModule as Data, BoringModel

class Plain(BoringModel):
    def validation_step(self, batch, batch_idx):
        self.log("loss", self.step(batch))
        self.log("acc/val", 0.5)
"""


def test_a_plain_lightning_module_keeps_its_metric_names(lit, server, workspace, monkeypatch):
    (workspace / "logged_module.py").write_text(PLAIN)
    monkeypatch.syspath_prepend(workspace)
    done = lit(
        "fit wandb --model=logged_module.Plain --data=logged_module.Data --epochs 2 --trainer.limit_train_batches=2"
    )
    assert done.status == 0, done.err
    (sent,) = server.runs.values()
    assert sent.logged("acc/val") == [0.5, 0.5]
    assert len(sent.logged("loss")) == 2


@pytest.mark.slow
def test_a_resumed_run_continues_its_wandb_run_and_logs_the_same_values_again(lit, server):
    run = lit(FIT, "--trainer.max_epochs=1 --model.schedulers=null --trainer.log_every_n_steps=1").run
    shutil.copytree(run / "checkpoints", run / "earlier")
    resume = f"fit --run {run} --trainer.max_epochs=2"
    assert lit(resume).status == 0
    shutil.rmtree(run / "checkpoints")  # as if the run was killed before saving the second epoch
    shutil.copytree(run / "earlier", run / "checkpoints")
    assert lit(resume).status == 0
    with (run / "metrics.csv").open("a") as file:
        file.write("4")  # as if a process was killed while writing
    assert lit(f"test --run {run}").status == 0
    (sent,) = server.runs.values()
    steps = [row for row in sent.rows if "train/loss_step" in row]
    seen = {(row["trainer/global_step"], row["train/loss_step"]) for row in steps}
    last = max(step for step, _ in seen)
    assert sorted(step for step, _ in seen) == list(range(last + 1))
    assert len(steps) == (last + 1) // 2 * 3  # the second epoch occurs twice
    assert len(sent.logged("test/accuracy")) == 4
    assert [row["trainer/global_step"] for row in sent.rows if "test/accuracy" in row][-1] == last + 1


@pytest.mark.parametrize(("received", "sent_again"), [(0, 2), (2, 1), (3, 0)])
def test_a_resumed_run_sends_the_rows_that_were_lost_when_the_run_was_killed(server, tmp_path, received, sent_again):
    loggers = [MetricsCSV(tmp_path), WandbLogger(str(tmp_path))]
    loggers[1].command = "fit"
    lines = [(0, {"lr": 0.5}), (1, {"lr": 0.5, "train/loss": 3.0}), (1, {"val/loss": 2.0}), (2, {"lr": 0.5})]
    for step, metrics in lines:
        for logger in loggers:
            logger.log_metrics(metrics, step)
            logger.save()
    loggers[1].finish(0)
    (run,) = server.runs.values()
    del run.rows[received:]
    resumed = WandbLogger(str(tmp_path))
    resumed.command = "fit"
    resumed.log_metrics({"lr": 0.25}, 2)  # the run repeats the steps after its last checkpoint, saved at step 1
    resumed.log_metrics({"lr": 0.25}, 3)
    resumed.finish(0)
    sent = {(row["trainer/global_step"], name, row[name]) for row in run.rows for name in row if name[0] != "_"}
    rows = [(int(row["step"]), row) for row in RunDir(tmp_path).history()[1] if row["step"] in "01"]
    kept = {(step, name, float(row[name])) for step, row in rows for name in row if row[name] and name != "step"}
    assert {value for value in sent if value[1] != "trainer/global_step"} == kept | {(2, "lr", 0.25), (3, "lr", 0.25)}
    assert len(run.rows) == received + sent_again + 2


def test_a_finished_run_sends_missing_rows_when_resumed(server, tmp_path):
    logger, table = WandbLogger(str(tmp_path)), MetricsCSV(tmp_path)
    logger.log_metrics({"loss": float("nan")}, 0)
    logger.finish(0)
    for step in range(3):
        table.log_metrics({"loss": float("nan") if step == 0 else step / 8}, step)
    table.save()
    resumed = WandbLogger(str(tmp_path))
    resumed.log_hyperparams({})
    resumed.finish(0)
    (run,) = server.runs.values()
    assert run.logged("loss")[-2:] == [0.125, 0.25]


def test_metrics_of_a_separate_test_are_logged_at_the_last_step_of_the_run(server, tmp_path):
    table = MetricsCSV(tmp_path)
    for step in range(3):
        table.log_metrics({"loss": 1.0}, step)
    table.save()
    logger = WandbLogger(str(tmp_path))
    logger.log_metrics({"epoch": 0, "test/loss": 0.5}, 1)  # the step of the best checkpoint
    logger.finish(0)
    (run,) = server.runs.values()
    (row,) = [row for row in run.rows if "test/loss" in row]
    assert row["trainer/global_step"] == 2
    assert "epoch" not in row


def test_the_wandb_mode_variable_overrides_the_mode_argument(server, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    logger = WandbLogger(str(tmp_path), mode="online")
    logger.log_metrics({"loss": 1.0}, 1)
    logger.finish(0)
    assert not server.runs


def test_timeouts_are_passed_to_the_wandb_settings(tmp_path):
    logger = WandbLogger(str(tmp_path), mode="offline", init_timeout=3.0, finish_timeout=4.0)
    settings = logger.experiment.settings
    assert (settings.init_timeout, settings.finish_timeout) == (3.0, 4.0)
    logger.finish(0)


def test_a_failed_run_is_reported_as_failed(lit, server):
    done = lit(FIT, "--model.optimizer.lr=1e30 --trainer.callbacks+=NaNGuard")
    assert done.status == 2, done.err
    assert [run.state for run in server.runs.values()] == ["failed"]


@pytest.mark.slow
def test_wandb_prints_a_note_and_logs_offline_if_the_server_is_unreachable(lit, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    done = lit(FIT, "--trainer.logger.init_timeout=2")
    assert done.status == 0, done.err
    assert done.err.count("note: W&B does not respond") == 1
    assert list(done.run.glob("wandb/offline-run-*"))


@pytest.mark.parametrize("then", ["log_metrics", "finish"])
def test_training_continues_when_wandb_dies(tmp_path, capfd, then):
    logger = WandbLogger(str(tmp_path))
    logger.log_metrics({"train/loss": 1.0}, step=1)
    words = ["pgrep", "-P", str(os.getpid()), "-f", "wandb-core"]
    cores = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    for core in cores:
        os.kill(int(core), signal.SIGKILL)
    for step in range(2, 4 if then == "log_metrics" else 2):
        logger.log_metrics({"train/loss": 1.0}, step=step)
    logger.finish(0)
    err = capfd.readouterr().err
    assert err.count("note: W&B has failed") == 1, err
    assert "Traceback" not in err


def test_tensorboard_shows_scalars_graph_config_hyperparameters_and_figures(lit, recwarn):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    overlay = "-c configs/overlays/tensorboard.yaml -c configs/overlays/wandb.yaml"  # both append a logger
    done = lit(f"fit -c configs/quickstart.yaml {TINY} {overlay} --trainer.max_epochs=1 --test_after_fit=true")
    assert done.status == 0, done.err
    assert (done.run / "wandb").is_dir()
    events = EventAccumulator(str(done.run / "tensorboard")).Reload()
    tags = events.Tags()
    assert {"test/confusion_matrix", "train/images", "train/batch", "learning_curves"} <= set(tags["images"])
    assert {"train/loss", "val/accuracy", "lr"} <= set(tags["scalars"])
    assert tags["graph"]
    assert not [warning for warning in recwarn if "torch.jit" in str(warning.message)]
    (text,) = events.Tensors("config/text_summary")
    assert (done.run / "config.yaml").read_text() in text.tensor_proto.string_val[0].decode()
    assert events.summary_metadata["_hparams_/session_start_info"].plugin_data.plugin_name == "hparams"
    start = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"model.optimizer.lr" in start
    assert b"val/loss" in events.SummaryMetadata("_hparams_/experiment").plugin_data.content
    (before,) = events.Scalars("val/loss")
    assert lit(f"validate {done.run}").status == 0
    after = EventAccumulator(str(done.run / "tensorboard")).Reload().Scalars("val/loss")
    assert [(event.step - before.step, event.value) for event in after] == [
        (step, pytest.approx(before.value)) for step in (0, 1)
    ]


@pytest.mark.parametrize("forks", [True, False])
def test_a_fork_also_sends_the_rows_of_its_parent(server, tmp_path, forks):
    table = MetricsCSV(tmp_path)
    for step in range(3):
        table.log_metrics({"loss": step / 8}, step)
    table.save()
    logger = WandbLogger(str(tmp_path))
    logger.description = {"provenance": {"fork": {"step": 3}} if forks else {}}
    logger.log_metrics({"loss": 1.0}, 3)
    logger.log_metrics({"loss": 2.0}, 4)
    logger.finish(0)
    (run,) = server.runs.values()
    assert run.logged("loss") == [0.0, 0.125, 0.25, 1.0, 2.0][0 if forks else 3 :]


def test_tensorboard_does_not_update_frozen_statistics_or_require_a_graph(lit):
    unfreezing = "[{class_path: lit_engine.callbacks.freezing.Unfreezing, init_args: {schedule: {net.layers.2: null}}}]"
    result = lit(
        "fit -c configs/quickstart.yaml --model.net.norm=batch",
        [f"--trainer.callbacks+={unfreezing}", "--model.compile=aot_eager"],
        "-c configs/overlays/tensorboard.yaml --trainer.max_epochs=1 --test_after_fit=false",
        "--trainer.limit_train_batches=2 --trainer.limit_val_batches=1",
    )
    assert result.status == 0, result.err
    assert "note: no model graph for TensorBoard" in result.out
    weights = read(result.run / "checkpoints" / "last.ckpt")["state_dict"]
    counts = [int(value) for name, value in weights.items() if name.endswith("num_batches_tracked")]
    assert counts == [0]
