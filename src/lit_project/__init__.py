"""A PyTorch Lightning project. `__main__.py` configures it, and README.md shows its commands."""

__version__ = "0.1.0"
