"""Compare this project's speed with other toolkits on the same data and model sizes, each in its own environment.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/peers.py                  run all parts
    OMP_WAIT_POLICY=PASSIVE python benchmarks/peers.py --part images    run one part; the file keeps the others
    OMP_WAIT_POLICY=PASSIVE python benchmarks/peers.py --quick          try all parts with few steps; saves nothing

`uv` creates the environments in `.cache/peers`, with the torch version of this environment. All toolkits use one thread
and float32. This project uses fused optimizers, as its configs do, and reuses freed memory, as its command line does.

- tokens: compares training speed with JoeyNMT's own command on Multi30k, English to French. Both use the words that
  occur at least twice in this project's tokenization, GRUs of size 256 (bidirectional encoder), embeddings of size 256,
  additive attention, dropout 0.1, Adam, and 64 pairs per batch (of similar length here, random in JoeyNMT). Speed
  is measured in target tokens, including end-of-sentence, after the first steps and without validation.
- bleu: trains both for the same number of updates. Reports the seconds, including validation, until a target BLEU is
  reached in validation (greedy search), the test BLEU (beam 5), and the speed of translating the test split with each
  toolkit's default batches (8,000 positions, sorted by length, in this project; 64 sentences in JoeyNMT).
- images: trains the same nets on Fashion-MNIST with 64 images per batch, Adam, and no augmentation; see `baselines.py`
  and `peers_timm.py`.
- files: reads JPEG files of two sizes with the loaders of this project, timm and torchvision, without training; see
  `peers_files.py`.

Speeds and ratios are medians over interleaved rounds. Ratios are shown with their minimum and maximum.
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from subprocess import PIPE, STDOUT
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from baselines import standard_pipeline
from common import (
    DATA,
    ROOT,
    StepClock,
    Times,
    as_the_program,
    command,
    interleave,
    machine,
    ratio,
    save,
    show_ratio,
    stored,
    table,
)
from PIL import Image

from lit_engine.run.directory import RunDir
from lit_project.data.parallel_text.corpora import Multi30k
from lit_project.models.cnn import CNN
from lit_project.models.mlp import MLP
from lit_project.text.scores import corpus_scores
from lit_project.text.tokens import join_words, split_words

JOEYNMT = ["joeynmt==2.3.0", "importlib_metadata==8.7.0"]
TIMM = ["timm==1.0.31", f"torchvision=={version('torchvision').partition('+')[0]}"]
SKIP = 10  # warm-up steps, and the logging interval of JoeyNMT
UPDATES = {"lit_project": 120, "joeynmt": 40}  # timed updates; more for length-sorted batches, which vary more
RATE = 0.002  # learning rate
LEVEL = 10  # target validation BLEU
NEVER = 10**6
OURS = """--model=Translator --model.net=RNNSeq2Seq --model.net.attention=additive --model.net.embedding_size=256
    --model.net.hidden_size=256 --model.net.dropout=0.1 --data=Multi30k --data.min_freq=2 --trainer.max_epochs=-1
    --trainer.gradient_clip_val=1.0 --trainer.check_val_every_n_epoch=null"""


def environment(peer: str, *others: str) -> Path:
    """Create or update an environment with these packages, and return the path of its Python."""
    folder, uv = ROOT / ".cache" / "peers" / peer, [sys.executable, "-m", "uv", "--quiet"]
    subprocess.run([*uv, "venv", "--allow-existing", "--python", sys.executable, folder], check=True)
    packages = [peer, *others, f"torch=={torch.__version__.partition('+')[0]}"]
    subprocess.run([*uv, "pip", "install", "--python", folder / "bin" / "python", *packages], check=True)
    return folder / "bin" / "python"


def output(*command: str | Path, path: str = "") -> str:
    """Run a command with `path` as PYTHONPATH, and return its output. Raise RuntimeError if the command fails."""
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "THP_MEM_ALLOC_ENABLE": "0"}
    done = subprocess.run(command, env=environ, text=True, stdout=PIPE, stderr=STDOUT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stdout[-3000:]}")
    return done.stdout


def clocked() -> Times:
    """Return the time per 1,000 images or tokens in the latest epoch, excluding the warm-up. CPU time is NaN."""
    (start, _), *steps = StepClock.steps[SKIP - 1 :]
    return Times(1000 * (steps[-1][0] - start) / sum(size for _, size in steps), math.nan)


def fit(runs: Path, *words: str) -> Times:
    """Run `lit-project fit` on the CPU, and return its `clocked` time."""
    command("fit", *words, '--trainer.callbacks=[{"class_path": "Checkpoint"}, {"class_path": "common.StepClock"}]',
            "--model.optimizer=torch.optim.Adam", "--model.optimizer.fused=true", f"--model.optimizer.lr={RATE}",
            "--data.batch_size=64", f"--data.root={DATA}", f"--runs_dir={runs}",
            "--trainer.accelerator=cpu")  # fmt: skip
    return clocked()


class Ours(NamedTuple):
    """Translation with this project. Runs are stored in `folder`."""

    folder: Path

    def train(self, updates: int, validate: int) -> tuple[Times, list[tuple[float, list[str]]]]:
        """Return the time per 1,000 tokens, excluding validation, and the time and hypotheses of each validation."""
        steps = f"--trainer.max_steps={updates}", f"--trainer.val_check_interval={validate}"
        return fit(self.folder, *OURS.split(), *steps), StepClock.ends

    def test(self, beam: int) -> tuple[float, list[str]]:
        """Translate the test split with the latest weights, and return the time in seconds and the hypotheses."""
        run = RunDir.latest(self.folder)
        command("predict", "--run", run.path, "--ckpt_path=last", f"--model.decoding.beam_size={beam}")
        rows = sorted(run.predictions("test"), key=lambda row: row["index"])
        return StepClock.ends[-1][0], [row["hypothesis"] for row in rows]


class Joey:
    """Translation with JoeyNMT. Data and model are stored in `folder`."""

    def __init__(self, folder: Path, data: Multi30k) -> None:
        self.folder, self.python = folder, environment(*JOEYNMT)
        for split in ("train", "val", "test"):
            for side, language in enumerate(("en", "fr")):
                lines = [" ".join(split_words(pair[side], language)) + "\n" for pair in data.pairs(split)]
                (folder / f"{split}.{language}").write_text("".join(lines))

    def run(self, mode: str, option: str, updates: int = 0, validate: int = NEVER, beam: int = 1) -> str:
        """Run JoeyNMT's command line, and return its log."""
        side = {"level": "word", "voc_min_freq": 2}
        splits = {"train": "train", "dev": "val"} if mode == "train" else {"test": "test"}
        gru = {"type": "recurrent", "rnn_type": "gru", "hidden_size": 256, "num_layers": 1, "bidirectional": True,
               "attention": "bahdanau", "hidden_dropout": 0.1,
               "embeddings": {"embedding_dim": 256, "scale": True, "dropout": 0.1}}  # fmt: skip
        config = {
            "name": "peer", "model_dir": f"{self.folder}/model", "use_cuda": False,
            "data": {"dataset_type": "plain", "src": {"lang": "en", **side}, "trg": {"lang": "fr", **side},
                     **{split: f"{self.folder}/{name}" for split, name in splits.items()}},
            "testing": {"beam_size": beam, "beam_alpha": 1.0, "load_model": f"{self.folder}/model/latest.ckpt"},
            "training": {"optimizer": "adam", "learning_rate": RATE, "learning_rate_min": 0.0, "clip_grad_norm": 1.0,
                         "scheduling": "exponential", "decrease_factor": 1.0, "normalization": "tokens",
                         "batch_size": 64, "epochs": NEVER, "updates": updates, "logging_freq": SKIP,
                         "validation_freq": validate, "overwrite": True},
            "model": {"embed_initializer": "normal", "embed_init_weight": 1 / 16, "encoder": gru, "decoder": gru},
        }  # fmt: skip
        (self.folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
        return output(self.python, "-m", "joeynmt", mode, self.folder / "config.yaml", *option.split())

    def train(self, updates: int, validate: int) -> tuple[Times, list[tuple[float, list[str]]]]:
        """Return the time per 1,000 tokens, and the time and hypotheses of each validation."""
        speed, seconds = logged(self.run("train", "--skip-test", updates, validate))
        files = [self.folder / "model" / f"{number * validate}.hyps" for number in range(1, len(seconds) + 1)]
        return speed, [(s, file.read_text().splitlines()) for s, file in zip(seconds, files, strict=True)]

    def test(self, beam: int) -> tuple[float, list[str]]:
        """Translate the test split with the latest weights, and return the time in seconds and the hypotheses."""
        log = self.run("test", f"-o {self.folder}/found", beam=beam)
        found = (self.folder / "found.test").read_text().splitlines()
        return float(re.findall(r"Generation took ([\d.]+)\[sec\]", log)[0]), found


def logged(log: str) -> tuple[Times, list[float]]:
    """Return the time per 1,000 tokens after the first entry of a JoeyNMT log, and when each validation ended."""
    times = re.findall(r"(?m)^(\S+ \S+) - .* - (?:EPOCH 1$|Evaluation result)", log)
    start, *ends = [datetime.fromisoformat(time.replace(",", ".")) for time in times]
    speeds = re.findall(r"Tokens per Sec: +([\d.]+)", log)[1:]  # each over the same number of updates
    mean = statistics.mean(1000 / float(speed) for speed in speeds)
    return Times(mean, math.nan), [(end - start).total_seconds() for end in ends]


@contextmanager
def toolkits() -> Iterator[tuple[Multi30k, dict[str, Ours | Joey]]]:
    """Yield the data and the toolkits by name."""
    data = Multi30k(root=DATA, min_freq=2)
    with TemporaryDirectory() as ours, TemporaryDirectory() as theirs:
        yield data, {"lit_project": Ours(Path(ours)), "joeynmt": Joey(Path(theirs), data)}


def tokens(quick: bool) -> dict[str, Any]:
    """Compare training speed in tokens per second."""
    with toolkits() as (_, kits):
        speeds = {name: partial(lambda n: kits[n].train(SKIP + UPDATES[n], NEVER)[0], name) for name in kits}
        times = interleave(speeds, 1 if quick else 3)
    found = {name: [1000 / t.wall for t in own] for name, own in times.items()}
    faster = ratio(times["joeynmt"], times["lit_project"])
    row = ["", *(f"{statistics.median(own):,.0f}" for own in found.values()), show_ratio(faster), "at least 3"]
    table(f"Tokens per second; {' '.join(JOEYNMT)}", ["", *kits, "ratio", "target"], [row])
    return {"versions": JOEYNMT, "ratio": faster, **found}


def bleu(quick: bool) -> dict[str, Any]:
    """Train once with each toolkit, and compare speed and translation quality."""
    updates, validate = (20, 20) if quick else (200, 50)
    found: dict[str, Any] = {}
    with toolkits() as (data, kits):

        def score(found: list[str], split: Any) -> float:
            references = [[target] for _, target in data.pairs(split)]
            return corpus_scores([join_words(line.split()) for line in found], references)["bleu"][0]

        for name, kit in kits.items():
            curve = [(seconds, score(own, "val")) for seconds, own in kit.train(updates, validate)[1]]
            (greedy, _), (five, hypotheses) = kit.test(1), kit.test(5)
            found[name] = {
                f"seconds to {LEVEL} BLEU": next((seconds for seconds, value in curve if value >= LEVEL), None),
                "test BLEU": score(hypotheses, "test"),
                "sentences per second, greedy": len(hypotheses) / greedy,
                "sentences per second, beam 5": len(hypotheses) / five,
            }
            found[f"{name}, seconds and validation BLEU"] = curve
    rows = [[key, *(f"{v:,.1f}" if (v := found[name][key]) else "-" for name in kits)] for key in found["joeynmt"]]
    table(f"After {updates} updates; {' '.join(JOEYNMT)}", ["", *kits], rows)
    return {"versions": JOEYNMT, "updates": updates, **found}


def images(quick: bool) -> dict[str, Any]:
    """Measure all pipelines with two nets, print a table for each net and return the results."""
    steps, python = 20 if quick else 100, environment(*TIMM)
    found: dict[str, Any] = {"versions": TIMM}

    def ours(net: str) -> Times:
        words = f"--model=ImageClassifier --model.net={net} --data=FashionMNIST --trainer.max_epochs=1".split()
        with TemporaryDirectory() as runs:
            return fit(Path(runs), *words, f"--trainer.limit_train_batches={SKIP + steps}")

    def usual(net: type[MLP | CNN], workers: int) -> Times:
        standard_pipeline(lambda: net((1, 28, 28), 10), 64, workers, 1, SKIP + steps)
        return clocked()

    def timm(net: str, workers: int) -> Times:
        script, numbers = ROOT / "benchmarks" / "peers_timm.py", map(str, (workers, SKIP, steps))
        return Times(float(output(python, script, net, *numbers, DATA, path=f"{ROOT}/src").split()[-1]), math.nan)

    for net in (MLP, CNN):
        variants: dict[str, Callable[[], Times]] = {"lit_project": partial(ours, net.__name__)}
        for workers in (0, 2):
            variants[f"standard Lightning, {workers} workers"] = partial(usual, net, workers)
            variants[f"timm, {workers} workers"] = partial(timm, net.__name__, workers)
        times, rows = interleave(variants, 1 if quick else 3), []
        for peer, own in times.items():
            speed, longer = statistics.median(1000 / t.wall for t in own), ratio(own, times["lit_project"])
            found.setdefault(net.__name__, {})[peer] = {"images per second": speed, "times as long": longer}
            rows.append([peer, f"{speed:,.0f}", show_ratio(longer)])
        table(f"{net.__name__}, Fashion-MNIST; {' '.join(TIMM)}", ["", "images/s", "times as long"], rows)
    return found


def write_photos(folder: Path, size: tuple[int, int], count: int) -> None:
    """Write JPEG files in two class folders: smooth shapes with the fine grain of a photo."""
    draw = np.random.default_rng(0)
    for number in range(count):
        shapes = Image.fromarray(draw.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(
            size, Image.Resampling.BICUBIC
        )
        grain = draw.normal(0, 6, (size[1], size[0], 3))
        file = folder / "ab"[number % 2] / f"{number}.jpg"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray((np.asarray(shapes) + grain).clip(0, 255).astype(np.uint8)).save(file, quality=90)


def files(quick: bool) -> dict[str, Any]:
    """Compare the speed of loading JPEG files, print a table for each size and return the results."""
    here, python = sys.executable, environment(*TIMM)
    found: dict[str, Any] = {"versions": TIMM}

    def load(folder: str, toolkit: str, workers: int) -> Times:
        words = ROOT / "benchmarks" / "peers_files.py", toolkit, str(workers), folder
        paths = f"{ROOT}/src:{ROOT}/engine/src"
        return Times(float(output(python if toolkit == "timm" else here, *words, path=paths).split()[-1]), math.nan)

    for size, count in (((500, 375), 400), ((2000, 1500), 80)):
        with TemporaryDirectory() as folder:
            write_photos(Path(folder), size, count // 2 if quick else count)
            variants = {
                f"{toolkit}, {workers} workers": partial(load, folder, toolkit, workers)
                for workers in (0, 2) for toolkit in ("lit_project", "torchvision", "timm")
            }  # fmt: skip
            times, rows = interleave(variants, 1 if quick else 3), []
        title = "JPEG files of {} × {} pixels".format(*size)
        for name, own in times.items():
            base = times[f"lit_project, {name.split()[-2]} workers"]
            speed, longer = statistics.median(1000 / t.wall for t in own), ratio(own, base)
            found.setdefault(title, {})[name] = {"images per second": speed, "times as long": longer}
            rows.append([name, f"{speed:,.0f}", show_ratio(longer)])
        table(f"{title}; {' '.join(TIMM)}", ["", "images/s", "times as long"], rows)
    return found


def main() -> None:
    """Run the benchmark as requested on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"tokens": tokens, "bleu": bleu, "images": images, "files": files}
    parser.add_argument("--part", nargs="+", choices=list(parts), default=list(parts))
    parser.add_argument("--quick", action="store_true", help="run one round of a few steps and save nothing")
    options = parser.parse_args()
    as_the_program(1)
    results = stored("peers").get("parts", {})
    for part in options.part:
        results[part] = {"machine": machine(), **parts[part](options.quick)}
        if not options.quick:
            save("peers", {"parts": results})  # after each part, in case the script is interrupted


if __name__ == "__main__":
    main()
