"""32 small in-memory images for the callback tests."""

import torch

from lit_engine.data.images import ImageData


class Images(ImageData):
    """32 random images `(1, 4, 4)` of three classes in each split. An epoch has four training batches."""

    def __init__(self, **kwargs):
        super().__init__(**{"batch_size": 8, "eval_batch_size": 16, "seed": 0, **kwargs})
        self.class_names, self.input_shape, self.mean, self.std = ["a", "b", "c"], (1, 4, 4), [0.4], [0.3]

    def load(self, split):
        generator = torch.Generator().manual_seed(len(split))
        targets = torch.randint(0, 3, (32,), generator=generator)
        return torch.randint(0, 256, (32, 1, 4, 4), generator=generator, dtype=torch.uint8), targets
