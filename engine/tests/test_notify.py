"""`fit --notify URL` sends one message when a run ends, never makes the run fail, and does not record the URL."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from helpers import TINY
from killing import at_call
from lit_engine.distributed.rendezvous import Connection
from lit_engine.run import provenance
from lit_engine.run.directory import RunDir
from lit_engine.tools import notify
from lit_engine.tools.notify import message
from toy.tasks import ImageClassifier

OPTIONS = f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=2 --test_after_fit=false --run_name=a"
FACTS = {
    "event": "finished", "run": "quickstart/a", "metrics": {"test/accuracy": 0.91666, "val/loss": 0.5},
    "page": "/runs/<a>&b/index.html",
}  # fmt: skip
TEXT = "quickstart/a: finished\ntest/accuracy 0.9167  val/loss 0.5\n/runs/<a>&b/index.html"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((self.path, self.headers, json.loads(body)))
        self.send_response(self.server.status)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    """A server on a free port of this machine, which stops after the test."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with HTTPServer(("127.0.0.1", 0), Handler) as found:
        found.received, found.status = [], 200
        found.url = f"http://127.0.0.1:{found.server_port}/hook/SECRET?token=SECRET"
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield found
        found.shutdown()
        thread.join(5)


@pytest.fixture(autouse=True)
def own_argv(monkeypatch):
    """Replace `sys.argv` with a copy, so that commands do not change pytest's arguments."""
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(provenance, "_hidden", {})


def test_a_finished_run_sends_its_main_metrics_and_its_page(lit, server):
    done = lit(OPTIONS, "--test_after_fit=true", "--notify", server.url)
    assert (done.status, done.err) == (0, "")
    ((path, headers, sent),) = server.received
    assert path == "/hook/SECRET?token=SECRET"
    assert headers["Content-Type"] == "application/json"
    assert headers["User-Agent"] == "toy"
    assert (sent["event"], sent["run"]) == ("finished", "quickstart/a")
    assert Path(sent["page"]) == (done.run / "index.html").absolute()
    assert Path(sent["page"]).exists()
    recorded = RunDir.open(done.run).metrics()
    assert list(sent["metrics"]) == ["test/accuracy", "val/accuracy", "train/accuracy"]
    assert sent["metrics"]["test/accuracy"] == recorded["test"]["test/accuracy"]


class Stops(Exception):
    """Error raised by user code."""


@pytest.mark.parametrize(
    ("what", "options", "status", "event"),
    [
        (signal.SIGTERM, "", 143, "received SIGTERM"),
        (signal.SIGINT, "", 130, "received SIGINT"),
        (OSError(28, "No space left on device"), "", 2, "failed"),
        (None, "--model.optimizer.lr=1e30 --trainer.max_epochs=5", 2, "diverged"),
        (None, "--trainer.callbacks+={class_path:NaNGuard} --model.optimizer.lr=1e30", 2, "diverged"),
        (None, "--trainer.callbacks+={class_path:EarlyStopping,init_args:{monitor:train/x,mode:min}}", 2, "failed"),
    ],
)
def test_the_event_describes_how_the_run_ended(lit, server, monkeypatch, what, options, status, event):
    if what is signal.SIGINT:  # shells ignore SIGINT in background jobs
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if what is not None:
        at_call(monkeypatch, ImageClassifier, "training_step", 13, what)
    words = [word.replace(":", ": ").replace(",", ", ") if "{" in word else word for word in options.split()]
    done = lit(OPTIONS, words, "--notify", server.url)
    assert done.status == status, done.err
    ((_, _, sent),) = server.received
    assert sent["event"] == event


@pytest.mark.parametrize("option", ["--plan", "--find lr", "--plot_lr"])
def test_planning_sends_nothing(lit, server, option):
    done = lit(OPTIONS, option, "--notify", server.url)
    assert (done.status, server.received) == (0, []), done.err


def test_redirects_are_reported(server):
    """Following a redirect with a GET request would lose the message."""
    server.status = 301
    assert notify.send(server.url, FACTS) == "HTTP status 301"


def test_a_run_that_stops_early_sends_the_event_stopped_early(lit, server):
    stop = "{class_path: EarlyStopping, init_args: {monitor: val/loss, mode: max, patience: 1}}"
    done = lit(OPTIONS, ["--trainer.max_epochs=9", f"--trainer.callbacks+={stop}"], "--notify", server.url)
    assert done.status == 0, done.err
    ((_, _, sent),) = server.received
    assert sent["event"] == "stopped early"


def test_an_error_in_the_code_is_sent_before_its_traceback(lit, server, monkeypatch):
    at_call(monkeypatch, ImageClassifier, "training_step", 3, Stops())
    with pytest.raises(Stops):
        lit(OPTIONS, "--notify", server.url)
    ((_, _, sent),) = server.received
    assert (sent["event"], sent["metrics"]) == ("failed", {})


def test_a_signal_from_torchrun_does_not_stop_the_message(lit, server, monkeypatch):
    """When a process ends with an error, such as a diverged loss, torchrun sends SIGTERM to the others."""

    def stop(*_):
        raise Stops

    connection = Connection(SimpleNamespace(global_rank=0, launcher=None))
    monkeypatch.setattr("lit_engine.session.Connection.of", lambda strategy: connection)
    at_call(monkeypatch, notify, "send", 1, signal.SIGTERM)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        done = lit(OPTIONS, "--model.optimizer.lr=1e30 --trainer.max_epochs=5 --notify", server.url)
        assert (done.status, signal.getsignal(signal.SIGTERM)) == (2, stop)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [sent["event"] for _, _, sent in server.received] == ["diverged"]


def test_urls_from_config_and_command_line_are_all_used_but_never_recorded(lit, server, workspace, capfd):
    config = workspace / "configs" / "quickstart.yaml"
    subprocess.run("git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm a", shell=True,
                   check=True)  # fmt: skip
    config.write_text(f"notify: ['{server.url}&from=config']\n{config.read_text()}")
    sys.argv[1:] = ["--notify", server.url, f"--notify={server.url}&second"]
    done = lit(OPTIONS, sys.argv[1:])
    assert done.status == 0, done.err
    sent = [path.partition("&")[2] for path, _, _ in server.received]
    assert sorted(sent) == ["", "from=config", "second"]
    assert sys.argv[1:] == ["--notify", "http://127.0.0.1/***", "--notify=http://127.0.0.1/***"]  # W&B records sys.argv
    for file in workspace.glob("runs/**/*"):
        assert not file.is_file() or b"SECRET" not in file.read_bytes(), file
    assert "SECRET" not in done.out + done.err
    assert "notify" not in yaml.safe_load((done.run / "config.yaml").read_text())
    assert RunDir.open(done.run).entries()[0]["command"][-3:] == sys.argv[1:]


def test_a_patch_contains_no_url_in_new_lines_and_can_be_applied(workspace, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    file = workspace / "configs" / "quickstart.yaml"
    before = file.read_text()
    subprocess.run("git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm a", shell=True,
                   check=True)  # fmt: skip
    file.write_text(before + "notify: [https://h.com/SECRET, https://h.com/SECRET/more]\n")
    provenance.hide(["https://h.com/SECRET", "https://h.com/SECRET/more"])
    patch, _ = provenance.read_uncommitted_changes(workspace)
    file.write_text(before)
    subprocess.run(["git", "apply", "-"], input=patch, check=True)
    assert file.read_text() == before + "notify: [https://h.com/***, https://h.com/***]\n"


def test_each_unresponsive_url_causes_a_one_line_note_within_a_time_limit(lit, server, trained, monkeypatch, capfd):
    monkeypatch.setattr(notify, "SECONDS", 0.5)
    server.status = 404
    with socket.socket() as silent, socket.socket() as closed:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # accepts connections, but never answers
        closed.bind(("127.0.0.1", 0))
        urls = [f"http://127.0.0.1:{one.getsockname()[1]}/SECRET" for one in (silent, silent, closed)]
        urls[1] += "2"
        capfd.readouterr()
        start = time.monotonic()
        notify.notify([*urls, server.url, "http://127.0.0.1:1/a b"], RunDir(trained), "finished")
        assert time.monotonic() - start < 1.5
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 5
    assert all(line.startswith("note: 127.0.0.1 was not notified: ") for line in lines)
    assert "refused" in lines[2]
    assert lines[3].endswith("HTTP status 404")
    assert lines[4].endswith("InvalidURL")
    assert "SECRET" not in str(lines)


def test_a_run_whose_url_does_not_respond_succeeds(lit):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        done = lit(OPTIONS, f"--notify=http://127.0.0.1:{closed.getsockname()[1]}/SECRET")
    assert done.status == 0
    assert done.err.count("\n") == 1
    assert done.err.startswith("note: 127.0.0.1 was not notified: ")


def test_an_environment_variable_may_contain_the_url(lit, server, monkeypatch):
    monkeypatch.setenv("HOOK", server.url)
    assert lit(OPTIONS, "--notify", "$HOOK").status == 0
    assert len(server.received) == 1


NO_HOST = "a URL needs http:// or https:// and a host, and its environment variables must be set"
USER_NAME = "a URL must not contain a user name: use a token, as in https://ntfy.sh/TOPIC?auth=TOKEN"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        *((url, NO_HOST) for url in ("hooks.slack.com/SECRET", "$UNSET", "ftp://a/b", "https://")),
        *((url, USER_NAME) for url in ("https://me:SECRET@ntfy.sh/topic", "http://SECRET@ntfy.sh")),
    ],
)
def test_the_error_for_an_invalid_url_does_not_contain_the_url(lit, url, message):
    done = lit(OPTIONS, "--notify", url)
    assert (done.status, done.err) == (2, f"error: notify: {message}\n")


def test_rejects_a_missing_url_and_commands_other_than_fit(lit, trained):
    assert "--notify needs a value" in lit(OPTIONS, "--notify").err
    assert "notify is not an option of test" in lit(f"test --run {trained} --notify http://127.0.0.1").err


@pytest.mark.parametrize(
    ("url", "target", "content"),
    [
        ("https://ntfy.sh/topic?auth=x", "https://ntfy.sh/?auth=x",
         {"topic": "topic", "title": TEXT.split("\n")[0], "message": TEXT.partition("\n")[2]}),
        ("https://hooks.slack.com/services/T/B/x", None, {"text": TEXT.replace("<a>&b", "&lt;a&gt;&amp;b")}),
        ("https://discord.com/api/webhooks/1/x", None, {"content": TEXT, "allowed_mentions": {"parse": []}}),
        ("https://notdiscord.com/x", None, FACTS),
        ("https://example.org/x", None, FACTS),
    ],
)  # fmt: skip
def test_the_host_of_the_url_determines_the_message_format(url, target, content):
    assert message(url, FACTS) == (target or url, content)


@pytest.mark.parametrize("host", ["a.webhook.office.com", "prod-1.westeurope.logic.azure.com:443",
                                  "x.environment.api.powerplatform.com"])  # fmt: skip
def test_teams_gets_an_adaptive_card(host):
    _, content = message(f"https://{host}/x", FACTS)
    (attachment,) = content["attachments"]
    assert content["type"] == "message"
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert attachment["content"]["body"][0]["text"] == TEXT.replace("\n", "\n\n")
