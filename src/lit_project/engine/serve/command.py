"""Lets a browser on this machine try a trained run on a picture, a row or a sentence. Ctrl-C ends it.

%(prog)s runs/quickstart/first
curl --data-binary @digit.png http://127.0.0.1:8000/predict        the same as JSON
"""

import argparse
import json
import os
import tempfile
import traceback
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from ..entry import look
from ..errors import UserError
from ..messages import OptionParser

if TYPE_CHECKING:
    from .predictor import Predictor

HERE = "127.0.0.1"
MEGABYTES = 20  # of a sample, at most
ROUTES = "there are GET / and POST /predict"


def option_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = OptionParser("serve", __doc__)
    parser.add_argument("run", metavar="RUN", help="its directory, or `latest`")
    parser.add_argument("--ckpt_path", default="best", metavar="best|last|average|PATH", help="default: best")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="default: 8000; 0: any that is free")
    return parser


def serve(args: Sequence[str]) -> int:
    """Runs the command until Ctrl-C and returns its exit status.

    Raises:
        UserError: the port is taken, or the run has no such weights or predicts on no new samples.
    """
    options = option_parser().parse_args(list(args))
    look([f"--run={options.run}"], ())  # this and the port before torch is imported, which takes seconds
    try:
        server = Server((HERE, options.port), Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--port {options.port}: {reason}; --port 0 takes one that is free") from error
    with server, tempfile.TemporaryDirectory() as folder:
        from .predictor import Predictor

        server.predictor = Predictor(options.run, options.ckpt_path, folder)
        server.page = server.predictor.page(MEGABYTES)
        print(f"http://{HERE}:{server.server_port} (Ctrl-C ends)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended")
    return 0


class Server(ThreadingHTTPServer):
    """Holds what its requests share."""

    allow_reuse_address = os.name == "posix"  # Windows would share a port that is in use
    predictor: "Predictor"
    page: str


class Handler(BaseHTTPRequestHandler):
    """`GET /` gives the page; `POST /predict` takes a sample and gives `{"rows": […]}` or `{"error": …}`."""

    server: Server
    timeout = 60  # seconds of silence

    def parse_request(self) -> bool:
        """Refuses pages of other servers, and other names of this machine: any name can be made to lead here."""
        if not super().parse_request():
            return False
        host = self.headers.get("Host", "")
        known = host.partition(":")[0] in (HERE, "localhost") and self.headers.get("Origin") in (None, f"http://{host}")
        if not known:
            self._refuse(403, f"requests from other pages than those of http://{HERE} are refused")
        return known

    def do_GET(self) -> None:
        if self.path == "/favicon.ico":  # browsers ask for it
            self._send(204, "", "image/x-icon")
        elif self.path.partition("?")[0] == "/":
            self._send(200, self.server.page, "text/html; charset=utf-8")
        else:
            self._refuse(404, ROUTES)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        size = int(length) if length.isdecimal() else 0
        if self.path != "/predict":
            self._refuse(404, ROUTES)
        elif size > MEGABYTES * 1_000_000:
            self._refuse(413, f"the limit is {MEGABYTES} MB")
        elif self.headers.get_content_type() == "multipart/form-data":
            self._refuse(400, f"send the bytes alone: curl --data-binary @FILE http://{self.headers['Host']}/predict")
        else:
            self._answer(self.rfile.read(size))

    def _answer(self, sample: bytes) -> None:
        try:
            text = json.dumps({"rows": self.server.predictor.answer(sample)}, allow_nan=False)
            self._send(200, text, "application/json")
        except UserError as error:
            self._refuse(400, str(error))
        except Exception as error:  # of any kind: the task may be anyone's
            traceback.print_exc()
            self._refuse(500, f"{type(error).__name__}: {error} (more is in the terminal)")

    def _refuse(self, status: int, why: str) -> None:
        self._send(status, json.dumps({"error": why}), "application/json")

    def _send(self, status: int, text: str, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()  # HTTP/1.0: the end of the connection is that of the text
        if self.command != "HEAD":
            self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing of requests."""
