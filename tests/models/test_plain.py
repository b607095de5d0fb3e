"""Models are plain PyTorch: they can be imported without Lightning and without the library."""

import pkgutil
import subprocess
import sys

from lit_project import models

SCRIPT = """
import importlib, sys
sys.modules |= dict.fromkeys(("lightning", "lit_engine"))  # importing them raises ImportError
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_every_model_can_be_imported_without_lightning_and_the_library():
    names = [module.name for module in pkgutil.walk_packages(models.__path__, f"{models.__name__}.")]
    assert f"{models.__name__}.mlp" in names
    done = subprocess.run([sys.executable, "-c", SCRIPT, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
