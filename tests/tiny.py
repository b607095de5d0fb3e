"""What makes runs of tests take a second."""

from pathlib import Path

import pytest
from PIL import Image

# a net that trains in a second
TINY = (
    "--model.net=lit_project.models.mlp.MLP --model.net.hidden_sizes=[32] --model.net.norm=none --data.batch_size=128 "
    "--trainer.log_every_n_steps=5"
)


def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of figures become blank pages: drawing takes half the time of a small run."""
    from matplotlib.figure import Figure

    def blank(self: Figure, file: str | Path, **_: object) -> None:
        Image.new("L", (int(self.bbox.width), int(self.bbox.height))).save(file, format="png")

    monkeypatch.setattr(Figure, "savefig", blank)
