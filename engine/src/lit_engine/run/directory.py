"""The directory of a training run, with its config, checkpoints, metrics, predictions, figures and provenance.

Reading a run imports neither torch nor Lightning. `lit_engine.load` loads a run's task and data, and creates a trainer.

runs/CONFIG/STAMP/
    config.yaml        the complete config, which `fit -c` accepts
    checkpoints/       best*.ckpt, last.ckpt
    metrics.csv        metrics per step and epoch
    metrics.json       final metrics of `fit`, `validate` and `test`
    provenance.json    commit, versions, host, seed, command and data fingerprints
    code.patch         uncommitted changes
    predictions/, figures/
    index.html         the run's page
    README.md          the model card
"""

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from filelock import BaseFileLock, FileLock, Timeout

from lit_engine.errors import RunError, did_you_mean, first_of
from lit_engine.project import current
from lit_engine.run.provenance import read_uncommitted_changes

STATES = ("running", "finished", "failed", "stopped", "killed")
BEFORE_NAN = "before-nan.ckpt"  # written by NaNGuard
csv.field_size_limit(2**31 - 1)  # otherwise, reading fails for cells of more than 131,072 characters
YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is eight times as fast


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically. If `path` is a symbolic link, its target is replaced."""
    write_bytes(path, text.encode(errors="backslashreplace"))  # names of data files are not always valid UTF-8


def write_bytes(path: Path, content: bytes) -> None:
    """Write a binary file atomically, like `write_text`."""
    try:
        with replacement(path.resolve()) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # report `path`, not the temporary file


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` at the end unless an error occurs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
    """Return rows as CSV text. `columns` defaults to the columns of the first row."""
    lines: list[str] = []
    # With the default line terminator, cells with "\r" are quoted. Otherwise, the table could not be read.
    file = SimpleNamespace(write=lambda line: lines.append(line.removesuffix("\r\n") + "\n"))
    writer = csv.DictWriter(file, columns or list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return "".join(lines)


@dataclass(frozen=True)
class RunDir:
    """Python interface to a run directory. Only commands should call methods that write files.

        run = RunDir.open("runs/quickstart/first")          or RunDir.latest("runs")
        run.config(), run.metrics(), run.history()          config.yaml, metrics.json, metrics.csv
        run.predictions("test"), run.figures()              rows of a table; image files

    Args:
        path: path of the directory. Use `open` to check that the directory contains a run.
    """

    path: Path

    @classmethod
    def create(cls, runs: str | Path, config: str, name: str | None) -> "RunDir":
        """Create `runs/config/name`, or `runs/config/TIMESTAMP` without a name.

        A folder with only figures, for example from `--find lr`, is reused.

        Raises:
            RunError: the directory already exists or cannot be created, or the name is not a plain folder name.
        """
        if "://" in str(runs):
            raise RunError(f"runs_dir must be a local folder, got {runs}")
        parent = Path(runs).expanduser() / config
        if name is not None and (name in ("", ".", "..") or re.search(r"[/\\\x00-\x1f\x7f]", name)):
            raise RunError(f"run_name must be a plain folder name, got {name!r}")
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        stamps: Iterable[str] = (stamp if number == 1 else f"{stamp}-{number}" for number in count(1))
        for path in (parent / one for one in (stamps if name is None else [name])):
            try:
                path.mkdir(parents=True)
                return cls(path)
            except FileExistsError as error:
                if not path.exists():  # a parent is a link to a missing folder
                    raise RunError(f"cannot create a run in {parent}: {error.filename} is not a folder") from error
            except OSError as error:
                raise RunError(
                    f"cannot create a run in {parent}: {error.strerror}; choose a different --runs_dir or --name"
                ) from error
        # The given name is in use.
        if (path / "figures").is_dir() and not (path / "config.yaml").exists():
            return cls(path)
        raise RunError(
            f"{path} already exists: choose a different --name, delete the run, or resume it with `fit {path}`"
        )

    @classmethod
    def open(cls, path: str | Path, runs: str | Path = "runs") -> "RunDir":
        """Return an existing run. The path `latest` means the latest run in the folder `runs`.

        Raises:
            RunError: the folder does not exist or does not contain a run.
        """
        run = cls(Path(path).expanduser())
        if not run.path.is_dir():
            if str(path) == "latest":
                return cls.latest(runs)
            siblings = [folder.name for folder in run.path.parent.glob("*/")]
            raise RunError(f"no such run directory: {path}{did_you_mean(run.path.name, siblings)}")
        if not run.config_file.is_file():
            inside = sorted((p.parent for p in run.path.glob("**/config.yaml")), reverse=True)
            hint = f"; runs inside it: {first_of(inside, 3)}" if inside else ""
            raise RunError(f"{path} is not a run directory: it has no config.yaml{hint}")
        return run

    @classmethod
    def to_fork(cls, fork: str, runs: str | Path = "runs") -> tuple["RunDir", str]:
        """Split the value of `--fork` (`RUN@CHECKPOINT`) into run and checkpoint. The default checkpoint is `last`."""
        path, mark, which = fork.rpartition("@")
        return (cls.open(path, runs), which) if mark and not Path(fork).is_dir() else (cls.open(fork, runs), "last")

    @classmethod
    def latest(cls, runs: str | Path, config: str | None = None) -> "RunDir":
        """Return the most recently started or resumed run that has checkpoints, for one config or all configs.

        The time comes from provenance.json, because copying or touching a file changes its modification time.

        Raises:
            RunError: there is no run.
        """
        found = cls.newest(runs, config)
        if not found:
            raise RunError(f"there is no run in {Path(runs, config or '')}")
        return found[0]

    @classmethod
    def newest(cls, runs: str | Path, config: str | None = None) -> list["RunDir"]:
        """Return the runs that have checkpoints, for one config or all configs, with the newest run first."""
        files = Path(runs).expanduser().glob(f"{config or '*'}/*/config.yaml")
        found = [cls(file.parent) for file in files if (file.parent / "checkpoints").is_dir()]
        return sorted(found, key=lambda run: (run._last_start(), run.path), reverse=True)

    def _last_start(self) -> datetime:
        with suppress(RunError, LookupError, TypeError, ValueError):  # provenance.json is missing or broken
            return datetime.fromisoformat(self.last_entry()["time"])
        return datetime.min.replace(tzinfo=UTC)

    @property
    def name(self) -> str:
        """The display name, `CONFIG/NAME`."""
        return "/".join(self.path.absolute().parts[-2:])

    @property
    def config_file(self) -> Path:
        """The complete, reusable config."""
        return self.path / "config.yaml"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def describe(self, config: str, provenance: Mapping[str, Any]) -> None:
        """Write config.yaml and add an entry to provenance.json.

        If the config has changed, its earlier version is kept as config.1.yaml, or under the next free number. Earlier
        patches are kept in the same way. The entry's `patch` lists the files in code.patch.
        """
        patch = b""
        if (provenance.get("git") or {}).get("dirty"):
            patch, files = read_uncommitted_changes(current().folder)
            provenance = {**provenance, "patch": files}
        entries = [*self.entries(), provenance]
        for file, content in ((self.config_file, config.encode()), (self.path / "code.patch", patch)):
            if file.exists() and (before := file.read_bytes()) != content:
                names = (file.with_name(f"{file.stem}.{number}{file.suffix}") for number in count(1))
                write_bytes(next(name for name in names if not name.exists()), before)
            if content:
                write_bytes(file, content)
            else:
                file.unlink(missing_ok=True)
        self._write_json("provenance.json", entries)

    def lock(self) -> BaseFileLock:
        """Prevent other processes from training this run until the lock is released or this process exits.

        Raises:
            RunError: another process is training the run.
        """
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0.3, poll_interval=0.05)  # a call to `state` may briefly hold the lock
        except Timeout as error:
            raise RunError(f"another process is training the run {self.path}") from error
        for left in [*self.path.glob(".*.tmp"), *self.checkpoints.glob(".*.tmp")]:  # left by a killed process
            left.unlink(missing_ok=True)
        return lock

    def state(self) -> str:
        """Return one of `STATES`. A `stopped` run was ended by a signal, and a `killed` run has no exit status.

        Raises:
            RunError: provenance.json is broken.
        """
        if (self.path / ".lock").exists():
            try:
                with FileLock(self.path / ".lock").acquire(blocking=False):
                    pass
            except Timeout:
                return "running"
            except OSError:  # nothing is being trained, because training requires a writable folder
                pass
        status = self.last_entry().get("status")
        if status is None:
            return "killed"
        return "finished" if status == 0 else "stopped" if status > 128 else "failed"

    def end(self, status: int, **known: Any) -> None:
        """Add the exit status and other values, such as the duration, to the last entry of provenance.json."""
        if not (entries := self.entries()):
            return
        *earlier, last = entries
        entry = {**last, "status": status, **{name: value for name, value in known.items() if value is not None}}
        if entry != last:
            self._write_json("provenance.json", [*earlier, entry])

    def config(self) -> dict[str, Any]:
        """Return the content of config.yaml. Raise RunError if the file is broken."""
        try:
            content = yaml.load(self.config_file.read_text(encoding="utf-8"), YAML_LOADER)
        except (ValueError, yaml.YAMLError) as error:
            raise RunError(f"{self.config_file} is broken: {' '.join(str(error).split())}") from error
        if not isinstance(content, dict):
            raise RunError(f"{self.config_file} is broken: it contains no options")
        return content

    def history(self) -> tuple[list[str], list[dict[str, str]]]:
        """Return the columns and rows of metrics.csv. The last line is ignored if a crash or a full disk truncated it.

        Raises:
            RunError: a row has no step.
        """
        file = self.path / "metrics.csv"
        if not file.exists():
            return [], []
        text = file.read_text(encoding="utf-8", errors="replace")
        reader = csv.DictReader(re.findall(r".*\n", text))  # `splitlines` would also split at separators in names
        try:
            rows = [row for row in reader if int(row["step"]) >= 0]
        except (csv.Error, KeyError, TypeError, ValueError) as error:
            where = f"{file}, line {reader.line_num}"
            raise RunError(f"{where} has no step: fix the line or remove the file") from error
        return list(reader.fieldnames or []), rows

    def predictions(self, name: str = "test", convert: bool = True) -> list[dict[str, Any]]:
        """Return the rows of `predictions/NAME.csv`.

        If `convert` is true, the values of numeric columns are converted to numbers, and blank values to None.

        Raises:
            RunError: the table does not exist.
        """
        file = self.path / "predictions" / f"{name}.csv"
        if not file.is_file():
            there = ", ".join(sorted(path.stem for path in file.parent.glob("*.csv"))) or "none"
            raise RunError(f"no such predictions: {file} (available: {there}); `predict {self.path}` writes them")
        with file.open(encoding="utf-8", newline="") as lines:
            columns, *rows = csv.reader(lines)
        found: Iterable[Sequence[Any]] = rows
        if convert:
            found = zip(*map(_convert_column, zip(*rows, strict=True)), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in found]

    def figures(self) -> list[Path]:
        """Return the image files in `figures/`, sorted by name."""
        return sorted(self.path.glob("figures/**/*.png"))

    def metrics(self) -> dict[str, Any]:
        """Return the content of metrics.json. Raise RunError if the file is broken."""
        return self.read_json("metrics.json", {})

    def entries(self) -> list[dict[str, Any]]:
        """Return the content of provenance.json. Raise RunError if the file is broken."""
        return self.read_json("provenance.json", [])

    def last_entry(self) -> dict[str, Any]:
        """Return the newest entry of provenance.json, or an empty dict if there is none."""
        return (self.entries() or [{}])[-1]

    def initial_weights(self) -> list[str]:
        """Return the options `--fork`, `--init_from` and `--init_prefixes` of the run, which config.yaml omits."""
        first = (self.entries() or [{}])[0]
        if fork := first.get("fork"):
            return [f"--fork={fork['run']}@{fork['checkpoint']}"]
        words = [f"--init_from={first['init_from']}"] if first.get("init_from") else []
        return words + ([f"--init_prefixes={json.dumps(first['init_prefixes'])}"] if first.get("init_prefixes") else [])

    def read_json(self, name: str, default: Any) -> Any:
        """Return the content of a JSON file, or `default` if it is missing. The content must have the default's type.

        Raises:
            RunError: the file is broken.
        """
        file = self.path / name
        try:
            content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else default
        except ValueError as error:
            raise RunError(f"{file} is broken ({error}): fix or delete it") from error
        if type(content) is not type(default):
            raise RunError(f"{file} is broken (it contains a {type(content).__name__}): fix or delete it")
        return content

    def record(self, section: str, values: Mapping[str, Any]) -> None:
        """Replace one section of metrics.json."""
        self._write_json("metrics.json", {**self.metrics(), section: dict(values)})

    def drop_evaluations(self) -> list[str]:
        """Remove the metrics of `validate` and `test`, and the predictions and figures of the test split.

        If training continues, these results belong to outdated weights. Return the paths of the removed tables.
        """
        sections = self.metrics()
        kept = {name: values for name, values in sections.items() if name not in ("validate", "test")}
        if kept != sections:
            self._write_json("metrics.json", kept)
        # also match `test_0.csv`, which is written for several dataloaders
        tables = [*self.path.glob("predictions/test[._]*")]
        for file in [*tables, *self.path.glob("figures/test_*.png")]:
            file.unlink()
        return sorted(map(str, tables))

    def _write_json(self, name: str, content: Any) -> None:
        write_text(self.path / name, json.dumps(content, indent=2) + "\n")


def _convert_column(texts: Sequence[str]) -> Sequence[Any]:
    """Convert the values of a column to int if possible, otherwise to float if possible. Blank values become None.

    Columns with values such as `007`, `+49` or `1_000` stay text, because the conversion would change the values.
    """
    if any("_" in text or re.match(r"\+|-?0\d", text) for text in texts):
        return texts
    for kind in (int, float):
        with suppress(ValueError):
            return [kind(text) if text else None for text in texts]
    return texts
