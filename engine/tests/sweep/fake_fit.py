"""Replacement for `toy fit` in tests of sweeps, which writes the files of a run without training.

A trial may set `curve` (the metric in each epoch), `name` (of the metric), `pause` (seconds per epoch), `fail` (an
error message) and `kill` (a list of epochs after which the process is killed). Like `fit`, this program locks the
run, and resumes it after its last epoch.
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
lock = FileLock(run / ".lock")
lock.acquire()
(run / "pid").write_text(str(os.getpid()))


def end(status: int | None) -> None:
    (run / "provenance.new").write_text(json.dumps([{"status": status}]))
    (run / "provenance.new").replace(run / "provenance.json")  # the sweep reads it at any time


def stop(number: int, frame: object) -> None:
    end(128 + number)
    sys.exit(128 + number)


end(None)
signal.signal(signal.SIGTERM, stop)
if values.get("fail"):
    print("some lines before")
    sys.exit("error: " + values["fail"])
(run / "config.yaml").write_text(f"# The config of a run.\ndrawn: {json.dumps(values)}\ntest_after_fit: false\n")
table = run / "metrics.csv"
done = len(table.read_text().splitlines()) - 1 if table.exists() else 0
with table.open("a") as file:
    file.write("" if done else f"epoch,step,{values.get('name', 'val/score')}\n")
    for epoch, score in list(enumerate(values["curve"]))[max(done, 0) :]:
        file.write(f"{epoch},{epoch},{score}\n")
        file.flush()
        if epoch in values.get("kill", []):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(values.get("pause", 0))
(run / "metrics.json").write_text('{"fit": {}}')
end(0)
