"""The commands of the README run as they stand, in their order."""

import re
import subprocess
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line]


def test_there_are_commands_and_nothing_unknown_among_them():
    assert sum(command.startswith("lit-project") for command in COMMANDS) >= 8
    assert {command.split()[0] for command in COMMANDS} == {"make", "lit-project"}


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make")])
def test_make_knows_its_targets(command):
    done = subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_lit_project_commands_run_in_order(lit, small_data, image_folder, workspace):
    (workspace / "pictures").mkdir()
    Image.new("RGB", (50, 30), "white").save(workspace / "pictures" / "white.jpg")
    for command in COMMANDS:
        if command.startswith("lit-project"):
            _, *args = command.split()
            new = args[0] == "fit" and "--run" not in args
            debug = ["-c", "configs/overlays/debug.yaml"] if new else []
            result = lit(args, debug)
            assert result.status == 0, f"{command}\n{result.err}"
    assert (workspace / "runs" / "image_folder" / "mine" / "predictions" / "pictures.csv").exists()


def test_links_and_figures_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_every_config_is_in_the_table():
    for config in (ROOT / "configs").glob("*.yaml"):
        assert config.stem in README
    for overlay in (ROOT / "configs" / "overlays").glob("*.yaml"):
        assert f"`{overlay.stem}`" in README
