"""A PyTorch Lightning project template. Start at `cli.py`; README.md shows the commands."""

__version__ = "0.1.0"
