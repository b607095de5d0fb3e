"""What a project made from this template consists of: a family of examples is a list of files and of keys.

`PACKAGE` in a pattern is the folder of the package; `*` stands for anything, also for slashes. A key is the first word
of a line, in quotes or not: the line goes if no family is kept that has the key. Files that no family names stay with
the template.

In Markdown files, `<!-- only: regression, table -->` starts text that a project has only if one of these families is
kept, and `<!-- end -->` ends it. `<!-- only: template -->` marks text that no project has. Both markers are on lines of
their own around paragraphs, or within a line; to mark a list item or a table row, end the line above it with the first.
"""

import re
from fnmatch import fnmatchcase
from typing import NamedTuple

PYPROJECT, MAIN = "pyproject.toml", "PACKAGE/__main__.py"


class Family(NamedTuple):
    """Patterns of the files of a family, and file → keys of the lines that it needs there."""

    files: str
    keys: dict[str, str]


FAMILIES = {
    # and what every project has: `make demo` and the tests rest on it
    "classification": Family(
        files="""
            PACKAGE/__init__.py PACKAGE/__main__.py
            PACKAGE/data/__init__.py PACKAGE/data/augmentation.py PACKAGE/data/digits.py PACKAGE/data/image_folder.py
            PACKAGE/data/mnist.py PACKAGE/data/files/digits.npz PACKAGE/data/files/README.md
            PACKAGE/models/__init__.py PACKAGE/models/cnn.py PACKAGE/models/dropout.py PACKAGE/models/losses.py
            PACKAGE/models/mlp.py PACKAGE/models/pretrained.py PACKAGE/models/resnet.py PACKAGE/models/timm_net.py
            PACKAGE/tasks/__init__.py PACKAGE/tasks/classification*.py PACKAGE/tasks/mixup.py
            PACKAGE/tasks/test_time_augmentation.py
            configs/quickstart.yaml configs/mnist_*.yaml configs/fashion_mnist_*.yaml configs/*image*folder.yaml
            configs/overlays/[!ft]*.yaml configs/overlays/flips.yaml configs/overlays/tensorboard.yaml
            configs/sweeps/quickstart_*.yaml
            docs/configuration.md docs/images.md docs/lightning.md docs/results.md docs/runs.md docs/scaling.md
            docs/sweeps.md docs/training.md
            scripts/new_task.py scripts/slurm_fit.sbatch scripts/task_kinds/classification/*
            tests/conftest.py tests/classifier_data.py tests/configs_of_images.py tests/test_configs.py tests/tiny.py
            tests/data/test_digits.py
            tests/models/test_cnn.py tests/models/test_losses.py tests/models/test_mlp.py
            tests/models/test_small_resnet.py tests/tasks/test_image_classifier.py
            .devcontainer/* .dockerignore .github/workflows/ci.yml .gitignore .pre-commit-config.yaml
            .vscode/* Dockerfile LICENSE Makefile pyproject.toml requirements.lock
        """,
        keys={MAIN: "class_names mean std num_classes input_shape"},
    ),
    "regression": Family(
        files="""
            PACKAGE/data/tables.py PACKAGE/data/files/diabetes.npz PACKAGE/tasks/regression*.py
            configs/regression_*.yaml
            tests/configs_of_tables.py tests/saving.py tests/data/test_csv_table.py tests/models/test_ffnn.py
            tests/tasks/test_first_principles.py tests/tasks/test_regress*.py
        """,
        keys={
            MAIN: "feature_names target_names feature_mean feature_std target_mean target_std input_size output_size"
        },
    ),
    # kinds of new_task.py
    "lightning": Family(files="scripts/task_kinds/lightning/*", keys={}),
    "multilabel": Family(files="scripts/task_kinds/multilabel/*", keys={}),
    "segmentation": Family(files="scripts/task_kinds/segmentation/*", keys={}),
    "table": Family(files="scripts/task_kinds/table/*", keys={MAIN: "columns"}),
    "sequence": Family(
        files="scripts/task_kinds/*sequence/*",
        keys={MAIN: "input_size encoder", PYPROJECT: "encoder lit-project[encoder]"},
    ),
    "translation": Family(
        files="""
            PACKAGE/data/parallel_text/* PACKAGE/models/seq2seq/* PACKAGE/text/* PACKAGE/tasks/translation/*
            PACKAGE/tasks/several_optimizers.py
            configs/translation_*.yaml configs/tatoeba_*.yaml configs/multi30k.yaml configs/sweeps/translation_*.yaml
            docs/translation.md docs/figures/translation_*.png
            tests/configs_of_text.py tests/data/translation/* tests/models/seq2seq/* tests/text/* tests/*translat*
            tests/saving.py tests/tasks/test_several_optimizers.py
        """,
        keys={
            MAIN: "translate vocabularies source_size target_size max_source_length",
            PYPROJECT: "sacrebleu sacremoses sentencepiece lit_project.text",
        },
    ),
    "autograd": Family(files="PACKAGE/models/autograd.py tests/models/test_functional.py", keys={}),
    "notebook": Family(files="notebooks/*", keys={}),
    "sharding": Family(files="configs/overlays/fsdp2.yaml configs/overlays/tensor_parallel.yaml", keys={}),
    "kubernetes": Family(files="scripts/kubernetes.yaml", keys={}),
}

# of the template alone
OURS = {
    PYPROJECT: "docs lit-project[docs] benchmarks ipykernel jsonschema kubeflow-trainer-api nbclient playwright timm",
    ".dockerignore": "benchmarks/results",
}


def belongs(path: str, family: str, package: str) -> bool:
    """Whether a file is one of a family; `package` is the folder of the package."""
    return any(fnmatchcase(path, pattern) for pattern in FAMILIES[family].files.replace("PACKAGE", package).split())


def dropped_keys(keep: tuple[str, ...]) -> dict[str, set[str]]:
    """File → keys that no kept family has."""
    kept = {(file, key) for name in keep for file, keys in FAMILIES[name].keys.items() for key in keys.split()}
    found: dict[str, set[str]] = {}
    for owned in (OURS, *(family.keys for family in FAMILIES.values())):
        for file, keys in owned.items():
            found.setdefault(file, set()).update(key for key in keys.split() if (file, key) not in kept)
    return found


def keep_sections(text: str, keep: tuple[str, ...]) -> str:
    """Resolves the `<!-- only: … -->` markers of a Markdown page: removes them, and the text of families not kept.

    Raises:
        ValueError: If a marker names no family, or has no counterpart.
    """

    def resolve(found: re.Match[str]) -> str:
        families = set(re.split(", *", found["families"]))
        if unknown := families - {"template", *FAMILIES}:
            raise ValueError(f"<!-- only: {found['families']} --> names no family: {', '.join(sorted(unknown))}")
        return found["text"] if families & set(keep) else ""

    def resolve_section(found: re.Match[str]) -> str:
        text = resolve(found)
        return text + (found["blank"] or "") if text else ""

    start, end = r"<!-- only: (?P<families>[\w, ]+) -->", "<!-- end -->"
    # a section includes the blank line after it, so that none is left over
    text = re.sub(rf"^{start}\n(?P<text>.*?)^{end}$(?:\n(?P<blank>\n))?", resolve_section, text, flags=re.S | re.M)
    text = re.sub(rf"{start}(?P<text>.*?){end}", resolve, text, flags=re.S)
    if unpaired := re.search(r"<!-- (?:only:.*?|end) -->", text):
        raise ValueError(f"{unpaired[0]} has no counterpart")
    return re.sub(r" +$", "", text.rstrip(), flags=re.M) + "\n"
