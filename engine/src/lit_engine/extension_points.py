"""Optional attributes and methods of your own classes that the library uses.

All of them are optional, and no base class is needed. `Task`, `ImageData` and `TabularData` already define some of
them.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from torch import Tensor, nn

if TYPE_CHECKING:
    from lit_engine.tools.export.parts import Exported


class ModuleExtensions(Protocol):
    """Members of a LightningModule."""

    net: nn.Module
    """The network. Its class is printed when a run starts, and `Task` sets its memory format and compiles it."""

    class_names: Sequence[str]
    """Class names for figures and metric names."""

    headline_metrics: Sequence[str]
    """Names, without `val/`, of the metrics in progress lines and learning curves. The last is the main metric."""

    unit: str
    """Unit of the counts that are passed to `step`, such as `tokens`. Default: `samples`."""

    accumulate: int
    """Number of micro-batches per optimizer step in manual optimization."""

    untrained: ClassVar[Mapping[str, Any]]
    """Values that replace constructor arguments, such as the optimizer, if only the weights are loaded."""

    confusion_matrix: Tensor | None
    """Counts `(K, K)` of the last evaluation as `[target, prediction]`. `Figures` labels the classes with
    `class_names`, or with their indices if there are no names."""

    all_probabilities: bool
    """Set to True by `--probabilities`, to make `predict_step` return the probability of each class."""

    def exported(self, batch: Any) -> "Exported":
        """Return the functions to export and how to compare them with `predict`. The default is `forward`."""
        ...

    def answer_text(self, text: str) -> Mapping[str, Any] | str:
        """Return the prediction for text that was entered on the page of `serve`."""
        ...

    def meaningless_weights(self, hyper_parameters: Mapping[str, Any]) -> Sequence[str]:
        """Return the names of weights that `--init_from` must not copy, such as embeddings of a different vocabulary.

        Args:
            hyper_parameters: the hyperparameters in the checkpoint.
        """
        ...


class NetExtensions(Protocol):
    """Members of a network (`nn.Module`)."""

    checkpoint_arguments: ClassVar[Mapping[str, Any]]
    """Constructor arguments to replace if a checkpoint contains the weights, such as `{"pretrained": False}`."""

    pretrained: str | None
    """A report of the pretrained weights, which is printed at the start of a run."""

    def blocks(self) -> Sequence[nn.Module]:
        """Return the modules that `checkpoint_blocks` recomputes, and that `fsdp2` gathers one at a time."""
        ...

    def tensor_parallel_plan(self) -> Mapping[str, Any]:
        """Map the names of layers to the `ParallelStyle` that splits them in tensor parallelism."""
        ...


class DataExtensions(Protocol):
    """Members of a LightningDataModule. `links` can pass any attribute to the model, such as `num_classes`."""

    predicts_on: Literal["images", "table"]
    """The kind of new samples that `predict` and `serve` accept. Requires `predict_from`."""

    def predict_from(self, path: Any) -> Mapping[int, Mapping[str, str]]:
        """Make `predict_dataloader` read `path`. Map each sample's index to columns for the prediction table."""
        ...

    def inputs(self, split: Literal["train", "val", "test"]) -> Mapping[int, Mapping[str, str]]:
        """Map the index of each sample in a split to columns that describe it, such as its file or text."""
        ...

    def has_split(self, split: Literal["train", "val", "test"]) -> bool:
        """Return whether a split exists. `test_after_fit` has no effect without a test split."""
        ...

    def describe_preparation(self) -> Mapping[str, Any]:
        """Return JSON data that describes how inputs are prepared, for the files that `export` writes."""
        ...


class DatasetExtensions(Protocol):
    """Members of a dataset (`draws`) or of its transforms (`set_random_seed`)."""

    draws: bool
    """False if loading a sample uses no random numbers. `SplitData` then does not seed each batch."""

    def set_random_seed(self, seed: int) -> None:
        """Seed this transform's generator. Called before each batch for transforms that are attributes of a dataset."""
        ...


class LoggerExtensions(Protocol):
    """Members of a logger. If it has `description`, the command line sets all three attributes."""

    description: Mapping[str, Any]
    """The config of the run, with its provenance under the key `provenance`."""

    command: str
    """The command that creates the run, such as `fit`."""

    monitor: tuple[str, str] | None
    """The metric that selects the best checkpoint, and its mode (`min` or `max`)."""

    def finish(self, status: int) -> None:
        """Finish logging. The exit status is 0 if the command succeeded."""
        ...

    def log_image(self, key: str, images: Sequence[str], step: int) -> None:
        """Log a figure, given the path of its PNG file. Not called if `experiment` has `add_figure` (TensorBoard)."""
        ...

    def log_table(self, key: str, columns: Sequence[str], data: Sequence[Sequence[Any]], step: int) -> None:
        """Log a table, such as the first rows of the predictions."""
        ...
