"""The config files of a command line: checked, and made so that a later list replaces an earlier one; nulls refused."""

import inspect
import math
import re
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml

from lit_project.errors import UserError
from lit_project.renamed import config_here, here

FLAG = "--config"
MOST_VALUES = 100_000  # of a file, with all that its aliases stand for


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, of which YAML would drop the first, and aliases without end."""

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None and (values := _expanded(node, {})) > MOST_VALUES:
            raise yaml.MarkedYAMLError(problem=f"its aliases (*NAME) stand for {values:,.0f} values")
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = getattr(key, "value", None)
            if isinstance(name, str) and name != "<<" and name in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {name} stands twice", problem_mark=key.start_mark)
            seen.add(name if isinstance(name, str) else None)
        return super().construct_mapping(node, deep)


def _expanded(node: Any, known: dict[int, float]) -> float:
    """How many values a node stands for; infinitely many if it holds itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        flat = [one for part in parts for one in part] if isinstance(node, yaml.MappingNode) else parts
        known[id(node)] = 1 + sum(_expanded(part, known) for part in flat)
    return known[id(node)]


def load_yaml(text: str) -> Any:
    """What YAML holds.

    Raises:
        yaml.YAMLError: it is none, a key stands twice, or its aliases or brackets are too many.
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError as error:
        raise yaml.MarkedYAMLError(problem="too many levels") from error


def spelled_out(args: Sequence[str]) -> list[str]:
    """`-c FILE`, `-c=FILE`, `-cFILE` and `--config=FILE` as `--config FILE`."""
    found: list[str] = []
    for arg in args:
        attached = re.fullmatch(r"(?:--config=|-c=?)(.+)", arg, re.DOTALL)
        found += [FLAG, attached[1]] if attached else [FLAG if arg == "-c" else arg]
    return found


def with_configs(args: Sequence[str], first: bool) -> list[str]:
    """A command line as the parser is to get it.

    The parser mixes the elements of a later list with those of an earlier one, so that a list of mappings is preceded
    by an empty one.

    Args:
        args: `spelled_out`.
        first: whether no config stands before them.

    Raises:
        UserError: a config is a folder, no YAML or holds no options.
    """
    found: list[str] = []
    for before, arg in zip(["", *args], args, strict=False):
        if before == FLAG:
            content = content_of(arg)
            empty = None if first or content is None else emptied(content)
            if empty:
                found += [yaml.safe_dump(here(empty), sort_keys=False, allow_unicode=True), FLAG]
            found.append(arg if content is None else config_here(arg))
            first = False
            continue
        key, _, value = arg.partition("=")
        option, value = (before, arg) if before.startswith("--") and "=" not in before else (key, value)
        if option.startswith("--") and not option.endswith("+") and _holds_mappings(value):
            if option is before:
                found[-1:] = [f"{option}=[]", option]
            else:
                found.append(f"{option}=[]")
        found.append(arg)
    return found


def _holds_mappings(text: str) -> bool:
    if not text.startswith("["):
        return False
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:  # the parser says what is wrong
        return False
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def emptied(content: dict[str, Any]) -> dict[str, Any] | None:
    """A config with its lists of mappings empty, without what is appended (`key+`); None if it has no such list."""
    found = False

    def copy(value: Any) -> Any:
        nonlocal found
        if isinstance(value, dict):
            return {key: copy(item) for key, item in value.items() if not str(key).endswith("+")}
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            found = True
            return []
        return value

    empty = copy(content)
    return empty if found else None


def content_of(arg: str) -> dict[str, Any] | None:
    """What a config holds; None for text of one, and for a file that is not there: the parser knows those that are."""
    file = Path(arg)
    if "\n" in arg or not file.exists():
        return None
    if file.is_dir():
        raise UserError(f"{file} is a folder: -c takes a YAML file")
    try:
        content = load_yaml(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{file}{where} is not YAML: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} holds no options: a config begins with keys such as model, data and trainer")
    if content.get("run") is not None:
        raise UserError(f"{file}: run is no key of a config; --run {content['run']} goes on with that run")
    return content


def name_of(config: str | None) -> str:
    """`configs/quickstart.yaml` → `quickstart`; the config.yaml of a run → the name that this run had."""
    if config is None:
        return "unnamed"
    path = Path(config)
    in_run = path.stem == "config" and (path.parent / "provenance.json").exists()
    return path.resolve().parent.parent.name if in_run else path.stem


def check_nulls(value: Any, where: str) -> None:
    """Raises UserError for a null where the class takes none, which the parser lets through."""
    if isinstance(value, list):
        for item in value:
            check_nulls(item, where)
    elif isinstance(value, dict):
        kind = resolve_name(value["class_path"]) if "class_path" in value else None
        for name, item in value.get("init_args", value).items():
            argument = argument_of(kind, name) if item is None else None
            if argument and argument.annotation in (int, float, bool, str) and argument.default is not None:
                raise UserError(f"{where}.{name} must not be null: it is of type {argument.annotation.__name__}")
            check_nulls(item, f"{where}.{name}")


def argument_of(kind: Any, name: str) -> inspect.Parameter | None:
    """An argument of a class, or of the one before it that its `*args` and `**kwargs` go to."""
    for one in getattr(kind, "__mro__", ()):
        parameters = inspect.signature(one.__init__).parameters
        if name in parameters:
            return parameters[name]
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return None
