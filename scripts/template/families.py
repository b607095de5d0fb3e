"""Which files belong to which family of examples. Everything that no family claims is kept in every project.

In files that families share, lines are marked by comments, see `marks.py`. Imports of what has gone, its names in
`__all__`, its rows in Markdown tables and its layers in pyproject.toml need no marks.

`PACKAGE` in a pattern is the folder of the package; `*` stands for anything, also for slashes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from template.errors import TemplateError


@dataclass(frozen=True)
class Family:
    """Examples of one kind of task.

    Args:
        files: patterns of the files that go with the family.
        needs: families without which it does not work.
        dependencies: packages in pyproject.toml that only this family uses.
        headings: sections of README.md and docs/ that are about it alone.
        texts: file → pairs of a text and what stands there without the family, where no comment can mark lines.
    """

    files: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    headings: tuple[str, ...] = ()
    texts: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)


FAMILIES = {
    # the command line, its tests and `make demo` rest on it
    "classification": Family(),
    # begin family: translation
    "translation": Family(
        files=(
            "PACKAGE/data/translation/*", "PACKAGE/models/seq2seq/*", "PACKAGE/text/*", "PACKAGE/tasks/translation*.py",
            "PACKAGE/tasks/on_text.py", "PACKAGE/tasks/teacher_forcing.py", "PACKAGE/callbacks/translations.py",
            "PACKAGE/viz/translation.py", "PACKAGE/translate*.py",
            "configs/translation_*.yaml", "configs/tatoeba_*.yaml", "configs/multi30k_*.yaml",
            "configs/sweeps/translation_*.yaml",
            "tests/data/translation/*", "tests/models/seq2seq/*", "tests/text/*", "tests/*translat*.py",
            "tests/tasks/test_several_optimizers.py", "tests/test_averaging.py",
            "docs/*translation*", "benchmarks/*translation*", "benchmarks/equivalence.py",
            "benchmarks/results/equivalence.json",
        ),
        needs=("classification",),
        dependencies=("sacrebleu", "sacremoses", "sentencepiece"),
        headings=("Translation",),
        texts={
            "PACKAGE/cli.py": (
                ("such as `COMMAND translate`,", "such as `COMMAND examples`,"),
                (
                    '"`COMMAND translate --run RUN TEXT` translates (its options: `COMMAND translate --help`), '
                    '`COMMAND "\n    "examples` lists',
                    '"`COMMAND examples` lists',
                ),
            ),
            "PACKAGE/tasks/several_optimizers.py": (
                (
                    "`class TranslatorOfParts(SeveralOptimizers, Translator)` below trains encoder and decoder by "
                    "optimizers of their own:\n`configs/translation_two_optimizers.yaml`. For",
                    "`class Mine(SeveralOptimizers, YourTask)` trains each part by an optimizer of its own. For",
                ),
            ),
            "configs/overlays/ema.yaml": (("-c configs/multi30k_en_fr.yaml", "-c configs/quickstart.yaml"),),
            "tests/test_commands.py": (('("fit", "translate", "examples"', '("fit", "examples"'),),
            "CONTRIBUTING.md": (
                ("| `session`, `translate` |", "| `session` |"),
                (", translation |", " |"),
            ),
            "docs/make-it-yours.md": ((", `translation`", ""),),
            "docs/runs.md": ((" (`translate --run` does it)", ""),),
            "docs/idioms.md": ((", `COMMAND translate`", ""),),
            "docs/figures/architecture.svg": ((", translate and resuming", " and resuming"),),
            "tests/conftest.py": (
                (
                    "random images, Tatoeba and Multi30k some sentences of the small\n    grammar; nothing is read or "
                    "downloaded.\n    ",
                    "random images; nothing is read or downloaded.",
                ),
            ),
        },
    ),
    # end family: translation
    # begin family: regression
    "regression": Family(
        files=(
            "PACKAGE/data/csv_*.py", "PACKAGE/data/table*.py", "PACKAGE/data/tabular.py",
            "PACKAGE/tasks/regression.py", "PACKAGE/callbacks/regression.py", "PACKAGE/viz/regression.py",
            "PACKAGE/models/ffnn.py",
            "configs/regression_*.yaml", "configs/sweeps/regression_*.yaml", "scripts/task_kinds/regression/*",
            "tests/*regress*.py", "tests/data/test_csv_table.py", "tests/data/test_tab*.py",
            "tests/models/test_ffnn.py", "tests/tasks/test_first_principles.py", "tests/callbacks/test_ema.py",
            "docs/*regression*", "benchmarks/*regression*", "benchmarks/equivalence.py",
            "benchmarks/results/equivalence.json",
        ),
        needs=("classification",),
        headings=("Regression", "Tables"),
        texts={
            "scripts/new_task.py": (
                ("    python scripts/new_task.py NAME --kind regression              numbers from numbers\n", ""),
            ),
            "CONTRIBUTING.md": ((": classification, regression", ": classification"),),
            "docs/make-it-yours.md": ((", `regression`", ""),),
            "docs/new-task.md": (
                ("python scripts/new_task.py NAME --kind regression\n", ""),
            ),
        },
    ),
    # end family: regression
}  # fmt: skip

BENCHMARKS = ("benchmarks/*",)
TOOL = (
    "scripts/init_project.py",
    "scripts/update_project.py",
    "scripts/template/*",
    "tests/test_init_*.py",
    "tests/test_update_project.py",
    "tests/init_*.py",
    "docs/make-it-yours.md",
)
# of the template and of no project made from it
TEMPLATE = (".github/ISSUE_TEMPLATE/*", ".github/FUNDING.yml", ".template.toml")


def chosen(keep: str | None) -> tuple[str, ...]:
    """The families that `--keep a,b` names, all of them without it, in the order of the table.

    Raises:
        TemplateError: no such family, or one that a kept one needs is missing.
    """
    every = ", ".join(FAMILIES)
    names = list(FAMILIES) if keep is None else [name.strip() for name in keep.split(",") if name.strip()]
    for name in names:
        if name not in FAMILIES:
            raise TemplateError(f"--keep {name}: there is no such family of examples; choose from {every}")
    if not names:
        raise TemplateError(f"--keep names nothing: choose from {every}; at least classification, on which all rest")
    for name in names:
        for needed in FAMILIES[name].needs:
            if needed not in names:
                raise TemplateError(
                    f"{needed} cannot be dropped, for {name} depends on it: --keep {','.join([needed, *names])}"
                )
    return tuple(name for name in FAMILIES if name in names)


def matches(path: str, patterns: Iterable[str], package: str) -> bool:
    """Whether a file belongs to one of the patterns."""
    return any(fnmatchcase(path, pattern.replace("PACKAGE", package)) for pattern in patterns)


def dropped(keep: Sequence[str], benchmarks: bool, tool: bool) -> dict[str, tuple[str, ...]]:
    """Name of what is dropped → patterns of its files."""
    parts = {name: family.files for name, family in FAMILIES.items() if name not in keep}
    if not benchmarks:
        parts["benchmarks"] = BENCHMARKS
    if not tool:
        parts["this tool"] = TOOL
    return {**parts, "the template's own": TEMPLATE}
