"""Add a task to this project, including data, a config and a test. The task trains on synthetic data in seconds.

Each folder in scripts/task_kinds defines a kind of task. After running the script, edit the lines marked "yours".

    python scripts/new_task.py NAME --kind=KIND
"""

import argparse
import keyword
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = ROOT / "scripts" / "task_kinds"
# Destinations of the template files.
PLACES = {
    "data.txt": "src/PACKAGE/data/TASK_NAME.py",
    "model.txt": "src/PACKAGE/models/TASK_NAME.py",
    "task.txt": "src/PACKAGE/tasks/TASK_NAME.py",
    "config.txt": "configs/TASK_NAME.yaml",
    "test.txt": "tests/test_TASK_NAME.py",
}


def main() -> None:
    """Run the command. The exit status is 1 after an error that the user can fix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="name of the task and its files (lower-case letters, digits, underscores)")
    kinds = sorted(path.parent.name for path in TEMPLATES.glob("*/data.txt"))
    parser.add_argument("--kind", required=True, choices=kinds, help="kind of task")
    options = parser.parse_args()
    package = next((ROOT / "src").glob("*/__main__.py")).parent.name
    check_name(options.name, package)
    written = []
    for name, place in PLACES.items():
        if (template := TEMPLATES / options.kind / name).exists():
            path = Path(fill_placeholders(place, options.name, package))
            text = fill_placeholders(template.read_text(encoding="utf-8"), options.name, package)
            (ROOT / path).write_text(text, encoding="utf-8", newline="\n")
            print(f"wrote {path}")
            written.append(path)
    format_code([str(path) for path in written if path.suffix == ".py"])
    print(f"train it:    {package.replace('_', '-')} fit {options.name}")
    print(f"test it:     pytest tests/test_{options.name}.py")
    for path in written:
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), start=1):
            if re.search(r"\byours\b", line):
                print(f"edit next:   {path}:{number}: {line.strip(' #')}")


def check_spelling(name: str) -> None:
    """Exit with an error if a name is not a valid module name."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        plain = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()).strip("_")
        hint = f"; try {plain}" if re.match(r"[a-z]", plain) else ""
        sys.exit(f"error: {name!r} is not a valid name: use lower-case letters a to z, digits and underscores{hint}")
    if keyword.iskeyword(name):
        sys.exit(f"error: {name} is a Python keyword: choose a different name, such as my_{name}")


def check_name(name: str, package: str) -> None:
    """Exit with an error if a name is not a valid module name or is already in use."""
    import lit_engine  # not needed by init_project.py, which imports this module and may run without the library

    check_spelling(name)
    places = [ROOT / fill_placeholders(place, name, package) for place in PLACES.values()]
    places.append(ROOT / f"configs/overlays/{name}.yaml")  # a config with this name would hide the overlay
    taken = [path for path in places if path.exists() or path.with_suffix("").is_dir()]
    # pytest does not allow two test files with the same name, even in different folders.
    if taken := [*taken, *(ROOT / "tests").rglob(f"test_{name}.py")]:
        sys.exit(f"error: {taken[0].relative_to(ROOT)} already exists: choose a different name")
    suffixes = "Data|Batch|Loader|Net|Classifier|Tagger|Segmenter"
    pattern = re.compile(rf"^class ({to_camel_case(name)}(?:{suffixes}))\b", re.MULTILINE | re.IGNORECASE)
    for folder in (ROOT / "src" / package, Path(lit_engine.__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            if found := pattern.search(path.read_text(encoding="utf-8")):
                place = path.relative_to(folder.parent)
                sys.exit(f"error: {place} already has a class {found[1]}: choose a different name")


def to_camel_case(name: str) -> str:
    """Convert `name_language` to `NameLanguage`."""
    return "".join(part.capitalize() for part in name.split("_"))


def fill_placeholders(text: str, name: str, package: str) -> str:
    """Replace the placeholders in a template."""
    words = {
        "TASK_NAME": name,
        "TaskName": to_camel_case(name),
        "PACKAGE": package,
        "COMMAND": package.replace("_", "-"),
    }
    return re.sub("|".join(words), lambda found: words[found[0]], text)


def format_code(paths: list[str]) -> None:
    """Format Python files if ruff is installed, because the name can affect line lengths and import order."""
    ruff = shutil.which("ruff", path=Path(sys.executable).parent) or shutil.which("ruff")
    for step in (["check", "--fix-only", "--select=I"], ["format"]) if ruff else ():
        subprocess.run([str(ruff), *step, "--quiet", "--no-cache", *paths], cwd=ROOT, check=False)


if __name__ == "__main__":
    main()
