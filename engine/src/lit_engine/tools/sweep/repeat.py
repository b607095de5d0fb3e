"""Repeats the same `fit` for several seeds or test folds, and reports the mean and standard deviation.

The `fit` options `-c OVERLAY.yaml`, `--init_from RUN` and all options with a dot apply to each run. Pass the same
options when you continue.

%(prog)s -c configs/quickstart.yaml --seeds 1 2 3 --workers 2     run again to continue, or with more seeds
%(prog)s -c configs/quickstart.yaml --folds 5                     add --seeds to run every fold with each seed
"""

import argparse
import io
import json
import shlex
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_engine.cli.arguments import OptionParser, at_least, expanded_path, pairs
from lit_engine.cli.main import main
from lit_engine.errors import UserError
from lit_engine.project import current, program
from lit_engine.run.directory import RunDir, csv_text, write_text
from lit_engine.run.metric_names import get_stage
from lit_engine.run.options import options_of
from lit_engine.run.provenance import command_line
from lit_engine.tools.output import HELP, as_json, json_document
from lit_engine.tools.runs.columns import columns_of, in_terminal, table_of
from lit_engine.tools.runs.differences import Comparison, Row
from lit_engine.tools.runs.reading import Run, find_monitor, read_runs
from lit_engine.tools.runs.report import page_of
from lit_engine.tools.sweep.command import convert_study_errors, split_fit_options

if TYPE_CHECKING:
    from lit_engine.tools.sweep.config import SweepConfig
    from lit_engine.tools.sweep.study import Study, Trial


# These options restrict predictions to one process, because additional processes would run this command line again.
ALONE = [f"--trainer.{option}" for option in ("devices=1", "num_nodes=1", "strategy=auto", "logger=false")]


def option_parser() -> argparse.ArgumentParser:
    """Return the argument parser of `repeat`."""
    parser = OptionParser("repeat", __doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[], help="one run per seed")
    parser.add_argument("--folds", type=int, help="split the data into this many folds, and test one run on each")
    parser.add_argument("--workers", type=at_least(1), default=1, help="concurrent runs (default: 1)")
    parser.add_argument(
        "--dir", type=expanded_path, help="output folder (default: repeats/CONFIG or repeats/CONFIG-5-folds)"
    )
    parser.add_argument("--json", action="store_true", help=HELP)
    return parser


def repeat(args: Sequence[str]) -> int:
    """Run the command and return its exit status, which is 1 if a run did not finish.

    Raises:
        UserError: an option, the config, the data or the folder is invalid, or a run did not log its metric.
    """
    if named := [option for option, _ in pairs(args) if option in ("--run", "--run_name", "--runs_dir")]:
        raise UserError(f"{named[0]} cannot be set, because `repeat` names the runs. Use --dir to set the folder")
    options, overrides = split_fit_options(option_parser(), args)
    points = _points(options.seeds, options.folds)
    own = next(iter(points.values()))
    over = [key for key in own if key != "data.folds"]
    for option in overrides:
        if (key := option.partition("=")[0].replace(".init_args", "").removeprefix("--")) in own:
            raise UserError(f"--{key} cannot be set, because `repeat` sets it")
    with json_document(options.json) as document:
        print(f"repeat: {len(points)} runs, {options.workers} at a time", flush=True)
        command = shlex.join([program(), *command_line])  # before `_predict` replaces `command_line`
        name, config = _read(overrides, points, over)
        folder = options.dir or Path("repeats", name if options.folds is None else f"{name}-{options.folds}-folds")
        from lit_engine.tools.sweep.study import Study
        from lit_engine.tools.sweep.worker import Workers

        with convert_study_errors(folder):
            study = Study(folder, config)
            left = _plan(study, name, points)
            print(f"repeat: {folder} ({left} of {len(study.rows())} runs left)", flush=True)
            try:
                status = Workers(study, name, options.workers, 0, tests=True).run()
                if "data.fold" in over:
                    status = status or _predict(study)
            finally:
                good, summary = _report(study, name, over, command)
        if status > 128:
            print("interrupted; run the same command to continue", flush=True)
        document.update(dir=folder, **summary)
    return status or int(not good)


def _points(seeds: Sequence[int], folds: int | None) -> dict[str, dict[str, int]]:
    """Return the options that differ between the runs, keyed by run name.

    Raises:
        UserError: there are neither seeds nor folds, a seed occurs twice, or there are fewer than two folds.
    """
    if not seeds and folds is None:
        raise UserError(f"{program()} repeat needs --seeds 1 2 3, or --folds 5")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds must be distinct, got {' '.join(map(str, seeds))}")
    if folds is not None and folds < 2:
        raise UserError(f"--folds must be at least 2, got {folds}")
    by_seed = [(f"seed-{seed}", {"seed_everything": seed}) for seed in seeds] or [("", {})]
    by_fold = [(f"fold-{k}", {"data.folds": folds, "data.fold": k}) for k in range(folds)] if folds else [("", {})]
    return {"-".join(filter(None, (f, s))): {**fold, **seed} for (f, fold), (s, seed) in product(by_fold, by_seed)}


def _read(overrides: list[str], points: dict[str, dict[str, int]], over: list[str]) -> "tuple[str, SweepConfig]":
    """Parse the first run's command. Return the config's name, and a sweep config whose trials are queued explicitly.

    Raises:
        UserError: the command line is invalid, or the data have no folds.
    """
    from lit_engine.cli.invocation import prepare
    from lit_engine.cli.parser import LitCLI
    from lit_engine.data.module import build_datamodule
    from lit_engine.tools.sweep.config import SweepConfig

    first = [f"--{key}={value}" for key, value in next(iter(points.values())).items()]
    invocation = prepare(["fit", *overrides, *first, "--test_after_fit=true"])
    cli = LitCLI(current(), invocation.args)
    options = dict(options_of(cli.plain)) | ({"seed_everything": True} if cli.drawn else {})  # each run draws a seed
    metric, maximize = find_monitor(options)
    same = {key: value for key, value in options.items() if key not in over}
    same |= {key: cli.options[key] for key in ("init_from", "init_prefixes", "init_strict")} | {"over": over}
    config = SweepConfig(
        method="grid",
        metric=metric or "epoch",
        maximize=maximize or metric is None,
        command=["fit", *overrides, "${args}"],
        identity=json.loads(json.dumps(same)),
    )
    if "data.fold" in over:  # raises an error if the data cannot be split into folds
        data = build_datamodule(cli.plain["data"])
        data.prepare_data()
        data.setup("test")
    return invocation.config_name, config


def _plan(study: "Study", name: str, points: dict[str, dict[str, int]]) -> int:
    """Queue all missing, failed and deleted runs, and return the number of unfinished runs."""
    with study.lock:
        trials = {trial.run.name: trial for trial in study.rows()}
        todo = [
            (trial.number, trial.run.name, trial.values)
            for trial in trials.values()
            if trial.state == "failed" or (trial.state == "finished" and not trial.run.exists())
        ]
        missing = [run for run in points if run not in trials]
        todo += [(number, run, points[run]) for number, run in enumerate(missing, start=len(trials))]
        for number, run, values in todo:
            study.connect().enqueue_trial({}, {"number": number, "run": f"{name}/{run}", "values": values})
        return sum(trial.state != "finished" for trial in study.rows())


def _report(study: "Study", name: str, over: list[str], command: str) -> tuple[bool, dict[str, Any]]:
    """Print the tables, write summary.json and the page. Return whether all runs have finished, and the summary."""
    trials = sorted(study.rows(), key=lambda trial: trial.number)
    started = [str(trial.run) for trial in trials if RunDir(trial.run).config_file.exists()]
    group = Row(read_runs(started) if started else [], grouped=True)
    counted = {run.path.name for run in group.counted}
    drawn = ["seed_everything"] if len({run.options.get("seed_everything") for run in group.runs}) > 1 else []
    found = Comparison(group.runs, list(dict.fromkeys([*over, *drawn]))) if counted else None
    if found is not None:
        print("\n".join([*in_terminal(table_of(found)), ""]))
        print("\n".join(in_terminal(columns_of(found, [Row([run], grouped=False) for run in group.runs], found.keys))))
        if not any(get_stage(metric) == "test" for metric in found.metrics):
            print("no run was tested: the data have no test split")
        if found.facts:
            print(f"the runs differ in: {', '.join(found.facts)}")
    for trial in trials:
        if trial.run.name not in counted:
            print(f"left out of the mean: {trial.run.name} ({trial.state})")
    file, page = study.folder / "summary.json", study.folder / "compare.html"
    summary: dict[str, Any] = {"command": command, "config": name, "over": over}
    summary |= {**_summary(study.folder, trials, group), "differ": found.facts if found else []}
    write_text(file, as_json(summary) + "\n")
    print(f"summary: {file}")
    tested = [trial for trial in trials if trial.run.name in counted]
    if "data.fold" in over and tested and all(_has_predictions(trial) for trial in tested):
        _write_predictions(study.folder / "predictions.csv", tested)
    if found is not None:
        folds = {f"{trial.values['data.folds']} folds" for trial in trials if "data.folds" in trial.values}
        seeds = sorted({trial.values["seed_everything"] for trial in trials if "seed_everything" in trial.values})
        parts = [*folds, *([f"seeds {', '.join(map(str, seeds))}"] if seeds else [])]
        write_text(page, page_of(found, f"{name}: {', '.join(parts)}", command, study.folder))
        print(f"page: {page}", flush=True)
    return len(counted) == len(trials), summary


def _has_predictions(trial: "Trial") -> bool:
    return (trial.run / "predictions" / "test.csv").is_file()


def _predict(study: "Study") -> int:
    """Predict the test folds of the finished runs. Return the exit status of the first `predict` that fails, or 0."""
    for trial in study.rows():
        if trial.state == "finished" and not _has_predictions(trial):
            with redirect_stdout(io.StringIO()):
                status = main(current(), ["predict", f"--run={trial.run}", *ALONE])
            if status:
                return status
    return 0


def _write_predictions(file: Path, trials: "Sequence[Trial]") -> None:
    """Write the out-of-fold predictions. Each run has predicted its own test fold, which it was not trained on.

    The columns are `fold`, `seed` and the sample's `id`, followed by the columns of predictions/test.csv.
    """
    rows: list[tuple[int, int, dict[str, Any]]] = []  # seed, index, columns
    ids: dict[int, dict[int, str]] = {}  # fold → index in the predictions → id
    for trial in trials:
        run = RunDir(trial.run)
        fold, seed = trial.values["data.fold"], run.config()["seed_everything"]
        if fold not in ids:
            ids[fold] = _test_ids(run)
        for row, texts in zip(run.predictions(), run.predictions(convert=False), strict=True):
            place = {"fold": fold, "seed": seed, "id": ids[fold].get(row.get("index", -1))}
            columns = {f"input/{name}" if name in place else name: text for name, text in texts.items()}
            rows.append((seed, row.get("index", 0), {**place, **columns}))
    if rows:
        rows.sort(key=lambda row: row[:2])
        names = list(dict.fromkeys(name for _, _, columns in rows for name in columns))  # columns may vary by run
        write_text(file, csv_text([columns for _, _, columns in rows], names))
        print(f"out-of-fold predictions: {file}")


def _test_ids(run: RunDir) -> dict[int, str]:
    """Map each test sample's index in the predictions to the id that `doubts` uses."""
    from lit_engine.data.corrections import describe_samples, sample_ids
    from lit_engine.load import load_data

    data: Any = load_data(run)
    ids = sample_ids(data, "test")
    return dict(zip(describe_samples(data, "test") or range(len(ids)), ids, strict=True))


def _summary(folder: Path, trials: "Sequence[Trial]", group: Row) -> dict[str, Any]:
    """Return a summary of the runs, with n, mean, standard deviation (n − 1) and all values of each metric."""
    runs = {run.path.name: run for run in group.runs}
    last = group.counted[-1].entries[-1] if group.counted else {}
    metrics: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for run in group.counted for name in run.all_metrics):
        mean, sd, n = group.metric(name)
        values = {run.path.name: run.all_metrics[name] for run in group.counted if name in run.all_metrics}
        metrics[name] = {"n": n, "mean": mean, "sd": sd if n > 1 else None, "values": values}
        if pooled := group.pooled_mean(name):  # over all folds
            metrics[name]["pooled"] = dict(zip(("value", "over", "count"), pooled, strict=True))
    return {
        "runs": {trial.run.name: _of_run(trial, runs.get(trial.run.name), folder) for trial in trials},
        "seconds": round(sum(run.seconds for run in group.counted), 2),
        **{key: last.get(key) for key in ("git", "versions", "host", "platform", "devices", "cpu_threads")},
        "metrics": metrics,
    }


def _of_run(trial: "Trial", run: Run | None, folder: Path) -> dict[str, Any]:
    seconds = {"seconds": round(run.seconds, 2)} if run and run.seconds == run.seconds else {}
    error = {"error": trial.error} if trial.error else {}
    return {**trial.values, "path": str(trial.run.relative_to(folder)), "state": trial.state, **seconds, **error}
