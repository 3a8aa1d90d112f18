"""The built pages in a real browser, from the disk; test_served_pages.py looks closer at each, from a server."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from book._tools.list_results import pages
from tests.book.conftest import SIZE, Visitor

ROOT = Path(__file__).resolve().parents[2]
PAGES = list(pages(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))))

pytestmark = pytest.mark.browser

every_page = pytest.mark.parametrize("name", PAGES)
both_ways = pytest.mark.parametrize("visitor", ["file", "http"], indirect=True)

# TeX that MathJax left as it was: delimiters in text that is neither code nor already set.
RAW_MATH = r"""() => {
  const walker = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.parentElement.closest("pre, code, script, style, mjx-container")) continue;
    if (/\\\(|\\\[|\$\$|\\begin\{/.test(node.data)) found.push(node.data.trim().slice(0, 80));
  }
  return found;
}"""

IMAGES = """() => Promise.all([...document.images].map(async (image) => {
  image.loading = "eager";
  try { await image.decode(); } catch { /* naturalWidth tells */ }
  return { src: image.src.slice(0, 80), alt: image.alt.trim(), width: image.naturalWidth };
}))"""

# What sticks out of the article, unless an ancestor inside the article scrolls: a reader never sees what is cut off.
OVERFLOW = """() => {
  const article = document.querySelector("article");
  const limit = document.documentElement.clientWidth + 1;
  const contained = (element) => {
    for (let e = element.parentElement; e && e !== article.parentElement; e = e.parentElement)
      if (/auto|scroll/.test(getComputedStyle(e).overflowX) || e.tagName === "svg") return true;
    return false;
  };
  const outside = [...article.querySelectorAll("*")].filter(
    (e) => e.getBoundingClientRect().right > limit && e.getBoundingClientRect().width > 0 && !contained(e));
  if (document.documentElement.scrollWidth > limit) outside.push(document.documentElement);
  return outside.map((e) => `${e.tagName}.${e.className?.baseVal ?? e.className}`).slice(0, 5);
}"""

# Letters below nine pixels: of an image that is narrower than its smallest letters ask (book/figures.py) or of a drawn
# picture. On a wide screen also code and figures that are wider than their place. All this in folded parts too; what
# cells print may scroll.
ILLEGIBLE = """(wide) => {
  const closed = [...document.querySelectorAll("article details:not([open])")];
  const hidden = [...document.querySelectorAll(".toggle-hidden")];
  closed.forEach((e) => { e.open = true; });
  hidden.forEach((e) => e.classList.remove("toggle-hidden"));
  const images = [...document.querySelectorAll("img.cbo-figure")].filter((e) => e.checkVisibility() &&
    !(e.getBoundingClientRect().width > parseFloat(e.style.minWidth) - 1));
  const letters = [...document.querySelectorAll(".cbo-picture text")].filter((e) => {
    const matrix = e.getScreenCTM();
    return parseFloat(getComputedStyle(e).fontSize) * Math.hypot(matrix.a, matrix.b) < 8.99;
  });
  const outside = [...document.querySelectorAll("article pre, figure.cbo-figure")].filter((e) => wide &&
    e.checkVisibility() && !e.closest(".output") && e.scrollWidth > e.clientWidth + 1);
  const found = [...images.map((e) => e.alt), ...letters.map((e) => e.textContent),
    ...outside.map((e) => e.textContent.trim().slice(0, 80))];
  closed.forEach((e) => { e.open = false; });
  hidden.forEach((e) => e.classList.add("toggle-hidden"));
  return found;
}"""

# Pictures that step are drawn again for a new width, a frame or two after it came.
DRAWN = """() => innerWidth === 390 && [...document.querySelectorAll(".cbo-stage")].every((stage) =>
  [...stage.querySelectorAll(".cbo-view")].every((view) => view.offsetWidth <= stage.clientWidth))"""

# The contrast ratio (WCAG 2) of every piece of text against what is behind it.
CONTRAST = """() => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const known = {};
  const rgba = (color) => {
    if (!(color in known)) {
      pen.clearRect(0, 0, 1, 1); pen.fillStyle = color; pen.fillRect(0, 0, 1, 1);
      known[color] = [...pen.getImageData(0, 0, 1, 1).data];
    }
    return known[color];
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = rgba(getComputedStyle(e).backgroundColor);
      if (color[3] > 200) return color;
    }
    return [255, 255, 255, 255];
  };
  return [...document.querySelectorAll("article p, article li, article td, article label, article legend")]
    .filter((e) => e.textContent.trim() && e.getClientRects().length)
    .map((e) => {
      const [a, b] = [light(rgba(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
      return { ratio: (a + 0.05) / (b + 0.05), text: e.textContent.trim().slice(0, 60) };
    });
}"""


# Go through every step of a picture: what is said, what is drawn, and what stands in its data.
STEPS = """(figure) => {
  const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
  const range = figure.querySelector("input[type=range]"), found = [];
  for (let k = 0; k < data.labels.length; k++) {
    range.value = k;
    range.dispatchEvent(new Event("input"));
    const drawn = figure.querySelector(".cbo-picture");
    found.push({
      label: figure.querySelector(".cbo-label").textContent, valuetext: range.getAttribute("aria-valuetext"),
      expected: data.labels[k], alt: drawn.getAttribute("aria-label"), alt_expected: data.alts[k],
      drawn: drawn.innerHTML,
    });
  }
  return { name: range.getAttribute("aria-label"), found };
}"""

# Every answer to every question of a page, given by the page's own script: thousands of questions and answers between
# two processes would take most of a minute.
ANSWERS = """() => [...document.querySelectorAll("form.cbo-quiz")].map((quiz) => {
  quiz.reset();
  const verdict = quiz.querySelector(".cbo-quiz-verdict");
  const button = [...quiz.querySelectorAll("button")].find((b) => b.innerText.trim() === "Check");
  button.click();
  const unanswered = verdict.innerText;
  const given = [...quiz.querySelectorAll("input[type=radio]")].map((radio) => {
    radio.click();
    button.click();
    const shown = [...quiz.querySelectorAll(".cbo-quiz-feedback")].filter((f) => f.checkVisibility());
    return {
      right: radio.dataset.right !== undefined, verdict: verdict.innerText,
      shown: shown.map((f) => f.dataset.choice), text: shown.map((f) => f.innerText.trim()).join(),
    };
  });
  return { polite: quiz.querySelectorAll("[aria-live=polite]").length, unanswered, given,
    legend: quiz.querySelector("legend").innerText.trim() };
})"""

# Icons are masks of pseudo-elements: what is shown without one, or without a size, nobody sees.
ICONS = """() => {
  const drawn = [...document.querySelectorAll(".fa-solid, .fas")].map((e) => [e, "::before"])
    .concat([...document.querySelectorAll(".admonition > .admonition-title")].map((e) => [e, "::after"]));
  const missing = drawn.filter(([e]) => e.checkVisibility()).filter(([e, pseudo]) => {
    const style = getComputedStyle(e, pseudo);
    return !style.maskImage.startsWith("url(") || !(parseFloat(style.width) > 4) || !(parseFloat(style.height) > 4);
  });
  return { count: drawn.length, missing: missing.map(([e]) => e.className) };
}"""

# Displayed formulas that do not stand in the middle, and numbers that are not level with theirs.
MISPLACED = """() => [...document.querySelectorAll("div.math")].filter((e) => e.checkVisibility()).filter((e) => {
  const all = [...e.querySelectorAll('mjx-container[display="true"]')].map((m) => m.getBoundingClientRect());
  const box = e.getBoundingClientRect(), number = e.querySelector(".eqno")?.getBoundingClientRect();
  const level = all.some((m) => Math.abs(m.top + m.bottom - number?.top - number?.bottom) < 12);
  return all.some((m) => m.left > box.left + 1) || (number && all.length === 1 && !level);
}).map((e) => e.id)"""

# Formulas that a reader without JavaScript sees, and what should not be there.
WITHOUT_SCRIPTS = """() => {
  const formulas = [...document.querySelectorAll(".math")];
  const shown = (e) => e.checkVisibility();
  return {
    count: formulas.length,
    unset: formulas.filter((e) => {
      const set = [...e.querySelectorAll("math")];
      return shown(e) && !(set.length && set.every((m) => m.children.length && m.getBoundingClientRect().width > 0));
    }).map((e) => e.textContent),
    tex: [...document.querySelectorAll(".cbo-tex")].filter(shown).length,
    numbers: [...document.querySelectorAll(".eqno")].filter((e) => !shown(e)).length,
    commands: [...document.querySelectorAll("math")].map((m) => m.textContent).filter((t) => t.includes("\\\\")),
    errors: document.querySelectorAll("merror, .math-core-error").length,
  };
}"""

STEPPER, QUIZ, MATH = r'<figure class="cbo-stepper"', r'<form class="cbo-quiz"', r'class="(?:[^"]* )?math[ "]'


# Mathematics but for three formulas, pictures, repeated code, its buttons and signatures are left out, and all but
# three of a table's rows that differ in their text alone: they are what takes axe-core long. It preloads no style
# sheets, which a browser refuses on file://. The copy of a picture is not drawn again for another width.
LESS = """() => {
  document.querySelectorAll("mjx-container, .cbo-picture").forEach((e) => e.replaceChildren());
  [...document.querySelectorAll("span.math")].slice(3).forEach((e) => e.remove());
  document.querySelectorAll(".cbo-stage").forEach((e) => e.replaceWith(e.cloneNode(true)));
  [...document.querySelectorAll("button.copybtn")].slice(3).forEach((e) => e.remove());
  [...document.querySelectorAll(".highlight pre")].slice(3).forEach((e) => { e.textContent = "code"; });
  [...document.querySelectorAll("dl.py")].slice(4).forEach((e) => e.remove());
  document.querySelectorAll("tbody").forEach((table) => {
    const count = {};
    [...table.rows].forEach((row) => {
      const kind = row.innerHTML.replace(/>[^<]*</g, "><");
      if ((count[kind] = (count[kind] ?? 0) + 1) > 3) row.remove();
    });
  });
}"""
AXE = """(rules) => axe.run({ resultTypes: ["violations"], preload: false, ...rules }).then((found) => found.violations
  .filter((one) => ["critical", "serious"].includes(one.impact))
  .map((one) => [one.id, one.nodes.length, one.nodes[0].html.slice(0, 120)]))"""

# How visible texts look in the light and in the dark, with all elements that they are in; `alike` keeps what looks how.
LOOKS = """() => {
  const all = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode())
    if (walker.currentNode.data.trim() && walker.currentNode.parentElement.localName !== "style")
      all.push(walker.currentNode);
  const seen = new Set();
  for (const theme of ["light", "dark"]) {
    document.documentElement.dataset.theme = theme;
    all.forEach((text) => { if (text.parentElement.checkVisibility()) seen.add(text); });
  }
  all.forEach((text) => { if (!seen.has(text)) text.data = ""; });
  const texts = [...seen];
  const keys = texts.map(() => "");
  for (const theme of ["light", "dark"]) {
    document.documentElement.dataset.theme = theme;
    const known = new Map();
    const looks = (element) => {
      if (!element) return "";
      if (!known.has(element)) {
        const style = getComputedStyle(element);
        known.set(element, [element.tagName, element.getAttribute("class"), element.disabled, style.color,
          style.backgroundColor, style.backgroundImage, style.opacity, style.filter, style.fontSize, style.fontWeight,
          style.textShadow, looks(element.parentElement)].join());
      }
      return known.get(element);
    };
    texts.forEach((text, k) => { keys[k] += looks(text.parentElement); });
  }
  const looks = [...new Set(keys)];
  window.alike = { texts, keys, looks };
  return [texts.length, looks];
}"""

# Of texts that look the same two stay, of looks that are known none; then elements without any text that is seen go.
ALIKE = """(known) => {
  const { texts, keys, looks } = window.alike;
  const count = Object.fromEntries(looks.map((look, k) => [look, known[k] ? 2 : 0]));
  texts.forEach((text, k) => { if (++count[keys[k]] > 2) text.data = ""; });
  document.querySelectorAll("body *").forEach((e) => { if (!e.textContent.trim()) e.remove(); });
}"""


def barriers(page: Any, known: set[str]) -> list[Any]:
    """What axe-core finds critical or serious, with the contrast of texts in the light and in the dark.

    Contrast alone takes as long as all the rest, for each text: what was seen on another page is known by its look.
    """
    package = importlib.util.find_spec("axe_playwright_python")
    assert package is not None and package.origin is not None
    page.evaluate(LESS)  # first, as all that follows lays the page out again
    page.set_viewport_size(SIZE)
    page.add_style_tag(content="* { transition: none !important }")
    page.evaluate(Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    found = page.evaluate(AXE, {"rules": {"color-contrast": {"enabled": False}}})
    texts, looks = page.evaluate(LOOKS)
    assert texts >= len(looks) > 10
    page.evaluate(ALIKE, [look in known for look in looks])
    known.update(looks)
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        found += page.evaluate(AXE, {"runOnly": ["color-contrast"]})
    return found


@pytest.mark.parametrize(("look", "themes"), [("fine", 0), ("pale", 1), ("deep", 1), ("half", 2)])
def test_a_look_of_little_contrast_is_found_among_many_texts(open_page: Any, look: str, themes: int) -> None:
    """Pale text on a light page, deep on a dark one, and half transparent on either."""
    style = """<style>[data-theme=dark] body { background: #111; color: #eee } .pale { color: #bbb }
      .deep { color: #333 } .half { opacity: 0.4 }</style>"""
    many = "".join(f"<p class=look{k % 12}>Text {k}</p>" for k in range(60))
    known: set[str] = set()
    page = f"{style}<main><h1>Title</h1>{many}"
    assert barriers(open_page(f"{page}</main>"), known) == []
    found = barriers(open_page(f"{page}{f'<p class={look}>Last</p>' * 30}</main>"), known)
    assert [(rule, count) for rule, count, _ in found] == [("color-contrast", 2)] * themes


def static_count(html: Path, name: str, pattern: str) -> int:
    """How often a pattern stands in the page as it was built, before any script ran."""
    return len(re.findall(pattern, (html / f"{name}.html").read_text(encoding="utf-8")))


def assert_pictures_step(page: Any, html: Path, name: str) -> None:
    """Every step of every picture says and draws what its data say."""
    figures = page.locator('figure[class="cbo-stepper"]')  # one that answers holds no steps
    assert figures.count() == static_count(html, name, STEPPER)
    for index in range(figures.count()):
        seen = figures.nth(index).evaluate(STEPS)
        assert seen["name"]
        for step in seen["found"]:
            assert step["label"] == step["valuetext"] == step["expected"]
            assert step["alt"] == step["alt_expected"]
            assert not re.search("NaN|undefined|Infinity", step["drawn"]), f"{name}: {step['label']}"
        pictures = [step["drawn"] for step in seen["found"]]
        assert len(set(pictures)) > len(pictures) / 2, f"{name}: picture {index} hardly changes"


def assert_questions_score_themselves(page: Any, html: Path, name: str) -> None:
    """Every answer to every question gets its verdict and its feedback, and one is right."""
    answered = page.evaluate(ANSWERS)
    assert len(answered) == static_count(html, name, QUIZ)
    for index, seen in enumerate(answered):
        assert seen["polite"] == 1 and seen["legend"] and seen["unanswered"] == "Choose an answer first."
        for number, given in enumerate(seen["given"]):
            assert given["verdict"] == ("Right." if given["right"] else "Not this one.")
            assert given["shown"] == [str(number)] and given["text"]
        right = [given["right"] for given in seen["given"]]
        assert right.count(True) == 1, f"{name}: question {index} has no single right answer"
    assert "?" not in page.url.split("/")[-1], "a question must not send the form"


def assert_complete(visitor: Any, page: Any) -> None:
    """The icons and the images of an open page are there, and it asked nobody else."""
    icons = page.evaluate(ICONS)
    assert icons["count"] > 5 and icons["missing"] == []
    assert [url for url in visitor.requests if re.search(r"webfonts|fontawesome", url)] == []

    images = page.evaluate(IMAGES)
    assert images, "not even the logo is there"
    assert [image for image in images if not image["alt"]] == []
    assert [image for image in images if not image["width"]] == []
    assert visitor.foreign() == []


def assert_whole(visitor: Any, html: Path, name: str) -> Any:
    """Open a page; it is as it was built, with its mathematics and its images, and asks nobody else."""
    page = visitor.open(name)
    assert visitor.complaints == []
    assert page.locator("mjx-container").count() >= static_count(html, name, MATH)
    assert page.locator("mjx-merror, [data-mjx-error], g[data-mml-node=merror]").count() == 0
    assert page.evaluate(RAW_MATH) == []
    assert page.evaluate(MISPLACED) == []
    assert_complete(visitor, page)
    return page


def assert_works(visitor: Any, page: Any, html: Path, name: str) -> None:
    """What a reader can change on an open page; it is another page afterwards."""
    assert_pictures_step(page, html, name)
    assert_questions_score_themselves(page, html, name)
    assert visitor.complaints == []


def assert_legible(page: Any) -> None:
    """What a screen of 1,400 pixels, the dark and a phone do to an open page."""
    page.set_viewport_size({"width": 1400, "height": 900})
    assert page.evaluate(ILLEGIBLE, True) == []

    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.add_style_tag(content="* { transition: none !important }")
    texts = page.evaluate(CONTRAST)
    assert texts, "the page has no text"
    assert [text for text in texts if text["ratio"] < 4.5] == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", background)[:3])) < 80, f"dark mode has the background {background}"

    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function(DRAWN)
    assert page.evaluate(OVERFLOW) == []
    assert page.evaluate(ILLEGIBLE, False) == []


def kinds(html: Path) -> list[str]:
    """One page for each set of scripts and of things that scripts move: to these the disk is not as a server is."""
    first: dict[frozenset[str], str] = {}
    for name in PAGES:
        text = (html / f"{name}.html").read_text(encoding="utf-8")
        scripts = {source.rpartition("/")[2] for source in re.findall(r'<script[^>]* src="([^"?]+)', text)}
        moved = {pattern for pattern in (STEPPER, QUIZ, MATH) if re.search(pattern, text)}
        first.setdefault(frozenset(scripts | moved), name)
    return list(first.values())


def test_pages_of_every_kind_are_whole_and_work_from_the_disk(visitor: Any, html: Path) -> None:
    names = kinds(html)
    assert 3 < len(names) < len(PAGES) / 2
    for name in names:
        assert_works(visitor, assert_whole(visitor, html, name), html, name)


def test_no_page_weighs_more_than_a_megabyte(html: Path) -> None:
    weights = {file.relative_to(html).as_posix(): file.stat().st_size for file in html.rglob("*.html")}
    assert {name: weight for name, weight in weights.items() if weight > 1_000_000} == {}


@every_page
def test_figures_load_when_they_are_about_to_be_seen_and_keep_their_place(html: Path, name: str) -> None:
    page = (html / f"{name}.html").read_text(encoding="utf-8")
    assert "data:image/svg+xml;base64," not in page
    for image in re.findall(r'<img class="cbo-figure"[^>]*>', page):
        assert re.search(r' loading="lazy" width="\d+" height="\d+">', image), image


#: A figure that is none within a picture that steps, and a caption with its number.
FIGURE = r'(?<!<div class="cbo-stage">)<figure class="cbo-'
CAPTION = r'<figcaption class="cbo-caption"><span class="cbo-number">Figure [\d.]+</span> \S'


@every_page
def test_every_figure_has_a_number_and_a_caption(html: Path, name: str) -> None:
    assert static_count(html, name, FIGURE) == static_count(html, name, CAPTION)


def test_the_numbers_of_figures_are_told_once(html: Path) -> None:
    found = [
        number
        for name in PAGES
        for number in re.findall(r'<span class="cbo-number">(.*?)</span>', (html / f"{name}.html").read_text("utf-8"))
    ]
    assert found and len(set(found)) == len(found)


@both_ways
def test_search_finds_pages(visitor: Any) -> None:
    page = visitor.open("search", "?q=aggregated")
    page.wait_for_selector("#search-results li a")
    links = page.locator("#search-results li a")
    targets = [links.nth(i).get_attribute("href") for i in range(links.count())]
    assert any("book/aggregated/" in str(target) for target in targets)
    page.wait_for_load_state("networkidle")
    assert visitor.complaints == []
    assert visitor.foreign() == []


def pages_with(html: Path, pattern: str) -> list[str]:
    found = [name for name in PAGES if static_count(html, name, pattern)]
    assert found, f"no page holds {pattern}: nothing would be tested"
    return found


@both_ways
def test_a_reader_answers_a_question_with_a_mouse(visitor: Any, html: Path) -> None:
    assert pages_with(html, STEPPER)  # else no picture would be tested
    page = visitor.open(pages_with(html, QUIZ)[0])
    quiz = page.locator("form.cbo-quiz").first
    verdict, button = quiz.locator(".cbo-quiz-verdict"), quiz.get_by_role("button", name="Check")
    shown, choices = quiz.locator(".cbo-quiz-feedback:visible"), quiz.get_by_role("radio")
    button.click()
    assert verdict.inner_text() == "Choose an answer first."
    for number in range(choices.count()):
        choices.nth(number).check()
        button.click()
        right = choices.nth(number).get_attribute("data-right") is not None
        assert verdict.inner_text() == ("Right." if right else "Not this one.")
        assert shown.count() == 1 and shown.get_attribute("data-choice") == str(number)
    assert visitor.complaints == []


@pytest.fixture(scope="module")
def without_scripts(browser: Any, addresses: dict[str, str]) -> Iterator[Visitor]:
    """A visitor from the disk whose browser runs no script."""
    context = browser.new_context(java_script_enabled=False, viewport=SIZE)
    yield Visitor(context.new_page(), addresses["file"])
    context.close()


@every_page
def test_page_is_whole_from_the_disk_where_no_script_runs(without_scripts: Visitor, html: Path, name: str) -> None:
    visitor, page = without_scripts, without_scripts.page
    for each in (visitor.requests, visitor.complaints):
        each.clear()
    page.goto(f"{visitor.home}/{name}.html")
    assert_complete(visitor, page)
    late = r"^failed: .*(\.js\b|favicon)"  # scripts are refused, and nobody waits for the icon of the tab
    assert [told for told in visitor.complaints if not re.search(late, told)] == []

    count = static_count(html, name, MATH)
    if not count:
        assert static_count(html, name, r'<math[ >]|<merror|class="(?:eqno|cbo-tex)') == 0
        return
    seen = page.evaluate(WITHOUT_SCRIPTS)
    assert seen["count"] == count
    assert [seen[key] for key in ("unset", "tex", "commands", "errors", "numbers")] == [[], 0, [], 0, 0]
    assert page.evaluate(RAW_MATH.replace("mjx-container", "mjx-container, .cbo-tex")) == []


ON_PAPER = """() => {
  dispatchEvent(new Event("beforeprint"));
  const shown = (selector) => [...document.querySelectorAll(selector)].filter((e) => e.checkVisibility());
  const solutions = [...document.querySelectorAll(".admonition.dropdown")];
  return {
    solutions: solutions.length,
    open: solutions.filter((e) => !e.classList.contains("toggle-hidden")).length +
      document.querySelectorAll("article details[open]").length,
    controls: shown(".bd-sidebar-primary, .bd-sidebar-secondary, .bd-header, .bd-header-article, .bd-footer, " +
      ".prev-next-footer, .headerlink, button, .cbo-controls").map((e) => e.className),
    text: document.querySelector("article").innerText.length,
    background: getComputedStyle(document.body).backgroundColor,
  };
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_paper_solutions_stay_closed_and_colors_are_light(visitor: Any, html: Path, theme: str) -> None:
    page = visitor.open(next(name for name in PAGES if name.endswith("5_exercises")))
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    page.add_style_tag(content="* { transition: none !important }")
    page.emulate_media(media="print")
    page.wait_for_function("document.documentElement.dataset.theme === 'light'")
    seen = page.evaluate(ON_PAPER)
    assert seen["solutions"] > 3 and seen["open"] == 0 and seen["controls"] == [] and seen["text"] > 2000
    assert seen["background"] == "rgb(255, 255, 255)"
    assert [text for text in page.evaluate(CONTRAST) if text["ratio"] < 4.5] == []
    page.emulate_media(media="screen")
    page.wait_for_function(f"document.documentElement.dataset.theme === '{theme}'")
    assert visitor.complaints == []
