"""How far a run has been logged, as the files tell that wandb keeps of it.

A file is a log of LevelDB's format with records of protocol buffers. wandb writes rows some time after they were
logged, so that a process that was killed has logged more than its file holds.
"""

import csv
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7  # bytes; the file, too, begins with 7 bytes of its own
FULL, FIRST, LAST = 1, 2, 4  # kinds of the parts of a record
STEP = "trainer/global_step"


@dataclass
class Reached:
    """The last step that was logged, -1 without one, and the metrics that were logged at it."""

    step: int = -1
    names: set[str] = field(default_factory=set)

    def add(self, step: int, names: Iterable[str]) -> None:
        """These metrics were logged at the step, too."""
        if step > self.step:
            self.step, self.names = step, set()
        if step == self.step:
            self.names |= set(names)

    def beyond(self, metrics: Mapping[str, Any], step: int) -> dict[str, Any]:
        """Those of the metrics of a step that were not logged."""
        if step < self.step:
            return {}
        return {name: value for name, value in metrics.items() if step > self.step or name not in self.names}

    def missing(self, file: Path, until: int) -> Iterator[tuple[int, dict[str, float]]]:
        """Rows of metrics.csv that were not logged, up to a step."""
        if not file.exists():
            return
        with file.open(newline="") as lines:
            for row in csv.DictReader(lines):
                step = int(row.pop("step"))
                values = {name: float(value) for name, value in row.items() if value}
                found = self.beyond(values, step) if step <= until else {}
                if found:
                    yield step, found


def reached(run: Any, record: Mapping[str, Any], folder: Path, online: bool) -> Reached:
    """How far earlier processes have logged.

    Takes away the record that a killed process has left in pieces at the end of its file: there `wandb sync` would end,
    and send none of the files of later processes.

    Args:
        run: of W&B, which goes on.
        record: tells it, unless the last process was killed.
        folder: of wandb, with the files of all processes.
        online: whether the run is; then what was logged online is what the server has.
    """
    if "step" in record:
        return Reached(record["step"], set(record["names"]))
    found = Reached()
    own = Path(run.dir).parent  # of this process
    for file in folder.glob(f"{'offline-' if online else '*'}run-*/run-{run.id}.wandb"):
        if file.parent.resolve() == own.resolve():
            continue
        rows, end = _tail(file)
        for row in rows:
            found.add(row[STEP], row)
        if end < file.stat().st_size:
            os.truncate(file, end)
    if online and run.summary.get(STEP) is not None:
        found.add(int(run.summary[STEP]), run.summary.keys())
    return found


def _tail(file: Path) -> tuple[list[dict[str, Any]], int]:
    """The rows in the last blocks of a file, in as few as hold some; and where its last complete record ends."""
    content = file.read_bytes()
    count = 1
    while True:
        start = max(0, (len(content) - 1) // BLOCK - count + 1) * BLOCK
        found = list(_records(content, start))
        rows = [row for row in _rows(data for data, _ in found) if STEP in row]
        if rows or not start:
            return rows, found[-1][1] if found else HEADER
        count *= 2


def _rows(records: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    from wandb.proto import wandb_internal_pb2

    for data in records:
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            yield {(list(item.nested_key) or [item.key])[0]: json.loads(item.value_json) for item in items}


def _records(content: bytes, start: int) -> Iterator[tuple[bytes, int]]:
    """Records and where they end, from the start of a block on, without one that begins before or that was cut."""
    position = start or HEADER
    data: bytes | None = None
    while position + HEADER <= len(content):
        left = BLOCK - position % BLOCK
        if left < HEADER:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + HEADER])
        part = content[position + HEADER : position + HEADER + length]
        if kind == 0 or len(part) < length:
            return
        position += HEADER + length
        if kind in (FULL, FIRST):
            data = b""
        if data is not None:
            data += part
            if kind in (FULL, LAST):
                yield data, position
                data = None
