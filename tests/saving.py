"""Helper for testing resumed runs."""

from lightning.pytorch import Callback


class SaveAt(Callback):
    """Saves a checkpoint after a given optimizer step."""

    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
