"""Options with which test runs take about a second, and a helper that writes small images."""

from PIL import Image

# A net that trains in a second.
TINY = (
    "--model.net=lit_project.models.mlp.MLP --model.net.hidden_sizes=[32] --model.net.norm=none --data.batch_size=128 "
    "--trainer.log_every_n_steps=5"
)
CLASSES = ("ant", "bee", "cat")


def write(folder, count, start=0):
    """Write `count` grey images per class, each with a different brightness. Returns the class of each brightness."""
    classes = {}
    for number, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for image in range(count):
            value = start + number * count + image
            Image.new("L", (6, 5), value).save(folder / name / f"{image:02d}.png")
            classes[value] = number
    return classes
