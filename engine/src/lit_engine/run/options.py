"""Functions that list the options in a config by name and compare two configs."""

from collections import Counter
from collections.abc import Iterator
from typing import Any


def options_of(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the command-line name and the value of each option in a config.

    `("model.net", "package.models.CNN"), ("model.net.hidden", 64), ("trainer.callbacks.Checkpoint.mode", "max"), …`

    For a list of classes, the class names are also yielded as one value, because their order matters. Lists of
    callbacks and loggers are an exception.
    """
    if isinstance(value, dict) and "class_path" in value:
        yield key, value["class_path"]
        for arguments in (value.get("init_args"), value.get("dict_kwargs")):
            for name, inner in (arguments or {}).items():
                yield from options_of(inner, f"{key}.{name}")
    elif isinstance(value, dict) and ("." not in key or _has_class(value)):
        for name, inner in value.items():
            yield from options_of(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list) and _has_class(value):
        kinds = [inner.get("class_path", "").rpartition(".")[2] if isinstance(inner, dict) else "" for inner in value]
        if all(kinds) and key not in ("trainer.callbacks", "trainer.logger"):
            yield key, kinds
        seen: Counter[str] = Counter()
        for place, (kind, inner) in enumerate(zip(kinds, value, strict=True)):
            seen[kind] += 1
            name = f"[{place}]" if not kind else f".{kind}" if seen[kind] == 1 else f".{kind}[{seen[kind]}]"
            yield from options_of(inner, f"{key}{name}")
    else:
        yield key, value


def _has_class(value: Any) -> bool:
    return "'class_path': " in str(value)


def same_value(one: Any, other: Any) -> bool:
    """Return whether two values of an option are equal. `1e-3`, which YAML reads as a string, counts as a number."""
    try:
        return repr(float(one)) == repr(float(other))
    except (TypeError, ValueError):
        return bool(one == other)


def iterate_changes(before: Any, now: Any, key: str = "", options: bool = True) -> Iterator[tuple[str, Any, Any]]:
    """Yield the key, the old value and the new value of each option that differs.

    Args:
        before: a config, or a part of a config.
        now: the same part of the other config.
        key: the key of this part in its config.
        options: true if the mappings contain options of a class or of the trainer. If so, only options that exist in
            both are compared, because earlier versions may have had different options. Otherwise, a key counts as a
            difference if it exists in only one mapping.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        if before.get("class_path") != now.get("class_path"):
            names = ["class_path"]
        elif options or "class_path" in now:
            # `dict_kwargs` has no defaults. It contains extra arguments of a class that accepts `**kwargs`.
            names = [n for n in {**before, **now} if n == "dict_kwargs" or (n in before and n in now)]
        else:
            names = list({**before, **now})
        for name in names:
            of_class = name == "init_args" or (name == "trainer" and not key)
            inner = f"{key}.{name}".replace(".init_args", "").lstrip(".")
            yield from iterate_changes(before.get(name), now.get(name), inner, of_class)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, values in enumerate(zip(before, now, strict=True)):
            yield from iterate_changes(*values, f"{key}[{place}]", options=False)
    elif before != now:
        yield key, before, now
