"""`lit-project` and `python -m lit_project`: what this project tells the library."""

from collections.abc import Sequence

from lit_engine.cli import main as entry
from lit_engine.project import Project

PROJECT = Project(
    name="lit_project",
    # What a model takes from the data: attribute of the data module → argument of the task, or of its net.
    links={
        # classification: ImageData → ImageClassifier and its net
        "class_names": "class_names",
        "class_counts": "class_counts",
        "mean": "mean",
        "std": "std",
        "num_classes": "net.init_args.num_classes",
        "input_shape": "net.init_args.input_shape",
        # regression: TabularData → Regressor and its net
        "feature_names": "feature_names",
        "target_names": "target_names",
        "feature_mean": "feature_mean",
        "feature_std": "feature_std",
        "target_mean": "target_mean",
        "target_std": "target_std",
        "input_size": "net.init_args.input_size",
        "output_size": "net.init_args.output_size",
        # table: columns of numbers and words → the net that takes both
        "columns": "net.init_args.columns",
        # sequence: texts as tokens → their pretrained encoder
        "encoder": "net.init_args.encoder",
        # translation: TranslationData → Translator and its net
        "vocabularies": "vocabularies",
        "source_size": "net.init_args.source_size",
        "target_size": "net.init_args.target_size",
        "max_source_length": "net.init_args.max_source_length",
    },
    functions={"timm.create_model": "TimmNet"},
    # Commands without a config: `module:function`, given the rest of the command line.
    commands={"translate": "tasks.translation.command:translate"},
)


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command in this process and returns its exit status; `args` are those after the program's name."""
    return entry.main(PROJECT, args)


def entry_point() -> None:
    """Runs the command line and ends the process with its exit status."""
    entry.run_program(PROJECT)


if __name__ == "__main__":
    entry_point()
