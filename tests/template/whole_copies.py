"""Runs the demo, tests and `make lint` in generated projects. `make copies` runs this file, which takes minutes."""

import subprocess

import pytest
from copies import ALL, install

pytestmark = pytest.mark.timeout(1800)


def make(project, *targets):
    install(project)
    for target in targets:
        done = subprocess.run(["make", target], cwd=project, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def test_smallest_project_passes_its_tests(made):
    make(made("classification"), "test")


def test_largest_project_passes_demo_tests_and_lint(made):
    make(made(ALL), "demo", "test", "lint")


def test_project_with_two_families_passes_lint(made):
    make(made("classification,translation"), "lint")
