"""The page in a real browser: what can be asked of it, on which screens, by which hands."""

import os
import shutil

import pytest
from playwright.sync_api import sync_playwright

from rbn_fairseq.report.content import sections
from rbn_fairseq.report.export import write_report
from run_directories import run_maker

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
REQUIRED = os.environ.get("RBN_BROWSER") == "required"  # as continuous integration says
pytestmark = pytest.mark.skipif(CHROMIUM is None and not REQUIRED, reason="no chromium on PATH")

HOSTILE = "rbn`<\"'<script>alert(1)<:script>$".replace(":", "\\")
LOSSES = {  # by run and epoch: all different
    "ln1": (5.11, 4.12, 3.13), "ln2": (5.21, 4.22, 3.23), "bn1": (5.31, 4.02, 3.43),
    "bn2": (5.41, 4.07, 3.53), HOSTILE: (5.01, 3.92, 2.93),
}  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A report of five runs of three settings."""
    make = run_maker(tmp_path_factory.mktemp("runs"))
    runs = [
        make(name, {"l": "LN", "b": "BN", "r": "RBN"}[name[0]], seed=2 if name[2] == "2" else 1,
             nll=nll, tid=None if name[0] == "l" else (0.02, 0.1),
             changes={"task.data": "</script><b>"})
        for name, nll in LOSSES.items()
    ]  # fmt: skip
    page, *_ = write_report(tmp_path_factory.mktemp("out"), "Title", sections(runs))
    return page


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # refused to root with it
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, report):
    """Opens the page; in the end it has asked for nothing else, and complained of nothing."""
    seen, contexts = [], []

    def open_page(width=1280, scheme="light", **more):
        contexts.append(
            browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme, **more
            )
        )
        page = contexts[-1].new_page()
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("request", lambda request: seen.append(request.url))
        page.on("dialog", lambda dialog: seen.append(dialog.message))
        page.goto(report.as_uri())
        page.locator("canvas").first.wait_for()
        return page

    yield open_page
    assert {url for url in seen if not url.startswith("data:")} == {report.as_uri()}
    for context in contexts:
        context.close()


def hover(page, name, panel, part):
    """Point at a part of a panel's width; returns what the tooltip says."""
    page.locator(f"#figure-{name}").scroll_into_view_if_needed()  # which draws it
    chart = page.locator(f"#figure-{name} .u-over").nth(panel)
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + part * box["width"], box["y"] + box["height"] / 2)
    return page.locator(f"#figure-{name} .tip").nth(panel).inner_text()


def press(page, text, name="validation"):
    return page.locator(f"#figure-{name}").get_by_role("button", name=text, exact=True)


def test_values_of_all_runs_under_the_cursor(visit):
    page = visit()
    for number, part in enumerate((0.02, 0.5, 0.98)):
        tip = hover(page, "validation", 1, part)
        assert f"epoch {number + 1}" in tip
        assert all(f"{losses[number]:g}" in tip for losses in LOSSES.values())
        assert number != 1 or "4.045" in tip  # BN's mean
    assert "−0.2" in hover(page, "validation", 0, 0.98)  # 2.93 - 3.13
    page.mouse.move(0, 0)
    assert page.locator("#figure-validation .tip").nth(1).inner_text() == ""


def test_values_by_the_keyboard(visit):
    page = visit()
    chart = page.locator("#figure-validation .chart").nth(1)
    chart.focus()
    tip = page.locator("#figure-validation .tip").nth(1)
    for key, text in (
        ("ArrowRight", "epoch 1"),
        ("ArrowRight", "epoch 2"),
        ("ArrowLeft", "epoch 1"),
    ):
        page.keyboard.press(key)
        assert text in tip.inner_text()
    page.keyboard.press("Escape")
    assert tip.inner_text() == ""
    press(page, "BN").focus()
    page.keyboard.press("Enter")
    assert press(page, "BN").get_attribute("aria-pressed") == "false"


def test_a_legend_hides_and_isolates_in_all_figures(visit):
    page = visit()
    press(page, "BN").click()
    tip = hover(page, "validation", 1, 0.5)
    assert "BN" not in tip.replace("RBN", "") and "4.07" not in tip and "3.92" in tip
    assert "BN" not in hover(page, "figure1", 1, 0.5).replace("RBN", "")
    press(page, "BN").click()
    assert "4.07" in hover(page, "validation", 1, 0.5)
    press(page, "RBN").dblclick()
    tip = hover(page, "validation", 1, 0.5)
    assert (
        "3.92" in tip
        and "LN" not in tip
        and press(page, "LN").get_attribute("aria-pressed") == "false"
    )
    press(page, "show all").click()
    assert "LN" in hover(page, "validation", 1, 0.5) and not press(page, "show all").count()


def test_axes_are_chosen_for_all_figures(visit):
    page = visit()
    press(page, "update").click()
    assert "update 200" in hover(page, "validation", 1, 0.5)
    assert "update 300" in hover(page, "figure4", 0, 0.98)
    press(page, "minutes").click()
    assert "minutes of training 2" in hover(page, "validation", 1, 0.5)
    heading = page.locator("#figure-figure1 h4").nth(1)
    assert "minus" in heading.inner_text() and "−0.2" in hover(page, "figure1", 1, 0.98)
    press(page, "absolute", "figure1").click()
    assert "minus" not in heading.inner_text() and "2.93" in hover(page, "figure1", 1, 0.98)


def test_dark_mode(visit):
    colour = """() => {
      const canvas = document.querySelector("canvas").getContext("2d");
      const text = document.querySelector("#figure-figure4 svg text");
      const [red, green, blue] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g);
      return [+red, getComputedStyle(text).fill, canvas.canvas.toDataURL()];
    }"""
    light, dark = visit(), visit(scheme="dark")
    (white, ink, drawn), (black, chalk, other) = light.evaluate(colour), dark.evaluate(colour)
    assert white == 255 and black < 40 and ink != chalk and drawn != other
    light.emulate_media(color_scheme="dark")
    light.wait_for_function(f"document.querySelector('canvas').toDataURL() !== '{drawn}'")


def test_a_phone(visit):
    page = visit(width=360, has_touch=True)
    heights = range(0, page.evaluate("document.documentElement.scrollHeight"), 600)
    for height in heights:  # so that every figure is drawn
        page.evaluate(f"scrollTo({{top: {height}, behavior: 'instant'}})")
        page.wait_for_timeout(20)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    charts = [it.bounding_box() for it in page.locator("#figure-validation .chart").all()]
    assert charts[0]["x"] == charts[1]["x"] and charts[0]["width"] > 300  # one below the other
    table = page.locator("#table-summary + .scroll")
    assert table.evaluate("it => it.scrollWidth > it.clientWidth")


def test_print_has_the_pictures(visit):
    page = visit()
    page.emulate_media(media="print")
    figure = page.locator("#figure-validation")
    assert (
        figure.locator(".drawing svg").is_visible()
        and not figure.locator("canvas").first.is_visible()
    )
    page.evaluate("document.querySelectorAll('details').forEach((it) => (it.open = false))")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0


def test_without_scripts_there_are_pictures(browser, report):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(report.as_uri())
    assert page.locator("#figure-validation .drawing svg").is_visible()
    assert page.get_by_role("img", name="Validation loss").count() == 1
    page.context.close()


def test_the_result_stands_first_and_the_page_is_small(visit, report):
    page = visit()
    table = page.locator("#table-differences + .scroll")
    assert "BN\t+0.300\t3\t2" in table.inner_text()  # 3.43 - 3.13, and 3.53 - 3.23
    assert table.bounding_box()["y"] < 250
    assert page.locator("#figure-validation canvas").first.bounding_box()["y"] < 700
    assert HOSTILE in page.locator("#table-summary + .scroll").inner_text()
    assert report.stat().st_size < 2e6
