"""Fixture for testing pages in a browser."""

import pytest

from serving import chromium


@pytest.fixture(scope="session")
def browser():
    yield from chromium()
