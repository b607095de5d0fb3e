"""Tests that the translation task rejects unsuitable vocabularies, languages and inputs, and non-finite outputs."""

import math

import pytest
import torch
from translation_data import SGD, Few, few, net, translator

from lit_engine.errors import CheckpointError, DataError, UserError
from lit_project.models.seq2seq.search import Decoding
from lit_project.tasks.translation.command import translate_all
from lit_project.tasks.translation.figures import Translations
from lit_project.tasks.translation.task import Translator


def test_rejects_a_checkpoint_with_a_different_vocabulary():
    task = translator(few())
    checkpoint = {"hyper_parameters": {"vocabularies": few(lowercase=True).vocabularies}}
    with pytest.raises(CheckpointError, match=r"different vocabulary.*preparation"):
        task.on_load_checkpoint(checkpoint)
    task.on_load_checkpoint({"hyper_parameters": {"vocabularies": few().vocabularies}})


JOINT = {"vocabulary": "bpe", "vocabulary_size": 60, "joint": True}


def test_rejects_the_opposite_direction_even_with_a_joint_vocabulary(tmp_path):
    there = Few(source="en", target="fr", root=tmp_path, **JOINT).vocabularies
    back = Few(source="fr", target="en", root=tmp_path, vocabularies=there, **JOINT)
    task = translator(back)
    with pytest.raises(CheckpointError, match="translates from en to fr, but the data require fr to en"):
        task.on_load_checkpoint({"hyper_parameters": {"vocabularies": there}})
    assert (task.source_language, task.target_language) == ("fr", "en")
    same = Few(source="en", target="fr", root=tmp_path, vocabularies=there, **JOINT)
    translator(same).on_load_checkpoint({"hyper_parameters": {"vocabularies": there}})


def test_two_vocabularies_cannot_share_embeddings():
    with pytest.raises(ValueError, match="shared_embeddings requires a joint vocabulary"):
        Translator(net(few(), shared_embeddings=True), SGD, few().vocabularies)


def test_diverged_net_produces_empty_translations(trainer):
    data = few()
    task = translator(data, decoding=Decoding(beam_size=3))
    with torch.no_grad():
        task.net.output.weight.fill_(float("nan"))
    runner = trainer(callbacks=[Translations(sentences=1)])
    runner.test(task, datamodule=data, verbose=False)
    assert math.isnan(runner.callback_metrics["test/loss"])
    assert runner.callback_metrics["test/bleu"] == 0
    outputs = trainer().predict(task, datamodule=data)
    rows = [row for output in outputs for row in zip(output["hypothesis"], output["score"], strict=True)]
    assert rows == [("", -math.inf)] * 12
    with pytest.raises(UserError, match="not finite"):
        task.translate(["The cat sleeps."])


def test_lone_accent_is_treated_as_empty_text():
    task = translator(few(strip_accents=True))
    found = translate_all(task, ["The cat sleeps.", "\u0301"], Decoding(), 8, print)
    assert [len(best) for best in found] == [1, 0]
    with pytest.raises(DataError, match="the text is empty"):
        task.answer_text("\u0301")


@pytest.mark.parametrize("option", ["max_length", "eval_batch_tokens"])
def test_rejects_lengths_below_one(option):
    with pytest.raises(DataError, match=f"{option} must be at least 1, got 0"):
        few(**{option: 0})
