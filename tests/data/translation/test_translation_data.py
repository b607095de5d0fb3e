"""Parallel corpora as data modules: batches, vocabularies, overlong sentences, texts, report, resume."""

import random

import pytest
import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningModule, Trainer

from lit_project.data import ParallelText, ToyGrammar
from lit_project.data.translation import TranslationData
from lit_project.data.translation.encoded import EncodedText
from lit_project.errors import DataError
from lit_project.text import BOS, EOS, PAD, UNK, Vocabulary


def toy(tmp_path, **options):
    return ToyGrammar(**{"root": tmp_path, "size": 900, "val_size": 60, "test_size": 60, "seed": 1, **options})


@pytest.fixture
def corpus(tmp_path):
    """Writes pairs to a file and makes data of it; 40 single pairs are there to be carved."""

    def corpus(pairs, **options):
        lines = [f"{s}\t{t}" for s, t in [*pairs, *((f"filler {i}", f"bourre {i}") for i in range(40))]]
        (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
        sizes = {"val_size": 5, "test_size": 5, "seed": 1}
        if options.pop("held_out", False):  # nothing of `pairs` leaves train
            (tmp_path / "other.tsv").write_text("filler\tbourre\n")
            options["val"] = options["test"] = str(tmp_path / "other.tsv")
        return ParallelText(str(tmp_path / "train.tsv"), root=tmp_path, **{**sizes, **options})

    return corpus


def test_padding_by_indexing():
    generator = random.Random(0)
    sentences = [[generator.randrange(4, 90) for _ in range(generator.randrange(1, 9))] for _ in range(50)]
    text = EncodedText(sentences)
    indices = torch.tensor([49, 3, 3, 0])
    padded = text.padded(indices)
    assert padded.dtype == torch.int64
    assert padded.shape == (4, max(len(sentences[i]) for i in indices))
    for row, i in zip(padded.tolist(), indices.tolist(), strict=True):
        assert row == sentences[i] + [PAD] * (padded.shape[1] - len(sentences[i]))


def test_batches_hold_the_pairs(tmp_path):
    data = toy(tmp_path, batch_tokens=300)
    data.setup("fit")
    pairs, seen = data.pairs("train"), []
    for batch in data.train_dataloader():
        assert batch.texts is None
        assert batch.source.numel() <= 300
        assert batch.target.numel() <= 300
        for row, index in enumerate(batch.indices.tolist()):
            source, target = batch.source[row].tolist(), batch.target[row].tolist()
            length = int(batch.source_lengths[row])
            assert source[length - 1] == EOS
            assert set(source[length:]) <= {PAD}
            assert target[0] == BOS
            assert target.count(EOS) == 1
            assert data.source_vocabulary.decode(source) == pairs[index][0]
            assert data.target_vocabulary.decode(target) == pairs[index][1]
        seen += batch.indices.tolist()
    assert sorted(seen) == list(range(data.size_of("train")))


@pytest.mark.parametrize("split", ["val", "test"])
def test_evaluation_batches_hold_text(tmp_path, split):
    data = toy(tmp_path)
    data.setup("validate" if split == "val" else "test")
    loader = data.val_dataloader() if split == "val" else data.test_dataloader()
    seen = 0
    for batch in loader:
        for text, index in zip(batch.texts, batch.indices.tolist(), strict=True):
            assert (text.source, text.target) == data.pairs(split)[index]
            assert text.references == [text.target]
            assert text.memory == ""
            seen += 1
    assert seen == data.size_of(split) >= 60


def test_references_and_memory(corpus, tmp_path):
    (tmp_path / "test.tsv").write_text("Hi !\tSalut !\nHi !\tCoucou !\nHi !\tSalut !\nNo\tNon\n")
    train = [("Hi!", "Allô !"), ("Hi !", "Bonjour"), ("Hi!", "Salut !"), ("Hi!", "Salut!")]
    data = corpus(train, test=str(tmp_path / "test.tsv"), space_punctuation=True)
    data.setup("test")
    texts = {}
    for batch in data.test_dataloader():
        texts.update(zip(batch.indices.tolist(), batch.texts, strict=True))
    assert texts[0].source == "Hi!"
    assert texts[1].target == "Coucou!"
    assert texts[0].references == texts[1].references == ["Salut!", "Coucou!"]
    assert texts[0].memory == "Salut!"
    assert texts[3].references == ["Non"]
    assert texts[3].memory == ""


def test_the_earliest_of_equally_frequent_translations_is_remembered(corpus, tmp_path):
    (tmp_path / "test.tsv").write_text("Hi\tX\n")
    data = corpus([("Hi", "B"), ("Hi", "A"), ("Hi", "A"), ("Hi", "B")], test=str(tmp_path / "test.tsv"))
    data.setup("test")
    assert next(iter(data.test_dataloader())).texts[0].memory == "B"


def test_report(tmp_path, capsys):
    data = toy(tmp_path)
    data.setup("fit")
    nothing = {"sources": 0, "targets": 0, "pairs": 0}
    assert data.report["overlap_with_train"] == {"val": nothing, "test": nothing}
    assert sum(own["pairs"] for own in data.report["splits"].values()) == 900
    assert data.report["unknown"]["train"] == {"source": 0, "target": 0}
    assert 0 <= data.report["padding"]["target"] < 0.5
    printed = capsys.readouterr().out
    assert "also in train of test: 0 sources, 0 targets, 0 pairs" in printed
    assert "padding" in printed


def test_vocabularies_see_train_only(tmp_path):
    data = toy(tmp_path, size=300, val_size=30, test_size=30)
    words = {word for source, _ in data.pairs("train") for word in source.lower().rstrip(".").split()}
    known = {word.replace("￭", "").lower() for word in data.vocabularies["source"]["words"]}
    assert known - {"."} == words
    assert data.source_size == len(data.vocabularies["source"]["words"]) + 4
    assert data.max_source_length == data.max_length + 1


@pytest.mark.parametrize("options", [{}, {"vocabulary": "bpe", "vocabulary_size": 120, "joint": True}])
def test_vocabularies_of_a_checkpoint_win(tmp_path, options):
    data = toy(tmp_path, lowercase=True, max_length=7, **options)
    torch.save(data.vocabularies, tmp_path / "a.ckpt")
    plain = torch.load(tmp_path / "a.ckpt", weights_only=True)
    again = toy(tmp_path, size=300, val_size=20, test_size=20, vocabularies=plain)
    assert again.vocabularies == data.vocabularies
    assert again.preparation == data.preparation
    assert (again.source_size, again.target_size, again.max_source_length) == (data.source_size, data.target_size, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plain: plain.pop("target"), "must hold"),
        (lambda plain: plain["source"].update(kind="letters"), "kind"),
        (lambda plain: plain["source"].update(language="de"), "source vocabulary of the checkpoint is de.*is en"),
        (lambda plain: plain["preparation"].update(shout=True), "shout"),
    ],
)
def test_vocabularies_that_do_not_fit(tmp_path, change, message):
    plain = toy(tmp_path).vocabularies
    change(plain)
    with pytest.raises(DataError, match=message):
        toy(tmp_path, vocabularies=plain)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_subword_models_are_kept_as_files(tmp_path, kind):
    options = {"vocabulary": kind, "vocabulary_size": 100}
    first = toy(tmp_path, **options)
    assert (first.source_size, first.target_size) == (100, 100)
    files = sorted((tmp_path / "vocabularies").iterdir())
    assert len(files) == 2
    times = [file.stat().st_mtime_ns for file in files]
    assert toy(tmp_path, **options).vocabularies == first.vocabularies
    assert [file.stat().st_mtime_ns for file in files] == times
    files[0].write_bytes(b"cut short")
    assert toy(tmp_path, **options).vocabularies == first.vocabularies
    assert toy(tmp_path, **{**options, "vocabulary_size": 105}).source_size == 105


def test_joint_subwords_are_one_vocabulary(tmp_path):
    data = toy(tmp_path, vocabulary="bpe", vocabulary_size=150, joint=True)
    assert data.source_vocabulary is data.target_vocabulary
    assert Vocabulary.from_dict(data.vocabularies["source"]).language == "en+fr"


LONG = [("a b c d e f", "g h"), ("i", "j k l m n o"), ("p q", "r s")]


def test_overlong_training_pairs_are_dropped_and_counted(corpus, capsys):
    data = corpus(LONG, held_out=True, max_length=4)
    data.setup("fit")
    assert data.report["overlong"]["train"] == {"dropped": 2, "truncated": 0}
    assert data.size_of("train") == len(data.pairs("train")) - 2
    assert "2 of 43 train pairs exceed max_length 4 and were dropped" in capsys.readouterr().out


def test_overlong_training_pairs_can_be_truncated(corpus, capsys):
    data = corpus(LONG, held_out=True, max_length=4, overlong="truncate")
    data.setup("fit")
    assert data.report["overlong"]["train"] == {"dropped": 0, "truncated": 2}
    assert data.size_of("train") == len(data.pairs("train"))
    source, target = data.splits["train"]
    assert (int(source.lengths.max()), int(target.lengths.max())) == (5, 6)
    assert "were truncated" in capsys.readouterr().out


def test_overlong_training_pairs_can_be_an_error(corpus):
    with pytest.raises(DataError, match=r"2 of 43 .*max_length 4.*6 and 2 tokens: 'a b c d e f', 'g h'"):
        corpus(LONG, held_out=True, max_length=4, overlong="error").setup("fit")


def test_max_length_that_leaves_nothing(corpus):
    with pytest.raises(DataError, match="drops all"):
        corpus([], max_length=1).setup("fit")


@pytest.mark.parametrize("overlong", ["drop", "truncate", "error"])
def test_evaluation_pairs_are_never_dropped(corpus, tmp_path, capsys, overlong):
    (tmp_path / "test.tsv").write_text("\n".join(f"{s}\t{t}" for s, t in LONG) + "\n")
    data = corpus([], max_length=4, overlong=overlong, test=str(tmp_path / "test.tsv"))
    data.setup("test")
    assert data.size_of("test") == 3
    source, target = data.splits["test"]
    assert source.lengths.tolist() == [5, 2, 3]
    assert target.lengths.tolist() == [4, 8, 4]
    assert "1 of 3 test pairs exceed max_length 4 and were truncated" in capsys.readouterr().out


def test_words_never_seen_are_counted(corpus, tmp_path):
    (tmp_path / "val.tsv").write_text("filler unheard\tinouï\n")
    data = corpus([], val=str(tmp_path / "val.tsv"), test_size=1)
    data.setup("fit")
    assert data.splits["val"][0].flat.tolist()[1] == UNK
    assert data.report["unknown"]["val"] == {"source": 0.5, "target": 1.0}


def test_prefixes_keep_the_english_side(corpus):
    pairs = [(f"I'm {i}", f"Je suis {i}") for i in range(20)] + [("É I am", "x"), ("i am z", "y"), ("He isn't", "z")]
    kept = corpus(pairs, prefixes="classic", val_size=2, test_size=2)
    found = [pair for split in ("train", "val", "test") for pair in kept.pairs(split)]
    assert sorted(found) == sorted([*pairs[:20], pairs[21], pairs[22]])
    assert len(corpus(pairs, prefixes=["e i"], val_size=0, test_size=0).pairs("train")) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefixes": ["zebra"]}, "zebra"),
        ({"prefixes": "classic", "source": "de"}, "prefixes.*de-fr"),
    ],
)
def test_prefixes_that_keep_nothing(corpus, options, message):
    with pytest.raises(DataError, match=message):
        corpus([], **options).setup("fit")


def test_training_continues_at_its_position(tmp_path):
    whole, first, second = (toy(tmp_path, batch_size=32) for _ in range(3))
    for data in (whole, first, second):
        data.setup("fit")
    batches = [batch.indices.tolist() for batch in whole.train_dataloader()]
    iterator = iter(first.train_dataloader())
    for _ in range(4):
        next(iterator)
    second._resume = first.state_dict()
    assert [batch.indices.tolist() for batch in second.train_dataloader()] == batches[4:]


class Listener(LightningModule):
    """Trains nothing; keeps which pairs it was shown, by epoch."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.shown = {"train": {}, "val": {}}

    def training_step(self, batch):
        self.shown["train"].setdefault(self.current_epoch, []).extend(batch.indices.tolist())
        return self.weight.sum()

    def validation_step(self, batch):
        assert len(batch.texts) == len(batch.indices)
        self.shown["val"].setdefault(self.current_epoch, []).extend(batch.indices.tolist())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def test_lightning_shows_every_pair_once_an_epoch(tmp_path):
    data, model = toy(tmp_path, batch_tokens=400), Listener()
    Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0,
    ).fit(model, datamodule=data)  # fmt: skip
    first, second = model.shown["train"][0], model.shown["train"][1]
    assert sorted(first) == sorted(second) == list(range(data.size_of("train")))
    assert first != second
    assert sorted(model.shown["val"][1]) == list(range(data.size_of("val")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "de"}, "no translations from en to de: it has en, fr"),
        ({"target": "en"}, "from en to en"),
        ({"batch_tokens": 10, "batch_size": 10}, "not both"),
        ({"batch_tokens": 0}, "batch_tokens must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"eval_batch_tokens": 0}, "eval_batch_tokens must be"),
        ({"max_length": 0}, "max_length must be"),
        ({"overlong": "shorten"}, "shorten"),
        ({"vocabulary": "letters"}, "letters"),
        ({"vocabulary_size": 4}, "vocabulary_size"),
        ({"min_freq": 0}, "min_freq"),
        ({"joint": True}, "joint"),
        ({"vocabulary": "bpe", "min_freq": 2}, "min_freq"),
    ],
)
def test_impossible_options(tmp_path, options, message):
    with pytest.raises(DataError, match=message):
        toy(tmp_path, **options)


def test_two_languages_of_user_data_differ(corpus):
    with pytest.raises(DataError, match="two different"):
        corpus([], source="fr")


def test_a_config_can_say_it_all(tmp_path):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(TranslationData, "data")
    config = {
        "class_path": "lit_project.data.ParallelText",
        "init_args": {"train": ["a.en", "a.fr"], "prefixes": "classic", "batch_tokens": 99, "root": str(tmp_path)},
    }
    data = parser.instantiate(parser.parse_object({"data": config})).data
    assert isinstance(data, ParallelText)
    assert (data.batch_tokens, data.batch_size) == (99, None)
