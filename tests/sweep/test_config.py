"""Reading a sweep's YAML: W&B's format, mistakes named with their key."""

import json
import sys

import pytest
import yaml

from lit_project.errors import UserError
from lit_project.sweep.config import SweepConfig

GOOD = {
    "method": "grid",
    "metric": {"name": "val/score", "goal": "maximize"},
    "parameters": {"a": {"values": [1, None]}, "b": {"values": ["x", "y", "z"]}},
    "command": ["lit-project", "fit", "--config", "configs/x.yaml", "--config", "${args_json_file}"],
}


@pytest.fixture
def read(tmp_path):
    """Reads the good sweep with some keys changed; a key that becomes `...` is left out."""

    def reading(**changes):
        content = {key: value for key, value in {**GOOD, **changes}.items() if value is not ...}
        file = tmp_path / "sweep.yaml"
        file.write_text(yaml.safe_dump(content))
        return SweepConfig.read(file)

    return reading


def test_the_grid_has_every_point_once(read):
    points = list(read().grid())
    assert points[:4] == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 1, "b": "z"}, {"a": None, "b": "x"}]
    assert len(points) == read().grid_size() == 6


@pytest.mark.parametrize(
    ("macro", "words"),
    [
        ("${args_json_file}", ["FILE"]),
        ("${args_json}", ['{"a": null, "b": [1, 2], "c": "x"}']),
        ("${args}", ["--a=null", "--b=[1, 2]", "--c=x"]),
    ],
)
def test_macros(read, macro, words, tmp_path):
    config = read(command=["lit-project", "fit", "-c", "x.yaml", "--config", macro])
    found = config.words({"a": None, "b": [1, 2], "c": "x"}, tmp_path / "FILE")
    assert found[:4] == ["fit", "-c", "x.yaml", "--config"]
    assert [word.replace(f"{tmp_path}/", "") for word in found[4:]] == words


def test_interpreter_program_and_environment_variable(read, monkeypatch):
    monkeypatch.setenv("BASE", "configs/base.yaml")
    command = ["${env}", "${interpreter}", "-m", "lit_project", "fit", "-c", "${envvar:BASE}", "${args}"]
    assert read(command=command).command == ("fit", "-c", "configs/base.yaml", "${args}")
    command = ["${env}", "${interpreter}", "${program}", "fit", "-c", "x.yaml", "${args}"]
    assert read(command=command, program="bin/lit-project").command[0] == "fit"
    assert sys.executable not in read(command=command, program="bin/lit-project").command


def test_examples_show_every_value(read):
    examples = read(method="random", parameters={**GOOD["parameters"], "c": {"min": 0.5, "max": 2.0}}).examples()
    assert {json.dumps(e["a"]) for e in examples} == {"1", "null"}
    assert {e["b"] for e in examples} == {"x", "y", "z"}
    assert {e["c"] for e in examples} == {0.5, 2.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "hyperopt"}, "method must be grid, random or bayes, got 'hyperopt'"),
        ({"metric": ...}, "metric needs a name"),
        ({"metric": {"name": "x", "goal": "max"}}, "must be minimize or maximize, got 'max'"),
        ({"metric": {"name": "x", "mode": "max"}}, "metric has no mode (it has name, goal, target)"),
        ({"metric": {"name": "x", "gaol": "maximize"}}, "metric has no gaol; did you mean goal?"),
        ({"metric": {"name": "x", "target": "low"}}, "the target of the metric must be a number, got 'low'"),
        ({"metric": {"name": "x", "impute": "worst"}}, "impute of the metric is not supported here"),
        ({"parameters": {}}, "parameters must be a mapping"),
        ({"parameters": {"a": {"values": []}}}, "parameter a: values must be a list of at least one"),
        ({"parameters": {"a": {"min": 1.0, "max": 2.0}}}, "parameter a: a grid needs values"),
        ({"parameters": {"a": {"min": 0, "max": 999}, "b": {"min": 0, "max": 999}}}, "the grid has 1,000,000 points"),
        ({"paramters": {}}, "a sweep has no paramters"),
        ({"run_cap": 0}, "run_cap must be a whole number of at least 1, got 0"),
        ({"early_terminate": {"type": "hyperband"}}, "needs min_iter"),
        ({"command": ["python", "train.py", "${args}"]}, "must be `lit-project fit …`, got: python train.py"),
        ({"command": ["lit-project", "fit", "-c", "x.yaml"]}, "must end with --config ${args_json_file}"),
        ({"command": ["lit-project", "fit", "${args_no_hyphens}"]}, "${args_no_hyphens} is not supported here"),
        ({"command": ["${program}", "fit", "${args}"]}, "there is no key program"),
        ({"command": ["lit-project", "fit", "${envvar:NOT_SET_AT_ALL}", "${args}"]}, "NOT_SET_AT_ALL, which is not"),
    ],
)
def test_mistakes_are_named(read, changes, message):
    with pytest.raises(UserError) as error:
        read(**changes)
    assert message in str(error.value)


def test_less_is_better_unless_the_goal_says_so(read):
    assert not read(metric={"name": "x"}).maximize
    assert read(metric={"name": "x", "goal": "maximize", "target": 0.9}).target == 0.9
    assert read(metric={"name": "x"}).target is None


def test_a_file_that_is_not_there_or_no_yaml(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        SweepConfig.read(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(UserError, match=r"cannot read the sweep .*bad\.yaml"):
        SweepConfig.read(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(UserError, match="is not a sweep"):
        SweepConfig.read(tmp_path / "list.yaml")
