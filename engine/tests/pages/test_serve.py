"""`serve` returns the same predictions as `predict` to programs and browsers."""

import base64
import io
import json
import math
import re
import socket
import struct
from http.client import HTTPConnection
from itertools import starmap
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import ANY
from urllib.request import Request, urlopen

import numpy as np
import pytest
from PIL import Image

from lit_engine.data.images import ImageData
from lit_engine.tools.serve.command import Handler, Server
from lit_engine.tools.serve.predictor import Predictor, _columns, _field
from serving import opened, post, serving, table_of
from toy.data import Digits
from toy.tasks import ImageClassifier


@pytest.fixture
def serve(lit, monkeypatch):
    return serving(lit, monkeypatch)


@pytest.fixture
def pictures(workspace):
    """Return a folder with four digits as image files."""
    data = Digits()
    data.setup("test")
    folder = workspace / "pictures"
    folder.mkdir()
    for number in range(4):
        Image.fromarray(data.splits["test"][0][number, 0].numpy()).save(folder / f"{number}.png")
    return folder


def test_answers_match_predict_and_the_run_is_unchanged(serve, lit, trained, pictures, monkeypatch):
    assert lit(f"predict --run {trained} --images pictures --probabilities").status == 0
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    predict_step = ImageClassifier.predict_step

    def with_mask(task, batch, number):
        folder = Path(task.trainer.default_root_dir, "predictions")
        folder.mkdir()
        Image.new("L", (4, 4)).save(folder / "mask.png")
        return {**predict_step(task, batch, number), "mask": ["mask.png"]}

    def ask(address):
        for row in table_of(trained, "images_pictures"):
            sample = Path(row.pop("file")).read_bytes()
            status, (found,) = post(address, sample)
            assert (status, found.pop("class_name")) == (200, row.pop("class_name"))
            assert {"index": ANY, **found} == {name: pytest.approx(float(row[name]), abs=1e-6) for name in row}
        monkeypatch.setattr(ImageClassifier, "predict_step", with_mask)
        with urlopen(Request(f"{address}/predict", sample), timeout=60) as reply:
            seen = Image.open(io.BytesIO(base64.b64decode(json.load(reply)["input"].partition(",")[2])))
        assert np.array_equal(np.asarray(seen), np.asarray(Image.open(io.BytesIO(sample))))
        first, again = post(address, sample)[1], post(address, sample)[1]
        assert first == again
        assert first[0]["mask"].startswith("data:image/png;base64,")

    serve(ask, trained)
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


def test_bad_or_cross_origin_requests_get_an_error_and_the_server_continues(serve, trained, pictures, monkeypatch):
    digit = (pictures / "0.png").read_bytes()
    config = (trained / "config.yaml").read_text()
    assert "accelerator: auto" in config  # the run may be from a machine with eight GPUs
    elsewhere = config.replace("accelerator: auto", "accelerator: gpu").replace("devices: auto", "devices: 8")
    (trained / "config.yaml").write_text(elsewhere)

    def broken(*_):
        raise ValueError("of mine")

    def ask(address):
        assert post(address, b"") == (400, "the picture is empty: there is nothing to predict on")
        assert post(address, digit[:60]) == (400, "the picture cannot be read: it is damaged or unsupported")
        assert post(address, b"", **{"Content-Length": "-1"})[0] == 400
        for length in ("", "abc", "9" * 15, "9" * 5000):
            assert post(address, b"", **{"Content-Length": length}) == (400, "the header Content-Length is invalid")
        for line, status in ((b"DELETE / HTTP/1.0\r\nHost: localhost\r\n", 501), (b"GET /" + b"x" * 70_000, 414)):
            with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as client:
                client.sendall(line + b"\r\n\r\n")
                head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
            assert head.split()[1] == str(status).encode()
            assert json.loads(body)["error"]
        form = {"Content-Type": "multipart/form-data; boundary=x"}
        assert post(address, digit, **form) == (
            400,
            f"send the raw file: curl --data-binary @FILE {address}/predict",
        )
        assert post(f"{address}/elsewhere", digit) == (404, "the available routes are GET / and POST /predict")
        for method, path, status in (
            ("GET", "/", 200),
            ("GET", "/x", 404),
            ("POST", "/predict", 400),
        ):  # requests without a body
            connection = HTTPConnection(address.removeprefix("http://"), timeout=60)
            connection.putrequest(method, path)
            connection.endheaders()
            reply = connection.getresponse()
            assert (reply.status, reply.read() != b"") == (status, True), path
            connection.close()
        for stranger in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
            assert post(address, digit, **stranger)[0] == 403
        with monkeypatch.context() as patch:
            patch.setattr(ImageClassifier, "predict_step", broken)
            assert post(address, digit) == (500, "ValueError: of mine (see the terminal for details)")
        assert post(address, digit, Origin=address)[0] == 200
        # Requests through a tunnel have a different port.
        assert post(address, digit, Host="localhost:9000", Origin="http://localhost:9000")[0] == 200

    assert serve(ask, trained).err.count("Traceback") == 1


def test_answers_many_clients_and_ignores_disconnected_ones(serve, trained, pictures):
    digit = (pictures / "0.png").read_bytes()

    def ask(address):
        place = ("127.0.0.1", int(address.rpartition(":")[2]))
        head = f"POST /predict HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(digit)}\r\n\r\n".encode()
        clients = [socket.create_connection(place) for _ in range(20)]
        for number, client in enumerate(clients):
            client.sendall(head + digit)
            if number % 10 == 9:  # reset the connection before the response
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
        replies = [client.makefile("rb").read() for client in clients if client.fileno() != -1]
        assert len(replies) == 18
        assert all(reply.startswith(b"HTTP/1.0 200") for reply in replies)

    assert serve(ask, trained).err == ""


def test_connections_wait_until_they_are_answered():
    with Server(("127.0.0.1", 0), Handler) as server:  # does not accept any connection
        for client in [socket.create_connection(server.server_address, timeout=5) for _ in range(50)]:
            client.close()


def test_only_pictures_that_the_task_has_written_are_sent(tmp_path):
    predictor = SimpleNamespace(folder=tmp_path / "served")
    (tmp_path / "served" / "predictions").mkdir(parents=True)
    for file in (tmp_path / "served" / "predictions" / "mask.png", tmp_path / "secret.png"):
        file.write_bytes(b"x")
    assert Predictor._to_json(predictor, "mask.png").startswith("data:image/png;base64,")
    for text in ("../../secret.png", str(tmp_path / "secret.png"), "a\0b", "a\0b.png"):
        assert Predictor._to_json(predictor, text) == text


def test_predictions_that_are_not_finite_are_sent_as_text(tmp_path):
    found = [Predictor._to_json(SimpleNamespace(folder=tmp_path), value) for value in (math.inf, math.nan, 1.5)]
    assert json.loads(json.dumps(found, allow_nan=False)) == ["inf", "nan", 1.5]


def test_form_fields_are_numbers_or_lists_of_options():
    data = SimpleNamespace(columns={"weight <g>": [1700045.5, 20.0], "colour": ["green", "dark  red\n"]})
    fields = "".join(starmap(_field, _columns(data).items()))
    assert re.findall('name="(.*?)"', fields) == ["weight &lt;g&gt;", "colour"]
    assert re.findall('value="(.*?)"', fields, re.DOTALL) == ["1700046", "green", "dark  red\n"]


def test_table_page_has_column_fields_despite_an_input_shape():
    data = SimpleNamespace(input_shape=(1,), columns={"weight": [99.5, 20.0]})
    page = Predictor.page(SimpleNamespace(data=data, kind="table", title="run", about=""))
    assert '<input name="weight"' in page


def test_invalid_options_cause_one_line_errors(lit, trained, monkeypatch):
    def refused(*parts):
        result = lit("serve", *parts)
        assert (result.status, result.err.count("\n")) == (2, 1), result.err
        return result.err

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"--port {port}: Address already in use; --port 0 selects" in refused(trained, f"--port {port}")
    assert "port must be 0-65535" in refused(trained, "--port 99999")
    assert "no such run directory: nowhere" in refused("nowhere")
    assert "no such checkpoint: nope" in refused(trained, "--port 0 --ckpt_path nope")
    monkeypatch.delattr(ImageData, "predicts_on")
    assert "Digits cannot predict on new samples" in refused(trained, "--port 0")


DROP = """
const data = new DataTransfer();
data.items.add(new File(["no image"], "a.png", {type: "image/png"}));
document.dispatchEvent(new DragEvent("drop", {dataTransfer: data}));
"""


@pytest.mark.slow
def test_a_digit_can_be_chosen_dropped_or_drawn_in_the_browser(serve, trained, pictures, browser):
    def ask(address):
        with opened(browser, address) as page:
            for file in sorted(pictures.iterdir()):
                page.get_by_label("Choose a picture").set_input_files(file)
                _, (expected,) = post(address, file.read_bytes())
                assert page.locator(".classes dt").first.inner_text() == expected["class_name"]
                assert page.locator("dt:text-is('class_name'), dt:text-is('prediction')").count() == 0
                shares = sorted((v for name, v in expected.items() if name.startswith("probability/")), reverse=True)
                bars = [float(text.removesuffix("%")) for text in page.locator("dd:has(meter)").all_inner_texts()]
                assert bars == [pytest.approx(100 * share, abs=0.06) for share in shares[:5]]
                page.get_by_role("button", name="Clear").click()
                assert page.locator("#answer *").count() == 0
            page.get_by_label("Choose a picture").set_input_files(file)  # the same file again
            page.locator(".classes").wait_for()
            assert page.get_by_alt_text("What the network sees").bounding_box()["width"] == 280
            page.get_by_role("button", name="Clear").click()
            middle = "document.querySelector('canvas').getContext('2d').getImageData(140, 140, 1, 1).data[0]"
            assert page.evaluate(middle) == 255  # white, because the mean of the pixels is not below 0.5
            box = page.locator("canvas").bounding_box()
            page.mouse.move(box["x"] + 140, box["y"] + 40)
            page.mouse.down()
            page.mouse.move(box["x"] + 140, box["y"] + 240, steps=5)
            page.mouse.up()
            assert page.evaluate(middle) == 0
            assert page.locator(".classes dt").first.inner_text() in "0123456789"
            assert page.get_by_label("Choose a picture").input_value() == ""
            page.evaluate(DROP)
            page.get_by_text("the picture cannot be read").wait_for()
            page.route("**/predict", lambda route: route.abort())
            page.evaluate(DROP)
            page.get_by_text("has stopped").wait_for()

    serve(ask, trained)
