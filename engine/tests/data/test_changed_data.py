"""Adding data after training changes the random splits."""

import pytest

from helpers import Witness
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
