"""Measures how `fit` spends its time. Prints a table and advice, and writes `profile.json` and `trace.json`."""

import json
import os
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.trainer.states import RunningStage
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

from lit_engine._lightning import reconfigure
from lit_engine.data.module import Rows
from lit_engine.distributed.processes import measure_peak_memory

# Maps Lightning's action names (without the class) to phases of the fit.
PARTS = {
    "train_dataloader_next": "waiting for data",
    "batch_to_device": "transfer and transforms",
    "training_step": "forward",
    "backward": "backward",
    "optimizer_step": "optimizer",
    "optimizer_zero_grad": "optimizer",
    "lr_scheduler_step": "optimizer",
    "save_checkpoint": "saving",
}
NAMES = (*dict.fromkeys(PARTS.values()), "validation", "callbacks", "other")
MEASURING = "measuring"  # time for counting FLOPs and tracing, which is not included in the fit time


class Parts(Profiler):
    """A profiler that measures the duration of each phase. Nested actions count towards the innermost phase in `PARTS`.

    The profiler synchronizes with the accelerator before it reads the time, because accelerators run asynchronously.
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.trainer, self.measuring = trainer, False
        self.device = trainer.strategy.root_device
        self.seconds = dict.fromkeys((*NAMES, MEASURING), 0.0)
        self.stack = ["other"]  # phases of the running actions
        self.part, self.since = "other", perf_counter()

    def start(self, action_name: str) -> None:
        otherwise = "callbacks" if action_name.startswith("[Callback]") else self.stack[-1]
        self.stack.append(PARTS.get(action_name.rpartition(".")[2], otherwise))
        self.turn()

    def stop(self, action_name: str) -> None:
        self.stack.pop()
        self.turn()

    def turn(self) -> None:
        """Add the time since the last call to the current phase, and determine which phase starts now."""
        now = perf_counter() if self.measuring else synchronized_time(self.device)
        self.seconds[self.part] += now - self.since
        trains = self.trainer.state.stage is RunningStage.TRAINING or self.stack[-1] == "saving"
        part = self.stack[-1] if trains else "validation"
        self.part, self.since = MEASURING if self.measuring else part, now


class Profile(Callback):
    """A callback that profiles a fit with its own profiler. All processes write files. Rank 0 prints a table.

    The second batch runs with torch's FlopCounterMode, which counts matrix products, convolutions and attention, but
    not element-wise operations or fused recurrent layers (cuDNN, oneDNN). The next batches are traced. The measured
    times exclude the second batch and the traced batches. With manual optimization, `backward` counts as forward.

    Args:
        traced: number of batches in `trace.json`, which can be opened in ui.perfetto.dev. 0 disables the trace.
    """

    def __init__(self, traced: int = 3) -> None:
        self.traced, self.batches = traced, 0
        self.counted: FlopCounterMode | None = None
        self.measuring = ExitStack()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise, a missing GPU is logged as an error
        self.before = trainer.profiler  # type: ignore[attr-defined]
        self.parts = Parts(trainer)
        reconfigure(trainer, profiler=self.parts)

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        self.parts.measuring = 1 <= self.batches <= 1 + self.traced
        self.parts.turn()
        if self.batches == 1:
            self.counted = self.measuring.enter_context(FlopCounterMode(display=False))
        elif self.batches == 2 and self.traced:
            file = str(self._file(trainer, "trace"))
            self.measuring.enter_context(profile(on_trace_ready=lambda trace: trace.export_chrome_trace(file)))

    def on_train_batch_end(self, *args: Any) -> None:
        if self.batches in (1, 1 + self.traced):
            self.measuring.close()
        self.parts.measuring = False
        self.batches += 1

    def on_train_end(self, *args: Any) -> None:
        self.measuring.close()

    def on_exception(self, *args: Any) -> None:
        self.measuring.close()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.parts.turn()
        reconfigure(trainer, profiler=self.before)
        found = self._measurements(trainer)
        file = self._file(trainer, "profile")
        file.write_text(json.dumps(found, indent=2))
        if trainer.is_global_zero:
            print("\n".join([*table(found), f"profile: {file}"]), flush=True)

    def _measurements(self, trainer: Trainer) -> dict[str, Any]:
        seconds, device = self.parts.seconds, trainer.strategy.root_device
        measuring = seconds.pop(MEASURING)
        total = sum(seconds.values())
        found = {
            "seconds": total,
            "measuring_seconds": measuring,
            "batches": self.batches,
            "percent": {name: round(100 * part / total, 1) for name, part in seconds.items()},
            "peak_bytes": measure_peak_memory(),
            **describe_data(trainer),
        }
        timed = self.batches - 1 - self.traced
        if self.counted is not None and timed > 0:
            flop = self.counted.get_total_flops()
            speed = flop * timed / (seconds["forward"] + seconds["backward"] + seconds["optimizer"])
            possible, dtype = matrix_product(device, str(trainer.precision))
            found |= {
                "flop_per_batch": flop,
                "flop_per_second": speed,
                "matrix_product": {"flop_per_second": possible, "dtype": dtype, "device": device.type},
                "percent_of_matrix_product": 100 * speed / possible,
            }
        return {**found, "advice": advice(found)}

    def _file(self, trainer: Trainer, name: str) -> Path:
        rank = f"_{trainer.global_rank}" if trainer.global_rank else ""
        return Path(trainer.default_root_dir, f"{name}{rank}.json")


def synchronized_time(device: torch.device) -> float:
    """Wait until the device has finished its work, and return the current `perf_counter` time in seconds."""
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return perf_counter()


def memory_line(peak: dict[str, int]) -> str:
    """Return the result of `measure_peak_memory` as a line of text."""
    return f"peak memory: {', '.join(f'{size / 1e9:.2f} GB ({where})' for where, size in peak.items())}"


def table(found: dict[str, Any]) -> list[str]:
    """Return the profile as lines of text."""
    lines = [f"fit time: {found['seconds']:.1f} s, {found['batches']} batches"]
    lines += [f"  {name:23} {share:5.1f} %" for name, share in found["percent"].items()]
    lines.append(memory_line(found["peak_bytes"]))
    if "flop_per_batch" in found:
        lines.append(
            f"{found['flop_per_batch'] / 1e9:.3g} GFLOP per batch, {found['flop_per_second'] / 1e9:.3g} GFLOP/s: "
            f"{found['percent_of_matrix_product']:.1f} % of a {found['matrix_product']['dtype']} matrix product"
        )
    return [*lines, f"advice: {found['advice']}"]


def advice(found: dict[str, Any]) -> str:
    """Return advice on what to try first."""
    percent, workers = found["percent"], found["num_workers"]
    remedies = {
        "waiting for data": (30, "make the samples of {data} cheaper to load, or prepare them before training"),
        "transfer and transforms": (30, "fewer or cheaper transforms"),
        "validation": (30, "--trainer.check_val_every_n_epoch=2, or larger validation batches"),
        "saving": (20, "longer epochs, because each epoch saves a checkpoint"),
        "callbacks": (30, "profile a longer run, or use fewer figures and logs"),
        "other": (40, "larger batches, because each step has this overhead"),
    }
    if workers is not None:
        remedies["waiting for data"] = (30, f"load {{data}} in more processes (--data.num_workers={2 * workers or 2})")
    for name, (limit, remedy) in remedies.items():
        if percent[name] > limit:
            return f"{percent[name]:.0f} % of the time is {name}; try this: {remedy.format(**found)}"
    if found.get("percent_of_matrix_product", 100) < 10:
        return "the operations are small for this device; try larger batches, or the `compile` overlay"
    return "the network takes most of the time; try the `bf16` or `gpu` overlay, or a smaller network"


def describe_data(trainer: Trainer) -> dict[str, Any]:
    """Return the class name of the data source and its number of workers (None if it cannot use workers)."""
    data, loader = trainer.datamodule, trainer.train_dataloader  # type: ignore[attr-defined]
    found: Any = getattr(loader, "samples", getattr(loader, "dataset", None))
    in_memory = found is None or isinstance(found, Rows)
    while not in_memory and hasattr(found, "dataset"):  # unwrap a Subset or a dataset of batches
        found = found.dataset
    workers = None if in_memory else getattr(data, "num_workers", getattr(loader, "num_workers", None))
    owner = trainer.lightning_module if data is None else data
    return {"data": type(owner if in_memory else found).__name__, "num_workers": workers}


def matrix_product(device: torch.device, precision: str) -> tuple[float, str]:
    """Multiply square matrices five times in the dtype for `precision`. Return the highest FLOP/s and the dtype."""
    types = {"bf16": torch.bfloat16, "16": torch.float16, "64": torch.float64}
    dtype = next((dtype for name, dtype in types.items() if precision.startswith(name)), torch.float32)
    size = 1024 if device.type == "cpu" else 8192
    matrix, seconds = torch.ones(size, size, device=device, dtype=dtype), []
    for _ in range(5):
        begin = perf_counter()
        matrix @ matrix
        seconds.append(synchronized_time(device) - begin)
    return 2 * size**3 / min(seconds), str(dtype).removeprefix("torch.")
