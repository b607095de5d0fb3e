"""Workers: each takes one trial after another from the study and runs it, a `fit` in a process of its own."""

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import optuna
from optuna.trial import TrialState

from ..errors import RunError, UserError, did_you_mean
from ..project import PACKAGE
from ..run import RunDir, write_text
from .report import short
from .study import Study, is_first, retry

FIT = [sys.executable, "-m", PACKAGE]
POLL = 0.2  # seconds
PATIENCE = 60.0  # seconds for a trial to end in order before it is killed


class TrialEnded(Exception):
    """A trial without a result: it failed, was interrupted, or is one too many."""


class Workers:
    """Runs trials in as many threads as workers until there are enough, here or elsewhere.

    Args:
        study: where trials come from and go to.
        name: of the folder of runs within that of the sweep.
        options: of each trial's command line, after those of the sweep.
        workers: trials at a time.
        most: trials in all.
        devices: GPUs of this machine.
        say: prints a line.
    """

    def __init__(
        self, study: Study, name: str, options: Sequence[str] = (), workers: int = 1, most: int = 100, devices: int = 0,
        say: Callable[[str], None] = print,
    ) -> None:  # fmt: skip
        self.study, self.config, self.folder, self.name = study, study.config, study.folder, name
        self.options, self.workers, self.devices, self.say = options, workers, devices, say
        self.most = self.config.trials(most)
        self._signal, self._stop = 0, False

    def run(self) -> int:
        """Runs what is missing; returns 0, or 128 + the signal that ended it.

        Raises:
            UserError: the first trial that ended did not log the metric.
        """
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with ThreadPoolExecutor(self.workers) as pool:
                for future in [pool.submit(self._work, slot) for slot in range(self.workers)]:
                    future.result()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return 128 + self._signal if self._signal else 0

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal, self._stop = number, True

    def _work(self, slot: int) -> None:
        study = self.study.connect()
        try:
            while not self._stop and not self.study.reached():
                with self.study.lock:  # until an attempt has begun: SQLite gives one that waits to all who ask at once
                    optuna.storages.fail_stale_trials(study)
                    attempts = self.study.attempts()
                    states = {trial.state for trial in attempts}
                    if TrialState.WAITING in states or sum(map(is_first, attempts)) < self.most:
                        study.optimize(lambda trial: self._attempt(trial, slot), n_trials=1, catch=TrialEnded)
                        continue
                if TrialState.RUNNING not in states:
                    return
                time.sleep(1)  # they run with another worker; if that dies, they are taken here
        except BaseException:
            self._stop = True  # the others too
            raise

    def _attempt(self, trial: optuna.Trial, slot: int) -> float:
        """One attempt at a trial. What it returns or raises goes to the study.

        Raises:
            TrialEnded: it failed or was interrupted; TrialPruned: hyperband ended it.
            UserError: it did not log the metric, and none has before.
        """
        first, metric = "values" not in trial.user_attrs, self.config.metric
        number = self.study.begin(trial, self.name)
        self.study.lock.release()
        if first and number >= self.most:  # another worker has begun the last one at the same time
            trial.set_user_attr("surplus", True)
            raise TrialEnded
        run, log = RunDir(self.folder / trial.user_attrs["run"]), self.folder / "logs" / f"{number:04d}.log"
        curve, start = Curve(run.path / "metrics.csv", metric), time.monotonic()
        status, stopped = self._fit(trial, run, log, slot, curve)
        if status and self._stop:  # another attempt goes on
            retry(trial.study, trial.study.get_trials(deepcopy=False)[trial.number])
            raise TrialEnded
        seconds = round(time.monotonic() - start, 1)
        trial.set_user_attr("seconds", seconds)
        if curve.values and (status == 0 or stopped):
            value, state = self.config.best(curve.values), "stopped early" if status else "finished"
            best = self.config.best([value, *(row.value for row in self.study.rows() if row.good)])
            self.say(f"trial {number} {state}: {metric} {value:.4g} in {seconds:.0f} s  (best {best:.4g})")
            if status:
                raise optuna.TrialPruned
            return value
        missing = not status and metric not in curve.columns
        error = f"it did not log {metric}" if missing else f"{metric} was never finite"
        error = _last_error(log, status) if status else error
        trial.set_user_attr("error", error)
        self.say(f"trial {number} failed: {error} ({log})")
        if missing and not any(row.good for row in self.study.rows()):
            logged = sorted(name for name in curve.columns if "/" in name)
            hint = did_you_mean(metric, logged)
            raise UserError(f"trial {number} did not log {metric}{hint} (logged: {', '.join(logged)})")
        raise TrialEnded

    def _fit(self, trial: optuna.Trial, run: RunDir, log: Path, slot: int, curve: "Curve") -> tuple[int, bool]:
        """Trains, or goes on from the last checkpoint; returns the exit status and if hyperband has ended it."""
        if _is_held(run):
            self.say(f"trial {trial.user_attrs['number']} still runs, though its worker has gone: waiting for it")
        while _is_held(run) and not self._stop:
            time.sleep(POLL)
        if "fit" in run.metrics() or self._stop:
            self._report(trial, curve)
            return int("fit" not in run.metrics()), False
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*FIT, *self._words(trial, run)], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=environment_of(slot, self.workers, self.devices),
                start_new_session=True,  # Ctrl-C is the sweep's, which then ends its trials
            )  # fmt: skip
        stopped, asked = False, 0.0
        try:
            while process.poll() is None:
                stopped = stopped or self._report(trial, curve)
                if (stopped or self._stop) and not asked:
                    process.terminate()
                    asked = time.monotonic()
                elif asked and time.monotonic() - asked > PATIENCE:
                    process.kill()
                time.sleep(POLL)
        finally:
            process.terminate()  # does nothing to one that has ended
        self._report(trial, curve)
        return process.wait(), stopped

    def _words(self, trial: optuna.Trial, run: RunDir) -> list[str]:
        """The command line of an attempt."""
        facts, what = trial.user_attrs, "started"
        file = self.folder / "values" / f"{facts['number']:04d}.json"
        words = [*self.config.words(facts["values"], file), *self.options, f"--run_name={run.path.name}"]
        write_text(file, json.dumps(facts["values"], indent=2) + "\n")
        if run.path.exists():
            try:
                run.newest()
                words, what = ["fit", "--run", str(run.path)], "resumed"
            except RunError:
                shutil.rmtree(run.path)  # it was cut before its first checkpoint
        values = "  ".join(f"{key.rpartition('.')[2]}={short(value)}" for key, value in facts["values"].items())
        self.say(f"trial {facts['number']} {what}: {values}")
        return words

    def _report(self, trial: optuna.Trial, curve: "Curve") -> bool:
        """Reports new values of the metric; whether hyperband ends the trial."""
        over = False
        for step in range(curve.read(), len(curve.values)):
            values = curve.values[step if self.config.strict else 0 : step + 1]
            trial.report(self.config.best(values), step + 1)
            over = over or trial.should_prune()
        return over


class Curve:
    """The finite values of a metric in a metrics.csv that grows."""

    def __init__(self, file: Path, metric: str) -> None:
        self.file, self.metric = file, metric
        self.values: list[float] = []
        self.columns: list[str] = []
        self._size = 0

    def read(self) -> int:
        """Reads what is new; returns how many values there were before."""
        before = len(self.values)
        size = self.file.stat().st_size if self.file.exists() else 0
        if size != self._size:
            whole = self.file.read_text().rpartition("\n")[0]  # without a row that is still being written
            rows = csv.DictReader(whole.splitlines())
            values = [float(row.get(self.metric) or "nan") for row in rows]
            self.values = [value for value in values if math.isfinite(value)]
            self._size, self.columns = size, [*(rows.fieldnames or [])]
        return before


def _is_held(run: RunDir) -> bool:
    """Whether a process trains this run."""
    try:
        if run.path.is_dir():
            run.lock().release()
    except RunError:
        return True
    return False


def _last_error(log: Path, status: int) -> str:
    """The error that a process printed last, or its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    if status < 0 and not errors:
        return f"killed by signal {signal.Signals(-status).name}"
    return (errors or lines or ["no output"])[-1].removeprefix("error: ")


def environment_of(slot: int, workers: int, devices: int = 0) -> dict[str, str]:
    """The environment of a trial: its part of the cores, and one of the GPUs if there are several."""
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [name for name in shown.split(",") if name] if shown is not None else [str(n) for n in range(devices)]
    if workers > 1 and len(gpus) > 1:
        environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    return environment
