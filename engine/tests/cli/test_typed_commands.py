"""The command line accepts what people are likely to type, or prints the correct command."""

import json
import subprocess
import sys
from contextlib import suppress

import pytest
import yaml

from helpers import TINY
from lit_engine.cli.invocation import prepare
from lit_engine.cli.shorthand import expand
from toy.__main__ import PROJECT, main

SHORT = f"{TINY} --trainer.limit_train_batches=2"


def config_of(workspace, name):
    (file,) = workspace.glob(f"runs/*/{name}/config.yaml")
    return yaml.safe_load(file.read_text())


@pytest.mark.parametrize(
    "typed", ["fit quickstart", "fit configs/quickstart.yaml", "fit -c quickstart", "fit quickstart.yaml"]
)
def test_a_config_can_be_given_by_name_or_path(lit, workspace, typed):
    assert lit(f"{typed} {SHORT} --run-name=a --epochs 1").status == 0
    assert (workspace / "runs/quickstart/a/config.yaml").exists()


def test_flags_may_precede_the_config_name(workspace):
    assert expand(PROJECT, ["sweep", "--report", "grid"])[2].endswith("configs/sweeps/grid.yaml")
    *others, config = expand(PROJECT, ["repeat", "--seeds", "1", "2", "--json", "quickstart"])
    assert others == ["repeat", "--seeds", "1", "2", "--json"]
    assert config.startswith("--config=")
    assert config.endswith("configs/quickstart.yaml")
    assert prepare(expand(PROJECT, ["fit", "--name", "a", "quickstart"])).config_name == "quickstart"


def test_overlays_can_be_given_by_name(lit, workspace):
    assert lit(f"fit quickstart label_smoothing -c ema {SHORT} --name=a --epochs 1").status == 0
    callbacks = [callback["class_path"] for callback in config_of(workspace, "a")["trainer"]["callbacks"]]
    assert callbacks[-1].endswith("EMA")


def test_short_options_are_recorded_under_their_full_names(lit, workspace):
    options = "--lr 0.01 --epochs 1 --batch-size 50 --seed 7 --name a --devices 1 --precision 64-true"
    assert lit(f"fit quickstart {SHORT} {options}").status == 0
    config = config_of(workspace, "a")
    optimizer = config["model"]["init_args"]["optimizer"]["init_args"]
    assert (optimizer["lr"], config["data"]["init_args"]["batch_size"], config["seed_everything"]) == (0.01, 50, 7)
    trainer = config["trainer"]
    assert (trainer["max_epochs"], trainer["devices"], trainer["precision"]) == (1, "1", "64-true")
    assert not {"lr", "epochs", "name", "run_name"} & set(config)
    changed = json.loads((workspace / "runs/quickstart/a/provenance.json").read_text())[0]["changed"]
    assert changed["model.optimizer.lr"] == [0.004, 0.01]


@pytest.mark.parametrize("arguments", [", init_args: {learning_rate: 0.1}", ""])
def test_lr_option_sets_the_learning_rate_of_a_plain_module(lit, workspace, monkeypatch, arguments):
    monkeypatch.syspath_prepend(workspace)
    (workspace / "typed_module.py").write_text(
        "from lightning.pytorch.demos.boring_classes import BoringDataModule as Data, BoringModel\n"
        "class Mine(BoringModel):\n"
        "    def __init__(self, learning_rate: float = 0.1):\n"
        "        super().__init__()\n        self.save_hyperparameters()\n"
    )
    (workspace / "mine.yaml").write_text(
        f"model: {{class_path: typed_module.Mine{arguments}}}\ndata: {{class_path: typed_module.Data}}\n"
    )
    assert lit("fit mine.yaml --lr 0.25 --name a --epochs 1 --trainer.limit_train_batches=1").status == 0
    assert config_of(workspace, "a")["model"]["init_args"]["learning_rate"] == 0.25
    (workspace / "runs").rename("others")
    for run in ("latest", "--run=latest", "--fork=latest", "--fork=latest@last", "others/mine/a"):
        assert "--model.learning_rate=0.5" in expand(PROJECT, ["fit", run, "--runs_dir=others", "--lr=0.5"])
    (workspace / "quickstart").mkdir()
    for words in (["quickstart"], ["latest", "quickstart", "--runs_dir=others"]):  # the config takes precedence
        assert "--model.optimizer.lr=0.5" in expand(PROJECT, ["fit", *words, "--lr=0.5"])


def test_a_run_can_be_given_as_a_positional_argument(lit, workspace):
    assert lit(f"fit quickstart {SHORT} --name a --epochs 1").status == 0
    run = workspace / "runs/quickstart/a"
    for command in ("validate", "test", "predict"):
        assert lit(f"{command} runs/quickstart/a").status == 0
    assert {"fit", "validate", "test"} <= set(json.loads((run / "metrics.json").read_text()))
    assert (run / "predictions/test.csv").exists()
    result = lit("fit latest")
    assert result.status == 0
    assert "nothing to do" in result.out
    assert lit("predict --probabilities runs/quickstart/a").status == 0
    assert len((run / "predictions/test.csv").read_text().partition("\n")[0].split(",")) > 10
    result = lit("test")
    assert result.status == 2
    assert "runs/quickstart/a" in result.err
    assert "--run RUN" in result.err


ANSWERS = {
    **dict.fromkeys(("train quickstart", "run"), "Did you mean `fit`?"),
    "eval": "Did you mean `test`?",
    "resume": "Did you mean `fit RUN`?",
    "list": "Did you mean `runs`?",
    "tune": "Did you mean `sweep`?",
    "infer": "Did you mean `predict`?",
    "quickstart": "Did you mean `fit quickstart`?",
    "fit model.optimizer.lr=0.1": "Write --model.optimizer.lr=0.1",
    "fit quikstart": "quikstart is neither a config nor a run; did you mean quickstart?",
    "fit runs": "runs is not a run directory",
    "test runs/quickstart/frist": "no such run directory: runs/quickstart/frist; did you mean first?",
    "test quickstart/first": "no such run directory: quickstart/first; did you mean runs/quickstart/first?",
    "fit quickstart --lr": "--lr needs a value",
    "fit": "fit needs a config, for example `toy fit configs/quickstart.yaml`",
    "predict": "predict needs a run",
}


@pytest.mark.parametrize("typed", ANSWERS)
def test_errors_suggest_the_correct_command(lit, workspace, typed):
    (workspace / "runs" / "quickstart" / "first").mkdir(parents=True, exist_ok=True)
    result = lit(typed)
    assert result.status == 2
    assert ANSWERS[typed] in result.err


@pytest.mark.parametrize(("typed", "script"), [("new", "scripts/new_task.py"), ("init", "scripts/init_project.py")])
def test_scripts_are_suggested_where_they_exist(lit, workspace, typed, script):
    assert script not in lit(typed).err
    (workspace / "scripts").mkdir()
    (workspace / script).touch()
    assert f"Did you mean `python {script} NAME`?" in lit(typed).err


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_the_help_fits_on_a_screen(lit, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    result = lit(f"{command} --help")
    lines = result.out.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 80
    assert lines[4] == "short options:"
    assert ("--lr" in result.out) == (command == "fit")
    assert ("--images" in result.out) == (command == "predict")


@pytest.mark.parametrize(
    ("option", "shown"),
    [("--data.help Digits", "data.val_size"), ("--trainer.logger.help WandbLogger", "trainer.logger.finish_timeout")],
)
def test_the_help_of_a_class_accepts_its_short_name(lit, capfd, option, shown):
    with pytest.raises(SystemExit) as ended:
        lit(f"fit {option}")
    assert ended.value.code == 0
    assert shown in capfd.readouterr().out


def test_the_help_of_an_unknown_class_suggests_a_similar_name(lit):
    assert lit("fit --data.help Digtis").err == "error: --data.help: no class Digtis; did you mean Digits?\n"


def test_help_all_exits_successfully(lit):
    with pytest.raises(SystemExit) as ended:
        lit("fit --help=all")
    assert ended.value.code == 0


# Exit status of commands that must not import torch, because importing it takes seconds.
QUICK = {"--help": 0, "fit --help": 0, "greet --help": 0, "runs --help": 0, "examples quickstart": 0, "train": 2,
         "test": 2, "fit quikstart": 2, "fit -c nowhere.yaml": 2}  # fmt: skip


@pytest.mark.parametrize("typed", QUICK)
def test_quick_commands_do_not_import_torch(typed):
    code = (
        f"import sys; sys.argv[1:] = {typed.split()!r}\n"
        "from toy.__main__ import entry_point\n"
        "try: entry_point()\n"
        "finally: assert not {'torch', 'lightning', 'jsonargparse', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == QUICK[typed], done.stderr
    assert done.stdout or done.stderr.startswith("error: ")


@pytest.mark.parametrize("command", ["fit --help", "compare --help", "sweep --help", "export --help"])
def test_help_fits_the_terminal(workspace, capfd, monkeypatch, command):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    printed = {}
    for width in (80, 300):
        monkeypatch.setenv("COLUMNS", str(width))
        with suppress(SystemExit):
            main(command.split())
        printed[width] = capfd.readouterr().out
        assert [line for line in printed[width].splitlines() if len(line) > width] == []
    assert printed[80].split() == printed[300].split()
    assert printed[80].count("\n") > printed[300].count("\n")
