"""Imports parts of torchmetrics and torch lazily, because most commands do not need them.

Normally, `import torchmetrics` loads all metrics, which import torchvision, transformers, scipy and pandas if they are
installed. Lightning also imports torch's compiler, but only to recognize compiled modules. Together, these imports take
most of Lightning's startup time.
"""

import ast
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"


def import_lazily() -> None:
    """Speed up `import torchmetrics`, which loads all metrics, and `import lightning`, which loads torch's compiler.

    Submodules and metrics of torchmetrics are imported on first use, and torch imports the compiler when an optimizer
    is created. Already imported packages are not changed. This requires torchmetrics 1.x.
    """
    if "lightning" not in sys.modules:
        sys.meta_path.insert(0, _LightningFinder())
    if "torchmetrics" not in sys.modules:
        package = _lazy_package("torchmetrics")
        package.__version__ = version("torchmetrics")
        package._logger = logging.getLogger("torchmetrics")  # submodules use this logger
        _lazy_package("torchmetrics.functional")
        del package.__path__  # Python reads this attribute before it imports a submodule


def _lazy_package(name: str) -> Any:
    """Add a package to `sys.modules` that imports each name in its `__init__.py` on first use.

    The whole file is executed only on access to a variable that is defined in the file itself.
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
            import_module("torchmetrics.utilities")  # imported first to avoid a circular import
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


class _LightningFinder(MetaPathFinder):
    """Finder that makes the first `import lightning` use a stand-in for torch's compiler."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "lightning":
            return None
        sys.meta_path.remove(self)
        spec: Any = find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with _stand_in_for_compiler():
                execute(module)

        spec.loader.exec_module = exec_module
        return spec


@contextmanager
def _stand_in_for_compiler() -> Iterator[None]:
    """Swap torch's compiler for a module with the two names Lightning 2.6 needs. Any other name imports it."""
    import torch

    if COMPILER in sys.modules:
        yield
        return
    stand_in: Any = ModuleType(COMPILER)
    stand_in.OptimizedModule, stand_in.disable = _CompiledModule, _disable

    def find(name: str) -> Any:
        if name.startswith("__"):  # for example, Python checks whether a module has a `__path__`
            raise AttributeError(name)
        remove()
        return getattr(import_module(COMPILER), name)

    def remove() -> None:
        if sys.modules[COMPILER] is stand_in:
            del sys.modules[COMPILER], torch._dynamo

    stand_in.__getattr__ = find
    sys.modules[COMPILER] = torch._dynamo = stand_in
    try:
        yield
    finally:
        remove()


class _IsCompiled(type):
    def __instancecheck__(cls, module: Any) -> bool:
        compiler = sys.modules.get(COMPILER)
        return compiler is not None and isinstance(module, compiler.OptimizedModule)


class _CompiledModule(metaclass=_IsCompiled):
    """Stand-in for the class of modules that `torch.compile` returns. It supports `isinstance` checks."""


def _disable(function: Callable[..., Any], recursive: bool = True, **options: Any) -> Callable[..., Any]:
    """Exclude a function from compilation, like `torch.compiler.disable`, but without importing the compiler."""

    @cache
    def disabled() -> Callable[..., Any]:
        return sys.modules[COMPILER].disable(function, recursive, **options)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (disabled() if COMPILER in sys.modules else function)(*args, **kwargs)

    return call
