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

# Names that Lightning or this library uses, and the modules that define them.
USED = {"Metric": "torchmetrics.metric", "MetricCollection": "torchmetrics.collections"}


def import_lazily() -> None:
    """Make `import torchmetrics` return immediately. Submodules and the names in `USED` are imported on first use.

    Other names load the whole package. An already imported package is not changed. This requires torchmetrics 1.0.
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
        if attribute in USED:
            import_module("torchmetrics.utilities")  # first, because the modules import each other
            return getattr(import_module(USED[attribute]), attribute)
        if find_spec(f"{name}.{attribute}"):
            return import_module(f"{name}.{attribute}")
        vars(package).pop("__getattr__", None)
        run(package)
        return getattr(package, attribute)

    package.__getattr__ = find  # type: ignore[method-assign]
    sys.modules[name] = package
    return package
