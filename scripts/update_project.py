"""Update a project with the changes made to this template since the project was created.

The project is generated twice, from the template commit recorded in `.template.toml` and from the current commit. The
difference is applied to the project. The library's wheel is replaced, and all other files are merged line by line. The
changes are staged but not committed. For more details, see docs/make-it-yours.md.

    python scripts/update_project.py PROJECT_FOLDER
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from init_project import LOCK, RECORD, ROOT, git, template_files


def main() -> int:
    """Run the command. Return exit status 1 after a conflict, or if `--check` finds changes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", type=Path, help="project folder, which must have no uncommitted changes")
    parser.add_argument("--check", action="store_true", help="only list changes; exit with status 1 if there are any")
    options = parser.parse_args()
    try:
        return update(options.project.resolve(), options.check)
    except (OSError, tomllib.TOMLDecodeError) as error:
        sys.exit(f"error: {error}")


def update(project: Path, check: bool) -> int:
    """Merge the template's changes into a project, or only list them."""
    commit = template_files()[1]
    answers = read_template_record(project)
    old = commit_of(answers)
    if old != commit and git(ROOT, "merge-base", old, commit, check=False) == commit:
        sys.exit(
            f"error: this template's commit {commit[:12]} is older than the project's ({old[:12]}): run `git pull`"
        )
    with tempfile.TemporaryDirectory(prefix="update-project-") as folder:
        before = regenerate(old, answers, Path(folder, "before"), project)
        after = regenerate(commit, answers, Path(folder, "after"), project)
        shutil.copy(project / RECORD, before)  # prevents merge conflicts in this file
        base, new = (tree(project, made, Path(folder)) for made in (before, after))
    newer = [path for path in changed_files(project, base, new) if path != RECORD]
    if check or not newer:
        print(f"changed in the template: {', '.join(newer)}" if newer else f"nothing to do: {project} is up to date")
        return 1 if newer else 0
    return merge(project, base, new, commit)


def commit_of(answers: Mapping[str, Any]) -> str:
    """Return the template commit that generated a project, or a commit with the same files.

    A repository created with GitHub's "Use this template" button has the same files but different commits.
    """
    old, files = answers["commit"], answers.get("tree")
    if git(ROOT, "rev-parse", "--verify", "--quiet", f"{old}^{{commit}}", check=False) == old:
        return old
    commits = dict(line.split() for line in git(ROOT, "log", "--all", "--format=%T %H").splitlines())
    if files not in commits:
        sys.exit(f"error: this template has no commit {old[:12]}: run `git pull`, possibly with `--unshallow`")
    return commits[files]


def read_template_record(project: Path) -> dict[str, Any]:
    """Return the content of `.template.toml`. Exit with an error if the project has uncommitted changes."""
    answers = tomllib.loads((project / RECORD).read_text())
    if missing := [name for name in ("commit", "name", "keep") if not answers.get(name)]:
        sys.exit(
            f"error: {RECORD} has no {missing[0]!r}, so the project cannot be updated: "
            "create a new project from a template with git history, and move your files into it"
        )
    if not (project / ".git").exists():
        sys.exit(f"error: {project} is not the root of a git repository: run `git init` and commit first")
    if uncommitted := git(project, "status", "--porcelain"):
        sys.exit(f"error: {project} has uncommitted changes ({uncommitted.splitlines()[0].strip()}): commit them first")
    return answers


def regenerate(commit: str, answers: dict[str, Any], folder: Path, project: Path) -> Path:
    """Generate the project from a template commit, using the init_project.py from the same commit."""
    checkout, made = folder / "template", folder / "project"
    git(ROOT, "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(checkout))
    git(checkout, "checkout", "--quiet", "--detach", commit)
    command = [sys.executable, str(checkout / "scripts" / "init_project.py"), answers["name"], f"--dir={made}"]
    command += [f"--keep={','.join(answers['keep'])}", "--no-git", "--again"]
    # Both versions must be formatted by the same version of ruff.
    path = os.pathsep.join([*(str(root / ".venv" / "bin") for root in (project, ROOT)), os.environ.get("PATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env={**os.environ, "PATH": path})
    if not (made / RECORD).exists():
        sys.exit(f"error: cannot generate the project from commit {commit[:12]}: {done.stderr.strip()}")
    return made


def tree(project: Path, files: Path, scratch: Path) -> str:
    """Add files to the project's git object store and return their tree. The working tree is not changed."""
    index = {**os.environ, "GIT_INDEX_FILE": str(scratch / f"index-{files.parent.name}")}
    git(project, f"--work-tree={files}", "add", "--all", "--force", ".", env=index)
    return git(project, "write-tree", env=index)


def changed_files(project: Path, *what: str) -> list[str]:
    """Return the paths of the files that `git diff` lists for these arguments."""
    return [path for path in git(project, "diff", "--name-only", "-z", *what).split("\0") if path]


def merge(project: Path, base: str, new: str, commit: str) -> int:
    """Apply the difference between two trees to the project with `git cherry-pick`."""
    who = {f"GIT_{role}_{what}": "template@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **who}
    parent = git(project, "commit-tree", base, "-m", "the template before the update", env=environment)
    child = git(project, "commit-tree", new, "-p", parent, "-m", f"the template at {commit[:12]}", env=environment)
    git(project, "cherry-pick", "--no-commit", child, check=False, env=environment)
    conflicts = set(changed_files(project, "--diff-filter=U"))
    if stay := sorted(conflicts & set(changed_files(project, "--diff-filter=D", parent, "HEAD"))):
        git(project, "rm", "--quiet", "--force", "--", *stay)
        print(f"still deleted in the project: {', '.join(stay)}")
        conflicts -= set(stay)
    staged = [path for path in changed_files(project, "--cached") if path not in conflicts]
    if not conflicts and not staged:
        sys.exit(f"error: git cannot merge into {project}: run `git cherry-pick --no-commit {child}` there")
    print(f"updated {project} to the template's commit {commit[:12]}, staged: {', '.join(staged) or 'nothing'}")
    if conflicts:
        print(
            f"error: both sides changed {', '.join(sorted(conflicts))}: resolve the conflicts and `git add` the files",
            file=sys.stderr,
        )
    if LOCK in conflicts:
        print(f"to resolve the conflict in {LOCK}: git checkout --ours {LOCK} && make lock && git add {LOCK}")
    print("next: git diff --cached, make test, git commit (`git reset --hard` undoes the update)")
    return 1 if conflicts else 0


if __name__ == "__main__":
    sys.exit(main())
