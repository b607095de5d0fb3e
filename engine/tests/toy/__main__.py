"""Entry point of `python -m toy`, which describes the project to the library."""

from lit_engine.cli import main as entry
from lit_engine.project import Project

PROJECT = Project(
    name="toy",
    links={
        "class_names": "class_names",
        "mean": "mean",
        "std": "std",
        "num_classes": "net.init_args.num_classes",
        "input_shape": "net.init_args.input_shape",
        "feature_names": "feature_names",
        "target_names": "target_names",
        "input_size": "net.init_args.input_size",
        "output_size": "net.init_args.output_size",
    },
    commands={"greet": "commands:greet"},
)


def main(args=None):
    return entry.main(PROJECT, args)


def entry_point():
    entry.run_program(PROJECT)


if __name__ == "__main__":
    entry_point()
