"""Stands for `lit-project fit` in tests of how a sweep runs its trials: the files of a run, without training.

Values of the trial: `curve` (a list: the metric by epoch), `name` of the metric, `pause` (seconds an epoch), `fail`.
"""

import json
import sys
import time
from pathlib import Path

args = sys.argv[1:]
values = json.loads(Path(args[args.index("--config") + 3]).read_text())
options = dict(arg.removeprefix("--").split("=", 1) for arg in args if arg.startswith("--") and "=" in arg)
if values.get("fail"):
    print("some lines before")
    sys.exit("error: " + values["fail"])
run = Path(options["runs_dir"]) / Path(args[args.index("--config") + 1]).stem / options["run_name"]
run.mkdir(parents=True)
(run / "config.yaml").write_text("# The config of a run.\nseed_everything: 1\ntest_after_fit: false\n")
with (run / "metrics.csv").open("w") as file:
    file.write(f"epoch,step,{values.get('name', 'val/score')}\n")
    for epoch, score in enumerate(values["curve"]):
        file.write(f"{epoch},{epoch},{score}\n")
        file.flush()
        time.sleep(values.get("pause", 0))
(run / "metrics.json").write_text('{"fit": {}}')
