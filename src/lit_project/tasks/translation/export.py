"""Exports a translator's encoder and decoder step as tensor functions, and runs a search with the exported files."""

from collections.abc import Mapping
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lit_engine.tools.export.parts import Exported, Part, Run
from lit_project.models.seq2seq.base import Decoded, Memory, Seq2Seq
from lit_project.models.seq2seq.rnn import RNNEncoder
from lit_project.tasks.translation.task import Translator
from lit_project.text import preparation, tokens
from lit_project.text.vocabulary import PAD

SATURATED = 1e4  # In float32, sigmoid(1e4) is 1 and sigmoid(-1e4) is 0.


class Unpacked(nn.Module):
    """An `RNNEncoder` that does not use packed sequences, because export formats do not support them.

    Each layer gets an extra input, which is 1 for padding and saturates the gates, so that the state stays the same.
    Padding then affects neither the final state of the forward direction nor the start of the backward direction.
    """

    def __init__(self, encoder: RNNEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, source_BS: Tensor, lengths_B: Tensor) -> tuple[Tensor, Any]:
        """Return the same values as `RNNEncoder.forward` in evaluation mode."""
        encoder, rnn = self.encoder, self.encoder.rnn
        size, both, lstm = rnn.hidden_size, rnn.bidirectional, isinstance(rnn, nn.LSTM)
        x_BSD = encoder.embedding(source_BS) * encoder.embedding.embedding_dim**0.5
        padding_BS1 = (source_BS == PAD)[..., None].to(x_BSD.dtype)
        last_B11 = (lengths_B - 1)[:, None, None]
        # Torch orders GRU gates as (reset, update, new) and LSTM gates as (input, forget, cell, output).
        held = torch.tensor([-1.0, 1, 0, 0] if lstm else [0.0, 1, 0]) * SATURATED
        finals: list[tuple[Tensor, ...]] = []
        for layer in range(rnn.num_layers):
            directions = rnn.all_weights[layer * encoder.directions : (layer + 1) * encoder.directions]
            weights = [
                torch.cat([weight, held.repeat_interleave(size)[:, None]], dim=1) if place == 0 else weight
                for direction in directions
                for place, weight in enumerate(direction)
            ]
            zeros = x_BSD.new_zeros(encoder.directions, source_BS.shape[0], size)
            inputs = torch.cat([x_BSD, padding_BS1], dim=-1)
            if lstm:
                x_BSD, hidden, *cell = torch.lstm(inputs, (zeros, zeros), weights, True, 1, 0.0, False, both, True)
            else:
                (x_BSD, hidden), cell = torch.gru(inputs, zeros, weights, True, 1, 0.0, False, both, True), []
            # At padding tokens, an LSTM keeps its cell state but not its output, because the output gate is not
            # saturated. Use the output of the forward direction at the last token.
            forward = x_BSD.gather(1, last_B11.expand(-1, 1, x_BSD.shape[2]))[:, 0, :size]
            finals.append((torch.cat([forward[None], hidden[1:]]), *cell))
        states_BSD = encoder.norm(x_BSD * (1 - padding_BS1))
        return states_BSD, tuple(encoder._batch_first(torch.cat(parts)) for parts in zip(*finals, strict=True))


class FromFiles(Seq2Seq):
    """A model that runs the exported files, so that `Decoding` can use them for a search."""

    def __init__(self, runs: Mapping[str, Run], shared: int) -> None:
        super().__init__()
        self.runs, self.shared = runs, shared

    def encode(self, source_BS: Tensor, lengths_B: Tensor) -> Memory:
        """Run the exported encoder. `Memory.final` is the initial decoder state."""
        found = self.runs["encoder"](source_BS)
        return Memory(*found[: self.shared])._replace(final=tuple(found[self.shared :]))

    def start(self, memory: Memory) -> Any:
        return memory.final

    def decode(self, tokens_BT: Tensor, state: Any, memory: Memory, attention: bool = False) -> Decoded:
        """Decode one token with the exported decoder step."""
        logits_BV, *state = self.runs["step"](tokens_BT, *memory[: self.shared], *state)
        return Decoded(logits_BV[:, None], tuple(state), None)


def exported(task: Translator, batch: Any) -> Exported:
    """Return the encoder, one decoder step, and a script that translates with them.

    `encoder` maps padded `source` tokens `(B, S)` to `states`, `mask`, `keys` (if used) and the initial state
    (`state_0`…). `step` maps a `token` `(B, 1)` and encoder outputs to `logits` `(B, V)` and a new state (`next_0`…).
    """
    net = copy(task.net)
    net._modules = dict(net._modules)
    for name, module in net._modules.items():
        if isinstance(module, RNNEncoder):
            net._modules[name] = Unpacked(module)
    with torch.no_grad():
        memory = net.encode(batch.source, batch.source_lengths.to(batch.source.device))
        state = net.start(memory)
    shared = 2 if memory.keys is None else 3

    def encode(source_BS: Tensor) -> tuple[Tensor, ...]:
        memory = net.encode(source_BS, (source_BS != PAD).sum(dim=1))
        return *memory[:shared], *net.start(memory)

    def step(token_B1: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        decoded = net.decode(token_B1, inputs[shared:], Memory(*inputs[:shared]))
        return decoded.logits[:, -1], *decoded.state

    states = {f"state_{place}": part for place, part in enumerate(state)}
    inputs = {**dict(zip(Memory._fields, memory[:shared], strict=False)), **states}
    grows = any(part.shape[1] == 0 for part in states.values())  # A Transformer's state grows with each token.
    free = dict.fromkeys(Memory._fields, "batch source") | {name: "batch past" for name in states if grows}
    parts = {
        "encoder": Part(net, encode, {"source": batch.source}, list(inputs), {"source": "batch source"}),
        "step": Part(
            net, step, {"token": batch.target[:, :1], **inputs}, ["logits", *(f"next_{n}" for n in range(len(states)))],
            free,
        ),
    }  # fmt: skip

    def difference(runs: Mapping[str, Run], batch: Any, rows: Any) -> float:
        found = task.decoding.search(FromFiles(runs, shared), batch.source, batch.source_lengths)
        before = [score for rank, score in zip(rows["rank"], rows["score"], strict=True) if rank == 1]
        return float((torch.tensor([best[0].score for best in found]) - torch.tensor(before)).abs().max())

    about = {"languages": [task.source_language, task.target_language], "decoding": asdict(task.decoding)}
    script = {name: Path(place).read_text(encoding="utf-8") for name, place in SCRIPT.items()}
    return Exported(parts, difference, "score of a translation", about, script)


SCRIPT: dict[str, str | Path] = {
    "translate.py": Path(__file__).parent / "translate_with_onnx.py",
    "preparation.py": preparation.__file__,  # These two files import nothing from the project.
    "tokens.py": tokens.__file__,
}
