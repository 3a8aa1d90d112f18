"""Pictures that step hold what stays once, draw and say every step, and work by keyboard and without a script."""

import itertools
import json
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from book import figures
from book.steppers import View, embed, lives, simplified

NASTY = ["a < b & \"c\" 'd'", "</script><script>window.hit = 1</script>", "<!--<script>", "&lt;b&gt; \u2028 \\"]


class Parts(HTMLParser):
    """The elements of a picture and the data in it."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.data, self._inside = [], "", False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag == "script"

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.data += data


def data_of(markup):
    return json.loads(Parts(markup).data)


def shown(rows, step):
    """The members that live at a step, as ``stepper.js`` reads them."""
    found = []
    for first, last, *cells in rows:
        if first <= step < last:
            found.append(tuple(c[step - first] if isinstance(c, list) else c for c in cells))
    return found


members = st.lists(st.tuples(*[st.integers(0, 3)] * 4), max_size=4, unique=True)


@given(st.dictionaries(st.integers(0, 6), members, max_size=6))
def test_lives_hold_every_step(steps):
    rows = lives(steps)
    for step in range(8):
        assert sorted(shown(rows, step)) == sorted(steps.get(step, []))


def test_what_stays_is_written_once_and_what_moves_is_a_list():
    steps = {k: [(0, 1, 2, 3), (4, 5, k, k + 1)] for k in range(5)}
    assert sorted(lives(steps)) == [[0, 5, 0, 1, 2, 3], [0, 5, 4, 5, [0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]]


def test_the_legend_keeps_its_order_while_its_words_change():
    view = View()
    for step in range(3):
        for name in ("changes {}", "stays", "changes too {}") if step < 2 else ("new", "changes {}"):
            view.explain(step, name.format(step), "line", 0, "", "", 1.0)
    legend = view.data()["legend"]
    assert [[label for label, *_ in shown(legend, step)] for step in range(3)] == [
        ["changes 0", "stays", "changes too 0"],
        ["changes 1", "stays", "changes too 1"],
        ["new", "changes 2"],
    ]


@given(st.integers(2, 60), st.integers(0, 1000))
def test_a_simplified_curve_stays_within_the_tolerance(count, seed):
    rng = np.random.default_rng(seed)
    points = np.stack([np.linspace(0, 1, count), rng.normal(size=count).cumsum() / 10], 1)
    kept = simplified(points, 0.05)
    assert kept[0] == 0 and kept[-1] == count - 1
    for first, last in itertools.pairwise(kept):
        chord = points[last] - points[first]
        inner = points[first : last + 1] - points[first]
        away = np.abs(inner[:, 0] * chord[1] - inner[:, 1] * chord[0]) / np.hypot(*chord)
        assert away.max() <= 0.05 + 1e-9


@pytest.mark.parametrize("text", NASTY)
def test_no_text_ends_the_data_early(text):
    markup = embed({"labels": [text]}, "<p>still</p>", text).data
    assert data_of(markup) == {"labels": [text]}
    assert [tag for tag, _ in Parts(markup).tags if tag == "script"] == ["script"]


def frame(step):
    figure, axes = figures.subplots(1, 2, figsize=(8, 3), width_ratios=(3, 1))
    left, right = axes[0]
    x = np.linspace(0, 1, 201)
    left.plot(x, np.sin(6 * x), color="black", label="fixed")
    left.plot(x, np.sin(6 * x + step), "--", label="moving")
    left.fill_between(x, -step - 1, 1, alpha=0.2, color=figures.COLORS[2], label="band")
    left.axvline(0.5, color=figures.COLORS[1])
    left.axhline(step / 2, linestyle=":", color=figures.COLORS[0])
    left.hlines([0.5], [0.1], [0.2], color=figures.COLORS[3])
    left.bar([0.1, 0.3], [step + 1, 2], 0.1, color=figures.COLORS[4], alpha=0.5)
    left.plot([0.2, 0.8][: step + 1], [1, 2][: step + 1], "^", fillstyle="none")
    left.text(0.4, 0.6, f"word {step}")
    left.set(xlabel="x", ylabel="y", ylim=(-5, 5))
    left.legend()
    right.imshow([[0.0, 1.0], [2.0, step]], origin="lower", extent=(0, 1, 0, 1), cmap="cividis", vmin=0, vmax=4)
    right.set(title=f"step {step}", xticks=[0, 1], xticklabels=["a", "a very long name of a tick"])
    return figure


@pytest.fixture(scope="module")
def stepping():
    return figures.slider(
        [frame(k) for k in range(4)], [f"label {k}" for k in range(4)], [f"alt {k}" for k in range(4)]
    )


def test_figures_are_read_into_small_data(stepping):
    data = data_of(stepping.data)
    left, right = data["views"]
    assert (data["name"], data["start"], data["labels"][3], data["alts"][2]) == ("Step", 0, "label 3", "alt 2")
    assert (left["w"], right["w"]) == (0.75, 0.25)
    assert (left["xl"], left["yl"], left["y"]) == ("x", "y", [-5, 5])
    assert right["title"] == [f"step {k}" for k in range(4)]
    assert right["xt"] == [[0, "a"], [1, "a very …tick"]]
    groups = {}
    for group in left["marks"]:
        groups.setdefault(group["m"], []).append(group)
    fixed = next(g for g in groups["line"] if g["c"] == 6)
    assert [row[:2] for row in fixed["rows"]] == [[0, 4]]  # once for all steps
    assert len(fixed["rows"][0][2]) < 150  # of 402 coordinates
    assert sorted((g["dir"], g["c"]) for g in groups["rule"]) == [("h", 0), ("v", 1)]
    (dots,) = groups["dot"]
    assert dots["hollow"] and dots["s"] == "^" and [row[0] for row in dots["rows"]] == [0, 1]
    (area,) = groups["area"]
    assert (area["c"], area["o"]) == (2, 0.2)
    (field,) = right["marks"]
    assert [shown(field["rows"], k)[0][-1] for k in range(4)] == ["0GW0", "0GWG", "0GWW", "0GWl"]
    assert [row[2:6] for row in left["legend"]] == [
        ["fixed", "line", 6, ""],
        ["moving", "line", 0, "--"],
        ["band", "box", 2, ""],
    ]


def test_without_a_script_the_first_frame_is_a_figure(stepping):
    tags = Parts(stepping.data).tags
    assert [tag for tag, _ in tags] == ["figure", "div", "figure", "img", "noscript", "script"]
    image = tags[3][1]
    assert image["alt"] == "alt 0" and image["src"].startswith("data:image/svg+xml;base64,")
    assert tags[-1][1]["type"] == "application/json"
    assert "Step 1 of 4: label 0." in stepping.data


def state(page, index=0):
    figure = page.locator("figure.cbo-stepper").nth(index)
    place = figure.locator("input")
    text = place.get_attribute("aria-valuetext")
    assert figure.locator(".cbo-label").inner_text() == text
    return int(place.input_value()), text, figure.locator("[role=img]").get_attribute("aria-label")


@pytest.mark.browser
def test_every_step_is_drawn_and_said(open_page, stepping):
    page = open_page(stepping.data)
    pictures = set()
    for k in range(4):
        assert state(page) == (k, f"label {k}", f"alt {k}")
        drawn = page.locator(".cbo-picture").inner_html()
        assert "NaN" not in drawn and "undefined" not in drawn and f"word {k}" in drawn
        pictures.add(drawn)
        page.locator("input").press("ArrowRight")
    assert len(pictures) == 4
    assert page.locator("figure.cbo-stepper img").count() == 0
    for key, expected in (("Home", 0), ("End", 3), ("ArrowLeft", 2)):
        page.locator("input").press(key)
        assert state(page)[0] == expected
    back, forth = (page.locator("button").nth(k) for k in (0, 2))
    forth.click()
    assert state(page)[0] == 3 and forth.is_disabled()
    assert page.locator(".cbo-label").get_attribute("aria-live") == "polite"
    back.click()
    assert state(page)[0] == 2 and page.locator(".cbo-count").inner_text() == "3/4"


@pytest.mark.browser
def test_it_plays_to_the_end_and_pauses(open_page, stepping):
    page = open_page(stepping.data, clock=True)  # time passes only where the test says so
    place, play = page.locator("input"), page.locator("button").nth(1)
    place.press(" ")  # Space plays
    for k in range(4):
        assert (state(page)[0], play.get_attribute("aria-label")) == (k, "Pause")
        page.clock.run_for(data_of(stepping.data)["ms"])
    assert (state(page)[0], play.get_attribute("aria-label"), play.get_attribute("title")) == (3, "Play", "Play")
    play.click()  # from the beginning
    page.clock.run_for(data_of(stepping.data)["ms"])
    play.click()
    page.clock.run_for(60000)
    assert (state(page)[0], play.get_attribute("aria-label")) == (1, "Play")


@pytest.mark.browser
def test_it_follows_the_theme_and_the_width(open_page, stepping):
    page = open_page(stepping.data)
    line = page.locator(".cbo-picture path[style*='cbo-6']").first
    light = line.evaluate("e => getComputedStyle(e).stroke")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert line.evaluate("e => getComputedStyle(e).stroke") != light
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function("document.querySelector('.cbo-view').offsetWidth < 390")
    widths = page.locator(".cbo-view").evaluate_all("all => all.map((e) => e.offsetWidth)")
    assert len(set(widths)) == 1  # below each other
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator(".cbo-picture text").evaluate_all("a => Math.min(...a.map((e) => e.getBBox().height))") >= 9


@pytest.mark.browser
def test_print_hides_the_controls_and_is_light(open_page, stepping):
    page = open_page(stepping.data)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.emulate_media(media="print")
    assert not page.locator(".cbo-controls").is_visible() and page.locator(".cbo-picture svg").first.is_visible()
    assert page.locator(".cbo-picture path[style*='cbo-6']").first.evaluate("e => getComputedStyle(e).stroke") == (
        "rgb(31, 41, 51)"
    )


@pytest.mark.browser
def test_the_still_figure_shows_without_a_script_and_with_broken_data(open_page, stepping):
    page = open_page(stepping.data, java_script_enabled=False)
    assert page.locator("figure.cbo-stepper img").is_visible() and page.locator("button").count() == 0
    page = open_page(stepping.data.replace('"views":[', '"views":[null,'), complain=False)
    assert page.locator("figure.cbo-stepper img").is_visible() and page.locator("button").count() == 0
