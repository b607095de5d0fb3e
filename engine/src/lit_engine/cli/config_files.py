"""Reads configs, and converts between configs and YAML text."""

import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from lit_engine.errors import UserError
from lit_engine.run.directory import YAML_LOADER

# Some of Lightning's arguments are annotated as `str`, but their default is a member of an Enum.
yaml.SafeDumper.add_multi_representer(Enum, lambda dumper, value: dumper.represent_data(value.value))
# Hints for common errors of the YAML parser.
_HINTS = {
    "mapping values are not allowed": " (check the indentation, and quote text that contains a colon and a space)",
    "cannot start any token": " (indent with spaces, not tabs, and quote text that starts with a special character)",
}


def name_of(config: str | None) -> str:
    """Return a config's name, such as `quickstart` for configs/quickstart.yaml or runs/quickstart/NAME/config.yaml."""
    if config is None or (not os.path.exists(config) and isinstance(parse_text(config), dict)):  # YAML text
        return "unnamed"
    path = Path(config)
    in_run = path.stem == "config" and (path.parent / "provenance.json").exists()
    return Path(os.path.abspath(path)).parent.parent.name if in_run else path.stem


def content_of(config: str) -> dict[str, Any] | None:
    """Return the content of a config file or of YAML text, or None if the file does not exist.

    Raises:
        UserError: the path is a folder, or the file is not valid YAML, contains no options, or sets `run`.
    """
    file = Path(config)
    if not os.path.exists(file):  # unlike `Path.exists`, accepts text of any length
        content = parse_text(config)
        return content if isinstance(content, dict) else None
    if file.is_dir():
        raise UserError(f"{file} is a folder: a config must be a YAML file")
    try:
        content = load_yaml(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        hint = next((hint for text, hint in _HINTS.items() if text in problem), "")
        raise UserError(f"{file}{where} is not valid YAML: {problem}{hint}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} contains no options: a config has keys such as model, data and trainer")
    if content.get("run") is not None:
        raise UserError(f"{file}: `run` is not a config key; use --run {content['run']} to resume that run")
    return content


def is_complete(config: str) -> bool:
    """Return whether a config sets both a data class and a model class."""
    content = content_of(config) or {}
    return all(isinstance(part := content.get(key), dict) and "class_path" in part for key in ("data", "model"))


class _Loader(YAML_LOADER):
    """YAML loader that rejects duplicate keys. The default loader silently drops the first value."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen - {"<<"}:
                raise yaml.MarkedYAMLError(problem=f"duplicate key {key.value}", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """Parse YAML. Raise yaml.YAMLError if the text is not valid or a key occurs twice."""
    return yaml.load(text, _Loader)


def parse_text(text: str) -> Any:
    """Parse YAML, or return None if it is not valid."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:  # the parser reports the error
        return None


def as_yaml(content: Mapping[str, Any]) -> str:
    """Return plain data as YAML with one line per option."""
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def has_mappings(value: Any) -> bool:
    """Return whether a config contains a list of mappings. Lists to append (`key+`) are ignored."""
    if isinstance(value, dict):
        return any(has_mappings(item) for key, item in value.items() if not str(key).endswith("+"))
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def empty_lists(value: Any) -> Any:
    """Return a copy of a config with all lists of mappings emptied. Lists to append (`key+`) are omitted."""
    if isinstance(value, dict):
        return {key: empty_lists(item) for key, item in value.items() if not str(key).endswith("+")}
    return [] if has_mappings(value) else value


def as_line(value: Any) -> str:
    """Return plain data as single-line YAML."""
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=100_000).removesuffix("...\n").strip()
