"""Data that have become more since a run was trained: its carved splits are not these ones."""

import pytest
from PIL import Image

from lit_project.engine.errors import DataError
from picture_data import Witness, small, write


@pytest.fixture
def run(tmp_path, trainer):
    """The folder of images, and a checkpoint of a training on them."""
    root = tmp_path / "root"
    write(root, 5)
    fitted = trainer(max_epochs=1, enable_checkpointing=True)
    fitted.fit(Witness(), datamodule=small(root, test_size=0.2))
    fitted.save_checkpoint(tmp_path / "x.ckpt")
    return root, tmp_path / "x.ckpt"


def test_the_same_data_are_tested_and_trained_on_without_a_word(run, trainer, capsys):
    root, checkpoint = run
    trainer().test(Witness(), datamodule=small(root, test_size=0.2), ckpt_path=checkpoint)
    trainer(max_epochs=2).fit(Witness(), datamodule=small(root, test_size=0.2), ckpt_path=checkpoint)
    assert "trained on" not in capsys.readouterr().out


def test_evaluation_on_more_data_warns_and_training_does_not_go_on(run, trainer, capsys):
    root, checkpoint = run
    Image.new("L", (6, 5), 99).save(root / "ant" / "new.png")
    data = small(root, test_size=0.2)
    trainer().test(Witness(), datamodule=data, ckpt_path=checkpoint)
    said = capsys.readouterr().out
    assert "warning: the data are not those that the run was trained on: train had 11 and has 12 samples" in said
    with pytest.raises(DataError, match=r"train had 11 and has 12 samples; begin a new run, .* --init_from"):
        trainer(max_epochs=2).fit(Witness(), datamodule=small(root, test_size=0.2), ckpt_path=checkpoint)
