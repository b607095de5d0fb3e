"""A run that predicts on one new sample after another, as `predict` does on files."""

import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

from ..cli import LitCLI, prepare
from ..errors import UserError
from ..project import this_project
from ..session import Session

ALONE = [f"--trainer.{option}" for option in ("devices=1", "num_nodes=1", "strategy=auto", "logger=false")]


class Predictor:
    """Holds the net of a run, in which nothing changes.

    Raises:
        UserError: the run has no such weights, or predicts on no new samples.
    """

    def __init__(self, run: str, checkpoint: str) -> None:
        words = prepare(["predict", f"--run={run}", f"--ckpt_path={checkpoint}", *ALONE])
        session = Session(LitCLI(this_project(), words.args), words.run, words.config_name)
        parts: Any = session.prepare()
        self.trainer, self.task, self.data = trainer, task, data = parts
        self.kind = "text" if hasattr(task, "answer") else getattr(data, "predicts_on", None)
        if self.kind is None:
            raise UserError(f"{type(data).__name__} cannot predict on new samples: it has no `predict_from`")
        self.title = " / ".join(session.run.path.absolute().parts[-2:])
        self.about = f"{type(task).__name__}, {session.checkpoint and session.checkpoint.name}"
        self.turn = threading.Lock()
        task.all_probabilities = True  # of classes, if it has some
        trainer.callbacks = []  # some write into the run
        with warnings.catch_warnings(action="ignore"):  # that they are not there
            trainer.predict(task, [], ckpt_path=session.checkpoint, weights_only=True)
        task.eval()

    def answer(self, sample: bytes) -> list[dict[str, Any]]:
        """The rows of `predict` for an image file or a table; that of `answer` of the task for a text.

        Raises:
            UserError: the sample is empty or cannot be read.
        """
        if not sample.strip():
            raise UserError("it is empty: there is nothing to predict on")
        with self.turn, tempfile.TemporaryDirectory() as folder:
            if self.kind == "text":
                return [self.task.answer(sample.decode(errors="replace"))]
            file = Path(folder, "sample")
            file.write_bytes(sample)
            try:
                self.data.predict_from(file)
                batches = self.trainer.predict(self.task, datamodule=self.data)
            except UserError as error:
                raise UserError(str(error).replace(f"{file}, ", "").replace(str(file), "it")) from error
        rows = [dict(zip(batch, row, strict=True)) for batch in batches for row in zip(*batch.values(), strict=True)]
        if not rows:
            raise UserError("it cannot be read: it is damaged, or of another kind")
        return [{name: value for name, value in row.items() if name != "index"} for row in rows]
