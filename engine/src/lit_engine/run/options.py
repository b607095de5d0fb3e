"""The options in a config by name, and how two configs differ."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

CLASS = re.compile(r"[A-Za-z_][\w.]*\.[A-Z]\w*")


def options_of(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The options in a config by their names on the command line; a class is one, without its module.

    `("model.net", "package.CNN"), ("model.net.hidden", 64), ("trainer.callbacks.Checkpoint.mode", "max"), …`
    """
    if isinstance(value, dict) and "class_path" in value:
        yield key, re.sub(r"\..*\.", ".", value["class_path"])
        for arguments in (value.get("init_args"), value.get("dict_kwargs")):
            for name, inner in (arguments or {}).items():
                yield from options_of(inner, f"{key}.{name}")
    elif isinstance(value, dict) and ("." not in key or _has_class(value)):
        for name, inner in value.items():
            yield from options_of(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list) and _has_class(value):
        seen: Counter[str] = Counter()
        for place, inner in enumerate(value):
            kind = inner.get("class_path", "").rpartition(".")[2] if isinstance(inner, dict) else ""
            seen[kind] += 1
            name = f"[{place}]" if not kind else f".{kind}" if seen[kind] == 1 else f".{kind}[{seen[kind]}]"
            yield from options_of(inner, f"{key}{name}")
    else:
        yield key, value


def _has_class(value: Any) -> bool:
    return "'class_path': " in str(value)


def differing_options(options: Sequence[dict[str, Any]]) -> list[str]:
    """The keys whose values differ.

    An option that only some have counts if it is a class in a list, such as a callback: others belong to a class that
    differs, which is named, or were not known to an earlier version.
    """
    found: list[str] = []
    for key in dict.fromkeys(key for one in options for key in one):
        values = [one[key] for one in options if key in one]
        added = len(values) < len(options) and isinstance(values[0], str) and CLASS.fullmatch(values[0])
        if len({repr(as_number(value)) for value in values}) > 1 or (added and key.rpartition(".")[0] not in found):
            found.append(key)
    return found


def as_number(value: Any) -> Any:
    """Return whole numbers as floats, because 1 and 1.0 are the same option."""
    return float(value) if type(value) is int else value


def same_value(one: Any, other: Any) -> bool:
    """Return whether two values of an option are equal. YAML reads `1e-3`, which has no point, as text."""
    try:
        return repr(float(one)) == repr(float(other))
    except (TypeError, ValueError):
        return bool(one == other)


def iterate_changes(before: Any, now: Any, key: str = "", options: bool = True) -> Iterator[tuple[str, Any, Any]]:
    """Yields the key, the old value and the new value of each leaf that differs.

    Args:
        before: a config, or a part of one.
        now: the same part of another config.
        key: the key of this part.
        options: whether the mappings contain the options of a class or of the trainer. Only options that both of them
            contain are compared then, because earlier versions may have had other options. In any other mapping, a key
            that only one of them contains counts as a difference.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        if before.get("class_path") != now.get("class_path"):
            names = ["class_path"]
        elif options or "class_path" in now:
            names = [name for name in before if name in now]
        else:
            names = list({**before, **now})
        for name in names:
            of_class = name == "init_args" or (name == "trainer" and not key)
            inner = f"{key}.{name}".replace(".init_args", "")
            yield from iterate_changes(before.get(name), now.get(name), inner, of_class)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, values in enumerate(zip(before, now, strict=True)):
            yield from iterate_changes(*values, f"{key}[{place}]", options=False)
    elif before != now:
        yield key, before, now
