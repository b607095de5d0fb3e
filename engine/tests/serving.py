"""Helpers for testing `serve` with and without a browser."""

import csv
import json
import shutil
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from threading import Thread
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest


def serving(lit, monkeypatch):
    """Return a function that runs `serve`, calls `ask(address)` once it listens, then presses Ctrl-C."""
    forever = ThreadingHTTPServer.serve_forever

    def run(ask, *args):
        def until_asked(server):
            thread = Thread(target=forever, args=(server, 0.01))
            thread.start()
            try:
                ask(f"http://127.0.0.1:{server.server_port}")
            finally:
                server.shutdown()
                thread.join(60)
            raise KeyboardInterrupt

        monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", until_asked)
        result = lit("serve --port 0", *args)
        assert result.status == 0, result.err
        assert result.out.endswith(" (Ctrl-C to stop)\nstopped\n")
        return result

    return run


def post(address, sample, **headers):
    """Send a sample to `serve`, and return the HTTP status and the rows or the error message."""
    try:
        with urlopen(Request(f"{address}/predict", sample, headers), timeout=60) as reply:
            return reply.status, json.load(reply)["rows"]
    except HTTPError as error:
        text = error.read().decode()
        return error.code, json.loads(text)["error"]


def table_of(run, name):
    with (run / "predictions" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


@contextmanager
def opened(browser, address):
    """Open the page in a phone-sized window, and check that its scripts do not fail or contact other hosts."""
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.set_default_timeout(30_000)
    wrong = []
    page.on("pageerror", lambda error: wrong.append(error))
    page.on("request", lambda request: request.url.startswith((address, "data:")) or wrong.append(request.url))
    page.goto(address)
    yield page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert wrong == []
    page.close()


def shown(page, name):
    """Return the displayed value of a column."""
    return page.locator(f"dt:text-is('{name}') + dd").inner_text()


def chromium():
    """Yield a headless Chromium browser, for use in a fixture."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs Chromium: apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()
