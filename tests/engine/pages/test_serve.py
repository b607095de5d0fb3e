"""`serve` answers programs and browsers like `predict`."""

import base64
import csv
import io
import json
import re
import socket
import struct
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from itertools import starmap
from pathlib import Path
from threading import Thread, active_count
from types import SimpleNamespace
from unittest.mock import ANY
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from PIL import Image

from lit_engine.data.images import ImageData
from lit_engine.tools.serve.predictor import _columns, _field
from lit_project.data.digits import Digits
from lit_project.tasks.classification import Classifier
from translation_run import HELLO, shared

NAMES, NEW = ['a "big"', "b;c"], [0.25, -1500]


@pytest.fixture
def serve(lit, monkeypatch):
    """Return a function that runs `lit-project serve`, calls `ask(address)` once it listens, then presses Ctrl-C."""
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
        assert result.out.endswith(" (Ctrl-C to stop)\nended\n")
        return result

    return run


def post(address, sample, **headers):
    """Return the status, and the rows or the error."""
    try:
        with urlopen(Request(f"{address}/predict", sample, headers), timeout=60) as reply:
            return reply.status, json.load(reply)["rows"]
    except HTTPError as error:
        text = error.read().decode()
        return error.code, json.loads(text)["error"]


def table_of(run, name):
    with (run / "predictions" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture
def pictures(workspace):
    """The folder of four digits as image files."""
    data = Digits()
    data.setup("test")
    folder = workspace / "pictures"
    folder.mkdir()
    for number in range(4):
        Image.fromarray(data.splits["test"][0][number, 0].numpy()).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def regression(lit, workspace):
    """A run on a table whose column names need quotes, and the prediction for the row NEW in new.csv."""
    rows = np.random.default_rng(0).normal(size=(40, 2)) * [1, 1000]
    for name, lines in {"train": [[*row, row[0] + row[1]] for row in rows], "new": [[*NEW, 0]]}.items():
        with (workspace / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, delimiter=";").writerows([[*NAMES, "y"], *lines])
    data = "--data=CSV --data.file=train.csv --data.target_names=y --data.delimiter=;"
    run = lit(f"fit -c configs/regression_quickstart.yaml -c configs/overlays/debug.yaml {data} --run_name=tiny").run
    assert lit(f"predict --run {run} --table new.csv").status == 0
    return run, pytest.approx(float(table_of(run, "table_new")[0]["prediction"]), rel=1e-5)


def test_a_picture_gets_the_answer_of_predict_and_the_run_stays_as_it_was(serve, lit, trained, pictures, monkeypatch):
    assert lit(f"predict --run {trained} --images pictures --probabilities").status == 0
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    predict_step = Classifier.predict_step

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
        monkeypatch.setattr(Classifier, "predict_step", with_mask)
        with urlopen(Request(f"{address}/predict", sample), timeout=60) as reply:
            seen = Image.open(io.BytesIO(base64.b64decode(json.load(reply)["input"].partition(",")[2])))
        assert np.array_equal(np.asarray(seen), np.asarray(Image.open(io.BytesIO(sample))))
        first, again = post(address, sample)[1], post(address, sample)[1]
        assert first == again
        assert first[0]["mask"].startswith("data:image/png;base64,")

    serve(ask, trained)
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


def test_bad_input_and_strangers_get_a_message_and_the_server_goes_on(serve, trained, pictures, monkeypatch):
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
        for length in ("20000001", "9" * 5000):
            assert post(address, b"", **{"Content-Length": length}) == (413, "the limit is 20 MB")
        assert post(address, bytes(20_000_001)) == (413, "the limit is 20 MB")
        for line, status in ((b"DELETE / HTTP/1.0\r\nHost: localhost\r\n", 501), (b"GET /" + b"x" * 70_000, 414)):
            with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as client:
                client.sendall(line + b"\r\n\r\n")
                head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
            assert head.split()[1] == str(status).encode()
            assert json.loads(body)["error"]
        form = {"Content-Type": "multipart/form-data; boundary=x"}
        assert post(address, digit, **form) == (
            400,
            f"send only the bytes: curl --data-binary @FILE {address}/predict",
        )
        assert post(f"{address}/elsewhere", digit) == (404, "the available routes are GET / and POST /predict")
        for method, path, status in (
            ("GET", "/", 200),
            ("HEAD", "/", 200),
            ("GET", "/favicon.ico", 204),
            ("GET", "/x", 404),
            ("POST", "/predict", 400),  # without a body
        ):
            connection = HTTPConnection(address.removeprefix("http://"), timeout=60)
            connection.putrequest(method, path)
            connection.endheaders()
            reply = connection.getresponse()
            assert (reply.status, reply.read() == b"") == (status, method == "HEAD" or status == 204), path
            connection.close()
        for stranger in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
            assert post(address, digit, **stranger)[0] == 403
        with monkeypatch.context() as patch:
            patch.setattr(Classifier, "predict_step", broken)
            assert post(address, digit) == (500, "ValueError: of mine (see the terminal for details)")
        assert post(address, digit, Origin=address)[0] == 200
        # Requests through a tunnel have a different port.
        assert post(address, digit, Host="localhost:9000", Origin="http://localhost:9000")[0] == 200

    assert serve(ask, trained).err.count("Traceback") == 1


def test_many_clients_are_answered_and_those_that_leave_are_not_errors(serve, trained, pictures, monkeypatch):
    digit, threads = (pictures / "0.png").read_bytes(), set()
    monkeypatch.setattr("lit_engine.tools.serve.command.THREADS", 4)

    def ask(address):
        place = ("127.0.0.1", int(address.rpartition(":")[2]))
        head = f"POST /predict HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(digit)}\r\n\r\n".encode()
        clients = [socket.create_connection(place) for _ in range(50)]
        for number, client in enumerate(clients):
            client.sendall(head + digit)
            if number % 10 == 9:  # reset before the response
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
        threads.add(active_count())
        replies = [client.makefile("rb").read() for client in clients if client.fileno() != -1]
        assert len(replies) == 45
        assert all(reply.startswith(b"HTTP/1.0 200") for reply in replies)

    before = active_count()
    assert serve(ask, trained).err == ""
    assert max(threads) - before <= 1 + 4


def test_images_of_a_folder_get_the_answer_of_predict(serve, lit, image_folder):
    run = lit("fit -c configs/image_folder.yaml -c configs/overlays/debug.yaml --run_name=tiny").run
    file = next(image_folder.rglob("*.png"))
    assert lit(f"predict --run {run} --images {file}").status == 0
    (expected,) = table_of(run, f"images_{file.stem}")

    def ask(address):
        status, (found,) = post(address, file.read_bytes())
        assert (status, found["class_name"]) == (200, expected["class_name"])
        assert found["probability"] == pytest.approx(float(expected["probability"]), abs=1e-5)

    serve(ask, run)


def test_a_row_gets_the_answer_of_predict(serve, regression):
    run, expected = regression
    table = Path("new.csv").read_bytes()

    def ask(address):
        status, (found,) = post(address, table)
        assert (status, found["prediction"]) == (200, expected)
        assert [row["b;c"] for row in post(address, table + b"1;2;3")[1]] == ["-1500", "2"]
        message = post(address, table.replace(b"-1500", b"many"))[1]
        assert message == "line 2, column 'b;c': 'many' is not a finite number"
        assert post(address, b"a;b\n1;2")[1] == "the table has no column 'a \"big\"', 'b;c'; available: a, b"

    serve(ask, run)


def test_a_column_is_a_number_or_a_list_of_words():
    data = SimpleNamespace(columns={"weight <g>": [99.5, 20.0], "colour": ["green", "red"]})
    fields = "".join(starmap(_field, _columns(data).items()))
    assert re.findall('name="(.*?)"', fields) == ["weight &lt;g&gt;", "colour"]
    assert re.findall('value="(.*?)"', fields) == ["99.5"]
    assert re.findall(r"<option>(\w+)", fields) == ["green", "red"]


def test_a_sentence_gets_the_answer_of_translate(serve, lit, tmp_path_factory):
    run = shared(tmp_path_factory)
    words = "The zorglub is small."
    expected = lit("translate", "--run", run, [words], "--n_best=2")
    score, text = expected.out.splitlines()[0].split("\t")

    def ask(address):
        status, (found,) = post(address, words.encode())
        assert (status, found["translation"], f"{found['score']:.4f}") == (200, text, score)
        assert f"note: {found['note']}\n" == expected.err
        assert found["attention"].startswith("data:image/png")

    serve(ask, run)


def test_mistakes_are_errors_of_one_line(lit, trained, monkeypatch):
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


@contextmanager
def opened(browser, address):
    """Open the page on a phone, and check that its scripts do not fail or contact other hosts."""
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


DROP = """
const data = new DataTransfer();
data.items.add(new File(["no image"], "a.png", {type: "image/png"}));
document.dispatchEvent(new DragEvent("drop", {dataTransfer: data}));
"""


@pytest.mark.slow
def test_a_digit_is_chosen_dropped_or_drawn_in_the_browser(serve, trained, pictures, browser):
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
            assert page.evaluate(middle) == 0  # black, as in training
            box = page.locator("canvas").bounding_box()
            page.mouse.move(box["x"] + 140, box["y"] + 40)
            page.mouse.down()
            page.mouse.move(box["x"] + 140, box["y"] + 240, steps=5)
            page.mouse.up()
            assert page.evaluate(middle) == 255
            assert page.locator(".classes dt").first.inner_text() in "0123456789"
            assert page.get_by_label("Choose a picture").input_value() == ""
            page.evaluate(DROP)
            page.get_by_text("the picture cannot be read").wait_for()
            page.route("**/predict", lambda route: route.abort())
            page.evaluate(DROP)
            page.get_by_text("has stopped").wait_for()

    serve(ask, trained)


@pytest.mark.slow
def test_a_row_is_typed_in_the_browser(serve, regression, browser):
    run, expected = regression

    def ask(address):
        with opened(browser, address) as page:
            for name, value in zip(NAMES, NEW, strict=True):
                page.get_by_label(name).fill(str(value))
            page.keyboard.press("Enter")
            assert float(shown(page, "y")) == expected
            page.get_by_label(NAMES[1]).fill("")
            page.get_by_label(NAMES[1]).press_sequentially("many")
            assert page.locator("input:invalid").count() == 1  # the browser reports it and sends no request

    serve(ask, run)


@pytest.mark.slow
def test_a_sentence_is_typed_in_the_browser(serve, lit, tmp_path_factory, browser):
    run = shared(tmp_path_factory)
    expected = lit("translate", "--run", run, [HELLO]).out.strip()

    def ask(address):
        with opened(browser, address) as page:
            page.get_by_label("Text").fill(HELLO)
            page.keyboard.press("Enter")
            assert shown(page, "translation") == expected
            assert page.get_by_alt_text("attention").is_visible()

    serve(ask, run)
