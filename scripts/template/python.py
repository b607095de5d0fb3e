"""Takes imports of what has gone out of Python files, and finds those that lead nowhere."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Names:
    """What modules of a project define.

    Args:
        package: its name.
        modules: dotted name → the names that it defines or imports.
    """

    package: str
    modules: dict[str, frozenset[str]]

    @classmethod
    def of(cls, sources: Mapping[str, str], package: str) -> "Names":
        """Reads the modules under src/, and the helpers of tests and benchmarks, which are imported by their stem."""
        modules = {}
        for path, text in sources.items():
            if path.endswith(".py"):
                modules[module_name(path)] = _defined(text)
        return cls(package, modules)

    def has(self, module: str, name: str | None = None) -> bool:
        """Whether there is such a module, and such a name or submodule in it."""
        if name is None or f"{module}.{name}" in self.modules:
            return module in self.modules
        return name in self.modules.get(module, ())

    def in_package(self) -> set[str]:
        """All names that begin with a capital letter, as classes do, in the modules of the package."""
        inside = (names for module, names in self.modules.items() if module.split(".")[0] == self.package)
        return {name for names in inside for name in names if name[:1].isupper()}


def module_name(path: str) -> str:
    """`src/a/b.py` → `a.b`, `tests/data/helper.py` → `helper`, as they are imported."""
    pure = PurePosixPath(path)
    if pure.parts[0] != "src":
        return pure.stem
    parts = [*pure.parts[1:-1], pure.stem]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _defined(text: str) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return frozenset(names)


@cache
def _imports(text: str) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]


def without_gone(sources: dict[str, str], before: Names) -> dict[str, str]:
    """Sources without imports of names that were there before and are not any more, until none is left."""
    while True:
        now = Names.of(sources, before.package)
        changed = {path: new for path, text in sources.items() if (new := _cleaned(path, text, before, now)) != text}
        if not changed:
            return sources
        sources = {**sources, **changed}


def _cleaned(path: str, text: str, before: Names, now: Names) -> str:
    if not path.endswith(".py"):
        return text
    lines, lost = text.splitlines(keepends=True), set()
    for node in sorted(_imports(text), key=lambda node: -node.lineno):
        kept = [alias for alias in node.names if not _gone(path, node, alias, before, now)]
        if len(kept) == len(node.names):
            continue
        lost |= {alias.asname or alias.name for alias in node.names if alias not in kept}
        indent = lines[node.lineno - 1][: node.col_offset]
        names = [alias.name + (f" as {alias.asname}" if alias.asname else "") for alias in kept]
        start = f"from {'.' * node.level}{node.module or ''} import " if isinstance(node, ast.ImportFrom) else "import "
        lines[node.lineno - 1 : node.end_lineno] = [f"{indent}{start}{', '.join(names)}\n"] if names else []
    text = "".join(lines)
    return _without_exports(text, lost) if lost else text


def _module(path: str, node: ast.ImportFrom) -> str:
    """The module that names are imported from, in full where the file says `..errors`."""
    folder = path.split("/")[1:-1]  # below src/
    return ".".join([*folder[: len(folder) - node.level + 1], node.module or ""] if node.level else [node.module or ""])


def _gone(path: str, node: ast.Import | ast.ImportFrom, alias: ast.alias, before: Names, now: Names) -> bool:
    if isinstance(node, ast.Import):
        return before.has(alias.name) and not now.has(alias.name)
    module = _module(path, node)
    return before.has(module, alias.name) and not now.has(module, alias.name)


def _without_exports(text: str, lost: set[str]) -> str:
    """Takes names out of `__all__`; a list over several lines stays one."""
    for node in ast.parse(text).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id == "__all__" and isinstance(node, ast.Assign):
            names = [f'"{name}"' for name in ast.literal_eval(node.value) if name not in lost]
            several = node.end_lineno != node.lineno
            new = "[\n" + "".join(f"    {name},\n" for name in names) + "]" if several else f"[{', '.join(names)}]"
            lines = text.splitlines(keepends=True)
            lines[node.lineno - 1 : node.end_lineno] = [f"__all__ = {new}\n"]
            return "".join(lines)
    return text


def dead_imports(sources: Mapping[str, str], before: Names) -> list[str]:
    """`FILE: import of NAME`, where a name of the project is imported that is not there."""
    now = Names.of(sources, before.package)
    found = []
    for path, text in sources.items():
        for node in _imports(text) if path.endswith(".py") else ():
            for alias in node.names:
                module = alias.name if isinstance(node, ast.Import) else _module(path, node)
                name = None if isinstance(node, ast.Import) else alias.name
                ours = module.split(".")[0] == before.package or module in before.modules
                if ours and not now.has(module, name):
                    found.append(f"{path}: import of {module}{f'.{name}' if name else ''}")
    return found


def imported(sources: Mapping[str, str]) -> set[str]:
    """First components of all modules that are imported."""
    found = set()
    for path, text in sources.items():
        for node in _imports(text) if path.endswith(".py") else ():
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found
