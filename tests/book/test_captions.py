"""Figures are numbered in the order of the pages, and references lead to them, in a clean build and in the next one."""

import re
from io import StringIO
from pathlib import Path

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from book import steppers

ROOT = Path(__file__).resolve().parents[2]
NUMBER = re.compile(r'<figcaption class="cbo-caption"><span class="cbo-number">(.*?)</span> (.*?)</figcaption>')


def page(title: str, *figures_: tuple[str, str], text: str = "", inner: str = "") -> str:
    """A page with figures of a caption and a name each; every second one steps and holds its first frame."""
    lines = [title, "=" * len(title), "", text, ""]
    for k, (caption, name) in enumerate(figures_):
        inside = '<figure class="cbo-figure"><img alt="x" src="data:,"></figure>' if k % 2 else "<p>x</p>"
        style = "cbo-stepper" if k % 2 else "cbo-figure"
        lines += [".. raw:: html", "", f"   {steppers.figure(inside, style, caption, name).data}", ""]
    return "\n".join([*lines, inner])


TOC = ".. toctree::\n   :numbered:\n\n   {}\n"
PAGES = {
    "index": page("Book", ("Home.", ""), inner=TOC.format("first/index\n   second")),
    "first/index": page("First", inner=TOC.replace("   :numbered:\n", "").format("two\n   one")),
    "first/one": page("One", ("C.", "first-c"), text="See :fig:`first-a` and :fig:`second-d`."),
    "first/two": page("Two", ("A.", "first-a"), ("", ""), ("B.", ""), text="See :fig:`first-a`, :fig:`first-c`."),
    "second": page("Second", ("D.", "second-d"), ("E.", ""), text="See :fig:`first-c`."),
}


class Build:
    """A small book in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("conf", "", ".py")
        for name, text in PAGES.items():
            self.write(name, text)

    def write(self, name: str, text: str, ending: str = ".rst") -> None:
        file = self.folder / "source" / f"{name}{ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def make(self, monkeypatch: pytest.MonkeyPatch, fresh: bool = False) -> str:
        """Build what has changed, and return what is warned of."""
        monkeypatch.syspath_prepend(ROOT / "book" / "_ext")
        warnings, out = StringIO(), self.folder / "out"
        settings = {"extensions": ["captions"], "html_theme": "basic"}
        source = self.folder / "source"
        with patch_docutils(), docutils_namespace():
            app = Sphinx(source, None, out, out / "trees", "html", settings, StringIO(), warnings, freshenv=fresh)
            app.build()
        return warnings.getvalue()

    def read(self, name: str) -> str:
        return (self.folder / "out" / f"{name}.html").read_text(encoding="utf-8")

    def numbers(self, name: str) -> list[tuple[str, str]]:
        return NUMBER.findall(self.read(name))

    def links(self, name: str) -> list[tuple[str, str]]:
        return re.findall(r'<a class="reference internal" href="([^"]*#fig-[^"]*)">([^<]*)</a>', self.read(name))


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    small = Build(tmp_path)
    assert small.make(monkeypatch) == ""
    return small


def test_figures_count_within_a_chapter_in_the_order_of_the_contents(build: Build) -> None:
    assert build.numbers("index") == [("Figure 1", "Home.")]
    assert build.numbers("first/two") == [("Figure 1.1", "A."), ("Figure 1.2", "B.")]
    assert build.numbers("first/one") == [("Figure 1.3", "C.")]
    assert build.numbers("second") == [("Figure 2.1", "D."), ("Figure 2.2", "E.")]


def test_a_reference_shows_the_number_and_leads_to_the_figure(build: Build) -> None:
    assert build.links("first/two") == [("#fig-first-a", "Figure 1.1"), ("one.html#fig-first-c", "Figure 1.3")]
    assert build.links("first/one") == [
        ("two.html#fig-first-a", "Figure 1.1"),
        ("../second.html#fig-second-d", "Figure 2.1"),
    ]
    assert build.links("second") == [("first/one.html#fig-first-c", "Figure 1.3")]
    assert build.read("first/one").count('id="fig-first-c"') == 1


def test_pages_that_did_not_change_show_the_new_numbers(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    build.write("first/two", page("Two", ("New.", ""), ("A.", "first-a")))
    assert build.make(monkeypatch) == ""
    assert build.numbers("first/two") == [("Figure 1.1", "New."), ("Figure 1.2", "A.")]
    assert build.numbers("first/one") == [("Figure 1.3", "C.")]
    assert build.links("first/one")[0] == ("two.html#fig-first-a", "Figure 1.2")
    build.write("first/two", page("Two", ("A.", "first-a")))
    assert build.make(monkeypatch) == ""
    assert build.numbers("first/one") == [("Figure 1.2", "C.")]
    assert build.links("second") == [("first/one.html#fig-first-c", "Figure 1.2")]
    kept = {name: build.read(name) for name in PAGES}
    assert build.make(monkeypatch, fresh=True) == ""
    assert {name: build.numbers(name) for name in PAGES} == {name: NUMBER.findall(text) for name, text in kept.items()}
    assert all(link in kept[name] for name in PAGES for link, _ in build.links(name))


def test_a_name_that_no_figure_has_is_a_warning(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    build.write("first/two", page("Two", ("A.", "")))
    warned = build.make(monkeypatch)
    assert "first/one.rst" in warned and "no figure is named 'first-a'" in warned


def test_a_drawing_is_a_figure_with_an_image_for_each_theme(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build.folder / "source" / "book" / "_static"
    folder.mkdir(parents=True)
    for theme in ("light", "dark"):
        (folder / f"tree-{theme}.svg").write_text("<svg/>", encoding="utf-8")
    build.write(
        "second", page("Second", ("D.", "second-d"), text=".. drawing:: tree\n   :alt: A tree.\n\n   It grows.")
    )
    assert build.make(monkeypatch) == ""
    assert build.numbers("second") == [("Figure 2.1", "It grows."), ("Figure 2.2", "D.")]
    shown = re.search(r'<figure class="cbo-drawing"><div>(.*?)</div><figcaption', build.read("second"), re.S)
    assert shown is not None
    for theme in ("light", "dark"):
        assert re.search(rf'<img alt="A tree." class="only-{theme}" src="_images/tree-{theme}.svg" />', shown[1])
