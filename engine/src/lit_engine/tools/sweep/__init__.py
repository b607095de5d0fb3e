"""Sweeps in W&B's format without a W&B account, stored by Optuna.

config.py   reads and checks the YAML          space.py    parameters, sampled by Optuna
study.py    trials in Optuna's storage         worker.py   takes trials and runs `fit` for each
report.py   table, plots, best config          command.py  command line
repeat.py   `repeat`: one trial per seed or fold
"""
