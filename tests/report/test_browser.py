"""The page in headless Chromium: at a phone's and at a screen's width, with and without script."""

import os
import shutil

import pytest
from playwright.sync_api import expect, sync_playwright

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
WIDTHS = (400, 1400)

REQUIRED = os.environ.get("RBN_BROWSER") == "required"  # as continuous integration says

pytestmark = pytest.mark.skipif(CHROMIUM is None and not REQUIRED, reason="no chromium on PATH")


@pytest.fixture(scope="module")
def browser():
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # refused to root with it
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(report):
    return (report[0] / "index.html").as_uri()


@pytest.fixture
def open_page(browser, address):
    """Open the page; in the end, nothing may have been complained about or asked for."""
    pages, seen = [], []

    def open_it(width=1400, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        pages.append(page)
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("request", lambda request: seen.append(request.url))
        page.goto(address)
        return page

    yield open_it
    for page in pages:
        page.close()
    assert seen == [address] * len(pages)


def column(page, table, number):
    rows = page.locator("table").nth(table).locator("tbody tr")
    return [row.locator("th, td").nth(number).inner_text() for row in rows.all()]


@pytest.mark.parametrize("scripts", (True, False))
@pytest.mark.parametrize("width", WIDTHS)
def test_everything_is_seen(open_page, width, scripts):
    page = open_page(width, java_script_enabled=scripts)
    drawings = page.locator("figure svg")
    assert drawings.count() == 6
    for drawing in drawings.all():
        box = drawing.bounding_box()
        assert drawing.is_visible() and box["width"] > 200 and box["height"] > 50
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
    assert page.locator("table").count() == 3
    assert column(page, 2, 0) == ["these runs", "the paper’s tables", "a group of 3"]
    assert page.locator("dd", has_text="doppelklicken").count() == 2


@pytest.mark.parametrize("width", WIDTHS)
def test_only_tables_scroll(open_page, width):
    page = open_page(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator(".scroll").first
    scrolls = box.evaluate("it => it.scrollWidth > it.clientWidth")
    assert scrolls == (width == 400)
    first = box.locator("tbody th").first
    before = first.bounding_box()["x"]
    box.evaluate("it => it.scrollLeft = 100")
    assert first.bounding_box()["x"] == pytest.approx(before, abs=1)  # pixels of rounding


def test_sorting(open_page):
    page = open_page()
    heads = page.locator("table").first.locator("thead th")
    bleu = heads.nth(4)
    assert bleu.get_attribute("aria-sort") is None
    bleu.get_by_role("button", name="BLEU").click()
    # 9.7 before 34.0 is by number; the scores that are missing stay last in both directions.
    ascending = ["9.7", "34.0", "34.8", "35.3", "35.4", "35.5"]
    assert column(page, 0, 4) == [*ascending, "b", "b"]
    assert bleu.get_attribute("aria-sort") == "ascending"
    assert column(page, 0, 0)[6:] == ["post-rbn-lambda0.01-nu0.1-seed1", "pre_rbn"]  # stable
    bleu.get_by_role("button").press("Enter")
    assert column(page, 0, 4) == [*reversed(ascending), "b", "b"]
    assert bleu.get_attribute("aria-sort") == "descending"
    assert column(page, 0, 0)[6:] == ["post-rbn-lambda0.01-nu0.1-seed1", "pre_rbn"]
    heads.nth(1).get_by_role("button").click()
    assert column(page, 0, 1) == ["BN"] * 3 + ["LN"] * 2 + ["RBN"] * 3
    assert bleu.get_attribute("aria-sort") is None


def test_sorting_infinity_and_equal_values(open_page):
    page = open_page()
    table = page.locator("table").nth(2)
    button = table.locator("thead th").nth(2).get_by_role("button")
    button.click()
    assert column(page, 2, 2) == ["0.71", "0.83", "∞"]
    button.click()
    assert column(page, 2, 2) == ["∞", "0.83", "0.71"]
    seeds = page.locator("table").first.locator("thead th").nth(2).get_by_role("button")
    before = column(page, 0, 0)
    second = [before[1], before[3]]
    first = [run for run in before if run not in second]
    seeds.click()
    assert column(page, 0, 0) == first + second
    seeds.click()
    assert column(page, 0, 0) == second + first


@pytest.mark.parametrize("width", WIDTHS)
def test_a_figure_is_enlarged_and_closed(open_page, width):
    page = open_page(width)
    dialog = page.locator("dialog")
    assert not dialog.is_visible()
    for number in (0, 1):  # a wide one and a small one
        button = page.locator("figure .drawing button").nth(number)
        small = button.locator("svg").bounding_box()
        button.focus()
        page.keyboard.press("Enter")
        assert dialog.is_visible() and dialog.locator("svg").count() == 1
        label = button.locator("svg").get_attribute("aria-label")
        assert dialog.locator("svg").get_attribute("aria-label") == label
        large = dialog.locator("svg").bounding_box()
        assert large["width"] > 1.05 * small["width"]
        assert dialog.bounding_box()["width"] == width
        page.keyboard.press("Escape")
        assert not dialog.is_visible()
        expect(page.locator("svg")).to_have_count(6)  # the copy goes when the browser tells of it
        assert button.evaluate("it => it === document.activeElement")
    page.locator("figure .drawing button").first.click()
    assert dialog.is_visible()
    dialog.get_by_role("button", name="Close").click()
    assert not dialog.is_visible()


def test_drawings_share_no_id(open_page):
    page = open_page()
    ids = page.locator("figure svg").evaluate_all(
        "all => all.map(svg => [...svg.querySelectorAll('[id]')].map(it => it.id))"
    )
    assert all(ids) and len({it for own in ids for it in own}) == sum(map(len, ids))


def test_paper_and_dots_are_coloured(open_page):
    page = open_page()
    colour = "it => getComputedStyle(it).color"
    cells = page.locator("table").nth(1).locator("tbody tr").first.locator("td")
    ours, theirs = (cells.nth(number).evaluate(colour) for number in (0, 1))
    assert theirs == "rgb(118, 118, 118)" != ours
    dot = page.locator("tbody .dot").first
    assert dot.evaluate("it => getComputedStyle(it).backgroundColor") == "rgb(0, 114, 178)"
    assert dot.bounding_box()["width"] > 5


def test_print(open_page):
    page = open_page()
    page.locator("thead button").first.click()
    page.emulate_media(media="print")
    assert page.locator("thead button").first.is_visible()  # it holds the heading
    assert not page.locator(".files").first.is_visible()
    link = page.locator("nav a").first
    assert link.evaluate("it => getComputedStyle(it).textDecorationLine") == "none"
    figure = page.locator("figure").first
    assert figure.evaluate("it => getComputedStyle(it).breakInside") == "avoid"
    assert page.pdf(format="A4").startswith(b"%PDF")
