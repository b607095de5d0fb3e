"""Sweeps in W&B's format without an account, on Optuna's storage.

config.py   reads and checks the YAML          space.py    its parameters, drawn by Optuna
study.py    the trials in Optuna's storage     worker.py   takes trials and runs `fit` for each
report.py   table, plots, best config          command.py  the command line
repeat.py   `repeat`: trials that are seeds or folds
"""
