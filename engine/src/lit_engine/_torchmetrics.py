"""Imports torchmetrics lazily, without loading unused metrics.

Normally, `import torchmetrics` loads all metrics, which import torchvision, transformers, scipy and pandas if they are
installed. These imports take half of Lightning's startup time.
"""

import ast
import logging
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from typing import Any


def import_lazily() -> None:
    """Make `import torchmetrics` return immediately. Submodules and metrics are imported on first use.

    An already imported package is not changed. This requires torchmetrics 1.0.
    """
    if "torchmetrics" not in sys.modules:
        package = _lazy_package("torchmetrics")
        package.__version__ = version("torchmetrics")
        package._logger = logging.getLogger("torchmetrics")  # submodules use this logger
        _lazy_package("torchmetrics.functional")
        del package.__path__  # Python reads this attribute before it imports a submodule


def _lazy_package(name: str) -> Any:
    """Add a package to `sys.modules` that runs the import statements of its `__init__.py` on first use.

    The whole file is executed only if any other variable in it is accessed.
    """
    spec: Any = find_spec(name)
    loader, package = spec.loader, module_from_spec(spec)

    @cache
    def imports() -> tuple[str, dict[str, tuple[str, str]]]:
        """Return the source code and a dict that maps each imported name to its module and its name in that module."""
        source = loader.get_source(name)
        found = [
            node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) and node.module != name
        ]
        return source, {one.asname or one.name: (str(node.module), one.name) for node in found for one in node.names}

    def find(attribute: str) -> Any:
        if attribute == "__path__":
            package.__path__ = spec.submodule_search_locations
            import_module("torchmetrics.utilities")  # first, because the modules import each other
            return package.__path__
        if attribute.startswith("__") and attribute != "__all__":
            raise AttributeError(attribute)
        if find_spec(f"{name}.{attribute}"):
            return import_module(f"{name}.{attribute}")
        source, names = imports()
        if attribute in names:
            module, original = names[attribute]
            return getattr(import_module(module), original)
        if attribute not in source:
            raise AttributeError(attribute)
        vars(package).pop("__getattr__", None)
        loader.exec_module(package)
        return getattr(package, attribute)

    package.__getattr__ = find  # type: ignore[method-assign]
    sys.modules[name] = package
    return package
