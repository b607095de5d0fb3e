"""Minimal project based on the library. It also shows what your own project needs."""

__version__ = "1.0"
