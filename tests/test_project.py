"""The project's own files: the lock, the version, the style of the sources."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_lock_is_hash_pinned_and_names_no_index():
    text = (ROOT / "requirements.lock").read_text()
    requirements = re.findall(r"^([a-z][^ ;\\]*)", text, re.MULTILINE)
    assert len(requirements) > 50
    assert all("==" in requirement for requirement in requirements)
    assert text.count("--hash=sha256:") >= len(requirements)
    assert "://" not in text
    assert "index-url" not in text


def test_lock_holds_what_the_project_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = set(re.findall(r"^([a-z][a-z0-9.-]*)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    needed = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.match(r"[A-Za-z0-9.-]+", need)[0].lower() for need in needed} - {"lit-project"}
    assert names <= locked


def test_malicious_releases_are_excluded():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lightning = next(need for need in project["dependencies"] if need.startswith("lightning"))
    assert "!=2.6.2" in lightning
    assert "!=2.6.3" in lightning
