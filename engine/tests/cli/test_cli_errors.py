"""Mistakes in a config or command exit with status 2 and a short message with the key, value and closest name."""

import subprocess
import sys

import pytest
import yaml

from helpers import TINY, TOY
from toy.__main__ import entry_point

Q = "fit -c configs/quickstart.yaml"
CASES = {
    # Words that each command's message must contain.
    f"{Q} --trainer.max_epoch=3": ["--trainer.max_epoch", "did you mean --trainer.max_epochs"],
    f"{Q} --trainer.gpus=1": ["trainer.devices", "trainer.accelerator=gpu"],
    f"{Q} --gpus 1": ["trainer.devices"],
    f"{Q} -c gpus.yaml": ["trainer.devices"],
    f"{Q} --lrr=0.1": ["--lrr=0.1; did you mean --lr?"],
    f"{Q} --learning_rate=0.1": ["--learning_rate=0.1; did you mean --lr?"],
    f"{Q} -lr 0.1": ["-lr is not an option. Write --lr"],
    "repeat quickstart -workers 2": ["-workers is not an option. Write --workers"],
    f"{Q} --run_nam=x": ["--run_nam=x; did you mean --run_name?"],  # no abbreviations
    # LightningCLI would ignore a scheduler without an optimizer, and step any scheduler by epoch.
    f"{Q} --lr_scheduler=StepLR": ["model.init_args"],
    # These configs are written for LightningCLI.
    "fit -c optimizer.yaml": ["model.init_args.optimizer"],
    "fit -c scheduler.yaml": ["model.init_args.schedulers"],
    "fit -c subcommand.yaml": ["remove the top-level key `fit`"],
    # A missing checkpoint must never start training from scratch.
    f"{Q} --ckpt_path last": ["--run", "--init_from"],
    f"{Q} --trainer.max_epochs=abc": ["trainer.max_epochs", "abc", "int"],
    f"{Q} --trainer.precision=bf17": ["trainer.precision", "bf17", "did you mean bf16"],
    f"{Q} --precision fp16": ["Got value: fp16; did you mean 16-mixed?"],
    f"{Q} --seed_everything=-1": ["seed_everything", "from 0 to 4294967295", "-1"],
    "": ["the first argument must be a command", "examples"],
    f"-c configs/quickstart.yaml {Q}": ["the first argument must be a command"],
    f"{Q} --model.net.hidden_size=3": ["model.net.hidden_size", "did you mean hidden_sizes"],
    f"{Q} --model.net MLQ": ["model.net", "MLQ", "did you mean MLP"],
    f"{Q} --model toy.tasks.ImageClasifier": ["ImageClasifier", "did you mean ImageClassifier"],
    f"{Q} --model.net=mine.Wide": ["model.net: No module named 'mine'", "in the folder that contains mine.py"],
    f"{Q} --data statistics": ["data: no class statistics, because statistics is a module: write statistics.NAME"],
    "fit -c flat.yaml": ["model: Option 'lr' is not accepted; write model: {class_path: NAME, init_args: {lr: …}}"],
    f"{Q} --model.optimizer torch.optim.Adan": ["model.optimizer", "did you mean torch.optim.Adam"],
    f"{Q} --model.optimizer.lr=-0.1": ["optimizer: ", "learning rate: -0.1"],
    f"{Q} --model.optimizer=os.system": ["model.optimizer: ", "os.system", "must not use"],
    f"{Q} --model.net=torchvision.models.resnet18": ["model.net is a function, but a class is required"],
    f"{Q} --model.optimizer=torch.nn.Linear": ["model.optimizer: ", "torch.nn.Linear", "Optimizer"],
    f"{Q} --data.sampling={{3:5}}": ["--data.sampling={3:5}", "needs a space after each colon"],
    f"{Q} --model.top_k=30": ["top_k", "30", "10"],
    f"{Q} --model.net.num_classes=3": [
        "MLP: num_classes comes from Digits (10), but was set to 3",
        "remove the option",
    ],
    f"{Q} --trainer.callbacks+=EarlyStoping": ["did you mean lightning.pytorch.callbacks.EarlyStopping"],
    f"{Q} --trainer.callbacks.monitor=val/accuracy": [
        "trainer.callbacks.monitor",
        "by the last element of trainer.callbacks",
    ],
    f"{Q} --trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor=val/accuracy": [
        "EarlyStopping monitors val/accuracy without a mode: set its mode to max"  # Lightning's default is min
    ],
    f"{Q} -c stops.yaml": ["EarlyStopping monitors val/accuracy without a mode: set its mode to max"],
    f"{Q} --trainer.gradient_clip_val=-1": ["trainer.gradient_clip_val must not be negative, got -1"],
    f"{Q} --trainer.accumulate_grad_batches=0": ["trainer.accumulate_grad_batches must be at least 1, got 0"],
    f"{Q} --trainer.deterministic=true --trainer.benchmark=true": ["deterministic has no effect", "benchmark=false"],
    f"{Q} --trainer.matmul_precision=hi": ["trainer.matmul_precision", "'highest', 'high', 'medium'", "hi"],
    f"{Q} --model.compile={{'mode':'fast'}}": ["model.compile", "'max-autotune'", "fast"],
    f"{Q} --trainer.val_check_interval=0": ["trainer.val_check_interval must be above 0"],
    f"{Q} --trainer.val_check_interval=999": ["`val_check_interval` (999) must be less than or equal to the number"],
    f"fit -c configs/overlays/ema.yaml {Q.removeprefix('fit ')}": [
        "quickstart.yaml is a complete config",
        "followed by overlays",
    ],
    f"{Q} -c whole.yaml": ["whole.yaml is a complete config", "followed by overlays"],
    "fit --name a --epochs 7 quickstart": ["quickstart.yaml would replace --trainer.max_epochs=7: write options after"],
    "fit --trainer.callbacks+=EMA quickstart": ["quickstart.yaml would replace --trainer.callbacks+=", "EMA"],
    "repeat --epochs 2 quickstart --seeds 1": ["quickstart.yaml would replace --trainer.max_epochs=2"],
    "fit --run runs/a --run runs/b": ["--run accepts one run, got runs/a and runs/b"],
    "export runs/a --run runs/b": ["--run: not allowed with argument RUN"],
    "sweep configs/sweeps/grid.yaml --count -3": ["--count: must be at least 1, got -3"],
    "sweep configs/sweeps/grid.yaml --lost_after -5": ["--lost_after: must be at least 1, got -5"],
    f"sweep configs/sweeps/grid.yaml --report --dir {'x' * 300}": ["File name too long: xxx"],
    f"export {'x' * 300}": ["File name too long: xxx"],
    "schema --output README.md/schema.json": ["cannot write the schema README.md/schema.json: "],
    f"{Q} --trainer.callbacks+=EarlyStopping --trainer.callbacks.mode=min --trainer.callbacks.monitor=val/los": [
        "monitor: val/los is not logged in validation. Logged metrics: val/accuracy, val/loss"
    ],
    f"{Q} --trainer.logger+=CSVLoger": ["trainer.logger", "did you mean lightning.pytorch.loggers.CSVLogger?"],
    "repeat quikstart --seeds 1": ["quikstart is neither a config, a run nor a seed; did you mean quickstart?"],
    "repeat quickstart --seeds 1 b": ["b is neither a config, a run nor a seed"],
    "sweep gird": ["no sweep gird; did you mean grid?"],
    f"{Q} --trainer.limit_val_batches=0": ["monitor: val/loss is not logged in validation", "none (no validation)"],
    f"{Q} --trainer.strategy=ddp_spawn": ["runs with trainer.strategy=ddp_spawn cannot be recorded: use ddp instead"],
    f"{Q} -c loggers.yaml": ["trainer.logger: Option 'save_dr' is not accepted", "; did you mean save_dir?"],
    f"{Q} --trainer.logger+=CSVLogger": ["trainer.logger", "required: save_dir"],
    f"{Q} --model.metrics=[MulticlasF1Score]": ["model.metrics", "did you mean torchmetrics", "MulticlassF1Score?"],
    f"{Q} --model.metrics.f1=torchmetrics.classification.MulticlassF1Score --model.metrics.f1.averag=micro": [
        "model.metrics.f1.averag: Option 'averag' is not accepted; did you mean average?"
    ],
    f"{Q} --data Session": ["data: no class Session"],  # the library has a class of this name
    f"{Q} -c patience.yaml": [
        "trainer.callbacks: Option 'patiense' is not accepted (in patience.yaml); did you mean patience?"
    ],
    f"{Q} -c class.yaml": ["model.metrics", "torch.nn.ReLU", "Metric"],
    f"{Q} -c typo.yaml": ["model.metrics", "'avrage' is not accepted (in typo.yaml); did you mean average?"],
    f"{Q} -c value.yaml": ["model.metrics", "'micro', 'macro'", "mikro; did you mean micro?"],
    "fit configs/quikstart.yaml": ["no such file: configs/quikstart.yaml", "did you mean quickstart"],
    f"{Q} --run_name=~": ["--run_name needs a value"],
    f"test{Q.removeprefix('fit')} --init_strict=true": ["init_strict is not an option of test"],
    "fit -c configs": ["configs is a folder"],
    "fit -c README.md": ["README.md, line 4", "not valid YAML"],
    "fit -c list.yaml": ["list.yaml contains no options"],
    "fit -c control.yaml": ["control.yaml is not valid YAML: unacceptable character #x0001"],
    f"{Q} -c indented.yaml": ["indented.yaml, line 3 is not valid YAML", "check the indentation"],
    f"{Q} -c tabs.yaml": ["tabs.yaml, line 2 is not valid YAML", "indent with spaces"],
    f"{Q} -c twice.yaml": ["twice.yaml, line 5 is not valid YAML: duplicate key trainer"],
    f"{Q} -c run.yaml": ["`run` is not a config key; use --run runs/quickstart/base to resume"],
    f"{Q} --trainer.fast_dev_run": ["--trainer.fast_dev_run: expected one argument"],
    "fit -c early_stoping": ["no such config: early_stoping; did you mean configs/overlays/early_stopping.yaml?"],
    f"{Q} --model.optimizer.lr=fast": ["model.optimizer.lr: Expected a float. Got value: fast"],
    "fit": ["a config", "configs/quickstart.yaml"],
    "test -c configs/quickstart.yaml --ckpt_path last": ["last", "--run"],
    "test -c configs/quickstart.yaml --ckpt_path nowhere.ckpt": ["nowhere.ckpt"],
    "test --run nowhere": ["nowhere"],
    f"{Q} --init_prefixes={{'net.':null}}": ["--init_prefixes needs --init_from"],
    f"{Q} --init_strict=true": ["--init_strict needs --init_from"],
}


FILES = {
    "README.md": "# A project\n\nWords,\nnothing: but words: and colons\n",
    "list.yaml": "- model\n- data\n",
    "control.yaml": "a: \x01\n",
    "gpus.yaml": "trainer: {gpus: 1}\n",
    "optimizer.yaml": "optimizer: {class_path: torch.optim.Adam, init_args: {lr: 0.01}}\n",
    "scheduler.yaml": "lr_scheduler: {class_path: StepLR, init_args: {step_size: 1}}\n",
    "subcommand.yaml": "fit: {trainer: {max_epochs: 1}}\n",
    "flat.yaml": "model: {lr: 0.1}\n",
    "patience.yaml": "trainer:\n  callbacks+: {class_path: EarlyStopping, init_args: {mode: min, patiense: 1}}\n",
    "loggers.yaml": "trainer:\n  logger:\n  - class_path: TensorBoardLogger\n"
    "  - {class_path: WandbLogger, init_args: {save_dr: here}}\n",
    "stops.yaml": "trainer:\n  callbacks+:\n  - {class_path: EarlyStopping, init_args: {monitor: val/accuracy}}\n"
    "  - {class_path: EarlyStopping, init_args: {monitor: val/loss, mode: min}}\n",
    "indented.yaml": "trainer:\n  max_epochs: 1\n    max_steps: 2\n",
    "tabs.yaml": "trainer:\n\tmax_epochs: 1\n",
    "twice.yaml": "trainer:\n  max_epochs: 1\ndata:\n  seed: 1\ntrainer:\n  max_steps: 3\n",
    **{
        f"{name}.yaml": f"model: {{init_args: {{metrics: [{{class_path: {metric}}}]}}}}\n"
        for name, metric in {
            "typo": "torchmetrics.classification.MulticlassF1Score, init_args: {avrage: micro}",
            "value": "torchmetrics.classification.MulticlassF1Score, init_args: {average: mikro}",
            "class": "torch.nn.ReLU",
        }.items()
    },
    "run.yaml": "run: runs/quickstart/base\n",
    "whole.yaml": TOY.joinpath("configs", "quickstart.yaml").read_text(),
}


@pytest.mark.parametrize("command", CASES)
def test_mistakes_in_commands_print_a_short_error_with_a_hint(lit, command, workspace):
    for name, text in FILES.items():
        (workspace / name).write_text(text)
    result = lit(command)
    assert result.status == 2
    message = result.err.strip()
    assert message.startswith("error: ")
    assert len(message.splitlines()) <= 4, message
    assert len(message) < 600
    for word in CASES[command]:
        assert word in message
    assert not (workspace / "runs" / "quickstart").exists()


def test_a_class_whose_module_was_not_imported_is_suggested_with_its_module(workspace):
    """The command runs in a new process, because other tests may import the module."""
    command = [sys.executable, "-m", "toy", *Q.split(), "--model.metrics=[MeanSquaredError]"]
    error = subprocess.run(command, capture_output=True, text=True).stderr
    assert "no class MeanSquaredError: write {class_path: torchmetrics.regression.MeanSquaredError}" in error


@pytest.mark.parametrize("command", ["compare", "runs"])
def test_an_empty_name_does_not_mean_the_current_folder(lit, command):
    result = lit(command, [""])
    assert result.status == 2
    assert result.err == "error: the name of a run or folder is empty\n"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("hidden_sizes:", "hidden_size:", ["model: ", "'hidden_size'", "did you mean hidden_sizes"]),
        ("    net:", "    nett:", ["model: ", "'nett.", "did you mean net?"]),
        ("model:", "modl:", ["'modl.", "did you mean model?"]),
        ("class_path: MLP", "classpath: MLP", ["model.net: ", "classpath: did you mean class_path?"]),
        ("class_path: MLP, init_args: {hidden_sizes: [64]}", "classpath: MLP", ["model: ", "did you mean class_path?"]),
        ("MLP, init_args: {hidden_sizes: [64]}", "MLP, hidden_sizes: [64]", ["model: ", "in init_args, not next to"]),
        ("init_args: {monitor: val/loss, mode: min}", "monitor: val/loss", ["trainer.callbacks: ", "in init_args"]),
        ("  init_args:\n    net:", "  top_k: 2\n  init_args:\n    net:", ["model: ", "in init_args, not next to"]),
        ("  init_args:\n    net:", "init_args:\n    net:", ["indent init_args below model or data"]),
        ("max_epochs: 15", "max_epoch: 15", ["trainer.max_epoch", "did you mean trainer.max_epochs"]),
        ("interval: step", "interval: stp", ["interval", "stp", "did you mean step"]),
        ("        interval: step\n", "", ["interval"]),  # there is no default
        ("OneCycleLR", "OneCycelLR", ["OneCycelLR", "did you mean OneCycleLR"]),
        ("monitor: val/loss", "monitor: val/los", ["val/los", "val/loss"]),
        ("mode: min", "mode: minimum", ["trainer.callbacks.mode", "minimum; did you mean min?"]),
        ("seed_everything:", "seed:", ["'seed' is not accepted; did you mean seed_everything?"]),
    ],
)
def test_mistakes_in_config_files_print_a_short_error_with_a_hint(lit, workspace, old, new, words):
    path = workspace / "configs" / "quickstart.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    result = lit(Q)
    assert result.status == 2
    assert "epoch 0" not in result.out  # nothing was trained
    assert len(result.err.strip().splitlines()) <= 4, result.err
    for word in words:
        assert word in result.err


MINE = """
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset
from toy.models import MLP

class Wide(MLP):
    pass

class Broken(torch.nn.Module):
    def __init__(self, num_classes: int):
        torch.nn.Linear(num_classes)

def called(x: int = 0) -> MLP:
    raise AssertionError

class Refusing(CSVLogger):
    def __init__(self):
        raise ValueError("no such server")

class Uninitialized(LightningDataModule):
    def __init__(self):
        self.num_classes, self.input_shape, self.class_names = 1, (1, 8, 8), ["ant"]

class Bare(LightningDataModule):
    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.size = size

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(16, self.size), torch.arange(16) % 3), 8)
"""


@pytest.fixture
def mine(workspace, monkeypatch):
    """A user's module in the working folder. It must not stay imported after the test."""
    (workspace / "mine_of_errors.py").write_text(MINE)
    monkeypatch.syspath_prepend(workspace)
    yield "mine_of_errors"
    sys.modules.pop("mine_of_errors", None)


def test_finds_modules_in_the_working_directory_of_an_interactive_session(lit, mine, monkeypatch, workspace):
    """`sys.path` starts with an empty string, which means the config's folder while the parser reads the config."""
    fit = lit(f"{Q} -c configs/overlays/debug.yaml --model.net={mine}.Wide")
    assert fit.status == 0, fit.err
    sys.modules.pop(mine)
    monkeypatch.setattr(sys, "path", ["", *(path for path in sys.path if path != str(workspace))])
    assert lit(f"predict --run {fit.run} --ckpt_path last").status == 0


def test_reports_attributes_that_the_data_module_lacks(lit, mine):
    result = lit(f"{Q} --data={mine}.Bare --data.size=8")
    assert result.status == 2
    assert f"{mine}.Bare must have class_names, num_classes, input_shape" in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_a_data_module_must_call_the_constructor_of_its_base_class(lit, mine):
    result = lit(f"{Q} --data={mine}.Uninitialized")
    assert result.status == 2
    assert result.err == "error: Uninitialized.__init__ must call super().__init__()\n"


def test_constructor_errors_report_the_cause_and_bugs_report_the_location(lit, mine, workspace):
    result = lit(f"{Q} --trainer.logger+={mine}.Refusing")
    assert result.status == 2
    assert result.err.strip() == f"error: {mine}.Refusing: no such server"
    line = MINE.splitlines().index("        torch.nn.Linear(num_classes)") + 1
    assert f"'out_features' ({workspace / mine}.py:{line})" in lit(f"{Q} --model.net={mine}.Broken").err
    (workspace / "broken_import.py").write_text("first = 1\nsecond = missing\n")
    result = lit(f"{Q} --model.net=broken_import.Net")
    assert f"name 'missing' is not defined ({workspace}/broken_import.py:2)" in result.err
    assert "No module named 'mine_of_error': install" in lit(f"{Q} --model.net=mine_of_error.Wide").err
    (workspace / "imports_missing.py").write_text("import missing_package\n")
    result = lit(f"{Q} --model.net=imports_missing.Net")
    assert "No module named 'missing_package' (imported by imports_missing): install it" in result.err


@pytest.mark.parametrize("key", ["optimizer", "net", "loss", "schedulers"])
def test_rejects_a_function_where_a_class_is_required_without_calling_it(lit, workspace, mine, key):
    config = yaml.safe_load((workspace / "configs" / "quickstart.yaml").read_text())
    function = {"class_path": f"{mine}.called", "init_args": {"x": 1}}
    config["model"]["init_args"][key] = (
        [{"scheduler": function, "interval": "step"}] if key == "schedulers" else function
    )
    (workspace / "mine.yaml").write_text(yaml.safe_dump(config))
    result = lit("fit -c mine.yaml")
    assert result.status == 2
    assert f"error: model.{key}" in result.err
    assert "is a function, but a class is required" in result.err
    assert len(result.err.splitlines()) == 1


def test_finds_modules_in_the_folder_where_the_command_runs(workspace, monkeypatch, capfd):
    """The location of the config does not matter, although the parser changes to its folder."""
    (workspace / "mine_of_paths.py").write_text(MINE)
    (workspace / "configs" / "mine.yaml").write_text("model: {init_args: {net: {class_path: mine_of_paths.Wide}}}")
    monkeypatch.setattr(sys, "path", sys.path[:])
    fit = f"fit -c configs/quickstart.yaml -c configs/mine.yaml {TINY.partition(' ')[2]} --trainer.max_epochs=1"
    for command in (f"{fit} --run_name=a", "test --run runs/quickstart/a"):
        monkeypatch.setattr(sys, "argv", ["toy", *command.split()])
        with pytest.raises(SystemExit, match="0"):
            entry_point()
        assert "Wide: " in capfd.readouterr().out
    del sys.modules["mine_of_paths"]


def test_errors_in_the_code_keep_their_traceback(lit, monkeypatch):
    from toy.models import MLP

    def broken(self, x):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(MLP, "forward", broken)
    with pytest.raises(ZeroDivisionError):
        lit(Q)
