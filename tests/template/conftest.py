"""Fixtures that create projects from this template, one for each choice of families."""

import pytest
from copies import checkout, run


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """Create a clean checkout of this project."""
    return checkout(tmp_path_factory.mktemp("a folder") / "template")


@pytest.fixture(scope="session")
def init(template):
    """Return a function that runs the checkout's init_project.py."""
    return lambda *args, **environment: run(template / "scripts" / "init_project.py", *args, **environment)


@pytest.fixture(scope="session")
def made(init, tmp_path_factory):
    """Return a function that creates a project with the given families. Tests must not change the project."""
    projects = {}

    def make(keep):
        if keep not in projects:
            projects[keep] = tmp_path_factory.mktemp("made") / "kites"
            done = init("kite_lab", "--dir", projects[keep], "--keep", keep)
            assert done.returncode == 0, done.stderr
        return projects[keep]

    return make
