"""Adds a task to this project: data, config and test, which train in seconds on made-up data.

    python scripts/new_task.py NAME --kind KIND               KIND: a folder of scripts/task_kinds/
    python scripts/new_task.py NAME --kind KIND --dry-run     says what would be written

Edit the lines with "yours" next.
"""

import argparse
import keyword
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = ROOT / "scripts" / "task_kinds"
# templates of a kind → where they go
PLACES = {
    "data.txt": "src/PACKAGE/data/TASK_NAME.py",
    "model.txt": "src/PACKAGE/models/TASK_NAME.py",
    "task.txt": "src/PACKAGE/tasks/TASK_NAME.py",
    "config.txt": "configs/TASK_NAME.yaml",
    "test.txt": "tests/test_TASK_NAME.py",
}


class TaskError(Exception):
    """Something that the user can put right."""


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command; exit status 1 for something that the user can put right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the task and its files: lower-case letters, digits and underscores")
    kinds = sorted(path.name for path in TEMPLATES.iterdir())
    parser.add_argument("--kind", required=True, choices=kinds, help="what the task is like")
    parser.add_argument("--dry-run", action="store_true", help="write nothing, say what would be written")
    options = parser.parse_args(args)
    package = next((ROOT / "src").glob("*/__main__.py")).parent.name
    try:
        check_name(options.name, package)
    except TaskError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    written = []
    for template in (TEMPLATES / options.kind).iterdir():
        path = Path(filled(PLACES[template.name], options.name, package))
        print(f"{'would write' if options.dry_run else 'wrote'} {path}")
        if not options.dry_run:
            text = filled(template.read_text(encoding="utf-8"), options.name, package)
            (ROOT / path).write_text(text, encoding="utf-8", newline="\n")
            written.append(path)
    if options.dry_run:
        return 0
    tidy([str(path) for path in written if path.suffix == ".py"])
    refresh_schema(package)
    print(f"train it:    {package.replace('_', '-')} fit -c configs/{options.name}.yaml")
    print(f"test it:     pytest tests/test_{options.name}.py")
    for path in written:
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), start=1):
            if re.search(r"\byours\b", line):
                print(f"edit next:   {path}:{number}: {line.strip(' #')}")
    return 0


def check_name(name: str, package: str) -> None:
    """Raises TaskError for a name that a module cannot have, or that something here has already."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        plain = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()).strip("_")
        hint = f"; try {plain}" if re.match(r"[a-z]", plain) else ""
        raise TaskError(f"{name!r} is no name for a task: use lower-case letters a to z, digits and underscores{hint}")
    if keyword.iskeyword(name):
        raise TaskError(f"{name} is a keyword of Python: choose another name, such as my_{name}")
    places = [ROOT / filled(place, name, package) for place in PLACES.values()]
    taken = [path for path in places if path.exists() or path.with_suffix("").is_dir()]
    # two test files of one name, even in different folders, are an error of pytest
    if taken := [*taken, *(ROOT / "tests").rglob(f"test_{name}.py")]:
        raise TaskError(f"{taken[0].relative_to(ROOT)} exists: choose another name; nothing is overwritten")
    suffixes = "Data|Batch|Loader|Net|Classifier|Tagger|Segmenter"
    pattern = re.compile(rf"^class ({camel(name)}(?:{suffixes}))\b", re.MULTILINE | re.IGNORECASE)
    for path in sorted((ROOT / "src" / package).rglob("*.py")):
        if found := pattern.search(path.read_text(encoding="utf-8")):
            raise TaskError(f"{path.relative_to(ROOT)} has a class {found[1]} already: choose another name")


def camel(name: str) -> str:
    """`name_language` → `NameLanguage`."""
    return "".join(part.capitalize() for part in name.split("_"))


def filled(text: str, name: str, package: str) -> str:
    """A template with its placeholders replaced."""
    words = {"TASK_NAME": name, "TaskName": camel(name), "PACKAGE": package, "COMMAND": package.replace("_", "-")}
    return re.sub("|".join(words), lambda found: words[found[0]], text)


def tidy(paths: list[str]) -> None:
    """Formats Python files, if ruff is there: names change the length of lines."""
    ruff = shutil.which("ruff", path=Path(sys.executable).parent) or shutil.which("ruff")
    for step in (["check", "--fix-only", "--select=I"], ["format"]) if ruff else ():
        subprocess.run([str(ruff), *step, "--quiet", "--no-cache", *paths], cwd=ROOT, check=False)


def refresh_schema(package: str) -> None:
    """Tells the editor of the new classes, if it is told of classes at all."""
    if not (ROOT / ".vscode" / "schema.json").exists():
        return
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-m", package, "schema"], cwd=ROOT, env=environment, check=False)
    if done.returncode:
        print(f"not done:    {package.replace('_', '-')} schema")


if __name__ == "__main__":
    sys.exit(main())
