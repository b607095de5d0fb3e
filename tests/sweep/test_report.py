"""What a sweep has found: the table, the best config, and folders that cannot be written."""

from pathlib import Path

import pytest

from lit_project.errors import UserError
from lit_project.sweep import command, report
from lit_project.sweep.config import SweepConfig
from lit_project.sweep.parameters import parameters_of
from lit_project.sweep.study import Study

COMMAND = ("fit", "--config", "configs/x.yaml", "--config", "${args_json_file}")


@pytest.fixture
def study(tmp_path):
    """Of a grid of ten, without a trial."""
    parameters = tuple(parameters_of({"a": {"min": 1, "max": 10}}))
    return Study(tmp_path, SweepConfig("grid", "val/score", True, parameters, COMMAND, None, None))


@pytest.fixture
def ended(study, tmp_path):
    """Adds a trial that has ended."""

    def end(value, state):
        number = study.next(100).number
        run = tmp_path / "x" / f"trial-{number}"
        run.mkdir(parents=True)
        (run / "config.yaml").write_text(f"# A run.\nnumber: {number}\ntest_after_fit: false\n")
        study.note(number, run=str(run))
        study.finish(number, [value], state)

    return end


def test_a_failed_trial_is_never_the_best(study, ended, tmp_path, capsys):
    for value, state in ((0.9, "failed"), (0.5, "finished"), (0.6, "stopped")):
        ended(value, state)
    assert command._report(study, tmp_path) == 0
    assert "number: 2\n" in (tmp_path / "best.yaml").read_text()
    shown = [line.split()[:3] for line in capsys.readouterr().out.splitlines()[1:4]]
    assert shown == [["2", "stopped", "0.6000"], ["1", "finished", "0.5000"], ["0", "failed", "0.9000"]]


def test_no_best_config_where_all_trials_failed(study, ended, tmp_path, capsys):
    (tmp_path / "best.yaml").write_text("of a sweep before")
    ended(0.9, "failed")
    assert command._report(study, tmp_path) == 1
    assert not (tmp_path / "best.yaml").exists()
    assert "best config" not in capsys.readouterr().out


def test_the_table_is_printed_where_the_report_cannot_be_written(study, ended, tmp_path, capsys):
    ended(0.5, "finished")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write the report to .*file/inside: Not a directory"):
        command._report(study, tmp_path / "file" / "inside")
    assert "1 trials: 1 finished" in capsys.readouterr().out


def test_a_full_disk(study, ended, tmp_path, monkeypatch):
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    ended(0.5, "finished")
    monkeypatch.setattr(report, "write_text", full)
    with pytest.raises(UserError, match=r"cannot write the report to .*: No space left on device"):
        report.report(study, tmp_path)


def test_the_page_says_how_importance_is_measured(study, ended, tmp_path):
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    for n in range(6):
        ended(n / 10, "finished")
    report.report(study, tmp_path)
    assert "best tenth (PED-ANOVA)" in (tmp_path / "index.html").read_text()
    default = get_param_importances(study.optuna)
    assert default == get_param_importances(study.optuna, evaluator=PedAnovaImportanceEvaluator(target_quantile=0.1))
