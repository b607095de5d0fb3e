"""Tests in a browser that pages of runs, comparisons and sweeps are legible in light and dark, on desktop and phone."""

import shutil
from pathlib import Path

import pytest
import yaml

from lit_project.__main__ import main
from tiny import TINY

ROOT = Path(__file__).parents[2]
# Returns text whose contrast with the background is below the WCAG AA limit for text of any size.
PALE = """() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => parts(colour).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if ((parts(colour)[3] ?? 1) > 0) return colour;
    }
    throw Error("no background");
  };
  const own = node => [...node.childNodes].some(child => child.nodeType == 3 && child.textContent.trim());
  return [...document.body.querySelectorAll("*:not(script)")].filter(own).filter(node => {
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
  }).map(node => node.textContent);
}"""

# Returns visible text in SVG charts that overlaps other text or extends outside its chart.
OVERLAPS = """() => [...document.querySelectorAll("svg.plot")].filter(one => one.checkVisibility()).flatMap(svg => {
  const whole = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll("text")];
  const boxes = texts.map(text => text.getBoundingClientRect());
  const wrong = boxes.map((a, n) => a.left < whole.left - 1 || a.right > whole.right + 1 ||
    a.bottom > whole.bottom + 1 || boxes.slice(n + 1).some(b =>
      Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
      Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3));
  return texts.filter((text, n) => wrong[n]).map(text => text.textContent);
})"""

NAMES = ("digits", "regression", "translation", "comparison", "sweep")
QUICK = {
    "digits": "quickstart --trainer.max_epochs=4",
    "regression": "regression_quickstart --trainer.max_epochs=3",
    "translation": "translation_quickstart --trainer.max_epochs=1 --data.size=300 --data.val_size=20 "
    "--data.test_size=20 --model.net.hidden_size=8",
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return the pages of real runs with real figures, by name."""
    folder = tmp_path_factory.mktemp("pages")
    sweep = yaml.safe_load((ROOT / "configs" / "sweeps" / "quickstart_cnn.yaml").read_text())
    del sweep["parameters"]["model.net.dropout"]  # two trials are enough
    sweep["command"] = ["lit-project", "fit", "-c", "configs/quickstart.yaml", "--config", "${args_json_file}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        shutil.copytree(ROOT / "configs", "configs")
        Path("sweep.yaml").write_text(yaml.safe_dump(sweep))
        for name, options in QUICK.items():
            config, *more = options.split()
            assert main(["fit", "-c", f"configs/{config}.yaml", f"--run_name={name}", "--runs_dir=all", *more]) == 0
        assert main(f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=3 --runs_dir=all".split()) == 0
        assert main(["validate", "--run", "all/quickstart/digits"]) == 0
        assert main(["compare", "all/quickstart"]) == 0
        assert main(["sweep", "sweep.yaml", "--trainer.max_epochs=1"]) == 0
    runs = {name: folder / "all" / options.split()[0] / name / "index.html" for name, options in QUICK.items()}
    others = {"comparison": folder / "all/quickstart/compare.html", "sweep": folder / "sweeps/sweep/index.html"}
    return {**runs, **others}


@pytest.fixture
def opened(pages, browser):
    """Return a function that opens a page and checks that it requests nothing and that its script does not fail."""
    contexts = []

    def open(name, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page, address = context.new_page(), pages[name].as_uri()
        wrong = []
        page.on("request", lambda request: wrong.append(request.url))
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(address)
        assert [one for one in wrong if one != address and not one.startswith("data:image/png;base64,")] == []
        return page

    yield open
    for context in contexts:
        context.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_page_is_legible_on_desktop_and_phone(opened, name, scheme):
    for width in (1280, 390):
        page = opened(name, width, scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(PALE) == []
        images = page.locator("img").all()
        assert images or page.locator("svg.plot").count()
        assert page.evaluate(OVERLAPS) == []
        assert all(image.get_attribute("alt") and image.evaluate("node => node.naturalWidth > 100") for image in images)
        # Labels of 10 pt at 120 dpi must be at least 9 pixels high on a desktop. On a phone, figures must fit.
        small = "nodes => nodes.filter(node => node.clientWidth < .54 * node.naturalWidth).map(node => node.alt)"
        cut = small.replace("< .54 * node.naturalWidth", "> node.closest('figure').clientWidth")
        assert page.locator("figure img").evaluate_all(small if width > 400 else cut) == []
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}[scheme]


@pytest.mark.slow
def test_clicking_a_column_header_sorts_the_class_table(opened):
    page = opened("digits")
    table = page.locator("table", has=page.get_by_role("button", name="F1")).first
    column = table.locator("tbody td:nth-child(4)")
    for order in (sorted, lambda values: sorted(values, reverse=True)):
        table.get_by_role("button", name="F1").click()
        values = [float(text) for text in column.all_inner_texts()]
        assert values == order(values)
        assert len(values) == 10


@pytest.mark.slow
def test_runs_link_to_their_pages_and_the_config_can_be_expanded(opened):
    for name in ("sweep", "comparison"):
        page = opened(name)
        page.locator("td a").first.click()
        assert page.locator("h1").inner_text()
        assert page.url.endswith("/index.html")
    assert not page.get_by_text("seed_everything: 42").is_visible()
    page.get_by_text("The complete config", exact=True).click()
    assert page.get_by_text("seed_everything: 42").is_visible()


@pytest.mark.slow
@pytest.mark.parametrize("scripts", [True, False])
def test_curves_are_selected_hidden_and_highlighted_with_and_without_javascript(pages, browser, scripts):
    context = browser.new_context(viewport={"width": 390, "height": 800}, java_script_enabled=scripts)
    page = context.new_page()
    page.goto(pages["comparison"].as_uri())
    shown = page.locator("svg.plot:visible")
    assert "by epoch" in shown.first.get_attribute("aria-label")
    page.get_by_role("radio", name="minutes").check()
    assert "by minutes" in shown.first.get_attribute("aria-label")
    before = shown.count()
    page.get_by_role("checkbox", name="train/loss", exact=True).check()
    assert shown.count() == before + 1
    second = shown.first.locator("g.s1")
    page.locator("#show1").uncheck()
    assert not second.is_visible()
    page.locator("#show1").check()
    page.mouse.move(0, 0)  # otherwise, the pointer would highlight the checkbox's curve
    page.locator("tr.s0 a").focus()
    opacity = "node => getComputedStyle(node).opacity"
    assert [second.evaluate(opacity), shown.first.locator("g.s0").evaluate(opacity)] == ["0.15", "1"]
    second.focus()
    assert shown.first.locator("g.s0").evaluate(opacity) == "0.15"
    table = page.locator("div.table").first
    table.evaluate("node => node.scrollLeft = 999")
    assert table.locator("tbody td").first.bounding_box()["x"] >= 0
    context.close()


@pytest.mark.slow
def test_pages_are_smaller_than_a_megabyte(pages):
    assert {name: file.stat().st_size for name, file in pages.items() if file.stat().st_size > 1e6} == {}
