"""Base classes for parallel corpora. They provide batches of encoded pairs, vocabularies and a report."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from lit_engine.data.module import Split, SplitData
from lit_engine.distributed.processes import print_once
from lit_engine.errors import DataError
from lit_project.data.parallel_text.batches import EncodedPairs, EncodedText, PairBatch, TokenBatches
from lit_project.data.parallel_text.filters import CLASSIC_PREFIXES, Overlong, filter_by_length, filter_by_prefix
from lit_project.data.parallel_text.leak_free_split import (
    Pairs,
    drop_shared_sentences,
    leak_free_folds,
    leak_free_split,
)
from lit_project.data.parallel_text.report import describe, lines, pair_texts, unknown_warning
from lit_project.data.parallel_text.vocabularies import Kind, VocabularyOptions, build, from_plain
from lit_project.text.preparation import Preparation
from lit_project.text.tokens import split_words
from lit_project.text.vocabulary import BOS, EOS, Vocabulary


class TranslationData(SplitData):
    """Base class for parallel corpora. Subclasses implement `read`, and `prepare_data` if they download files.

    The vocabularies are built from the training pairs on first access. The properties `vocabularies`, `source_size`,
    `target_size` and `max_source_length` are linked to arguments of the model.

    Args:
        root: data folder. Trained subword models are cached in `root/vocabularies`.
        source: language code of the source, such as `en`.
        target: language code of the target, such as `fr`.
        batch_tokens: maximum number of tokens per micro-batch and process, including padding. Source and target tokens
            are counted separately, and both must stay within the limit. Batches contain pairs of similar length.
        batch_size: pairs per micro-batch and process. Default: 128 if no other size is set.
        global_batch_size: pairs per optimizer step, summed over processes and micro-batches. See `SplitData`.
        eval_batch_tokens: tokens per batch in evaluation. This affects memory and speed, but not results.
        vocabulary: whole words (`word`), or subwords from BPE (`bpe`) or a unigram language model (`unigram`).
        vocabulary_size: number of ids per vocabulary, including four special ids. Default: all words, or 8000 subwords.
        joint: use one subword vocabulary for both languages.
        min_freq: minimum frequency of words in the training pairs. Rarer words are treated as unknown.
        max_length: maximum number of tokens per sentence, excluding BOS and EOS.
        overlong: how to treat training pairs that exceed `max_length`. The number of these pairs is printed. Evaluation
            pairs that are provided separately are never dropped, but their sources are truncated. If evaluation pairs
            are held out from the training pairs, `drop` is applied before the split. In this case, a sentence's length
            is its number of words, plus its number of punctuation marks if `vocabulary` is `word`.
        lowercase: convert both sides to lower case.
        strip_accents: remove accents from both sides.
        space_punctuation: insert spaces between words and punctuation marks.
        prefixes: keep only pairs whose English side (in lower case, without accents) starts with one of these prefixes.
            `classic` selects "I am", "he is" and similar prefixes.
        seed: seed for the order of the training pairs. Default: the seed of `seed_everything`.
        vocabularies: the vocabularies of a checkpoint, as returned by the `vocabularies` property. `vocabulary`,
            `max_length` and the options for text preparation must have the same values as in the checkpoint.
        keep_vocabularies: with `--init_from`, keep that run's vocabularies to continue training on similar data.
            Otherwise, new vocabularies are built, and the embeddings of changed vocabularies are not loaded.
        folds: number of folds, for a corpus without a test split. No sentence occurs in two folds.
        fold: index of the fold that is used as the test split, starting at 0.

    Raises:
        DataError: options conflict, the corpus lacks a language, or `keep_vocabularies` is set without a checkpoint.
    """

    default_batch_size = 128
    LANGUAGES: ClassVar[tuple[str, ...]] = ()  # languages in the corpus; empty if any language is allowed

    def __init__(
        self,
        root: str | Path = "data",
        source: str = "en",
        target: str = "fr",
        batch_tokens: int | None = None,
        batch_size: int | None = None,
        eval_batch_tokens: int = 8000,
        vocabulary: Kind = "word",
        vocabulary_size: int | None = None,
        joint: bool = False,
        min_freq: int = 1,
        max_length: int = 100,
        overlong: Overlong = "drop",
        lowercase: bool = False,
        strip_accents: bool = False,
        space_punctuation: bool = False,
        prefixes: list[str] | Literal["classic"] | None = None,
        seed: int | None = None,
        vocabularies: dict[str, Any] | None = None,
        keep_vocabularies: bool = False,
        global_batch_size: int | None = None,
        folds: int | None = None,
        fold: int = 0,
    ) -> None:
        super().__init__(batch_size, seed=seed, global_batch_size=global_batch_size, folds=folds, fold=fold)
        if source == target or (self.LANGUAGES and not {source, target} <= set(self.LANGUAGES)):
            hint = f"its languages are {', '.join(self.LANGUAGES)}" if self.LANGUAGES else "set two different languages"
            raise DataError(f"{type(self).__name__} has no translations from {source} to {target}: {hint}")
        self.root = Path(root).expanduser()
        self.source, self.target = source, target
        self.batch_tokens, self.eval_batch_tokens = batch_tokens, eval_batch_tokens
        if batch_tokens is not None:
            self.batch_size = batch_size
        self.options = VocabularyOptions(vocabulary, vocabulary_size, joint, min_freq)
        self.overlong = overlong
        self.prefixes: Sequence[str] | None = CLASSIC_PREFIXES if prefixes == "classic" else prefixes
        self.preparation = Preparation(lowercase, strip_accents, space_punctuation)
        for name, value in (("max_length", max_length), ("eval_batch_tokens", eval_batch_tokens)):
            if value < 1:
                raise DataError(f"{name} must be at least 1, got {value}")
        self.max_length = max_length
        self.report: dict[str, Any] = {}  # `setup("fit")` fills in the report.
        if keep_vocabularies and vocabularies is None:
            raise DataError("keep_vocabularies needs a run with vocabularies: set --init_from")
        if vocabularies is not None:
            self._vocabularies = from_plain(vocabularies, (source, target))
            options = {**asdict(self.preparation), "max_length": max_length, "vocabulary": vocabulary}
            saved = {**vocabularies["preparation"], "max_length": vocabularies["max_length"]}
            saved["vocabulary"] = vocabularies["source"]["kind"]
            for name, value in saved.items():
                if options[name] != value:
                    raise DataError(f"{name} is {options[name]}, but the vocabularies of the checkpoint need {value}")
        self._pairs: dict[str, Pairs] = {}  # prepared

    def read(self, split: Split) -> Pairs:
        """Return the raw sentence pairs of a split as (source, target)."""
        raise NotImplementedError

    @cached_property
    def _vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        languages = self.source, self.target
        return build(self.pairs("train"), languages, self.options, self.root / "vocabularies")

    @property
    def source_vocabulary(self) -> Vocabulary:
        return self._vocabularies[0]

    @property
    def target_vocabulary(self) -> Vocabulary:
        return self._vocabularies[1]

    @property
    def vocabularies(self) -> dict[str, Any]:
        """The data needed to convert text to ids and back, as plain Python objects."""
        return {
            "languages": [self.source, self.target],
            "source": self.source_vocabulary.as_dict(),
            "target": self.target_vocabulary.as_dict(),
            "preparation": asdict(self.preparation),
            "max_length": self.max_length,
        }

    @property
    def source_size(self) -> int:
        return len(self.source_vocabulary)

    @property
    def target_size(self) -> int:
        return len(self.target_vocabulary)

    @property
    def max_source_length(self) -> int:
        """Maximum length of an encoded source, including EOS."""
        return self.max_length + 1

    def pairs(self, split: Split) -> Pairs:
        """Return the prepared pairs of a split."""
        if split not in self._pairs:
            self.prepare_data()  # The vocabularies are needed before Lightning calls `prepare_data`.
            raw = self.keep(self.read(split))
            if not raw:
                raise DataError(f"{type(self).__name__}: the {split} split is empty")
            prepare = self.preparation
            self._pairs[split] = [(prepare(source), prepare(target)) for source, target in raw]
        return self._pairs[split]

    def keep(self, pairs: Pairs) -> Pairs:
        """Return the pairs whose English side starts with one of the prefixes."""
        if self.prefixes is None:
            return pairs
        kept = filter_by_prefix(pairs, self.prefixes, self.source, self.target)
        if len(kept) < len(pairs):
            print_once(f"prefixes keep {len(kept):,} of {len(pairs):,} pairs")
        return kept

    def setup(self, stage: str) -> None:
        """Encode the splits that the stage needs, unless they are already encoded. In `fit`, also print the report."""
        super().setup(stage)
        if stage == "fit" and not self.report:
            names: tuple[Split, ...] = ("train", "val", "test")
            waste = self.batch_sampler(self.dataset("train"), "train").padding_waste()
            pairs: dict[str, Pairs] = {name: self.pairs(name) for name in names}
            self.report = describe(pairs, self.splits, waste)
            print_once(lines(self.report))
            if warning := unknown_warning(self.report):
                print_once(warning)

    def batch_sampler(self, dataset: EncodedPairs, split: Split) -> TokenBatches:
        """Return a sampler of this process's batches, which are shuffled in training and sorted by length otherwise."""
        train = split == "train"
        return TokenBatches(
            dataset.source.lengths,
            dataset.target.lengths,
            batch_tokens=self.batch_tokens if train else self.eval_batch_tokens,
            batch_size=self.batch_size if train else None,
            global_batch_size=self.global_batch_size if train else None,
            shuffle=self.shuffles(split),
            **self.rank_settings(),
        )

    def transfer_batch_to_device(self, batch: PairBatch, device: torch.device, dataloader_idx: int) -> PairBatch:
        """Keep the lengths on the CPU, where RNNs and beam search read them."""
        moved = super().transfer_batch_to_device(batch[:1] + batch[2:], device, dataloader_idx)
        return PairBatch(moved[0], batch.source_lengths, *moved[1:])

    def load_split(self, split: Split) -> EncodedPairs:
        """Return the encoded pairs of a split after filtering by length. Evaluation pairs also include their texts."""
        pairs = self.pairs(split)
        train = split == "train"
        sources, targets, long = filter_by_length(
            self.source_vocabulary.encode_all([source for source, _ in pairs]),
            self.target_vocabulary.encode_all([target for _, target in pairs]),
            pairs,
            self.max_length,
            self.overlong if train else None,
        )
        if long:
            what = f"{long:,} of {len(pairs):,} {split} pairs exceed max_length {self.max_length}"
            print_once(f"{what} and were {'dropped' if train and self.overlong == 'drop' else 'truncated'}")
        texts = None if train else pair_texts(pairs, self.pairs("train"), self.preparation)
        source = EncodedText([[*ids, EOS] for ids in sources])
        return EncodedPairs(source, EncodedText([[BOS, *ids, EOS] for ids in targets]), texts)


class CarvedData(TranslationData):
    """Base class for corpora that consist of a single list of pairs. Subclasses implement `pool`.

    No source or target of the validation or test split occurs in train (see `leak_free_split`). The split only
    depends on the pairs that remain after filtering by prefixes and length, not on seeds or the translation direction.

    Args:
        val_size: approximate number of validation pairs. Pairs that share a sentence are always in the same split.
        test_size: approximate number of test pairs, if there are no folds.
        **kwargs: arguments of `TranslationData`.
    """

    def __init__(self, val_size: int = 1000, test_size: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.val_size = val_size
        self.test_size = test_size

    def pool(self) -> Pairs:
        """Return all raw sentence pairs as (source, target)."""
        raise NotImplementedError

    def given_splits(self) -> dict[str, Pairs]:
        """Return the evaluation splits that are provided separately from the pool."""
        return {}

    @cached_property
    def _all_splits(self) -> dict[str, Pairs]:
        given, pool = self.given_splits(), self.keep(self.pool())
        sizes = {"val": self.val_size, "test": self.test_size}
        sizes = {name: size for name, size in sizes.items() if name not in given}
        if sizes and self.overlong == "drop":
            short = [pair for pair in pool if not self._is_overlong(pair)]
            pool = report_dropped(pool, short, f"exceed max_length {self.max_length}")
        if sizes and given:
            others = drop_shared_sentences(pool, [pair for pairs in given.values() for pair in pairs])
            pool = report_dropped(pool, others, "share a sentence with the given evaluation pairs")
        self.total = len(pool)
        if self.folds and "test" in sizes:
            rest, test = self.split_off(leak_free_folds(pool, self.folds))
            given["test"], pool = [pool[i] for i in test], [pool[i] for i in rest]
            del sizes["test"]
        indices = leak_free_split(pool, **sizes)
        return {**{name: [pool[i] for i in own] for name, own in indices.items()}, **given}

    def read(self, split: Split) -> Pairs:
        return self._all_splits[split]

    def _is_overlong(self, pair: tuple[str, str]) -> bool:
        """Return whether either sentence has more than `max_length` words.

        Punctuation marks count as words if the vocabulary consists of words.
        """
        for sentence, language in zip(pair, (self.source, self.target), strict=True):
            if len(sentence) <= self.max_length:  # A sentence never has more words than characters.
                continue
            prepared = self.preparation(sentence)
            words = split_words(prepared, language) if self.options.kind == "word" else prepared.split()
            if len(words) > self.max_length:
                return True
        return False


def report_dropped(pool: Pairs, kept: Pairs, why: str) -> Pairs:
    """Print the number of pairs that are not kept, and return the kept pairs."""
    if dropped := len(pool) - len(kept):
        print_once(f"{dropped:,} of {len(pool):,} pairs {why} and were dropped before the split")
    return kept
