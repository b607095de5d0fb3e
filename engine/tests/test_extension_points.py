"""The optional attributes and methods listed in `lit_engine.extension_points`."""

import inspect
import re
from pathlib import Path

import pytest

import lit_engine
from lit_engine import ImageData, TabularData, WandbLogger
from lit_engine import extension_points as points

ROOT = Path(lit_engine.__file__).parent
KINDS = [kind for kind in vars(points).values() if getattr(kind, "__module__", None) == points.__name__]
MEMBERS = [name for kind in KINDS for name in kind.__annotations__ | vars(kind) if not name.startswith("_")]


@pytest.mark.parametrize("name", MEMBERS)
def test_the_library_uses_each_listed_member(name: str) -> None:
    """A member that is renamed in the library must not stay on the list."""
    texts = [file.read_text() for file in ROOT.rglob("*.py") if file.name != "extension_points.py"]
    assert any(re.search(rf'\.{name}\b|"{name}"', text) for text in texts)


@pytest.mark.parametrize(
    ("listed", "ours", "names"),
    [
        (points.DataExtensions, ImageData, {"predict_from", "has_split", "describe_preparation"}),
        (points.DataExtensions, TabularData, {"predict_from", "has_split"}),
        (points.LoggerExtensions, WandbLogger, {"finish", "log_image", "log_table"}),
    ],
)
def test_our_classes_accept_the_listed_arguments(listed: type, ours: type, names: set[str]) -> None:
    for name in names:
        arguments = inspect.signature(getattr(listed, name)).parameters
        positional = [one for one in arguments if one != "step"]  # the library passes `step` by name
        inspect.signature(getattr(ours, name)).bind(*positional, **{one: 0 for one in arguments if one == "step"})
