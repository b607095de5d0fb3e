"""Runs side by side, read from their directories alone; nothing here imports torch or Lightning.

reading.py  finds and reads runs      differences.py  what differs, groups, means and deviations
text.py     tables in the terminal    report.py       the page: tables, curves, classes
command.py  `compare`                 listing.py      `runs`
"""
