"""Code that is common in LightningModules but that `Task` does not use, such as hooks that freeze layers."""

import pytest
from metric_objects import Classifier
from test_plain import StopAfter

from helpers import differences

DATA = "--data metric_objects.Data --trainer.log_every_n_steps=3 --epochs 2"
BATCHES = 10  # per epoch


class Unfrozen(Classifier):
    """Trains the first layer from the second epoch on."""

    def __init__(self):
        super().__init__()
        self.model[0].requires_grad_(False)

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.model[0].requires_grad_(True)


class FrozenAtStart(Unfrozen):
    """Freezes the layer in a hook that a resumed run repeats."""

    def __init__(self):
        super().__init__()
        self.model[0].requires_grad_(True)

    def on_train_start(self):
        self.model[0].requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "batches"),
    [("Unfrozen", BATCHES + 5), ("FrozenAtStart", BATCHES + 5)],
)
def test_a_resumed_run_is_the_same_to_the_bit(lit, model, batches):
    fit = f"fit --model test_own_code.{model} {DATA}"
    whole = lit(fit, "--name whole")
    assert whole.status == 0, whole.err
    stop = f"{{class_path: {StopAfter.__module__}.StopAfter, init_args: {{batches: {batches}}}}}"
    cut = lit(fit, "--name cut", ["--trainer.callbacks+=" + stop])
    assert cut.status == 143, cut.err
    resumed = lit(f"fit --run {cut.run} --trainer.callbacks=null")
    assert resumed.status == 0, resumed.err
    assert differences(whole.run, resumed.run) == []
