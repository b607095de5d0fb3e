"""Imports torchmetrics lazily, without loading unused metrics.

Normally, `import torchmetrics` loads all metrics, which import torchvision, transformers, scipy and pandas if they are
installed. These imports take half of Lightning's startup time.
"""

import logging
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from typing import Any

# Modules that are quickly imported, and contain most of the packages' names.
SEARCHED = {
    "torchmetrics": ("metric", "collections", "aggregation", "classification", "regression", "wrappers"),
    "torchmetrics.functional": ("classification", "regression"),
}


def import_lazily() -> None:
    """Make `import torchmetrics` return immediately. Submodules are imported on first use.

    A name that is not in a `SEARCHED` module loads the whole package. An already imported package is not changed. This
    requires torchmetrics 1.0.
    """
    if "torchmetrics" not in sys.modules:
        package = _lazy_package("torchmetrics")
        package.__version__ = version("torchmetrics")
        package._logger = logging.getLogger("torchmetrics")  # submodules use this logger
        _lazy_package("torchmetrics.functional")


def _lazy_package(name: str) -> Any:
    """Add a package to `sys.modules` that runs its `__init__.py` only if an attribute cannot be found otherwise."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    run, package = spec.loader.exec_module, module_from_spec(spec)

    def find(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if find_spec(f"{name}.{attribute}"):
            return import_module(f"{name}.{attribute}")
        import_module("torchmetrics.utilities")  # first, because the modules import each other
        for module in SEARCHED[name]:
            if hasattr(found := import_module(f"{name}.{module}"), attribute):
                return getattr(found, attribute)
        vars(package).pop("__getattr__", None)
        run(package)
        return getattr(package, attribute)

    package.__getattr__ = find  # type: ignore[method-assign]
    sys.modules[name] = package
    return package
