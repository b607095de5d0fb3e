"""Sweep files are read in the W&B format, and errors name the wrong key."""

import json

import optuna
import pytest

from lit_engine.errors import UserError
from lit_engine.tools.sweep.config import SweepConfig
from lit_engine.tools.sweep.study import retry


def test_the_grid_contains_every_point_exactly_once(read):
    points = [read().point(number) for number in range(read().trials(None))]
    assert points[:4] == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 1, "b": "z"}, {"a": None, "b": "x"}]
    assert len({json.dumps(point) for point in points}) == 6


def test_a_grid_has_no_more_trials_than_points(read):
    assert [read().trials(count) for count in (2, 6, 7)] == [2, 6, 6]


def test_hyperband_keeps_the_best_third_by_default(read):
    pruner = read(early_terminate={"type": "hyperband", "min_iter": 1}).pruner
    study = optuna.create_study(direction="maximize", pruner=pruner)
    pruned = []
    for value in (0.1, 0.2, 0.3, 0.4, 0.9, 0.8, 0.5):
        trial = study.ask()
        trial.report(value, 1)
        pruned.append(trial.should_prune())
    assert pruned[-2:] == [False, True]  # second best of six, third best of seven


@pytest.mark.parametrize("macro", ["${args_json_file}", "${args_json}", "${args}"])
def test_macros_expand_to_the_sampled_values_or_their_file(read, macro):
    found = read(command=["toy", "fit", "-c", "x.yaml", macro]).words({"a": None, "b": [1], "c": "x"}, "FILE")
    words = {"${args_json_file}": ["FILE"], "${args_json}": ['{"a": null, "b": [1], "c": "x"}']}
    assert found == ["fit", "-c", "x.yaml", *words.get(macro, ["--a=null", "--b=[1]", "--c=x"])]


@pytest.mark.parametrize("macro", ["${args_json_file}", "${args_json}"])
def test_runs_are_not_named_after_the_values_if_they_are_the_only_config(read, macro):
    found = read(command=["toy", "fit", "--model=nets.Net", "-c", macro])
    assert found.words({"model.width": 3}, "0007.json") == ["fit", "--model=nets.Net", "--model.width=3"]


def test_the_command_may_use_the_short_forms_of_fit(read, workspace):
    command = ["toy", "fit", "quickstart", "--epochs", "2", "-c", "${args_json_file}"]
    assert read(command=command).words({"data.seed": 1}, "F") == ["fit", "quickstart", "--epochs", "2", "-c", "F"]


def test_hyperband_counts_a_retried_trial_once(read):
    pruner = read(early_terminate={"type": "hyperband", "min_iter": 1, "eta": 2}).pruner
    study = optuna.create_study(pruner=pruner)

    def stops(value):
        trial = study.ask()
        trial.report(value, 1)
        return trial.should_prune()

    assert not stops(0.5)
    retry(study, study.trials[0])  # the first trial is interrupted and continues as another attempt
    assert not stops(0.5)
    assert [stops(value) for value in (0.7, 0.8, 0.6)] == [True, True, False]  # the second best of four continues


def test_macros_that_start_the_program_are_removed(read):
    command = ["${env}", "${interpreter}", "${program}", "fit", "-c", "x.yaml", "${args}"]
    assert read(command=command, program="bin/toy").command == ["fit", "-c", "x.yaml", "${args}"]


def test_overrides_precede_the_sampled_values(read):
    overrides = ["--config=overlay.yaml", "--trainer.max_epochs=2"]
    read(command=["toy", "fit", "-c", "x.yaml", "-c", "${args_json_file}", "--data.seed=1"])
    with_overrides = SweepConfig.read(read.file, overrides)
    assert with_overrides.words({}, "F") == ["fit", "-c", "x.yaml", "--data.seed=1", *overrides, "-c", "F"]
    assert with_overrides.identity.items() >= {"--config": ["overlay.yaml"], "--trainer.max_epochs": ["2"]}.items()


@pytest.mark.parametrize("option", ["--model.net=MLP", "--model.init_args.net.width=4", "--model.net.layers+=[3]"])
def test_a_drawn_value_cannot_be_overridden(read, option):
    read(parameters={"model.init_args.net": {"value": "CNN"}, "model.lr": {"value": 0.1}})
    SweepConfig.read(read.file, ["--model=Classifier", "--model.network=1"])  # a parent and a similar name may be set
    with pytest.raises(UserError, match=r"cannot be set, because the sweep varies model\.init_args\.net$"):
        SweepConfig.read(read.file, [option])


def test_examples_include_every_value_and_both_limits(read):
    parameters = {"a": {"values": [1, None]}, "b": {"values": ["x", "y", "z"]}, "c": {"min": 0.5, "max": 2.0}}
    examples = read(method="random", parameters=parameters).examples()
    assert {json.dumps(e["a"]) for e in examples} == {"1", "null"}
    assert {e["b"] for e in examples} == {"x", "y", "z"}
    assert {e["c"] for e in examples} == {0.5, 2.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "hyperopt"}, "method must be grid, random or bayes, got 'hyperopt'"),
        ({"metric": ...}, "metric needs a name"),
        ({"metric": {"name": "x", "gaol": "maximize"}}, "metric has no key gaol; did you mean goal?"),
        ({"parameters": {}}, "parameters must be a mapping"),
        ({"parameters": {"a": {"min": 1.0, "max": 2.0}}}, "parameter a: a grid needs values"),
        ({"paramters": {}}, "a sweep has no key paramters; did you mean parameters?"),
        ({"early_terminate": {"type": "hyperband", "min_iter": 0}}, "must be either `min_resource >= 1`"),
        ({"early_terminate": {"type": "envelope"}}, "the type must be hyperband"),
        ({"early_terminate": {"type": "hyperband", "max_iter": 27}}, "hyperband needs min_iter: replace max_iter"),
        ({"command": ["python", "train.py", "${args}"]}, "command must be a list such as [toy, fit, ...]"),
        ({"command": ["toy", "fit", "-c", "x.yaml"]}, "must end with --config ${args_json_file}"),
        ({"command": ["toy", "fit", "${args_no_hyphens}"]}, "got the macros ['${args_no_hyphens}']"),
    ],
)
def test_errors_for_invalid_sweeps_name_the_offending_key(read, changes, message):
    with pytest.raises(UserError) as error:
        read(**changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"cannot read the sweep .*bad\.yaml: .*No such file"),
        ("a: [", r"cannot read the sweep .*bad\.yaml"),
        ("- 1", "the file needs method, metric, parameters and command"),
    ],
)
def test_rejects_unreadable_or_invalid_sweep_files(tmp_path, text, message):
    if text is not None:
        (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        SweepConfig.read(tmp_path / "bad.yaml")
