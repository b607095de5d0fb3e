"""`python -m lit_project` is the same as `lit-project`."""

from lit_project.cli import entry_point

if __name__ == "__main__":
    entry_point()
