"""Load the task, the data and a trainer of a run, to predict with them elsewhere."""

from lightning.pytorch import LightningDataModule

from lit_engine.checkpoints.choose import choose_checkpoint
from lit_engine.checkpoints.io import known
from lit_engine.classes.names import here, import_named
from lit_engine.data.module import made
from lit_engine.project import current
from lit_engine.run.directory import RunDir
from lit_engine.training.task import Task


def load_model(run: RunDir, which: str = "best") -> Task:
    """Return the task of a checkpoint on the CPU, in evaluation mode.

    The modules that the config of the run names are imported.

    Args:
        run: the run.
        which: the checkpoint, see `choose_checkpoint`.

    Raises:
        RunError: there is no such checkpoint.
        CheckpointError: it is damaged, or of a different model.
    """
    import_named(run.config_file)
    return Task.load_from_checkpoint(choose_checkpoint(run, which)).eval()


def load_data(run: RunDir, stage: str = "test") -> LightningDataModule:
    """Return the data module of a run, set up for a stage (`fit`, `validate`, `test`).

    Values that missing data cannot provide, such as vocabularies, come from the best checkpoint.

    Raises:
        DataError: the data are missing.
    """
    config = here(run.config()["data"])
    given = config.get("init_args", {})
    for name in current().links:
        if name in given and given[name] is None:
            given[name] = known(choose_checkpoint(run), name)
    data = made(config)
    data.prepare_data()
    data.setup(stage)
    return data
