"""Finds runs and reads the data that a comparison needs."""

import glob
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from lit_engine.errors import RunError, did_you_mean
from lit_engine.run.directory import RunDir
from lit_engine.run.metric_names import find_metric, get_stage, is_detail, strip_stage
from lit_engine.run.options import options_of

Numbers = dict[str, float]
FACTS = ("epochs", "steps", "seconds", "parameters")  # entries in the fit section of metrics.json that are not metrics

LOWER_IS_BETTER = re.compile(
    r"loss|lost|error|cost|perplexity|entropy|divergence|deviance|distance|brier|hinge|edit_rate|mse|msle|ma[ps]?e|"
    r"wape|nll|hausdorff|(?<![a-z])([cwmte]er|ece|fid|kid|kld?|ppl|bp[bcd]|crps|lpips|mpjpe)(?![a-z])",
    re.IGNORECASE,
)


@dataclass(frozen=True, eq=False)
class Run:
    """The contents of one run directory."""

    path: Path
    state: str  # see `RunDir.state`
    started: datetime
    seconds: float  # total duration of all finished fits and the current fit (nan if unknown)
    is_timed: bool  # whether `seconds` includes all fits; a killed fit records no duration
    options: dict[str, Any]  # config options from `options_of`, plus the options for the initial weights
    facts: dict[str, str]  # commit, versions, processes, devices, options changed for the test
    monitor: str | None  # metric that selects the best checkpoint
    maximize: bool
    headline: str | None  # base name of the metric that the task reports first, such as `accuracy`
    metrics: Numbers  # test metrics, validation metrics of the best epoch, training metrics of the last epoch
    parts: dict[str, Numbers]  # test metrics by class or length, such as `class_accuracy`
    rows: list[dict[str, str]]  # rows of metrics.csv
    forked_at: tuple[int, int]  # epochs and steps that a fork inherits from its parent; both 0 for other runs
    data: dict[str, str]  # fingerprint of each split (empty if the run trains on a fold)
    sections: dict[str, Any]  # content of metrics.json
    entries: list[dict[str, Any]]  # content of provenance.json

    @classmethod
    def read(cls, path: Path) -> "Run":
        """Read a run. Raise RunError if one of its files is broken."""
        run = RunDir(path)
        try:
            state, sections, entries, (columns, rows) = run.state(), run.metrics(), run.entries(), run.history()
            first, last = (entries[0], entries[-1]) if entries else ({}, {})
            options = dict(options_of(run.config() if run.config_file.is_file() else {}))
            if options.get("data.folds") is None:  # `fold` has no effect without `folds`
                options.pop("data.fold", None)
            options |= {name: first.get(name) for name in ("init_from", "init_prefixes")}
            options["fork"], own, forked_at = None, rows, (0, 0)
            if fork := first.get("fork"):
                options["fork"] = f"{fork['run']}, {fork['checkpoint']}, step {fork['step']}"
                inherited, own = rows[: fork["rows"]], rows[fork["rows"] :]
                forked_at = fork["epochs"], int(inherited[-1]["step"]) + 1 if inherited else fork["step"]
            fit, test = sections.get("fit", {}), sections.get("test", {})
            monitor, maximize = find_monitor(options)
            if monitor is None:  # a checkpoint callback without options, or from `configure_callbacks`
                monitor = next((name[5:] for name in fit if name.startswith("best ")), None)
                maximize = fit.get("best_mode") == "max"
            known = fit.get(f"best {monitor}") if state == "finished" else None
            if monitor:
                monitor = find_metric(monitor, [*columns, *fit])
            trained = {n: v for n, v in numbers(fit).items() if get_stage(n) == "train" and not n.startswith("best ")}
            validated = _best(own, monitor, maximize, known)
            if not validated:  # without metrics.csv, only the best value and the last epoch's metrics are known
                validated = numbers(fit, "val") if monitor is None or known is None else {monitor: known}
            took = [entry["seconds"] for entry in entries if "seconds" in entry]
            times = [datetime.fromisoformat(entry["time"]) for entry in entries]
            if state == "running" and times:
                took = [*took, (datetime.now(UTC) - times[-1]).total_seconds()]
            return cls(
                path=path,
                state=state,
                started=times[0] if times else datetime.fromtimestamp(path.stat().st_mtime, UTC),
                seconds=sum(took) if took else math.nan,
                is_timed=len(took) == len(entries),
                options=options,
                facts=_facts(last, fit, test),
                monitor=monitor,
                maximize=maximize,
                headline=last.get("headline"),
                metrics={**validated, **numbers(test, "test"), **trained},
                parts=parts_of(test),
                rows=rows,
                forked_at=forked_at,
                data=(last.get("data") or {}) if "data.fold" not in options else {},
                sections=sections,
                entries=entries,
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"{path} is broken: its files have unexpected content ({error!r})") from error

    @cached_property
    def all_metrics(self) -> Numbers:
        """`metrics` and the test metrics by class, target or length, such as `test/class_accuracy/cat`."""
        details = {f"test/{kind}/{part}": value for kind, own in self.parts.items() for part, value in own.items()}
        return {**details, **self.metrics}

    def curve(self, metric: str, by: str) -> dict[float, float]:
        """Return the values of a metric, keyed by `epoch` or `step`."""
        return {float(row[by]): float(row[metric]) for row in self.rows if row.get(metric) and row.get(by)}


def lower_is_better(run: Run, name: str) -> bool:
    """Return whether lower values of a metric are better, inferred from the name unless the metric is monitored."""
    is_monitored = run.monitor is not None and strip_stage(run.monitor) == strip_stage(name)
    if is_monitored:
        return not run.maximize
    # target or class names may contain `error`
    is_score = re.match(r"\w*(r2|f1|iou|accuracy|precision|recall|auroc)(_score)?/", strip_stage(name))
    return not is_score and bool(LOWER_IS_BETTER.search(name))


def find_monitor(options: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Return the metric that selects the best checkpoint, and whether a higher value is better."""
    key = next((key for key in options if re.search(r"Checkpoint.*\.monitor$", key) and options[key]), "")
    return options.get(key), options.get(key.replace(".monitor", ".mode")) == "max"


def read_runs(names: Sequence[str]) -> list[Run]:
    """Read the runs from run directories, glob patterns or folders of runs. Duplicates are removed.

    Broken runs are skipped with a warning if there are other runs.

    Raises:
        RunError: a path does not exist or contains no runs, or all runs are broken.
    """
    found: dict[Path, Path] = {}
    for name in names:
        # An unset shell variable results in an empty name, which Path would interpret as the current folder.
        if not name:
            raise RunError("the name of a run or folder is empty")
        paths = [Path(name)] if Path(name).exists() else [Path(path) for path in sorted(glob.glob(name))]
        if not paths:
            siblings = [folder.name for folder in Path(name).parent.glob("*/")]
            raise RunError(f"no such run or folder: {name}{did_you_mean(Path(name).name, siblings)}")
        inside = [run for path in paths for run in runs_in(path)]
        if not inside and not all(path.is_file() for path in paths):
            raise RunError(f"there is no run in {name}")
        for run in inside:
            found.setdefault(run.resolve(), run)
    runs: list[Run] = []
    for path in found.values():
        try:
            runs.append(Run.read(path))
        except (RunError, OSError) as error:
            if len(found) == 1:
                raise
            print(f"warning: skipped a run: {error}", file=sys.stderr)
    if not runs:
        raise RunError(f"there is no run in {', '.join(names)}")
    return runs


def runs_in(folder: Path) -> Iterator[Path]:
    """Yield all folders that contain a config.yaml. Folders inside a run, such as W&B's, are not searched.

    Links to folders are followed once, after the other folders.
    """
    seen: set[str] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        folders.sort(key=lambda name: (os.path.islink(os.path.join(place, name)), name))
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        if "config.yaml" in files:
            folders.clear()
            yield Path(place)


def _best(rows: list[dict[str, str]], monitor: Any, maximize: bool, known: float | None) -> Numbers:
    """Return the metrics of the best validation in metrics.csv (the last validation if no metric is monitored)."""
    names = [name for name in (rows[0] if rows else ()) if name and get_stage(name) == "val"]
    validated = [row for row in rows if any(row.get(name) for name in names)]
    watched = [row for row in rows if row.get(monitor) and math.isfinite(float(row[monitor]))]
    if watched:
        best = known if known is not None else (max if maximize else min)(float(row[monitor]) for row in watched)
        best_row = min(watched, key=lambda row: abs(float(row[monitor]) - best))
        if not math.isclose(float(best_row[monitor]), best, rel_tol=1e-4):  # the best epoch has no row
            return {monitor: best}
    else:
        best_row = validated[-1] if validated else {}
    values = {name: float(best_row[name]) for name in names if best_row.get(name)}
    return {**{name: value for name, value in values.items() if name == monitor}, **numbers(values)}


def numbers(section: Mapping[str, Any], stage: str = "") -> Numbers:
    """Return the metrics in a section of metrics.json, optionally for one stage. Per-class metrics are excluded."""
    return {
        name: value
        for name, value in section.items()
        if isinstance(value, int | float) and not is_detail(name) and (not stage or get_stage(name) == stage)
    }


def parts_of(section: Mapping[str, Any]) -> dict[str, Numbers]:
    """Return the metrics by class (`test/class_accuracy/cat`) or by length (the dictionary `bleu_by_length`).

    Calibration by confidence is excluded, because it is shown in a figure.
    """
    found: dict[str, Numbers] = {}
    for name, value in section.items():
        if is_detail(name):
            kind, _, part = name.partition("/")[2].partition("/")
            found.setdefault(kind, {})[part] = value
        elif isinstance(value, dict) and name != "calibration" and (known := numbers(value)):
            found[name] = known
    return found


def _facts(entry: Mapping[str, Any], fit: Mapping[str, Any], test: Mapping[str, Any]) -> dict[str, str]:
    git = entry.get("git") or {}
    commit = {"commit": git["commit"][:9] + (" dirty" if git.get("dirty") else "")} if "commit" in git else {}
    versions = {name: str(version) for name, version in entry.get("versions", {}).items()}
    processes = {"processes": str(entry["processes"])} if "processes" in entry else {}
    devices = {"devices": ", ".join(entry["devices"])} if "devices" in entry else {}
    changes = list(test.get("changed", []))
    best, used = (Path(name).name for name in (fit.get("best_checkpoint") or "", test.get("checkpoint") or ""))
    if best and used and best != used:
        changes.append(f"checkpoint {used}")
    tested = {"tested": "; ".join(changes) or "as trained"} if test else {}
    return {**commit, **versions, **processes, **devices, **tested}
