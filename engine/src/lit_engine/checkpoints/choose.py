"""Selects the checkpoint of a run to resume from or to evaluate."""

import os
import re
from pathlib import Path
from typing import Any

from lit_engine._lightning import epochs_in
from lit_engine.checkpoints.average import NAME, average
from lit_engine.checkpoints.io import is_intact, read, sort_by_age
from lit_engine.distributed.processes import warn_once
from lit_engine.errors import RunError, UserError, first_of
from lit_engine.run.directory import BEFORE_NAN, RunDir


def find_newest_checkpoint(run: RunDir) -> Path:
    """Return the checkpoint to resume from.

    A run resumes from `last.ckpt` if this file is intact, and otherwise from the intact checkpoint with the latest
    step. Damaged checkpoints are reported.

    Raises:
        RunError: if there is no intact checkpoint.
    """
    if is_intact(last := run.checkpoints / "last.ckpt"):
        return last
    files = _resumable_checkpoints(run)
    intact = sort_by_age(files)
    damaged = [path for path in files if path not in intact]
    if not files:
        raise RunError(f"{run.path} has no checkpoint")
    if not intact:
        raise RunError(f"{run.path} has no intact checkpoint ({first_of([path.name for path in damaged])} damaged)")
    for path in damaged:
        warn_once(f"warning: {path} is damaged and was skipped")
    return intact[0]


def choose_checkpoint(run: RunDir, which: str = "best") -> Path:
    """Return a checkpoint of a run. `which` is `best`, `last`, `average`, a path, or a checkpoint's file name.

    If the run monitors no metric, `best` is the newest checkpoint. `average` contains the mean weights
    of the epochs that the `Checkpoint` callback kept (`keep_last`). The mean is computed and saved when requested.

    Raises:
        RunError: if there is no such checkpoint.
    """
    if which == "last":
        return _check_exists(run, run.checkpoints / "last.ckpt")
    if which == "average":
        epochs = sorted(run.checkpoints.glob("epoch[0-9]*.ckpt"))
        if not epochs:
            raise RunError(f"{run.path} has no checkpoints to average: set keep_last in the Checkpoint callback")
        return average(epochs, run.checkpoints / NAME)
    if which != "best":
        inside = run.checkpoints / which
        return inside if inside.is_file() else _check_exists(run, Path(which))
    return _best(run)


def checkpoint_to_fork(run: RunDir, which: str) -> Path:
    """Return the checkpoint for `--fork RUN@WHICH`. `which` is `best`, `last`, a file name or an epoch number.

    Raises:
        RunError: if there is no such checkpoint.
        UserError: if `which` has any other value.
    """
    if which in ("best", "last"):
        return _best(run) if which == "best" else find_newest_checkpoint(run)
    if which.endswith(".ckpt"):
        return _check_exists(run, run.checkpoints / which)
    if not which.isdecimal():
        raise UserError(
            f"--fork {run.path}@{which}: write @best, @last, or @ followed by an epoch number or a file in checkpoints/"
        )
    of_epoch = {
        trained - 1: file for file in sort_by_age(_resumable_checkpoints(run)) if (trained := epochs_in(read(file))[1])
    }
    if int(which) not in of_epoch:
        known = ", ".join(map(str, sorted(of_epoch))) or "none"
        raise RunError(
            f"{run.path} has no checkpoint for epoch {which} (available: {known}). To keep more, set keep_last of "
            "Checkpoint or save_top_k of ModelCheckpoint"
        )
    return of_epoch[int(which)]


def weights_of(source: str | Path) -> Path:
    """Return the checkpoint for `--init_from`. If `source` is a run or `latest`, use the best checkpoint of the run.

    Raises:
        RunError: if `source` is neither a run nor a checkpoint.
    """
    path = Path(source)
    is_file = path.is_file() or (path.suffix in (".ckpt", ".pt", ".pth") and not path.is_dir())
    return path if is_file else choose_checkpoint(RunDir.open(source))


def _resumable_checkpoints(run: RunDir) -> list[Path]:
    """Return the checkpoints with a training state, including damaged ones.

    The checkpoint of `NaNGuard` is omitted, because its counters include the batches of the failed step.
    """
    return sorted(path for path in run.checkpoints.glob("*.ckpt") if path.name not in (NAME, BEFORE_NAN))


def _best(run: RunDir) -> Path:
    """Return the best checkpoint of a run, or the newest checkpoint if no best checkpoint exists.

    If there are several best checkpoints, the saved state of the first checkpoint callback specifies which one is used.
    """
    candidates = sorted(run.checkpoints.glob("best*.ckpt"))
    if len(candidates) == 1 and re.fullmatch(r"best-epoch\d+\.ckpt", candidates[0].name):
        return candidates[0]
    newest = find_newest_checkpoint(run)
    content = read(newest)
    states = content.get("callbacks", {}).values()
    recorded = [_recorded_best(run, state) for state in states if state.get("best_model_score") is not None]
    named = [path for path in recorded if path.is_file()]
    best = (named or sort_by_age(candidates) or [newest])[0]
    if best == newest and content.get("global_step") == 0:
        raise RunError(
            f"{run.path} has no trained weights, because training ended in the first epoch; "
            "use `--ckpt_path last` for the initial weights"
        )
    if recorded and best != recorded[0]:
        warn_once(f"warning: the best checkpoint {recorded[0].name} does not exist, using {best.name}")
    return best


def _recorded_best(run: RunDir, state: dict[str, Any]) -> Path:
    """Return the path of the best checkpoint in a callback's state, even if the run was moved or copied."""
    folder, path = Path(state["dirpath"]), Path(state["best_model_path"])
    inside = run.checkpoints / os.path.relpath(path, folder)
    # If false, `folder` is the user's own folder, which is also named `checkpoints`.
    was_run = not path.is_file() or (folder.parent / "provenance.json").is_file()
    return inside if folder.name == run.checkpoints.name and (was_run or inside.is_file()) else path


def _check_exists(run: RunDir, path: Path) -> Path:
    if not path.is_file():
        there = ", ".join(sorted(p.name for p in run.checkpoints.glob("*.ckpt"))) or "none"
        raise RunError(f"no such checkpoint: {path} (available in the run: {there})")
    return path
