"""Sweeps for tests of the runner, and something done while one is at work."""

import threading

from lit_project.sweep.config import SweepConfig
from lit_project.sweep.parameters import parameters_of

COMMAND = ("fit", "--config", "configs/x.yaml", "--config", "${args_json_file}")


def sweep(hyperband=None, **parameters):
    """A grid; lists are values, anything else is a constant."""
    section = {k: {"values" if isinstance(v, list) else "value": v} for k, v in parameters.items()}
    return SweepConfig("grid", "val/score", True, tuple(parameters_of(section)), COMMAND, hyperband, None)


def after(runner, said, action, *arguments):
    """Does it half a second after the runner has said so."""
    say = runner.say

    def also(line):
        say(line)
        if said in line:
            threading.Timer(0.5, action, arguments).start()

    runner.say = also
