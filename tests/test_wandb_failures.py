"""The W&B logger with a client that fails, or that has lost what was logged."""

from types import SimpleNamespace

import pytest

from lit_project.loggers import WandbLogger


@pytest.mark.parametrize("error", [TimeoutError("no answer"), ConnectionResetError("gone"), OSError(28, "disk full")])
@pytest.mark.parametrize("method", ["log", "log_artifact", "finish"])
def test_an_error_of_wandb_is_one_line(tmp_path, capsys, monkeypatch, method, error):
    ended = []
    given = SimpleNamespace(
        id="1", entity=None, project="p", config={}, define_metric=lambda *args, **kwargs: None, log=lambda row: None,
        log_artifact=lambda artifact: None, finish=lambda exit_code: ended.append(exit_code),
    )  # fmt: skip

    def broken(*args, **kwargs):
        raise error

    setattr(given, method, broken)
    monkeypatch.setattr("wandb.init", lambda **kwargs: given)
    logger = WandbLogger(str(tmp_path), mode="offline", log_checkpoints=True)
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.log_metrics({"loss": 1.0}, step=2)
    logger.log_table("table", columns=["a"], data=[[1]], step=2)
    logger.experiment.log({"own": 1})
    logger.finish(3)
    assert capsys.readouterr().err.count("\n") == 1
    assert method == "finish" or ended == [3]  # W&B is told how the run ended if it can be


def test_a_run_goes_on_where_wandb_cannot_begin(tmp_path, capsys, monkeypatch):
    def broken(**kwargs):
        raise TimeoutError("no answer")

    monkeypatch.setattr("wandb.init", broken)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    logger = WandbLogger(str(tmp_path))
    logger.log_metrics({"loss": 1.0}, step=1)
    logger.finish(0)
    assert capsys.readouterr().err.splitlines() == [
        "note: W&B does not answer (no answer); the run is logged offline, and `wandb sync` sends it later",
        "note: W&B has failed (no answer); the run goes on without it",
    ]


def test_what_wandb_lost_with_a_process_is_logged_again(tmp_path, monkeypatch):
    rows = []
    given = SimpleNamespace(
        id="1", entity=None, project="p", config={}, define_metric=lambda *args, **kwargs: None, log=rows.append,
        finish=lambda exit_code: None, dir="wandb/run-1/files",
    )  # fmt: skip
    monkeypatch.setattr("wandb.init", lambda **kwargs: given)
    (tmp_path / "wandb.json").write_text('{"id": "1", "project": "p"}\n')  # of a process that was killed at once
    (tmp_path / "metrics.csv").write_text("epoch,step,loss,accuracy\n0,5,2.5,\n0,9,,0.5\n1,15,1.5,\n")
    logger = WandbLogger(str(tmp_path), mode="offline")
    logger.take_up(True, 10)
    logger.log_metrics({"loss": 1.5}, step=15)
    assert rows == [
        {"epoch": 0, "loss": 2.5, "trainer/global_step": 5},
        {"epoch": 0, "accuracy": 0.5, "trainer/global_step": 9},
        {"loss": 1.5, "trainer/global_step": 15},
    ]
    logger.finish(0)
    rows.clear()
    again = WandbLogger(str(tmp_path), mode="offline")
    again.take_up(True, 10)
    for step in (12, 15):
        again.log_metrics({"loss": 1.5}, step=step)
    again.log_metrics({"accuracy": 0.5}, step=15)
    again.log_metrics({"loss": 1.0}, step=16)
    assert rows == [{"accuracy": 0.5, "trainer/global_step": 15}, {"loss": 1.0, "trainer/global_step": 16}]
