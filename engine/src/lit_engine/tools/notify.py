"""Sends a message to URLs when a run ends (`fit --notify URL`). The host in the URL determines the message format.

Formats: https://docs.ntfy.sh/publish/#publish-as-json, https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks,
https://discord.com/developers/docs/resources/webhook#execute-webhook and adaptive cards for Microsoft Teams.
"""

import json
import math
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from lit_engine.project import program
from lit_engine.run.directory import RunDir
from lit_engine.run.metric_names import get_stage, strip_stage
from lit_engine.tools.runs.reading import FACTS, Run

SECONDS = 3.0  # time limit for each URL
TEAMS = (".webhook.office.com", ".logic.azure.com", ".powerplatform.com")


def notify(urls: Sequence[str], run: RunDir, event: str) -> None:
    """Send a POST request to all URLs. Failures are only reported on stderr."""
    page = run.path.absolute() / "index.html"
    facts = {
        "event": event,
        "run": run.name,
        "metrics": select_main_metrics(run),
        "page": str(page) if page.exists() else None,
    }
    for url in map(os.path.expandvars, dict.fromkeys(urls)):
        if failure := send(url, facts):
            print(f"note: {urlsplit(url).hostname} was not notified: {failure}", file=sys.stderr)


class _NoRedirect(HTTPRedirectHandler):
    """Reports redirects as errors. By default, urllib follows them with a GET request, which drops the message."""

    def redirect_request(self, *args: Any) -> None:
        return None


def send(url: str, facts: dict[str, Any]) -> str | None:
    """Send a POST request. Return the reason if the request fails, and None otherwise."""
    try:
        target, body = message(url, facts)
        # Discord rejects Python's default user agent.
        headers = {"Content-Type": "application/json", "User-Agent": program()}
        request = Request(target, json.dumps(body).encode(), headers)
        with build_opener(_NoRedirect).open(request, timeout=SECONDS):
            return None
    except HTTPError as error:
        return f"HTTP status {error.code}"
    except URLError as error:
        return str(error.reason)
    except Exception as error:  # the message is omitted, because it may contain the URL
        return type(error).__name__


def select_main_metrics(run: RunDir) -> dict[str, float]:
    """Return the first three metrics, sorted by kind (main metric, loss, other) and stage (test, val, train)."""
    with suppress(Exception):  # returns no metrics if files are missing or broken
        found = Run.read(run.path)
        names = [name for name, value in found.metrics.items() if math.isfinite(value) and name not in FACTS]
        names.sort(key=lambda name: ("test", "val", "train").index(get_stage(name)))
        names.sort(key=lambda name: (strip_stage(name) != found.headline, strip_stage(name) != "loss"))
        return {name: found.metrics[name] for name in names[:3]}
    return {}


def message(url: str, facts: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the target URL and the content in the host's format. Unknown hosts receive the `facts` as JSON."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    title = f"{facts['run']}: {facts['event']}"
    metrics = "  ".join(f"{name} {value:.4g}" for name, value in facts["metrics"].items())
    body = "\n".join(line for line in (metrics, facts["page"]) if line)
    text = f"{title}\n{body}".strip()
    if host.startswith("ntfy."):
        topic = {"topic": parts.path.strip("/"), "title": title, "message": body or title}
        return parts._replace(path="/").geturl(), topic
    if host == "hooks.slack.com":
        return url, {"text": escape(text, quote=False)}
    if host in ("discord.com", "discordapp.com"):
        return url, {"content": text[:2000], "allowed_mentions": {"parse": []}}
    if host.endswith(TEAMS):
        block = {"type": "TextBlock", "text": text.replace("\n", "\n\n"), "wrap": True}
        card = {"type": "AdaptiveCard", "version": "1.4", "body": [block]}
        content = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
        return url, {"type": "message", "attachments": [content]}
    return url, facts
