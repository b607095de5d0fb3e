"""The options of `fit`, `validate`, `test` and `predict` that configure a run, and short help for these commands.

This module imports neither torch nor Lightning, so that `fit --help` is printed immediately.
"""

import argparse
from typing import Any, Literal, NamedTuple

from lit_engine.cli.arguments import SUBCOMMANDS, OptionParser
from lit_engine.project import program


class Option(NamedTuple):
    """An option that configures a run."""

    name: str
    type: Any
    default: Any
    help: str
    commands: tuple[str, ...] = SUBCOMMANDS  # the commands that accept the option
    is_recorded: bool = False  # whether the run's config.yaml contains the option


_EVALUATION = ("validate", "test", "predict")
OPTIONS = (
    Option("run", str | None, None, "A run directory or `latest`. `fit` resumes it, and other commands evaluate it."),
    Option("run_name", str | None, None, "Name of a new run. Default: the current time."),
    Option("runs_dir", str, "runs", "Folder of runs: RUNS_DIR/CONFIG/NAME."),
    Option("resume", bool, False, "Resume the run with this run_name if it exists.", ("fit",)),
    Option("fork", str | None, None, "Continue RUN, RUN@best or RUN@EPOCH as a new run with different options.",
           ("fit",)),
    Option("init_from", str | None, None, "A run or checkpoint to load initial weights from.", ("fit",)),
    Option("init_prefixes", dict[str, str | None] | None, None,
           "Maps name prefixes in --init_from to prefixes in this model. Weights mapped to null are skipped.",
           ("fit",)),
    Option("init_strict", bool, False, "Require that all --init_from weights fit.", ("fit",)),
    Option("find", Literal["lr", "batch_size"] | None, None, "Search for a learning rate or batch size, then stop.",
           ("fit",)),
    Option("plan", bool, False, "Predict time and memory from a few steps, then stop.", ("fit",)),
    Option("json", bool, False, "Print the result of --plan as JSON.", ("fit",)),
    Option("plot_lr", bool, False, "Plot the planned learning rate, then stop.", ("fit",)),
    Option("test_after_fit", bool, False, "Test the best checkpoint after training.", is_recorded=True),
    Option("notify", list[str] | None, None, "URL to notify when the run ends (can be repeated).", ("fit",)),
    Option("allow_untrained", bool, False, "Evaluate the initial weights without a run.", _EVALUATION),
    Option("images", str | None, None, "An image file or a folder of images to predict on.", ("predict",)),
    Option("table", str | None, None, "A file of rows or texts to predict on.", ("predict",)),
    Option("probabilities", bool, False, "Add a column with the probability of each class.", ("predict",)),
)  # fmt: skip
CKPT_PATH = "Checkpoint to evaluate: `best` (default), `last`, `average`, a name in RUN/checkpoints, or a file."
MATMUL_PRECISION = "Precision of float32 matrix products. `high` uses TF32 on a GPU. Default: `highest`, as in torch."
FLAGS = tuple(option.name for option in OPTIONS if option.type is bool)

# Maps short options to full options.
SHORT = {
    "lr": "model.optimizer.lr",
    "epochs": "trainer.max_epochs",
    "batch_size": "data.batch_size",
    "seed": "seed_everything",
    "name": "run_name",
    "devices": "trainer.devices",
    "precision": "trainer.precision",
}
# Short options that also affect evaluation.
_OF_EVALUATION = ("batch_size", "devices", "precision")

ABOUT = {
    "fit": "Train in a new run directory, or resume or fork a run.",
    "validate": "Evaluate a run on the validation split.",
    "test": "Evaluate a run on the test split.",
    "predict": "Write a run's predictions for the test split or for new samples.",
}
_EXAMPLES = {
    "fit": {
        "fit quickstart": "a config of the project",
        "fit mine.yaml ema --name first": "your config and an overlay",
        "fit quickstart --lr 0.01 --epochs 20": "short options",
        "fit quickstart --model.net.hidden 128": "any option of a class",
        "fit runs/quickstart/first": "resume this run",
        "fit --fork latest@best --lr 0.001": "continue as a new run",
    },
    "validate": {"validate runs/quickstart/first": "the best checkpoint", "validate latest --ckpt_path last": ""},
    "test": {"test runs/quickstart/first": "the best checkpoint", "test latest --ckpt_path last": ""},
    "predict": {
        "predict runs/quickstart/first --probabilities": "",
        "predict runs/image_folder/first --images pictures": "",
    },
}


def format_short_help(command: str) -> str:
    """Return a one-screen help text for `fit`, `validate`, `test` or `predict`."""
    what, examples = "CONFIG [OVERLAY …]" if command == "fit" else "RUN", _EXAMPLES[command]
    parser = OptionParser(command, ABOUT[command], add_help=False)
    parser.usage = f"{program()} {command} {what} [OPTIONS]"
    form = argparse.RawDescriptionHelpFormatter
    parser.formatter_class = lambda prog: form(prog, max_help_position=26)
    width = max(map(len, examples))
    lines = [f"  {program()} {words:{width}}  {comment}".rstrip() for words, comment in examples.items()]
    parser.epilog = (
        "\n".join(["examples:", *lines]) + f"\n\n`{program()} {command} --help=all` lists all options.\n"
        "`--model.help CLASS` and `--data.help CLASS` list the options of a class."
    )
    short = parser.add_argument_group("short options")
    for name, full in SHORT.items():
        if command == "fit" or name in _OF_EVALUATION:
            short.add_argument(f"--{name}", metavar=name[:1].upper(), help=f"--{full}")
    places = parser.add_argument_group("arguments")
    places.add_argument("CONFIG", help=f"A YAML file, or a name from `{program()} examples`. Same as -c CONFIG.")
    places.add_argument("RUN", help="A run directory, or `latest`. Same as --run RUN.")
    own = parser.add_argument_group("options of the run")
    for option in OPTIONS:
        is_shown = option.name not in ("run", *SHORT.values()) and (command == "fit" or not option.is_recorded)
        if command in option.commands and is_shown:
            value = option.name.rpartition("_")[2].upper()
            kind: dict[str, Any] = {"action": "store_true"} if option.type is bool else {"metavar": value}
            own.add_argument(f"--{option.name}", help=option.help.replace("%", "%%"), **kind)
    if command != "fit":
        own.add_argument("--ckpt_path", metavar="CHECKPOINT", help=CKPT_PATH)
    return parser.format_help().rstrip("\n")
