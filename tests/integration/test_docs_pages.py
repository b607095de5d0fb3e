"""Tests documentation pages that are opened from disk."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_search_works_without_a_server_or_network(browser):
    subprocess.run(["make", "-C", ROOT, "docs"], check=True, capture_output=True)
    page = browser.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"file://{ROOT}/site/index.html")
    page.get_by_role("button", name="Search").first.click()
    page.keyboard.type("preemption")
    page.locator("a[href*='scaling']").filter(has_text="SLURM").first.wait_for(timeout=20_000)
    assert {url.partition(":")[0] for url in asked} <= {"file", "data", "blob"}
    page.close()
