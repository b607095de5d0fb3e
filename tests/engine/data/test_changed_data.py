"""If data was added after training, the random splits are different."""

import pytest
from PIL import Image

from lit_engine.errors import DataError
from picture_data import Witness, small, write


def test_evaluation_on_more_data_warns_and_training_does_not_go_on(tmp_path, trainer, capsys):
    root, checkpoint = tmp_path / "root", tmp_path / "x.ckpt"
    write(root, 5)
    fitted = trainer(max_epochs=1, enable_checkpointing=True)
    fitted.fit(Witness(), datamodule=small(root, test_size=0.2))
    fitted.save_checkpoint(checkpoint)
    # First, the data is unchanged.
    trainer().test(Witness(), datamodule=small(root, test_size=0.2), ckpt_path=checkpoint)
    trainer(max_epochs=2).fit(Witness(), datamodule=small(root, test_size=0.2), ckpt_path=checkpoint)
    assert "since training" not in capsys.readouterr().out
    # one more image
    Image.new("L", (6, 5), 99).save(root / "ant" / "new.png")
    data = small(root, test_size=0.2)
    trainer().test(Witness(), datamodule=data, ckpt_path=checkpoint)
    said = capsys.readouterr().out
    assert "warning: the data changed since training: train had 11 samples and now has 12" in said
    with pytest.raises(DataError, match=r"train had 11 samples and now has 12; start a new run, .* --init_from"):
        trainer(max_epochs=2).fit(Witness(), datamodule=small(root, test_size=0.2), ckpt_path=checkpoint)
