"""Tests the translation task: exact gradients and metrics, schedules, and self-contained checkpoints."""

import math
from copy import deepcopy
from functools import partial

import pytest
import sacrebleu
import torch
from torch.distributions import Categorical, kl_divergence
from torch.nn import functional as F
from translation_data import few, translator

from lit_engine.callbacks.averaging import EMA
from lit_project.models.seq2seq.search import Decoding
from lit_project.tasks.translation.figures import Translations
from lit_project.tasks.translation.task import is_best
from lit_project.text.vocabulary import EOS, PAD, UNK
from saving import SaveAt
from translation_run import SIZES


def weights(task):
    return {name: value.clone() for name, value in task.net.state_dict().items()}


def difference(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def trained(trainer, data, dropout=0.0, options=None, **kwargs):
    task = translator(data, dropout=dropout, **(options or {}))
    trainer(**{"max_epochs": 1, "limit_val_batches": 0, **kwargs}).fit(task, datamodule=data)
    return weights(task)


@pytest.mark.parametrize(
    ("split", "options"),
    [
        ({"batch_size": 3}, {"label_smoothing": 0.1}),
        ({"batch_tokens": 23}, {}),
        ({"batch_size": 3}, {"r_drop": 5.0}),
    ],
)
def test_micro_batches_of_any_size_compute_the_gradient_of_the_full_batch(trainer, split, options):
    whole = trained(trainer, few(batch_size=20), options=options)
    parts = trained(trainer, few(**split), options=options, accumulate_grad_batches=100)
    assert difference(whole, weights(translator(few()))) > 1e-3  # training changes the weights
    assert difference(whole, parts) < 1e-12


def test_r_drop_adds_the_divergence_of_two_passes_to_the_loss(trainer):
    data, seen = few(batch_size=20), []
    task = translator(data, dropout=0.3, r_drop=6.0, label_smoothing=0.1)
    net = deepcopy(task.net).train()
    task.net.register_forward_pre_hook(lambda _, args: seen.append((torch.get_rng_state(), args)))
    runner = trainer(max_steps=1, limit_val_batches=0)
    runner.fit(task, datamodule=data)

    [(state, (source, lengths, inputs, _))] = seen
    assert torch.equal(source[:20], source[20:])
    labels = F.pad(inputs[:, 1:], (0, 1))
    labels.scatter_(1, ((inputs != PAD) & (inputs != EOS)).sum(dim=1, keepdim=True) - 1, EOS)
    torch.set_rng_state(state)
    logits = net(source, lengths, inputs)
    real = labels[:20] != PAD
    entropy = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=0.1)
    first, second = Categorical(logits=logits[:20]), Categorical(logits=logits[20:])
    both = (kl_divergence(first, second) + kl_divergence(second, first))[real].mean()
    (entropy + 6 / 4 * both).backward()
    assert both > 0.01
    with torch.no_grad():
        for weight in net.parameters():
            weight -= 0.5 * weight.grad
    assert difference(net.state_dict(), weights(task)) < 1e-12
    assert runner.callback_metrics["train/loss"].item() == pytest.approx(entropy.item(), rel=1e-6)
    right = (logits.argmax(dim=-1) == labels)[labels != PAD].double().mean().item()
    assert runner.callback_metrics["train/token_accuracy"].item() == pytest.approx(right, rel=1e-6)


def test_evaluation_matches_a_sentence_by_sentence_computation(trainer):
    data = few(eval_batch_tokens=40)
    task = translator(data, decoding=Decoding(beam_size=2))
    runner = trainer()
    runner.test(task, datamodule=data, verbose=False)
    found = {name: value.item() for name, value in runner.callback_metrics.items()}
    losses, right = [], []
    for source, target in data.pairs("test"):
        ids = [2, *data.target_vocabulary.encode(target), 3]
        words = torch.tensor([[*data.source_vocabulary.encode(source), 3]])
        with torch.no_grad():
            logits = task.net(words, torch.tensor([words.shape[1]]), torch.tensor([ids[:-1]]))[0]
        losses += F.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none").tolist()
        right += (logits.argmax(dim=-1) == torch.tensor(ids[1:])).tolist()
    mean = sum(losses) / len(losses)
    assert found["test/tokens"] == len(losses)
    assert found["test/samples"] == 12
    assert found["test/loss"] == pytest.approx(mean, rel=1e-5)
    assert found["test/perplexity"] == pytest.approx(math.exp(found["test/loss"]), rel=1e-12)
    assert found["test/token_accuracy"] == pytest.approx(sum(right) / len(right), rel=1e-5)
    hypothesis = {row.text.source: row.hypothesis for row in task.rows}
    references = {}
    for source, target in data.pairs("test"):
        references.setdefault(source, []).append(target)
    assert sorted(map(len, references.values())) == [1] * 8 + [2] * 2
    streams = [[own[i] if i < len(own) else None for own in references.values()] for i in (0, 1)]
    several = sacrebleu.BLEU().corpus_score([hypothesis[s] for s in references], streams).score
    single = sacrebleu.CHRF().corpus_score(
        [hypothesis[s] for s, _ in data.pairs("test")], [[t for _, t in data.pairs("test")]]
    )
    assert found["test/bleu"] == pytest.approx(several, abs=1e-4)
    assert found["test/chrf_single"] == pytest.approx(single.score, abs=1e-4)
    copied = sacrebleu.CHRF().corpus_score(list(references), streams).score
    assert found["test/chrf_copy"] == pytest.approx(copied, abs=1e-4)
    assert found["test/bleu_memory"] == 0  # no test source occurs in train
    assert task.notes["signatures"]["bleu"].startswith("nrefs:var")
    assert sum(count for _, _, count in task.by_length) == len(references)
    assert list(task.notes["bleu_by_length"]) == [words for words, _, _ in task.by_length]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 1.5}, r"label_smoothing must be in \[0, 1\], got 1.5"),
        ({"r_drop": -1.0}, "r_drop must be at least 0"),
        ({"r_drop": 5.0, "teacher_forcing_ratio": 0.5}, "set teacher_forcing_ratio to 1.0"),
    ],
)
def test_invalid_loss_options_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        translator(few(), **options)


def test_teacher_forcing_ratio_is_interpolated_between_its_points():
    data = few()
    task = translator(data, teacher_forcing_ratio=[(10, 1.0), (20, 0.5), (40, 0.0)])
    found = [task.teacher_forcing(step) for step in (0, 10, 15, 20, 30, 40, 99)]
    assert found == pytest.approx([1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    assert translator(data, teacher_forcing_ratio=0.3).teacher_forcing(7) == 0.3


def test_each_training_step_uses_its_scheduled_ratio(trainer, monkeypatch):
    data = few(batch_size=20)
    task = translator(data, teacher_forcing_ratio=[(0, 1.0), (4, 0.6)])
    ratios, forward = [], type(task.net).forward

    def noted(net, *args):
        ratios.append(args[3])
        return forward(net, *args)

    monkeypatch.setattr(type(task.net), "forward", noted)
    trainer(max_epochs=3, limit_val_batches=0).fit(task, datamodule=data)
    assert ratios == pytest.approx([1 - 0.1 * step for step in range(len(ratios))])
    assert len(ratios) == 3


def test_resuming_mid_epoch_is_exact(trainer, seed_run, tmp_path):
    def make():
        seed_run(1)
        data = few(batch_size=7)
        options = {"optimizer": partial(torch.optim.AdamW, lr=0.01), "teacher_forcing_ratio": 0.5}
        return translator(data, dropout=0.3, **options), data

    whole, data = make()
    trainer(max_epochs=3, callbacks=[SaveAt(5, tmp_path / "saved.ckpt")]).fit(whole, datamodule=data)
    resumed, data = make()
    torch.rand(5)
    trainer(max_epochs=3).fit(resumed, datamodule=data, ckpt_path=tmp_path / "saved.ckpt", weights_only=True)
    assert difference(weights(whole), weights(resumed)) == 0


def test_prediction_returns_ranked_rows(trainer):
    data = few()
    task = translator(data, decoding=Decoding(beam_size=3, n_best=2))
    outputs = trainer().predict(task, datamodule=data)
    rows = [dict(zip(output, row, strict=True)) for output in outputs for row in zip(*output.values(), strict=True)]
    assert sorted((row["index"], row["rank"]) for row in rows) == [(i, r) for i in range(12) for r in (1, 2)]
    by_index = {(row["index"], row["rank"]): row for row in rows}
    assert all(by_index[i, 1]["score"] >= by_index[i, 2]["score"] for i in range(12))
    pairs = data.pairs("test")
    assert by_index[3, 1]["source"] == pairs[3][0]
    assert by_index[0, 1]["references"].split(" | ") == [pairs[0][1], pairs[10][1]]


def test_attention_maps_come_from_the_averaged_net(trainer):
    drawn = []

    class Watched(Translations):
        def _draw_attention(self, trainer, rows, name, tag):
            drawn[:] = [(row, row.attention[2]) for row in rows[: self.sentences]]

    data = few(batch_size=5, seed=1)
    task = translator(data)
    callbacks = [Watched(sentences=3, every_n_epochs=100), EMA(decay=0.9)]
    trainer(max_epochs=-1, max_steps=8, callbacks=callbacks).fit(task, datamodule=data)
    # At the end of training, the task has the averaged weights.
    assert [row.index for row, _ in drawn] == [0, 1, 2]
    for row, weights_TS in drawn:
        assert torch.equal(weights_TS, task.attention(row.text.source, row.tokens)[2])


def test_translate_accepts_raw_text_unknown_words_and_long_sentences():
    data = few(max_length=4)
    task = translator(data)
    found = task.translate(["The cat sleeps.", "Zyzzyva!", "a b c d e f g h i j"])
    assert [len(one) for one in found] == [1, 1, 1]
    assert task.translate([]) == []
    assert task.encode(["a b c d e f g h i j"])[1].tolist() == [5]  # four words and EOS
    source, target, attention = task.attention("The cat sleeps.", found[0][0].tokens)
    assert attention.shape == (len(target), len(source))
    assert attention.sum(dim=1).tolist() == pytest.approx([1.0] * len(target))


def test_warm_start_keeps_the_pretrained_vocabulary_only_on_request(lit, workspace):
    small = f"-c configs/overlays/debug.yaml --model.net.hidden_size=16 --model.net.embedding_size=8 {SIZES}"
    first = lit(f"fit -c configs/translation_quickstart.yaml {small} --test_after_fit=false --run_name=one")
    # This data has a smaller vocabulary.
    other = f"{small} --data.size=300 --data.val_size=20 --data.test_size=20 --test_after_fit=false --run_name=two"
    fit = f"fit -c configs/translation_quickstart.yaml {other}"
    second = lit(f"{fit} --init_from {first.run} --data.keep_vocabularies=true")
    assert second.status == 0, second.err
    assert "missing" not in second.out
    third = lit(f"{fit.replace('two', 'three')} --init_from {first.run} --model.optimizer.lr=0")
    assert "not loaded, because they belong to different data: " in third.out, third.err
    one, two, three = (
        torch.load(run / "checkpoints" / "last.ckpt", weights_only=True) for run in (first.run, second.run, third.run)
    )
    vocabularies = [content["hyper_parameters"]["vocabularies"] for content in (one, two, three)]
    assert vocabularies[0] == vocabularies[1] != vocabularies[2]
    best = torch.load(next((first.run / "checkpoints").glob("best*")), weights_only=True)["state_dict"]
    same = [name for name, value in three["state_dict"].items() if torch.equal(value, best.get(name, value + 1))]
    assert set(best) - set(same) == {name for name in best if "embedding" in name or "output" in name}
    assert lit(f"test --run {second.run}").status == 0
    refused = lit(f"{fit.replace('two', 'four')} --data.keep_vocabularies=true")
    assert (refused.status, "keep_vocabularies needs a run" in refused.err) == (2, True)


def test_unknown_words_never_count_as_correct(trainer):
    data = few(vocabulary_size=5)  # four special tokens and one word
    task, runner = translator(data), trainer()
    with torch.no_grad():
        task.net.output.bias[UNK] = 100.0
    runner.validate(task, datamodule=data, verbose=False)
    assert runner.callback_metrics["val/token_accuracy"] == 0


def test_is_best_matches_argmax():
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        logits, labels = torch.randn(8, 50, 9).to(dtype), torch.randint(0, 9, (8, 50))
        assert torch.equal(is_best(logits, labels), logits.argmax(dim=-1) == labels)
    tied, labels = torch.tensor([[[1.0, 3.0, 3.0]] * 3]), torch.tensor([[0, 1, 2]])
    assert is_best(tied, labels).tolist() == [[False, True, True]]
    assert is_best(tied.bfloat16(), labels).tolist() == [[False, True, False]]  # like argmax, which returns the first
    assert not is_best(torch.full((1, 1, 3), math.nan), labels[:, :1]).any()


def test_losses_of_half_precision_logits_are_summed_in_float32(trainer):
    losses = []
    for convert in (torch.Tensor.bfloat16, lambda logits: logits.bfloat16().float()):
        data, runner = few(batch_size=20), trainer(max_steps=1, limit_val_batches=0)
        task = translator(data, label_smoothing=0.1)
        task.net.register_forward_hook(lambda _, args, logits, convert=convert: convert(logits))
        runner.fit(task, datamodule=data)
        losses.append(runner.callback_metrics["train/loss"].item())
    assert losses[0] == losses[1] != 0


def test_validation_loss_excludes_label_smoothing(trainer):
    losses = []
    for smoothing in (0.0, 0.3):
        data, runner = few(), trainer()
        runner.validate(translator(data, label_smoothing=smoothing), datamodule=data, verbose=False)
        losses.append(runner.callback_metrics["val/loss"].item())
    assert losses[0] == losses[1]


def test_translating_does_not_change_the_training_mode_of_any_module():
    task = translator(few(), dropout=0.3).train()
    task.net.encoder.eval()  # as if the encoder were frozen
    before = [module.training for module in task.modules()]
    task.translate(["The cat sleeps."])
    task.attention("The cat sleeps.", [5, 6])
    assert [module.training for module in task.modules()] == before
    assert any(before)
