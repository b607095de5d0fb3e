"""Runs sweeps in W&B's format without a W&B account.

`config` reads the YAML file, and `space` defines the parameters. `study` stores the trials in Optuna's storage, and
`worker` runs `fit` for each trial. `report` writes tables, plots and the best config. `command` implements the `sweep`
command. `repeat` implements the `repeat` command, which runs one trial per seed or fold.
"""
