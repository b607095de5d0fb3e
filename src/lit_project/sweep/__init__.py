"""Sweeps in W&B's format on this machine: `lit-project sweep FILE`.

config.py      reads and checks the YAML          parameters.py   its parameters
space.py       the distributions                  hyperband.py    W&B's rule for early ends
study.py       trials in Optuna's SQLite storage  process.py      one trial, a `lit-project fit`
runner.py      several at a time                  report.py       table, plots, best config
command.py     the command line
"""
