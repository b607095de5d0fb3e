"""scripts/new_task.py: what it writes trains and is in style; and the two new tasks of docs/new-task.md."""

import csv
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

ROOT = Path(__file__).parents[1]
KINDS = sorted(path.parent.name for path in (ROOT / "scripts" / "task_kinds").glob("*/about.toml"))
NOT_COPIED = shutil.ignore_patterns("__pycache__")


def python(project: Path, *args: object) -> subprocess.CompletedProcess[str]:
    """Runs Python in a project, on the package that is there."""
    environment = {**os.environ, "PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    environment |= {"OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "200"}
    command = [sys.executable, *map(str, args)]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, env=environment, timeout=240)


def new_task(project: Path, *args: object) -> subprocess.CompletedProcess[str]:
    return python(project, "scripts/new_task.py", *args)


def fit(project: Path, config: str, *options: object) -> dict[str, float]:
    """Trains as a user does; the numbers of the test split."""
    command = ["fit", "-c", f"configs/{config}.yaml", "--run_name=mine", *options]
    done = python(project, "-m", "lit_project", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((project / "runs" / config / "mine" / "metrics.json").read_text())["test"]


def state(project: Path) -> dict[str, str]:
    """All that new_task could write to."""
    return {
        str(path.relative_to(project)): path.read_text()
        for folder in ("src", "configs", "tests")
        for path in [*(project / folder).rglob("*.*"), project / "README.md"]
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The parts of this project that a new task touches."""
    project = tmp_path_factory.mktemp("a project")
    for folder in ("src", "configs", "scripts"):
        shutil.copytree(ROOT / folder, project / folder, ignore=NOT_COPIED)
    (project / "tests").mkdir()
    for file in ("pyproject.toml", "README.md", "tests/conftest.py", "tests/tiny.py"):
        shutil.copy(ROOT / file, project / file)
    return project


@pytest.fixture(scope="module")
def project(checkout):
    """The same with a task of each kind."""
    for kind in KINDS:
        done = new_task(checkout, f"tried_{kind}", "--kind", kind)
        assert done.returncode == 0, done.stderr
        assert f"wrote configs/tried_{kind}.yaml" in done.stdout
        assert f"fit -c configs/tried_{kind}.yaml" in done.stdout
        assert "edit next: " in done.stdout
    return checkout


def written(project: Path) -> list[str]:
    return [str(path.relative_to(project)) for path in sorted(project.rglob("*tried_*.py"))]


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("name-language", "try name_language"),
        ("name language", "try name_language"),
        ("NameLanguage", "try name_language"),
        ("naïve", "try naive"),
        ("язык", "lower-case letters a to z"),
        ("2nd", "beginning with a letter"),
        ("", "lower-case letters"),
        ("a__b", "single underscores"),
        ("../a", "lower-case letters"),
        ("class", "keyword of Python"),
        ("n" * 31, "at most 30"),
        ("lit_project", "name of the package"),
        ("digits", "data/digits.py exists"),
        ("quickstart", "configs/quickstart.yaml exists"),
        ("image", "has a class Image"),
    ],
)
def test_names_that_cannot_be(checkout, name, words):
    before = state(checkout)
    refused(new_task(checkout, name, "--kind", "classification"), words)
    assert state(checkout) == before


def test_dry_run_writes_nothing(checkout):
    before = state(checkout)
    done = new_task(checkout, "only_said", "--kind", "sequence", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert re.search(r"would write src/\w+/tasks/only_said\.py", done.stdout)
    assert state(checkout) == before


def test_a_kind_that_is_not_there(checkout):
    done = new_task(checkout, "speech", "--kind", "audio")
    assert done.returncode == 2
    assert "sequence" in done.stderr


def test_nothing_is_overwritten(project):
    before = state(project)
    for kind in KINDS:
        refused(new_task(project, "tried_sequence", "--kind", kind), "exists", "choose another name")
    assert state(project) == before


def test_readme_and_headers_are_what_the_tests_of_the_project_want(project):
    text = (project / "README.md").read_text()
    section = text[text.index("## Your tasks\n") :].split("\n## ")[0]
    for kind in KINDS:
        row = rf"^\| \[`tried_{kind}`\]\(configs/tried_{kind}\.yaml\) (\|.+){{3}}\|$"
        assert len(re.findall(row, section, re.MULTILINE)) == 1
        config = (project / "configs" / f"tried_{kind}.yaml").read_text()
        header = config[: config.index("\nseed_everything")]
        for wanted in (f"lit-project fit -c configs/tried_{kind}.yaml", "Expect: ", "your"):
            assert wanted in header
    assert section.count("\n| --- |") == text.count("## Your tasks") == 1
    before = (ROOT / "README.md").read_text().splitlines()
    assert [line for line in difflib.ndiff(before, text.splitlines()) if line.startswith("- ")] == []


def test_style_and_length(project):
    for command in (["format", "--check"], ["check"]):
        done = python(project, "-m", "ruff", *command, "--no-cache", *written(project))
        assert done.returncode == 0, done.stdout + done.stderr
    assert max(len((project / file).read_text().splitlines()) for file in written(project)) <= 160


@pytest.mark.parametrize("name", ["x", "n" * 30, "a_b_c_d_e_f_g_h_i_j_k_l_m_n"])
def test_short_and_long_names_are_in_style_too(checkout, tmp_path, name):
    copy = tmp_path / "copy"
    shutil.copytree(checkout, copy, ignore=NOT_COPIED)
    for kind in KINDS:
        done = new_task(copy, name, "--kind", kind)
        assert done.returncode == 0, done.stderr
        files = [path for path in copy.rglob(f"*{name}.py") if path.stem in (name, f"test_{name}")]
        for command in (["format", "--check"], ["check"]):
            done = python(copy, "-m", "ruff", *command, "--no-cache", *files)
            assert done.returncode == 0, done.stdout + done.stderr
        for path in [*files, copy / "configs" / f"{name}.yaml"]:
            path.unlink()


def test_types(project):
    files = [file for file in written(project) if file.startswith("src/")]
    done = python(project, "-m", "mypy", "--cache-dir", project / "mypy", *files)
    assert done.returncode == 0, done.stdout


def test_what_it_writes_passes_its_own_tests(project):
    tests = [file for file in written(project) if file.startswith("tests/")]
    done = python(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert done.returncode == 0, done.stdout[-3000:]
    assert f"{len(KINDS) + 2} passed" in done.stdout


# ------------------------------------------------------------------------- the two tasks of docs/new-task.md

SYLLABLES = {
    "danish": (["mad", "han", "kris", "ander", "niel", "lar", "ped", "jor", "mik"], ["sen", "gaard", "holm", "a"]),
    "italian": (["ross", "mar", "bian", "fer", "gal", "cast", "mor", "bell", "vit"], ["ini", "elli", "ucci", "a"]),
    "russian": (["ivan", "petr", "smir", "pop", "vol", "sok", "mor", "kuz", "leb"], ["ov", "enko", "in", "a"]),
}


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


def test_two_folders_of_pictures(checkout):
    """Without a line of code, and by the data module of the page."""
    pictures(checkout / "shapes", 100)
    small = ["--trainer.max_epochs=6", "--data.image_size=32", "--data.num_workers=0", "--data.batch_size=16"]
    assert fit(checkout, "image_folder", "--data.root=shapes", *small)["test/accuracy"] > 0.8  # chance: a half

    done = new_task(checkout, "tried_shapes", "--kind", "classification")
    assert done.returncode == 0, done.stderr
    module = next((checkout / "src").glob("*/data/tried_shapes.py"))
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "new-task.md").read_text(), re.DOTALL)[1]
    own = [line for line in code.splitlines() if line and line not in module.read_text().splitlines()]
    assert len(own) < 20  # the page speaks of 13, and the names of task and class are other ones here
    module.write_text(code.replace("ShapesData", "TriedShapesData"))
    assert fit(checkout, "tried_shapes", "--data.root=shapes")["test/accuracy"] > 0.8
