"""Fixture that provides a browser for testing pages."""

import pytest

from serving import chromium


@pytest.fixture(scope="session")
def browser():
    yield from chromium()
