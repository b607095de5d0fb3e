"""Minimal project based on the library, which also shows what your own project needs."""

__version__ = "1.0"
