"""Tests that models are plain PyTorch, and that packages needed by only a few functions are imported inside them."""

import pkgutil
import subprocess
import sys

import lit_project
from lit_project import models

SCRIPT = """
import importlib, sys
import torchmetrics  # which imports matplotlib if it is installed

def block(packages):
    loaded = [name for name in sys.modules if name.partition(".")[0] in packages]
    sys.modules.update(dict.fromkeys([*packages, *loaded]))  # importing them raises ImportError

packages, models, others = (arg.split(",") for arg in sys.argv[1:])
block([*packages, "lightning", "lit_engine"])
for name in models:
    importlib.import_module(name)
for name in [name for name in sys.modules if name.partition(".")[0] in ("lightning", "lit_engine")]:
    del sys.modules[name]
for name in others:
    importlib.import_module(name)
"""
SCRIPTS = ("lit_project.__main__", "lit_project.tasks.translation.translate_with_onnx")
PACKAGES = ["matplotlib", "sacrebleu", "sacremoses", "scipy", "sentencepiece", "sklearn", "timm", "transformers"]


def modules_of(package):
    names = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    names = [name for name in names if name not in SCRIPTS]
    assert "lit_project.models.mlp" in names
    return ",".join(names)


def test_modules_import_without_optional_packages_and_models_without_lightning():
    command = [sys.executable, "-c", SCRIPT, ",".join(PACKAGES), modules_of(models), modules_of(lit_project)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
