"""Optimizer and scheduler assembly. The classes here are what a config names under `schedulers`."""

from lit_project.optim.groups import Group, GroupError, ParameterGroups, check_trained
from lit_project.optim.horizon import ScheduleError, horizon
from lit_project.optim.schedulers import (
    ChainedScheduler,
    CosineAnnealingLR,
    LinearLR,
    OneCycleLR,
    PolynomialLR,
    SchedulerFactory,
    SequentialLR,
)
from lit_project.optim.schedules import (
    OptimizerFactory,
    Schedule,
    check_resumed,
    configure,
    run_length,
    steps_of_epochs,
)

__all__ = [
    "ChainedScheduler",
    "CosineAnnealingLR",
    "Group",
    "GroupError",
    "LinearLR",
    "OneCycleLR",
    "OptimizerFactory",
    "ParameterGroups",
    "PolynomialLR",
    "Schedule",
    "ScheduleError",
    "SchedulerFactory",
    "SequentialLR",
    "check_resumed",
    "check_trained",
    "configure",
    "horizon",
    "run_length",
    "steps_of_epochs",
]
