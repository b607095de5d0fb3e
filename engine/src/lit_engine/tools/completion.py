"""Prints a tab-completion script for commands, options, files and runs (`completion SHELL`). See docs/index.md.

Options that depend on a config (`--model.net.hidden`…) are not completed. `--model.help CLASS` lists them. jsonargparse
can also complete these options, but generating its script takes minutes because torch has hundreds of modules.
"""

import argparse
from collections.abc import Sequence
from importlib import import_module

import shtab

from lit_engine._jsonargparse import list_actions
from lit_engine.cli.arguments import SUBCOMMANDS, OptionParser
from lit_engine.cli.main import all_commands
from lit_engine.cli.options import SHORT
from lit_engine.project import current, program

LIST_RUNS = "ls -d runs/*/*/ 2>/dev/null"
LIST_CONFIGS = "ls configs configs/overlays 2>/dev/null | sed -n 's/[.]yaml$//p'"
RUNS = shtab.cmd(LIST_RUNS)
COMPLETED = {
    **dict.fromkeys(("run", "runs"), RUNS),
    "configs": shtab.cmd(f"{LIST_CONFIGS}; {LIST_RUNS}"),
    **dict.fromkeys(("runs_dir", "images", "dir"), shtab.DIRECTORY),
    **dict.fromkeys(("config", "init_from", "ckpt_path", "table", "input", "output", "attention", "file"), shtab.FILE),
}


def completion(args: Sequence[str]) -> int:
    """Print the completion script for a shell and return the exit status."""
    options = OptionParser("completion", "Prints a script for tab completion.")
    options.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    print(shtab.complete(parser(), options.parse_args(args).shell))
    return 0


def parser() -> argparse.ArgumentParser:
    """Return a parser with the options of all commands."""
    from lit_engine.cli.parser import LitCLI

    project = current()
    own = {name: import_module(place.partition(":")[0]) for name, place in all_commands(project).items()}
    known = {name: getattr(module, "option_parser", argparse.ArgumentParser)() for name, module in own.items()}
    known |= {name: LitCLI.parser_of(project, name) for name in SUBCOMMANDS}
    top = argparse.ArgumentParser(prog=program())
    commands = top.add_subparsers()
    for name, options in known.items():
        what = options.description or name
        made = commands.add_parser(name, help=what, description=what, parents=[options], add_help=False)
        if name in SUBCOMMANDS:
            word, count = ("configs", "*") if name == "fit" else ("run", "?")
            made.add_argument(word, nargs=count)
            for short in SHORT:
                made.add_argument(f"--{short}")
        for action in list_actions(made):
            if action.dest in COMPLETED:
                action.complete = COMPLETED[action.dest]
    return top
