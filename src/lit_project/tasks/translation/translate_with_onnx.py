"""Translates the arguments or stdin. This script requires numpy, onnxruntime and, for subwords, sentencepiece."""

import base64
import json
import sys
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession
from preparation import Preparation
from tokens import join_words, split_words

HERE, (PAD, UNK, BOS, EOS) = Path(__file__).parent, range(4)
TEXT, OPTIONS = (json.loads((HERE / "model.json").read_text("utf-8"))[name] for name in ("vocabularies", "decoding"))
ENCODER, STEP = (InferenceSession(str(HERE / f"{name}.onnx")) for name in ("encoder", "step"))
prepare, source, target = Preparation(**TEXT["preparation"]), TEXT["source"], TEXT["target"]
if source["kind"] != "word":  # subwords
    from sentencepiece import SentencePieceProcessor

    read, written = (SentencePieceProcessor(model_proto=base64.b64decode(side["model"])) for side in (source, target))
known = {word: number for number, word in enumerate(source.get("words", ()), EOS + 1)}
for sentence in sys.argv[1:] or sys.stdin.buffer.read().decode("utf-8-sig").removesuffix("\n").split("\n"):
    words = split_words(prepare(sentence), source["language"])
    ids = [known.get(word, UNK) for word in words] if known else read.Encode(prepare(sentence))
    memory = ENCODER.run(None, {"source": np.array([[*ids[: TEXT["max_length"]], EOS]])})
    names, found, n = [one.name for one in STEP.get_inputs()], [BOS], OPTIONS["no_repeat_ngram"]
    fixed = sum(not name.startswith("state_") for name in names[1:])
    state, limit = memory[fixed:], int(memory[0].shape[1] * OPTIONS["max_length_ratio"]) + OPTIONS["max_length_extra"]
    while found[-1] != EOS and len(found) < limit:
        inputs = [np.array([found[-1:]]), *memory[:fixed], *state]
        logits, *state = STEP.run(None, dict(zip(names, inputs, strict=True)))
        seen = [found[i] for i in range(n, len(found)) if n and found[i - n + 1 : i] == found[len(found) - n + 1 :]]
        logits[:, [PAD, BOS, *seen]] = -np.inf
        found.append(int(logits.argmax()))
    found = [number for number in found if number not in (BOS, EOS)]
    if target["kind"] == "word":
        text = join_words(["<unk>", *target["words"]][max(0, number - EOS)] for number in found)
    else:
        text = "".join(map(written.IdToPiece, found)).replace("▁", " ").strip()
    print(prepare.restore(text) if sentence.strip() else "")
