"""Create your own project from this template, with a new name and the example families of your choice.

By default, the project is created in ../NAME (with dashes) and keeps all families. Use `--here` to convert this copy of
the template instead, and `--dry-run` to only list the files. For more details, see docs/make-it-yours.md.

    python scripts/init_project.py NAME --keep=classification
"""

import argparse
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path, PurePosixPath

from families import FAMILIES, MAIN, PYPROJECT, dropped_keys, is_in_family, keep_sections
from new_task import check_spelling
from vendor import build_wheel, reduce_lock

ROOT = Path(__file__).resolve().parents[1]
RECORD = ".template.toml"
LOCK = "requirements.lock"
OWN_FILES = "scripts/project/"  # In a project, these files replace the template's files of the same name.


def main() -> None:
    """Run the command. The exit status is 1 after an error that the user can fix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("name", help="package name (lower-case letters, digits, underscores); the command's name uses dashes")
    add("--dir", type=Path, help="project folder, which must be empty or not exist yet; default: next to the template")
    add("--here", action="store_true", help="convert this checkout into the project")
    add("--keep", default=",".join(FAMILIES), help="families of examples to keep; default: %(default)s")
    add("--no-git", action="store_true", help="do not create a git repository")
    add("--dry-run", action="store_true", help="only list the files")
    # update_project.py sets this option to skip the name check, because the project's own name is already in use.
    add("--again", action="store_true", help=argparse.SUPPRESS)
    try:
        init(parser.parse_args())
    except OSError as error:
        sys.exit(f"error: {error}")


def init(options: argparse.Namespace) -> None:
    """Create the project. Nothing is written until all checks have passed and all files are in memory."""
    keep = choose_families(options.keep)
    sources, commit = template_files()
    if not options.again:
        check_name(options.name, sources)
    place = (options.dir or ROOT.parent / options.name.replace("_", "-")).expanduser().absolute()
    if options.here:
        if options.dir or not commit:
            sys.exit("error: --here requires a git repository and cannot be combined with --dir")
        place = ROOT
    elif place.resolve().is_relative_to(ROOT):
        sys.exit(f"error: {place} is inside the template: choose a folder elsewhere with --dir, or use --here")
    elif place.exists() and (not place.is_dir() or any(place.iterdir())):
        sys.exit(f"error: {place} is not an empty folder: choose a different folder with --dir")
    project = generate(sources, options.name, keep, commit)
    if options.dry_run:
        print(f"would create {place} with {', '.join(keep)} ({len(project)} files):", *sorted(project), sep="\n  ")
        return
    if options.here:
        git(ROOT, "rm", "--quiet", "-r", "--", ".")
    for path, content in project.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)
    format_code(place)
    if options.here:
        git(ROOT, "add", "--all", "--force", "--", *project)
        print(f"{ROOT} is now {options.name}, with {', '.join(keep)}; all changes are staged, but nothing is committed")
        print("next: git commit, then make clean && make demo && make test (`git reset --hard` undoes it)")
        return
    if not options.no_git:
        commit_all(place)
    print(f"created the project {options.name} in {place}, with {', '.join(keep)}")
    if not commit:
        print("this template has no git history, so the project cannot be updated from it later")
    print(f"next: cd {shlex.quote(str(place))} && make demo && make test")


def choose_families(keep: str) -> tuple[str, ...]:
    """Return the families listed by `--keep`, always including classification, in the order of `FAMILIES`."""
    names = {"classification", *(name.strip() for name in keep.split(",") if name.strip())}
    for name in sorted(names - set(FAMILIES)):
        sys.exit(f"error: --keep {name}: unknown family; choose from {', '.join(FAMILIES)}")
    return tuple(name for name in FAMILIES if name in names)


def git(folder: Path, *args: str, check: bool = True, env: Mapping[str, str] | None = None) -> str:
    """Run `git ARGS` in a folder and return its output."""
    command = ["git", "-C", str(folder), "-c", "core.quotePath=false", *args]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=env)
    if check and done.returncode:
        sys.exit(f"error: git {args[0]} failed in {folder}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip("\n")


def template_files() -> tuple[dict[str, bytes], str]:
    """Return the content of all tracked files by path, and the commit.

    If the template is an unpacked archive without git, return all files that .gitignore does not exclude, and an empty
    commit id.
    """
    if (ROOT / ".git").exists():
        if changed := git(ROOT, "status", "--porcelain"):
            names = [line[3:] for line in changed.splitlines()]
            named = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            sys.exit(f"error: {ROOT} has uncommitted changes ({named}): commit them, or run `git stash -u`")
        listed, commit = git(ROOT, "ls-files", "-z"), git(ROOT, "rev-parse", "--verify", "HEAD")
    else:
        with tempfile.TemporaryDirectory() as folder:
            git(Path(folder), "init", "--quiet")
            places = f"--git-dir={folder}/.git", f"--work-tree={ROOT}"
            listed, commit = git(ROOT, *places, "ls-files", "-z", "--others", "--exclude-per-directory=.gitignore"), ""
    return {path: (ROOT / path).read_bytes() for path in listed.split("\0") if path}, commit


def check_name(name: str, paths: Iterable[str]) -> None:
    """Exit with an error if a name is invalid or already in use."""
    check_spelling(name)
    modules = {part for path in paths if path.endswith(".py") for part in PurePosixPath(path).with_suffix("").parts}
    # The names of locked packages are reserved even if the packages are not installed.
    locked = re.findall(r"^([a-z0-9.-]+)==", (ROOT / LOCK).read_text(), re.MULTILINE)
    commands = {"activate", "python", "python3", *metadata.entry_points(group="console_scripts").names}
    for taken, what in (
        (name in sys.stdlib_module_names, "a standard library module"),
        (name in modules | {"build", "configs", "dist", "runs", "test", "wandb"}, "a name used in the project"),
        (importlib.util.find_spec(name) or name.replace("_", "-") in locked, "the name of an installed package"),
        (name.replace("_", "-") in commands, "the name of a command"),
    ):
        if taken:
            sys.exit(f"error: {name} is {what}: choose a different name, such as {name}_lab")


def generate(sources: Mapping[str, bytes], name: str, keep: tuple[str, ...], commit: str) -> dict[str, bytes]:
    """Return the contents of the project's files, keyed by path."""
    old = next(PurePosixPath(path).parts[1] for path in sources if re.fullmatch(r"src/\w+/__main__\.py", path))
    kept = {path: file for path, file in sources.items() if any(is_in_family(path, f, f"src/{old}") for f in keep)}
    kept |= {path.removeprefix(OWN_FILES): file for path, file in sources.items() if path.startswith(OWN_FILES)}
    try:
        for path, keys in dropped_keys(keep).items():
            path = path.replace("PACKAGE", f"src/{old}")
            kept[path] = remove_keys(kept[path].decode(), sorted(keys)).encode()
        for path, file in kept.items():
            if path.endswith(".md"):
                kept[path] = keep_sections(file.decode(), keep).encode()
    except ValueError as error:
        sys.exit(f"error: {path}: {error}")
    wheel, content = build_wheel(sources)
    gone = [family for family in FAMILIES if family not in keep]
    main = MAIN.replace("PACKAGE", f"src/{old}")
    for path, pattern, new in (
        (main, rf" *# (?:{'|'.join(gone) or '-'}): .*\n", ""),
        (PYPROJECT, r'description = ".*"\n', 'description = "Supervised learning on PyTorch Lightning."\n'),
        (PYPROJECT, r"lit-engine = \{.*\}", f'lit-engine = {{ path = "vendor/{wheel}" }}'),
        (PYPROJECT, r'(mypy_path = "src):engine/src', r"\1"),
        (PYPROJECT, r"(.*),engine/tests(.*),benchmarks", r"\1\2"),
        (PYPROJECT, r'((?:root_packages|source_pkgs) = \["\w+"), "lit_engine"', r"\1"),
        (PYPROJECT, r'\[\[tool\.importlinter\.contracts\]\]\nname = "the library (?:.+\n)+\n', ""),
        ("Makefile", r"LIBRARY := .*", "LIBRARY := $(wildcard vendor/*.whl)"),
        ("Makefile", r"(.*) \$\(if \$\(wildcard engine\),--no-emit-package lit-engine\)", r"\1"),
        ("Makefile", r"(.*) \$\(wildcard engine/pyproject\.toml\)", r"\1"),
        ("Dockerfile", r"(COPY .*) engine engine", r"\1 vendor vendor"),
        ("README.md", "TABLE\n", table(kept)),
    ):
        kept[path] = re.sub(f"^{pattern}", new, kept[path].decode(), flags=re.MULTILINE).encode()
    kept[LOCK] = reduce_lock(kept[LOCK].decode(), kept[PYPROJECT].decode(), wheel, content).encode()
    made = {f"vendor/{wheel}": content}
    for path, file in kept.items():
        is_binary = b"\0" in file
        made[rename(path, old, name)] = file if is_binary else rename(file.decode(), old, name).encode()
    record = {"commit": commit, "tree": commit and git(ROOT, "rev-parse", f"{commit}^{{tree}}")}
    record |= {"name": name, "keep": list(keep)}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in record.items())
    made[RECORD] = f"# Template version and options of this project, replaced by each update.\n{lines}".encode()
    return made


def remove_keys(text: str, keys: Iterable[str]) -> str:
    """Remove lines that start with any of the keys. If no line starts with a key, remove matching list items.

    Raises:
        ValueError: If the text does not contain a key.
    """
    for key in keys:
        word = rf"{re.escape(key)}(?![\w.-])"
        item = rf'"{word}[^",]*"(?:: "[^"]*")?'
        for pattern in (rf'^ *(?:"{word}|{word}).*\n', rf", {item}|{item}(?:, )?"):
            text, count = re.subn(pattern, "", text, flags=re.MULTILINE)
            if count:
                break
        else:
            raise ValueError(f"no line or item starts with {key}: remove the key from scripts/families.py")
    return text


def table(kept: Mapping[str, bytes]) -> str:
    """Return the README's table of configs, which quotes the first sentence of each config's header."""
    rows = ["| config | what |\n| --- | --- |\n"]
    for path in sorted(path for path in kept if re.fullmatch(r"configs/\w+\.yaml", path)):
        header = re.split(r"\n(?:#\n|(?!#))", kept[path].decode())[0]
        sentence = re.split(r"(?<!\bal)\.(?:\s|$)", re.sub(r"\n?# ", " ", header).strip())[0]
        rows.append(f"| [`{PurePosixPath(path).stem}`]({path}) | {sentence} |\n")
    return "".join(rows)


def rename(text: str, old: str, new: str) -> str:
    """Replace the old name and its upper-case form where they are whole words or delimited by underscores or dashes.

    For example, `lit_x` is replaced in `test_lit_x_runs`, `lit-x` and `LIT_X_DEBUG`, but not in `split_x` or `lit_xs`.
    """

    def spelled(found: re.Match[str]) -> str:
        word = new.replace("_", "-") if "-" in found[0] else new
        return word.upper() if found[0].isupper() else word

    token = "[-_]".join(old.split("_"))
    return re.sub(rf"(?<![A-Za-z0-9])(?:{token}|{token.upper()})(?![A-Za-z0-9])", spelled, text)


def format_code(place: Path) -> None:
    """Format the project, because the new name can affect import order and line lengths."""
    folders = [Path(sys.executable).parent, ROOT / ".venv" / "bin", os.environ.get("PATH", "")]
    ruff = shutil.which("ruff", path=os.pathsep.join(map(str, folders)))
    if ruff is None:
        print("ruff was not found, so the code has not been formatted. Run this in the new folder before `make lint`:")
        print("  make setup && .venv/bin/ruff check --fix . && .venv/bin/ruff format .")
        return
    # The formatter does not wrap strings and docstrings, so ruff adds a noqa comment to lines that are now too long.
    for step in (["check", "--fix-only", "--select=I"], ["format"], ["check", "--select=E501", "--add-noqa"]):
        command = [ruff, *step, "--quiet", "--no-cache", "."]
        subprocess.run(command, cwd=place, capture_output=True)


def commit_all(folder: Path) -> None:
    """Create a repository with a single commit, even if no git user is configured."""
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all", "--force")
    known = git(folder, "config", "user.email", check=False) and git(folder, "config", "user.name", check=False)
    who = [] if known else ["-c", f"user.name={folder.name}", "-c", "user.email=nobody@localhost"]
    settings = [*who, "-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false"]
    git(folder, *settings, "commit", "--quiet", "--message", "Generate the project from a template")


if __name__ == "__main__":
    main()
