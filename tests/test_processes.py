"""One process at a time trains a run."""

import multiprocessing
import subprocess
import sys
import time

import pytest

from lit_project.processes import Hold

HOLDER = (
    "import sys, pathlib; from lit_project.processes import Hold; hold = Hold(pathlib.Path(sys.argv[1])); "
    "print('held', flush=True); sys.stdin.read()"
)


@pytest.fixture
def holder(trained):
    """Another process that has taken the run."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(trained)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_run_that_another_process_trains_is_left_alone(lit, trained, holder):
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    result = lit(f"fit --run {trained} --trainer.max_epochs=4")
    assert result.status == 2
    assert result.err == f"error: another process is training the run {trained}\n"
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before
    assert lit(f"validate --run {trained}").status == 0
    holder.kill()  # a lock ends with its process
    holder.wait()
    assert lit(f"fit --run {trained} --trainer.max_epochs=4 --model.schedulers=null").status == 0


def test_a_forked_child_does_not_prolong_it(tmp_path):
    hold = Hold(tmp_path)
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    try:
        hold.release()
        Hold(tmp_path).release()
    finally:
        child.kill()
        child.join()


def test_a_folder_is_held_once_until_it_is_released(tmp_path):
    hold = Hold(tmp_path)
    with pytest.raises(BlockingIOError):
        Hold(tmp_path)
    hold.release()
    hold.release()
    Hold(tmp_path).release()
    assert not list(tmp_path.iterdir())
