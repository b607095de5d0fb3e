"""A PyTorch Lightning project: `__main__.py` says what it consists of, README.md shows the commands."""

__version__ = "0.1.0"
