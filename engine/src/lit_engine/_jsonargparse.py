"""All access to undocumented behaviour of jsonargparse (4.53): one function each, with a test that names it."""

import re

# How the lines of jsonargparse's messages begin that frame the reasons, or tell of another type that was tried.
_FRAME = (
    "Parser key", "Does not validate", "Subtypes:", "Errors:", "Given value", "Problem with given class_path", "tip:",
    "Expected a <class 'NoneType'>", "Expected a path but", "Subclass types expect", "a class path (str)",
    "a dict with",
)  # fmt: skip


def reason_in(message: str) -> str:
    """The innermost and most telling reason in a nested message; the types that were expected are one reason."""
    own = message[max(message.rfind("Problem with given class_path"), 0) :]  # not those of other types tried before
    lines = [re.sub(r"^\s*(- )?(Parser key .*: (?=\w)|.* callable class: )?", "", line) for line in own.splitlines()]
    kept = [line.partition(". Got value: Namespace")[0] for line in lines if line and not line.startswith(_FRAME)]
    kept = [re.sub(r"<class '(?:[\w.]*\.)?(\w+)'>|typing\.Literal\[(.*?)\]", r"\1\2", line) for line in kept]
    vague = [line for line in kept if line.startswith(("Expected a dot", "Not a valid subclass"))]
    types = [line for line in kept if line.startswith("Expected a ") and line not in vague]
    telling = [line for line in kept if line not in vague and line not in types]
    if any(re.match(r"Expected a (float|int)\b", line) for line in types):
        vague = []  # a number or a class: rather a number
    if telling or vague or not types:
        return (telling or vague or [own.strip()])[0]
    types = list(dict.fromkeys(types))
    given = re.search(r"Given value: (?:NestedArg.*val=)?'?(\w[^'(\n]*)'?\)?$", message, re.MULTILINE)
    got = f". Got value: {given[1]}" if given and "Got value" not in types[0] else ""
    return " or ".join([types[0], *(line.removeprefix("Expected a ") for line in types[1:])]) + got
