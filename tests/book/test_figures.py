"""Figures carry their description, step without a kernel, and show the numbers that they were given."""

import base64
import itertools
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

from book import figures, looks
from book.figures import COLORS, Panel, heatmap, plot_replicates, show, slider, subplots
from book.looks import POLICIES
from tests.book.colors import contrast

F64 = torch.float64
WIDGET = "application/vnd.jupyter.widget-view+json"


class Markup(HTMLParser):
    """The elements of a piece of HTML and what its scripts hold."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.texts, self._inside = [], [], {}, None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside:
            self.texts[self._inside] = self.texts.get(self._inside, "") + data

    def __getitem__(self, tag):
        (attributes,) = (attributes for name, attributes in self.elements if name == tag)
        return attributes


def data_url(source, kind):
    prefix = f"data:{kind};base64,"
    assert source.startswith(prefix)
    return base64.b64decode(source[len(prefix) :], validate=True)


def curve(values=(0, 1), **settings):
    figure, axes = subplots(**settings)
    axes[0, 0].plot(values)
    return figure


def small(count):
    return [curve((0, i), figsize=(2, 1)) for i in range(count)]


def crossings(collection, x):
    """Where the lower and the upper edge of a filled area pass a position."""
    (path,) = collection.get_paths()
    found = []
    for (x0, y0), (x1, y1) in itertools.pairwise(path.vertices):
        if min(x0, x1) <= x <= max(x0, x1) and x0 != x1:
            found.append(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
    return min(found), max(found)


def test_colors_differ_from_each_other():
    rgb = [to_rgb(color) for color in COLORS]
    for one, other in itertools.combinations(rgb, 2):
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) > 0.2
    assert to_rgb("white") not in rgb


def test_a_figure_is_shown_as_svg_and_closed():
    markup = Markup(show(curve(), "A rising line.").data)
    assert [tag for tag, _ in markup.elements] == ["figure", "img"]
    svg = ET.fromstring(data_url(markup["img"]["src"], "image/svg+xml"))
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}path"))) > 5
    assert plt.get_fignums() == []


@pytest.mark.parametrize("width", [3, 7.2, 10, 20])
def test_letters_have_nine_pixels_at_the_size_shown_and_no_screen_makes_them_smaller(width):
    figure, axes = subplots(1, 2, figsize=(width, 3))
    axes[0, 0].plot([1, 2], label="small")
    axes[0, 0].legend(fontsize=3)
    axes[0, 1].plot([1e-7, 1e7], [1e-2, 1e2])
    axes[0, 1].set(title="$x_1$", xscale="log", yscale="log")
    axes[0, 1].tick_params(labelsize=2)
    image = Markup(show(figure, "A line.").data)["img"]
    svg = data_url(image["src"], "image/svg+xml").decode()
    least = min(map(float, re.findall(r"font(?:-size)?: ([\d.]+)px", svg)))
    shown = min(figures.SHOWN, 96 * width)
    assert least * shown / (72 * width) >= figures.LEGIBLE - 0.01
    kept = float(re.fullmatch(r"min-width: (\d+)px", image["style"])[1])
    assert kept <= shown and least * kept / (72 * width) >= figures.LEGIBLE - 0.02
    assert re.search(r"\{10\^\{-?[4-7]\}\}", svg) and not re.search(r"\{10\^\{-?[0-3]\}\}", svg)


@pytest.mark.parametrize("alt", ["", "  \n"])
def test_empty_alternative_text_is_refused(alt):
    with pytest.raises(ValueError, match="alt must say what is seen, got an empty text"):
        show(curve(), alt)
    with pytest.raises(ValueError, match="alt must say what is seen, got an empty text"):
        slider(small(2), ["1", "2"], ["seen", alt])
    with pytest.raises(ValueError, match="alt must say what is seen, got an empty text"):
        Panel(lambda c: curve(), alt, c=[1])._repr_mimebundle_()


def slope(height, width):
    return curve((0, height), figsize=(width, 1))


def panel():
    return Panel(slope, "A line.", height=[3, 1, 2], width=[2, 4])


def test_without_a_kernel_a_panel_shows_its_first_choices():
    bundle = panel()._repr_mimebundle_()
    assert bundle["text/html"] == show(slope(3, 2), "A line.").data
    assert bundle["text/html"] != show(slope(1, 2), "A line.").data
    assert [tag for tag, _ in Markup(bundle["text/html"]).elements] == ["figure", "img"]
    assert set(bundle[WIDGET]) == {"version_major", "version_minor", "model_id"}
    assert plt.get_fignums() == []


def test_a_panel_answers_its_controls():
    controls, image = panel().widget().children
    height, width = controls.children
    assert [c.description for c in (height, width)] == ["height", "width"]
    assert image.value == show(slope(3, 2), "A line.").data
    height.value = 2
    assert image.value == show(slope(2, 2), "A line.").data
    width.value = 4
    assert image.value == show(slope(2, 4), "A line.").data
    height.value = 3
    assert image.value == show(slope(3, 4), "A line.").data


@pytest.fixture
def drawn_figures(monkeypatch):
    """The figures that were shown, in order."""
    kept = []

    def keep(figure, alt, *said):
        kept.append(figure)
        return show(figure, alt, *said)

    monkeypatch.setattr(figures, "show", keep)
    return kept


def test_one_call_draws_labeled_curves(drawn_figures):
    curves = {"mean": torch.tensor([1.0, 4.0, 9.0]), "data": ([2.0, 3.0, 5.0], "o--")}
    text = figures.line([1, 2, 4], curves, "Two < curves.", (5, 2), xlabel="round", ylabel="f", yscale="log").data
    (figure,) = drawn_figures
    (axes,) = figure.axes
    assert [(one.get_label(), one.get_xdata().tolist(), one.get_ydata().tolist()) for one in axes.lines] == [
        ("mean", [1, 2, 4], [1, 4, 9]),
        ("data", [1, 2, 4], [2, 3, 5]),
    ]
    assert [(one.get_linestyle(), one.get_marker()) for one in axes.lines] == [("-", "None"), ("--", "o")]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_yscale()) == ("round", "f", "log")
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["mean", "data"]
    assert figure.get_size_inches().tolist() == [5, 2]
    assert Markup(text)["img"]["alt"] == "Two < curves."
    assert plt.get_fignums() == []


def test_one_call_draws_a_policy_in_its_style(drawn_figures):
    figures.line(range(40), {"random": (range(40), figures.style("random"))}, "A dotted line.")
    (drawn,) = drawn_figures[0].axes[0].lines
    look = POLICIES["random"]
    assert (drawn.get_color(), drawn.get_linestyle(), drawn.get_marker()) == (look.color, look.line, look.marker)
    assert drawn.get_markevery() == 5


VALUES = torch.tensor([[1.0, 4.0, 2.0], [3.0, 4.5, 8.0], [8.0, 1.0, 2.5], [0.5, 0.0, 7.0]], dtype=F64)


@pytest.mark.parametrize(
    ("settings", "factor"),
    [({}, 1.0), ({"spread": "standard deviation"}, 1.0), ({"spread": "standard error"}, 0.5)],
)
def test_the_band_of_replicates_is_the_spread_that_was_asked_for(settings, factor):
    _, axes = subplots()
    plot_replicates(axes[0, 0], VALUES, "policy", **settings)
    (drawn,), (band,) = axes[0, 0].lines, axes[0, 0].collections
    mean, half = VALUES.numpy().mean(0), factor * VALUES.numpy().std(0, ddof=1)
    assert drawn.get_xdata().tolist() == [1, 2, 3]
    np.testing.assert_allclose(drawn.get_ydata(), mean)
    for x, m, h in zip((1, 2, 3), mean, half, strict=True):
        np.testing.assert_allclose(crossings(band, x), (m - h, m + h))
    assert drawn.get_label() == "policy"
    assert to_rgb(band.get_facecolor()[0][:3]) == to_rgb(drawn.get_color())


TABLE = {(20, 2): 0.126, (1, 5): -3.5, (20, 5): 1.0, (1, 2): 2.25, (1, 3): 0.5, (20, 3): -0.75}


@pytest.mark.parametrize("table", [TABLE, dict.fromkeys(TABLE, 1.5)], ids=["varied", "constant"])
def test_a_heatmap_writes_each_number_legibly_into_its_row_and_column(table):
    figure, axes = subplots()
    axis = axes[0, 0]
    heatmap(axis, table, "columns", "rows", "value")
    show(figure, "A table.")
    x_names, y_names = (
        [int(t.get_text()) for t in labels] for labels in (axis.get_xticklabels(), axis.get_yticklabels())
    )
    assert (x_names, y_names) == ([2, 3, 5], [1, 20])
    (image,) = axis.images
    found = {}
    for text in axis.texts:
        j, i = text.get_position()
        key = y_names[axis.get_yticks().tolist().index(i)], x_names[axis.get_xticks().tolist().index(j)]
        found[key] = text.get_text()
        assert image.get_array()[i, j] == table[key]
        assert contrast(text.get_color(), image.to_rgba(table[key])) > 3
    assert found == {key: f"{value:.2f}" for key, value in table.items()}
    assert (axis.get_xlabel(), axis.get_ylabel(), figure.axes[1].get_ylabel()) == ("columns", "rows", "value")
    assert axis.get_ylim() == (-0.5, 1.5)  # the first row is at the bottom


def test_other_words_lead_to_policies():
    assert set(looks._ALIASES.values()) <= set(looks.POLICIES)
