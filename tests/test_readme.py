"""Tests that the commands in the README and docs/ run in order."""

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from test_configs import OPTIONS
from tiny import TINY

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = (ROOT / "docs" / "examples.md").read_text()


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the language and text of each code block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def split(block: str) -> list[str]:
    """Return the commands of a block."""
    return [line for line in block.replace("\\\n", "").splitlines() if line]


def commands(page: Path) -> list[str]:
    """Return the commands of all bash blocks."""
    return [command for language, block in blocks(page) if language == "bash" for command in split(block)]


COMMANDS = commands(PAGES[0])


def test_readme_contains_only_make_and_lit_project_commands():
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
            new = args[0] == "fit" and "--run" not in args and not args[1].startswith("runs/")
            config = args[args.index("-c") + 1] if new and "-c" in args else args[1] if new else ""
            small = [option for prefix, option in OPTIONS.items() if Path(config).name.startswith(prefix)]
            small += [TINY] if Path(config).stem == "quickstart" else []
            result = lit(args, " ".join(["-c configs/overlays/debug.yaml", *small]) if new else "")
            assert result.status == 0, f"{command}\n{result.err}"
    if page.name == "examples.md":
        assert (workspace / "runs" / "image_folder" / "mine" / "predictions" / "images_pictures.csv").exists()


def test_links_and_figures_exist():
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), target


def test_examples_page_lists_every_config_and_overlay():
    for config in (ROOT / "configs").glob("*.yaml"):
        assert config.stem in EXAMPLES
    for overlay in (ROOT / "configs" / "overlays").glob("*.yaml"):
        assert f"`{overlay.stem}`" in EXAMPLES
