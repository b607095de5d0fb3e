"""Known pitfalls of LightningCLI that the command line avoids."""

import json
import re
from typing import Any

import pytest
import yaml

from helpers import TINY
from lit_engine.checkpoints.io import read
from lit_engine.cli.invocation import prepare
from toy.models import MLP


def test_values_missing_from_the_data_can_be_set_by_hand_and_are_saved(lit, workspace, monkeypatch):
    monkeypatch.syspath_prepend(str(workspace))
    (workspace / "blind.py").write_text(
        "from toy.data import Digits\nclass Blind(Digits):\n    def __init__(self):\n"
        "        super().__init__()\n        del self.mean, self.std\n"
    )
    config = f"fit -c configs/quickstart.yaml {TINY.replace('--data.batch_size=128', '')} --trainer.max_epochs=1"
    fit = lit(config, "--test_after_fit=false --data=blind.Blind --model.mean=[0.25]")
    assert fit.status == 0, fit.err
    assert "warning: Blind does not set mean and std: set model.mean and model.std" in fit.err
    assert read(fit.run / "checkpoints" / "last.ckpt")["hyper_parameters"]["mean"] == [0.25]
    assert yaml.safe_load((fit.run / "config.yaml").read_text())["model"]["init_args"]["mean"] == [0.25]


def test_overlays_append_callbacks(lit):
    result = lit(
        f"fit -c configs/quickstart.yaml -c configs/overlays/early_stopping.yaml -c configs/overlays/debug.yaml {TINY}"
    )
    names = [c["class_path"] for c in yaml.safe_load((result.run / "config.yaml").read_text())["trainer"]["callbacks"]]
    assert [name.rpartition(".")[2] for name in names] == ["Checkpoint", "Figures", "EarlyStopping"]
    assert (result.run / "checkpoints" / "last.ckpt").exists()


@pytest.fixture
def printed(lit, capfd):
    """Return a function that returns the config printed by `--print_config`."""

    def run(*options):
        with pytest.raises(SystemExit, match="0"):
            lit("fit -c configs/quickstart.yaml", *options, "--print_config")
        return yaml.safe_load(capfd.readouterr().out)

    return run


@pytest.mark.parametrize("is_text", [True, False])
@pytest.mark.parametrize("is_class_first", [True, False])
def test_dotted_keys_of_a_config_may_set_a_class_and_its_argument(printed, workspace, is_class_first, is_text):
    """The values of a sweep are written in this format, to a file or on the command line."""
    pairs = [("model.optimizer", "torch.optim.SGD"), ("model.optimizer.lr", 0.02), ("trainer.max_epochs", 7)]
    pairs += [("model.net", "MLP"), ("model.net.hidden_sizes", [64] * 80)]  # text longer than a file name may be
    text = json.dumps(dict(pairs if is_class_first else pairs[::-1]))
    (workspace / "values.json").write_text(text)
    config = printed(["--config", text if is_text else "values.json"])
    optimizer, net = (config["model"]["init_args"][name] for name in ("optimizer", "net"))
    assert (optimizer["class_path"], optimizer["init_args"]["lr"]) == ("torch.optim.SGD", 0.02)
    assert (net["class_path"], net["init_args"]["hidden_sizes"]) == ("toy.models.MLP", [64] * 80)
    assert config["trainer"]["max_epochs"] == 7


def test_sections_whose_options_are_commented_out_have_no_effect(printed, workspace):
    (workspace / "empty.yaml").write_text("trainer:\n#  max_epochs: 1\ndata:\n  class_path: Digits\n  init_args:\n")
    assert printed("--config empty.yaml -c configs/overlays/ema.yaml") == printed("-c configs/overlays/ema.yaml")


def test_the_empty_checkpoint_path_in_a_config_of_lightningcli_has_no_effect(printed, workspace):
    (workspace / "saved.yaml").write_text("ckpt_path: null\ntrainer: {max_epochs: 3}\n")
    assert printed("--config saved.yaml") == printed("--trainer.max_epochs=3")


LISTS = {
    "model.schedulers": (
        "{scheduler: {class_path: StepLR, init_args: {step_size: 5, gamma: 0.9}}, interval: step, frequency: 7}",
        "{scheduler: {class_path: StepLR, init_args: {step_size: 3}}, interval: epoch}",
    ),
    "model.parameter_groups.groups": (
        "{name: head, match: [net.head], lr_factor: 10, options: {weight_decay: 0.3}}",
        "{name: body, match: [net.features]}",
    ),
}


@pytest.mark.parametrize("key", LISTS)
@pytest.mark.parametrize("in_config", [True, False])
def test_a_later_list_completely_replaces_an_earlier_one(printed, workspace, key, in_config):
    def given(item):
        text = f"[{item.replace('StepLR', 'torch.optim.lr_scheduler.StepLR')}]"
        if not in_config:
            return [f"--{key}", text]
        *path, last = key.replace(".", ".init_args.", 1).split(".")
        content = {last: yaml.safe_load(text)}
        for part in reversed(path):
            content = {part: content}
        file = workspace / f"{abs(hash(item))}.yaml"
        file.write_text(yaml.safe_dump(content))
        return ["-c", str(file)]

    earlier, later = map(given, LISTS[key])
    assert printed(earlier, later) == printed(later) != printed(earlier)


class Net(MLP):
    def __init__(self, *args: Any, shape: dict[Any, Any] | list[int | None] | str | None = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("[8,null]", [8, None]),
        ("{3: null, a: b}", {3: None, "a": "b"}),
        ("true", "true"),
        ("a b", "a b"),
    ],
)
def test_options_of_nested_objects_are_parsed_as_yaml(lit, capfd, text, value):
    with pytest.raises(SystemExit, match="0"):
        lit(
            "fit -c configs/quickstart.yaml --model.net test_cli_traps.Net",
            [f"--model.net.shape={text}"],
            "--print_config",
        )
    net = yaml.safe_load(capfd.readouterr().out)["model"]["init_args"]["net"]
    assert net["init_args"]["shape"] == value


@pytest.mark.parametrize("flag", ["--config=", "-c"])
def test_the_first_config_names_the_run_for_both_spellings_of_the_option(flag):
    assert prepare(["fit", f"{flag}configs/quickstart.yaml", "-c", "other.yaml"]).config_name == "quickstart"
    assert prepare(["fit", "--model=Net", flag + "{model.optimizer.lr: 0.1}"]).config_name == "unnamed"


def test_a_column_file_or_logger_may_have_the_same_name_as_a_class():
    classes = ["--data=Digits", "--data.train_transforms+=Noise", "--model.parameter_groups=ParameterGroups"]
    classes += ["--trainer.callbacks+=EMA", "--trainer.callbacks.class_path=EMA"]
    texts = ["--data.target_names=Group", "--data.file=Digits", "--trainer.logger.name=EMA"]
    words = prepare(["fit", *texts, *classes]).args
    assert words[1:4] == texts
    assert all(re.search("=(toy|lit_engine)\\.", word) for word in words[4:])


def test_command_line_options_override_checkpoint_hyperparameters(lit, trained):
    file = trained / "checkpoints" / "last.ckpt"
    assert read(file)["hyper_parameters"]["top_k"] is None
    result = lit(f"test -c configs/quickstart.yaml {TINY} --ckpt_path {file} --model.top_k=2")
    assert "test/top2_accuracy" in json.loads((result.run / "metrics.json").read_text())["test"]
    assert yaml.safe_load((trained / "config.yaml").read_text())["model"]["init_args"]["top_k"] is None


def test_numbers_are_written_to_the_config(lit):
    """Torchvision annotates `degrees` as `Number | Sequence`."""
    rotation = "{class_path: torchvision.transforms.v2.RandomRotation, init_args: {degrees: 10}}"
    fit = "fit -c configs/quickstart.yaml --epochs 1 --trainer.limit_train_batches=1"
    run = lit(fit, [f"--data.train_transforms+={rotation}"]).run
    (*_, written) = yaml.safe_load((run / "config.yaml").read_text())["data"]["init_args"]["train_transforms"]
    assert written["init_args"]["degrees"] == 10
    assert lit(f"validate {run} --data.train_transforms.degrees=5.5").status == 0
    rejected = lit(f"validate {run} --data.train_transforms.degrees=ten")
    assert "degrees" in rejected.err
    assert rejected.status == 2
