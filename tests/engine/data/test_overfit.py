"""`overfit_batches` of the Trainer: the same few batches in every epoch, whatever the data are made of."""

import pytest

from picture_data import Pictures, Witness, small, write


@pytest.mark.parametrize("kind", ["in memory", "files"])
def test_each_epoch_has_the_same_batches(tmp_path, trainer, kind):
    if kind == "files":
        write(tmp_path / "root", 7)
        data = small(tmp_path / "root", test_size=0.2)
    else:
        data = Pictures(batch_size=5)
    witness = Witness()
    trainer(max_epochs=3, overfit_batches=2).fit(witness, datamodule=data)
    batches = [batch.indices.tolist() for batch in witness.batches["train"]]
    assert len(batches) == 6
    assert batches[:2] == batches[2:4] == batches[4:] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
