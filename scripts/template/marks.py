"""Comments that say which family lines belong to.

At the end of a line, `# family: x` is about this line. On a line of its own in Python it is about the statement below,
such as a function with its decorators. Other lines stand between `# begin family: x` and `# end family: x`; Markdown
has all of them in `<!-- -->`, the two in paragraphs of their own. `tool` is this tool itself, `benchmarks` are those.
"""

import ast
import re
from collections.abc import Sequence

from template.errors import TemplateError

_BLOCK = re.compile(r"^\s*(?:#|<!--) (begin|end) family: (\w+)(?: -->)?\s*$")
_LINE = re.compile(r"\s*(?:#|<!--) family: (\w+)(?: -->)?\s*$")


def apply_marks(text: str, keep: Sequence[str], file: str, marks: bool = False) -> str:
    """The text without the lines of families that are not kept, and without the marks unless `marks` keeps them.

    Raises:
        TemplateError: a block that is not closed, one that another closes, or a mark with no statement below it.
    """
    if "family: " not in text:
        return text
    lines = text.splitlines(keepends=True)
    owners = _owners(lines, file)
    kept = []
    for number, line in enumerate(lines):
        if owners.get(number, keep[0]) not in keep:
            continue
        if not marks and _BLOCK.match(line):
            continue
        if not marks and (mark := _LINE.search(line)):
            if mark.start() == 0:  # on a line of its own
                continue
            line = f"{line[: mark.start()]}\n"
        kept.append(line)
    return "".join(kept)


def is_mark(text: str) -> bool:
    """Whether a paragraph is a mark and nothing else."""
    return _BLOCK.match(text) is not None


def _owners(lines: Sequence[str], file: str) -> dict[int, str]:
    """Number of a line, from 0 → its family."""
    ends = _statements("".join(lines)) if file.endswith(".py") else {}
    owners: dict[int, str] = {}
    inside: str | None = None
    for number, line in enumerate(lines):
        if block := _BLOCK.match(line):
            what, family = block.groups()
            if (what == "begin") != (inside is None) or (what == "end" and family != inside):
                raise TemplateError(f"{file}, line {number + 1}: `{line.strip()}` does not match the mark before it")
            inside = family if what == "begin" else None
            owners[number] = family
        elif mark := _LINE.search(line):
            last = number
            if mark.start() == 0 and file.endswith(".py"):
                if number + 1 not in ends:
                    raise TemplateError(f"{file}, line {number + 1}: no statement begins below `{line.strip()}`")
                last = ends[number + 1]
            owners |= dict.fromkeys(range(number, last + 1), mark[1])
        elif inside is not None:
            owners[number] = inside
    if inside is not None:
        raise TemplateError(f"{file}: `begin family: {inside}` has no end")
    return owners


def _statements(text: str) -> dict[int, int]:
    """First line of a statement, with its decorators → last line, from 0."""
    found: dict[int, int] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt):
            decorators = getattr(node, "decorator_list", [])
            start = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            found[start - 1] = max(found.get(start - 1, 0), (node.end_lineno or node.lineno) - 1)
    return found
