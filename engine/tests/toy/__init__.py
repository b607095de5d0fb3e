"""A project on the library, as small as possible: it also shows what a project of your own needs."""

__version__ = "1.0"
