"""Serves a web page on this machine to try a trained run on an image, table row or sentence. Ctrl-C stops the server.

%(prog)s runs/quickstart/first                                 start the server
curl --data-binary @digit.png http://127.0.0.1:8000/predict        print the prediction as JSON
"""

import argparse
import json
import sys
import tempfile
import traceback
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from lit_engine.cli.arguments import OptionParser
from lit_engine.errors import UserError
from lit_engine.run.directory import RunDir

if TYPE_CHECKING:
    from lit_engine.tools.serve.predictor import Predictor

HERE = "127.0.0.1"
ROUTES = "the available routes are GET / and POST /predict"


def option_parser() -> argparse.ArgumentParser:
    """Return the argument parser of `serve`."""
    parser = OptionParser("serve", __doc__)
    parser.add_argument("run", metavar="RUN", help="run directory, or `latest`")
    parser.add_argument("--ckpt_path", default="best", metavar="best|last|average|PATH", help="default: best")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="default: 8000; 0 selects a free port")
    return parser


def serve(args: Sequence[str]) -> int:
    """Serve requests until Ctrl-C, and return the exit status.

    Raises:
        UserError: the port is in use, or the run lacks the requested weights or cannot predict on new samples.
    """
    options = option_parser().parse_args(args)
    run = RunDir.open(options.run)  # fails for a wrong path before the slow import of torch
    try:
        server = Server((HERE, options.port), Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--port {options.port}: {reason}; --port 0 selects a free port") from error
    # Unfinished requests may write files while the folder is being deleted.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, server:
        from lit_engine.tools.serve.predictor import Predictor

        server.predictor = Predictor(run, options.ckpt_path, folder)
        server.page = server.predictor.page()
        print(f"http://{HERE}:{server.server_port} (Ctrl-C to stop)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped")
    return 0


class Server(ThreadingHTTPServer):
    """An HTTP server with a predictor and a page that all requests share."""

    request_queue_size = 128  # with Python's default of 5, simultaneous connections are reset
    predictor: "Predictor"
    page: str

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):  # the client disconnected
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """The request handler. `GET /` returns the page, and `POST /predict` returns JSON with `rows` or an `error`."""

    server: Server
    timeout = 60  # seconds without data

    def parse_request(self) -> bool:
        """Reject requests from other sites or to unknown host names, because any name can resolve to this machine."""
        if not super().parse_request():
            return False
        host = self.headers.get("Host", "")
        known = host.partition(":")[0] in (HERE, "localhost") and self.headers.get("Origin") in (None, f"http://{host}")
        if not known:
            self.send_error(403, f"only pages of http://{HERE} may send requests")
        return known

    def do_GET(self) -> None:
        if self.path.partition("?")[0] == "/":
            self._send(200, self.server.page, "text/html; charset=utf-8")
        else:
            self.send_error(404, ROUTES)

    def do_POST(self) -> None:
        try:
            sample = self.rfile.read(max(0, int(self.headers.get("Content-Length", 0))))
        except (ValueError, OverflowError, MemoryError):
            self.send_error(400, "the header Content-Length is invalid")
            return
        if self.path != "/predict":
            self.send_error(404, ROUTES)
        elif self.headers.get_content_type() == "multipart/form-data":
            self.send_error(400, f"send the raw file: curl --data-binary @FILE http://{self.headers['Host']}/predict")
        else:
            self._answer(sample)

    def _answer(self, sample: bytes) -> None:
        try:
            text = json.dumps(self.server.predictor.answer(sample), allow_nan=False)
        except UserError as error:
            self.send_error(400, str(error))
        except Exception as error:  # a user's task can raise any exception
            traceback.print_exc()
            self.send_error(500, f"{type(error).__name__}: {error} (see the terminal for details)")
        else:
            self._send(200, text, "application/json")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error as JSON. The base class also calls this method, for example for an unknown HTTP method."""
        error = {"error": message or HTTPStatus(code).phrase}
        self._send(code, json.dumps(error), "application/json")

    def _send(self, status: int, text: str, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()  # in HTTP/1.0, the response ends when the connection is closed
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""
