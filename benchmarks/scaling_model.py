"""Predict the time of a step on 1 to 1,024 GPUs, and check the prediction with two and four local processes.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/scaling_model.py              measure and predict; about four minutes
    python benchmarks/scaling_model.py --no_check --network mine=12:20      another network: GB/s per GPU, µs per hop
    python benchmarks/scaling_model.py --no_check --step_ms resnet18=32:6.1 resnet18=128:15      with your GPU's times

Nets: the ResNet-18 of configs/finetune_imagefolder.yaml (224 × 224, 32 images per GPU) and the project's Transformer
(3 + 3 layers of 256, 8,000 joint subwords, 128 pairs of 16 tokens per GPU). Gradients are float32.

Compute: a step of b samples takes `floor + b · slope`. Both are derived from two times in `--step_ms NET=BATCH:MS`.
Without these, the floor is `--floor_ms`, and the slope is the number of operations counted by
`torch.utils.flop_counter`, divided by `--tflops`. The fractions of time in the forward and backward passes, and the
times at which gradients become ready, are measured on the CPU.

All-reduce of n bytes by p processes, with a latency per hop and a bandwidth:
- ring: 2 (p - 1) (hop + n / p / bandwidth) (Patarasuk & Yuan 2009)
- double binary tree with the best number of chunks: (√(2 ⌈log₂ p⌉ hop) + √(2 n / bandwidth))² (Sanders, Speck & Träff
  2009; in NCCL since 2.4)
- nodes of 8: reduce-scatter and all-gather with a ring within each node; between nodes, the faster of ring and tree,
  with n / 8 bytes over each GPU's share of the network (hierarchical as in Thakur, Rabenseifner & Gropp 2005)

Overlap as in DistributedDataParallel (Li et al. 2020): gradients fill buckets of 1 MiB (the first) and 25 MiB in the
order in which they become ready. A bucket is reduced when it is full and the reduction of the previous bucket is
complete.

Defaults: within a node, two thirds of an H100's NVLink bandwidth (300 GB/s, 3 µs per hop); between nodes, a 400 Gb/s
card per GPU (45 GB/s, 10 µs) or a 100 Gb/s card per node (1.4 GB/s, 30 µs); 10 µs to start an all-reduce. The latencies
are similar to those in NCCL's tuning.cc.

Check: plain DDP over gloo (rings) on loopback, with one thread per process. Hop and bandwidth are fitted to all-reduces
between two processes. Compute is timed with one process per core at the same time. If processes occupy all cores, the
transfer also runs on these cores, so nothing overlaps, and p processes on c cores take p / c times as long. The table
shows the error of the predicted step, which is mostly measured computation, and the error of the overhead by itself.

The model ignores stragglers, synchronization, data loading and the start-up cost of small collectives. The efficiencies
are therefore upper bounds.
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from common import save, table
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import resnet18

from lit_project.models.seq2seq.transformer import TransformerSeq2Seq

GPUS = [2**n for n in range(11)]
NODE = 8  # GPUs
FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20  # bytes
WORDS, TOKENS = 8000, 16
NETWORKS = ["400 Gb/s per GPU=45:10", "100 Gb/s per node=1.4:30"]


class Net(nn.Module):
    """Base class of a net with its loss on random samples."""

    net: nn.Module
    per_gpu: int  # samples per step and GPU (weak scaling)
    of_all: int  # samples per step of all GPUs (strong scaling)
    here: int  # samples per step of the check


class Images(Net):
    """ResNet-18 with its loss on random images."""

    per_gpu, of_all, here = 32, 1024, 4

    def __init__(self) -> None:
        super().__init__()
        self.net = resnet18(num_classes=10)

    def forward(self, samples: int) -> Tensor:
        """Return the mean loss of `samples` images."""
        return F.cross_entropy(self.net(torch.randn(samples, 3, 224, 224)), torch.randint(10, (samples,)))


class Pairs(Net):
    """Transformer with its loss on random sentence pairs."""

    per_gpu, of_all, here = 128, 4096, 16

    def __init__(self) -> None:
        super().__init__()
        self.net = TransformerSeq2Seq(WORDS, WORDS, shared_embeddings=True)

    def forward(self, samples: int) -> Tensor:
        """Return the mean loss per token of `samples` pairs."""
        source, target = torch.randint(4, WORDS, (2, samples, TOKENS))
        logits_BTV = self.net(source, torch.full((samples,), TOKENS), target)
        return F.cross_entropy(logits_BTV.flatten(0, 1), target.flatten())


NETS: dict[str, type[Net]] = {"resnet18": Images, "transformer": Pairs}


class Link(NamedTuple):
    """Link from one GPU to others in its node or in other nodes."""

    hop: float  # seconds
    bandwidth: float  # bytes per second in each direction

    def ring(self, size: float, count: int) -> float:
        """Return the duration in seconds of a ring all-reduce."""
        return 2 * (count - 1) * (self.hop + size / count / self.bandwidth)

    def tree(self, size: float, count: int) -> float:
        """Return the duration in seconds of a double-binary-tree all-reduce."""
        return (math.sqrt(2 * math.ceil(math.log2(count)) * self.hop) + math.sqrt(2 * size / self.bandwidth)) ** 2


class Profile(NamedTuple):
    """Profile of a training step, measured on this machine."""

    shares: tuple[float, float, float]  # fractions of time in forward, backward and optimizer; sum to 1
    ready: list[tuple[float, int]]  # when each gradient is ready (fraction of the backward pass), and its bytes
    flop: float  # floating-point operations per sample

    def buckets(self) -> list[tuple[float, int]]:
        """Return when each DDP bucket is full, as a fraction of the backward pass, and its bytes."""
        found: list[tuple[float, int]] = []
        size = 0
        for when, more in self.ready:
            size += more
            if size >= (BUCKET if found else FIRST_BUCKET):
                found.append((when, size))
                size = 0
        return [*found, (1.0, size)] if size else found

    def step(self, compute: float, reduce: Callable[[float], float], overlap: bool = True) -> float:
        """Return the duration of a step with `compute` seconds of computation."""
        forward, backward, optimizer = (share * compute for share in self.shares)
        end = 0.0
        for when, size in self.buckets():
            end = max(end, when * backward if overlap else backward) + reduce(size)
        return forward + max(backward, end) + optimizer


def profile(make: type[Net]) -> Profile:
    """Measure a training step of a net."""
    torch.manual_seed(0)
    net = make()
    optimizer = torch.optim.AdamW(net.parameters())
    laps, order = [], []
    moments: list[tuple[Tensor, float]] = []
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: moments.append((p, time.perf_counter())))
    for _ in range(5):
        moments.clear()
        marks = [time.perf_counter()]
        loss = net(net.here)
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        optimizer.step()
        marks.append(time.perf_counter())
        laps.append([b - a for a, b in pairwise(marks)])
        order.append([((moment - marks[1]) / laps[-1][1], p.nbytes) for p, moment in moments])
    medians = [statistics.median(times) for times in zip(*laps, strict=True)]
    ready = [(statistics.median(w for w, _ in column), column[0][1]) for column in zip(*order, strict=True)]
    with FlopCounterMode(display=False) as counter:
        net(1).backward()
    forward, backward, optimizing = (value / sum(medians) for value in medians)
    return Profile((forward, backward, optimizing), ready, counter.get_total_flops())


# ---------------------------------------------------------------------------------------------------------- prediction


def all_reduce(size: float, gpus: int, start: float, within: Link, between: Link) -> float:
    """Return the duration in seconds of an all-reduce by GPUs in nodes of 8."""
    if gpus == 1:
        return 0.0
    local, nodes = min(gpus, NODE), gpus // NODE
    seconds = start + within.ring(size, local)
    return seconds if nodes < 2 else seconds + min(between.ring(size / local, nodes), between.tree(size / local, nodes))


def line(net: str, flop: float, options: argparse.Namespace) -> tuple[float, float]:
    """Return the floor and slope of the time of a step on one GPU, from two measured times if given."""
    given = [text.partition("=")[2].split(":") for text in options.step_ms if text.startswith(f"{net}=")]
    if len(given) < 2:
        return options.floor_ms / 1e3, flop / options.tflops / 1e12
    (b1, t1), (b2, t2) = [(int(batch), float(ms) / 1e3) for batch, ms in given[:2]]
    slope = (t2 - t1) / (b2 - b1)
    return t1 - b1 * slope, slope


def predict(name: str, found: Profile, options: argparse.Namespace) -> dict[str, Any]:
    """Predict times and efficiencies of weak and strong scaling, and the maximum numbers of GPUs for 80 and 50 %."""
    floor, slope = line(name, found.flop, options)
    forward, backward, _ = found.shares  # the floor includes the optimizer
    found = found._replace(shares=(forward / (forward + backward), backward / (forward + backward), 0.0))
    result: dict[str, Any] = {"floor ms": floor * 1e3, "ms per sample": slope * 1e3}
    for network, kind in product(options.network, ("weak", "strong")):
        title, _, given = network.partition("=")
        bandwidth, hop = map(float, given.split(":"))
        within, between = Link(options.hop_us / 1e6, options.gbps * 1e9), Link(hop / 1e6, bandwidth * 1e9)
        rows = {}
        for gpus in GPUS:
            batch = NETS[name].per_gpu if kind == "weak" else NETS[name].of_all / gpus
            if batch >= 1:
                start = options.start_us / 1e6
                reduce = partial(all_reduce, gpus=gpus, start=start, within=within, between=between)
                seconds = found.step(floor + batch * slope, reduce)
                rows[gpus] = {"ms": seconds * 1e3, "samples a second": gpus * batch / seconds}
        for gpus, row in rows.items():
            row["efficiency"] = row["samples a second"] / gpus / rows[1]["samples a second"]
        pays = {f"{e:.0%}": max(gpus for gpus in rows if rows[gpus]["efficiency"] >= e) for e in (0.8, 0.5)}
        result[f"{kind}, {title}"] = {"GPUs": rows, "most GPUs at an efficiency of": pays}
    return result


# --------------------------------------------------------------------------------------------------------- the check


def stepper(net: Net, kind: str) -> Callable[[], None]:
    """Return a function that performs a training step."""
    module = DistributedDataParallel(net) if kind == "ddp" else net
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> None:
        module(net.here).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def process(rank: int, count: int, folder: str, rounds: int) -> None:
    """Time all-reduces, and steps with and without DDP, in one of `count` processes. Rank 0 writes the results."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    found: dict[str, Any] = {"all-reduce": {}, "alone": {}, "ddp": {}}

    def timed(work: Callable[[], Any]) -> float:
        distributed.barrier()
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    for size in (2**12, 2**16, 2**20, 4 * 2**20, 16 * 2**20, 48 * 2**20):
        reduce = partial(distributed.all_reduce, torch.zeros(size // 4))
        found["all-reduce"][size] = statistics.median([timed(reduce) for _ in range(4 * rounds)])
    for name, make in NETS.items():
        torch.manual_seed(rank)
        steps = {kind: stepper(make(), kind) for kind in ("alone", "ddp")}
        times = [{kind: timed(step) for kind, step in steps.items()} for _ in range(rounds + 2)]
        for kind in steps:  # skips the first two steps, after which DDP has rebuilt its buckets
            found[kind][name] = statistics.median(one[kind] for one in times[2:])
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def on(count: int, rounds: int) -> dict[str, Any]:
    """Measure `count` concurrent processes."""
    with TemporaryDirectory() as folder:
        multiprocessing.spawn(process, (count, folder, rounds), nprocs=count)
        return json.loads(Path(folder, "found.json").read_text())


def fitted(times: dict[str, float]) -> Link:
    """Fit a link to the durations of two-process ring all-reduces, by least squares of the relative errors."""
    sizes, seconds = (
        torch.tensor([float(v) for v in values], dtype=torch.float64) for values in zip(*times.items(), strict=True)
    )
    system = torch.stack([2 / seconds, sizes / seconds], 1)
    hop, inverse = torch.linalg.lstsq(system, torch.ones_like(seconds)[:, None]).solution.flatten().tolist()
    return Link(max(hop, 0.0), 1 / inverse)


def check(profiles: dict[str, Profile], rounds: int) -> dict[str, Any]:
    """Compare prediction and measurement for two and four local processes."""
    cores = len(os.sched_getaffinity(0))
    runs = {count: on(count, rounds) for count in sorted({2, 4, cores})}
    link, full = fitted(runs[2]["all-reduce"]), runs[cores]
    result: dict[str, Any] = {"cores": cores, "link": link._asdict(), "measured": runs, "nets": {}}
    rows = []
    for name, found in profiles.items():
        for count in (2, 4):
            slower = max(1.0, count / cores)
            reduce = partial(link.ring, count=count)
            predicted = slower * found.step(full["alone"][name], reduce, overlap=count < cores)
            measured = runs[count]["ddp"][name]
            alone = slower * full["alone"][name]
            result["nets"].setdefault(name, {})[count] = {
                "predicted ms": predicted * 1e3, "measured ms": measured * 1e3, "error": predicted / measured - 1,
                "of it compute ms": alone * 1e3, "error of the overhead": (predicted - alone) / (measured - alone) - 1,
            }  # fmt: skip
            cells = [f"{seconds * 1e3:.0f}" for seconds in (alone, predicted, measured)]
            errors = predicted / measured - 1, (predicted - alone) / (measured - alone) - 1
            rows.append([name, str(count), *cells, *(f"{error:+.0%}" for error in errors)])
    title = f"DDP on {cores} cores, gloo: {link.hop * 1e6:.0f} µs per hop, {link.bandwidth / 1e9:.2f} GB/s; ms per step"
    table(title, ["", "processes", "compute", "predicted", "measured", "error", "error of the overhead"], rows)
    return result


def show(name: str, found: Profile, made: dict[str, Any]) -> None:
    """Print the efficiencies, and the maximum numbers of GPUs for efficiencies of 80 and 50 %."""
    kinds = {key: value for key, value in made.items() if isinstance(value, dict)}
    rows = [
        [f"{gpus:,}", *(f"{k['GPUs'][gpus]['efficiency']:.0%}" if gpus in k["GPUs"] else "" for k in kinds.values())]
        for gpus in GPUS
    ]
    rows += [
        [f"at least {least}", *(f"{k['most GPUs at an efficiency of'][least]:,}" for k in kinds.values())]
        for least in ("80%", "50%")
    ]
    size = sum(size for _, size in found.ready) / 1e6
    step = f"{made['floor ms']:.1f} + {made['ms per sample']:.3f} ms per sample"
    table(f"Efficiency of {name}: {size:.1f} MB of gradients, a step takes {step}", ["GPUs", *kinds], rows)


def main() -> None:
    """Measure and predict, print the tables and write results/scaling_model.json."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--step_ms", nargs="*", default=[], metavar="NET=BATCH:MS", help="times on a GPU, two per net")
    parser.add_argument("--tflops", type=float, default=100, help="sustained TFLOP/s of a GPU (default: 100)")
    parser.add_argument(
        "--floor_ms", type=float, default=3, help="time of a step without samples, for kernel launches (default: 3)"
    )
    parser.add_argument(
        "--network", nargs="*", default=NETWORKS, metavar="NAME=GBPS:HOP_US", help="networks between nodes, per GPU"
    )
    parser.add_argument("--gbps", type=float, default=300, help="bandwidth per GPU within a node (default: 300)")
    parser.add_argument("--hop_us", type=float, default=3, help="latency per hop within a node (default: 3)")
    parser.add_argument("--start_us", type=float, default=10, help="start-up time of an all-reduce (default: 10)")
    parser.add_argument("--rounds", type=int, default=15, help="steps of the check")
    parser.add_argument("--no_check", action="store_true", help="only predict and print")
    options = parser.parse_args()
    torch.set_num_threads(1)
    profiles = {name: profile(make) for name, make in NETS.items()}
    result: dict[str, Any] = {"options": vars(options)}
    for name, found in profiles.items():
        made = predict(name, found, options)
        show(name, found, made)
        buckets = [[round(when, 3), size] for when, size in found.buckets()]
        result[name] = {"GFLOP per sample": found.flop / 1e9, "shares": found.shares, "buckets": buckets, **made}
    if not options.no_check:
        save("scaling_model", {**result, "check": check(profiles, options.rounds)})


if __name__ == "__main__":
    main()
