"""The commands of the README and docs/ can be run unchanged and in order."""

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from test_configs import OPTIONS
from tiny import TINY

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text()


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return language and text of all code blocks. Commands in `bash` blocks are run here, others are not."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def split(block: str) -> list[str]:
    """Return the commands of a block."""
    return [line for line in block.replace("\\\n", "").splitlines() if line]


def commands(page: Path) -> list[str]:
    """Return the commands of all bash blocks."""
    return [command for language, block in blocks(page) if language == "bash" for command in split(block)]


COMMANDS = commands(PAGES[0])


def test_there_are_commands_and_nothing_unknown_among_them():
    assert sum(command.startswith("lit-project") for command in COMMANDS) >= 8
    assert {command.split()[0] for command in COMMANDS} == {"make", "lit-project"}


def _steps(language: str, block: str) -> list[str]:
    """Return the parts of a block to run: the lines of a bash block, or an entire Python block."""
    return split(block) if language == "bash" else [block] if language == "python" else []


# One page draws real figures, which takes longer than training.
DOCS = [
    pytest.param(page, marks=[pytest.mark.slow, *[pytest.mark.draws] * (page.name == "runs.md")]) for page in PAGES[1:]
]


@pytest.mark.parametrize("page", [PAGES[0], *DOCS], ids=[page.name for page in PAGES])
def test_lit_project_commands_run_in_order(lit, small_data, image_folder, imagenet_weights, workspace, page):
    (workspace / "pictures").mkdir()
    Image.new("RGB", (50, 30), "white").save(workspace / "pictures" / "white.jpg")
    rows = [f"{40 + area},{area % 5},a street,{9 * area}" for area in range(60)]
    for name in ("houses.csv", "new_houses.csv"):
        (workspace / name).write_text("\n".join(["area,rooms,place,price", *rows]))
    names: dict[str, object] = {}
    for command in [text for language, block in blocks(page) for text in _steps(language, block)]:
        if not command.startswith(("lit-project", "make")):
            exec(command, names)
        elif command.startswith("lit-project"):
            _, *args = shlex.split(command)
            new = args[0] == "fit" and "--run" not in args
            config = args[args.index("-c") + 1] if new and "-c" in args else ""
            small = [option for prefix, option in OPTIONS.items() if Path(config).name.startswith(prefix)]
            small += [TINY] if config == "configs/quickstart.yaml" else []
            result = lit(args, " ".join(["-c configs/overlays/debug.yaml", *small]) if new else "")
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
