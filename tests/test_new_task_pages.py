"""The two new tasks of docs/new-task.md, step by step."""

import csv
import random
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from new_tasks import ROOT, copied, fit, new_task, python


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The parts of this project that a new task touches."""
    return copied(tmp_path_factory.mktemp("a project"))


SYLLABLES = {
    "danish": (["mad", "han", "kris", "ander", "niel", "lar", "ped", "jor", "mik"], ["sen", "gaard", "holm", "a"]),
    "italian": (["ross", "mar", "bian", "fer", "gal", "cast", "mor", "bell", "vit"], ["ini", "elli", "ucci", "a"]),
    "russian": (["ivan", "petr", "smir", "pop", "vol", "sok", "mor", "kuz", "leb"], ["ov", "enko", "in", "a"]),
}

# what the generated test is given: pictures instead of the stripes that were made up
DRAWN = '''import csv
import json
from pathlib import Path

import pytest
from PIL import Image, ImageDraw


def drawn(folder: Path) -> Path:
    """A hundred discs and a hundred squares."""
    for name in ("round", "cornered"):
        (folder / name).mkdir(parents=True)
        for number in range(100):
            image = Image.new("RGB", (40, 40))
            box = (number % 10, number % 7, 20 + number % 13, 20 + number % 13)
            pencil = ImageDraw.Draw(image)
            draw = pencil.ellipse if name == "round" else pencil.rectangle
            draw(box, fill="white")
            image.save(folder / name / f"{number}.png")
    return folder


def test_trains_and_predicts_as_it_tests(lit, tmp_path):
    fit = lit(f"fit -c configs/shapes.yaml --data.root={drawn(tmp_path / 'shapes')}")
'''


def surnames(count: int) -> list[tuple[str, str]]:
    """Names like those of three languages, each name once."""
    draw = random.Random(1)
    found: dict[str, str] = {}
    while len(found) < count:
        language = draw.choice(sorted(SYLLABLES))
        stems, ends = SYLLABLES[language]
        middle = draw.choice(["", "a", "e", "i", "o", "an", "er", "il", "on"])
        found.setdefault((draw.choice(stems) + middle + draw.choice(ends)).capitalize(), language)
    return list(found.items())


def pictures(folder: Path, count: int) -> None:
    """Round and cornered things of any colour and place, a folder a kind."""
    draw = random.Random(1)
    for name in ("round", "cornered"):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            image = Image.new("RGB", (48, 40), tuple(draw.randrange(100) for _ in range(3)))
            left, top, size = draw.randrange(15), draw.randrange(10), draw.randrange(20, 30)
            box, colour = (left, top, left + size, top + size), tuple(draw.randrange(120, 256) for _ in range(3))
            pencil = ImageDraw.Draw(image)
            pencil.ellipse(box, fill=colour) if name == "round" else pencil.rectangle(box, fill=colour)
            image.save(folder / name / f"{number}.png")


def whole_tests_pass(project: Path, task: str) -> None:
    """A task's own test, and what the tests of all configs say of its config."""
    shutil.copy(ROOT / "tests" / "test_configs.py", project / "tests")
    files = [f"tests/test_{task}.py", "tests/test_configs.py"]
    done = python(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", task, *files)
    assert done.returncode == 0, done.stdout[-3000:]
    listed = python(project, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests/test_configs.py")
    assert f"test_header_gives_the_command_and_what_to_expect[{task}.yaml]" in listed.stdout


def test_a_language_of_names_from_a_file_without_a_line_of_code(checkout):
    done = new_task(checkout, "tried_names", "--kind", "sequence")
    assert done.returncode == 0, done.stderr
    lines = [f"{name}\t{language}\n" for name, language in surnames(300)]
    (checkout / "names.tsv").write_text("".join(lines), encoding="utf-8")
    metrics = fit(checkout, "tried_names", "--data.file=names.tsv")
    assert metrics["test/accuracy"] > 0.8  # chance: a third
    run = Path("runs") / "tried_names" / "mine"
    done = python(checkout, "-m", "lit_project", "predict", "--run", run)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((checkout / run / "predictions" / "test.csv").open()))
    assert len(rows) == metrics["test/samples"] == 60
    assert sum(row["prediction"] == row["target"] for row in rows) / 60 == pytest.approx(metrics["test/accuracy"])
    assert {row["class_name"] for row in rows} == set(SYLLABLES)

    config = checkout / "configs" / "tried_names.yaml"
    text = config.read_text()
    assert "{batch_size: 32}" in text
    config.write_text(text.replace("{batch_size: 32}", "{batch_size: 32, file: names.tsv}"))
    whole_tests_pass(checkout, "tried_names")


def test_two_folders_of_pictures(checkout):
    """Without a line of code, and by the data module of the page."""
    pictures(checkout / "shapes", 100)
    small = ["--trainer.max_epochs=6", "--data.image_size=32", "--data.num_workers=0", "--data.batch_size=16"]
    assert fit(checkout, "image_folder", "--data.root=shapes", *small)["test/accuracy"] > 0.8  # chance: a half

    done = new_task(checkout, "tried_shapes", "--kind", "classification")
    assert done.returncode == 0, done.stderr
    module = next((checkout / "src").glob("*/data/tried_shapes.py"))
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "new-task.md").read_text(), re.DOTALL)
    own = [line for line in code.splitlines() if line and line not in module.read_text().splitlines()]
    assert len(own) < 22  # the page speaks of 17, and the names of task and class are other ones here
    module.write_text(code.replace("ShapesData", "TriedShapesData"))
    assert fit(checkout, "tried_shapes", "--data.root=shapes")["test/accuracy"] > 0.8

    file = checkout / "tests" / "test_tried_shapes.py"
    _, line, rest = file.read_text().partition('    fit = lit("fit -c configs/tried_shapes.yaml")\n')
    assert line
    file.write_text(DRAWN.replace("configs/shapes", "configs/tried_shapes") + rest)
    whole_tests_pass(checkout, "tried_shapes")
