"""Callback for the `tensorboard` overlay. It logs the config, training images and the model's graph."""

import warnings
from pathlib import Path
from typing import Any

from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.jit import TracerWarning

from lit_engine.run.directory import RunDir
from lit_engine.run.options import options_of
from lit_engine.training.layout import evaluation_mode

NUMBER = int | float | str  # types of hyperparameters in TensorBoard


class TensorBoardExtras(Callback):
    """Callback that logs the config (as text and HPARAMS), the model's graph and training images to TensorBoard.

    Everything is logged once per `fit`, at the first training batch. Up to 64 images of this batch are logged.
    """

    _done = False

    @rank_zero_only
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        from torch.utils.tensorboard.summary import hparams  # an optional dependency

        writers = [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if self._done or not writers:
            return
        self._done = True
        run = RunDir(Path(trainer.default_root_dir))
        config = run.config() if run.config_file.is_file() else {}
        options = {key: v if isinstance(v, NUMBER) else str(v) for key, v in options_of(config) if v is not None}
        watched = [getattr(callback, "monitor", None) for callback in trainer.checkpoint_callbacks]
        for writer in writers if config else ():
            writer.add_text("config", f"```yaml\n{run.config_file.read_text(encoding='utf-8')}\n```")
            # Unlike `add_hparams`, this does not create another TensorBoard run. HPARAMS shows the last metric values.
            for summary in hparams(options, dict.fromkeys(filter(None, watched))):
                writer.file_writer.add_summary(summary)
        images = batch[0] if isinstance(batch, list | tuple) else batch
        if not isinstance(images, Tensor) or images.ndim != 4:  # sentences or a table, not images
            return
        from torchvision.utils import make_grid

        if images.shape[1] in (1, 3):
            grid = make_grid(images[:64].float().cpu(), nrow=8)
            for writer in writers:
                writer.add_image("train/images", grid, trainer.global_step)
        if pl_module.device_mesh is None:  # a model sharded across processes is not traced
            try:
                # tracing must not update batch norm statistics
                with evaluation_mode(pl_module), warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "`torch.jit", FutureWarning)  # used by TensorBoard's writer
                    warnings.simplefilter("ignore", TracerWarning)  # shape checks are not part of the graph
                    own = pl_module.example_input_array  # on the CPU
                    can_trace = isinstance(own, Tensor | tuple)
                    example = move_data_to_device(own, images.device) if can_trace else images[:1]
                    for writer in writers:
                        writer.add_graph(pl_module, example)
            except Exception as error:  # some models cannot be traced, such as compiled ones
                print(f"note: no model graph for TensorBoard: {str(error).strip().splitlines()[0]}", flush=True)
