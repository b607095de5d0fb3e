"""Repeats a training run with the same code, versions, options and data, and compares the results (`reproduce RUN`)."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lit_engine.cli.arguments import OptionParser
from lit_engine.errors import first_of
from lit_engine.project import current
from lit_engine.run.directory import RunDir
from lit_engine.tools.output import HELP, json_document
from lit_engine.tools.reproduce.code import checkout, create_environment, irreproducible
from lit_engine.tools.reproduce.outcome import compare_results, differences, guess_reason

FOLDER = Path("reproductions")
POLL = 0.1  # seconds


def option_parser() -> argparse.ArgumentParser:
    """Return the argument parser of `reproduce`."""
    what = (
        "Repeats a run from its commit with the recorded versions, options and data, and compares the results.\n"
        "The exit status is 0 if the results are bit-identical or equal within rounding, and 3 if they differ."
    )
    parser = OptionParser("reproduce", what)
    parser.add_argument("run", metavar="RUN", help="a finished run, or `latest`")
    here = "use the packages of this environment instead of installing the recorded versions with uv"
    parser.add_argument("--here", action="store_true", help=here)
    parser.add_argument("--json", action="store_true", help=HELP)
    return parser


def reproduce(args: Sequence[str]) -> int:
    """Reproduce a run, print the verdict and return the exit status.

    Raises:
        UserError: the run cannot be reproduced.
    """
    options = option_parser().parse_args(args)
    run = RunDir.open(options.run)
    entry = check(run)
    with json_document(options.json) as document:
        print(f"reproducing {run.path} at commit {entry['git']['commit'][:9]}", flush=True)
        with (
            tempfile.TemporaryDirectory(prefix="reproduce-") as folder,
            checkout(run, entry["git"], Path(folder)) as code,
        ):
            python, path = Path(sys.executable), [*code.python_path, *filter(None, [os.environ.get("PYTHONPATH")])]
            if not options.here:
                python = create_environment(run, entry["versions"], code.project, Path(folder))
            lacking = f"code.patch does not contain {first_of(code.left_out)}"
            if code.left_out:
                print(f"note: {lacking}. If the run imports these files, their current versions are used")
            again = fit_again(run, entry, python, os.pathsep.join(path))
        outcome = compare_results(run, again)
        changes = differences(entry, again.entries()[-1])
        changes += [lacking] if code.left_out else []
        reason = None if outcome.verdict == "bit-identical" else guess_reason(changes, again.entries()[-1])
        print(*outcome.lines(), *([f"most likely reason: {reason}"] if reason else []), sep="\n")
        print(f"reproduction: {again.path}")
        document.update(run=run.path, reproduction=again.path, verdict=outcome.verdict, reason=reason)
        document.update({name: one._asdict() for name, one in outcome.extremes.items()})
        document.update(weights=outcome.weights, differences=changes)
    return 3 if outcome.verdict == "different" else 0


def check(run: RunDir) -> dict[str, Any]:
    """Check that a run can be reproduced, and return its entry in provenance.json.

    Raises:
        RunError: the run cannot be reproduced.
    """
    entries, state = run.entries(), run.state()
    if not entries:
        raise irreproducible(run, "provenance.json, which records the commit, is missing")
    if state != "finished":
        raise irreproducible(run, f"the run is {state}, but only finished runs can be compared")
    changed = [name for name in ("git", "versions", "processes", "cpu_threads") if any(
        entry.get(name) != entries[0].get(name) for entry in entries)]  # fmt: skip
    changed += [name for name in ("config.1.yaml", "code.1.patch") if (run.path / name).exists()]
    if changed:
        raise irreproducible(
            run, f"the run was resumed with different code, options or versions ({', '.join(changed)})"
        )
    entry = entries[0]
    if not (entry.get("git") or {}).get("commit"):
        raise irreproducible(run, "no commit was recorded, because the code was not in a Git repository")
    if (weights := entry.get("init_from")) and not Path(weights).exists():
        raise irreproducible(run, f"the initial weights {weights} do not exist")
    if (fork := entry.get("fork")) and not Path(fork["run"], "config.yaml").exists():
        raise irreproducible(run, f"the run was forked from {fork['run']}, which does not exist")
    return {**entries[-1], "fork": entry.get("fork")}


def fit_again(run: RunDir, entry: dict[str, Any], python: Path, python_path: str) -> RunDir:
    """Repeat a training run in the `reproductions` folder and return the new run.

    Raises:
        RunError: the data or the parent of a fork has changed, or `fit` fails.
    """
    fork = entry["fork"]
    source = Path(fork["run"]) if fork else run.path
    folder = FOLDER / Path(os.path.abspath(source)).parent.name
    again, number = RunDir(folder / run.path.name), 1
    while again.path.exists():
        number += 1
        again = RunDir(folder / f"{run.path.name}-{number}")
    words = [str(python), "-m", current().name, "fit", f"--config={run.config_file.absolute()}"]
    words += [f"--runs_dir={FOLDER}", f"--run_name={again.path.name}"]
    if fork:
        is_kept = (RunDir(source).checkpoints / fork["checkpoint"]).is_file()
        words.append(f"--fork={source}@{fork['checkpoint'] if is_kept else fork['epochs'] - 1}")
    else:
        words += run.initial_weights()
    if run.config().get("trainer", {}).get("logger"):
        words.append("--trainer.logger=null")  # metrics.csv is enough
    # Without PYTHONSAFEPATH, Python would import the package in the working folder instead of the commit's package.
    environment = {**os.environ, "PYTHONPATH": python_path, "PYTHONSAFEPATH": "1"}
    if entry.get("processes", 1) == 1 and "cpu_threads" in entry:  # Lightning divides the cores among several processes
        environment["OMP_NUM_THREADS"] = str(entry["cpu_threads"])
    output = sys.stderr.fileno() if sys.stdout is sys.stderr else None  # --json redirects stdout
    handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=output)
    try:
        while process.poll() is None and not again.entries():
            time.sleep(POLL)
        for started in again.entries():
            _check_start(run, entry, started)
        if status := process.wait():
            raise irreproducible(run, f"`fit` failed with exit status {status}; see its message above")
    except BaseException:
        process.terminate()
        process.wait()
        shutil.rmtree(again.path, ignore_errors=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)
    return again


def _check_start(run: RunDir, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Print how the reproduction differs from the run. Raise RunError if the data or a fork's parent has changed."""
    if before["fork"] and before["fork"]["step"] != now["fork"]["step"]:
        raise irreproducible(run, f"{before['fork']['run']} has been trained further since the fork")
    known, found = before.get("data") or {}, now.get("data") or {}
    if different := [split for split in found if split in known and known[split] != found[split]]:
        raise irreproducible(run, f"the data have changed ({', '.join(different)})")
    for change in differences(before, now):
        print(f"note: {change}", flush=True)
