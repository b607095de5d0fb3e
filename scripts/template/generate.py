"""Makes the files of a new project from those of the template, in memory."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from template.families import FAMILIES, dropped, matches
from template.markdown import Gone, prune, readme, without_asides
from template.marks import apply_marks
from template.names import rename
from template.python import Names, dead_imports, imported, without_gone
from template.sources import File, Template

# new names in the pages and tests of the tool; in two parts here, which no renaming finds
EXAMPLES = tuple(f"{bird}_lab" for bird in ("kite", "heron", "swift"))


@dataclass(frozen=True)
class Choice:
    """What the user chose; recorded in `.template.toml`.

    Args:
        name: of the package.
        keep: families of examples.
        benchmarks: whether benchmarks/ is kept.
        tool: whether scripts/ and its tests are kept.
    """

    name: str
    keep: tuple[str, ...]
    benchmarks: bool = False
    tool: bool = False

    @property
    def distribution(self) -> str:
        """Name of the distribution and of the console script."""
        return self.name.replace("_", "-")

    def arguments(self) -> list[str]:
        """The command line of it."""
        options = [f"--keep={','.join(self.keep)}"]
        return [self.name, *options, *["--keep-benchmarks"] * self.benchmarks, *["--keep-tool"] * self.tool]


@dataclass
class Project:
    """A new project, not written yet.

    Attributes:
        files: path → file.
        left_out: reason → paths in the template.
        renamed: path in the new project → tokens replaced in it.
        moved: path in the template → another one in the new project.
        problems: what points to something that was left out.
    """

    files: dict[str, File] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    renamed: dict[str, int] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def generate(template: Template, choice: Choice) -> Project:
    """The project that the user chose."""
    project = Project()
    old = template.package
    source = f"src/{old}"
    files = template.read()
    for reason, patterns in dropped(choice.keep, choice.benchmarks, choice.tool).items():
        project.left_out[reason] = [path for path in files if matches(path, patterns, source)]
    gone_files = {path for paths in project.left_out.values() for path in paths}
    texts = {path: unsilenced(text) for path, file in files.items() if (text := file.text()) is not None}
    before = Names.of(texts, old)
    texts = {path: text for path, text in texts.items() if path not in gone_files}
    kept = [*choice.keep, *["benchmarks"] * choice.benchmarks, *["tool"] * choice.tool]
    texts = {p: apply_marks(_reworded(p, text, choice, old), kept, p, choice.tool) for p, text in texts.items()}
    texts = without_gone(texts, before)
    project.problems = dead_imports(texts, before)
    lost = before.in_package() - Names.of(texts, old).in_package()
    headings = [h for name, family in FAMILIES.items() if name not in choice.keep for h in family.headings]
    gone = Gone(gone_files | _folders(gone_files, set(files) - gone_files), lost, headings)
    project.problems += _mentions(texts, gone_files)
    texts = {path: _fresh(path, text, gone, choice, template, texts) for path, text in texts.items()}

    for path, file in files.items():
        if path in gone_files:
            continue
        target, _ = rename(path, old, choice.name)
        if target != path:
            project.moved[path] = target
        content = file.content
        if path in texts:
            text = texts[path]
            if choice.name in EXAMPLES:  # pages and tests of the tool speak of this name as the new one
                text, _ = rename(text, choice.name, next(n for n in EXAMPLES if n not in (choice.name, old)))
            text, count = rename(text, old, choice.name)
            content = text.encode()
            if count:
                project.renamed[target] = count
        project.files[target] = File(content, file.executable, file.link)
    project.files[".template.toml"] = File(record(template, choice).encode())
    return project


def unsilenced(text: str) -> str:
    """Without the comments about lines that a longer name had made too long; the formatter writes them anew."""
    return re.sub(r"  # noqa: E501$", "", text, flags=re.MULTILINE)


def _reworded(path: str, text: str, choice: Choice, old: str) -> str:
    """Without the texts about dropped families that no mark can be written at."""
    for found, instead in replacements(path, [name for name in FAMILIES if name not in choice.keep], old):
        text = text.replace(found, instead, 1)
    return text


def replacements(path: str, families: Sequence[str], old: str) -> list[tuple[str, str]]:
    """Texts in a file that go with families, and what stands there without them."""
    command = old.replace("_", "-")
    pairs = [
        pair
        for name in families
        for pattern, texts in FAMILIES[name].texts.items()
        if matches(path, [pattern], f"src/{old}")
        for pair in texts
    ]
    return [(found.replace("COMMAND", command), instead.replace("COMMAND", command)) for found, instead in pairs]


def _folders(gone: set[str], kept: set[str]) -> set[str]:
    """Folders of which nothing is left, as `text/`."""
    before, after = (
        {f"{parent}/" for path in paths for parent in PurePosixPath(path).parents} for paths in (gone, kept)
    )
    return before - after - {"./"}


def _mentions(texts: dict[str, str], gone: set[str]) -> list[str]:
    """Configs that have gone and are still named where they would be run: in code and in other configs."""
    configs = [path for path in gone if path.startswith("configs/")]
    read = {path: text for path, text in texts.items() if path.endswith((".py", ".yaml", ".sh", "Makefile"))}
    found = [(path, config) for path, text in read.items() for config in configs if _runs(config, path, text)]
    return [f"{path}: {config}" for path, config in found if not path.startswith("scripts/")]


def _runs(config: str, path: str, text: str) -> bool:
    name = config.rpartition("/")[2]
    return (path.startswith("tests/") and f'"{name}"' in text) or f"-c {config}" in text


def _fresh(path: str, text: str, gone: Gone, choice: Choice, template: Template, texts: dict[str, str]) -> str:
    """One file of the project, still under the old name."""
    old = template.package
    if path == "README.md":
        return readme(text, old, gone, list(texts))
    if path == "CHANGELOG.md":
        return "# Changelog\n\n## Unreleased\n\n- Made from a template of PyTorch Lightning projects.\n"
    if path == "pyproject.toml":
        return _pyproject(text, choice, texts, old)
    if path == f"src/{old}/__init__.py":
        return text.replace("A PyTorch Lightning project template.", "A PyTorch Lightning project.", 1)
    if path == "mkdocs.yml":
        text = text.replace("site_description: A PyTorch Lightning project template", "site_description: A project")
        lines = [(line, re.match(r" *(?:# )?- [^:]*: (\S+\.md)$", line.rstrip())) for line in text.splitlines(True)]
        return "".join(line for line, page in lines if page is None or f"docs/{page[1]}" not in gone.files)
    if path == "requirements.lock" and len(choice.keep) < len(FAMILIES):
        note = "# Packages of examples that were dropped are still here: `make lock` renews this file.\n"
        return f"{note}{text.removeprefix(note)}"
    if path.endswith((".md", ".yaml", ".py")) and not path.startswith("scripts/"):
        text = without_asides(text, gone.files)
    return prune(text, gone) if path.endswith(".md") else text


def _pyproject(text: str, choice: Choice, texts: dict[str, str], old: str) -> str:
    text = re.sub(r'^description = ".*"$', 'description = "A PyTorch Lightning project."', text, flags=re.MULTILINE)
    used = imported(texts)
    for name, family in FAMILIES.items():
        for package in family.dependencies if name not in choice.keep else ():
            if package not in used:
                text = re.sub(rf'^    "{package}[^\w-].*\n', "", text, flags=re.MULTILINE)
    if not choice.benchmarks:
        text = text.replace('files = ["src", "benchmarks"]', 'files = ["src"]')
    return layers(text, Names.of(texts, old))


def layers(text: str, modules: Names) -> str:
    """pyproject.toml without modules that have gone in the layers of import-linter, such as `a : b` or `a | b`."""

    def kept(found: re.Match[str]) -> str:
        names = re.findall(r"( [:|] )?([\w.]+)", found[1])
        left = [(separator, name) for separator, name in names if modules.has(name)]
        return f'    "{left[0][1]}{"".join(separator + name for separator, name in left[1:])}",\n' if left else ""

    pattern = rf'^    "({modules.package}\.[\w.]+(?: [:|] {modules.package}\.[\w.]+)*)",\n'
    return re.sub(pattern, kept, text, flags=re.MULTILINE)


def record(template: Template, choice: Choice) -> str:
    """The text of `.template.toml`."""
    lines = [
        "# What this project was made from; scripts/update_project.py of the template reads and renews it.",
        f"commit = {json.dumps(template.commit or '')}",
        f"name = {json.dumps(choice.name)}",
        f"keep = {json.dumps(list(choice.keep))}",
        f"benchmarks = {json.dumps(choice.benchmarks)}",
        f"tool = {json.dumps(choice.tool)}",
    ]
    return "\n".join(lines) + "\n"
