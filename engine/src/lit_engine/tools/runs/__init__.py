"""Lists and compares runs by reading their run directories. Nothing here imports torch or Lightning.

reading.py  finds and reads runs      differences.py  differences between runs, groups, means and deviations
columns.py  tables, also as CSV       report.py       HTML page with tables, curves and per-class changes
command.py  `compare`                 listing.py      `runs`
verdict.py  `compare --test`: samples.py reads statistics of the predictions, and significance.py tests them
"""
