"""The commands of the README and of docs/ run as they stand, in their order."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text()


def commands(page: Path) -> list[str]:
    """The lines of all bash blocks."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


COMMANDS = commands(PAGES[0])


def test_there_are_commands_and_nothing_unknown_among_them():
    assert sum(command.startswith("lit-project") for command in COMMANDS) >= 8
    assert {command.split()[0] for command in COMMANDS} == {"make", "lit-project"}


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make")])
def test_make_knows_its_targets(command):
    done = subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "page", [pytest.param(PAGES[0], marks=pytest.mark.draws), *PAGES[1:]], ids=lambda page: page.name
)
def test_lit_project_commands_run_in_order(lit, small_data, image_folder, imagenet_weights, workspace, page):
    (workspace / "pictures").mkdir()
    Image.new("RGB", (50, 30), "white").save(workspace / "pictures" / "white.jpg")
    for command in commands(page):
        if command.startswith("lit-project"):
            _, *args = shlex.split(command)
            new = args[0] == "fit" and "--run" not in args
            config = args[args.index("-c") + 1] if new and "-c" in args else ""
            # two epochs, but for a schedule that has something in the third; few images where each takes long
            epochs = ["--trainer.max_epochs=3"] if config.endswith("mnist_resnet18_from_fashion.yaml") else []
            large = "resnet18" in config or "finetune_imagefolder" in config
            batch = ["--data.batch_size=8", "--data.eval_batch_size=8"] if large else []
            debug = ["-c", "configs/overlays/debug.yaml", *epochs, *batch] if new else []
            result = lit(args, debug)
            assert result.status == 0, f"{command}\n{result.err}"
    if page.name == "README.md":
        assert (workspace / "runs" / "image_folder" / "mine" / "predictions" / "images_pictures.csv").exists()


def test_links_and_figures_exist():
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), target


def test_every_config_is_in_the_table():
    for config in (ROOT / "configs").glob("*.yaml"):
        assert config.stem in README
    for overlay in (ROOT / "configs" / "overlays").glob("*.yaml"):
        assert f"`{overlay.stem}`" in README
