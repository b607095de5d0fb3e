"""Helper for tests of interrupted runs: sends signals or raises errors at a given call of a function."""

import os


def at_call(monkeypatch, owner, name, call, *events):
    """Make the given call of `owner.name` signal this process or raise an error. Return the list of all calls."""
    original, calls = getattr(owner, name), []

    def with_events(*args, **kwargs):
        calls.append(args)
        if len(calls) == call:
            for event in events:
                if isinstance(event, Exception):
                    raise event
                os.kill(os.getpid(), event)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, with_events)
    return calls
