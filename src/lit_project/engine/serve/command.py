"""Lets a browser on this machine try a trained run on a picture, a row or a sentence. Ctrl-C ends it.

%(prog)s runs/quickstart/first
curl --data-binary @digit.png http://127.0.0.1:8000/predict        the same as JSON
"""

import argparse
import json
import traceback
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..entry import look
from ..errors import UserError
from ..messages import OptionParser
from ..page import source_of
from ..project import PROGRAM

HERE = "127.0.0.1"
MOST = 20  # MB of a sample


def option_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    form = argparse.RawDescriptionHelpFormatter
    parser = OptionParser(prog=f"{PROGRAM} serve", description=__doc__, formatter_class=form, allow_abbrev=False)
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
        server = ThreadingHTTPServer((HERE, options.port), Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--port {options.port}: {reason}; --port 0 takes one that is free") from error
    with server:
        from .predictor import Predictor

        predictor = Predictor(options.run, options.ckpt_path)
        Handler.page, Handler.answer = predictor.page(MOST), predictor.answer
        print(f"http://{HERE}:{server.server_port} (Ctrl-C ends)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended")
    return 0


class Handler(BaseHTTPRequestHandler):
    """Gives the page; `POST` takes a sample and gives `{"rows": […]}` or `{"error": …}`."""

    page: str
    answer: Callable[[bytes], Any]
    timeout = 60  # seconds of silence

    def parse_request(self) -> bool:
        """Refuses pages of other servers, and other names of this machine: any name can be made to lead here."""
        if not super().parse_request():
            return False
        host = self.headers.get("Host", "")
        known = host.partition(":")[0] in (HERE, "localhost") and self.headers.get("Origin") in (None, f"http://{host}")
        if not known:
            self.send_error(403, f"only pages of http://{HERE} may ask")
        return known

    def do_GET(self) -> None:
        self._send(200, self.page, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MOST * 1_000_000:
            self.send_error(413, f"{MOST} MB are the most")
            return
        try:
            rows = self.answer(self.rfile.read(int(length)))
            status, text = 200, json.dumps({"rows": rows}, default=source_of, allow_nan=False)
        except UserError as error:
            status, text = 400, json.dumps({"error": str(error)})
        except Exception as error:  # of any kind: the task may be anyone's
            traceback.print_exc()
            status, text = 500, json.dumps({"error": f"{type(error).__name__}: {error} (more is in the terminal)"})
        self._send(status, text, "application/json")

    def _send(self, status: int, text: str, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()  # HTTP/1.0: the end of the connection is that of the text
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing of requests."""
