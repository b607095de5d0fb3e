"""Merges what has changed in this template since a project was made from it into the project.

    python scripts/update_project.py FOLDER_OF_THE_PROJECT            merges it into the project, commits nothing
    python scripts/update_project.py FOLDER_OF_THE_PROJECT --check    exit status 1 if there is anything newer

Generates the project again, from the commit recorded in its `.template.toml` and from the current commit, and applies
the difference to the project: the wheel of the library is replaced, other files are merged line by line. See
docs/make-it-yours.md.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from init_project import RECORD, ROOT, TemplateError, git, template_files


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command; exit status 1 for an error, for conflicts, and with `--check` if there is anything newer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", type=Path, help="folder of the project, with nothing that is not committed")
    parser.add_argument("--check", action="store_true", help="only say what is newer here")
    options = parser.parse_args(args)
    try:
        return update(options.project.resolve(), options.check)
    except (TemplateError, OSError, tomllib.TOMLDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def update(project: Path, check: bool) -> int:
    """Merges the template's changes into a project, or only lists them."""
    commit = template_files()[1]
    answers = recorded(project)
    old = commit_of(answers)
    if not git(ROOT, "ls-tree", old, "engine"):
        raise TemplateError(
            f"{project} has a copy of the engine, from before the library became a package: make a new project with "
            "init_project.py and move your files into it"
        )
    with tempfile.TemporaryDirectory(prefix="update-project-") as folder:
        before = regenerated(old, answers, Path(folder, "before"), project)
        after = regenerated(commit, answers, Path(folder, "after"), project)
        shutil.copy(project / RECORD, before)  # the record is replaced as a whole
        base, new = (tree(project, made, Path(folder)) for made in (before, after))
    newer = [path for path in changed(project, base, new) if path != RECORD]
    if check or not newer:
        print(f"newer in the template: {', '.join(newer)}" if newer else f"nothing to do: {project} is up to date")
        return 1 if newer else 0
    return merge(project, base, new, commit)


def commit_of(answers: Mapping[str, Any]) -> str:
    """Return the commit here from which a project was generated, or one with the same files.

    A repository created by "Use this template" has the files of a commit, but not the commit.
    """
    old, files = answers["commit"], answers.get("tree")
    if git(ROOT, "rev-parse", "--verify", "--quiet", f"{old}^{{commit}}", check=False) == old:
        return old
    commits = dict(line.split() for line in git(ROOT, "log", "--all", "--format=%T %H").splitlines())
    if files not in commits:
        raise TemplateError(f"the template here has no commit {old[:12]}: `git fetch` it (or `git pull --unshallow`)")
    return commits[files]


def recorded(project: Path) -> dict[str, Any]:
    """What `.template.toml` records, if the project has no changes that are not committed."""
    answers = tomllib.loads((project / RECORD).read_text())
    if missing := [name for name in ("commit", "name", "keep") if not answers.get(name)]:
        raise TemplateError(
            f"{RECORD} names no {missing[0]}: a project that was made without git history cannot be updated; make a "
            "new one and move your files into it"
        )
    if not (project / ".git").exists():
        raise TemplateError(f"{project} is not the root of a git repository: `git init` and commit it first")
    if uncommitted := git(project, "status", "--porcelain"):
        raise TemplateError(f"{project} has changes that are not committed, commit them: {uncommitted.splitlines()[0]}")
    return answers


def regenerated(commit: str, answers: dict[str, Any], folder: Path, project: Path) -> Path:
    """The project as the template makes it at a commit, by the tool of that commit."""
    checkout, made = folder / "template", folder / "project"
    git(ROOT, "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(checkout))
    git(checkout, "checkout", "--quiet", "--detach", commit)
    command = [sys.executable, str(checkout / "scripts" / "init_project.py"), answers["name"], f"--dir={made}"]
    command += [f"--keep={','.join(answers['keep'])}", "--no-git", "--again"]
    # both are formatted by the same ruff
    path = os.pathsep.join([*(str(root / ".venv" / "bin") for root in (project, ROOT)), os.environ.get("PATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env={**os.environ, "PATH": path})
    if not (made / RECORD).exists():
        raise TemplateError(f"the template's commit {commit[:12]} does not make the project: {done.stderr.strip()}")
    return made


def tree(project: Path, files: Path, scratch: Path) -> str:
    """The tree of files that are put into the project's object store, not into the project."""
    index = {**os.environ, "GIT_INDEX_FILE": str(scratch / f"index-{files.parent.name}")}
    git(project, f"--work-tree={files}", "add", "--all", "--force", ".", env=index)
    return git(project, "write-tree", env=index)


def changed(project: Path, *what: str) -> list[str]:
    """Files that differ, by the arguments of `git diff`."""
    return [path for path in git(project, "diff", "--name-only", "-z", *what).split("\0") if path]


def merge(project: Path, base: str, new: str, commit: str) -> int:
    """Applies what differs between two trees to the project, as `git cherry-pick` does."""
    who = {f"GIT_{role}_{what}": "template@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **who}
    parent = git(project, "commit-tree", base, "-m", "the template before", env=environment)
    child = git(project, "commit-tree", new, "-p", parent, "-m", f"the template at {commit[:12]}", env=environment)
    git(project, "cherry-pick", "--no-commit", child, check=False, env=environment)
    conflicts = set(changed(project, "--diff-filter=U"))
    if stay := sorted(conflicts & set(changed(project, "--diff-filter=D", parent, "HEAD"))):
        git(project, "rm", "--quiet", "--force", "--", *stay)
        print(f"deleted in the project, stays so: {', '.join(stay)}")
        conflicts -= set(stay)
    staged = [path for path in changed(project, "--cached") if path not in conflicts]
    if not conflicts and not staged:
        raise TemplateError(f"git cannot merge into {project}: see `git cherry-pick --no-commit {child}` there")
    print(f"{project} has what the template changed up to {commit[:12]}, staged: {', '.join(staged) or 'nothing'}")
    if conflicts:
        print(f"error: both sides changed {', '.join(sorted(conflicts))}: edit and `git add` them", file=sys.stderr)
    print("next: `git diff --cached`, make test, git commit (or `git reset --hard` to undo it)")
    return 1 if conflicts else 0


if __name__ == "__main__":
    sys.exit(main())
