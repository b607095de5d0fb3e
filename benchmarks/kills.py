"""Kill runs with SIGKILL at critical moments, resume them, and compare them with uninterrupted runs.

    python benchmarks/kills.py --out benchmarks/results/kills.json    100 kills across all kinds
    python benchmarks/kills.py --kills 5 --kinds ema steps --seed 3

A killed run is resumed with `fit --run` until it is complete. Every third run is killed a second time. Finally,
`last.ckpt` (weights, optimizer, schedules, counters, sums, averages, callbacks), the weights of the best checkpoints,
`metrics.csv` and `metrics.json` must match an uninterrupted run bit for bit, except for times and speeds.
The processes are forked from this process, which has imported everything but has not trained anything.
"""

import argparse
import contextlib
import csv
import io
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib.figure
import numpy as np
import torch
import torchvision.transforms.v2  # imported once, before processes are forked
from golden import leaves, write_images
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import Dataset

import lit_project.tasks.classification
import lit_project.tasks.regression
import lit_project.tasks.several_optimizers  # noqa: F401  (patched by the injector)
from lit_engine._lightning import NoProfiler
from lit_engine.checkpoints.io import read
from lit_engine.data.images import DatasetImages
from lit_engine.training.task import Task
from lit_project.__main__ import main

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "engine" / "tests" / "plain"))
import gan  # noqa: E402
import hydra_style  # noqa: E402
import several_loaders  # noqa: E402

CONFIGS = ROOT / "configs"


def callbacks(monitor: str = "val/loss", mode: str = "min", more: str = "", **saves: Any) -> list[str]:
    """Return the option for `Figures` and a `Checkpoint` that saves several times per second by default."""
    given = {"monitor": monitor, "mode": mode, "every_minutes": 0.002, **saves}
    return [f"--trainer.callbacks=[{{class_path: Checkpoint, init_args: {json.dumps(given)}}}, Figures{more}]"]


DIGITS = [
    "-c", f"{CONFIGS}/quickstart.yaml", "--model.net.layers=[4,pool,8]", "--model.net.hidden=16",
    "--data.batch_size=100", "--trainer.log_every_n_steps=3", "--trainer.max_epochs=3",
]  # fmt: skip
PLATEAU = (
    "--model.schedulers=[{scheduler: {class_path: torch.optim.lr_scheduler.ReduceLROnPlateau, init_args: {patience: 0, "
    "factor: 0.5, threshold: 9.0}}, monitor: val/loss, interval: epoch}]"
)
TEXT = ["--data.size=300", "--data.val_size=20", "--data.test_size=20", "--model.net.hidden_size=8",
        "--model.net.embedding_size=8", "--model.net.dropout=0.2", "--data.batch_size=32", "--trainer.max_epochs=3",
        "--trainer.log_every_n_steps=3"]  # fmt: skip
TRANSLATION = ["-c", f"{CONFIGS}/translation_quickstart.yaml", *TEXT, *callbacks("val/bleu", "max")]
PLAIN = ["--trainer.max_epochs=3", "--trainer.log_every_n_steps=3"]
TWO = ["--trainer.accelerator=cpu", "--trainer.devices=2", "--trainer.strategy=ddp"]

# `fit` options of each kind of run.
KINDS: dict[str, list[str]] = {
    "plateau": [*DIGITS, *callbacks(), PLATEAU, "--trainer.check_val_every_n_epoch=2", "--trainer.max_epochs=5"],
    "halves": [*DIGITS, *callbacks(every_minutes=None, every_n_steps=2), PLATEAU, "--trainer.val_check_interval=0.5",
               "--trainer.accumulate_grad_batches=3", "--trainer.gradient_clip_val=1.0"],
    "steps": [*DIGITS, *callbacks(every_n_steps=4), "--trainer.max_steps=31", "--trainer.max_epochs=-1"],
    "ema": [*DIGITS, "--model.mixing.mixup_alpha=0.2", *callbacks(every_minutes=None, every_n_steps=5, keep_last=2,
            more=", {class_path: EMA, init_args: {decay: 0.9}}")],
    "swa": [*DIGITS, *callbacks(more=", {class_path: SWA, init_args: {start: 1}}"), "--trainer.max_epochs=4",
            "--trainer.accumulate_grad_batches=2"],
    "unfreezing": [*DIGITS, *callbacks(more=", {class_path: Unfreezing, init_args: {schedule: {net.features: 2}}}")],
    "stopping": [*DIGITS, *callbacks(every_n_steps=5, more=", {class_path: EarlyStopping, init_args: {monitor: "
                 "val/loss, mode: min, patience: 1, min_delta: 0.9}}"),
                 "--trainer.val_check_interval=0.4", "--trainer.max_epochs=6"],
    "table": ["-c", f"{CONFIGS}/regression_quickstart.yaml", *callbacks(), "--trainer.max_epochs=4"],
    "translation": [*TRANSLATION, "--model.teacher_forcing_ratio=[[0, 1.0], [20, 0.3]]"],
    "optimizers": ["-c", f"{CONFIGS}/translation_two_optimizers.yaml", *TEXT, "--model.accumulate=2",
                   *callbacks("val/bleu", "max")],
    "workers": ["-c", f"{CONFIGS}/image_folder.yaml", *callbacks(), "--data.num_workers=2", "--trainer.max_epochs=3",
                "--data.batch_size=8", "--trainer.log_every_n_steps=3"],
    **{f"drawing-{workers}": ["-c", f"{CONFIGS}/image_folder.yaml", *callbacks(), "--data=__main__.Drawing",
                              f"--data.num_workers={workers}", "--trainer.max_epochs=3", "--data.batch_size=8",
                              "--trainer.log_every_n_steps=3"] for workers in (0, 2)},
    "two-digits": [*DIGITS, *callbacks(), *TWO, "--model.net.norm=none", "--trainer.accumulate_grad_batches=2"],
    "two-translation": [*TRANSLATION, *TWO],
    # Plain modules with two workers and random noise, multiple dataloaders, or two optimizers with manual steps.
    "plain-workers": ["--model=hydra_style.LitModule", "--model.net=hydra_style.Net", "--model.optimizer=Adam",
                      "--data=hydra_style.LitData", *callbacks(), *PLAIN],
    "plain-loaders": ["--model=several_loaders.Several", "--data=several_loaders.Sites", *PLAIN,
                      *callbacks("loss/dataloader_idx_1")],
    "plain-manual": ["--model=gan.GAN", "--data=gan.Pictures", *callbacks("val_realism"), *PLAIN],
}  # fmt: skip

EVERYWHERE = ("between two hooks of callbacks or task", "in validation", "in a training step")  # occur on all ranks


class Drawn(Dataset):
    """Dataset that transforms its images randomly."""

    classes = ("a", "b")
    draw = torchvision.transforms.v2.RandomResizedCrop(16, scale=(0.3, 1))

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.draw(torch.arange(3 * 24 * 24).reshape(3, 24, 24).remainder(97 + index).byte())
        return image + random.randrange(9) + int(np.random.randint(9)), index % 2  # noqa: NPY002


class Drawing(DatasetImages):
    """Data module with datasets that draw random numbers."""

    def __init__(self, batch_size: int = 8, num_workers: int = 0) -> None:
        super().__init__(Drawn(), test=Drawn(), input_shape=(3, 16, 16), batch_size=batch_size, num_workers=num_workers)


def kill() -> None:
    """Kill this process without cleanup, as if it ran out of memory or its machine was preempted."""
    os.kill(os.getpid(), signal.SIGKILL)


class Injector:
    """Hooks that count how many times each named moment occurs, and kill this process at one of them.

    Attributes:
        counts: How many times each moment has occurred.
    """

    def __init__(self, moment: str = "", number: int = 0) -> None:
        self.moment, self.number, self.counts = moment, number, Counter[str]()

    def comes(self, moment: str) -> bool:
        """Count an occurrence of a moment, and return whether to kill the process now."""
        self.counts[moment] += 1
        return moment == self.moment and self.counts[moment] == self.number

    def before(self, owner: Any, name: str, moment: str, at_death: Callable[..., None] = lambda *args: None) -> None:
        """Treat each call to `owner.name` as a moment. The process calls `at_death` just before it kills itself."""
        original = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self.comes(moment):
                at_death(*args)
                kill()
            return original(*args, **kwargs)

        setattr(owner, name, watched)

    def arm(self) -> None:
        """Install the hooks in this process."""
        save, replace = torch.save, os.replace

        def half_a_file(content: Any, file: Any) -> None:
            whole = io.BytesIO()
            save(content, whole)
            file.write(whole.getvalue()[: whole.tell() // 2])
            file.flush()

        self.before(torch, "save", "within a save", half_a_file)
        self.before(os, "replace", "before a file is replaced")
        self.before(os, "replace", "after a file is replaced", replace)
        NoProfiler.profile = lambda self, action: nullcontext()  # a method, so that it can be hooked
        self.before(NoProfiler, "profile", EVERYWHERE[0])
        self.before(csv.DictWriter, "writerows", "while metrics.csv is written")
        self.before(matplotlib.figure.Figure, "savefig", "in figures")
        for kind in (Task, *subclasses(Task), hydra_style.LitModule, several_loaders.Several, gan.GAN):
            for name, moment in (("validation_step", EVERYWHERE[1]), ("training_step", EVERYWHERE[2])):
                if name in vars(kind):
                    self.before(kind, name, moment)


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    """Yield all direct and indirect subclasses."""
    for sub in kind.__subclasses__():
        yield sub
        yield from subclasses(sub)


def launch(args: list[str], processes: int, injector: Injector, log: Path, rank: int = 0) -> int:
    """Run `lit-project ARGS` in forked processes, with the injector on `rank`. Return the first nonzero status or 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    pids = []
    for own in range(processes):
        if (pid := os.fork()) == 0:
            status = 1
            try:
                with log.open("a") as output:
                    os.dup2(output.fileno(), 1), os.dup2(output.fileno(), 2)
                    if processes > 1:
                        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0",
                                       "LOCAL_RANK": str(own)}  # fmt: skip
                        setattr(rank_zero_only, "rank", own)  # noqa: B010
                    if own == rank:
                        injector.arm()
                    status = main(args)
                    sys.stdout.flush()
                    if own == rank:
                        log.with_suffix(".json").write_text(json.dumps(injector.counts))
            except BaseException as error:
                output = log.open("a")
                print(repr(error), file=output, flush=True)
            finally:
                os._exit(status)
        pids.append(pid)
    worst = 0
    for _ in pids:
        pid, ended = os.waitpid(-1, 0)
        status = os.waitstatus_to_exitcode(ended)
        if status != 0:
            worst = worst or status
            for other in pids:  # they would wait for the dead process
                if other != pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(other, signal.SIGKILL)
    return worst


def content(run: Path) -> dict[str, Any]:
    """Return all content that must be equal in two runs, without the run's name."""
    found = dict(leaves(read(run / "checkpoints" / "last.ckpt")))
    for best in sorted((run / "checkpoints").glob("*.ckpt")):
        found |= dict(leaves(read(best)["state_dict"], best.name))
    with (run / "metrics.csv").open(newline="") as file:
        found |= dict(leaves(list(csv.DictReader(file)), "metrics.csv"))
    found |= dict(leaves(json.loads((run / "metrics.json").read_text()), "metrics.json"))
    found |= {f"file {file.relative_to(run)}": True for file in run.rglob("*")
              if not file.match("config.*.yaml") and not file.match("figures/test_*")}  # fmt: skip

    def named(value: Any) -> Any:
        return value.replace(str(run.absolute()), "RUN").replace(str(run), "RUN") if isinstance(value, str) else value

    return {named(path): named(value) for path, value in found.items()}


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the paths of values that are not equal bit for bit."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return a.dtype == b.dtype and torch.equal(a, b)
        return type(a) is type(b) and a == b

    return sorted(p for p in one.keys() | other.keys() if p not in one or p not in other or not same(one[p], other[p]))


def run_all(kinds: list[str], kills: int, seed: int, keep: Path | None) -> dict[str, Any]:
    """Kill, resume and compare runs, cycling through the kinds."""
    chosen = random.Random(seed)
    folder = keep or Path(tempfile.mkdtemp(prefix="kills-"))
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    write_images(folder / "data", 60)
    whole: dict[str, tuple[dict[str, Any], dict[str, int], str]] = {}
    results: list[dict[str, Any]] = []
    for trial in range(kills):
        kind = kinds[trial % len(kinds)]
        options, processes = KINDS[kind], 2 if kind.startswith("two") else 1
        log = Path(f"{kind}-{trial}.log").absolute()
        if kind not in whole:
            log = Path(f"{kind}-whole.log").absolute()
            if launch(["fit", *options, "--run_name=whole"], processes, Injector(), log):
                sys.exit(f"{kind}: the uninterrupted run failed\n{log.read_text()[-3000:]}")
            run = next(Path("runs").glob("*/whole"))
            whole[kind] = (content(run), json.loads(log.with_suffix(".json").read_text()), run.parent.name)
            run.rename(f"whole-{kind}")
            log = Path(f"{kind}-{trial}.log").absolute()
        expected, reached, parent = whole[kind]
        name = f"{kind}-{trial}"
        run, args, points = Path("runs", parent, name), ["fit", *options, f"--run_name={name}"], []
        started = time.monotonic()
        for life in range(12):
            rank = chosen.randrange(processes)
            moment = chosen.choice([one for one in sorted(reached) if rank == 0 or one in EVERYWHERE])
            number = chosen.randint(1, reached[moment])
            dies = life == 0 or (life == 1 and trial % 3 == 0)
            status = launch(args, processes, Injector(moment, number) if dies else Injector(), log, rank)
            if dies and status == -signal.SIGKILL:
                points.append(f"{moment} ({number} of {reached[moment]})")
            elif status:
                break
            if status == 0:
                break
            if (run / "checkpoints" / "last.ckpt").exists():
                args = ["fit", "--run", str(run)]
            else:  # killed before the first save, so there is no checkpoint to resume from
                args = ["fit", *options, f"--run_name={name}", "--resume"]
        found = differences(expected, content(run)) if status == 0 else [f"status {status}"]
        results.append({"kind": kind, "killed": points, "different": found[:20]})
        seconds = time.monotonic() - started
        print(f"{trial + 1:3} {kind:16} {'; '.join(points)}: {'equal' if not found else found[:6]}  {seconds:.0f} s",
              flush=True)  # fmt: skip
        if found and status:
            print(log.read_text()[-1500:])
    killed = [result for result in results if result["killed"]]
    equal = sum(not result["different"] for result in killed)
    print(f"{equal} of {len(killed)} killed runs are equal to the uninterrupted runs, bit for bit")
    return {"killed": len(killed), "equal": equal, "seed": seed, "runs": results}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--folder", type=Path, help="keep the runs and logs in this folder")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    given = parser.parse_args()
    out = given.out and given.out.absolute()
    result = run_all(given.kinds, given.kills, given.seed, given.folder and given.folder.absolute())
    if out:
        out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(result["equal"] != result["killed"])
