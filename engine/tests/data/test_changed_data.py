"""Adding data after training changes the random splits."""

import pytest

from helpers import Witness
from lit_engine.data.module import SplitData
from lit_engine.errors import DataError
from toy.data import Pictures


def test_evaluating_on_changed_data_warns_and_resuming_training_fails(tmp_path, trainer, capsys):
    checkpoint = tmp_path / "x.ckpt"
    fitted = trainer(max_epochs=1, enable_checkpointing=True)
    fitted.fit(Witness(), datamodule=Pictures())
    fitted.save_checkpoint(checkpoint)
    # First, the data is unchanged.
    trainer().validate(Witness(), datamodule=Pictures(), ckpt_path=checkpoint)
    trainer(max_epochs=2).fit(Witness(), datamodule=Pictures(), ckpt_path=checkpoint)
    assert "since training" not in capsys.readouterr().out
    trainer().validate(Witness(), datamodule=Pictures(size=24), ckpt_path=checkpoint)
    said = capsys.readouterr().out
    assert "warning: the data changed since training: val had 11 samples and now has 12" in said
    with pytest.raises(DataError, match=r"train had 23 samples and now has 24, .*; start a new run, .*\(--init_from\)"):
        trainer(max_epochs=2).fit(Witness(), datamodule=Pictures(size=24), ckpt_path=checkpoint)


class Held(SplitData):
    """Holds out a random test split."""

    batch = staticmethod(lambda values, indices: values)

    def __init__(self, size=40):
        super().__init__(batch_size=10)
        rest, test = self.hold_out(size, 10)
        self.chosen = {"train": rest[:20], "val": rest[20:30], "test": test}

    def load(self, split):
        return (self.chosen[split].float(),)


def test_a_test_warns_if_the_data_changed_but_not_the_size_of_the_test_split(tmp_path, trainer, capsys):
    fitted = trainer(max_epochs=1, enable_checkpointing=True)
    fitted.fit(Witness(), datamodule=Held())
    fitted.save_checkpoint(tmp_path / "x.ckpt")
    for size in (40, 41):
        trainer().test(Witness(), datamodule=Held(size), ckpt_path=tmp_path / "x.ckpt")
        said = "the dataset had 40 samples and now has 41; if splits are random, the test split may contain"
        assert (said in capsys.readouterr().out) == (size == 41)
