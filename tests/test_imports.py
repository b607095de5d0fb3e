"""Models are plain PyTorch, and packages needed by few functions are imported only in these functions."""

import pkgutil
import subprocess
import sys

import lit_project
from lit_project import models

SCRIPT = """
import importlib, sys
import torchmetrics  # which imports matplotlib if it is installed
packages, names = (arg.split(",") for arg in sys.argv[1:])
loaded = [name for name in sys.modules if name.partition(".")[0] in packages]
sys.modules |= dict.fromkeys([*packages, *loaded])  # importing them raises ImportError
for name in names:
    importlib.import_module(name)
"""
SCRIPTS = ("lit_project.__main__", "lit_project.tasks.translation.translate_with_onnx")


def import_without(packages, package):
    """Import all modules of a package in a process that cannot import certain other packages."""
    names = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    names = [name for name in names if name not in SCRIPTS]
    assert "lit_project.models.mlp" in names
    command = [sys.executable, "-c", SCRIPT, ",".join(packages), ",".join(names)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_models_need_neither_lightning_nor_the_library():
    import_without(["lightning", "lit_engine"], models)


def test_packages_of_single_functions_are_imported_in_these_functions():
    import_without(
        ["matplotlib", "sacrebleu", "sacremoses", "scipy", "sentencepiece", "sklearn", "timm", "transformers"],
        lit_project,
    )
