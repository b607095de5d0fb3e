"""Build the library's wheel for generated projects, and reduce the lock file to the packages that a project needs.

No network or build tool is needed. The build is reproducible, so an update can detect whether the wheel has changed.
"""

import base64
import hashlib
import io
import re
import tomllib
import zipfile
from collections.abc import Mapping

PYPROJECT, SOURCES = "engine/pyproject.toml", "engine/src/"


def build_wheel(files: Mapping[str, bytes]) -> tuple[str, bytes]:
    """Build the library's wheel.

    Args:
        files: Contents of the template's files, keyed by path.

    Returns:
        The file name and the content of the wheel.
    """
    project = tomllib.loads(files[PYPROJECT].decode())["project"]
    version = re.search(r'^__version__ = "(.*)"', files[f"{SOURCES}lit_engine/__init__.py"].decode(), re.MULTILINE)
    assert version is not None
    name = f"{project['name'].replace('-', '_')}-{version[1]}"
    metadata = [
        "Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {version[1]}",
        f"Summary: {project['description']}", f"License-Expression: {project['license']}",
        "License-File: LICENSE", f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {need}" for need in project["dependencies"]),
    ]  # fmt: skip
    for extra, needs in project["optional-dependencies"].items():
        metadata += [f"Provides-Extra: {extra}", *(f"Requires-Dist: {need} ; extra == '{extra}'" for need in needs)]
    content = {path.removeprefix(SOURCES): file for path, file in sorted(files.items()) if path.startswith(SOURCES)}
    info = f"{name}.dist-info"
    content[f"{info}/METADATA"] = ("\n".join(metadata) + "\n").encode()
    content[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: init_project\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    content[f"{info}/licenses/LICENSE"] = files["LICENSE"]
    record = "".join(f"{path},sha256={_digest(file)},{len(file)}\n" for path, file in content.items())
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for path, file in content.items():
            entry = zipfile.ZipInfo(path)  # The default timestamp is 1980-01-01.
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            wheel.writestr(entry, file)
    return f"{name}-py3-none-any.whl", buffer.getvalue()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def reduce_lock(lock: str, pyproject: str, wheel: str, content: bytes) -> str:
    """Return a project's lock, which pins the wheel by its hash and lists only the packages that the project needs.

    Args:
        lock: The template's requirements.lock, whose comments list the dependents of each package.
        pyproject: The project's pyproject.toml, from which unneeded dependencies have already been removed.
        wheel: File name of the wheel.
        content: Content of the wheel.
    """
    content_of = tomllib.loads(pyproject)
    project, groups = content_of["project"], content_of["dependency-groups"]
    optional = [*project["optional-dependencies"].values(), *groups.values()]
    needs = [*project["dependencies"], *(need for needs in optional for need in needs)]
    kept = {_normalize(need) for need in needs} - {project["name"]}
    head, *blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", lock)
    parents = {_normalize(block): set(re.findall(r"(?m)^    # (?:via +|  )([\w.-]+)", block)) for block in blocks}
    while found := {name for name, above in parents.items() if name not in kept and not kept.isdisjoint(above)}:
        kept |= found
    needed = [_with_dependents(block, kept | {project["name"]}) for block in blocks if _normalize(block) in kept]
    # Use the format of `make lock`, which prevents merge conflicts in later updates.
    pinned = f"vendor/{wheel} \\\n    --hash=sha256:{hashlib.sha256(content).hexdigest()}\n    # via\n" + "".join(
        f"    #   {project['name']} (pyproject.toml{group})\n" for group in ("", ":dev")
    )
    needed.insert(sum(_normalize(block) < "lit-engine" for block in needed), pinned)
    return head + "".join(needed)


def _with_dependents(block: str, kept: set[str]) -> str:
    """Return a package's lock entry, listing only the kept dependents in the format of `make lock`."""
    dependents = [name for name in re.findall(r"(?m)^    # (?:via +|  )(\S.*)", block) if _normalize(name) in kept]
    comment = f"    # via {dependents[0]}" if len(dependents) == 1 else "\n    #   ".join(["    # via", *dependents])
    return f"{block.partition('    # via')[0]}{comment}\n"


def _normalize(requirement: str) -> str:
    """Return the distribution name of a requirement, normalized as in the lock file."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()
