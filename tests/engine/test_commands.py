"""`lit-project --version` and `examples`: what they print."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lit_project import __version__
from lit_project.__main__ import PROJECT, main
from lit_project.engine.entry import COMMANDS
from lit_project.engine.examples import available

ROOT = Path(__file__).parents[2]


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(args) == 0
    return capsys.readouterr().out


def test_a_light_command_does_not_wait_for_torch(tmp_path):
    command = "examples quickstart"
    code = (
        f"import sys; sys.argv[1:] = {command.split()!r}\n"
        "from lit_project.__main__ import entry_point\n"
        "try: entry_point()\n"
        "finally: assert not {'torch', 'lightning', 'jsonargparse', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_version_is_that_of_the_package(capsys):
    assert printed(capsys, "--version") == f"lit-project {__version__}\n"


def test_a_wrong_command_is_told_those_there_are(lit):
    result = lit("exampels")
    assert result.status == 2
    assert "did you mean examples" in result.err
    for name in ("fit", "validate", "test", "predict", *COMMANDS, *PROJECT.commands):
        assert (name in result.err) == (not name.startswith("-"))


def test_every_config_is_listed_with_its_first_line(capsys):
    lines = printed(capsys, "examples").splitlines()
    files = [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs").glob("*/*.yaml")]
    assert len(files) > 20
    for file in files:
        name = file.relative_to(ROOT / "configs").with_suffix("").as_posix()
        first = file.read_text().partition("\n")[0]
        assert [f"# {line.split(maxsplit=1)[1]}" for line in lines if line.startswith(f"{name} ")] == [first]
        assert first.endswith("."), file


@pytest.mark.slow
def test_a_wheel_brings_the_configs_along(tmp_path):
    """Built from the project's own sources and used from elsewhere, without the checkout."""
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
    assert {p.relative_to(inside).with_suffix("").as_posix() for p in inside.rglob("*.yaml")} == set(available())


def test_a_config_that_there_is_not(capsys):
    assert main(["examples", "overlay/debug"]) == 2
    assert capsys.readouterr().err == "error: examples: no config overlay/debug; did you mean overlays/debug?\n"
