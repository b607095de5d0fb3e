"""Tests that all parts of benchmarks/gpu.py run on the CPU with small sizes, and that the JSON file is complete."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def measured(small_data, tmp_path, monkeypatch):
    """Return a function that runs parts of the benchmark and returns their results."""
    before = set(sys.modules)

    def run(*parts):
        monkeypatch.syspath_prepend(str(BENCHMARKS))
        monkeypatch.chdir(BENCHMARKS.parent)
        import gpu

        file = tmp_path / "gpu.json"
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--tiny", "--device", "cpu", "--out", str(file), *parts])
        with pytest.raises(SystemExit) as end:
            gpu.main()
        found = json.loads(file.read_text())
        assert end.value.code == 0, found
        assert found["device"]["name"]
        assert found["machine"]["torch"]
        assert all(part["part took"] > 0 for part in found["parts"].values())
        return found["parts"]

    yield run
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == BENCHMARKS:
            del sys.modules[name]


def reaches(part):
    return part["target"] > 0 and len(part["seconds"]) == 1 and part["reached"] in ("0 of 1", "1 of 1")


@pytest.mark.slow
def test_mnist_part_measures_time_to_accuracy(measured):
    parts = measured("mnist")
    assert list(parts) == ["mnist"]
    assert reaches(parts["mnist"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_gpu_checks_find_no_differences_and_no_waits_when_run_on_the_cpu(measured):
    parts = measured("same", "resume", "waits")
    compared = [row for row in parts["same"].values() if isinstance(row, dict) and "cpu" in row]
    assert len(compared) == 6
    assert all(row["same"] for row in compared)
    assert sum("val/accuracy" in row for row in parts["same"].values() if isinstance(row, dict)) == 12
    assert parts["resume"]["status of the killed one"] == -9
    assert parts["resume"]["different"] == []
    assert parts["resume"]["same"]
    counts = [row["waits in two batches"] for row in parts["waits"].values() if isinstance(row, dict)]
    assert counts == [0] * 5  # a CPU never waits, and a failed measurement would count as 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_speed_part_and_time_to_target_parts_report_their_results(measured):
    parts = measured("speed", "fashion_mnist", "multi30k")
    assert reaches(parts["fashion_mnist"])
    assert reaches(parts["multi30k"])
    for net in ("fashion_mnist_mlp", "fashion_mnist_cnn", "fashion_mnist_resnet20"):
        row = parts["speed"][net]
        assert row["ratio"] == pytest.approx(row["seconds"] / row["by hand"])
    for net in ("mlp", "cnn", "resnet18", "gru", "transformer"):
        assert parts["speed"][f"{net}, profile"]
