"""A run that predicts on one new sample after another, as `predict` does on files, and the page that asks for it."""

import json
import tempfile
import threading
import warnings
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..callbacks.predictions import PredictionTable
from ..cli import LitCLI, prepare
from ..errors import UserError
from ..page import page, paragraph, source_of
from ..project import this_project
from ..session import Session
from .form import SCRIPT, STYLE

SMALL = 64  # pixels of the side of a grey image that can be drawn by hand
# a run of eight GPUs is tried on a laptop
ALONE = ["accelerator=auto", "devices=1", "num_nodes=1", "strategy=auto", "logger=false"]


class Predictor:
    """Holds the net of a run, in which nothing changes.

    Raises:
        UserError: the run has no such weights, or predicts on no new samples.
    """

    def __init__(self, run: str, checkpoint: str) -> None:
        words = prepare(["predict", f"--run={run}", f"--ckpt_path={checkpoint}", *(f"--trainer.{o}" for o in ALONE)])
        session = Session(LitCLI(this_project(), words.args), words.run, words.config_name)
        parts: Any = session.prepare()
        self.trainer, self.task, self.data = trainer, task, data = parts
        self.kind = "text" if hasattr(task, "served") else getattr(data, "predicts_on", None)
        if self.kind is None:
            raise UserError(f"{type(data).__name__} cannot predict on new samples: it has no `predict_from`")
        self.title = " / ".join(session.run.path.absolute().parts[-2:])
        self.about = f"{type(task).__name__}, {session.checkpoint and session.checkpoint.name}"
        self.turn = threading.Lock()
        task.all_probabilities = True  # of classes, if it has some
        trainer.callbacks = []
        with warnings.catch_warnings(action="ignore"):  # that the run's callbacks are not there
            trainer.predict(task, [], ckpt_path=session.checkpoint, weights_only=True)
        task.eval()

    def page(self, most: int) -> str:
        """The text of the page; a sample has `most` MB at most."""
        data, images = self.data, self.kind == "images"
        channels, *sides = getattr(data, "input_shape", (0, 1))
        names, delimiter = getattr(data, "feature_names", ()), getattr(data, "delimiter", ",")
        draws = images and channels == 1 and max(sides) <= SMALL
        colours = ("black", "white") if getattr(data, "mean", [1])[0] < 0.5 else ("white", "black")  # as in training
        button = "<button>Predict</button>"
        if images:
            also, how = (", or draw one with a mouse or a finger", 'class="draws"') if draws else ("", "hidden")
            fields = f"""<label>Choose a picture, drop or paste one{also}: <input type="file" accept="image/*"></label>
<canvas width="280" height="280" role="img" aria-label="the picture" {how}></canvas>"""
            button = "<button>Clear</button>" if draws else ""
        elif self.kind == "table" and names:
            number = '<label>{0} <input name="{0}" value="{1:.4g}" type="number" step="any" required></label>'
            means = zip_longest(map(escape, names), getattr(data, "feature_mean", ()), fillvalue=0.0)
            fields = f'<div class="fields">{"".join(number.format(*pair) for pair in means)}</div>'
        elif self.kind == "text":
            fields = '<label>Text <input name="text" required autofocus></label>'
        else:
            fields = "<label>Lines of a file for predict <textarea name=file rows=5 required></textarea></label>"
        width = max(24, 280 // max(sides))  # of a line: a pixel of the net at least
        values = [most, "photos" if images else "chart", draws, width, *colours]
        values.append("\t" if delimiter in ("tab", r"\t") else delimiter)
        script = f"const VALUES = {json.dumps(values)};{SCRIPT}"
        form = f'<form>{fields}\n{button}</form>\n<div id="answer" aria-live="polite"></div>'
        return page(self.title, [STYLE, paragraph(self.about, soft=True), form], script=script)

    def answer(self, sample: bytes) -> list[dict[str, Any]]:
        """The rows of `predict` for an image file or a table; that of `served` of the task for a text.

        Raises:
            UserError: the sample is empty or cannot be read.
        """
        if not sample.strip():
            raise UserError("it is empty: there is nothing to predict on")
        with self.turn, tempfile.TemporaryDirectory() as folder:
            if self.kind == "text":
                return [self.task.served(sample.decode(errors="replace"))]
            file = Path(folder, "sample")
            self.trainer._default_root_dir = folder  # a `predict_step` may write files, and not into the run
            file.write_bytes(sample)
            try:
                inputs = self.data.predict_from(file)
                # of several samples, each row says which it is of
                table = PredictionTable(Path(folder, "table.csv"), inputs if len(inputs) > 1 else None)
                self.trainer.callbacks = [table]  # in place of the run's, of which some write into it
                self.trainer.predict(self.task, datamodule=self.data, return_predictions=False)
            except UserError as error:
                raise UserError(str(error).replace(f"{file}, ", "").replace(str(file), "it")) from error
            if not table.rows:
                raise UserError("it cannot be read: it is damaged, or of another kind")
            return [{name: _seen(v, folder) for name, v in row.items() if name != "index"} for row in table.rows]


def _seen(value: Any, folder: str) -> Any:
    """A value, or the picture of that name that a `predict_step` has written, as an address that holds it."""
    file = Path(folder, "predictions", str(value))
    return source_of(file) if file.suffix == ".png" and file.is_file() else value
