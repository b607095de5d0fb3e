"""Packages needed by few functions are imported only in these functions."""

import pkgutil
import subprocess
import sys

import lit_project

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
PACKAGES = ["matplotlib", "sacrebleu", "sacremoses", "scipy", "sentencepiece", "sklearn", "timm", "transformers"]


def test_all_modules_can_be_imported_without_packages_of_single_functions():
    names = [module.name for module in pkgutil.walk_packages(lit_project.__path__, "lit_project.")]
    names = [name for name in names if name not in SCRIPTS]
    assert "lit_project.models.mlp" in names
    command = [sys.executable, "-c", SCRIPT, ",".join(PACKAGES), ",".join(names)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
