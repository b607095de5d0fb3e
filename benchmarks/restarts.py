"""Kill a torchrun worker with SIGKILL at a random step, and compare the restarted run with an uninterrupted run.

    python benchmarks/restarts.py                 20 kills; add --out results/restarts.json to save the results
    python benchmarks/restarts.py --kills 1 --seed 3

Two workers train on the bundled digits and save every few steps. One of them kills itself in a random hook of a random
step. `torchrun --max_restarts=1` restarts both, and they resume the run. After one restart, the complete `last.ckpt`
must be equal to the checkpoint of the uninterrupted run, bit for bit.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from golden import leaves
from kills import DIGITS, differences

from lit_engine.checkpoints.io import read

STEPS = 21  # three epochs of seven steps
HOOKS = ("on_train_batch_start", "on_before_optimizer_step", "on_train_batch_end", "on_validation_batch_start")
# Callback that kills a worker, unless torchrun has already restarted it.
KILLER = """
import os, signal
from lightning.pytorch import Callback

rank, hook, step = os.environ.get("KILL", "-1 - -1").split()

class Killer(Callback):
    pass

def kill(self, trainer, *args):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and trainer.global_rank == int(rank) and trainer.global_step >= int(step) and not trainer.sanity_checking:
        os.kill(os.getpid(), signal.SIGKILL)

setattr(Killer, hook, kill)
"""
FIT = [
    *DIGITS, "--data.batch_size=90", "--model.net.norm=none", "--trainer.accelerator=cpu", "--resume",
    "--trainer.callbacks=[{class_path: Checkpoint, init_args: {monitor: val/loss, mode: min, every_n_steps: 2}}, "
    "{class_path: killer.Killer}]",
]  # fmt: skip


def train(folder: Path, name: str, kill: str = "-1 - -1") -> tuple[int, str]:
    """Train the run `name` with torchrun, and return the exit status and the output."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max_restarts=1",
               "-m", "--", "lit_project", "fit", *FIT, f"--run_name={name}"]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "KILL": kill}
    done = subprocess.run(command, cwd=folder, env=environment, stdout=-1, stderr=-2, text=True, timeout=400)
    return done.returncode, done.stdout


def content(folder: Path, name: str) -> dict[str, Any]:
    """Return the contents of the run's last checkpoint, without times or the run's name."""
    found = leaves(read(folder / "runs" / "quickstart" / name / "checkpoints" / "last.ckpt"))
    return {path.replace(name, "RUN"): v.replace(name, "RUN") if isinstance(v, str) else v for path, v in found}


def measure(kills: int, seed: int) -> dict[str, Any]:
    """Kill a random worker in each run, and compare the results."""
    chosen, results = random.Random(seed), []
    with tempfile.TemporaryDirectory(prefix="restarts-") as name:
        folder = Path(name)
        (folder / "killer.py").write_text(KILLER)
        status, log = train(folder, "whole")
        if status:
            sys.exit(log[-3000:])
        whole = content(folder, "whole")
        for number in range(kills):
            rank, hook, step = chosen.randrange(2), chosen.choice(HOOKS), chosen.randrange(STEPS)
            started = time.monotonic()
            status, log = train(folder, f"killed{number}", f"{rank} {hook} {step}")
            different = [f"status {status}", log[-1000:]] if status else differences(
                whole, content(folder, f"killed{number}"))  # fmt: skip
            entries = json.loads((folder / f"runs/quickstart/killed{number}/provenance.json").read_text())
            result = {"rank": rank, "hook": hook, "step": step, "restarts": len(entries) - 1, "different": different}
            results.append({**result, "seconds": round(time.monotonic() - started, 1)})
            print(f"{number + 1:3} rank {rank} step {step:2} {hook:26} restarts {len(entries) - 1}  "
                  f"{different or 'equal'}", flush=True)  # fmt: skip
    equal = sum(not result["different"] and result["restarts"] == 1 for result in results)
    print(f"{equal} of {kills} runs are equal to the uninterrupted run after one restart, bit for bit")
    return {"killed": kills, "equal": equal, "seed": seed, "runs": results}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    given = parser.parse_args()
    measured = measure(given.kills, given.seed)
    if given.out:
        given.out.write_text(json.dumps(measured, indent=1) + "\n")
    sys.exit(measured["equal"] != measured["killed"])
