"""Tests that the notebook is stored without outputs and runs from start to finish."""

import shutil
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = nbformat.read(ROOT / "notebooks" / "first_run.ipynb", as_version=4)


def test_notebook_is_stored_without_outputs():
    nbformat.validate(NOTEBOOK)
    assert [cell for cell in NOTEBOOK.cells if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.slow
def test_notebook_runs_and_shows_figures(tmp_path):
    from jupyter_client import AsyncKernelManager
    from nbclient import NotebookClient

    (tmp_path / "notebooks").mkdir()
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    kernel = AsyncKernelManager(kernel_name="python3", transport="ipc")  # other tests may use the ports
    kernel.connection_file = str(tmp_path / "kernel.json")
    folder = {"metadata": {"path": str(tmp_path / "notebooks")}}
    done = NotebookClient(NOTEBOOK, km=kernel, timeout=120, resources=folder).execute()
    results = [output for cell in done.cells for output in cell.get("outputs", []) if "data" in output]
    assert results[0].data["text/plain"] == "0"  # status of `fit`
    assert sum("image/png" in output.data for output in results) == 3
    (run,) = (tmp_path / "runs" / "quickstart").iterdir()
    assert all(
        name in results[-1].data["text/plain"] for name in (run.name, "learning_curves.png", "test_most_wrong.png")
    )
