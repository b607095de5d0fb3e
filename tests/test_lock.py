"""requirements.lock holds what pyproject.toml asks for, each file with its hash."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def locked() -> dict[str, list[tuple[Version, int]]]:
    """Name → versions in the lock and the number of their hashes."""
    found: dict[str, list[tuple[Version, int]]] = {}
    text = (ROOT / "requirements.lock").read_text()
    for entry in re.finditer(r"^([a-z0-9][\w.-]*)==([^\s;\\]+)(.*\n(?: .*\n?)*)", text, re.MULTILINE):
        found.setdefault(entry[1], []).append((Version(entry[2]), entry[3].count("--hash=sha256:")))
    return found


def test_malicious_releases_are_excluded():
    lightning = next(need for need in PROJECT["project"]["dependencies"] if need.startswith("lightning"))
    assert "!=2.6.2" in lightning
    assert "!=2.6.3" in lightning


def test_lock_is_current_with_the_dependencies_and_all_extras():
    project = PROJECT["project"]
    needed = [
        *project["dependencies"],
        *(need for extra in project["optional-dependencies"].values() for need in extra),
    ]
    entries = locked()
    for need in map(Requirement, needed):
        if need.name != project["name"]:
            versions = entries[need.name.lower().replace("_", "-")]
            assert all(need.specifier.contains(version) for version, _ in versions), need
    extras = {extra for need in project["optional-dependencies"]["dev"] for extra in Requirement(need).extras}
    assert extras == project["optional-dependencies"].keys() - {"dev"}  # the lock is that of dev


def test_every_entry_of_the_lock_has_hashes():
    assert len(locked()) > 100
    assert {name for name, versions in locked().items() if not all(hashes for _, hashes in versions)} == set()
