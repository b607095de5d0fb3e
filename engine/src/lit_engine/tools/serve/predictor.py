"""Predicts one new sample at a time in the same way as `predict`, and builds the page where users enter the samples."""

import json
import math
import shutil
import threading
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from lit_engine._lightning import reconfigure
from lit_engine.callbacks.predictions import PredictionTable
from lit_engine.checkpoints.choose import choose_checkpoint
from lit_engine.data.tables import parse_delimiter
from lit_engine.errors import UserError
from lit_engine.load import load_for_prediction
from lit_engine.run.directory import RunDir
from lit_engine.tools.pages.html import embed_figure, embed_png, page, paragraph, to_png
from lit_engine.tools.serve.form import SCRIPT, STYLE

SMALL = 64  # maximum side length in pixels of grey images that users can draw


class Predictor:
    """A predictor that uses a run without modifying it. Files written by the task go to `folder`.

    Raises:
        UserError: the run lacks the requested weights, or cannot predict on new samples.
    """

    task: Any
    data: Any

    def __init__(self, run: RunDir, checkpoint: str, folder: str) -> None:
        self.folder, file = Path(folder), choose_checkpoint(run, checkpoint)
        # `predict_step` writes its files to the default root directory.
        self.task, self.data, self.trainer = load_for_prediction(run, file, default_root_dir=folder)
        if hasattr(self.data, "num_workers"):
            self.data.num_workers = 0  # starting processes takes longer than reading a sample
        self.kind: Any = "text" if hasattr(self.task, "answer_text") else getattr(self.data, "predicts_on", None)
        if self.kind is None:
            owner = self.task if self.data is None else self.data
            raise UserError(f"{type(owner).__name__} cannot predict on new samples: it has no `predict_from`")
        self.title = run.name
        self.about = f"{type(self.task).__name__}, {file.name}"
        self.turn = threading.Lock()
        self.seen: str | None = None  # the image that the network received
        self.task.all_probabilities = True  # has an effect only on classification tasks

    def page(self) -> str:
        """Return the HTML of the page."""
        data, images = self.data, self.kind == "images"
        channels, *sides = getattr(data, "input_shape", (0, 1))
        delimiter, columns = getattr(data, "delimiter", ","), _columns(data) if self.kind == "table" else {}
        draws = images and channels == 1 and max(sides) <= SMALL
        is_dark = getattr(data, "mean", [1])[0] < 0.5
        paper, ink = ("black", "white") if is_dark else ("white", "black")
        button = "<button>Predict</button>"
        if images:
            also, how = (", or draw one with a mouse or a finger", 'class="draws"') if draws else ("", "hidden")
            fields = f"""<label>Choose a picture, drop or paste one{also}: <input type="file" accept="image/*"></label>
<canvas width="280" height="280" role="img" aria-label="the picture" {how}></canvas>"""
            button = "<button>Clear</button>" if draws else ""
        elif columns:
            needed = " required" if hasattr(data, "feature_names") else ""  # without feature_names, cells may be empty
            fields = f'<div class="fields">{"".join(_field(*column, needed) for column in columns.items())}</div>'
        elif self.kind == "text":
            fields = '<label>Text <input name="text" required autofocus></label>'
        else:
            fields = "<label>Content of an input file <textarea name=file rows=5 required></textarea></label>"
        targets = list(getattr(data, "target_names", ()))
        options = {
            "images": "photos" if images else "chart",  # CSS class of images in answers
            "draws": draws,
            "table": bool(columns),
            "line": max(24, 280 // max(sides, default=1)),  # line width of at least one input pixel
            "paper": paper,
            "ink": ink,
            "delimiter": parse_delimiter(delimiter),
            "target": targets[0] if len(targets) == 1 else "prediction",
        }
        values = json.dumps(options).replace("<", r"\u003c")  # otherwise, a name could close the script element
        script = f"const options = {values};{SCRIPT}"
        form = f'<form>{fields}\n{button}</form>\n<div id="answer" aria-live="polite"></div>'
        return page(self.title, [STYLE, paragraph(self.about, soft=True), form], script=script)

    def answer(self, sample: bytes) -> dict[str, Any]:
        """Return `rows` of predictions for an image file, a table or text. The task's `answer_text` handles text.

        For an image file, also return `input`, a data URL of the image that the network receives.

        Raises:
            UserError: the sample is empty or cannot be read.
        """
        what = {"images": "the picture", "table": "the table"}.get(self.kind, "the text")
        if not sample.strip():
            raise UserError(f"{what} is empty: there is nothing to predict on")
        with self.turn:
            file = self.folder / "sample"
            try:
                rows = self._rows(file, sample)
            except UserError as error:
                raise UserError(str(error).replace(f"{file}, ", "").replace(str(file), what)) from error
            if not rows:
                raise UserError(f"{what} cannot be read: it is damaged or unsupported")
            shown = [{name: self._to_json(value) for name, value in row.items() if name != "index"} for row in rows]
            return {"rows": shown, **({"input": self.seen} if self.seen else {})}

    def _rows(self, file: Path, sample: bytes) -> list[dict[str, Any]]:
        if self.kind == "text":
            answer = self.task.answer_text(sample.decode(errors="replace"))
            return [dict(answer) if isinstance(answer, Mapping) else {"answer": answer}]
        shutil.rmtree(self.folder / "predictions", ignore_errors=True)  # delete files of the previous sample
        file.write_bytes(sample)
        self.seen = None
        inputs = self.data.predict_from(file)
        # If there are several samples, each row identifies its sample.
        table = PredictionTable(self.folder / "table.csv", inputs if len(inputs) > 1 else None)
        reconfigure(self.trainer, callbacks=[table])  # the run's own callbacks may write to the run directory
        hook = self.task.register_forward_pre_hook(self._look)
        try:
            self.trainer.predict(self.task, datamodule=self.data, return_predictions=False)
        finally:
            hook.remove()
        return table.rows

    def _look(self, task: Any, inputs: tuple[Any, ...]) -> None:
        """Store the first image of the first batch `(B, C, H, W)` as a data URL. The pixel values are in [0, 1]."""
        images: Any = inputs[0] if inputs and self.kind == "images" and self.seen is None else None
        if getattr(images, "ndim", 0) == 4 and len(images):  # the batch is empty if the file is damaged
            self.seen = embed_png(to_png(images[0]))

    def _to_json(self, value: Any) -> Any:
        """Return a predicted value as JSON data. Figures and PNG files written by `predict_step` become data URLs."""
        if hasattr(value, "savefig"):
            return embed_figure(value)
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)  # JSON has no infinity or NaN
        if not str(value).endswith(".png") or "\0" in str(value):
            return value
        folder = (self.folder / "predictions").resolve()
        file = (folder / str(value)).resolve()
        # The value may be text from the sample, such as the path of a different file.
        return embed_png(file.read_bytes()) if file.is_relative_to(folder) and file.is_file() else value


def _columns(data: Any) -> dict[str, float | list[str]]:
    """Map the name of each feature column to the mean of its values or to the list of its words.

    The values come from the data's `feature_names` and `feature_mean`, or from its `columns`. Each entry of
    `columns` is either [mean, std] or a list of words.
    """
    if names := getattr(data, "feature_names", ()):
        return dict(zip(names, getattr(data, "feature_mean", None) or [0.0] * len(names), strict=True))
    columns = getattr(data, "columns", None) or {}
    return {name: list(facts) if isinstance(facts[0], str) else float(facts[0]) for name, facts in columns.items()}


def _field(name: str, column: float | list[str], needed: str = "") -> str:
    """Return a menu of a column's words, or a number input with the attribute `needed`, preset to the mean."""
    name = escape(name)
    if isinstance(column, list):
        # without `value`, browsers would submit the text with its whitespace collapsed
        words = [f'<option value="{escape(word)}">{escape(word)}' for word in column]
        return f'<label>{name} <select name="{name}">{"".join(words)}</select></label>'
    return f'<label>{name} <input name="{name}" value="{column:.7g}" type="number" step="any"{needed}></label>'
