"""Measure the time to save, time to load and file size of a large net's checkpoints for each strategy.

    python benchmarks/saving.py --out saving.json     # one process; ddp, fsdp2 and tensor_parallel with two; on the CPU

A Transformer with Adam trains for one step, then saves and loads five times, as when resuming. The table shows medians.
`async` wraps the project's checkpoint IO in Lightning's AsyncCheckpointIO: training waits only until the tensors are
copied, and the file is written later. `plain write` measures the disk by writing and syncing a file of the same size.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import RESULTS
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.plugins import AsyncCheckpointIO

from lit_engine.checkpoints.io import SafeCheckpointIO
from lit_engine.distributed.sharding import Sharded
from lit_engine.training.task import Task
from lit_project.models.seq2seq.transformer import TransformerSeq2Seq

STRATEGIES: dict[str, dict[str, Any]] = {
    "one process": {},
    "ddp": {"strategy": "ddp", "devices": 2},
    "fsdp2": {"strategy": Sharded, "devices": 2},
    "tensor_parallel": {"strategy": lambda: Sharded(tensor_parallel_size=2), "devices": 2},
}


class Step(Task):
    """Task that trains on random tokens."""

    def __init__(self, size: int) -> None:
        super().__init__(lambda parameters: torch.optim.Adam(parameters))
        self.net = TransformerSeq2Seq(32_000, 32_000, size, heads=8, encoder_layers=6, decoder_layers=6)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        tokens = torch.randint(4, 32_000, (2, 8))
        return self.step(self.net(tokens, torch.tensor([8, 8]), tokens).logsumexp(-1).mean(), 2)


class Clock(Callback):
    """Callback that times saving and loading after the first step."""

    def __init__(self, file: Path, rounds: int) -> None:
        self.file, self.rounds = file, rounds

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        strategy, found = trainer.strategy, {}
        whole = strategy.checkpoint_io
        wrapped = AsyncCheckpointIO(whole)
        for name, io in (("save", whole), ("async save", wrapped)):
            strategy.checkpoint_io = io
            seconds = []
            for _ in range(self.rounds):
                begin = self._now(trainer)
                trainer.save_checkpoint(self.file)
                seconds.append(time.perf_counter() - begin)
                if io is wrapped:
                    wrapped.teardown()  # waits until the file is written
                    wrapped._executor = None
            found[name] = statistics.median(seconds)
            found.setdefault("bytes", self.file.stat().st_size if trainer.is_global_zero else 0)
        strategy.checkpoint_io = whole
        seconds = []
        for _ in range(self.rounds):
            begin = self._now(trainer)
            checkpoint = strategy.load_checkpoint(self.file)
            strategy.load_model_state_dict(checkpoint)
            strategy.load_optimizer_state_dict(checkpoint)
            strategy.barrier()
            seconds.append(time.perf_counter() - begin)
            del checkpoint
        found["load"] = statistics.median(seconds)
        if trainer.is_global_zero:
            found["parameters"] = sum(parameter.numel() for parameter in pl_module.parameters())
            print(json.dumps(found), flush=True)

    @staticmethod
    def _now(trainer: Trainer) -> float:
        trainer.strategy.barrier()
        return time.perf_counter()


def one(strategy: str, size: int, rounds: int, folder: Path) -> None:
    """Train a step with a strategy, and print the measurements."""
    options = dict(STRATEGIES[strategy])
    if callable(options.get("strategy")):
        options["strategy"] = options["strategy"]()
    torch.manual_seed(0)
    trainer = Trainer(
        **{"devices": 1, **options}, accelerator="cpu", max_steps=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, plugins=[SafeCheckpointIO()],
        callbacks=[Clock(folder / "big.ckpt", rounds)], default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(Step(size), train_dataloaders=[0])


def plain_write(count: int, folder: Path) -> float:
    """Return the time in seconds to write `count` bytes to disk."""
    content = os.urandom(1 << 20) * (count >> 20)
    begin = time.perf_counter()
    with (folder / "plain").open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - begin


def main() -> None:
    """Measure each strategy in separate processes, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=640, help="width of the net; 640 means 110 million parameters")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="file name in benchmarks/results")
    parser.add_argument("--only", choices=STRATEGIES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        one(args.only, args.size, args.rounds, args.folder)
        return
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for strategy in STRATEGIES:
            words = [sys.executable, __file__, "--only", strategy, "--folder", name]
            words += [f"--size={args.size}", f"--rounds={args.rounds}"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=1800)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            if done.returncode or not lines:
                sys.exit(done.stderr)
            rows[strategy] = json.loads(lines[-1])
        count = int(rows["one process"]["bytes"])
        disk = statistics.median(plain_write(count, Path(name)) for _ in range(args.rounds))
    print(f"{int(rows['one process']['parameters']):,} parameters; plain write {disk:.2f} s; medians of {args.rounds}")
    print("| strategy | save (s) | async save (s) | load (s) | bytes |\n| --- | ---: | ---: | ---: | ---: |")
    for strategy, row in rows.items():
        print(f"| {strategy} | {row['save']:.2f} | {row['async save']:.2f} | {row['load']:.2f} | {row['bytes']:,} |")
    if args.out:
        (RESULTS / args.out.name).write_text(json.dumps({"plain_write": disk, "strategies": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
