"""Wrappers for undocumented parts of jsonargparse 4.53. Each docstring states why the access is needed.

`test_private_apis.py` tests each function, and fails if jsonargparse removes a private name or changes its behaviour.
jsonargparse is imported inside the functions, because commands without a config do not need it.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# Lines with these prefixes are skipped. They only introduce the reason, or report an attempt with a different type.
_FRAME = (
    "Parser key", "Does not validate", "Subtypes:", "Errors:", "Given value", "Problem with given class_path", "tip:",
    "Expected a <class 'NoneType'>", "Expected a path but", "Subclass types expect", "a class path (str)",
    "a dict with",
)  # fmt: skip


def find_reason(message: str) -> str:
    """Return the most specific reason in a nested error message. If a message only lists expected types, join them."""
    # If the value names a class, skip the errors from trying to parse the value as a different type.
    own = message[max(message.rfind("Problem with given class_path"), 0) :]
    lines = [re.sub(r"^\s*(- )?(Parser key .*: (?=\w)|.* callable class: )?", "", line) for line in own.splitlines()]
    kept = [line.partition(". Got value: Namespace")[0] for line in lines if line and not line.startswith(_FRAME)]
    if re.findall(r"Given value type: <class '(\w+)'>", message)[-1:] == ["list"]:  # not a single object
        kept = [line for line in kept if not re.fullmatch(r"Not a valid subclass of \w+", line)]
    kept = [re.sub(r"<class '(?:[\w.]*\.)?(\w+)'>|typing\.Literal\[(.*?)\]", r"\1\2", line) for line in kept]
    vague = [line for line in kept if line.startswith(("Expected a dot", "Not a valid subclass"))]
    types = [line for line in kept if line.startswith("Expected a ") and line not in vague]
    telling = [line for line in kept if line not in vague and line not in types]
    # Put the least relevant reasons last. They only say that arguments were given without their class path.
    telling.sort(key=lambda line: line.startswith(("Expected an instantiatable class", "Dict must include a class_")))
    # If a number is accepted as well as a class, the user probably meant a number.
    if any(re.match(r"Expected a (float|int)\b", line) for line in types):
        vague = []
    if telling or vague or not types:
        return (telling or vague or [own.strip()])[0]
    types = list(dict.fromkeys(types))
    given = re.search(r"Given value: (?:NestedArg.*val=)?'?(\w[^'(\n]*)'?\)?$", message, re.MULTILINE)
    got = f". Got value: {given[1]}" if given and "Got value" not in types[0] else ""
    joined = " or ".join([types[0], *(line.removeprefix("Expected a ") for line in types[1:])])
    return re.sub(r"\ba (?=int\b)", "an ", joined) + got


def list_actions(parser: Any) -> list[Any]:
    """Return the actions of a parser. They are used to suggest options and to complete their values."""
    return parser._actions


@contextmanager
def limited_imports(allowed: Sequence[str]) -> Iterator[None]:
    """Restrict the packages that class paths may refer to. No public function can restore the previous settings."""
    from jsonargparse import set_parsing_settings
    from jsonargparse._common import parsing_settings

    before = dict(parsing_settings)
    set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=list(allowed))
    try:
        yield
    finally:
        parsing_settings.update(before)


def class_of_factory(factory: Any) -> Any:
    """Return the class that a factory instantiates.

    For a class path, jsonargparse creates `partial(call, instantiate, MulticlassF1Score, top_k=1, …)`, in which `call`
    and `instantiate` are its own functions. Python code may pass `partial(MulticlassF1Score, top_k=1)` instead.
    """
    return factory.args[-1] if factory.args else factory.func


def is_single_key(value: Any) -> bool:
    """Return whether a value sets one key of an argument without a type, as in `--model.sizes.width=4`.

    Instead of merging such a key into a dict, jsonargparse passes its own private tuple to the class.
    """
    from jsonargparse._typehints import NestedArg

    return isinstance(value, NestedArg)


def schema_parts() -> tuple[Any, ...]:
    """Return jsonargparse's class for writing JSON schemas, and three helper functions.

    The public `get_completion_script("jsonschema")` fails for our command-line parser.
    """
    from jsonargparse._completions_jsonschema import ParserJsonschema, anyof_schema, get_doc_short_description
    from jsonargparse._typehints import get_callable_return_type

    return ParserJsonschema, anyof_schema, get_doc_short_description, get_callable_return_type
