"""`lit-project completion SHELL`: a script that completes commands, options and files; a TAB starts no Python.

    eval "$(lit-project completion bash)"                                    bash: in ~/.bashrc
    lit-project completion zsh > ~/.zfunc/_lit-project                       zsh: a folder of $fpath
    lit-project completion fish > ~/.config/fish/completions/lit-project.fish

The options that depend on a config (`--model.net.hidden`…) are not completed: `--model.help CLASS` lists them.
Lightning's are written down here, so that nobody waits for its import; a test compares them with the parser.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import shtab

from lit_project.commands import COMMANDS
from lit_project.errors import UserError
from lit_project.sweep.command import option_parser as sweep_options

SHELLS = ("bash", "zsh", "fish")

SUBCOMMANDS = {
    "fit": "Train a new run, or go on with one",
    "validate": "Evaluate on the validation split",
    "test": "Evaluate on the test split",
    "predict": "Predict on the test split, or on new images or rows",
}
TRAINER = (
    "accelerator", "strategy", "devices", "num_nodes", "precision", "logger", "callbacks", "fast_dev_run",
    "max_epochs", "min_epochs", "max_steps", "min_steps", "max_time", "limit_train_batches", "limit_val_batches",
    "limit_test_batches", "limit_predict_batches", "overfit_batches", "val_check_interval",
    "check_val_every_n_epoch", "num_sanity_val_steps", "log_every_n_steps", "enable_checkpointing",
    "enable_progress_bar", "enable_model_summary", "accumulate_grad_batches", "gradient_clip_val",
    "gradient_clip_algorithm", "deterministic", "benchmark", "inference_mode", "use_distributed_sampler",
    "profiler", "detect_anomaly", "barebones", "plugins", "sync_batchnorm", "reload_dataloaders_every_n_epochs",
    "default_root_dir", "enable_autolog_hparams", "model_registry",
)  # fmt: skip
HELP = ("trainer.accelerator", "trainer.strategy", "trainer.logger", "trainer.callbacks", "trainer.profiler",
        "trainer.plugins", "model", "data")  # fmt: skip
YES_NO = ("true", "false")
# option → what completes its value: names, shtab's FILE or DIRECTORY, or nothing
OPTIONS: dict[str, Any] = {
    "--seed_everything": None,
    "--trainer": shtab.FILE,
    "--model": None,
    "--data": None,
    "--run": shtab.DIRECTORY,
    "--run_name": None,
    "--runs_dir": shtab.DIRECTORY,
}
FIT = {
    "--init_from": shtab.FILE,
    "--init_prefixes": None,
    "--init_strict": YES_NO,
    "--find": ("lr", "batch_size"),
    "--plot_lr": YES_NO,
    "--test_after_fit": YES_NO,
}
EVALUATE = {"--ckpt_path": shtab.FILE, "--allow_untrained": YES_NO}
PREDICT = {"--images": shtab.DIRECTORY, "--table": shtab.FILE}
# family: translation
TRANSLATE = {
    "--run": shtab.DIRECTORY,
    "--ckpt_path": shtab.FILE,
    "--input": shtab.FILE,
    "--output": shtab.FILE,
    "--attention": shtab.FILE,
    **dict.fromkeys(
        ("--beam_size", "--n_best", "--length_penalty", "--no_repeat_ngram", "--max_length_ratio", "--batch_size")
    ),
}


def completion(args: Sequence[str]) -> int:
    """Prints the script for a shell and returns the exit status.

    Args:
        args: the command line after `completion`.

    Raises:
        UserError: no shell, or one without a script.
    """
    if args in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if len(args) != 1 or args[0] not in SHELLS:
        raise UserError(f"completion needs one shell of {', '.join(SHELLS)}, got {' '.join(args) or 'none'}")
    print(shtab.complete(parser(), args[0]))
    return 0


def parser() -> argparse.ArgumentParser:
    """The shape of the command line: names only; nothing is ever parsed with it."""
    top = argparse.ArgumentParser(prog="lit-project")
    top.add_argument("--version", action="store_true", help="Print the version")
    commands = top.add_subparsers()
    for name, text in SUBCOMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text)
        _add(sub, {"--config": shtab.FILE}, "-c")
        sub.add_argument("--print_config", action="store_true")
        _add(sub, OPTIONS | (FIT if name == "fit" else EVALUATE) | (PREDICT if name == "predict" else {}))
        _add(sub, {f"--trainer.{option}": None for option in TRAINER})
        _add(sub, {f"--{option}.help": None for option in HELP})
    # family: translation
    text = "Translate sentences with a run"
    # family: translation
    _add(commands.add_parser("translate", help=text, description=text), TRANSLATE)
    text = "List the configs of the project, or copy one"
    examples = commands.add_parser("examples", help=text, description=text)
    examples.add_argument("action", choices=["list", "copy"])
    examples.add_argument("name", choices=_names())
    examples.add_argument("dest").complete = shtab.FILE  # type: ignore[attr-defined]
    text = "Print the script that completes commands in a shell"
    commands.add_parser("completion", help=text, description=text).add_argument("shell", choices=SHELLS)
    text = "Search hyperparameters on this machine"
    sweep = commands.add_parser("sweep", help=text, description=text, parents=[sweep_options()], add_help=False)
    for action in sweep._actions:
        if action.dest in ("file", "dir"):
            action.complete = shtab.FILE if action.dest == "file" else shtab.DIRECTORY  # type: ignore[attr-defined]
    for name in COMMANDS:
        if name[0] != "-" and name not in commands.choices:
            commands.add_parser(name).add_argument("file").complete = shtab.FILE  # type: ignore[attr-defined]
    return top


def _add(to: argparse.ArgumentParser, options: dict[str, Any], *short: str) -> None:
    for name, values in options.items():
        known = values if isinstance(values, tuple) else None
        action = to.add_argument(*short, name, choices=known)
        if isinstance(values, dict):
            action.complete = values  # type: ignore[attr-defined]


def _names() -> list[str]:
    """Names of the examples; none where the installation has lost them, which `lit-project examples` tells."""
    from lit_project.examples import available

    try:
        return list(available())
    except UserError:
        return []
