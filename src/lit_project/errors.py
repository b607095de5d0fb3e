"""Errors that the command line shows as a few lines instead of a traceback."""


class UserError(Exception):
    """Something that the user can put right: the message says what, where and how (exit code 2)."""


class DataError(UserError):
    """The data are missing, corrupt or do not fit the config."""


class RunError(UserError):
    """A run directory or a checkpoint cannot be used as asked."""


class CheckpointError(RunError):
    """A checkpoint cannot be written, read or does not fit the model."""
