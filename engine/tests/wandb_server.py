"""In-process W&B server that handles sweeps, agents and runs for the real W&B client, on a local port.

It supports the GraphQL operations of `wandb sweep`, `wandb agent` and their runs. All other requests get an error, and
are stored in `unknown` so that tests can fail.
"""

import itertools
import json
import re
import sys
import threading
import traceback
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import yaml

ENTITY, PROJECT = "somebody", "sweeps"
OPERATION = re.compile(r"(?:query|mutation)\s+(\w+)")
STREAM = re.compile(r"/files/[^/]+/[^/]+/([^/]+)/file_stream")
OWNER = {"id": "1", "name": ENTITY}


@dataclass
class Run:
    """A trial as seen by the server: the values chosen by the sweep, and the data sent by the process."""

    name: str
    parameters: dict[str, Any]
    agent: str  # the agent that starts the trial
    project: str | None = None  # this field and the following ones are stored as received
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    group: str | None = None
    title: str | None = None  # the name in the web interface
    job_type: str | None = None
    exit_code: int | None = None

    @property
    def state(self) -> str:
        if self.exit_code is None:
            return "running"
        return "failed" if self.exit_code else "finished"

    def logged(self, metric: str) -> list[Any]:
        return [row[metric] for row in self.rows if metric in row]


@dataclass
class Sweep:
    """A grid search with its remaining points, and the runs that have started, in order."""

    name: str
    config: dict[str, Any]
    points: list[dict[str, Any]]
    runs: list[Run] = field(default_factory=list)


class Server(ThreadingHTTPServer):
    """Server that answers until the `with` block ends. Tests inspect its attributes.

    Args:
        wanted: Number of agents that must have registered before the first agent gets a trial.
    """

    def __init__(self, wanted: int = 1) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.wanted = wanted
        self.sweeps: list[Sweep] = []
        self.agents: list[str] = []
        self.runs: dict[str, Run] = {}
        self.unknown: list[str] = []
        self.lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections reset by killed processes. Other errors are bugs in this server."""
        if not isinstance(sys.exception(), ConnectionError):
            with self.lock:
                self.unknown.append(traceback.format_exc())

    def answer(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        if path == "/graphql":
            request = json.loads(body)
            name = OPERATION.search(request["query"])
            operation = getattr(self, f"on_{name[1]}", None) if name else None
            if operation is not None:
                return {"data": operation(request.get("variables") or {})}
            self.unknown.append(request["query"])
            return {"errors": [{"message": "unknown operation"}]}
        if stream := STREAM.fullmatch(path):
            return self.stream(self.runs[stream[1]], json.loads(body))
        if not path.startswith("/upload/"):
            self.unknown.append(f"{method} {path}")
        return {}

    def stream(self, run: Run, sent: dict[str, Any]) -> dict[str, Any]:
        """Receive lines of the history, or the end of the run."""
        history = (sent.get("files") or {}).get("wandb-history.jsonl")
        if history:
            run.rows[history["offset"] :] = [json.loads(line) for line in history["content"]]
        if summary := (sent.get("files") or {}).get("wandb-summary.json"):
            run.summary = json.loads(summary["content"][-1])
        if sent.get("complete"):
            run.exit_code = sent["exitcode"]
        return {}

    def on_Viewer(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"viewer": {"id": "1", "entity": ENTITY, "username": ENTITY, "flags": "{}", "teams": {"edges": []}}}

    def on_ServerFeaturesQuery(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"serverInfo": {"features": []}}

    def on_OrganizationCoreWeaveOrganizationID(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"entity": {"organization": {"coreWeaveOrganizationId": None}}}

    def on_UpsertSweep(self, sent: dict[str, Any]) -> dict[str, Any]:
        """Handle `wandb sweep`: create all points of the grid. The last parameter changes fastest."""
        config = yaml.safe_load(sent["config"])
        choices = {name: given.get("values", [given.get("value")]) for name, given in config["parameters"].items()}
        points = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
        sweep = Sweep(f"sweep{len(self.sweeps)}", config, points)
        self.sweeps.append(sweep)
        found = {"name": sweep.name, "project": {"id": "2", "name": sent["projectName"] or PROJECT, "entity": OWNER}}
        return {"upsertSweep": {"sweep": found, "configValidationWarnings": []}}

    def on_SweepWithRuns(self, sent: dict[str, Any]) -> dict[str, Any]:
        """Return the sweep that an agent reads first, including its `command`."""
        sweep = next(sweep for sweep in self.sweeps if sweep.name == sent["sweep"])
        found = {"id": sweep.name, "name": sweep.name, "state": "RUNNING", "config": yaml.safe_dump(sweep.config)}
        return {"project": {"sweep": {**found, "runs": {"edges": []}}}}

    def on_CreateAgent(self, sent: dict[str, Any]) -> dict[str, Any]:
        self.agents.append(f"{sent['sweep']}/agent{len(self.agents)}")
        return {"createAgent": {"agent": {"id": self.agents[-1]}}}

    def on_Heartbeat(self, sent: dict[str, Any]) -> dict[str, Any]:
        """Receive an agent's processes, and return its commands."""
        commands = self.commands(sent["id"], set(json.loads(sent["runState"])))
        return {"agentHeartbeat": {"agent": {"id": sent["id"]}, "commands": json.dumps(commands)}}

    def commands(self, agent: str, alive: set[str]) -> list[dict[str, Any]]:
        """Return the next point of the grid, or the command to exit, which kills running processes."""
        sweep = next(sweep for sweep in self.sweeps if sweep.name == agent.partition("/")[0])
        if alive or len(self.agents) < self.wanted:
            return []
        if not sweep.points:
            return [{"type": "exit"}]
        run = Run(f"{sweep.name}run{len(sweep.runs)}", sweep.points.pop(0), agent)
        sweep.runs.append(run)
        self.runs[run.name] = run
        args = {name: {"value": value} for name, value in run.parameters.items()}
        return [{"type": "run", "run_id": run.name, "program": sweep.config.get("program"), "args": args}]

    def on_RunResumeStatus(self, sent: dict[str, Any]) -> dict[str, Any]:
        """Return the progress of a run that has already sent data."""
        run, bucket = self.runs.get(sent["name"]), None
        if run is not None:
            last = {"_runtime": 1, "_step": len(run.rows) - 1} if run.rows else {}
            tail = [json.dumps(last)] if run.rows else []
            summary = {name: value for row in run.rows for name, value in row.items()}
            bucket = {
                "name": run.name, "displayName": run.name, "historyLineCount": len(run.rows), "eventsLineCount": 0,
                "logLineCount": 0, "historyTail": json.dumps(tail), "eventsTail": "[]", "config": "{}",
                "summaryMetrics": json.dumps({**summary, **last}), "tags": [], "notes": None,
                "wandbConfig": json.dumps({"t": 1}),
            }  # fmt: skip
        return {"model": {"id": "2", "name": sent["project"], "entity": OWNER, "bucket": bucket}}

    def on_UpsertBucket(self, sent: dict[str, Any]) -> dict[str, Any]:
        """Start a run or change its config. A run that was not started by an agent is not a trial."""
        run = self.runs.setdefault(sent["name"], Run(sent["name"], {}, agent=""))
        run.project = sent["project"]
        run.group, run.job_type = sent.get("groupName") or run.group, sent.get("jobType") or run.job_type
        run.title = sent.get("displayName") or run.title
        run.config |= {name: given["value"] for name, given in json.loads(sent.get("config") or "{}").items()}
        bucket = {
            "id": run.name, "name": run.name, "displayName": sent.get("displayName") or run.name, "description": None,
            "config": None, "sweepName": sent.get("sweep"), "historyLineCount": len(run.rows),
            "project": {"id": "2", "name": sent["project"], "entity": OWNER},
        }  # fmt: skip
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}

    def on_CreateRunFiles(self, sent: dict[str, Any]) -> dict[str, Any]:
        """Return the upload address `/upload/`, which discards files."""
        files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in sent["files"]]
        return {"createRunFiles": {"runID": sent["run"], "uploadHeaders": [], "files": files}}


class Handler(BaseHTTPRequestHandler):
    """Request handler that passes all requests to the server, one at a time."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.lock:
            answer = json.dumps(self.server.answer(self.command, urlsplit(self.path).path, body)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass
