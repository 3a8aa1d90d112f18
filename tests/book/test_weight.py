"""Figures of the built pages are files beside them, loaded when they are about to be seen."""

import base64
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np

from book import figures
from book._ext import weight


def drawn(height: float) -> mpl.figure.Figure:
    figure, axes = figures.subplots(figsize=(6, 3))
    axes[0, 0].plot([0, 1], [height, 0])
    return figure


def app_in(folder: Path, builder: str = "html") -> Any:
    return SimpleNamespace(outdir=str(folder), builder=SimpleNamespace(name=builder))


def test_every_figure_becomes_a_file_that_keeps_its_place(tmp_path: Path) -> None:
    one = figures.show(drawn(1), "One < two.", "A finding.", "here-one").data
    stepping = figures.slider([drawn(1), drawn(2)], ["1", "2"], ["One.", "Two."], start=1).data
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "top.html").write_text(one, encoding="utf-8")
    (tmp_path / "deep" / "er" / "page.html").write_text(f"{one}{stepping}", encoding="utf-8")
    (tmp_path / "none.html").write_text('<img alt="x" src="_images/other.svg">', encoding="utf-8")
    weight.move(app_in(tmp_path), None)

    (written,) = re.findall(r"<img[^>]*>", (tmp_path / "top.html").read_text(encoding="utf-8"))
    found = re.fullmatch(
        r'<img class="cbo-figure" alt="One &lt; two." style="min-width: \d+px" '
        r'src="_images/(figure-\w{16}.svg)" loading="lazy" width="576" height="288">',
        written,
    )
    assert found is not None
    content = base64.b64decode(re.findall(r"base64,([^\"]+)", one)[0])
    assert (tmp_path / "_images" / found[1]).read_bytes() == content

    page = (tmp_path / "deep" / "er" / "page.html").read_text(encoding="utf-8")
    assert "data:" not in page and len(page) < 3000
    sources = re.findall(r'src="../../_images/([^"]+)"', page)
    assert len(sources) == 2 and sources[0] == found[1]
    assert {image.name for image in (tmp_path / "_images").iterdir()} == set(sources)
    assert (tmp_path / "none.html").read_text(encoding="utf-8") == '<img alt="x" src="_images/other.svg">'


def test_the_state_of_widgets_is_left_out_and_the_data_of_pictures_stay() -> None:
    kept = '<p>a</p><script type="application/json">{"kind": "cell"}</script>'
    state = '<script type="application/vnd.jupyter.widget-{}+json">\n{{"value": "<figure>"}}\n</script>\n'
    page = f"{state.format('state')}{kept}{state.format('view')}"
    assert weight.outside(page, "_images") == (kept, {})


def test_search_is_loaded_where_one_searches_and_mathjax_where_formulas_are(tmp_path: Path) -> None:
    search = "".join(f'<script src="../{name}.js"></script>' for name in ("_static/searchtools", "searchindex"))
    script = '<script defer="defer" src="../_static/mathjax/full.js?v=1"></script>'
    kept = '<script src="../_static/sort.js"></script>'
    (tmp_path / "book").mkdir()
    settings = '<script>window.MathJax = {"options": {}}</script>'
    formula = '<span class="math">x</span>'
    texts = {"book/formulas": script + search + kept, "book/words": settings + script + search + kept, "search": search}
    for name, text in texts.items():
        body = formula if "formulas" in name else ""
        (tmp_path / f"{name}.html").write_text(f"<head>{text}</head>{body}", encoding="utf-8")
    weight.move(app_in(tmp_path), None)
    weight.move(app_in(tmp_path), None)  # nothing is added twice
    found = {name: (tmp_path / f"{name}.html").read_text(encoding="utf-8") for name in texts}
    ahead = '<link rel="prefetch" href="{}_static/mathjax/full.js?v=1" />'
    assert found["book/formulas"] == f"<head>{script}{kept}</head>{formula}"
    assert found["book/words"] == f"<head>{kept}{ahead.format('../')}</head>"
    assert found["search"] == f"<head>{search}{ahead.format('')}</head>"


def test_paths_and_places_have_tenths_of_a_point() -> None:
    figure = drawn(1)
    figure.axes[0].plot([0.123456, 0.654321], [0.3, 0.7], "o", alpha=0.25)
    svg = base64.b64decode(re.findall(r"base64,([^\"]+)", figures.show(figure, "A line.").data)[0]).decode()
    lengths = re.findall(r'\b(?:d|x|y)="([^"]*)"', svg)
    assert len(lengths) > 20 and not any(re.search(r"\.\d\d", length) for length in lengths)
    assert "opacity: 0.25" in svg and ": 11px" in svg


def test_long_outlines_and_many_signs_are_light() -> None:
    figure, axes = figures.subplots()
    x = np.linspace(0, 9, 3000)
    axes[0, 0].fill_between(x, np.sin(x), 2)
    light = figures._svg(figure)
    corners = [len(one.split()) // 2 for one in re.findall(r' d="M ([^"]*)"', light)]
    assert 40 < max(corners) < 400 and "<image" not in light
    axes[0, 0].plot(x, x, "o")
    dense = figures._svg(figure)
    assert "<image" in dense and dense.count("<use") < 50
