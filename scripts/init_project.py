"""Makes a project of yours from this template: under your name, with the examples that you keep.

    python scripts/init_project.py NAME                               a copy in ../NAME, with dashes
    python scripts/init_project.py NAME --dir FOLDER --keep classification
    python scripts/init_project.py NAME --dry-run                     says what would happen
    python scripts/init_project.py NAME --in-place                    converts this folder

See docs/make-it-yours.md.
"""

import argparse
import shlex
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from template.errors import TemplateError
from template.families import FAMILIES, chosen
from template.generate import Choice, Project, generate
from template.names import check_name, traces
from template.sources import Template, has_git, new_history, write
from template.style import by_hand, find_ruff, format_project

ROOT = Path(__file__).resolve().parents[1]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("name", help="of the new package: lower-case letters, digits and underscores; the command gets dashes")
    add(
        "--dir",
        type=Path,
        help="the new folder, which is not there or empty; default: beside this one",
    )
    add("--in-place", action="store_true", help="convert this folder; its git history stays, nothing is committed")
    add("--keep", help=f"families of examples, default: {','.join(FAMILIES)}")
    add("--keep-benchmarks", action="store_true", help="keep benchmarks/ and their results")
    add("--keep-tool", action="store_true", help="keep scripts/, so that the project is a template, too")
    add("--no-git", action="store_true", help="no history for the new project")
    add("--again", action="store_true", help=argparse.SUPPRESS)  # update_project.py: the name is the project's own
    add("--dry-run", action="store_true", help="change nothing, say what would be done")
    return made


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command; exit status 1 for something that the user can put right."""
    options = parser().parse_args(args)
    try:
        return init(options)
    except TemplateError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}", file=sys.stderr)
    return 1


def init(options: argparse.Namespace) -> int:
    """Checks everything, then makes the project.

    Raises:
        TemplateError: the name, the place or the options cannot be used, or the template has changes; nothing has
            been written then.
    """
    if options.in_place and not is_template():
        raise TemplateError(f"{ROOT} has been made from the template already (.template.toml): it has its name")
    if options.in_place and options.dir is not None:
        raise TemplateError("--in-place converts this folder: leave out --dir")
    choice = Choice(options.name, chosen(options.keep), options.keep_benchmarks, options.keep_tool)
    template = Template.at(ROOT)
    if options.in_place and template.commit is None:
        raise TemplateError("--in-place needs git on PATH and a repository, so that nothing can be lost")
    paths, lock = template.paths(), ROOT / "requirements.lock"
    if not options.again:
        if choice.tool and "_" not in choice.name:
            raise TemplateError(
                f"{choice.name}: with --keep-tool choose a name of two words, such as {choice.name}_lab; in one of one "
                "word the package and its command could not be told apart, when another project is made from it"
            )
        check_name(choice.name, template.package, paths, lock.read_text() if lock.exists() else "")
    place = ROOT if options.in_place else (options.dir or ROOT.parent / choice.distribution).expanduser().absolute()
    if not options.in_place:
        check_place(place)
    project = generate(template, choice)
    if project.problems:
        raise TemplateError(
            "what is dropped is still used; name its family in scripts/template/families.py or by a mark: "
            + "; ".join(project.problems)
        )
    if options.dry_run:
        print(plan(project, choice, place, options.in_place))
        return 0
    return make(project, choice, template, place, paths if options.in_place else None, not options.no_git)


def is_template() -> bool:
    """Whether this is the template itself, or a project that was made with `--keep-tool`."""
    record = ROOT / ".template.toml"
    try:
        return not record.exists() or bool(tomllib.loads(record.read_text()).get("tool"))
    except ValueError as error:
        raise TemplateError(f"{record} cannot be read: {error}") from error


def check_place(place: Path) -> None:
    """Raises TemplateError unless a new project can be made there."""
    if place.resolve().is_relative_to(ROOT):
        raise TemplateError(f"{place} is inside the template: choose a folder elsewhere with --dir (or use --in-place)")
    if place.exists() and not place.is_dir():
        raise TemplateError(f"{place} is a file: choose another folder with --dir")
    if place.is_symlink() and not place.exists():
        raise TemplateError(f"{place} is a link to a folder that is not there: make it, or choose another with --dir")
    if place.is_dir() and any(place.iterdir()):
        raise TemplateError(f"{place} is not empty: choose another folder with --dir, or empty it")


def plan(project: Project, choice: Choice, place: Path, in_place: bool) -> str:
    """What would happen, in lines."""
    lines = [f"would {'convert' if in_place else 'make'} {place}: {len(project.files)} files, command "
             f"{choice.distribution}, examples {', '.join(choice.keep)}"]  # fmt: skip
    for reason, paths in project.left_out.items():
        lines += [f"  drop {path} ({reason})" for path in paths]
    lines += [f"  move {source} to {target}" for source, target in project.moved.items()]
    lines += [f"  rename in {path}: {count}" for path, count in project.renamed.items()]
    return "\n".join([*lines, "nothing has been changed"])


def make(
    project: Project, choice: Choice, template: Template, place: Path, replaced: list[str] | None, git: bool
) -> int:
    """Writes the project elsewhere first, so that nothing half-made is left; then checks it."""
    ruff = find_ruff(template.root)
    there = place.exists()  # its parent need not be writable then
    if not there:
        place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=None if there else place.parent, prefix=".new-project-") as folder:
        made = Path(folder) / choice.distribution
        write(project.files, made)
        wrong = format_project(made, ruff) if ruff else []
        left = traces(made, template.package)
        if replaced is not None:
            remove(template.root, replaced)
        if there:
            try:
                fill(place, made)
            except OSError as error:
                undo = (
                    "`git stash -u` there brings back what there was" if replaced else "empty it before you try again"
                )
                raise TemplateError(f"{place} could not be filled ({error}): {undo}") from error
        else:
            shutil.move(made, place)
    note = "its history is as it was: look at `git status`, then `git add -A && git commit`"
    if replaced is None:
        note = "no history, as you asked"
        if git:
            note = new_history(place, f"{choice.distribution}, from a template")
    print(f"{choice.name} is in {place}: {note}")
    if template.commit is None:
        why = "is no repository" if has_git() else "could not be asked without git on PATH"
        print(f"the template's commit is not recorded, for the template {why}: the copy cannot be updated from it")
    if ruff is None:
        print("not formatted, for there is no ruff here: `make lint` of the project finds fault until you run, in it,")
        print(by_hand())
    print(f"next: cd {shlex.quote(str(place))} && make demo && make test")
    for line in wrong:
        print(f"error: ruff: {line}", file=sys.stderr)
    for path in left:
        print(f"error: {path} still has the template's name: rename it by hand", file=sys.stderr)
    return 1 if wrong or left else 0


def fill(place: Path, made: Path) -> None:
    """Copies what is in a folder into one that is there, which stays the folder that it is: it may be a mount."""
    for path in made.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, place / path.name, dirs_exist_ok=True, symlinks=True)
        else:
            shutil.copy2(path, place / path.name, follow_symlinks=False)


def remove(root: Path, paths: list[str]) -> None:
    """Removes files, and folders that are empty then (with caches of Python in them)."""
    for path in paths:
        (root / path).unlink()
    for folder in sorted({parent for path in paths for parent in Path(path).parents if parent.parts}, reverse=True):
        shutil.rmtree(root / folder / "__pycache__", ignore_errors=True)
        if (root / folder).is_dir() and not any((root / folder).iterdir()):
            (root / folder).rmdir()


if __name__ == "__main__":
    sys.exit(main())
