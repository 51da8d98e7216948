"""The pages in a real browser: filters filter, curves are drawn, nothing is said in the console, no request leaves the page."""

import json
import re
import shutil

import pytest

from reports.compare import compare_paths
from reports.judge import judge
from reports.site import write
from reports.verdict import Declared
from tests.matrix.tree import CELLS, make_tree
from tests.reports import browser
from tests.reports.synthetic import CELL, SCIENCE, jsonl, rewards, rule, run_dir

FOUND = browser.find()
pytestmark = [pytest.mark.skipif(FOUND is None, reason=browser.MISSING), pytest.mark.timeout(120)]
BAD = "qwen3-4b.cpu.non-colocate"
QUARANTINE = f"""quarantined:
  - {{cell: {BAD}, owner: ada, reason: flaky host, issue: I-1, expires: 2099-01-01}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A site of two declared cells (one failed and quarantined) and one that is not declared, and a comparison of three runs."""
    where = tmp_path_factory.mktemp("pages")
    tree = make_tree(where)
    (tree / "quarantine.yaml").write_text(QUARANTINE)
    base = [run_dir(where / "base" / f"seed-{seed}", seed) for seed in range(5)]
    nan = rewards(100)
    nan[40] = float("nan")
    for key, values in ((CELL, rewards(100)), (BAD, rewards(100, plateau=0.8)), ("other.cpu.colocate", nan)):
        run = run_dir(where / "results" / key / "seed-100", 100, values)
        declared = Declared(cell=key, recipe="spell-backward", science_hash=SCIENCE)
        judge([run], base, rule(), declared).write(where / "results" / key / "verdicts")
    write(where / "results", where / "site", matrix_root=tree)
    shutil.copytree(where / "site", where / "served")
    compare_paths([base[0], base[1], jsonl(where / "c.jsonl", rewards(3))], where / "compare", png=False)
    assert (tree / CELLS).is_file()
    return where


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=FOUND, args=["--no-sandbox"])
        yield opened
        opened.close()


class Watched:
    """A page that remembers what it said and asked for."""

    def __init__(self, chromium, file, *, width=1280, dark=False, scripts=True):
        self.context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", java_script_enabled=scripts)
        self.page = self.context.new_page()
        self.said, self.asked = [], []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("requestfailed", lambda request: self.said.append(f"failed: {request.url}"))
        self.page.goto(file.as_uri())

    def __enter__(self):
        return self.page

    def __exit__(self, kind, error, trace):
        self.context.close()
        if kind is None:
            assert self.said == []
            assert [url for url in self.asked if not url.startswith(("file:", "data:", "blob:"))] == []


def shown(page):
    """Ids of the cells that are listed."""
    return page.eval_on_selector_all("tr[data-row]", "rows => rows.filter(r => r.offsetParent !== null).map(r => r.querySelector('th a').textContent)")


def pages(place):
    return {
        "matrix": place / "site/index.html",
        "cell": place / f"site/cells/{BAD}.html",
        "nan": place / "site/cells/other.cpu.colocate.html",
        "compare": place / "compare/index.html",
    }


@pytest.mark.parametrize("name", ["matrix", "cell", "nan", "compare"])
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_pages_open_quietly_ask_for_nothing_and_fit_the_screen(place, chromium, name, width, dark):
    with Watched(chromium, pages(place)[name], width=width, dark=dark) as page:
        page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        ink, paper = page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
        lightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, paper)]
        assert (lightness[0] > lightness[1]) is dark


def test_filters_work_by_tier_hardware_family_state_owner_and_words(place, chromium):
    from playwright.sync_api import expect

    with Watched(chromium, pages(place)["matrix"]) as page:
        every = shown(page)
        assert sorted(every) == sorted([CELL, BAD, "other.cpu.colocate"])
        expected = {
            "tier": ("smoke", {CELL, BAD}),
            "hardware": ("cpu", {CELL, BAD}),
            "family": ("qwen3", {CELL, BAD}),
            "state": ("quarantined", {BAD}),
            "owner": ("ada", {BAD}),
        }
        for name, (value, cells) in expected.items():
            page.select_option(f"select[name={name}]", value)
            assert set(shown(page)) == cells, name
            assert page.text_content("output[name=shown]") == f"{len(cells)} of 3 cells"
            assert f"{name}={value}" in page.url
            page.click("button[type=reset]")
            expect(page.locator("output[name=shown]")).to_have_text("3 of 3 cells")
        page.fill("input[name=text]", "non-colocate qwen3")
        assert shown(page) == [BAD]
        page.fill("input[name=text]", "no such words")
        assert shown(page) == []
        assert page.is_visible(".nothing-shown")


def test_a_filter_also_narrows_the_grid_and_lives_in_the_address(place, chromium):
    address = pages(place)["matrix"]
    with Watched(chromium, address) as page:
        assert page.locator("td[data-column] a:visible").count() == 2
        page.click("button[data-pick=quarantined]")
        assert page.get_attribute("button[data-pick=quarantined]", "aria-pressed") == "true"
        assert page.locator("td[data-column] a:visible").count() == 1
        assert page.locator("thead th.mode:visible").count() == 1
        page.goto("about:blank")
        page.goto(f"{address.as_uri()}#state=quarantined")
        assert shown(page) == [BAD]


def test_curves_are_drawn_and_redrawn(place, chromium):
    from playwright.sync_api import expect

    with Watched(chromium, pages(place)["cell"]) as page:
        page.wait_for_selector("[data-figure=f0][data-drawn='step/linear/0'] canvas")
        assert colours(page) > 3
        for control, value, drawn in (
            ("scale", "log", "step/log/0"),
            ("axis", "time", "time/log/0"),
            ("axis", "step", "step/log/0"),
            ("scale", "own", "step/linear/0"),
        ):
            page.select_option(f"form.tools [name={control}]", value)
            page.wait_for_selector(f"[data-figure=f0][data-drawn='{drawn}']")
        page.locator("form.tools input[name=smooth]").evaluate("node => { node.value = 0.9; node.dispatchEvent(new Event('input', {bubbles: true})); }")
        page.wait_for_selector("[data-figure=f0][data-drawn='step/linear/0.9']")
        assert page.text_content("output[name=smoothed]") == "0.90"
        for figure in page.query_selector_all("[data-figure]"):
            figure.scroll_into_view_if_needed()
        expect(page.locator("[data-drawn] canvas")).to_have_count(page.locator("[data-figure]").count())


def colours(page):
    """How many colours the first curve's canvas holds."""
    return page.evaluate(
        "() => { const c = document.querySelector('[data-figure=f0] canvas'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " const s = new Set(); for (let i = 0; i < d.length; i += 4) s.add(d[i] + ',' + d[i+1] + ',' + d[i+2]); return s.size; }"
    )


def test_values_are_read_with_mouse_and_keyboard(place, chromium):
    with Watched(chromium, pages(place)["cell"]) as page:
        plot = page.locator("[data-figure=f0] .plot")
        page.wait_for_selector("[data-figure=f0] canvas")
        data = json.loads(page.text_content("#curves"))["figures"][0]["series"][-1]
        plot.focus()
        page.keyboard.press("ArrowRight")
        tip = page.locator("[data-figure=f0] .tip")
        assert tip.inner_text().splitlines()[0] == "step 0"
        page.keyboard.press("End")
        lines = tip.inner_text().splitlines()
        assert lines[0] == "step 99"
        assert f"seed-100 {float(format(data['y'][99], '.4g')):g}" in [" ".join(line.split()) for line in lines]
        page.keyboard.press("Escape")
        assert not tip.is_visible()
        box = plot.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert re.match(r"step \d+", tip.inner_text())


def test_a_nan_is_marked_and_read_as_such(place, chromium):
    with Watched(chromium, pages(place)["nan"]) as page:
        page.wait_for_selector("[data-figure=f0] canvas")
        page.locator("[data-figure=f0] .plot").focus()
        for _ in range(41):
            page.keyboard.press("ArrowRight")
        text = page.locator("[data-figure=f0] .tip").inner_text()
        assert text.splitlines()[0] == "step 40"
        assert "not a number" in text


def test_every_control_and_link_is_reached_by_the_tab_key(place, chromium):
    for name in ("matrix", "cell", "compare"):
        with Watched(chromium, pages(place)[name]) as page:
            nodes = "[...document.querySelectorAll('a[href], button, select, input, summary, [tabindex]')]"
            wanted = page.evaluate(f"{nodes}.filter(n => n.getClientRects().length && n.tabIndex >= 0).length")
            reached = 0
            for _ in range(wanted + 5):
                page.keyboard.press("Tab")
                if page.evaluate("document.activeElement === document.body || document.activeElement.dataset.tabbed === 'yes'"):
                    break
                page.evaluate("document.activeElement.dataset.tabbed = 'yes'")
                reached += 1
            assert reached == wanted, name


def test_without_scripts_the_tables_and_reasons_are_there(place, chromium):
    with Watched(chromium, pages(place)["cell"], scripts=False) as page:
        assert page.is_visible("text=Difference to the baseline")
        assert page.is_visible("svg.forest.wide")
        assert page.is_visible("noscript >> text=Curves need a script") or "Curves need a script" in page.content()


def test_a_site_served_over_http_works_and_asks_only_its_own_server(place, chromium):
    import functools
    import http.server
    import threading

    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(place / "served"))
    handler.log_message = lambda *words: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        context = chromium.new_context()
        page, asked, said = context.new_page(), [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.goto(f"http://127.0.0.1:{server.server_port}/cells/{CELL}.html")
        page.wait_for_selector("[data-figure=f0] canvas")
        context.close()
        server.shutdown()
        assert said == []
        assert all(url.startswith((f"http://127.0.0.1:{server.server_port}/", "data:")) for url in asked)
