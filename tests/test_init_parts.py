"""Parts of scripts/init_project.py: tokens, marks, the table of families, pages."""

import sys

import pytest

from init_copies import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from template.families import FAMILIES
from template.generate import layers, replacements, unsilenced
from template.markdown import Gone, prune
from template.marks import apply_marks
from template.names import rename
from template.python import Names, dead_imports, without_gone

OLD = "lit_project"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import lit_project.data", "import kite_lab.data"),
        ("lit-project fit", "kite-lab fit"),
        ("LIT_PROJECT_DEBUG=1", "KITE_LAB_DEBUG=1"),
        ("def test_lit_project_runs", "def test_kite_lab_runs"),
        ("Lit Project, the LitProject", "Kite Lab, the KiteLab"),
        (f"sp{OLD} {OLD}s {OLD}2", f"sp{OLD} {OLD}s {OLD}2"),
        ("src/lit_project/lit_project.py", "src/kite_lab/kite_lab.py"),
    ],
)
def test_tokens_are_renamed_and_parts_of_words_are_not(text, expected):
    assert rename(text, "lit_project", "kite_lab")[0] == expected


def test_marked_lines_go_with_their_family():
    text = (
        "a = 1  # family: translation\n# family: translation\n@decorated\ndef f():\n    pass\n\n\n"
        "# begin family: regression\nb = 2\n\n# end family: regression\nc = 3\n"
    )
    assert apply_marks(text, ["classification"], "x.py") == "\n\nc = 3\n"
    kept = apply_marks(text, ["classification", "translation", "regression"], "x.py")
    assert kept == "a = 1\n@decorated\ndef f():\n    pass\n\n\nb = 2\n\nc = 3\n"


def test_a_project_that_is_a_template_keeps_the_marks_of_its_families():
    text = "a = 1  # family: x\n# family: y\nb = 2\n# begin family: x\nc = 3\n# end family: x\n# family: x\nd = 4\n"
    assert apply_marks(text, ["x", "y"], "x.py", marks=True) == text
    assert apply_marks(text, ["x"], "x.py", marks=True) == text.replace("# family: y\nb = 2\n", "")
    assert apply_marks(text, ["y"], "x.py", marks=True) == "# family: y\nb = 2\n"
    page = "A.\n\n<!-- begin family: x -->\n\nIt is:\n\n- `Lost`\n\n<!-- end family: x -->\n\nB.\n"
    left = "A.\n\n<!-- begin family: x -->\n\n<!-- end family: x -->\n\nB.\n"
    assert prune(apply_marks(page, ["x"], "x.md", marks=True), Gone([], ["Lost"], [])) == left
    assert prune(apply_marks(page, ["y"], "x.md"), Gone([], ["Lost"], [])) == "A.\n\nB.\n"


def test_texts_of_families_are_in_the_template():
    """What the table of families says stands in files, which are edited without a thought of it."""
    for name, family in FAMILIES.items():
        for pattern in [pattern for pattern in family.texts if not pattern.endswith(".md")]:
            path = pattern.replace("PACKAGE", f"src/{OLD}")
            for found, _ in replacements(path, [name], OLD):
                assert found in unsilenced((ROOT / path).read_text()), path


def test_relative_imports_are_followed():
    code = {"src/x/a.py": "A = 1\nB = 2\n", "src/x/sub/c.py": "from ..a import A, B\n", "tests/a.py": "C = 1\n"}
    before = Names.of(code, "x")
    assert dead_imports(code, before) == []
    left = {**code, "src/x/a.py": "A = 1\n"}
    assert dead_imports(left, before) == ["src/x/sub/c.py: import of x.a.B"]
    assert without_gone(left, before)["src/x/sub/c.py"] == "from ..a import A\n"


@pytest.mark.parametrize("between", [" : ", " | "])
def test_layers_lose_what_is_gone_and_keep_what_stands_between(between):
    modules = Names("x", dict.fromkeys(["x.a", "x.c", "x.d", "x.sub.e"], frozenset()))
    rows = [["x.a"], ["x.gone"], ["x.gone", "x.c"], ["x.a", "x.gone", "x.d"], ["x.sub.e", "x.gone"]]
    text = "".join(f'    "{between.join(row)}",\n' for row in rows)
    expected = f'    "x.a",\n    "x.c",\n    "x.a{between}x.d",\n    "x.sub.e",\n'
    assert layers(f"layers = [\n{text}]\n", modules) == f"layers = [\n{expected}]\n"
    mixed = '    "x.a : x.gone | x.c | x.d : x.gone",\n'
    assert layers(mixed, modules) == '    "x.a | x.c | x.d",\n'


def test_pages_lose_what_names_something_that_is_gone():
    page = (
        "# Page\n\nBoth `a.py`, `b/c.py` are short. See [this](gone.md). More.\n\n"
        "A table:\n\n| x |\n| --- |\n| `Lost` |\n\n## Lost section\n\nText.\n\n"
        "## Kept\n\n- `Here`, `Lost` or `Found`\n- `Lost`\n\n```bash\nrun configs/gone.yaml\nrun\n```\n"
    )
    gone = Gone(["src/x/b/c.py", "docs/gone.md", "configs/gone.yaml"], ["Lost"], ["Lost section"])
    assert prune(page, gone) == (
        "# Page\n\nBoth `a.py` are short. More.\n\n## Kept\n\n- `Here` or `Found`\n\n```bash\nrun\n```\n"
    )
