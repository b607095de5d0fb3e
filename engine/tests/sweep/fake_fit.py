"""Replacement for `toy fit` in tests of sweeps, which writes the files of a run without training.

A trial may set `curve` (the metric in each epoch), `name` (of the metric), `pause` (seconds per epoch), `fail` (an
error message), `kill` (a list of epochs after which the process is killed) and `parent` (the metric in the epochs that
a fork copies). Like `fit`, this program locks the run, and resumes it after its last epoch.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from filelock import FileLock

args = sys.argv[1:]
options = dict(arg.removeprefix("--").split("=", 1) for arg in args if arg.startswith("--") and "=" in arg)
run = Path(options["runs_dir"]) / Path(args[2]).stem / options["run_name"]
run.mkdir(parents=True, exist_ok=options["resume"] == "true")
values = json.loads(Path(args[4]).read_text())
parent = values.get("parent", [])
lock = FileLock(run / ".lock")
lock.acquire()
(run / "pid").write_text(str(os.getpid()))


def end(status: int | None) -> None:
    entry = {"status": status, **({"fork": {"rows": len(parent)}} if parent else {})}
    (run / "provenance.new").write_text(json.dumps([entry]))
    (run / "provenance.new").replace(run / "provenance.json")  # the sweep may read it at any time


def stop(number: int, frame: object) -> None:
    end(128 + number)
    sys.exit(128 + number)


table = run / "metrics.csv"
if not table.exists() and parent:
    copied = "".join(f"{epoch},{epoch},{score}\n" for epoch, score in enumerate(parent))
    table.write_text(f"epoch,step,{values.get('name', 'val/score')}\n{copied}")
    time.sleep(0.2)  # the sweep reads the table before it knows that the run is a fork
end(None)
signal.signal(signal.SIGTERM, stop)
if values.get("fail"):
    print("some lines before")
    sys.exit("error: " + values["fail"])
(run / "config.yaml").write_text(f"# The config of a run.\ndrawn: {json.dumps(values)}\ntest_after_fit: false\n")
done = len(table.read_text().splitlines()) - 1 if table.exists() else 0
with table.open("a") as file:
    file.write("" if done else f"epoch,step,{values.get('name', 'val/score')}\n")
    for epoch, score in list(enumerate([*parent, *values["curve"]]))[max(done, 0) :]:
        file.write(f"{epoch},{epoch},{score}\n")
        file.flush()
        if epoch in values.get("kill", []):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(values.get("pause", 0))
(run / "metrics.json").write_text('{"fit": {}}')
end(0)
