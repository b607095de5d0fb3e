"""The JSON schema for configs. Validation errors name the offending key."""

import json
import os

import pytest
import yaml
from jsonschema import Draft7Validator
from jsonschema.exceptions import best_match

from helpers import TOY
from toy.__main__ import main

WITH_METRICS = "    metrics: [{class_path: MulticlassF1Score, init_args: {avrage: macro}}]\n    net:"


@pytest.fixture(scope="module")
def validator(tmp_path_factory):
    file = tmp_path_factory.mktemp("schema") / "new" / "schema.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(file.parents[1]))  # a shell does not expand ~ after =
        assert main(["schema", "--output=~/new/schema.json"]) == 0
    schema = json.loads(file.read_text())
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


def wrong(validator, config):
    """Return the location and message of the most relevant error in a config, or None."""
    error = best_match(validator.iter_errors(config))
    return error and f"{error.json_path}: {error.message}"


def test_the_complete_config_of_a_run_is_valid(validator, trained):
    assert wrong(validator, yaml.safe_load((trained / "config.yaml").read_text())) is None


@pytest.mark.parametrize(
    ("config", "right", "mistake", "where"),
    [
        ("quickstart", "trainer:", "trianer:", "$: 'trianer'"),
        ("quickstart", "max_epochs:", "max_epoch:", "$.trainer: 'max_epoch'"),
        ("quickstart", "optimizer:", "optimiser:", "$.model.init_args: 'optimiser'"),
        ("quickstart", "hidden_sizes:", "hidden:", "$.model.init_args.net.init_args: 'hidden'"),
        ("quickstart", "lr:", "lrr:", "$.model.init_args.optimizer.init_args: 'lrr'"),
        ("quickstart", "interval:", "intervall:", "$.model.init_args.schedulers[0]: 'intervall'"),
        ("quickstart", "level:", "leval:", "$.data.init_args.train_transforms[0].init_args: 'leval'"),
        ("quickstart", "{level: 20}", "{level: high}", "$.data.init_args.train_transforms[0].init_args.level: 'high'"),
        ("quickstart", "interval: step", "interval: often", "$.model.init_args.schedulers[0].interval: 'often'"),
        ("quickstart", "class_path: MLP", "class_path: MPL", "$.model.init_args.net.class_path: 'MPL'"),
        ("quickstart", "optim.AdamW", "optim.AdmaW", "$.model.init_args.optimizer.class_path: 'torch.optim.AdmaW'"),
        ("quickstart", "class_path: MLP", "class_path: AdamW", "$.model.init_args.net.class_path: 'AdamW'"),
        ("quickstart", "  class_path: ImageClassifier\n", "", "$.model: 'class_path'"),
        ("quickstart", "- class_path: Checkpoint\n     ", "-", "$.trainer.callbacks[0]: 'class_path'"),
        ("quickstart", "    net:", WITH_METRICS, "$.model.init_args.metrics[0].init_args: 'avrage'"),
        ("overlays/no_decay", "decay_norms", "decay_norm", "$.model.init_args.parameter_groups: 'decay_norm_"),
        ("overlays/ema", "callbacks+:", "callback+:", "$.trainer: 'callback+'"),
        ("overlays/ema", "decay:", "decy:", "$.trainer['callbacks+'][0].init_args: 'decy'"),
        ("overlays/ema", "- class_path: EMA\n     ", "-", "$.trainer['callbacks+'][0]: 'class_path'"),
    ],
)
def test_errors_name_the_offending_key(validator, config, right, mistake, where):
    text = (TOY / "configs" / f"{config}.yaml").read_text()
    assert right in text
    path, _, word = where.partition(": ")
    found = wrong(validator, yaml.safe_load(text.replace(right, mistake, 1)))
    assert found.startswith(f"{path}: ")
    assert word in found


def test_accepts_valid_overlays(validator):
    """An external class, a class given by name only, a list to append to, and single keys are valid."""
    for overlay in (
        "model: {init_args: {net: {class_path: mine.Wide, init_args: {width: 3}}}}",
        "model: {init_args: {optimizer: AdamW, net: mine.Wide}}",
        "model: {init_args: {metrics: {f1: MulticlassF1Score}, net: torch.nn.Identity}}",
        "model: {init_args: {net: {init_args: {dropout: 0.5}}}}",
        "data: {init_args: {train_transforms+: [{class_path: RandomCrop}]}}",
        "trainer: {logger: false, strategy: ddp, callbacks: null}",
        "seed_everything: 3",
    ):
        assert wrong(validator, yaml.safe_load(overlay)) is None, overlay


def test_writes_to_a_pipe_without_replacing_it(tmp_path, monkeypatch):
    monkeypatch.setattr("lit_engine.tools.schema.config_schema", dict)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)
    assert main(["schema", "--output", str(tmp_path / "pipe")]) == 0
    assert os.read(reader, 100) == b"{}"
    os.close(reader)


def test_an_unwritable_output_file_causes_a_one_line_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("lit_engine.tools.schema.config_schema", dict)
    (tmp_path / "file").write_text("")
    assert main(["schema", "--output", str(tmp_path / "file" / "schema.json")]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: cannot write the schema {tmp_path}/file/schema.json: ")
    assert err.count("\n") == 1
