"""Lists and compares runs by reading their run directories. Importing the modules does not import torch or Lightning.

`reading` finds and reads runs, and `differences` finds differences between runs or groups. `columns` builds tables, and
`report` builds the HTML page. `command` implements `compare`, and `listing` implements `runs`. `verdict` implements
`compare --test`. `samples` computes statistics of predictions, and `significance` contains the tests.
"""
