"""Links from attributes of the data module to arguments of the model, such as the number of classes."""

import inspect
from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from textwrap import shorten
from typing import Any

from jsonargparse import Namespace
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lit_engine.classes.names import drop_weights, find_argument
from lit_engine.data.module import build_datamodule
from lit_engine.errors import UserError
from lit_engine.training.task import Task


def active_links(model: Any, links: Mapping[str, str]) -> dict[str, str]:
    """Return the links that apply to the model in a config.

    If the model is not a `Task`, these are the links to arguments that have no default and are not set.
    """
    if issubclass(resolve_name(model["class_path"]), Task):
        return dict(links)
    return {
        source: links[source]
        for source, argument, owner in _iterate_links(model, links)
        if argument.default is argument.empty and owner.get("init_args", {}).get(argument.name) is None
    }


def hyper_parameters(model: dict[str, Any], data: Any, links: Mapping[str, str]) -> dict[str, Any]:
    """Return the model's config with the linked values, as plain data.

    `load_from_checkpoint` can create the model from this config.
    """
    values: dict[str, Any] = {**model.get("init_args", {}), **model.get("dict_kwargs", {})}
    for source, argument, owner in _iterate_links({"class_path": model["class_path"], "init_args": values}, links):
        if hasattr(data, source):
            owner.setdefault("init_args", {})[argument.name] = _plain(getattr(data, source))
    drop_weights(values)
    return {"_instantiator": "lightning.pytorch.cli.instantiate_module", "_class_path": model["class_path"], **values}


def add_given(dumped: dict[str, Any], parsed: Namespace, links: Mapping[str, str], active: Mapping[str, str]) -> None:
    """Restore linked arguments that are set or whose link is not active. The dump of the model config omits them."""
    for (source, argument, owner), (_, _, given) in zip(
        _iterate_links(dumped, links), _iterate_links(parsed, links), strict=True
    ):
        arguments = given.get("init_args", {})
        value = arguments.get(argument.name)
        is_set = value is not None and _plain(value) != _plain(argument.default)
        if is_set or (source not in active and argument.name in arguments):
            owner.setdefault("init_args", {})[argument.name] = _plain(value)


def check_links(model: dict[str, Any], data: Any, links: Mapping[str, str]) -> None:
    """Raise UserError if an explicitly set argument differs from the linked value, which takes precedence."""
    for source, argument, owner in _iterate_links(model, links):
        by_hand = owner.get("init_args", {}).get(argument.name)
        if by_hand is None or not hasattr(data, source):
            continue
        if by_hand != _plain(apply_to_collection(getattr(data, source), Tensor, Tensor.tolist)):
            raise UserError(
                f"{owner['class_path']}: {argument.name} comes from {type(data).__name__} "
                f"({shorten(str(getattr(data, source)), 60)}), but was set to {by_hand}: remove the option"
            )


def describe_missing_link(model: dict[str, Any], data: dict[str, Any], links: Mapping[str, str]) -> str | None:
    """Describe which attributes the model needs but the data module lacks. Return None if no attribute is missing."""
    try:
        known = build_datamodule(data)
        missing = [s for s, a, _ in _iterate_links(model, links) if a.default is a.empty and not hasattr(known, s)]
    except Exception:  # the original error is reported instead
        return None
    needs = f"{data['class_path']} must have {', '.join(missing)}, as required by {model['class_path']} or its parts"
    return needs if missing else None


def _iterate_links(model: Any, links: Mapping[str, str]) -> Iterator[tuple[str, inspect.Parameter, Any]]:
    """For each link, yield the data attribute, the linked argument, and the config of the class that accepts it."""
    for source, target in links.items():
        *path, name = target.split(".init_args.")
        owner: dict[str, Any] | None = model
        for key in path:
            owner = owner.get("init_args", {}).get(key) if owner else None
        if isinstance(owner, Namespace | dict) and "class_path" in owner:
            argument = find_argument(resolve_name(owner["class_path"]), name)
            if argument is not None:
                yield source, argument, owner


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
