"""A run is a directory: config, checkpoints, metrics, predictions, figures and provenance of one training.

runs/CONFIG/STAMP/
    config.yaml        complete; `fit -c` on it repeats the run
    checkpoints/       best*.ckpt, last.ckpt
    metrics.csv        by step and epoch
    metrics.json       final numbers: {"fit": {…}, "validate": {…}, "test": {…}}
    provenance.json    where the numbers come from: commit, versions, host, seed, command
    code.patch         what was not committed
    predictions/, figures/
    index.html         the page of all this; README.md is the model card

Reading a run imports neither torch nor Lightning. `lit_engine.load` turns a run into a task, its data and a trainer.
"""

import contextlib
import csv
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from filelock import BaseFileLock, FileLock, Timeout

from lit_engine.errors import RunError, did_you_mean
from lit_engine.project import current
from lit_engine.run.provenance import uncommitted

BEFORE_NAN = "before-nan.ckpt"  # what NaNGuard keeps


def write_text(path: Path, text: str) -> None:
    """Writes a file as UTF-8, whole or not at all; where `path` is a link, the file that it leads to."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """The same for any content."""
    given, path = path, path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        error.filename, error.filename2 = str(given), None  # the name that the user knows
        raise
    finally:
        temporary.unlink(missing_ok=True)


@dataclass(frozen=True)
class RunDir:
    """The directory of one run, for reading it in Python; `fit` alone writes into it by this class.

        run = RunDir.open("runs/quickstart/first")          or RunDir.latest("runs")
        run.config(), run.metrics(), run.history()          config.yaml, metrics.json, metrics.csv
        run.predictions("test"), run.figures()              rows of a table; pictures

    Args:
        path: of the folder; `open` checks that it is one of a run.
    """

    path: Path

    @classmethod
    def create(cls, runs: str | Path, config: str, name: str | None) -> "RunDir":
        """Makes `runs/config/name`, or `runs/config/TIMESTAMP` without a name.

        Raises:
            RunError: it exists, the name is not a plain folder name, or it cannot be written.
        """
        parent = Path(runs).expanduser() / config
        if name is not None and (name in ("", ".", "..") or re.search(r"[/\\\x00-\x1f\x7f]", name)):
            raise RunError(f"run_name must be a plain folder name, got {name!r}")
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        for number in range(1, 1000):
            path = parent / (name or (stamp if number == 1 else f"{stamp}-{number}"))
            try:
                path.mkdir(parents=True)
                return cls(path)
            except FileExistsError as error:
                if name is not None:
                    raise RunError(
                        f"{path} exists and is not written to: choose another --run_name, delete it, or resume it "
                        f"with `fit --run {path}`"
                    ) from error
            except OSError as error:
                raise RunError(
                    f"cannot make a run in {parent}: {error.strerror}; --runs_dir chooses another folder"
                ) from error
        raise RunError(f"cannot make a run in {parent}")

    @classmethod
    def open(cls, path: str | Path) -> "RunDir":
        """An existing run; `latest` is that of `runs/`.

        Raises:
            RunError: no such folder, or not one of a run.
        """
        run = cls(Path(path).expanduser())
        if not run.path.is_dir():
            if str(path) == "latest":
                return cls.latest("runs")
            siblings = [folder.name for folder in run.path.parent.glob("*/")]
            raise RunError(f"no such run directory: {path}{did_you_mean(run.path.name, siblings)}")
        if not run.config_file.is_file():
            inside = sorted(p.parent for p in run.path.glob("**/config.yaml"))[-3:]
            hint = f"; runs inside it: {', '.join(map(str, inside))}" if inside else ""
            raise RunError(f"{path} is not a run directory: it has no config.yaml{hint}")
        return run

    @classmethod
    def latest(cls, runs: str | Path, config: str | None = None) -> "RunDir":
        """The run with checkpoints, of this config if one is given, that was started or resumed last.

        The time in provenance.json decides, because copying or touching a file changes the time of the file.

        Raises:
            RunError: no run is there.
        """
        found = cls.newest(runs, config)
        if not found:
            raise RunError(f"there is no run in {Path(runs, config or '')}")
        return found[0]

    @classmethod
    def newest(cls, runs: str | Path, config: str | None = None) -> list["RunDir"]:
        """Return the runs with checkpoints, of this config if one is given, in the order of their last start."""
        files = Path(runs).expanduser().glob(f"{config or '*'}/*/config.yaml")
        found = [cls(file.parent) for file in files if (file.parent / "checkpoints").is_dir()]
        return sorted(found, key=lambda run: (run._last_start(), run.path), reverse=True)

    def _last_start(self) -> datetime:
        with contextlib.suppress(RunError, LookupError, TypeError, ValueError):  # provenance.json is missing or broken
            return datetime.fromisoformat(self.entries()[-1]["time"])
        return datetime.min.replace(tzinfo=UTC)

    @property
    def name(self) -> str:
        """As people read it: `CONFIG/NAME`."""
        return "/".join(self.path.absolute().parts[-2:])

    @property
    def config_file(self) -> Path:
        """The complete, reusable config."""
        return self.path / "config.yaml"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def describe(self, config: str, provenance: Mapping[str, Any]) -> None:
        """Writes config.yaml and a further entry in provenance.json.

        An earlier config that differs is kept as config.1.yaml, then config.2.yaml and so on, and so is code.patch. The
        entry lists the files in code.patch as `patch`.
        """
        patch = b""
        if (provenance.get("git") or {}).get("dirty"):
            patch, files = uncommitted(current().folder)
            provenance = {**provenance, "patch": files}
        entries = [*self.entries(), provenance]
        for file, content in ((self.config_file, config.encode()), (self.path / "code.patch", patch)):
            if file.exists() and (before := file.read_bytes()) != content:
                number = 1 + len(list(self.path.glob(f"{file.stem}.*{file.suffix}")))
                write_bytes(file.with_name(f"{file.stem}.{number}{file.suffix}"), before)
            if content:
                write_bytes(file, content)
            else:
                file.unlink(missing_ok=True)
        write_text(self.path / "provenance.json", json.dumps(entries, indent=2) + "\n")

    def lock(self) -> BaseFileLock:
        """Keeps other processes from training this run until it is released, or this process ends.

        Raises:
            RunError: another process is training it.
        """
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0.3, poll_interval=0.05)  # `state` may be looking
        except Timeout as error:
            raise RunError(f"another process is training the run {self.path}") from error
        for left in [*self.path.glob(".*.tmp"), *self.checkpoints.glob(".*.tmp")]:  # by a process that was killed
            left.unlink(missing_ok=True)
        return lock

    def state(self) -> str:
        """`running`, `finished`, `failed`, `stopped` (by a signal), or `killed`: the process left no word of its end.

        `unfinished` is a run of an earlier version, or of the learning rate finder, that did not end a training.

        Raises:
            RunError: provenance.json or metrics.json is broken.
        """
        if (self.path / ".lock").exists():
            try:
                with FileLock(self.path / ".lock").acquire(blocking=False):
                    pass
            except Timeout:
                return "running"
            except OSError:  # in a folder that cannot be written to nothing is trained
                pass
        last = {"status": ..., **(self.entries() or [{}])[-1]}["status"]
        if last is ...:
            return "finished" if "fit" in self.metrics() else "unfinished"
        return "killed" if last is None else "finished" if last == 0 else "stopped" if last > 128 else "failed"

    def end(self, status: int, seconds: float | None = None) -> None:
        """Adds to the last entry of provenance.json how its training ended, and the time that it took if it did."""
        *earlier, last = self.entries()
        entry = {**last, "status": status, **({} if seconds is None else {"seconds": seconds})}
        if entry != last:
            write_text(self.path / "provenance.json", json.dumps([*earlier, entry], indent=2) + "\n")

    def config(self) -> dict[str, Any]:
        """The content of config.yaml; raises RunError if it is broken."""
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C takes an eighth of the time
        try:
            content = yaml.load(self.config_file.read_text(encoding="utf-8"), loader)
        except (ValueError, yaml.YAMLError) as error:
            raise RunError(f"{self.config_file} is broken: {' '.join(str(error).split())}") from error
        if not isinstance(content, dict):
            raise RunError(f"{self.config_file} is broken: it holds no options")
        return content

    def history(self) -> tuple[list[str], list[dict[str, str]]]:
        """Columns and rows of metrics.csv, without a last line that a crash or a full disk has cut short.

        Raises:
            RunError: a row has no step.
        """
        file = self.path / "metrics.csv"
        if not file.exists():
            return [], []
        text = file.read_text(encoding="utf-8", errors="replace")
        reader = csv.DictReader([line for line in text.splitlines(keepends=True) if line.endswith("\n")])
        try:
            rows = [row for row in reader if int(row["step"]) >= 0]
        except (csv.Error, KeyError, TypeError, ValueError) as error:
            where = f"{file}, line {reader.line_num}"
            raise RunError(f"{where} is broken: it has no step; mend it or remove the file") from error
        return list(reader.fieldnames or []), rows

    def predictions(self, name: str = "test") -> list[dict[str, Any]]:
        """Rows of `predictions/NAME.csv`; a column of numbers alone gives numbers, and None where it is blank.

        Raises:
            RunError: there is no such table.
        """
        file = self.path / "predictions" / f"{name}.csv"
        if not file.is_file():
            there = ", ".join(sorted(path.stem for path in file.parent.glob("*.csv"))) or "none"
            raise RunError(f"no such table of predictions: {file} (there: {there}); `predict --run` writes them")
        with file.open(encoding="utf-8", newline="") as lines:
            columns, *rows = csv.reader(lines)
        typed = [_typed(values) for values in zip(*rows, strict=True)]
        return [dict(zip(columns, row, strict=True)) for row in zip(*typed, strict=True)]

    def figures(self) -> list[Path]:
        """The pictures of the run, by name."""
        return sorted(self.path.glob("figures/**/*.png"))

    def metrics(self) -> dict[str, Any]:
        """The content of metrics.json; raises RunError if it is broken."""
        return self._json("metrics.json", {})

    def entries(self) -> list[dict[str, Any]]:
        """The content of provenance.json; raises RunError if it is broken."""
        return self._json("provenance.json", [])

    def _json(self, name: str, nothing: Any) -> Any:
        file = self.path / name
        try:
            content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else nothing
        except ValueError as error:
            raise RunError(f"{file} is broken ({error}): fix or delete it") from error
        if type(content) is not type(nothing):
            raise RunError(f"{file} is broken (it holds a {type(content).__name__}): fix or delete it")
        return content

    def record(self, section: str, values: Mapping[str, Any]) -> None:
        """Replaces one section of metrics.json."""
        write_text(self.path / "metrics.json", json.dumps({**self.metrics(), section: dict(values)}, indent=2) + "\n")


def _typed(texts: Sequence[str]) -> Sequence[Any]:
    """The texts as whole numbers if all are, else as numbers if all are, else as they are; a number may be blank."""
    for kind in (int, float) if "_" not in "".join(texts) else ():  # Python reads 1_000 as a number
        with contextlib.suppress(ValueError):
            return [kind(text) if text else None for text in texts]
    return texts
