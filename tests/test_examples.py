"""Tests `lit-project examples` in a checkout and with the files of a wheel."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lit_project.__main__ import PROJECT, main

ROOT = Path(__file__).parents[1]


def test_every_config_is_listed_with_its_first_line(capsys):
    assert main(["examples"]) == 0
    lines = capsys.readouterr().out.splitlines()
    files = [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs").glob("*/*.yaml")]
    assert len(files) > 20
    for file in files:
        name = file.relative_to(ROOT / "configs").with_suffix("").as_posix()
        first = file.read_text().partition("\n")[0]
        assert [f"# {line.split(maxsplit=1)[1]}" for line in lines if line.startswith(f"{name} ")] == [first]
        assert first.endswith("."), file


@pytest.mark.slow
def test_wheel_includes_all_configs(tmp_path):
    """Build the wheel from the project's sources and use it without the checkout."""
    code = f"from hatchling.build import build_wheel; build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=120)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "site")
    command = [sys.executable, "-m", "lit_project", "examples", "overlays/debug"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, capture_output=True, text=True,
        timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    source = ROOT / "configs" / "overlays" / "debug.yaml"
    assert done.stdout == source.read_text()
    inside = tmp_path / "site" / "lit_project" / "configs"
    assert {p.relative_to(inside).with_suffix("").as_posix() for p in inside.rglob("*.yaml")} == set(PROJECT.configs())
