"""Translates greedily by ONNX: `python translate.py "A sentence."`, with numpy, onnxruntime, perhaps sentencepiece."""

import base64
import json
import sys
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession
from preparation import Preparation
from tokens import join_words, split_words

HERE, (PAD, UNK, BOS, EOS) = Path(__file__).parent, range(4)
TEXT, ABOUT = (json.loads((HERE / f"{name}.json").read_text("utf-8")) for name in ("vocabularies", "model"))
ENCODER, STEP = (InferenceSession(str(HERE / f"{name}.onnx")) for name in ("encoder", "step"))
prepare, source, target = Preparation(**TEXT["preparation"]), TEXT["source"], TEXT["target"]
for sentence in sys.argv[1:]:
    if source["kind"] == "word":
        known = {word: number for number, word in enumerate(source["words"], EOS + 1)}
        ids = [known.get(word, UNK) for word in split_words(prepare(sentence), source["language"])]
    else:  # subwords
        from sentencepiece import SentencePieceProcessor

        ids = SentencePieceProcessor(model_proto=base64.b64decode(source["model"])).Encode(prepare(sentence))
    ids = [*ids[: TEXT["max_length"]], EOS]
    memory, found = ENCODER.run(None, {"source": np.array([ids])}), [BOS]
    names = [one.name for one in STEP.get_inputs()]
    fixed = len([name for name in names[1:] if not name.startswith("state_")])
    state, limit = memory[fixed:], int(len(ids) * ABOUT["decoding"]["max_length_ratio"])
    while found[-1] != EOS and len(found) < limit + ABOUT["decoding"]["max_length_extra"]:
        logits, *state = STEP.run(None, dict(zip(names, [np.array(found[-1:])[:, None], *memory[:fixed], *state])))  # noqa: B905
        logits[:, [PAD, BOS]] = -np.inf
        found.append(int(logits.argmax()))
    found = [number for number in found if number not in (BOS, EOS)]
    if target["kind"] == "word":
        words = ["<pad>", "<unk>", "<s>", "</s>", *target["words"]]
        text = join_words(words[number] for number in found)
    else:
        pieces = SentencePieceProcessor(model_proto=base64.b64decode(target["model"]))
        text = "".join(map(pieces.IdToPiece, found)).replace("▁", " ").strip()
    print(prepare.restore(text))
