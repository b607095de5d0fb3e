"""Tests that the shipped sweeps are valid."""

import json
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SWEEPS = sorted(path.name for path in (ROOT / "configs" / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize("name", SWEEPS)
def test_the_command_line_accepts_the_shipped_sweeps(lit, name):
    result = lit(f"sweep configs/sweeps/{name} --dry_run")
    assert result.status == 0, result.err
    commands = [line for line in result.out.splitlines() if line.startswith("lit-project fit ")]
    content = yaml.safe_load((ROOT / "configs" / "sweeps" / name).read_text())
    for key, section in content["parameters"].items():
        assert all(f'"{key}": {json.dumps(value)}' in result.out for value in section.get("values", []))
    assert all("--config configs/" in line for line in commands)
    assert not Path("sweeps").exists()
    assert f"lit-project sweep configs/sweeps/{name}" in (ROOT / "configs" / "sweeps" / name).read_text()
