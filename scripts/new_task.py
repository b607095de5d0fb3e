"""Adds a task to this project: data, config, test and a row in the README, for `sequence` also a net and a task.

    python scripts/new_task.py NAME --kind classification          images, one class each
    python scripts/new_task.py NAME --kind regression              numbers from numbers
    python scripts/new_task.py NAME --kind sequence                texts, one class each
    python scripts/new_task.py NAME --kind sequence --dry-run      says what would be written

What it writes trains in seconds on data that it makes up; "yours" marks what to replace. See docs/new-task.md.
"""

import argparse
import importlib.util
import keyword
import re
import subprocess
import sys
import tomllib
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = ROOT / "scripts" / "task_kinds"
KINDS = sorted(path.parent.name for path in TEMPLATES.glob("*/about.toml"))
# template → where it goes; a kind need not have all of them
PLACES = {
    "data.txt": "src/PACKAGE/data/TASK_NAME.py",
    "model.txt": "src/PACKAGE/models/TASK_NAME.py",
    "task.txt": "src/PACKAGE/tasks/TASK_NAME.py",
    "config.txt": "configs/TASK_NAME.yaml",
    "test.txt": "tests/test_TASK_NAME.py",
}
LONGEST = 30  # letters of a name, so that lines stay within 120
HEADING = "## Your tasks"
TABLE = "| config | data | net | what to expect |\n| --- | --- | --- | --- |\n"


class TaskError(Exception):
    """Something that the user can put right; the message says how."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("name", help="of the task and its files: lower-case letters, digits and underscores")
    made.add_argument("--kind", required=True, choices=KINDS, help="what the task is like")
    made.add_argument("--dry-run", action="store_true", help="write nothing, say what would be written")
    return made


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command; exit status 1 for something that the user can put right."""
    options = parser().parse_args(args)
    try:
        package = find_package()
        check_name(options.name, package)
        about = tomllib.loads(filled((TEMPLATES / options.kind / "about.toml").read_text(), options.name, package))
        files = new_files(options.name, options.kind, package)
        readme = ROOT / "README.md"
        before = readme.read_text() if readme.exists() else ""
        after = with_row(before, row(options.name, about))
    except TaskError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not options.dry_run:
        try:
            write({**files, readme: after})
        except OSError as error:
            print(f"error: {error.filename}: {error.strerror}; nothing has been written", file=sys.stderr)
            return 1
        tidy([path for path in files if path.suffix == ".py"])
    for path in files:
        print(f"{'would write' if options.dry_run else 'wrote'} {path.relative_to(ROOT)}")
    print(f"{'would add' if options.dry_run else 'added'} a row to README.md")
    if options.dry_run:
        return 0
    command = package.replace("_", "-")
    print(f"train it:    {command} fit -c configs/{options.name}.yaml")
    print(f"test it:     pytest tests/test_{options.name}.py")
    for line in about["next"]:
        print(f"edit next:   {line}")
    return 0


def find_package() -> str:
    """Name of the package: the one folder in src/ that has the command line."""
    found = [path.parent.name for path in (ROOT / "src").glob("*/cli.py")]
    if len(found) != 1:
        raise TaskError(f"{ROOT / 'src'} should hold one package with a cli.py, and has {len(found)}")
    return found[0]


def camel(name: str) -> str:
    """`name_language` → `NameLanguage`."""
    return "".join(part.capitalize() for part in name.split("_"))


def check_name(name: str, package: str) -> None:
    """Raises TaskError for a name that a module and a config cannot have, or that something here has already."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
        plain = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", plain).lower()).strip("_")
        hint = f"; try {plain}" if re.fullmatch(r"[a-z][a-z0-9_]*", plain) else ""
        raise TaskError(
            f"{name!r} is not a name for a task: use lower-case letters a to z, digits and single underscores between "
            f"words, beginning with a letter{hint}"
        )
    if keyword.iskeyword(name):
        raise TaskError(f"{name} is a keyword of Python: choose another name, such as my_{name}")
    if len(name) > LONGEST:
        raise TaskError(f"{name} has {len(name)} letters: choose a name of at most {LONGEST}")
    if name == package:
        raise TaskError(f"{name} is the name of the package: choose another, such as my_{name}")
    places = [ROOT / filled(place, name, package) for place in PLACES.values()]
    taken = [path for path in places if path.exists() or path.with_suffix("").is_dir()]
    # pytest wants another name for each file of tests, wherever it is
    taken += (ROOT / "tests").rglob(f"test_{name}.py")
    if taken:
        raise TaskError(f"{taken[0].relative_to(ROOT)} exists: choose another name; nothing is overwritten")
    pattern = re.compile(rf"^class ({camel(name)}(?:Data|Batch|Loader|Net|Classifier))\b", re.MULTILINE | re.IGNORECASE)
    for path in sorted((ROOT / "src" / package).rglob("*.py")):
        if found := pattern.search(path.read_text()):
            raise TaskError(f"{path.relative_to(ROOT)} has a class {found[1]} already: choose another name")


def filled(text: str, name: str, package: str) -> str:
    """A template with its placeholders replaced."""
    words = {"TASK_NAME": name, "TaskName": camel(name), "PACKAGE": package, "COMMAND": package.replace("_", "-")}
    return re.sub("|".join(words), lambda found: words[found[0]], text)


def new_files(name: str, kind: str, package: str) -> dict[Path, str]:
    """Path → text of the files of a task."""
    made = {}
    for template, place in PLACES.items():
        source = TEMPLATES / kind / template
        if source.exists():
            made[ROOT / filled(place, name, package)] = filled(source.read_text(), name, package)
    return made


def row(name: str, about: dict[str, Any]) -> str:
    """The row of the README's table."""
    return f"| [`{name}`](configs/{name}.yaml) | {about['data']} | {about['net']} | {about['expect']} |\n"


def with_row(readme: str, line: str) -> str:
    """The README with a row at the end of the table of your tasks, which comes after the examples if it is new.

    A row that is there already stays as it is.
    """
    if line.split(" | ")[0] in readme:
        return readme
    if own := re.search(rf"^{HEADING}\n(?:(?!## ).*\n)*", readme, re.MULTILINE):  # up to the next heading
        tables = list(re.finditer(r"(?:^\|.*\n)+", own[0], re.MULTILINE))
        if tables:
            end = own.start() + tables[-1].end()
            return readme[:end] + line + readme[end:]
        rest = readme[own.end() :]
        return f"{readme[: own.end()].rstrip()}\n\n{TABLE}{line}" + (f"\n{rest}" if rest else "")
    examples = re.search(r"^## Examples\n", readme, re.MULTILINE)
    after = re.search(r"^## ", readme[examples.end() :], re.MULTILINE) if examples else None
    position = examples.end() + after.start() if examples and after else len(readme)
    head = readme[:position].rstrip("\n")
    tail = f"\n{readme[position:]}" if readme[position:] else ""
    return (f"{head}\n\n" if head else "") + f"{HEADING}\n\n{TABLE}{line}{tail}"


def write(files: dict[Path, str]) -> None:
    """Writes all files, or after an OSError none of them."""
    before = {path: path.read_text() if path.exists() else None for path in files}
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    except OSError:
        for path, old in before.items():
            if old is not None:
                path.write_text(old)
            elif path.exists():
                path.unlink()
        raise


def tidy(paths: list[Path]) -> None:
    """Brings Python files into the style of the project, where ruff is installed: names change the length of lines."""
    if importlib.util.find_spec("ruff") is None:
        return
    for command in (["check", "--fix-only", "--select", "I"], ["format"]):
        subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--quiet", "--no-cache", *map(str, paths)], cwd=ROOT, check=False
        )


if __name__ == "__main__":
    sys.exit(main())
