"""Loads a run's task and data and creates a trainer, so that Python code and servers can compute predictions."""

import sys
import warnings
from copy import deepcopy
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng

from lit_engine._lightning import NoProfiler, attach_data, set_rank
from lit_engine.checkpoints.choose import choose_checkpoint
from lit_engine.checkpoints.io import SafeCheckpointIO, fill_linked, read, share_loaded
from lit_engine.checkpoints.warm_start import check_fits
from lit_engine.classes.names import import_named, resolve_class_paths
from lit_engine.cli.config_files import as_yaml
from lit_engine.cli.invocation import prepare
from lit_engine.cli.links import active_links
from lit_engine.cli.parser import LitCLI
from lit_engine.data.module import build_datamodule
from lit_engine.data.sampler import seed_cpu
from lit_engine.errors import CheckpointError
from lit_engine.project import current
from lit_engine.run.directory import RunDir
from lit_engine.training.plain import OwnData, adds_weights_later, complete_prediction, replace, seed_data_hooks
from lit_engine.training.task import Task, load_module, overrides


def load_model(run: RunDir, which: str = "best") -> Any:
    """Return the task or other LightningModule of a checkpoint, on the CPU and in evaluation mode.

    The modules named in the run's config are imported. For `which`, see `choose_checkpoint`. If the module's
    `setup` creates layers, the data are loaded as well.

    Raises:
        RunError: there is no such checkpoint.
        CheckpointError: the checkpoint is damaged, or belongs to a different model.
    """
    import_named(run.config_file)
    checkpoint = choose_checkpoint(run, which)
    try:
        return load_module(LightningModule, checkpoint).eval()
    except CheckpointError:
        kind = resolve_name(resolve_class_paths(run.config())["model"]["class_path"])
        if issubclass(kind, Task) or kind.setup is LightningModule.setup:
            raise
        return load_for_prediction(run, checkpoint, accelerator="cpu")[0]


def load_data(run: RunDir, stage: str = "test", download: bool = True) -> LightningDataModule:
    """Return the data module of a run, set up for a stage (`fit`, `validate` or `test`).

    Linked arguments that are null in the config, such as a vocabulary, are read from the best checkpoint. If `download`
    is false, `prepare_data` is not called.

    Raises:
        DataError: the data are missing.
    """
    config = resolve_class_paths(run.config()["data"])
    given, links = config.get("init_args", {}), current().links
    if any(name in given and given[name] is None for name in links):
        links = active_links(resolve_class_paths(run.config()["model"]), links)
        fill_linked(given, links, read(choose_checkpoint(run)))
    seed = int(run.config().get("seed_everything", 0))
    with isolate_rng(include_cuda=False):
        seed_cpu(seed)  # the constructor may split the data at random
        data = build_datamodule(config)
        owner: Any = load_model(run) if isinstance(data, OwnData) else data
    if isinstance(data, OwnData):
        data = OwnData.of(owner)
    if download:
        owner.prepare_data()
    seed_data_hooks(owner, seed)
    owner.setup(stage)
    return data


def load_for_prediction(
    run: RunDir, checkpoint: Path, **parts: Any
) -> tuple[LightningModule, LightningDataModule | None, Trainer]:
    """Return a run's task with the weights of a checkpoint, the run's data module, and a trainer for prediction.

    The data module is None if the module has its own dataloaders. The trainer uses a single process and none of the
    run's callbacks or loggers. All other trainer arguments come from the run's config, and `parts` overrides them.
    Nothing is written to the run.

    Raises:
        UserError: a class rejects its arguments, or the data are missing.
        CheckpointError: the checkpoint is damaged, or belongs to a different model.
    """
    config = run.config()
    # Omit callbacks and loggers, so that packages they need, such as wandb, do not have to be installed.
    config["trainer"] = {**config.get("trainer", {}), "callbacks": None, "logger": False}
    cli = LitCLI(current(), prepare(["predict", f"--config={as_yaml(config)}"]).args)
    set_rank(0)
    content = read(checkpoint)
    fill_linked(cli.options.data.get("init_args", {}), cli.links, content)
    checkpoint_io = SafeCheckpointIO()
    share_loaded(checkpoint_io, {checkpoint: content})
    settings = {
        "accelerator": "auto",
        "devices": 1,
        "num_nodes": 1,
        "strategy": "auto",
        "plugins": [checkpoint_io],
        "profiler": NoProfiler(),
        "enable_progress_bar": False,
        "enable_checkpointing": False,
    }
    cli.make(run.path, True, lambda config: {**settings, **parts})
    complete_prediction(cli.model, cli.datamodule)
    for line in check_fits(cli.model, content, checkpoint, cli.hyper_parameters, adds_weights_later(cli.model)):
        print(f"warning: {line}", file=sys.stderr)
    if isinstance(cli.model, Task):
        cli.model.compilation = None  # compiling would take longer than predicting, and may need a C++ compiler
    else:
        attach_data(cli.trainer, cli.datamodule)
    with warnings.catch_warnings(action="ignore"):  # Lightning warns about missing callbacks
        try:
            cli.trainer.predict(cli.model, [], ckpt_path=checkpoint, weights_only=True)
        except RuntimeError as error:
            if not str(error).startswith("Error(s) in loading state_dict for "):
                raise
            raise CheckpointError(f"{checkpoint}: {error}") from error
    if overrides(cli.model, "setup"):
        _keep_weights(cli.model)
    return cli.model.eval(), cli.datamodule, cli.trainer


def _keep_weights(model: LightningModule) -> None:
    """Restore the weights after each call to the model's `setup`, which may replace layers or change weights."""
    setup = model.setup

    def setup_and_restore(stage: Any = None) -> None:
        weights = deepcopy(model.state_dict())
        setup(stage)
        # Also restore the dtype and device of the weights. A task keeps the memory format that `setup` chose.
        model.load_state_dict(weights, strict=False, assign=not isinstance(model, Task))

    replace(model, "setup", setup_and_restore)
