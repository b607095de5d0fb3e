"""Families of examples, from which `init_project.py` assembles a project.

Each family has glob patterns for its own files. In files that families share, keys identify the lines of each family.
In a pattern, `PACKAGE` matches the package folder, and `*` also matches slashes. A key is the first word of a line,
with or without quotes. A line with a key is removed unless the project keeps a family that lists this key. Files that
match no pattern are not copied.

A Markdown file can contain sections for certain families. A section starts with an `only` comment, which lists the
families, and ends with an `end` comment (see `keep_sections`). Text for `template` never appears in a project. For
whole paragraphs, put each comment on a separate line. The comments can also be used within a line. For a list item or a
table row, put the start comment at the end of the previous line.
"""

import re
from fnmatch import fnmatchcase
from typing import NamedTuple

PYPROJECT, MAIN = "pyproject.toml", "PACKAGE/__main__.py"


class Family(NamedTuple):
    """Glob patterns for a family's own files, and the keys of its lines in each shared file."""

    files: str
    keys: dict[str, str]


FAMILIES = {
    # Every project contains this family, because `make demo` and the tests need its files.
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
            AGENTS.md .vscode/* Dockerfile LICENSE Makefile pyproject.toml requirements.lock
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
    # Task kinds for new_task.py.
    "lightning": Family(files="scripts/task_kinds/lightning/*", keys={}),
    "multilabel": Family(files="scripts/task_kinds/multilabel/*", keys={}),
    "segmentation": Family(files="scripts/task_kinds/segmentation/*", keys={}),
    "table": Family(files="scripts/task_kinds/table/*", keys={MAIN: "columns"}),
    "sequence": Family(
        files="scripts/task_kinds/*sequence/*",
        keys={MAIN: "input_size encoder", PYPROJECT: "encoder transformers"},
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

# Keys of lines and list items that are removed from every generated project.
OURS = {
    PYPROJECT: "benchmarks engine/src engine/tests error::DeprecationWarning:lit_engine ipykernel jsonschema "
    "kubeflow-trainer-api mkdocstrings-python nbclient playwright pythonpath timm zensical",
    ".dockerignore": "benchmarks/results",
}


def is_in_family(path: str, family: str, package: str) -> bool:
    """Return whether a file belongs to a family. `package` is the package folder."""
    return any(fnmatchcase(path, pattern) for pattern in FAMILIES[family].files.replace("PACKAGE", package).split())


def dropped_keys(keep: tuple[str, ...]) -> dict[str, set[str]]:
    """Return the keys of the lines to remove from each shared file if only the families in `keep` are kept."""
    kept = {(file, key) for name in keep for file, keys in FAMILIES[name].keys.items() for key in keys.split()}
    found: dict[str, set[str]] = {}
    for owned in (OURS, *(family.keys for family in FAMILIES.values())):
        for file, keys in owned.items():
            found.setdefault(file, set()).update(key for key in keys.split() if (file, key) not in kept)
    return found


def keep_sections(text: str, keep: tuple[str, ...]) -> str:
    """Remove all markers from a Markdown page, and all sections of families that are not kept.

    Raises:
        ValueError: If a marker lists an unknown family or is unpaired.
    """

    def resolve(found: re.Match[str]) -> str:
        families = set(re.split(", *", found["families"]))
        if unknown := families - {"template", *FAMILIES}:
            raise ValueError(f"<!-- only: {found['families']} --> lists unknown families: {', '.join(sorted(unknown))}")
        return found["text"] if families & set(keep) else ""

    def resolve_section(found: re.Match[str]) -> str:
        text = resolve(found)
        separates = text or not found.string[: found.start()].endswith("\n\n")
        return text + (found["blank"] or "" if separates else "")

    start, end = r"<!-- only: (?P<families>[\w, ]+) -->", "<!-- end -->"
    # If blank lines surround a removed section, also remove the blank line after it.
    text = re.sub(rf"^{start}\n(?P<text>.*?)^{end}$(?:\n(?P<blank>\n))?", resolve_section, text, flags=re.S | re.M)
    text = re.sub(rf"{start}(?P<text>.*?){end}", resolve, text, flags=re.S)
    if unpaired := re.search(r"<!-- (?:only:.*?|end) -->", text):
        raise ValueError(f"{unpaired[0]} is unpaired: enclose the text in <!-- only: FAMILY --> and <!-- end -->")
    return re.sub(r" +$", "", text.rstrip(), flags=re.M) + "\n"
