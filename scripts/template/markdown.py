"""README and docs of the new project: those of the template without what has gone."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from template.marks import is_mark

# `python benchmarks/x.py` in brackets of its own, which can be left out
_ASIDE = re.compile(r"\s*\(`(?:python )?benchmarks/(?P<file>\w+\.py)`\)")
_BENCHMARK = re.compile(r"(`?)(?:python )?benchmarks/(?P<file>\w+\.py)\1")


@dataclass(frozen=True)
class Gone:
    """What is not there any more.

    Args:
        files: paths of files, from the root.
        names: classes.
        headings: sections that are left out whole.
    """

    files: Collection[str]
    names: Collection[str]
    headings: Collection[str]

    def mentioned(self, text: str) -> bool:
        """Whether a text names something that has gone: a file by its path, a class in code."""
        if any(path in text for path in self.files):
            return True
        code = " ".join(re.findall(r"`[^`]*`", text))
        return any(name in self.names for name in re.findall(r"\w+", code)) or any(
            f"`{short}`" in code or f"]({short})" in text for short in self.short()
        )

    def short(self) -> list[str]:
        """Paths as pages write them: from docs/, or from the folder of the package."""
        inside = [path.split("/", 2)[2] for path in self.files if path.startswith("src/")]
        return inside + [path.removeprefix("docs/") for path in self.files if path.startswith("docs/")]

    def unlisted(self, text: str) -> str:
        """The text without what has gone in lists of code: `a.py`, `b.py` or `c.py` (an aside)."""
        gone = {*self.files, *self.short(), *self.names}
        text = re.sub(r"(?:,| or) `([\w./-]+)`(?: \([^()]*\))?", lambda f: "" if f[1] in gone else f[0], text)
        return re.sub(r"`([\w./-]+)`, (?=`)", lambda f: "" if f[1] in gone else f[0], text)


def without_asides(text: str, gone: Collection[str]) -> str:
    """Benchmarks that have gone are the template's own; a mention in brackets of its own is left out."""

    def instead(words: str) -> Callable[[re.Match[str]], str]:
        return lambda found: words.format(*found.groups()) if f"benchmarks/{found['file']}" in gone else found[0]

    return _BENCHMARK.sub(instead("{1} of the template"), _ASIDE.sub(instead(""), text))


def prune(text: str, gone: Gone, sentences: bool = True) -> str:
    """Leaves out sections, sentences, rows of tables and commands that name what has gone.

    Without `sentences` paragraphs go as a whole, unless what names it is a link.
    """
    kept: list[str] = []
    skipped: int | None = None  # level of the heading of a section that is left out
    for block in blocks(text):
        level = _level(block)
        if level:
            if skipped is not None and level > skipped:
                continue
            skipped = level if block.lstrip("# ").strip() in gone.headings else None
        if skipped is not None:
            continue
        rest = block if is_mark(block) else _rest(block, gone, sentences)
        if rest:
            kept.append(rest)
        elif kept and kept[-1].rstrip().endswith(":") and not _level(kept[-1]):
            kept.pop()  # it introduced what has gone
    return "\n\n".join(_without_empty_sections(kept)) + "\n"


def blocks(text: str) -> list[str]:
    """Paragraphs, headings, tables and fenced code, which may have empty lines."""
    found: list[str] = []
    fenced = False
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        if fenced:
            found[-1] += f"\n\n{block}"
        else:
            found.append(block)
        if len(re.findall(r"^```", block, re.MULTILINE)) % 2:
            fenced = not fenced
    return found


def _level(block: str) -> int:
    found = re.match(r"#+(?= )", block)
    return len(found[0]) if found else 0


def _rest(block: str, gone: Gone, sentences: bool) -> str:
    if not block.startswith("```"):
        block = gone.unlisted(block)
    lines = block.split("\n")
    if block.startswith("```bash"):
        inside = [line for line in lines[1:-1] if not gone.mentioned(line)]
        return "\n".join([lines[0], *inside, lines[-1]]) if any(inside) else ""
    if block.startswith("|"):
        rows = [line for line in lines[2:] if not gone.mentioned(line)]
        return "\n".join([*lines[:2], *rows]) if rows else ""
    if lines[0].startswith(("- ", "* ")):
        items = [item for item in re.split(r"\n(?=[-*] )", block) if not gone.mentioned(item)]
        return "\n".join(items)
    if gone.mentioned(block) and not block.startswith(("```", "!")):
        parts = re.split(r"(?<=[.:;])\s", block)
        block = " ".join(part for part in parts if not ((sentences or "](" in part) and gone.mentioned(part)))
    return "" if gone.mentioned(block) else block


def _without_empty_sections(kept: list[str]) -> list[str]:
    found: list[str] = []
    for block in reversed(kept):
        after = _level(found[-1]) if found else 1
        if _level(block) > 1 and 0 < after <= _level(block):
            continue
        found.append(block)
    return found[::-1]


def readme(old: str, package: str, gone: Gone, pages: Collection[str]) -> str:
    """The README of the new project, still under the old name: fresh words, then what of the old one applies.

    Args:
        old: README of the template.
        package: name of the package.
        gone: what is not there any more.
        pages: files of the new project.
    """
    body = re.sub(r"\nMIT licence\.\s*$", "\n", old[old.index("\n## ") + 1 :])
    body = _ASIDE.sub(lambda found: "" if f"benchmarks/{found['file']}" in gone.files else found[0], body)
    # the template may be a project that was made by this tool
    body = prune(body, replace(gone, headings=[*gone.headings, "The template"]), sentences=False)
    numbers = "The numbers are those that the template gives for these configs.\n"
    if numbers not in body:
        body = body.replace("\n## Examples\n", f"\n## Examples\n\n{numbers}", 1)
    start = (
        f"# {package}\n\nTrained with [PyTorch Lightning](https://lightning.ai/docs/pytorch/): everything is "
        "configured by typed\nconstructors from one YAML, and a run is one directory with its config, checkpoints, "
        "metrics and figures.\n"
    )
    end = ""
    if "docs/new-task.md" in pages and "docs/new-task.md" not in body:
        end += "How to add a task, step by step: [docs/new-task.md](docs/new-task.md).\n\n"
    end += (
        "## The template\n\n`.template.toml` says which commit of the template this project was made from. In a newer "
        "checkout of the template,\n`python scripts/update_project.py FOLDER_OF_THIS_PROJECT` merges what has changed "
        "there since.\n"
    )
    return f"{start}\n{body}\n{end}"
