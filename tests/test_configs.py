"""Tests every config with every subcommand, offline and on small data, and every overlay with the quickstart."""

import csv
import json
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))
OVERLAYS = sorted(path.name for path in (ROOT / "configs" / "overlays").glob("*.yaml"))
# Options that let overlays for other machines run here in one process.
ELSEWHERE = {
    "gpu.yaml": "--trainer.accelerator=cpu",
    "compile.yaml": "--model.compile=eager",  # needs no C++ compiler
}
FIGURES = {"learning_curves.png", "learning_rate.png"}
KINDS = [import_module(path.stem) for path in Path(__file__).parent.glob("configs_of_*.py")]
OPTIONS = {prefix: options for kind in KINDS for prefix, options in kind.OPTIONS.items()}


def has_its_own_test(config: str) -> bool:
    """Return whether a config has its own test. `test_kites.py` tests `kites.yaml` and `kites_large.yaml`."""
    tests = [path.stem.removeprefix("test_") for path in (ROOT / "tests").glob("test_*.py")]
    return any(f"{Path(config).stem}_".startswith(f"{name}_") for name in tests)


OWN = [name for name in CONFIGS if not has_its_own_test(name)]
ALL = ("validate", "test", "predict")
# Commands to run after `fit`, which ends with a test. `make test-all` runs all of them for every config.
COMMANDS = [
    *((name, ALL if "quickstart" in name else ("predict",)) for name in OWN),
    *(pytest.param(name, ALL, marks=pytest.mark.slow) for name in OWN if "quickstart" not in name),
]


@pytest.mark.parametrize(("config", "commands"), COMMANDS)
def test_config_runs_with_the_given_subcommands(lit, small_data, image_folder, imagenet_weights, config, commands):
    options = " ".join(options for prefix, options in OPTIONS.items() if config.startswith(prefix))
    fit = lit(f"fit -c configs/{config} -c configs/overlays/debug.yaml {options}")
    assert fit.status == 0, fit.err
    run = fit.run
    assert run.parent == Path("runs") / Path(config).stem
    assert {p.name for p in run.iterdir()} >= {"config.yaml", "metrics.csv", "metrics.json", "provenance.json"}
    # Without a monitored metric, the last checkpoint is used.
    monitored = re.findall(r"monitor: ([\w/]+)", (ROOT / "configs" / config).read_text())
    assert len(list((run / "checkpoints").glob("best*.ckpt"))) == len(monitored)
    assert (run / "checkpoints" / "last.ckpt").exists()
    after_fit = json.loads((run / "metrics.json").read_text())["test"]
    kind = next(kind for kind in KINDS if f"test/{kind.SCORE}" in after_fit)
    assert {path.name for path in (run / "figures").iterdir()} >= {*FIGURES, kind.FIGURE}

    for command in commands:
        result = lit(f"{command} --run {run}")
        assert result.status == 0, result.err
        assert result.run == run
    metrics = json.loads((run / "metrics.json").read_text())
    if kind.AS_WHILE_FITTING and "validate" in commands:
        for name in monitored or ["val/accuracy"]:
            while_fitting = metrics["fit"][f"best {name}" if monitored else name]
            assert metrics["validate"][name] == pytest.approx(while_fitting, rel=1e-5)
    assert metrics["test"] == after_fit
    kind.check(list(csv.DictReader((run / "predictions" / "test.csv").open())), metrics["test"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_runs_with_the_quickstart_and_keeps_its_callbacks(lit, overlay):
    here = ELSEWHERE.get(overlay, "")
    if "strategy:" in (ROOT / "configs" / "overlays" / overlay).read_text():
        here = "--trainer.devices=1 --trainer.strategy=auto"
    result = lit(f"fit -c configs/quickstart.yaml -c configs/overlays/{overlay} -c configs/overlays/debug.yaml {here}")
    assert result.status == 0, result.err
    config = yaml.safe_load((result.run / "config.yaml").read_text())
    names = [callback["class_path"].rpartition(".")[2] for callback in config["trainer"]["callbacks"]]
    assert names[:2] == ["Checkpoint", "Figures"]  # the config's callbacks are kept


@pytest.mark.parametrize("file", [*CONFIGS, *(f"overlays/{name}" for name in OVERLAYS)])
def test_commands_in_config_headers_are_accepted(lit, file):
    header = re.split(r"\n(?!#)", (ROOT / "configs" / file).read_text(), maxsplit=1)[0]
    commands = re.findall(r"^# {3}lit-project (fit|test|predict) (.+?)(?: {2,}.*)?$", header, re.MULTILINE)
    name = Path(file).stem
    assert any(name in re.findall(r"\w+", options) for _, options in commands), f"no command in the header of {file}"
    for command, options in commands:
        words = shlex.split(options.replace("RUN", "quickstart"))
        with pytest.raises(SystemExit) as ended:  # --print_config exits; errors would return 2
            lit([command, *words, "--print_config"])
        assert ended.value.code == 0
