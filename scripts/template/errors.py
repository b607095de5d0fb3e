"""The error that a command shows as one line."""


class TemplateError(Exception):
    """Something that the user can put right; the message says how."""
