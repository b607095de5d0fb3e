"""Measure decoding speed in sentences and tokens per second, for greedy decoding and beam search.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/decoding_speed.py    the first run trains the nets for 20 minutes

Translates the 1,014 validation sentences of Multi30k from English to French, with a joint BPE vocabulary of 4,000
tokens and the batches of the data module's loader. The nets share and tie their embeddings. They are trained for one
epoch (the GRU for two), so that they learn to end sentences. They are stored in runs/decoding_speed:

- gru: embedding size 256, hidden size 384, additive attention.
- transformer: size 256, 3 + 3 layers.
- small_transformer: size 128, 4 + 4 layers.

All variants are interleaved in one process for several rounds, and medians over the rounds are reported. Timing covers
everything from source tokens to translated tokens, including the encoder. Translated tokens include end-of-sentence.
"""

import argparse
import statistics
from functools import partial
from itertools import chain
from typing import Any

import torch
from common import DATA, ROOT, Times, as_the_program, interleave, save, table
from torch.nn import functional as F

from lit_project.data.parallel_text.corpora import Multi30k
from lit_project.models.seq2seq.base import Seq2Seq
from lit_project.models.seq2seq.rnn import RNNSeq2Seq
from lit_project.models.seq2seq.search import Decoding
from lit_project.models.seq2seq.transformer import TransformerSeq2Seq
from lit_project.text.vocabulary import PAD

KEPT = ROOT / "runs" / "decoding_speed"
SEARCHES = {"greedy": Decoding(), "beam 5": Decoding(beam_size=5)}


def captions() -> Multi30k:
    """Return the data module, set up for training."""
    data = Multi30k(
        root=DATA, source="en", target="fr", vocabulary="bpe", vocabulary_size=4000, joint=True, batch_size=64, seed=0
    )
    data.prepare_data()
    data.setup("fit")
    return data


def nets(data: Multi30k) -> dict[str, Seq2Seq]:
    """Return the trained nets in evaluation mode. Nets without a stored file are trained first."""
    torch.manual_seed(42)
    sizes = data.source_size, data.target_size
    shared: dict[str, Any] = {"tied_embeddings": True, "shared_embeddings": True}
    found: dict[str, Seq2Seq] = {
        "gru": RNNSeq2Seq(*sizes, embedding_size=256, hidden_size=384, attention="additive", dropout=0.2, **shared),
        "transformer": TransformerSeq2Seq(*sizes, 256, **shared),
        "small_transformer": TransformerSeq2Seq(*sizes, 128, encoder_layers=4, decoder_layers=4, **shared),
    }
    KEPT.mkdir(parents=True, exist_ok=True)
    for name, net in found.items():
        file = KEPT / f"{name}.pt"
        if not file.exists():
            train(net, data, epochs=2 if name == "gru" else 1)
            torch.save(net.state_dict(), file)
        net.load_state_dict(torch.load(file))
        net.eval()
    return found


def train(net: Seq2Seq, data: Multi30k, epochs: int) -> None:
    """Train with Adam and a one-cycle schedule."""
    optimizer, loader = torch.optim.Adam(net.parameters()), data.train_dataloader()
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.002, epochs * len(loader))
    for batch in chain(*[loader] * epochs):
        logits_BTV = net(batch.source, batch.source_lengths, batch.target[:, :-1])
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), batch.target[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    print(f"trained: loss {loss.item():.2f}", flush=True)


def seconds(net: Seq2Seq, decoding: Decoding, batches: list[Any], counts: dict[str, int]) -> Times:
    """Return the time to translate all batches, and store the numbers of sentences and tokens in `counts`."""
    start = Times.now()
    found = [best for batch in batches for best in decoding.search(net, batch.source, batch.source_lengths)]
    passed = Times.now() - start
    counts.update(sentences=len(found), tokens=sum(len(hypotheses[0].tokens) + 1 for hypotheses in found))
    return passed


def main() -> None:
    """Measure all nets and searches, print a table and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nets", nargs="+", default=["gru", "transformer", "small_transformer"])
    options = parser.parse_args()
    as_the_program(1)
    data = captions()
    found, batches = nets(data), list(data.val_dataloader())
    counts: dict[str, dict[str, int]] = {f"{net}, {search}": {} for net in options.nets for search in SEARCHES}
    variants = {
        f"{net}, {search}": partial(seconds, found[net], decoding, batches, counts[f"{net}, {search}"])
        for net in options.nets
        for search, decoding in SEARCHES.items()
    }
    times = interleave(variants, options.rounds)
    result: dict[str, Any] = {"rounds": options.rounds}
    rows = []
    for name, count in counts.items():
        passed = sorted(value.wall for value in times[name])
        result[name] = {**count, "seconds": {"median": statistics.median(passed), "min": passed[0], "max": passed[-1]}}
        rates = {unit: count[unit] / statistics.median(passed) for unit in ("sentences", "tokens")}
        result[name] |= {f"{unit} a second": rate for unit, rate in rates.items()}
        rows.append([name, *(f"{rate:,.0f}" for rate in rates.values())])
    table("Decoding of 1,014 captions, 1 thread", ["", "sentences/s", "tokens/s"], rows)
    save("decoding_speed", result)


if __name__ == "__main__":
    main()
