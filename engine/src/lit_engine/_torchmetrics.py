"""Imports torchmetrics without loading metrics that are not used.

`import torchmetrics` imports all of its metrics, and with them torchvision, transformers, scipy and pandas if they are
installed. This is half of the time that Lightning takes to start.
"""

import logging
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from typing import Any

# The names that Lightning and this library use → the modules to import, in an order that torchmetrics supports.
USED = {
    "Metric": ("torchmetrics.utilities", "torchmetrics.metric"),
    "MetricCollection": ("torchmetrics.utilities", "torchmetrics.collections"),
}


def import_lazily() -> None:
    """Make `import torchmetrics` return at once, and import a name on first use. Any other name imports everything.

    This does nothing if torchmetrics was already imported. Since torchmetrics 1.0.
    """
    if "torchmetrics" not in sys.modules:
        package = _lazy_package("torchmetrics")
        package.__version__ = version("torchmetrics")
        package._logger = logging.getLogger("torchmetrics")  # used by its modules
        _lazy_package("torchmetrics.functional")


def _lazy_package(name: str) -> Any:
    """Add a package to `sys.modules` whose `__init__.py` only runs if a name is needed that no submodule has."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    run, package = spec.loader.exec_module, module_from_spec(spec)

    def find(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if name == "torchmetrics" and attribute in USED:
            return getattr([import_module(one) for one in USED[attribute]][-1], attribute)
        if find_spec(f"{name}.{attribute}"):
            return import_module(f"{name}.{attribute}")
        vars(package).pop("__getattr__", None)
        run(package)
        return getattr(package, attribute)

    package.__getattr__ = find  # type: ignore[method-assign]
    sys.modules[name] = package
    return package
