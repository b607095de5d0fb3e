"""One test per private API of Lightning, torch and jsonargparse, so that a removed API is easy to identify."""

import inspect
import os
import subprocess
import sys
from argparse import ArgumentParser as PlainParser
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import jsonargparse
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint, Timer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loops import training_epoch_loop
from lightning.pytorch.loops.evaluation_loop import RestartStage
from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from lit_engine import _jsonargparse, _lightning

DATA = [(torch.randn(3), torch.randn(1)) for _ in range(8)]


class Module(LightningModule):
    """Linear regression on four batches of two samples."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return (self.net(batch[0]) - batch[1]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return DataLoader(DATA, batch_size=2)

    val_dataloader = train_dataloader


class Probe(Callback):
    """Callback that calls functions in the second batch of the second epoch, and stores their results."""

    def __init__(self, functions):
        self.functions, self.found, self.state = functions, {}, {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.current_epoch == 1 and batch_idx == 1 and not self.found:
            self.found = {name: function(trainer) for name, function in self.functions.items()}

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        self.state = checkpoint["loops"]["fit_loop"]


@pytest.fixture
def fit(trainer):
    """Return a function that trains for two epochs, and returns the trainer and the results of the given functions."""

    def run(functions, **options):
        probe = Probe(functions)
        made = trainer(max_epochs=2, callbacks=[probe, *options.pop("callbacks", [])], **options)
        made.fit(Module())
        return probe.found, made

    return run


COUNTERS = {
    "trainer_of": (lambda t: _lightning.trainer_of(t.lightning_module) is t, True),
    "ready_batches": (_lightning.ready_batches, 2),
    "processed_batches": (_lightning.processed_batches, 2),
    "will_validate": (_lightning.will_validate, False),
    "has_validated": (_lightning.has_validated, False),
    "logged_steps": (_lightning.logged_steps, 5),  # the current step is counted after the hook
    "is_between_epochs": (_lightning.is_between_epochs, False),
    "is_in_hook": (_lightning.is_in_hook, True),
    "scales_loss": (_lightning.scales_loss, False),
    "device_mesh": (lambda t: _lightning.device_mesh(t.strategy), None),
}


@pytest.mark.parametrize("name", COUNTERS)
def test_functions_report_the_state_of_a_running_fit(fit, name):
    function, expected = COUNTERS[name]
    assert fit({name: function})[0][name] == expected


@pytest.mark.parametrize("last", [False, True])
def test_will_validate_ignores_a_requested_stop(fit, last):
    def asked(trainer):
        trainer.should_stop = True
        found = _lightning.will_validate(trainer), trainer.should_stop
        trainer.should_stop = False
        return found

    assert fit({"": asked}, val_check_interval=2 if last else 4)[0][""] == (last, True)


def test_is_in_hook_is_false_while_fetching_a_batch_and_in_training_step(trainer):
    class Asking(Module):
        def training_step(self, batch, batch_idx):
            found.append(_lightning.is_in_hook(self.trainer))
            return super().training_step(batch, batch_idx)

        def train_dataloader(self):
            def collate(samples):
                found.append(_lightning.is_in_hook(self.trainer))
                return torch.utils.data.default_collate(samples)

            return DataLoader(DATA, batch_size=2, collate_fn=collate)

    found: list[bool] = []
    trainer(max_epochs=1, limit_val_batches=0).fit(Asking())
    assert found == 8 * [False]


def test_loop_state_and_set_loop_counters(fit):
    """Resuming depends on these keys of Lightning's state."""
    state = fit({"": _lightning.loop_state})[0][""]
    for moment in ("step", "validation", "validated", "epoch"):
        changed = {**state}
        _lightning.set_loop_counters(changed, moment)
    assert state["epoch_progress"]["current"]["completed"] == 1


def test_restore_progress(fit, trainer):
    state = fit({"": _lightning.loop_state})[0][""]
    evaluation = trainer()
    _lightning.restore_progress(evaluation, {"loops": {"fit_loop": state}})
    evaluation.validate(Module(), verbose=False)
    assert (evaluation.current_epoch, evaluation.global_step) == (1, 6)


class Positions(Callback):
    """Callback that collects `epochs_in` for a checkpoint saved at each hook."""

    def __init__(self):
        self.found = {}

    def note(self, trainer, hook):
        loops = {"loops": {"fit_loop": _lightning.loop_state(trainer)}}
        self.found.setdefault(hook, []).append(_lightning.epochs_in(loops))

    def on_train_batch_end(self, trainer, *args):
        self.note(trainer, "batch")

    def on_validation_end(self, trainer, pl_module):
        self.note(trainer, "validation")

    def on_train_end(self, trainer, pl_module):
        self.note(trainer, "end")


def test_epochs_in(fit):
    positions = Positions()
    fit({}, callbacks=[positions])
    assert positions.found["batch"][4:] == [(1, None), (1, None), (1, None), (1, 2)]
    assert positions.found["validation"] == [(0, 1), (1, 2)]
    assert positions.found["end"] == [(2, 2)]


def test_set_batch_counters(fit):
    def moved(trainer):
        trainer.train_dataloader.position = 1
        _lightning.set_batch_counters(trainer)
        return _lightning.ready_batches(trainer)

    assert fit({"": moved})[0][""] == 1


def test_is_trained_with_other_length(fit):
    class Lengths(Callback):
        found: ClassVar = []

        def on_validation_end(self, trainer, pl_module):
            for length in (5, 4):
                trainer.fit_loop.max_batches = length
                self.found.append(_lightning.is_trained_with_other_length(trainer))

    fit({}, callbacks=[Lengths()])
    assert Lengths.found == 2 * [True, False]


def test_rewind_step(trainer):
    """Memory runs out in the last batch of the second epoch, whose steps have two batches."""

    class Fails(Module):
        def training_step(self, batch, batch_idx):
            if self.trainer.current_epoch == 1 and batch_idx == 3:
                raise MemoryError
            return super().training_step(batch, batch_idx)

    made = trainer(max_epochs=2, accumulate_grad_batches=2)
    with pytest.raises(MemoryError):
        made.fit(Fails())
    _lightning.rewind_step(made, 2)
    batches, steps = made.fit_loop.epoch_loop.batch_progress, made.fit_loop.epoch_loop.automatic_optimization
    for counts, done in ((batches.current, 2), (batches.total, 4 + 2)):
        assert [counts.ready, counts.started, counts.processed, counts.completed] == 4 * [done]
    counts = steps.optim_progress.optimizer.step.total
    assert (counts.ready, counts.completed, made.global_step, batches.is_last_batch) == (3, 3, 3, False)


def test_start_as_new_and_count_batches(trainer):
    made = trainer(max_epochs=1)
    made.strategy._lightning_module = module = Module()
    module.trainer = made
    made.fit_loop.restarting = made.fit_loop._resuming_from_checkpoint = True
    inner = made.fit_loop.epoch_loop.restarting
    _lightning.start_as_new(made)
    assert not made.fit_loop.restarting
    assert not made.fit_loop.is_resuming
    assert made.fit_loop.epoch_loop.restarting == inner
    made._data_connector.attach_data(module)
    _lightning.count_batches(made)
    assert made.num_training_batches == 4


def test_reconfigure_limit_loops_set_root_dir_and_set_ended(trainer, tmp_path):
    made = trainer(max_epochs=1, num_sanity_val_steps=2)
    _lightning.reconfigure(made, callbacks=[], loggers=[], limit_val_batches=0, num_sanity_val_steps=0)
    _lightning.limit_loops(made, -1, 3)
    _lightning.set_root_dir(made, str(tmp_path / "elsewhere"))
    assert made.default_root_dir == str(tmp_path / "elsewhere")
    made.fit(Module())
    assert made.global_step == 3
    assert made.num_sanity_val_steps == 0
    _lightning.set_ended(made, 7, 5)
    assert (_lightning.logged_steps(made), made.current_epoch) == (7, 5)


def test_attach_callbacks(trainer):
    class Attaching(Module):
        def configure_callbacks(self):
            return [Timer()]

    made, module = trainer(max_epochs=1), Attaching()
    _lightning.attach_callbacks(made, module)
    (timer,) = [one for one in made.callbacks if isinstance(one, Timer)]
    made.fit(module)
    assert [one for one in made.callbacks if isinstance(one, Timer)] == [timer]
    assert timer.start_time("train") is not None


def test_attach_data(trainer):
    class Sized(Module):
        def setup(self, stage):
            self.found = self.trainer.datamodule, self.trainer.datamodule.trainer

        def forward(self, x):
            return self.net(x)

    made, data, module = trainer(), LightningDataModule(), Sized()
    _lightning.attach_data(made, data)
    made.predict(module, [])
    assert module.found == (data, made)


@pytest.mark.parametrize("every", [0, 1, 3])
def test_reload_in_same_epochs(trainer, every):
    created = []

    class Reloading(Module):
        def train_dataloader(self):
            created.append(self.trainer.current_epoch)
            return super().train_dataloader()

    fit = trainer(max_epochs=8, reload_dataloaders_every_n_epochs=every)
    _lightning.reload_in_same_epochs(fit)
    fit.fit_loop.epoch_progress.current.completed = fit.fit_loop.epoch_progress.current.processed = 4
    fit.fit(Reloading())
    assert created == {0: [4], 1: [4, 5, 6, 7], 3: [3, 6]}[every]


def test_disable_requeue(trainer):
    made = trainer(plugins=[SLURMEnvironment()], max_epochs=1)
    _lightning.disable_requeue(made)
    assert made._accelerator_connector.cluster_environment.auto_requeue is False


def test_noprofiler_is_called_for_the_training_step(fit):
    measured = []
    profile = _lightning.NoProfiler()
    profile.profile = lambda name: measured.append(name) or _lightning.NoProfiler.profile(name)
    fit({}, profiler=profile)
    assert any("training_step" in name for name in measured)


def test_averaged_model_and_swap_average(fit):
    average = EMAWeightAveraging(decay=0.5)

    def swapped(trainer):
        inside, module = _lightning.get_averaged_model(average).module, trainer.lightning_module
        before = inside.net.weight.clone(), module.net.weight.clone()
        _lightning.swap_average(average, module)
        after = inside.net.weight.clone(), module.net.weight.clone()
        _lightning.swap_average(average, module)
        return torch.equal(before[0], after[1]) and torch.equal(before[1], after[0])

    assert fit({"": swapped}, callbacks=[average])[0][""]


def test_reset_average(fit, trainer):
    average = EMAWeightAveraging(decay=0.5)
    fit({}, callbacks=[average])
    assert average._average_model is not None
    assert average._latest_update_step > 0
    _lightning.reset_average(average, trainer(max_epochs=1))
    assert (average._average_model, average._latest_update_step) == (None, 0)


def test_modes_in_training(fit):
    found = []

    class Witness(Callback):
        def on_validation_start(self, trainer, pl_module):
            found.append((_lightning.modes_in_training(trainer), pl_module.net.training))

    fit({}, callbacks=[Witness()])
    assert found[-1] == ({"": True, "net": True}, False)


def test_rank_and_set_rank():
    before = _lightning.rank()
    try:
        _lightning.set_rank(3)
        assert _lightning.rank() == 3
        assert LightningEnvironment().global_rank() == 0  # Lightning itself reads the rank from elsewhere
    finally:
        _lightning.set_rank(before)


def test_group_options_has_layer_sync_and_replace_setup():
    strategy = DDPStrategy(timeout=timedelta(seconds=7), process_group_backend="gloo")
    assert _lightning.group_options(strategy) == ("gloo", timedelta(seconds=7))
    assert not _lightning.has_layer_sync(strategy)
    called = []
    _lightning.replace_setup(strategy, lambda: called.append(1))
    strategy.setup_environment()
    assert called
    assert _lightning.device_mesh(ModelParallelStrategy()) is None
    assert callable(_lightning.destroy_process_group)


def test_note_trainable_and_wrap_again():
    """In a real run, `configure_ddp` requires a process group."""

    class Strategy(DDPStrategy):
        def _setup_model(self, model):
            return nn.ModuleList([model])

        def _register_ddp_hooks(self):
            pass

    strategy, module = Strategy(), Module()
    strategy.model = module
    strategy.configure_ddp()
    _lightning.wrap_again(strategy, module)
    first = strategy.model
    _lightning.wrap_again(strategy, module)
    assert strategy.model is first
    module.net.bias.requires_grad_(False)
    _lightning.wrap_again(strategy, module)
    assert strategy.model is not first
    second = strategy.model
    _lightning.wrap_again(strategy, module)
    assert strategy.model is second
    _lightning.note_trainable(strategy, module)
    strategy.model = module
    strategy.configure_ddp()
    third = strategy.model
    _lightning.wrap_again(strategy, module)  # a hook may already have changed this wrapper
    assert strategy.model is third


def test_restore_buffers():
    module = nn.BatchNorm1d(2)
    strategy = SimpleNamespace(model=nn.ModuleList([module]))
    _lightning.restore_buffers(strategy, module, {"running_mean": torch.tensor([3.0, 4.0])})
    assert module.running_mean.tolist() == [3, 4]
    assert not strategy.model.require_forward_param_sync


def test_skip_data_summary():
    class Data(LightningDataModule):
        calls = 0

        def train_dataloader(self):
            self.calls += 1
            return DataLoader([0])

    data = Data()
    with _lightning.skip_data_summary():
        str(data)
    assert data.calls == 0
    str(data)
    assert data.calls == 1


def test_keep_random_states():
    restore = _lightning.keep_random_states()
    drawn = torch.rand(3)
    restore()
    assert torch.equal(torch.rand(3), drawn)


def test_checkpoint_in_root_dir(tmp_path):
    for epochs in (1, 2):
        saving = _lightning.CheckpointInRootDir(save_last=True)
        trainer = Trainer(
            max_epochs=epochs, default_root_dir=tmp_path, logger=CSVLogger(tmp_path / "logs"), callbacks=[saving],
            enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        )  # fmt: skip
        trainer.fit(Module(), DataLoader(DATA, 2), ckpt_path="last")
    assert trainer.ckpt_path == str(tmp_path / "checkpoints" / "last.ckpt")


def test_remember_missing_cuda(monkeypatch):
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    _lightning.remember_missing_cuda()
    assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "0"
    assert "PYTORCH_NVML_BASED_CUDA_CHECK" in inspect.getsource(torch.cuda)  # torch reads it


def test_has_bfloat16_units():
    assert _lightning.has_bfloat16_units() in (True, False)


def test_is_compiled():
    net = nn.Linear(1, 1)
    assert not _lightning.is_compiled(net)
    net.compile(backend="eager")
    assert _lightning.is_compiled(net)


@pytest.mark.parametrize("fused", [False, True])
def test_unscales_itself_and_loss_scale_of_a_step(fused):
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(1))], fused=fused)
    assert _lightning.unscales_itself(optimizer) == fused
    assert torch.amp.GradScaler("cpu", init_scale=8.0).get_scale() == 8.0  # `loss_scale` uses this


def test_multiply_all():
    tensors = [torch.tensor([3j, 4.0]), torch.tensor([6.0])]
    _lightning.multiply_all(tensors, torch.tensor(2.0))
    assert [one.tolist() for one in tensors] == [[6j, 8.0], [12.0]]


def test_replaces_loading():
    assert _lightning.replaces_loading(nn.BatchNorm1d(2))
    assert not _lightning.replaces_loading(nn.Linear(2, 2))


def test_broadcast_all(monkeypatch):
    sent = []
    monkeypatch.setattr(torch.distributed, "_broadcast_coalesced", lambda *given: sent.append(given), raising=True)
    _lightning.broadcast_all(tensors := [torch.ones(1)])
    _lightning.broadcast_all([])
    assert [(given, source) for _, given, _, source in sent] == [(tensors, 0)]


def test_skip_sigterm_broadcast(trainer):
    loop = (made := trainer()).fit_loop.epoch_loop
    assert callable(loop._broadcast_sigterm_tensor)  # since Lightning 2.6
    _lightning.skip_sigterm_broadcast(made)
    assert loop._broadcast_sigterm_tensor() is None


class WithoutIndex(Module):
    def training_step(self, batch):
        return super().training_step(batch, 0)


class Shorten(Callback):
    def on_train_start(self, trainer, pl_module):
        _lightning.shorten_steps(trainer)


class Counts(Shorten):
    """Overrides one hook, and sets another one on the instance."""

    def __init__(self):
        self.called = []
        self.on_after_backward = lambda *_: self.called.append("on_after_backward")

    def on_before_backward(self, trainer, pl_module, loss):
        self.called.append("on_before_backward")


def test_shorten_steps_skips_only_hooks_that_do_nothing(trainer):
    callback = Counts()
    made = trainer(max_epochs=1, limit_train_batches=2, callbacks=[callback])
    made.fit(Module())
    assert callback.called == ["on_before_backward", "on_after_backward"] * 2
    skipped = {hook for hook in dir(Callback) if hook.startswith("on_") and getattr(callback, hook) is None}
    assert skipped == set(_lightning.STEP_HOOKS) - {*callback.called}
    made.fit_loop.max_epochs = 2
    made.fit(Module())  # a callback can be used again
    assert len(callback.called) == 8


@pytest.mark.parametrize("kind", [Module, WithoutIndex])
def test_shorten_steps(kind, trainer, monkeypatch):
    inspect, inspected, weights = training_epoch_loop.is_param_in_hook_signature, [], []
    monkeypatch.setattr(
        training_epoch_loop,
        "is_param_in_hook_signature",
        lambda *args, **kw: inspected.append(1) or inspect(*args, **kw),
    )
    for callback in (Callback(), Shorten()):
        torch.manual_seed(0)
        trainer(max_epochs=2, limit_val_batches=0, callbacks=[callback]).fit(module := kind())
        weights.append(torch.nn.utils.parameters_to_vector(module.parameters()))
        steps = module.trainer.global_step
    assert torch.equal(*weights)
    assert len(inspected) == steps + 1


def test_quick_module_stores_only_the_name_of_the_hook(trainer, monkeypatch):
    class Quick(_lightning.QuickModule, Module):
        pass

    slow, quick, names = [], Quick(), []
    quick.on_before_zero_grad = lambda optimizer: names.append(quick._current_fx_name)
    set_attribute = torch.nn.Module.__setattr__
    monkeypatch.setattr(
        torch.nn.Module, "__setattr__", lambda self, name, value: slow.append(name) or set_attribute(self, name, value)
    )
    trainer(max_steps=1, limit_val_batches=0).fit(quick)
    assert names == ["on_before_zero_grad"]
    assert "_current_fx_name" not in slow
    quick.new = torch.nn.Parameter(torch.zeros(1))
    assert "new" in dict(quick.named_parameters())


LAZY = """
import sys
from lit_engine._lazy_imports import import_lazily
import_lazily()
import lightning.pytorch.cli
from torchmetrics import Accuracy, MeanMetric, Metric, MetricCollection, MetricTracker, R2Score, classification
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.functional import accuracy, r2_score
assert type(Accuracy(task="multiclass", num_classes=3)) is MulticlassAccuracy
assert issubclass(MulticlassAccuracy, Metric)
import torchmetrics
assert not hasattr(torchmetrics, "MulticlassAccuracy")
assert not {"torchvision", "transformers", "scipy"} & sys.modules.keys()
"""
WHOLE = """
names = "Accuracy", "MeanMetric", "BLEUScore", "RetrievalMAP", "StructuralSimilarityIndexMeasure"
lazy = [getattr(torchmetrics, name) for name in names]
assert len(torchmetrics.__all__) > 100  # runs the whole file
assert lazy == [vars(torchmetrics)[name] for name in names]
"""


COMPILED = """
import sys
from lit_engine._lazy_imports import import_lazily
import_lazily()
from lightning.fabric.wrappers import OptimizedModule
from lightning.pytorch import LightningModule
assert not {"torch._dynamo", "torch.distributed.tensor"} & sys.modules.keys()
import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
results = _ResultCollection(training=True)
log = lambda value: results.log("step", "loss", value, on_step=True, on_epoch=True, batch_size=1)
log(torch.tensor(1.0))
assert not isinstance(LightningModule(), OptimizedModule)

def double(value):
    log(value)
    return 2 * value

assert torch.compile(double, backend="eager")(torch.tensor(3.0)) == 6
assert results["step.loss"].value == 4  # a method that Lightning excludes from compilation
compiled = torch.compile(LightningModule(), backend="eager")
assert isinstance(compiled, OptimizedModule) and not isinstance(LightningModule(), OptimizedModule)
"""
NOT_IMPORTED = 'assert not {"torch._dynamo", "torch.distributed.tensor"} & sys.modules.keys()'
NEEDS_MORE = """import_lazily()
import torch
torch.compiler.disable = lambda function: torch._dynamo.decorators.disable(function)"""


@pytest.mark.parametrize("needs_more", [False, True])
def test_lightning_is_imported_without_the_compiler(needs_more):
    """If Lightning needs more of the compiler than the stand-in provides, the compiler is imported as usual."""
    code = COMPILED
    if needs_more:
        code = COMPILED.replace("import_lazily()", NEEDS_MORE).replace(NOT_IMPORTED, "")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SUBMODULE = """
from lit_engine._lazy_imports import import_lazily
import_lazily()
import torchmetrics.classification
"""


def test_a_submodule_of_torchmetrics_can_be_imported_first():
    done = subprocess.run([sys.executable, "-c", SUBMODULE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", [LAZY, pytest.param(LAZY + WHOLE, marks=pytest.mark.slow)])
def test_torchmetrics_is_imported_lazily(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_batch_norm():
    assert issubclass(nn.BatchNorm2d, _lightning.BatchNorm)
    assert issubclass(nn.SyncBatchNorm, _lightning.BatchNorm)


@pytest.mark.skipif(torch.__version__ < "2.14", reason="earlier versions of torch fix the length of an exported GRU")
def test_recurrences_as_loops_lets_an_exported_gru_accept_any_length():
    length = torch.export.Dim.DYNAMIC
    with ExitStack() as stack:
        for context in _lightning.recurrences_as_loops():
            stack.enter_context(context)
        program = torch.export.export(
            nn.GRU(2, 3, batch_first=True).eval(), (torch.randn(2, 4, 2),), dynamic_shapes=[{1: length}]
        ).run_decompositions()
    assert program.module()(torch.randn(2, 7, 2))[0].shape == (2, 7, 3)


def test_restarts_shorter_loaders(fit, monkeypatch):
    assert fit({"": _lightning.restarts_shorter_loaders})[0][""]
    for mode in ("max_size", "min_size"):
        loader = CombinedLoader([DataLoader(DATA, batch_size=2)], mode)
        monkeypatch.setattr(Module, "train_dataloader", lambda self, loader=loader: loader)
        monkeypatch.setattr(Module, "training_step", lambda self, batch, batch_idx: self.net(batch[0][0]).sum())
        assert fit({"": _lightning.restarts_shorter_loaders}, limit_val_batches=0)[0][""] == (mode != "max_size")


def test_keeps_iterator():
    loader = DataLoader([0, 1])
    assert not _lightning.keeps_iterator(loader)
    loader.own = iter(loader)
    assert _lightning.keeps_iterator(loader)


class LogsBatches(Module):
    def validation_step(self, batch, batch_idx):
        self.log("each", 1.0 + batch_idx, on_step=True, on_epoch=True)


def test_skip_batches_of_evaluation(trainer, tmp_path):
    names = []
    for skips in (False, True):
        logger = CSVLogger(tmp_path, name=str(skips))
        made = trainer(max_epochs=1, logger=logger)
        if skips:
            _lightning.skip_batches_of_evaluation(made)
        made.fit(LogsBatches())
        names.append(set((tmp_path / str(skips) / "version_0" / "metrics.csv").read_text().splitlines()[0].split(",")))
    assert names[0] - names[1] == {"each_step"}
    assert "each_epoch" in names[1]


def test_worker_iterator_and_set_worker_iterator():
    loader = DataLoader(DATA, batch_size=2, num_workers=1, persistent_workers=True)
    assert _lightning.worker_iterator(loader) is None
    next(iter(loader))
    assert _lightning.worker_iterator(loader) is not None
    _lightning.set_worker_iterator(loader, None)
    assert _lightning.worker_iterator(loader) is None


# ------------------------------------------------------------------------------------------------------ jsonargparse


def test_list_actions():
    parser = jsonargparse.ArgumentParser()
    parser.add_argument("--width", type=int)
    assert ["--width"] in [action.option_strings for action in _jsonargparse.list_actions(parser)]
    assert PlainParser().parse_args([]) is not None


def test_limited_imports():
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--kind", type=type)
    with _jsonargparse.limited_imports(["torch"]), pytest.raises(jsonargparse.ArgumentError, match="not allowed"):
        parser.parse_args(["--kind=decimal.Decimal"])
    assert parser.parse_args(["--kind=fractions.Fraction"]).kind.__name__ == "Fraction"


def test_class_of_factory():
    class Factory:
        """Class instantiated from a config."""

        def __init__(self, make: "jsonargparse.typing.Callable[[], nn.Module]"):  # type: ignore[name-defined]
            self.make = make

    from collections.abc import Callable

    Factory.__init__.__annotations__["make"] = Callable[[], nn.Module]
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Factory, "factory")
    config = parser.parse_object({"factory": {"make": {"class_path": "torch.nn.ReLU", "init_args": {}}}})
    assert _jsonargparse.class_of_factory(parser.instantiate(config).factory.make) is nn.ReLU
    assert _jsonargparse.class_of_factory(partial(nn.ReLU, inplace=True)) is nn.ReLU


class Sized:
    """Class whose argument has no type."""

    def __init__(self, sizes=None):
        self.sizes = sizes


def test_is_single_key():
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Sized, "net", fail_untyped=False)
    sizes = parser.parse_args(["--net=test_private_apis.Sized", "--net.sizes.width=4"]).net.init_args.sizes
    assert _jsonargparse.is_single_key(sizes)
    assert (sizes.key, sizes.val) == ("width", "4")


def test_schema_parts():
    schema, *_ = _jsonargparse.schema_parts()
    parser = jsonargparse.ArgumentParser()
    parser.add_argument("--width", type=int)
    assert schema().generate(parser)["properties"]["width"]["type"] == "integer"
    for method in ("set_dest", "class_ref", "subclass_def", "reachable_defs", "callable_schema", "tuple_schema"):
        assert callable(getattr(schema, method))


def test_find_reason_extracts_the_reason_from_a_jsonargparse_message():
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--width", type=int | None)
    with pytest.raises(jsonargparse.ArgumentError) as error:
        parser.parse_args(["--width=wide"])
    assert _jsonargparse.find_reason(str(error.value)) == "Expected an int. Got value: wide"


class Logging(Module):
    """Module that logs a mean, a maximum and a metric object in training, and a mean in validation."""

    def __init__(self):
        super().__init__()
        self.metric = MeanMetric()

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        self.metric(loss)
        self.log("metric", self.metric, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("loss", super().training_step(batch, batch_idx))


class Hooks(Callback):
    """Callback that calls functions after the given batch and after validation, and stores their results."""

    def __init__(self, batch=None, function=None, validated=None):
        self.batch, self.function, self.validated, self.found = batch, function, validated, {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == self.batch:
            self.found["train"] = self.function(trainer)

    def on_validation_end(self, trainer, pl_module):
        if self.validated is not None:
            self.found["val"] = self.validated(trainer)


def trained(module, hooks, tmp_path, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = Trainer(default_root_dir=tmp_path, max_epochs=1, callbacks=[hooks], enable_checkpointing=False,
                      num_sanity_val_steps=0, **quiet, **options)  # fmt: skip
    trainer.fit(module)
    return trainer


def test_logged_values_returns_only_values_of_the_current_stage(tmp_path):
    hooks = Hooks(3, _lightning.logged_values, _lightning.logged_values)
    trained(Logging(), hooks, tmp_path)
    assert set(hooks.found["train"]) == {"loss", "largest", "metric"}
    assert set(hooks.found["val"]) == {"loss"}
    assert hooks.found["train"]["largest"] >= hooks.found["train"]["metric"]


def test_logged_metrics_lists_the_metric_objects_of_the_current_stage(tmp_path):
    hooks = Hooks(3, _lightning.logged_metrics, _lightning.logged_metrics)
    trained(Logging(), hooks, tmp_path)
    assert hooks.found == {"train": ["metric"], "val": []}


def test_values_logged_so_far_can_be_logged_again(tmp_path):
    """Lightning does not reset the restored values in the first batch."""
    torch.manual_seed(0)
    module = Logging()
    hooks = Hooks(1, lambda t: (_lightning.logged_so_far(t), _lightning.metric_states(module)))
    trainer = trained(module, hooks, tmp_path, limit_val_batches=0)
    whole = {name: trainer.callback_metrics[name].item() for name in ("loss", "largest", "metric")}
    saved, states = hooks.found["train"]
    torch.manual_seed(0)
    module = Logging()

    class Half(Hooks):
        def on_train_start(self, trainer, pl_module):
            _lightning.log_again(trainer, saved)
            assert set(_lightning.logged_values(trainer)) == set(whole)

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 2:  # the metric also includes the batches since the start
                _lightning.restore_metric_states(pl_module, states)

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 2:
                _lightning.log_step(trainer)

    # This logs the first two batches twice.
    trainer = trained(module, Half(), tmp_path, limit_val_batches=0)
    found = {name: trainer.callback_metrics[name].item() for name in whole}
    assert found["metric"] == whole["metric"]
    assert found["largest"] == whole["largest"]


def test_skip_validation_if_not_due(tmp_path):
    made = trained(Module(), Hooks(0, lambda trainer: None), tmp_path, limit_val_batches=0)
    loop = made.fit_loop.epoch_loop
    _lightning.skip_validation_if_not_due(made)
    assert not loop._should_check_val_fx(None)
    loop.val_loop._restart_stage = RestartStage.RESTARTED_MID_EVALUATION
    _lightning.skip_validation_if_not_due(made)
    assert loop._should_check_val_fx(None)
    loop._skip_next_val = False  # set by Lightning after it has skipped the validation
    assert not loop._should_check_val_fx(None)


def test_finish_restart(tmp_path):
    def restart(trainer):
        trainer.fit_loop._restarting = True
        _lightning.finish_restart(trainer)
        return trainer.fit_loop.restarting

    hooks = Hooks(0, restart)
    trained(Module(), hooks, tmp_path)
    assert hooks.found["train"] is False


def test_step_plateau_schedules(tmp_path):
    class Plateau(Module):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=9.0)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule, "monitor": "value", "interval": "step"},
            }

        def training_step(self, batch, batch_idx):
            self.log("value", 1.0)
            return super().training_step(batch, batch_idx)

    def step(trainer):
        schedule = trainer.lr_scheduler_configs[0].scheduler
        before = schedule.last_epoch
        _lightning.step_plateau_schedules(trainer)
        return schedule.last_epoch - before

    hooks = Hooks(0, step)
    trained(Plateau(), hooks, tmp_path)
    assert hooks.found["train"] == 1


def test_process_loaders_and_replace_loader_parts(tmp_path):
    class Reversing(Callback):
        def setup(self, trainer, pl_module, stage):
            _lightning.process_loaders(trainer.strategy, self.reverse)

        def reverse(self, loader):
            _lightning.replace_loader_parts(loader, batch_sampler=[[7, 6], [5, 4]])
            return loader

    trainer = Trainer(default_root_dir=tmp_path, max_epochs=1, callbacks=[Reversing()], logger=False,
                      enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    trainer.fit(Module())
    assert trainer.num_training_batches == 2
    assert next(iter(trainer.train_dataloader))[0].equal(torch.stack([DATA[7][0], DATA[6][0]]))


def test_save_after_validation(tmp_path):
    """If both stages log the same name, the validation value is used."""
    callback = ModelCheckpoint(dirpath=tmp_path, monitor="loss")
    _lightning.save_after_validation(callback)
    trainer = Trainer(default_root_dir=tmp_path, max_epochs=1, callbacks=[callback], logger=False,
                      enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)  # fmt: skip
    module = Logging()
    trainer.fit(module)
    (validated,) = trainer.validate(module, verbose=False)
    assert callback.best_model_score.item() == validated["loss"]


def test_every_function_has_a_test():
    text = inspect.getsource(inspect.getmodule(test_every_function_has_a_test))
    for module in (_lightning, _jsonargparse):
        for name, value in vars(module).items():
            if name[0] != "_" and callable(value) and getattr(value, "__module__", "") == module.__name__:
                assert name in text, name
