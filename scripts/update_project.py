"""Takes over what has changed in this template since a project was made from it.

    python scripts/update_project.py FOLDER_OF_THE_PROJECT

Makes the project afresh from the commit that its `.template.toml` names and from this one, with the same answers, and
merges the difference of the two into the project. Nothing is committed. See docs/make-it-yours.md.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from template.errors import TemplateError
from template.families import FAMILIES
from template.generate import Choice
from template.sources import Template, git, has_git
from template.style import by_hand, find_ruff, format_project

ROOT = Path(__file__).resolve().parents[1]
RECORD = ".template.toml"


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command; exit status 1 for an error or conflicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", type=Path, help="folder of the project, with nothing that is not committed")
    options = parser.parse_args(args)
    try:
        return update(options.project.resolve())
    except TemplateError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def update(project: Path) -> int:
    """Merges the template's changes into a project.

    Raises:
        TemplateError: it is not a project of this template, or one of the two has changes that are not committed.
    """
    if not has_git():
        raise TemplateError("git is not on PATH: install it, for the update is a merge")
    template = Template.at(ROOT)
    if template.commit is None:
        raise TemplateError(f"{ROOT} is not a git repository: run this in a clone of the template")
    recorded = answers(project)
    old = str(recorded["commit"])
    if git(ROOT, "rev-parse", "--verify", "--quiet", f"{old}^{{commit}}", check=False) != old:
        raise TemplateError(f"the template here has no commit {old[:12]}: `git fetch` it (or `git pull --unshallow`)")
    if old == template.commit:
        print(f"nothing to do: {project} is of the template's commit {old[:12]}, which is the one here")
        return 0
    choice = Choice(
        str(recorded["name"]), tuple(recorded["keep"]), bool(recorded["benchmarks"]), bool(recorded["tool"])
    )
    ruff = find_ruff(project, template.root)
    with tempfile.TemporaryDirectory(prefix="update-project-") as folder:
        before = regenerated(template, old, choice, Path(folder) / "base", ruff)
        shutil.copy(project / RECORD, before)  # the record is renewed as a whole, whatever was in it
        base = tree(project, before, Path(folder))
        new = tree(project, regenerated(template, template.commit, choice, Path(folder) / "new", ruff), Path(folder))
    if base == new:
        print("the template has changed nothing that this project has")
    status = merge(project, base, new, template.commit)
    if ruff is None:
        print("not formatted, for there is no ruff here or in the project: before you commit, run there")
        print(by_hand())
    return status


def answers(project: Path) -> dict[str, Any]:
    """What `.template.toml` records.

    Raises:
        TemplateError: there is none that can be used, or the project has changes that are not committed.
    """
    file = project / RECORD
    if not file.is_file():
        raise TemplateError(f"{project} has no .template.toml: it was not made by scripts/init_project.py")
    try:
        recorded = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TemplateError(f"{file} cannot be read ({error}): take it from `git log -p .template.toml`") from error
    missing = [name for name in ("commit", "name", "keep", "benchmarks", "tool") if name not in recorded]
    unknown = [name for name in recorded.get("keep", ()) if name not in FAMILIES]
    if missing or unknown or not recorded["commit"]:
        what = f"no {missing[0]}" if missing else f"no family {unknown[0]}" if unknown else "no commit of the template"
        raise TemplateError(f"{file} names {what}: write in it what the project was made from")
    if not (project / ".git").exists():
        raise TemplateError(f"{project} is not the root of a git repository: `git init` and commit it first")
    if changed := git(project, "status", "--porcelain"):
        raise TemplateError(
            f"{project} has changes that are not committed ({changed.splitlines()[0][3:]}): commit them"
        )
    return recorded


def regenerated(template: Template, commit: str, choice: Choice, folder: Path, ruff: list[str] | None) -> Path:
    """The project as the template makes it at a commit, by the tool of that commit, formatted if there is a ruff."""
    checkout, made = folder / "template", folder / "project"
    git(template.root, "clone", "--quiet", "--shared", "--no-checkout", str(template.root), str(checkout))
    git(checkout, "checkout", "--quiet", "--detach", commit)
    git(checkout, "remote", "remove", "origin")  # older tools record its address
    command = [sys.executable, str(checkout / "scripts" / "init_project.py"), *choice.arguments()]
    done = subprocess.run([*command, f"--dir={made}", "--no-git", "--again"], capture_output=True, text=True)
    if not (made / RECORD).exists():
        raise TemplateError(f"the template's commit {commit[:12]} does not make the project: {done.stderr.strip()}")
    if ruff:  # older tools look for it in fewer places
        format_project(made, ruff)
    return made


def tree(project: Path, files: Path, scratch: Path) -> str:
    """Puts files into the project's object store, not into the project; the name of their tree."""
    index = {**os.environ, "GIT_INDEX_FILE": str(scratch / f"index-{files.parent.name}")}
    git(project, f"--work-tree={files}", "add", "--all", "--force", ".", env=index)
    return git(project, "write-tree", env=index)


def merge(project: Path, base: str, new: str, commit: str) -> int:
    """Applies what differs between two trees to the project, as `git cherry-pick` does."""
    who = dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "template")
    who |= dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "template@localhost")
    environment = {**os.environ, **who}
    parent = git(project, "commit-tree", base, "-m", "the template before", env=environment)
    child = git(project, "commit-tree", new, "-p", parent, "-m", f"the template at {commit[:12]}", env=environment)
    git(project, "-c", "merge.conflictStyle=merge", "cherry-pick", "--no-commit", child, check=False, env=environment)
    conflicts = git(project, "diff", "--name-only", "--diff-filter=U").splitlines()
    changed = [name for name in git(project, "diff", "--name-only", "--cached").splitlines() if name not in conflicts]
    if not conflicts and not changed:
        raise TemplateError(f"git could not merge into {project}: see `git cherry-pick --no-commit {child}` there")
    print(f"{project} has what the template changed up to {commit[:12]}, staged: {', '.join(changed) or 'nothing'}")
    if conflicts:
        print(
            f"error: both sides changed {', '.join(conflicts)}: edit what git has marked, `git add` it", file=sys.stderr
        )
    print("next: `git diff --cached`, make test, git commit (or `git reset --hard` to undo it)")
    return 1 if conflicts else 0


if __name__ == "__main__":
    sys.exit(main())
