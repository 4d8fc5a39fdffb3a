"""The report in a real browser: on wide and narrow screens, light and dark, and on paper."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pfl_bench.report.leaderboard import standings, write_leaderboard
from pfl_bench.report.page import write_report
from pfl_bench.report.run_folder import read_run
from tests.pfl_bench.report.test_report import write_all

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
Select = pytest.importorskip("selenium.webdriver.support.select").Select
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DRIVER = shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="no chromium with chromedriver on the path (apt-get install chromium chromium-driver)",
)

# Texts that a reader sees: their places on the page, and whether they are cut.
TEXTS = """
const seen = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const node = walk.currentNode, parent = node.parentElement;
  if (!node.textContent.trim() || !parent.checkVisibility()) continue;
  if (parent.closest("option, pre, svg")) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  for (const box of range.getClientRects()) {
    const text = node.textContent.trim().slice(0, 40);
    if (box.width > 1) seen.push([text, box.left, box.top, box.right, box.bottom]);
  }
}
return seen;
"""
INK = """
const context = arguments[0].querySelector("canvas").getContext("2d");
const {width, height} = context.canvas;
return context.getImageData(0, 0, width, height).data.filter((v, i) => i % 4 === 3 && v > 0).length;
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine runs of five rows: seeds, central and private training, an unfinished run."""
    root = tmp_path_factory.mktemp("runs")
    return write_report(write_all(root), root / "report.html")


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The leaderboard of the same runs."""
    root = tmp_path_factory.mktemp("ranked")
    runs = [read_run(path) for path in write_all(root)]
    write_leaderboard(runs, standings(runs), root / "board.html")
    return root / "board.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--hide-scrollbars")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def show(browser: Any, page: Path, width: int = 1400, theme: str = "light") -> None:
    """Open the page as on a screen of this width."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(page.as_uri())


def find(browser: Any, css: str) -> list[Any]:
    found: list[Any] = browser.find_elements("css selector", css)
    return found


def hover(browser: Any, css: str) -> str:
    """Move the pointer to the middle of a chart; what is said there."""
    (chart,) = find(browser, css)[:1]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    webdriver.ActionChains(browser).move_to_element(chart).perform()
    return str(find(browser, ".tip")[0].text)


def columns(browser: Any, table: int, place: int) -> list[str]:
    script = (
        "return [...document.querySelectorAll('table')[arguments[0]].tBodies[0].rows]"
        ".filter(row => row.checkVisibility()).map(row => row.cells[arguments[1]].textContent)"
    )
    shown: list[str] = browser.execute_script(script, table, place)
    return shown


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_overlaps_is_cut_or_scrolls_sideways(
    browser: Any, page: Path, width: int, theme: str
) -> None:
    show(browser, page, width, theme)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    texts = browser.execute_script(TEXTS)
    assert len(texts) > 200
    outside = [text for text in texts if text[1] < 0 or text[3] > width]
    assert not outside
    # Sorted by their tops, only near ones can overlap; a shared edge of a point is none.
    texts.sort(key=lambda text: text[2])
    for place, (one, left, top, right, bottom) in enumerate(texts):
        for other, x, y, end, lower in texts[place + 1 : place + 60]:
            across = min(right, end) - max(left, x)
            down = min(bottom, lower) - max(top, y)
            # Lines of 1.2 ems touch the descenders of the line above.
            assert across < 2 or down < 0.35 * min(bottom - top, lower - y), (one, other)


def test_the_page_asks_no_network(browser: Any, page: Path) -> None:
    browser.get_log("performance")
    show(browser, page)
    messages = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    urls = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert urls == [page.as_uri()]


def test_a_chart_says_the_values_under_the_pointer(browser: Any, page: Path) -> None:
    show(browser, page)
    text = hover(browser, ".live .u-over")
    assert text.startswith("round ")
    assert "demo-federated" in text
    # The mean of three seeds, and their range.
    assert " to " in text
    colours = browser.execute_script(
        "return [...document.querySelectorAll('.tip i')].map(one => one.style.background)"
    )
    assert len(set(colours)) == len(colours) > 1


def test_a_row_of_the_legend_is_switched_off_in_all_charts(browser: Any, page: Path) -> None:
    show(browser, page)
    charts = find(browser, ".live")[:2]
    before = [browser.execute_script(INK, chart) for chart in charts]
    (button,) = [one for one in find(browser, ".legend button") if "demo-federated" in one.text]
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    browser.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 50))")
    after = [browser.execute_script(INK, chart) for chart in charts]
    assert all(less < more for less, more in zip(after, before, strict=True))
    assert "demo-federated" not in hover(browser, ".live .u-over")


def test_the_axes_are_chosen(browser: Any, page: Path) -> None:
    show(browser, page)
    y, x = find(browser, "#explorer select")
    assert hover(browser, "#explorer .u-over").startswith("round ")
    Select(x).select_by_visible_text("epsilon (simulated)")
    Select(y).select_by_visible_text("val/loss")
    text = hover(browser, "#explorer .u-over")
    assert text.startswith("epsilon (simulated) ")
    assert "demo-private-federated" in text
    assert "demo-federated" not in text.split("\n")
    linear = browser.execute_script(INK, find(browser, "#explorer")[0])
    find(browser, "#explorer input")[0].click()
    assert browser.execute_script(INK, find(browser, "#explorer")[0]) != linear


def test_tables_are_sorted_and_filtered(browser: Any, page: Path) -> None:
    show(browser, page)
    heading = next(one for one in find(browser, "th") if one.text == "measured")
    place = heading.get_property("cellIndex")
    heading.find_element("css selector", "button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    numbers = [text[:6] for text in columns(browser, 0, place)]
    known = [float(text) for text in numbers if text != "-"]
    assert known == sorted(known)
    assert numbers[-1] == "-"
    runs = len(find(browser, "table")) - 1
    assert len(columns(browser, runs, 0)) == 9
    find(browser, "input[type=search]")[-1].send_keys("private")
    assert columns(browser, runs, 0) == ["demo-private-federated"] * 3


@pytest.mark.parametrize("width", [390, 1400])
def test_the_leaderboard_is_sorted_and_fits(browser: Any, board: Path, width: int) -> None:
    browser.get_log("browser")  # of the tests before
    show(browser, board, width)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    names = ["demo-central", "demo-federated", "demo-central-dp", "demo-private-federated"]
    shown = zip(columns(browser, 0, 0), names, strict=True)
    assert all(text.startswith(name) for text, name in shown)
    if width == 1400:
        next(one for one in find(browser, "th button") if one.text == "epsilon (actual)").click()
        actual = [float(text.partition("delta")[0]) for text in columns(browser, 0, 5)[:2]]
        assert actual == sorted(actual)
        assert columns(browser, 0, 5)[2:] == ["-", "-"]


def test_paper_has_the_pictures_and_no_controls(browser: Any, page: Path) -> None:
    show(browser, page)
    printed = browser.execute_cdp_cmd("Page.printToPDF", {})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert not any(one.is_displayed() for one in find(browser, ".controls, .explorer, .live"))
        assert all(one.is_displayed() for one in find(browser, "figure svg[role=img]"))
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_without_script_all_pictures_are_there(browser: Any, page: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(browser, page)
        figures = find(browser, "figure svg[role=img]")
        assert len(figures) > 10
        assert all(one.is_displayed() for one in figures)
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
