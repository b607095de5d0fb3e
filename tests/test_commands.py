"""`lit-project --version`, `examples` and `completion`: what they print and copy, and that they are there at once."""

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from lit_project import __version__, completion
from lit_project.commands import COMMANDS, run
from lit_project.examples import available, summary
from lit_project.explain import UsageError
from tiny import TINY

ROOT = Path(__file__).parents[1]
LIGHT = ["--version", "examples", "completion bash", "examples copy quickstart"]


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert run(args) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert run(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("command", LIGHT)
def test_a_light_command_does_not_wait_for_torch(command, tmp_path):
    code = (
        f"import sys; sys.argv[1:] = {command.split()!r}\n"
        "from lit_project.__main__ import entry_point\n"
        "try: entry_point()\n"
        "finally: assert not {'torch', 'lightning', 'jsonargparse', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_reader_that_has_enough_ends_a_command_quietly(tmp_path):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "lit_project", "examples"],
        cwd=tmp_path,
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=200,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_version_is_that_of_the_package(capsys):
    assert printed(capsys, "--version") == f"lit-project {__version__}\n"
    assert "--version stands alone" in refused(capsys, "--version", "fit")


def test_a_wrong_command_is_told_those_there_are(lit):
    result = lit("exampels")
    assert result.status == 2
    assert "did you mean examples" in result.err
    for name in ("fit", "validate", "test", "predict", *COMMANDS):
        assert (name in result.err) == (not name.startswith("-"))


def test_every_config_is_listed_with_a_line_of_its_own(capsys):
    lines = printed(capsys, "examples").splitlines()
    files = [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs").glob("*/*.yaml")]
    assert len(files) > 30
    for file in files:
        begin = file.read_text().partition("\n")[0].strip("# ").split(". ")[0].removesuffix(".")
        name = file.relative_to(ROOT / "configs").with_suffix("").as_posix()
        line = [line.split(maxsplit=1)[1] for line in lines if line.startswith(f"  {name} ")]
        assert any(begin in text or text in begin for text in line), file
    assert printed(capsys, "examples", "list").splitlines() == lines


def test_summary_is_the_first_sentence():
    configs = ROOT / "configs"
    assert summary(configs / "mnist_cnn.yaml") == "MNIST with a small convolutional net (0.26 M parameters)"
    assert summary(configs / "overlays" / "erasing.yaml").endswith("(Zhong et al. 2020) next to crop and mirror")


@pytest.mark.parametrize(
    ("args", "copy", "source"),
    [
        (["quickstart"], "configs/quickstart.yaml", "quickstart.yaml"),
        (["configs/quickstart.yaml", "."], "quickstart.yaml", "quickstart.yaml"),
        (["quickstart", "mine/first"], "mine/first/quickstart.yaml", "quickstart.yaml"),
        (["quickstart", "mine/small.yaml"], "mine/small.yaml", "quickstart.yaml"),
        (["debug"], "configs/overlays/debug.yaml", "overlays/debug.yaml"),
        (["overlays/debug", "fast.yaml"], "fast.yaml", "overlays/debug.yaml"),
    ],
)
def test_copy(args, copy, source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert f"copied to {copy}; " in printed(capsys, "examples", "copy", *args)
    assert (tmp_path / copy).read_bytes() == (ROOT / "configs" / source).read_bytes()
    (tmp_path / copy).write_text("changed")
    assert f"{copy} exists" in refused(capsys, "examples", "copy", *args)
    assert (tmp_path / copy).read_text() == "changed"


def test_a_copied_sweep_has_the_configs_that_it_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "quickstart.yaml").write_text("mine")
    assert "copied to configs/overlays/wandb.yaml, which it names" in printed(
        capsys, "examples", "copy", "quickstart_cnn"
    )
    sweep = yaml.safe_load((tmp_path / "configs" / "sweeps" / "quickstart_cnn.yaml").read_text())
    named = [word for word in sweep["command"] if word.endswith(".yaml")]
    assert len(named) == 2
    assert all((tmp_path / name).exists() for name in named)
    assert (tmp_path / "configs" / "quickstart.yaml").read_text() == "mine"


def test_a_copy_trains(lit):
    assert lit("examples copy quickstart mine/first.yaml").status == 0
    assert lit("examples copy debug mine").status == 0
    result = lit(f"fit -c mine/first.yaml -c mine/debug.yaml {TINY}")
    assert result.status == 0
    assert result.run.parent.name == "first"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["copy"], ["needs a name"]),
        (["copy", "quikstart"], ["quikstart", "did you mean quickstart"]),
        (["copy", "xyz"], ["xyz", "lists them"]),
        (["copy", "../README"], ["../README"]),
        (["cop", "quickstart"], ["did you mean copy"]),
        (["list", "quickstart"], ["takes no name"]),
        (["copy", "quickstart", "--force"], ["--force"]),
        (["copy", "quickstart", "a-file/x.yaml"], ["cannot write", "a-file"]),
    ],
)
def test_a_mistake_is_one_line(args, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").touch()
    message = refused(capsys, "examples", *args)
    for word in words:
        assert word in message
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]


def test_a_wheel_brings_the_configs_along(tmp_path):
    """Built from the project's own sources and used from elsewhere, without the checkout."""
    code = f"from hatchling.build import build_wheel; build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=120)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "site")
    command = [sys.executable, "-m", "lit_project", "examples", "copy", "debug"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, capture_output=True, text=True,
        timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    source = ROOT / "configs" / "overlays" / "debug.yaml"
    assert (tmp_path / "configs" / "overlays" / "debug.yaml").read_bytes() == source.read_bytes()
    inside = tmp_path / "site" / "lit_project" / "configs"
    assert {p.relative_to(inside).with_suffix("").as_posix() for p in inside.rglob("*.yaml")} == set(available())


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers at a TAB after these words."""
    typed = f"COMP_WORDS=(lit-project {' '.join(words)}); COMP_CWORD={len(words)}"
    code = f'source {script}; {typed}; _shtab_lit_project; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", code], cwd=script.parent, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return [line.strip() for line in done.stdout.splitlines()]


def test_bash_completes_commands_options_and_files(tmp_path, capsys):
    script = tmp_path / "script"
    script.write_text(printed(capsys, "completion", "bash"))
    (tmp_path / "mine.yaml").touch()
    assert completed(script, "pre") == ["predict"]
    assert completed(script, "fit", "--trainer.max_ep") == ["--trainer.max_epochs"]
    assert completed(script, "fit", "-c", "mi") == ["mine.yaml"]
    assert completed(script, "fit", "--find", "l") == ["lr"]
    assert completed(script, "translate", "--beam") == ["--beam_size"]  # family: translation
    assert completed(script, "sweep", "--work") == ["--workers"]
    assert completed(script, "sweep", "mi") == ["mine.yaml"]
    assert completed(script, "examples", "copy", "quickstart")[0] == "quickstart"
    assert "init_from" not in "".join(completed(script, "test", "--init"))


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_script_of_a_shell_is_sound_and_complete(shell, tmp_path, capsys):
    script = printed(capsys, "completion", shell)
    for word in ("fit", "translate", "examples", "trainer.accumulate_grad_batches", "init_from", "quickstart"):
        assert word in script
    (tmp_path / "script").write_text(script)
    if shutil.which(shell):
        subprocess.run([shell, "-n", tmp_path / "script"], check=True, timeout=200)


@pytest.mark.parametrize("args", [[], ["tcsh"], ["bash", "zsh"]])
def test_completion_needs_one_shell_that_it_knows(args, capsys):
    assert "bash, zsh, fish" in refused(capsys, "completion", *args)


@pytest.mark.parametrize("subcommand", completion.SUBCOMMANDS)
def test_completed_options_are_those_of_the_parser(subcommand, tmp_path, monkeypatch):
    from lit_project.cli import LitCLI
    from lit_project.session import Session

    with pytest.raises(UsageError) as caught:
        LitCLI([subcommand, "--no_such_option"], Session(None, ""))
    real = {option.removesuffix("+") for option in caught.value.parser._option_string_actions}
    subparsers = completion.parser()._subparsers._group_actions[0].choices
    ours = set(subparsers[subcommand]._option_string_actions)
    assert ours <= real
    others = {*completion.FIT, *completion.EVALUATE, *completion.PREDICT}  # accepted everywhere, refused with a reason
    assert real - ours <= others | {"--print_shtab"}


# family: translation
def test_completed_commands_and_options_of_translate_are_those_there_are():
    from lit_project.translate_input import option_parser

    subparsers = completion.parser()._subparsers._group_actions[0].choices
    assert set(subparsers) == {*completion.SUBCOMMANDS, *COMMANDS} - {"--version"}
    assert set(subparsers["translate"]._option_string_actions) == set(option_parser()._option_string_actions)
