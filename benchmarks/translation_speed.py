"""Compare the training speed of the translation nets to a loop over single pairs and single tokens.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/translation_speed.py                about two minutes on an idle machine
    OMP_WAIT_POLICY=PASSIVE python benchmarks/translation_speed.py --threads 2    stored beside the one-thread results

The data are the classic filtered pairs from Tatoeba ("I am …", "he is …"; at most 10 words; lower case, no accents,
spaced punctuation), French to English, with whole words as tokens. All nets have hidden and embedding size 256 and
dropout 0.1.

- location, additive, general: one-layer `RNNSeq2Seq` with a unidirectional encoder, whose final state initializes the
  decoder. A hand-written loop trains it on batches of 128 pairs from the data module's loader, with fused Adam.
  "location" is the batched version of the classic net.
- transformer: `TransformerSeq2Seq` with 3 + 3 layers, trained with the same loop.
- classic: `baselines_translation.Classic`, trained on pairs drawn from the same batches.

All variants run in one process, interleaved over several rounds. Results are medians over the rounds; ratios are shown
with their minimum and maximum. Timing covers complete steps: batch creation, forward, loss, backward and optimizer.
Tokens are target tokens including end-of-sentence, without padding.

The share of peak is the FLOP/s of a step's matrix products divided by the FLOP/s of `torch.mm` on two 2048 × 2048
float32 matrices, measured in the same round with the same number of threads. `torch.utils.flop_counter` counts the
operations over the timed batches, including the backward pass and padding. On the CPU it counts the products inside
`nn.GRU` (but not `nn.LSTM`, which is one fused call). Before anything is measured, this count is checked against
the formula 2 · 3 H (E + H) per token.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import torch
from baselines_translation import Classic
from common import DATA, Times, as_the_program, interleave, machine, ratio, save, show_ratio, stored, table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from lit_project.data.parallel_text.corpora import Tatoeba
from lit_project.models.seq2seq.base import Seq2Seq
from lit_project.models.seq2seq.rnn import RNNSeq2Seq
from lit_project.models.seq2seq.transformer import TransformerSeq2Seq
from lit_project.text.vocabulary import PAD

HIDDEN = 256
PEAK_SIZE = 2048
TARGETS = {"additive": "at least 15", "general": "at least 15"}  # relative to the classic loop


def classic_pairs() -> Tatoeba:
    """Return the data module with the classic pairs, set up for training."""
    data = Tatoeba(
        root=DATA, source="fr", target="en", prefixes="classic", max_length=10, batch_size=128, seed=0,
        lowercase=True, strip_accents=True, space_punctuation=True,
    )  # fmt: skip
    data.prepare_data()
    data.setup("fit")
    return data


def nets(data: Tatoeba) -> dict[str, Seq2Seq]:
    """Return the nets that are trained in batches."""
    sizes = data.source_size, data.target_size
    options: dict[str, Any] = {"embedding_size": HIDDEN, "hidden_size": HIDDEN, "bidirectional": False}
    attentions: tuple[Any, ...] = ("location", "additive", "general")
    return {
        **{a: RNNSeq2Seq(*sizes, data.max_source_length, attention=a, bridge="copy", **options) for a in attentions},
        "transformer": TransformerSeq2Seq(*sizes, HIDDEN),
    }


class Batches:
    """Plain training loop over the first `steps` batches of an epoch, which are the same each time."""

    def __init__(self, net: Seq2Seq, data: Tatoeba, steps: int) -> None:
        self.net, self.loader, self.steps = net, data.train_dataloader(), steps
        self.optimizer = torch.optim.Adam(net.parameters(), lr=0.001, fused=True)

    def train(self) -> float:
        """Train once on the batches, and return the mean loss per token."""
        loss_sum, tokens = torch.zeros(()), torch.zeros((), dtype=torch.int64)
        for batch in islice(self.loader, self.steps):
            logits_BTV = self.net(batch.source, batch.source_lengths, batch.target[:, :-1])
            labels_BT = batch.target[:, 1:]
            loss = F.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=PAD, reduction="sum")
            count = (labels_BT != PAD).sum()
            self.optimizer.zero_grad()
            (loss / count).backward()
            self.optimizer.step()
            loss_sum += loss.detach()
            tokens += count
        return (loss_sum / tokens).item()


def seconds(train: Callable[[], float], tokens: int) -> Times:
    """Return the training time per 1,000 target tokens."""
    start = Times.now()
    train()
    passed = Times.now() - start
    return Times(*(1000 * value / tokens for value in passed))


def operations(train: Callable[[], float]) -> int:
    """Return the number of floating-point operations in the matrix products of one call."""
    with FlopCounterMode(display=False) as counter:
        train()
    return counter.get_total_flops()


def check_counter() -> None:
    """Check that FlopCounterMode counts the matrix products inside `nn.GRU`.

    Raises:
        RuntimeError: If this torch version counts differently.
    """
    rnn, x = nn.GRU(10, 20, batch_first=True), torch.randn(4, 5, 10)
    lengths = torch.tensor([5, 4, 3, 2])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    for sequence, tokens in ((x, 20), (packed, 14)):
        counted, expected = operations(lambda s=sequence: rnn(s)), tokens * 2 * 3 * 20 * (10 + 20)  # type: ignore[misc]
        if counted != expected:
            raise RuntimeError(f"torch counts {counted} operations of a GRU that has {expected}")


def peak() -> Times:
    """Return the time per 10¹² floating-point operations of the fastest of five large products."""
    a, b = torch.rand(2, PEAK_SIZE, PEAK_SIZE)
    passed = []
    for _ in range(5):
        start = Times.now()
        torch.mm(a, b)
        passed.append(Times.now() - start)
    return Times(*(min(values) * 1e12 / (2 * PEAK_SIZE**3) for values in zip(*passed, strict=True)))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all nets, print a table and return the results."""
    torch.manual_seed(42)
    data = classic_pairs()
    batches = list(islice(data.train_dataloader(), options.steps))
    pool: list[tuple[Tensor, Tensor]] = [
        (source[source != PAD], target[target != PAD][1:])
        for batch in batches
        for source, target in zip(batch.source, batch.target, strict=True)
    ]
    pairs = [pool[i] for i in torch.randperm(len(pool))[: options.pairs].tolist()]
    classic = Classic(data.source_size, data.target_size, data.max_source_length, HIDDEN)
    trains: dict[str, Callable[[], float]] = {"classic": partial(classic.train, pairs)}
    trains |= {name: Batches(net, data, options.steps).train for name, net in nets(data).items()}
    tokens = dict.fromkeys(trains, sum(len(target) for _, target in pool))
    tokens["classic"] = sum(len(target) for _, target in pairs)
    counted = {name: 1000 * operations(train) / tokens[name] for name, train in trains.items()}  # also warms up
    variants = {name: partial(seconds, train, tokens[name]) for name, train in trains.items()}
    times = interleave({**variants, "peak": peak}, options.rounds)
    result: dict[str, Any] = {
        "pairs": data.size_of("train"),
        "vocabularies": [data.source_size, data.target_size],
        "steps": len(batches),
        "target tokens": tokens,
        "GFLOP/s of torch.mm": [1000 / t.wall for t in times["peak"]],
    }
    rows = []
    for name in trains:
        shares = [counted[name] / 1e12 * best.wall / t.wall for t, best in zip(times[name], times["peak"], strict=True)]
        result[name] = {
            "tokens a second": [1000 / t.wall for t in times[name]],
            "times classic": ratio(times["classic"], times[name]),
            "times classic, CPU": ratio(times["classic"], times[name], "cpu"),
            "MFLOP a token": counted[name] / 1e9,
            "share of peak": {"median": statistics.median(shares), "min": min(shares), "max": max(shares)},
        }
        ours = result[name]
        speed = f"{statistics.median(ours['tokens a second']):,.0f}"
        ratios = [show_ratio(ours[key]) for key in ("times classic", "times classic, CPU", "share of peak")]
        rows.append([name, speed, *ratios[:2], f"{ours['MFLOP a token']:.1f}", ratios[2]])
    header = ["", "tokens/s", "times classic", "times classic, CPU", "MFLOP/token", "share of peak"]
    title = f"Training on {result['pairs']:,} pairs, hidden size {HIDDEN}, {options.threads} thread(s)"
    table(title, header, rows)
    print(f"  torch.mm: {statistics.median(result['GFLOP/s of torch.mm']):.0f} GFLOP/s")
    return result


def claims(parts: dict[str, Any]) -> dict[str, Any]:
    """Return the claimed and measured ratios."""
    promised = {}
    for part, results in parts.items():
        for name, target in TARGETS.items():
            promised[f"{name} / classic, tokens a second, {part}"] = {
                "target": target,
                **results[name]["times classic"],
            }
    return promised


def main() -> None:
    """Run the benchmark as requested on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="batches of 128 pairs per round and net")
    parser.add_argument("--pairs", type=int, default=60, help="pairs per round of the classic loop")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; one is least affected by other jobs")
    options = parser.parse_args()
    as_the_program(options.threads)
    torch.set_flush_denormal(True)  # as the command line does
    check_counter()
    parts = stored("translation_speed").get("parts", {})
    measured = measure(options)
    parts[f"{options.threads} thread(s)"] = {"machine": machine(), "rounds": options.rounds, **measured}
    save("translation_speed", {"claims": claims(parts), "parts": parts})
    rows = [[name, row["target"], show_ratio(row)] for name, row in claims(parts).items()]
    table("Claims", ["", "target", "measured"], rows)


if __name__ == "__main__":
    main()
