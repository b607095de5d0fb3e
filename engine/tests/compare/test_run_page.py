"""Tests that the page and model card of a run match the run's files."""

import html
import json
import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from helpers import TINY
from html_pages import Page, tables
from lit_engine.callbacks import figures
from lit_engine.tools.pages.run_page import MARK, render_card, render_page, write
from lit_engine.tools.runs.reading import Run
from toy.tasks import ImageClassifier


def test_options_that_differ_from_the_first_config_are_listed(lit):
    options = "-c configs/overlays/ema.yaml --trainer.max_epochs=1 --test_after_fit=false"
    result = lit(f"fit -c configs/quickstart.yaml {TINY} --run_name=a {options}")
    changed = json.loads((result.run / "provenance.json").read_text())[0]["changed"]
    assert changed["trainer.max_epochs"] == [15, 1]
    assert changed["trainer.callbacks.EMA"] == [None, "lit_engine.callbacks.averaging.EMA"]
    assert changed["model.net.hidden_sizes"] == [[64], [32]]
    assert {key.split(".")[0] for key in changed} == {"model", "data", "trainer", "test_after_fit"}
    assert tables(result.run)[-3]["trainer.max_epochs"]["in the config"] == "15"
    smoothed = lit(
        f"fit -c configs/quickstart.yaml --trainer.limit_train_batches=1 {options} --run_name=c",
        "--model.label_smoothing=0.1 --model.net.dropout=0.1",
    )
    note = "train: the last epoch, with any dropout, augmentation and label smoothing"
    assert note in (smoothed.run / "index.html").read_text()
    again = lit(f"fit -c {result.run}/config.yaml --run_name=b")
    assert json.loads((again.run / "provenance.json").read_text())[0]["changed"] == {}
    assert "differs" not in (again.run / "index.html").read_text()


def test_page_omits_missing_data_and_shows_unknown_metrics(make_run):
    """Covers killed runs, and runs of other tasks and earlier versions."""
    run = make_run("a", test={"test/iou/road": 0.5, "test/iou/car": 0.25, "bleu_by_length": {"1–5": 40.0}})
    whole = tables(run)
    assert whole[0] == {"loss": {"metric": "loss", "train": "0.1000", "val": "0.3000", "test": "0.7000"}}
    assert "comparable" not in render_page(Run.read(run))
    assert whole[1]["road"]["iou"] == "0.5000"
    assert whole[2]["1–5"]["bleu"] == "40.00"
    for name in ("config.yaml", "provenance.json", "metrics.csv", "metrics.json"):
        (run / name).unlink()
        assert "<h1>x/a</h1>" in render_page(Run.read(run))
        assert render_card(Run.read(run)).startswith("---\nlibrary_name: ")
    killed = make_run("<b>&", (0.5,), None)
    assert "killed" in render_page(Run.read(killed))
    assert "<b>" not in render_page(Run.read(killed))


def test_pages_of_killed_runs_plot_metrics_that_are_only_logged_in_training(make_run, monkeypatch):
    drawn, draw = {}, figures.learning_curves
    monkeypatch.setattr(figures, "learning_curves", lambda curves, best: drawn.update(curves) or draw(curves, best))
    run = make_run("a", status=None)
    rows = "0,9,0.5,2,warm\n1,19,0.3,1,end\n"
    (run / "metrics.csv").write_text(f"epoch,step,val/loss,g_loss,phase\n{rows}")
    render_page(Run.read(run))
    assert drawn == {"loss": {"val": [(0, 0.5), (1, 0.3)]}, "g_loss": {"train": [(0, 2), (1, 1)]}}


def test_samples_are_shown_unchanged(make_run):
    run = make_run("a")
    (run / "predictions").mkdir()
    samples = {"Worst": [{"BLEU": 3.5, "source": "a | <unk> *b*", "references": "one & two"}]}
    (run / "predictions" / "test_samples.json").write_text(json.dumps(samples))
    page = Page(render_page(Run.read(run)))
    assert page.tables[1] == [["BLEU", "source", "references"], ["3.5", "a | <unk> *b*", "one & two"]]


def test_page_of_a_failed_run_has_its_curves_and_the_command_to_resume(lit, monkeypatch):
    def step(task, *args):
        if task.current_epoch == 2:
            raise RuntimeError("a broken step")
        return training_step(task, *args)

    training_step = ImageClassifier.training_step
    monkeypatch.setattr(ImageClassifier, "training_step", step)
    with pytest.raises(RuntimeError, match="a broken step"):
        lit(f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=3 --run_name=a")
    page = Path("runs/quickstart/a/index.html").read_text()
    assert re.search(r"; 2 epochs; \d+ steps; .*failed\.", page)
    assert re.findall('alt="(.*?)"', page) == ["learning curves", "learning rate", "gradient norm", "train batch"]
    assert "fit runs/quickstart/a" in page


def test_the_command_to_repeat_a_run_includes_the_initial_weights(make_run):
    plain, warm = Run.read(make_run("a")), Run.read(make_run("b", init_from="runs/x y"))
    assert "fit -c runs/x/a/config.yaml<" in render_page(plain)
    assert "fit -c runs/x/b/config.yaml '--init_from=runs/x y'<" in html.unescape(render_page(warm))
    fork = Run.read(
        make_run("c", fork={"run": "runs/x/a", "checkpoint": "last.ckpt", "epochs": 2, "step": 20, "rows": 2})
    )
    assert "fit -c runs/x/c/config.yaml --fork=runs/x/a@last.ckpt<" in render_page(fork)


def test_failing_to_write_a_page_only_prints_a_warning(make_run, capsys):
    run = make_run("a")
    (run / "index.html").mkdir()
    write(run)
    (run / "metrics.json").write_text("{")
    write(run)
    out, err = capsys.readouterr()
    assert out == ""
    assert [line[:28] for line in err.splitlines()] == ["warning: no page was written"] * 2


@pytest.mark.parametrize("copied", [2, 0])
def test_the_time_per_epoch_of_a_fork_excludes_the_epochs_of_its_parent(make_run, copied):
    fork = {"run": "runs/x/parent", "checkpoint": "last.ckpt", "epochs": 2, "step": 20, "rows": copied}
    run = make_run("child", (0.5, 0.4, 0.3, 0.2, 0.1), fork=fork)  # 90 s for three epochs
    write(run)
    assert "30 s per epoch" in (run / "index.html").read_text()


def test_no_speed_is_shown_if_a_killed_fit_recorded_no_duration(make_run, say):
    run = make_run("killed", status=0)
    (entry,) = json.loads((run / "provenance.json").read_text())
    killed = {name: value for name, value in entry.items() if name not in ("status", "seconds")}
    (run / "provenance.json").write_text(json.dumps([killed, entry]))
    assert say(f"compare {run}")[0] == 0
    assert "val/loss by minutes" not in Path("runs/x/compare.html").read_text()
    write(run)
    assert "s per epoch" not in (run / "index.html").read_text()


def test_anchors_on_a_page_are_unique(make_run):
    run = make_run("a", test={"confusion": {"x": {"x": 3, "y": 1}, "y": {"x": 2, "y": 4}}})
    sections = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps({**sections, "val": sections["test"]}))
    write(run)
    anchors = re.findall(r' id="([^"]+)"', (run / "index.html").read_text())
    assert any(anchor.endswith("most-confused") for anchor in anchors)
    assert len(anchors) == len(set(anchors))


def test_model_card_is_valid_on_the_hub_and_lists_results_and_sample_counts(make_run):
    run = make_run("a", test={"test/accuracy": 0.75, "test/samples": 40, "task": "image-classification"})
    write(run)
    data = ModelCard.load(run / "README.md").data
    assert (data.library_name, data.pipeline_tag) == ("pytorch", "image-classification")
    results = {result.metric_name: result for result in data.eval_results}
    assert results["test accuracy"].metric_value == 0.75
    assert results["test accuracy"].dataset_args == {"samples": 40}
    assert (results["val loss"].dataset_split, results["val loss"].metric_value) == ("validation", 0.3)
    card = (run / "README.md").read_text()
    assert "val: the best epoch by val/loss; train: the last epoch" in card
    (run / "README.md").write_text(card.replace(MARK, "My words."))
    write(run)
    assert "My words." in (run / "README.md").read_text()
