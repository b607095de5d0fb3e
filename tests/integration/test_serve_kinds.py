"""Tests `export` and `serve` with the template's tasks."""

import pytest
import torch
import yaml
from onnxruntime import InferenceSession

from lit_engine import RunDir, load_model
from lit_project.data.digits import Digits
from serving import opened, post, serving, shown, table_of
from translation_run import HELLO, shared


def test_serve_matches_predict_for_an_image(lit, monkeypatch, image_folder):
    run = lit("fit -c configs/image_folder.yaml -c configs/overlays/debug.yaml --run_name=tiny").run
    file = next(image_folder.rglob("*.png"))
    assert lit(f"predict --run {run} --images {file}").status == 0
    (expected,) = table_of(run, f"images_{file.stem}")

    def ask(address):
        status, (found,) = post(address, file.read_bytes())
        assert (status, found["class_name"]) == (200, expected["class_name"])
        assert found["probability"] == pytest.approx(float(expected["probability"]), abs=1e-5)

    serving(lit, monkeypatch)(ask, run)


def test_serve_matches_translate_for_a_sentence(lit, monkeypatch, tmp_path_factory):
    run = shared(tmp_path_factory)
    words = "The zorglub is small."
    expected = lit("translate", "--run", run, [words], "--n_best=2")
    score, text = expected.out.splitlines()[0].split("\t")

    def ask(address):
        status, (found,) = post(address, words.encode())
        assert (status, found["translation"], f"{found['score']:.4f}") == (200, text, score)
        assert f"note: {found['note']}\n" == expected.err
        assert found["attention"].startswith("data:image/png")

    serving(lit, monkeypatch)(ask, run)


@pytest.mark.slow
def test_browser_page_translates_a_typed_sentence(lit, monkeypatch, tmp_path_factory, browser):
    run = shared(tmp_path_factory)
    expected = lit("translate", "--run", run, [HELLO]).out.strip()

    def ask(address):
        with opened(browser, address) as page:
            page.get_by_label("Text").fill(HELLO)
            page.keyboard.press("Enter")
            assert shown(page, "translation") == expected
            assert page.get_by_alt_text("attention").is_visible()

    serving(lit, monkeypatch)(ask, run)


def test_exported_file_includes_test_time_augmentation(lit, trained):
    config = yaml.safe_load((trained / "config.yaml").read_text())
    config["model"]["init_args"] |= {"test_time_flips": ["horizontal"], "test_time_shift": 1}
    (trained / "config.yaml").write_text(yaml.safe_dump(config))
    data = Digits()
    data.setup("test")
    images = data.splits["test"][0][:50].float().numpy() / 255
    for command in ("predict", "export --format onnx"):
        assert lit(f"{command} {trained}").status == 0
    expected = [float(row["probability"]) for row in table_of(trained, "test")[:50]]
    net = InferenceSession(str(trained / "export" / "model.onnx"))
    assert net.run(None, {"images": images})[0].max(axis=1) == pytest.approx(expected, abs=1e-5)
    plain = load_model(RunDir(trained))(torch.from_numpy(images)).softmax(dim=1).amax(dim=1).detach().numpy()
    assert abs(plain - expected).max() > 0.01
