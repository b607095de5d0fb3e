"""Runs side by side, read from their directories alone; nothing here imports torch or Lightning.

reading.py  finds and reads runs      differences.py  what differs, groups, means and deviations
columns.py  tables, also as CSV       report.py       the page: tables, curves, classes
command.py  `compare`                 listing.py      `runs`
"""
