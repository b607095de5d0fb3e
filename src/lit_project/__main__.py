"""Configuration of the library for this project, and the entry point of `lit-project` and `python -m lit_project`."""

from collections.abc import Sequence

from lit_engine.cli import main as entry
from lit_engine.project import Project

PROJECT = Project(
    name="lit_project",
    # The data module sets these arguments of the task or its net. The keys are attributes of the data module.
    links={
        # classification: ImageData sets arguments of ImageClassifier and its net
        "class_names": "class_names",
        "mean": "mean",
        "std": "std",
        "num_classes": "net.init_args.num_classes",
        "input_shape": "net.init_args.input_shape",
        # regression: TabularData sets arguments of Regressor and its net
        "feature_names": "feature_names",
        "target_names": "target_names",
        "feature_mean": "feature_mean",
        "feature_std": "feature_std",
        "target_mean": "target_mean",
        "target_std": "target_std",
        "input_size": "net.init_args.input_size",
        "output_size": "net.init_args.output_size",
        # table: the data module sets the `columns` argument of the net
        "columns": "net.init_args.columns",
        # sequence: the name, config and tokenizer of the pretrained encoder
        "encoder": "net.init_args.encoder",
        # translation: TranslationData sets arguments of Translator and its net
        "vocabularies": "vocabularies",
        "source_size": "net.init_args.source_size",
        "target_size": "net.init_args.target_size",
        "max_source_length": "net.init_args.max_source_length",
    },
    # Commands that need no config. Each function receives the remaining arguments.
    commands={"translate": "tasks.translation.command:translate"},
)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command in this process and return its exit status. `args` excludes the program name."""
    return entry.main(PROJECT, args)


def entry_point() -> None:
    """Run the command line and exit the process with its status."""
    entry.run_program(PROJECT)


if __name__ == "__main__":
    entry_point()
