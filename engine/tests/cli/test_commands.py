"""Output of `toy --version`, `examples` and `completion`."""

import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import lit_engine
from lit_engine.cli.main import COMMANDS
from lit_engine.cli.main import main as run_command
from lit_engine.project import Project
from lit_engine.run.directory import write_text
from lit_engine.tools.output import write_file
from toy import __version__
from toy.__main__ import PROJECT, main


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(args) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def counted(code: str, folder: Path, program: bool = True, **settings: str) -> int:
    """Run the program and some code in a separate process, and return the number that the code prints."""
    before = (
        "from toy.__main__ import entry_point\n"
        "sys.argv[1:] = ['--version']\n"
        "try: entry_point()\n"
        "except SystemExit: pass\n"
    )
    words = [sys.executable, "-c", f"import sys\n{before if program else ''}{code}"]
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"} | settings
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    return int(done.stdout.split()[-1])


def test_a_notebook_can_free_its_objects_after_a_command(tmp_path):
    code = "import gc\nfrom toy.__main__ import main\nmain(['runs'])\nprint(gc.get_freeze_count())\n"
    assert counted(code, tmp_path, program=False) == 0


@pytest.mark.slow
def test_large_tensors_use_huge_pages(tmp_path):
    """Huge pages are used if Linux provides them on request and the user has not disabled them."""
    given = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not given.exists() or "[madvise]" not in given.read_text():
        pytest.skip("this kernel gives huge pages to everyone, or to no one")
    code = (
        "import re, torch\n"
        "kept = torch.ones(2**24)\n"
        "print(re.search(r'AnonHugePages: +([0-9]+) kB', open('/proc/self/smaps_rollup').read())[1])\n"
    )
    assert counted(code, tmp_path) >= 60_000  # out of 65,536 kB
    assert counted(code, tmp_path, THP_MEM_ALLOC_ENABLE="0") < 10_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such option")
def test_freed_memory_is_reused(tmp_path):
    code = (
        "import resource\n"
        "for _ in range(10): parts = [b'x' * 2**26 for _ in range(2)]; del parts\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)\n"
    )
    once = 2 * 2**26 // mmap.PAGESIZE  # pages for both parts
    assert counted(code, tmp_path) < 2 * once
    assert counted(code, tmp_path, program=False) > 8 * once


def test_print_config_prints_only_the_config(lit, capfd):
    with pytest.raises(SystemExit):
        lit("fit -c configs/quickstart.yaml --print_config")
    out, err = capfd.readouterr()
    assert err == ""
    assert yaml.safe_load(out)["trainer"]["max_epochs"]


def test_help_lists_every_command(capsys):
    text = printed(capsys, "--help")
    for name in ("fit", "validate", "test", "predict", *COMMANDS, *PROJECT.commands):
        assert f" {name}" in text


def test_version_prints_the_package_versions(capsys):
    assert printed(capsys, "--version") == f"toy {__version__} (lit-engine {lit_engine.__version__})\n"


@pytest.mark.parametrize("package", ["flat_layout", "src/src_layout"])
def test_a_package_needs_neither_a_src_folder_nor_a_version(tmp_path, monkeypatch, capsys, package):
    folder = tmp_path / "repository" / package
    for file in (folder / "__init__.py", tmp_path / "repository/configs/mine.yaml", tmp_path / "configs/other.yaml"):
        write_text(file, "")
    monkeypatch.syspath_prepend(folder.parent)
    project = Project(folder.name)
    assert list(project.configs()) == ["mine"]
    assert run_command(project, ["--version"]) == 0
    assert capsys.readouterr().out == f"{project.program} (no version) (lit-engine {lit_engine.__version__})\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_writing_to_a_full_disk_prints_a_one_line_error():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "toy", "--version"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (2, "error: No space left on device\n")


def test_writing_to_a_redirected_standard_stream_does_not_truncate_its_file(capfd):
    print("before")
    write_file("table", "csv", Path("/dev/stdout"), "a,b\n")  # standard output is a regular file here
    print("after")
    assert capfd.readouterr().out == "before\na,b\ntable: /dev/stdout\nafter\n"


def test_an_unknown_command_lists_the_valid_commands(lit):
    result = lit("exampels")
    assert result.status == 2
    assert "Did you mean `examples`?" in result.err
    for name in ("fit", "validate", "test", "predict", *COMMANDS, *PROJECT.commands):
        assert (name in result.err) == (not name.startswith("-"))


def completed(script: Path, *words: str) -> list[str]:
    """Return bash's completions of these words."""
    typed = f"COMP_WORDS=(toy {' '.join(words)}); COMP_CWORD={len(words)}"
    code = f'source {script}; {typed}; _shtab_toy; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", code], cwd=script.parent, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return [line.strip() for line in done.stdout.splitlines()]


def test_bash_completes_commands_options_files_and_runs(tmp_path, capsys):
    script = tmp_path / "script"
    script.write_text(printed(capsys, "completion", "bash"))
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "runs" / "quickstart" / "first").mkdir(parents=True)
    assert completed(script, "pre") == ["predict"]
    assert completed(script, "fit", "--trainer.max_ep") == ["--trainer.max_epochs"]
    assert completed(script, "fit", "--epo") == ["--epochs"]
    assert completed(script, "fit", "-c", "mi") == ["mine.yaml"]
    assert completed(script, "greet", "--gr") == ["--greeting"]
    assert completed(script, "sweep", "--work") == ["--workers"]
    assert completed(script, "export", "--ck") == ["--ckpt_path"]
    assert completed(script, "sweep", "mi") == ["mine.yaml"]
    assert completed(script, "compare", "--ov") == ["--over"]
    assert completed(script, "compare", "run") == ["runs/quickstart/first/"]
    assert completed(script, "test", "--run", "''") == ["runs/quickstart/first/"]
    assert completed(script, "test", "run") == ["runs/quickstart/first/"]
    (tmp_path / "configs" / "overlays").mkdir(parents=True)
    (tmp_path / "configs" / "quickstart.yaml").touch()
    (tmp_path / "configs" / "overlays" / "quiet.yaml").touch()
    assert completed(script, "fit", "qui") == ["quickstart", "quiet"]
    assert completed(script, "fit", "quickstart", "quie") == ["quiet"]
    assert completed(script, "fit", "run") == ["runs/quickstart/first/"]


def test_completion_and_examples_suggest_valid_names(capsys):
    assert "'zsh'" in refused(capsys, "completion", "ksh")
    assert "did you mean overlays/debug?" in refused(capsys, "examples", "overlay/debug")


def test_exit_handlers_run_before_the_process_exits_with_its_status():
    program = (
        "import atexit, sys\n"
        "from lit_engine.cli import main\n"
        "from toy.__main__ import entry_point\n"
        "real = main.main\n"
        "main.main = lambda *args: [atexit.register(print, 'handled'), real(*args)][1]\n"
        "sys.argv = ['toy', 'fti']\n"
        "entry_point()\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "handled\n"), result.stderr
    assert "Did you mean `fit`?" in result.stderr
