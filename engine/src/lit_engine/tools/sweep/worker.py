"""Runs the trials of a study with several workers. Each trial runs `fit` in a separate process."""

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import optuna
import torch
from optuna.exceptions import OptunaError
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from lit_engine.distributed.processes import SIGNALS
from lit_engine.errors import RunError, UserError, did_you_mean
from lit_engine.project import current
from lit_engine.run.directory import RunDir, write_text
from lit_engine.run.metric_names import find_metric
from lit_engine.tools.sweep.report import short
from lit_engine.tools.sweep.study import Study, TrialEnded, is_first_attempt, retry

POLL = 0.2  # seconds


def fit_command() -> list[str]:
    """Return the command that starts the project's program, without arguments such as `fit`."""
    return [sys.executable, "-m", current().name]


class Workers:
    """Threads that run trials until the study contains a given number of trials (`most`).

    Runs are stored in the study's subfolder `name`, and are tested only if `tests` is true.
    """

    def __init__(self, study: Study, name: str, workers: int, most: int, tests: bool = False) -> None:
        self.study, self.config, self.folder, self.name = study, study.config, study.folder, name
        self.workers, self.most, self.tests = workers, most, tests
        self.status = 0  # the exit status; any value except 0 stops the workers

    def run(self) -> int:
        """Run the missing trials. Return 0, or 128 plus the number of the signal that stopped the program.

        Raises:
            UserError: a trial did not log the metric.
        """
        heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._on_signal) for number in heeded}
        try:
            with ThreadPoolExecutor(self.workers) as pool:
                list(pool.map(self._work, range(self.workers)))  # re-raises errors from workers
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return self.status

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.status = 128 + number

    def _work(self, slot: int) -> None:
        study = self.study.connect()
        try:
            while not self.status:
                # Hold a lock until the attempt starts, because SQLite offers a waiting trial to all workers.
                with self.study.lock:
                    optuna.storages.fail_stale_trials(study)
                    attempts = self.study.attempts()
                    states = {trial.state for trial in attempts}
                    if TrialState.WAITING in states or sum(map(is_first_attempt, attempts)) < self.most:
                        study.optimize(lambda trial: self._attempt(trial, slot), n_trials=1, catch=TrialEnded)
                        continue
                if TrialState.RUNNING not in states:
                    return
                time.sleep(1)  # wait for the trials of other workers, and take over if a worker dies
        except BaseException:
            self.status = 2  # stops the other workers
            raise

    def _attempt(self, trial: optuna.Trial, slot: int) -> float:
        """Run one attempt at a trial. Optuna records the return value or exception in the study.

        Raises:
            TrialEnded: the trial failed, was interrupted, or was not needed.
            TrialPruned: hyperband stopped the trial early.
            UserError: the trial did not log the metric.
        """
        number, metric = self.study.begin(trial, self.name, self.most), self.config.metric
        self.study.lock.release()
        run, log = RunDir(self.folder / trial.user_attrs["run"]), self.folder / "logs" / f"{number:04d}.log"
        title, start = format_title(run), log.stat().st_size if log.exists() else 0
        try:
            status, pruned, values = self._fit(trial, run, log, slot)
        except (OptunaError, SQLAlchemyError):  # the database was unavailable
            _continue_later(trial)
            raise
        if status and self.status:
            _continue_later(trial)
            raise TrialEnded
        killed = status == -signal.SIGKILL and not pruned
        if killed and "killed" not in trial.user_attrs:
            trial.set_user_attr("killed", True)
            print(f"{title} was killed, possibly because memory ran out; resuming it once", flush=True)
            _continue_later(trial)
            raise TrialEnded
        columns = run.history()[0]
        if status == 0 and find_metric(metric, columns) not in columns:
            logged = [name for name in columns if name not in ("epoch", "step")]
            hint = did_you_mean(metric, logged)
            raise UserError(f"{title} did not log {metric}{hint} (logged: {', '.join(logged)})")
        if not values or (status and not pruned):
            if killed:
                error = "killed twice, possibly because memory ran out"
            elif status:
                error = _explain_status(status, log.read_bytes()[start:].decode(errors="replace"))
            else:
                error = f"{metric} was never finite"
            trial.set_user_attr("error", error)
            print(f"{title} failed: {error} ({log})", flush=True)
            raise TrialEnded
        value = self.config.best(values)
        best = self.config.best([value, *(row.value for row in self.study.rows() if row.has_result)])
        state = "stopped early" if status else "finished"
        print(f"{title} {state}: {metric} {value:.4g}{'' if self.tests else f'  (best {best:.4g})'}", flush=True)
        if status:
            raise optuna.TrialPruned
        return value

    def _fit(self, trial: optuna.Trial, run: RunDir, log: Path, slot: int) -> tuple[int, bool, list[float]]:
        """Start or resume training. Return the exit status, whether hyperband stopped it, and its metric values."""
        while run.path.exists() and not self.status:
            with contextlib.suppress(RunError):  # a `fit` that outlived its worker may still be running
                run.lock().release()
                break
            time.sleep(POLL)
        if self.status:
            return self.status, False, []
        words, pruned = self._words(trial, run), False
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*fit_command(), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=build_environment(slot, self.workers, self.study.folder.name),
                start_new_session=True,  # Ctrl-C reaches only the sweep, which then stops its trials
            )
        values: list[float] = []
        try:
            while process.poll() is None and not pruned and not self.status:
                time.sleep(POLL)
                values, pruned = self._report(trial, run, len(values))
        finally:
            process.terminate()  # has no effect if the process has exited
            status = process.wait()
        values, _ = self._report(trial, run, len(values))
        return status, pruned, values

    def _words(self, trial: optuna.Trial, run: RunDir) -> list[str]:
        """Return the command line of an attempt, which starts or resumes the run."""
        number, values = trial.user_attrs["number"], trial.user_attrs["values"]
        file = self.folder / "values" / f"{number:04d}.json"
        write_text(file, json.dumps(values, indent=2) + "\n")
        shown = "  ".join(f"{key.rpartition('.')[2]}={short(value)}" for key, value in values.items())
        message = f"{format_title(run)} {'resumed' if run.path.exists() else 'started'}"
        print(message if self.tests else f"{message}: {shown}", flush=True)
        place = [f"--runs_dir={self.folder}", f"--run_name={run.path.name}", "--resume=true"]
        return [*self.config.words(values, file), *place, f"--test_after_fit={str(self.tests).lower()}"]

    def _report(self, trial: optuna.Trial, run: RunDir, reported: int) -> tuple[list[float], bool]:
        """Report new values of the metric. Return all finite values, and whether hyperband stops the trial."""
        (columns, rows), entries = run.history(), run.entries()
        # a fork copies its parent's rows before it writes its provenance
        copied = (entries[0].get("fork") or {}).get("rows", 0) if entries else len(rows)
        metric, pruned = find_metric(self.config.metric, columns), False
        found = [float(row.get(metric) or "nan") for row in rows[copied:]]
        values = [value for value in found if math.isfinite(value)]
        for step in range(reported, len(values)):
            trial.report(self.config.best(values[: step + 1]), step + 1)
            pruned = pruned or trial.should_prune()
        return values, pruned


def format_title(run: RunDir) -> str:
    """Return the title of a run, such as `trial 1` for `trial-0001`."""
    return re.sub(r"-0*(?=\d)|-", " ", run.path.name)


def _explain_status(status: int, printed: str) -> str:
    """Return the last error message that a failed `fit` printed, or else its exit status and exception."""
    lines = printed.strip().splitlines() or [""]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    exceptions = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]  # the last line may be a note
    return errors[-1] if errors else f"exit status {status}: {(exceptions or lines)[-1]}"


def _continue_later(trial: optuna.Trial) -> None:
    """Enqueue the trial again, so that a later attempt continues it."""
    retry(trial.study, trial.study.get_trials(deepcopy=False)[trial.number])


def build_environment(slot: int, workers: int, group: str) -> dict[str, str]:
    """Return a trial's environment variables, which set the number of threads, the W&B group and possibly the GPU."""
    environment = {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // workers)), "WANDB_RUN_GROUP": group}
    environment |= os.environ
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count())))).split(",")
    if workers > 1 and len(gpus) > 1:
        environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    return environment
