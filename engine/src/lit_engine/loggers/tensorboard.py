"""Callback of the TensorBoard overlay that adds a grid of training images and the graph of the model to the scalars."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only


class TensorBoardExtras(Callback):
    """Callback that logs the model's graph and a grid of 64 augmented images from the first training batch, once."""

    _done = False

    @rank_zero_only
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        writers = [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if self._done or not writers:
            return
        self._done = True
        images = batch[0]
        if images.ndim != 4:  # not images, but sentences or a table
            return
        from torchvision.utils import make_grid

        grid = make_grid(images[:64].float().cpu(), nrow=8)
        for writer in writers:
            writer.add_image("train/images", grid, trainer.global_step)
        if pl_module.device_mesh is None:  # a model sharded over processes is not traced
            modes = {module: module.training for module in pl_module.modules()}  # frozen ones are in evaluation mode
            pl_module.eval()  # tracing must not update batch norm statistics
            try:
                for writer in writers:
                    writer.add_graph(pl_module, images[:1])
            except Exception as error:  # torch cannot trace every model, such as a compiled one
                print(f"note: no model graph for TensorBoard: {str(error).strip().splitlines()[0]}", flush=True)
            finally:
                for module, training in modes.items():
                    module.training = training
