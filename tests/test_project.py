"""The project's own files: the lock, the version, the style of the sources."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_malicious_releases_are_excluded():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lightning = next(need for need in project["dependencies"] if need.startswith("lightning"))
    assert "!=2.6.2" in lightning
    assert "!=2.6.3" in lightning
