"""Speed of training the translation nets, against a loop over single pairs and single tokens.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/translation_speed.py                about two minutes on an idle machine
    OMP_WAIT_POLICY=PASSIVE python benchmarks/translation_speed.py --threads 2    kept beside those of one thread

Data: the classic filtered pairs of Tatoeba ("I am …", "he is …"; at most 10 words; lower case, no accents, spaced
punctuation), French to English, whole words. Hidden and embedding size 256 everywhere, one layer, dropout 0.1.

- location, additive, general: `RNNSeq2Seq`, encoder one way, which hands its state on; batches of 128 pairs of the data
  module's loader, fused Adam, a loop by hand. Location is the classic net in batches.
- transformer: `TransformerSeq2Seq`, 3 + 3 layers, the same loop.
- classic: `baselines_translation.Classic`, pairs drawn from the same batches.

All in one process, in turns, several rounds; a number is the median over the rounds, of ratios the median of the ratios
of the rounds, with the least and the greatest beside it. What is timed is whole steps: making the batch, forward, loss,
backward, optimizer. Tokens are target tokens, the end counted, padding not.

The share of the peak is the floating-point operations of a step's matrix products over those that `torch.mm` on two
float32 matrices of 2048 × 2048 does in the same time and round, with as many threads. The operations are counted by
`torch.utils.flop_counter` over the very batches that are timed, backward and padding included. On the CPU it sees the
products inside `nn.GRU` (not those of `nn.LSTM`, which is one fused call); that is checked against the formula
2 · 3 H (E + H) a token before anything is measured.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import torch
from baselines_translation import Classic
from common import DATA, RESULTS, Times, as_the_program, interleave, machine, ratio, save, show_ratio, table
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
TARGETS = {"additive": "at least 15", "general": "at least 15"}  # times the classic loop


def classic_pairs() -> Tatoeba:
    """The data, set up for training."""
    data = Tatoeba(
        root=DATA, source="fr", target="en", prefixes="classic", max_length=10, batch_size=128, seed=0,
        lowercase=True, strip_accents=True, space_punctuation=True,
    )  # fmt: skip
    data.prepare_data()
    data.setup("fit")
    return data


def nets(data: Tatoeba) -> dict[str, Seq2Seq]:
    """What is trained in batches."""
    sizes = data.source_size, data.target_size
    options: dict[str, Any] = {"embedding_size": HIDDEN, "hidden_size": HIDDEN, "bidirectional": False}
    attentions: tuple[Any, ...] = ("location", "additive", "general")
    return {
        **{a: RNNSeq2Seq(*sizes, data.max_source_length, attention=a, bridge="copy", **options) for a in attentions},
        "transformer": TransformerSeq2Seq(*sizes, HIDDEN),
    }


class Batches:
    """A plain training loop over the first `steps` batches of an epoch, the same ones each time."""

    def __init__(self, net: Seq2Seq, data: Tatoeba, steps: int) -> None:
        self.net, self.loader, self.steps = net, data.train_dataloader(), steps
        self.optimizer = torch.optim.Adam(net.parameters(), lr=0.001, fused=True)

    def train(self) -> float:
        """Trains once over the batches; returns the mean loss of a token."""
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
    """Of 1,000 target tokens."""
    start = Times.now()
    train()
    passed = Times.now() - start
    return Times(*(1000 * value / tokens for value in passed))


def operations(train: Callable[[], float]) -> int:
    """Floating-point operations of the matrix products of one run."""
    with FlopCounterMode(display=False) as counter:
        train()
    return counter.get_total_flops()


def check_counter() -> None:
    """Makes sure that the products inside `nn.GRU` are counted.

    Raises:
        RuntimeError: this version of torch counts otherwise.
    """
    rnn, x = nn.GRU(10, 20, batch_first=True), torch.randn(4, 5, 10)
    lengths = torch.tensor([5, 4, 3, 2])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    for sequence, tokens in ((x, 20), (packed, 14)):
        counted, expected = operations(lambda s=sequence: rnn(s)), tokens * 2 * 3 * 20 * (10 + 20)  # type: ignore[misc]
        if counted != expected:
            raise RuntimeError(f"torch counts {counted} operations of a GRU that has {expected}")


def peak() -> Times:
    """Of 10¹² floating-point operations at the fastest of five large products."""
    a, b = torch.rand(2, PEAK_SIZE, PEAK_SIZE)
    passed = []
    for _ in range(5):
        start = Times.now()
        torch.mm(a, b)
        passed.append(Times.now() - start)
    return Times(*(min(values) * 1e12 / (2 * PEAK_SIZE**3) for values in zip(*passed, strict=True)))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measures all nets; prints a table and returns the numbers."""
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
    counted = {name: 1000 * operations(train) / tokens[name] for name, train in trains.items()}  # warms up, too
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
    """The promised ratios of what was measured."""
    promised = {}
    for part, results in parts.items():
        for name, target in TARGETS.items():
            promised[f"{name} / classic, tokens a second, {part}"] = {
                "target": target,
                **results[name]["times classic"],
            }
    return promised


def main() -> None:
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="batches of 128 pairs a round and net")
    parser.add_argument("--pairs", type=int, default=60, help="pairs a round of the classic loop")
    parser.add_argument("--threads", type=int, default=1, help="of torch; one is least disturbed by other programs")
    options = parser.parse_args()
    as_the_program(options.threads)
    torch.set_flush_denormal(True)  # as the command line does
    check_counter()
    file = RESULTS / "translation_speed.json"
    parts = json.loads(file.read_text()).get("parts", {}) if file.exists() else {}
    measured = measure(options)
    parts[f"{options.threads} thread(s)"] = {"machine": machine(), "rounds": options.rounds, **measured}
    save("translation_speed", {"claims": claims(parts), "parts": parts})
    rows = [[name, row["target"], show_ratio(row)] for name, row in claims(parts).items()]
    table("Claims", ["", "target", "measured"], rows)


if __name__ == "__main__":
    main()
