"""`lit-project examples`: the configs that come with the project, and copies of them to change.

    lit-project examples                           all of them, a line each
    lit-project examples copy quickstart           to configs/quickstart.yaml
    lit-project examples copy quickstart mine      to mine/quickstart.yaml
    lit-project examples copy debug fast.yaml      an overlay, to fast.yaml
    lit-project examples copy sweeps/quickstart_cnn     a sweep, and the configs that it names

A checkout has them in `configs/`; a wheel brings them along within the package.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from lit_project.errors import UserError, did_you_mean
from lit_project.explain import OptionParser

KINDS = {"": "configs", "overlays": "overlays, put on top of a config", "sweeps": "sweeps"}


def option_parser() -> argparse.ArgumentParser:
    """The parser of the command line after `examples`."""
    parser = OptionParser(
        prog="lit-project examples",
        description="Lists the configs that come with the project; `copy NAME [DEST]` copies one to change it.",
        allow_abbrev=False,
    )
    parser.add_argument("action", nargs="?", choices=["list", "copy"], default="list", help="Default: list.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="What to copy; an overlay by its name, too.")
    parser.add_argument("dest", nargs="?", metavar="DEST", help="A folder or a file.yaml; default: configs.")
    return parser


def folder() -> Path:
    """Where the configs are: in the package (a wheel) or beside `src` (a checkout).

    Raises:
        UserError: at neither place.
    """
    package = Path(__file__).parent
    for path in (package / "configs", package.parents[1] / "configs"):
        if path.is_dir():
            return path
    raise UserError(f"this installation has no configs: neither in {package} nor beside {package.parent}")


def available() -> dict[str, Path]:
    """All configs by name. Overlays are `overlays/NAME`, sweeps are `sweeps/NAME`."""
    root = folder()
    files = [file for kind in KINDS for file in sorted((root / kind).glob("*.yaml"))]
    return {file.relative_to(root).with_suffix("").as_posix(): file for file in files}


def summary(config: Path) -> str:
    """The first sentence of the comment that a config begins with."""
    lines: list[str] = []
    for line in config.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#") or not line.strip("# "):
            break
        lines.append(line.strip("# "))
    return re.split(r"(?<!\bal)\.(?:\s|$)", " ".join(lines), maxsplit=1)[0]


def examples(args: Sequence[str]) -> int:
    """Runs the command and returns its exit status.

    Args:
        args: the command line after `examples`.

    Raises:
        UserError: no such example, or the copy would overwrite a file.
    """
    options = option_parser().parse_args(list(args))
    if options.action == "list":
        if options.name is not None:
            raise UserError(f"examples list takes no name, got {options.name}")
        _list()
        return 0
    if options.name is None:
        raise UserError("examples copy needs a name: `lit-project examples` lists them")
    source = _find(options.name)
    copy = copy_to(source, options.dest)
    for name in re.findall(r"^ *- configs/(\S+)\.yaml$", source.read_text(encoding="utf-8"), re.MULTILINE):
        if not Path(f"configs/{name}.yaml").exists():
            print(f"copied to {copy_to(_find(name), None)}, which it names")
    kind = source.parent.relative_to(folder()).as_posix()
    use = {"overlays": "fit -c CONFIG -c", "sweeps": "sweep"}.get(kind, "fit -c")
    print(f"copied to {copy}; use it with: lit-project {use} {copy}")
    return 0


def _list() -> None:
    files = available()
    width = max(len(name) for name in files)
    for kind, title in KINDS.items():
        inside = {name: file for name, file in files.items() if name.rpartition("/")[0] == kind}
        if inside:
            print(f"{title}:")
        for name, file in inside.items():
            print(f"  {name:{width}}  {summary(file)}")
    print("\n`lit-project examples copy NAME [DEST]` copies one to change it.")


def _find(name: str) -> Path:
    """The file of `quickstart`, `debug`, `overlays/debug`, `sweeps/quickstart_cnn` or `configs/quickstart.yaml`."""
    files = available()
    wanted = name.removeprefix("configs/").removesuffix(".yaml")
    for candidate in (wanted, *(f"{kind}/{wanted}" for kind in KINDS if kind)):
        if candidate in files:
            return files[candidate]
    known = [*files, *(file.stem for file in files.values())]
    raise UserError(f"no such example: {name}{did_you_mean(wanted, known, '; `lit-project examples` lists them')}")


def copy_to(source: Path, dest: str | None) -> Path:
    """Copies a config; without `dest` to the place that it has in the project, below the working folder.

    Raises:
        UserError: there is such a file already, or it cannot be written.
    """
    path = Path("configs") / source.parent.relative_to(folder()) if dest is None else Path(dest)
    if path.suffix not in (".yaml", ".yml"):
        path = path / source.name
    if path.exists():
        raise UserError(f"{path} exists and is not written to: name another place")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    return path
