"""What `lit-project` and `python -m lit_project` call. Only a command that needs Lightning waits for it."""

import sys

from lit_project import commands


def entry_point() -> None:
    """Runs the command line and ends the process with its exit status."""
    args = sys.argv[1:]
    if args and args[0] in commands.COMMANDS:
        sys.exit(commands.run(args))
    from lit_project.cli import main

    sys.exit(main(args))


if __name__ == "__main__":
    entry_point()
