"""Print the time per 1,000 images with timm's loader, optimizer, schedule and meters, used as in its train script.

peers.py runs this script with timm's Python: `peers_timm.py NET WORKERS SKIP STEPS DATA`. It needs `src` in PYTHONPATH.
"""

import sys
import time
from itertools import islice

import torch
from timm.data import create_dataset, create_loader
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter

from lit_project.models.cnn import CNN
from lit_project.models.mlp import MLP

kind, workers, skip, steps = sys.argv[1], *map(int, sys.argv[2:5])
net = {"CNN": CNN, "MLP": MLP}[kind]((1, 28, 28), 10)
loader = create_loader(
    create_dataset("torch/fashion_mnist", root=sys.argv[5], split="train", is_training=True), (1, 28, 28), 64,
    is_training=True, no_aug=True, mean=(0.2860,), std=(0.3530,), num_workers=workers, persistent_workers=workers > 0,
    device=torch.device("cpu"),
)  # fmt: skip
optimizer = create_optimizer_v2(net, opt="adam", lr=0.002)
schedule, _ = create_scheduler_v2(optimizer, num_epochs=1, step_on_epochs=False, updates_per_epoch=len(loader))
loss_of, losses, step_time = torch.nn.CrossEntropyLoss(), AverageMeter(), AverageMeter()
end = time.perf_counter()
for step, (images, targets) in enumerate(islice(loader, skip + steps), 1):
    loss = loss_of(net(images), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.update(loss.item(), len(targets))
    schedule.step_update(num_updates=step, metric=losses.avg)
    step_time.update(time.perf_counter() - end)
    end = time.perf_counter()
    if step == skip:
        step_time.reset()
print(step_time.avg * 1000 / 64)
