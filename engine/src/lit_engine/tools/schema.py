"""Writes a JSON schema that editors use to complete, explain and check configs and overlays (`schema`).

jsonargparse generates a schema for the options of `fit`. This module adds overlays, `key+` and short class names. Run
the command again after you change your classes. `.vscode/settings.json` refers to the schema file.
"""

import argparse
import inspect
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from lit_engine._jsonargparse import schema_parts
from lit_engine.classes.names import LIBRARY, index_classes
from lit_engine.cli.arguments import OptionParser, expanded_path
from lit_engine.cli.explain import CLASS_MODULES
from lit_engine.cli.parser import LitCLI
from lit_engine.project import current, program
from lit_engine.tools.output import write_file

FILE = Path(".vscode/schema.json")
ParserJsonschema: Any
ParserJsonschema, anyof_schema, get_doc_short_description, get_callable_return_type = schema_parts()
# The schema describes the classes in these modules and the project's classes. Other classes are not checked.
MODULES = (
    *CLASS_MODULES, "lightning.pytorch.profilers", "lightning.pytorch.strategies", "torch.nn",
    "torchvision.transforms.v2",
)  # fmt: skip


def option_parser() -> argparse.ArgumentParser:
    """Return the argument parser of `schema`."""
    options = OptionParser("schema", "Writes a JSON schema for editing configs and overlays.")
    options.add_argument("--output", type=expanded_path, default=FILE, metavar="FILE", help=f"default: {FILE}")
    return options


def schema(args: Sequence[str]) -> int:
    """Write the schema and return the exit status.

    Raises:
        UserError: the file cannot be written.
    """
    file: Path = option_parser().parse_args(args).output
    write_file("schema", "output", file, json.dumps(config_schema()))
    return 0


def config_schema() -> dict[str, Any]:
    """Return a schema for the files that `fit -c` accepts. The schema follows draft 7, which editors support.

    A file with `seed_everything`, `data` and `model` is a config. Any other file is an overlay. Each object in a config
    needs a `class_path`. In an overlay, only objects in lists need a `class_path`.
    """
    made = SchemaBuilder().generate(LitCLI.parser_of(current(), "fit"))
    config, overlay = _ref("a config"), _ref("an overlay")
    complete = {"dependencies": {"init_args": ["class_path"]}, "additionalProperties": config, "items": config}
    made["$defs"] |= {"a config": complete, "an overlay": {"additionalProperties": overlay, "items": config}}
    return {
        **made,
        "$schema": "http://json-schema.org/draft-07/schema#",
        "description": f"A config of {program()}, or an overlay.",
        "if": {"required": ["seed_everything", "data", "model"]},
        "then": config,
        "else": overlay,
    }


def collect_classes() -> dict[str, type]:
    """Return the classes in the schema, keyed by full path. Classes with missing optional dependencies are skipped."""
    found = {}
    for path in (path for paths in index_classes().values() for path in paths):
        with suppress(ImportError, AttributeError):
            found[path] = resolve_name(path)
    for module in MODULES:
        found |= {f"{module}.{name}": kind for name, kind in vars(import_module(module)).items() if name[0] != "_"}
    return {path: kind for path, kind in found.items() if inspect.isclass(kind) and not inspect.isabstract(kind)}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


class SchemaBuilder(ParserJsonschema):
    """Schema builder for objects with a class_path. If it is omitted, the arguments of any valid class are accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.known = collect_classes()
        self.fitting: dict[str, list[str]] = {}  # argument type → full paths of the accepted classes
        # If several classes have the same short name, the name refers to the project's class.
        self.names = {path.rpartition(".")[2]: path for path in self.known}
        self.names |= {name: paths[0] for name, paths in index_classes().items() if len(paths) == 1}
        modules = "|".join(re.escape(module) for module in MODULES)
        self.elsewhere = {"type": "string", "pattern": rf"^(?!{current().name}\.|{LIBRARY}\.|({modules})\.\w+$).*\."}

    def set_dest(self, schema: Any, dest: str, dest_schema: Any, required: bool, descriptions: Any) -> None:
        """Add an optional key, since other files or the data may set it. For lists, also add `KEY+`, which appends."""
        lists = any("array" in kind.get("type", ()) for kind in (dest_schema, *dest_schema.get("anyOf", ())))
        for key in (dest, f"{dest}+") if lists else (dest,):
            super().set_dest(schema, key, dest_schema, False, descriptions)

    def class_ref(self, class_type: Any, action: Any, subclass: bool) -> dict[str, Any]:
        """For a protocol that creates an object, return the schema of the object."""
        return super().class_ref(get_callable_return_type(class_type) or class_type, action, subclass)

    def subclass_def(self, class_type: type, action: Any) -> dict[str, Any]:
        """Describe the valid values of an argument of this type (a class_path with or without init_args)."""
        name = self.def_name(class_type)
        fits = self.fitting[name] = [path for path, kind in self.known.items() if issubclass(kind, class_type)]
        cases = []
        for path in fits:
            if path not in self.defs:
                self.defs[path] = {}  # prevents infinite recursion if a class accepts objects of its own type
                about = get_doc_short_description(self.known[path])
                self.defs[path] |= self.class_parser_schema(path, action, about)
            names = [path, *(name for name, named in self.names.items() if named == path)]
            is_it = {"required": ["class_path"], "properties": {"class_path": {"enum": names}}}
            cases.append({"if": is_it, "then": {"properties": {"init_args": _ref(path)}}})
        short = [name for name, path in self.names.items() if path in fits]
        class_path = {"anyOf": [{"enum": [*short, *fits]}, self.elsewhere]}
        unnamed = {"properties": {"init_args": _ref(f"{name} of any class")}}
        return {
            "type": ["string", "object"],
            "properties": {
                "class_path": class_path,
                "init_args": {"type": "object"},
                "dict_kwargs": {"type": "object"},
            },
            "additionalProperties": False,
            "allOf": [
                {"if": {"type": "string"}, "then": class_path},
                {"if": {"required": ["class_path"]}, "else": unnamed},
                *cases,
            ],
        }

    def reachable_defs(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return all definitions. For each base class, one definition accepts the arguments of all subclasses."""
        for name, paths in self.fitting.items():
            found: dict[str, list[Any]] = {}
            for path in paths:
                for key, value in self.defs[path].get("properties", {}).items():
                    kind = {word: value[word] for word in value if word not in ("default", "description")}
                    found.setdefault(key, []).append(kind)
            values = {key: anyof_schema(kinds) for key, kinds in found.items()}
            self.defs[f"{name} of any class"] = {"properties": values, "additionalProperties": False}
        return self.defs

    def callable_schema(self, typehint: Any, action: Any) -> dict[str, Any]:
        """For a callable that creates an object, return the schema of the object."""
        made = super().callable_schema(typehint, action)
        return next((one for one in made.get("anyOf", ()) if "$ref" in one), made)

    def tuple_schema(self, typehint: Any, action: Any) -> dict[str, Any]:
        """Describe a tuple in the syntax of JSON Schema draft 7."""
        made = super().tuple_schema(typehint, action)
        return {**made, "items": made.pop("prefixItems"), "additionalItems": False} if "prefixItems" in made else made
