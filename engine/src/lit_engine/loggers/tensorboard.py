"""What the TensorBoard overlay adds to the scalars of image tasks: a grid of training images, and the model's graph."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only


class TensorBoardExtras(Callback):
    """Logs 64 images of the first training batch as a grid (as augmented) and the graph of the model, once."""

    _done = False

    @rank_zero_only
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        writers = [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if self._done or not writers:
            return
        self._done = True
        images = batch[0]
        if images.ndim != 4:  # sentences, or a table
            return
        from torchvision.utils import make_grid

        grid = make_grid(images[:64].float().cpu(), nrow=8)
        for writer in writers:
            writer.add_image("train/images", grid, trainer.global_step)
        if pl_module.device_mesh is None:  # a net that several processes run together is not traced
            modes = {module: module.training for module in pl_module.modules()}  # some may be frozen
            pl_module.eval()  # tracing must not move batch norm statistics
            try:
                for writer in writers:
                    writer.add_graph(pl_module, images[:1])
            except Exception as error:  # a compiled net, or one that torch cannot trace for another reason
                print(f"note: TensorBoard gets no graph of the model: {str(error).strip().splitlines()[0]}", flush=True)
            finally:
                for module, training in modes.items():
                    module.training = training
