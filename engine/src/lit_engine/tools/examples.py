"""`examples`: lists the configs that come with the project; with a NAME prints one.

A checkout has them in `configs/`; a wheel brings them along within the package.
"""

from collections.abc import Sequence
from pathlib import Path

from lit_engine.cli.explain import OptionParser
from lit_engine.errors import UserError, did_you_mean
from lit_engine.project import current, program


def available() -> dict[str, Path]:
    """All configs by name: `quickstart`, `overlays/debug`, `sweeps/quickstart_cnn`."""
    package = current().folder
    root = package / "configs" if (package / "configs").is_dir() else package.parents[1] / "configs"
    files = sorted(root.glob("*.yaml")) + sorted(root.glob("*/*.yaml"))
    return {file.relative_to(root).with_suffix("").as_posix(): file for file in files}


def examples(args: Sequence[str]) -> int:
    """Lists the configs by the first line of each, or prints one; returns the exit status.

    Raises:
        UserError: no such config.
    """
    options = OptionParser("examples", "Lists the configs, or prints one.")
    options.add_argument("name", nargs="?", help="such as overlays/debug")
    name, files = options.parse_args(args).name, available()
    if name is None:
        for known, file in files.items():
            first = file.read_text(encoding="utf-8").splitlines()[0]
            print(f"{known:{max(map(len, files))}}  {first.strip('# ')}")
        print(f"\n`{program()} examples NAME > mine.yaml` copies one to change it.")
        return 0
    name = name.removeprefix("configs/").removesuffix(".yaml")
    if name not in files:
        raise UserError(f"examples: no config {name}{did_you_mean(name, files)}")
    print(files[name].read_text(encoding="utf-8"), end="")
    return 0
