"""Counts, on a CPU, how many times a training step would make the host wait for a GPU.

Tensors that would be on the GPU are marked: weights, batches, the results of collective operations, and everything that
is computed from them. Reading the value of a marked tensor waits for the GPU. So does copying another tensor to the GPU
without `non_blocking` (torch synchronizes the stream), and any operation whose output size depends on tensor values.
"""

import traceback
from pathlib import Path

import torch
from lightning.pytorch import Callback
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
READS = {aten._local_scalar_dense, aten.is_nonzero, aten.equal, aten.nonzero, aten.masked_select, aten.unique_dim,
         aten._unique2, aten.unique_consecutive, aten.repeat_interleave, aten._is_all_true}  # fmt: skip
TO_HOST = {Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__array__}
TO_DEVICE = {Tensor.to, torch.tensor, torch.as_tensor}


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def marked(tree):
    return any(getattr(one, "on_gpu", False) for one in tensors(tree))


def mark(tree):
    for one in tensors(tree):
        one.on_gpu = True


class Waits(TorchDispatchMode):
    """Records where each wait happens while the mode is active."""

    def __init__(self):
        super().__init__()
        self.places, self.functions, self.recording = [], Functions(self), False

    def note(self, what):
        if not self.recording:
            return
        frames = [frame for frame in traceback.extract_stack() if frame.filename != __file__]
        own = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if "_pytree" not in frame.filename]
        self.places.append(f"{what} at {' < '.join(reversed(own[-4:]))}")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = function(*args, **kwargs)
        collective = function.namespace == "c10d"
        if collective:
            mark((args, kwargs))
        if collective or marked((args, kwargs)):
            packet = function.overloadpacket
            masks = packet is aten.index and any(mask.dtype == torch.bool for mask in tensors(args[1]))
            if packet in READS or masks:
                self.note(packet.__name__)
            # the sizes of packed sequences are on the CPU
            mark(found[0] if packet is aten._pack_padded_sequence else found)
        return found


class Functions(TorchFunctionMode):
    """Intercepts calls that `Waits` cannot intercept, because they run no operation on a CPU."""

    def __init__(self, waits):
        super().__init__()
        self.waits = waits

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in TO_HOST and marked(args[0]) and not kwargs.get("non_blocking"):
            self.waits.note(function.__name__)
        found = function(*args, **kwargs)
        if function is Tensor.to and args[1:] == ("cpu",) and kwargs.get("non_blocking"):
            found.on_gpu = False  # the code waits for an event instead
        device = kwargs.get("device") or next((one for one in args if isinstance(one, torch.device)), None)
        if function in TO_DEVICE and isinstance(device, torch.device) and not marked(args[0]):
            if not kwargs.get("non_blocking"):
                self.waits.note(f"{function.__name__}(device)")
            mark(found)
        return found


class CountWaits(Callback):
    """Counts the waits in the training steps of each epoch, except the first and the last step.

    Args:
        file: prefix of the output file FILE.RANK, which lists the place of each wait on a separate line.
    """

    def __init__(self, file: str = "waits"):
        self.file, self.waits, self.steps, self._running = file, Waits(), 0, False

    def setup(self, trainer, pl_module, stage):
        original = trainer.strategy.batch_to_device

        def batch_to_device(*args, **kwargs):
            self._pause()
            with self.waits.functions:  # marks the tensors that are moved
                return original(*args, **kwargs)

        trainer.strategy.batch_to_device = batch_to_device

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        mark([list(pl_module.parameters()), list(pl_module.buffers())])
        self.waits.recording = 0 < batch_idx < trainer.num_training_batches - 1
        self.steps += self.waits.recording
        self._running = True
        self.waits.functions.__enter__()
        self.waits.__enter__()

    def _pause(self):
        self.waits.recording = False
        if self._running:
            self._running = False
            self.waits.__exit__(None, None, None)
            self.waits.functions.__exit__(None, None, None)

    def on_train_epoch_end(self, trainer, pl_module):
        self._pause()

    def on_exception(self, trainer, pl_module, exception):
        self._pause()

    def on_train_end(self, trainer, pl_module):
        text = "".join(f"{place}\n" for place in self.waits.places)
        Path(f"{self.file}.{trainer.global_rank}").write_text(f"{self.steps} steps\n{text}")
