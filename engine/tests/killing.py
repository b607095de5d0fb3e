"""For the tests of what ends a run: signals and errors at a given call of a function."""

import os


def at_call(monkeypatch, owner, name, call, *events):
    """In the given call of `owner.name`, sends this process signals or raises errors; returns the list of all calls."""
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
