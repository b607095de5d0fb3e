"""Runs the trials of a sweep, several at a time, until there are enough."""

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from lit_project.errors import UserError, did_you_mean
from lit_project.sweep.process import Process, environment_of
from lit_project.sweep.study import Job, Study

POLL = 0.2  # seconds


class Runner:
    """Keeps `workers` trials running.

    Args:
        study: where trials come from and go to.
        folder: of the sweep.
        runs: where the run directories of trials are, as `runs/trial-0000`.
        options: of each trial's command line, after those of the sweep.
        workers: trials at a time.
        most: trials in all.
        devices: GPUs of this machine.
        say: prints a line.
    """

    def __init__(
        self,
        study: Study,
        folder: Path,
        runs: Path,
        options: Sequence[str],
        workers: int,
        most: int,
        devices: int = 0,
        say: Callable[[str], None] = print,
    ) -> None:
        self.study, self.folder, self.runs, self.options = study, folder, runs, options
        self.workers, self.most, self.devices, self.say = workers, most, devices, say
        self.slots: list[Process | None] = [None] * workers
        self._terminated = 0

    def run(self) -> int:
        """Runs what is missing; returns 0, or 128 + the signal that ended it. A second call goes on.

        Raises:
            UserError: the first trial that ended did not log the metric, or the sweep cannot be written.
        """
        before = signal.signal(signal.SIGTERM, self._terminate)
        waiting = self.study.unfinished()
        try:
            while not self._terminated:
                for slot, process in enumerate(self.slots):
                    if process is not None and self._ended(process):
                        self.slots[slot] = None
                    while self.slots[slot] is None and (
                        job := waiting.pop(0) if waiting else self.study.next(self.most)
                    ):
                        self.slots[slot] = self._start(job, slot)
                if not any(self.slots):
                    if best := self.study.reached():
                        self.say(f"trial {best.number} has reached the target {self.study.config.target:g}")
                    return 0
                time.sleep(POLL)
            return 128 + self._terminated
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        finally:
            signal.signal(signal.SIGTERM, before)
            self._end_all()

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self._terminated = number

    def _start(self, job: Job, slot: int) -> Process | None:
        name = f"trial-{job.number:04d}"
        process = Process(job, self.folder, self.runs / name)
        self.study.note(job.number, run=str(self.runs / name))
        if process.trained():  # the crash came between the end of the trial and its record
            self._judge(process, 0)
            return None
        options = [*self.options, f"--run_name={name}"]
        try:
            what = process.start(self.study.config, options, environment_of(slot, self.workers, self.devices))
        except OSError as error:
            raise UserError(f"cannot start trial {job.number}: {error}") from error
        values = "  ".join(f"{key.rpartition('.')[2]}={_short(value)}" for key, value in job.values.items())
        self.say(f"trial {job.number} {what}: {values}")
        return process

    def _ended(self, process: Process) -> bool:
        """Looks after a process: its early end, and its record once it has ended."""
        metric, number = self.study.config.metric, process.job.number
        status = process.exit_status()
        if status is None:
            if process.stopped or self._hopeless(process):
                if not process.stopped:
                    self.say(f"trial {number} is stopped early, after {len(process.history(metric))} values")
                process.stopped = True
                process.stop()
            return False
        self._judge(process, status)
        return True

    def _judge(self, process: Process, status: int) -> None:
        """Records a trial that has ended.

        Raises:
            UserError: it has no such metric, and no trial before it had.
        """
        metric, number = self.study.config.metric, process.job.number
        columns = process.columns()
        if status == 0 and process.history(metric):
            self._record(process, "finished")
        elif status == 0 and metric in columns:
            self._record(process, "failed", f"{metric} was never finite")
        elif status == 0:
            first = not any(row.value is not None for row in self.study.rows())
            self._record(process, "failed", f"it did not log {metric}")
            if first:
                logged = sorted(name for name in columns if "/" in name)
                hint = did_you_mean(metric, logged)
                raise UserError(f"trial {number} did not log {metric}{hint} (logged: {', '.join(logged)})")
        elif process.stopped:
            self._record(process, "stopped")
        else:
            self._record(process, "failed", process.error())

    def _hopeless(self, process: Process) -> bool:
        config = self.study.config
        if config.hyperband is None:
            return False
        sign = -1 if config.maximize else 1
        running = [[sign * v for v in other.history(config.metric)] for other in self.slots if other is not None]
        own = [sign * value for value in process.history(config.metric)]
        return config.hyperband.is_over(own, [*self.study.histories(), *running])

    def _record(self, process: Process, state: str, error: str = "") -> None:
        config, number = self.study.config, process.job.number
        history = process.history(config.metric)
        seconds = round(process.seconds(), 1)
        self.study.note(number, seconds=seconds, **({"error": error} if error else {}))
        self.study.finish(number, history, state)
        if error:
            self.say(f"trial {number} failed: {error} ({process.log})")
            return
        best = self.study.rows()[0]
        own = max(history) if config.maximize else min(history)
        self.say(
            f"trial {number} {state}: {config.metric} {own:.4g} in {seconds:.0f} s  "
            f"(best {best.value:.4g}: trial {best.number})"
        )

    def _end_all(self) -> None:
        """Has the trials that still run end in order; they stay unfinished, and the next sweep goes on with them."""
        while running := [p for p in self.slots if p is not None and p.exit_status() is None and p.can_be_stopped]:
            for process in running:
                process.stop()
            time.sleep(POLL)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace(" ", "")
