"""Lists the configs that come with the project, or prints one of them (`examples`)."""

from collections.abc import Sequence

from lit_engine.cli.arguments import OptionParser, fit_width
from lit_engine.errors import UserError, did_you_mean
from lit_engine.project import current, program


def examples(args: Sequence[str]) -> int:
    """List all configs with their first lines, or print one config, and return the exit status.

    Raises:
        UserError: the named config does not exist.
    """
    options = OptionParser("examples", "Lists the configs, or prints one of them.")
    options.add_argument("name", nargs="?", help="config to print, such as overlays/debug")
    name, files = options.parse_args(args).name, current().configs()
    if name is None:
        for known, file in files.items():
            first = file.read_text(encoding="utf-8").partition("\n")[0]
            print(fit_width(f"{known:{max(map(len, files))}}  {first.strip('# ')}"))
        print(fit_width(f"\n`{program()} examples NAME > mine.yaml` creates a copy that you can edit."))
        return 0
    name = name.removeprefix("configs/").removesuffix(".yaml")
    if name not in files:
        raise UserError(f"examples: no config {name}{did_you_mean(name, files)}")
    print(files[name].read_text(encoding="utf-8"), end="")
    return 0
