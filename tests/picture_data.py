"""Helpers for testing image folders."""

from lit_project.data.image_folder import ImageFolder


def small(root, **kwargs):
    return ImageFolder(root, **{"image_size": 4, "channels": 1, "num_workers": 0, "batch_size": 5, **kwargs})


def batches(data, split, epoch=0):
    data.setup("fit")
    loader = data.loader(split)
    loader.sampler.set_epoch(epoch)
    return list(loader)
