"""Reads what wandb has logged offline: records of protocol buffers in a log of LevelDB's format."""

import json
import struct

BLOCK, HEADER = 32768, 7  # bytes
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(file, complete=False):
    """The records of a `.wandb` file, which may be asserted to end with one."""
    from wandb.proto import wandb_internal_pb2

    content = file.read_bytes()
    position, data = HEADER, b""  # the file begins with 7 bytes of its own
    while position + HEADER <= len(content):
        left = BLOCK - position % BLOCK
        if left < HEADER:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + HEADER])
        if kind == 0:
            break
        data += content[position + HEADER : position + HEADER + length]
        position += HEADER + length
        if position > len(content):
            break  # it is being written
        if kind in (FULL, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            yield record
            data = b""
    assert not complete or (position == len(content) and not data)


class Logged:
    """What the offline runs in a run directory hold: `rows`, `config`, `exit_code` of the last, `artifacts`."""

    def __init__(self, folder):
        self.rows, self.config, self.exit_code, self.artifacts = [], {}, None, []
        for file in sorted(folder.glob("wandb/*run-*/run-*.wandb")):
            for record in records(file):
                kind = record.WhichOneof("record_type")
                if kind == "history":
                    self.rows.append(_items(record.history.item))
                elif kind == "config":
                    self.config |= _items(record.config.update)
                elif kind == "run":
                    self.config |= _items(record.run.config.update)
                elif kind == "exit":
                    self.exit_code = record.exit.exit_code
                elif kind in ("artifact", "request") and record.HasField("artifact"):
                    self.artifacts += [entry.path for entry in record.artifact.manifest.contents]


def _items(items):
    found = {}
    for item in items:
        place, *within = list(item.nested_key) or [item.key]
        if not within:
            found[place] = json.loads(item.value_json)
            continue
        inside = found.setdefault(place, {})
        for name in within[:-1]:
            inside = inside.setdefault(name, {})
        inside[within[-1]] = json.loads(item.value_json)
    return found
