"""One look for every figure, with alternative text, and figures that step without a kernel."""

from __future__ import annotations

import base64
import html
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import HTML
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch
from matplotlib.text import Text
from numpy.typing import ArrayLike
from torch import Tensor

from book.frames import from_figures
from book.functions import interval
from book.looks import style as style
from book.steppers import PALETTE, require_alt, simplified
from book.steppers import figure as _figure
from book.tables import Table as Table

if TYPE_CHECKING:
    from ipywidgets import Widget

#: Of the whole book.
COLORS = PALETTE
_STYLE: dict[Any, Any] = {
    "figure.figsize": (7.2, 3.6),
    "figure.facecolor": "white",  # opaque: it reads on a dark page too
    "axes.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.prop_cycle": plt.cycler(color=COLORS),
    "axes.titlesize": "medium",
    "font.size": 11,
    "axes.formatter.min_exponent": 4,  # 0.01 and 100 in the place of powers with small exponents
    "svg.fonttype": "none",
    "svg.hashsalt": "cbo_lib",
}


#: Pixels of the smallest letters (nine, and what the frame of a dark page takes), and how wide a box of the reading
#: column is on a screen of 1,400 pixels. Where there is less room pictures scroll.
LEGIBLE, SHOWN = 9.4, 650
#: More signs than these are drawn as pixels.
MANY = 1000
#: What stands in an SVG: paths and places, where tenths of a point are enough, long outlines, letters and their font.
_LENGTHS = re.compile(r'\b(?:d|x|y)="[^"]*"')
_LONG = re.compile(r"-?\d+\.\d\d+")
_OUTLINE = re.compile(r'(?<= d=")M (-?[\d.]+ -?[\d.]+ (?:\nL -?[\d.]+ -?[\d.]+ ){100,})(z?\n?)')
_LETTERS = re.compile(r"\bfont(?:-size)?: (?:[a-z]+ )*([\d.]+)px")
_FONT = re.compile(r"'DejaVu Sans'(?:, (?:'[^']*'|sans-serif))*")
_SCRIPTS = re.compile(r"\$[^$]*[_^]")


def subplots(rows: int = 1, columns: int = 1, **settings: Any) -> tuple[Figure, np.ndarray]:
    """A figure in the book's style and its axes, always a ``rows x columns`` array.

    Further settings are those of ``matplotlib.pyplot.subplots``.
    """
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(rows, columns, squeeze=False, layout="constrained", **settings)
    plt.close(figure)  # shown by show(), not a second time by the notebook
    return figure, axes


def show(figure: Figure, alt: str, caption: str = "", name: str = "") -> HTML:
    """Display a figure as SVG with alternative text.

    Args:
        figure: what to show.
        alt: what is seen, in a sentence, for readers who cannot see it.
        caption: what the reader should take from it, in a sentence without mathematics; the page numbers it.
        name: by which text refers to it, as ``{fig}`` with the name; letters, digits and hyphens, the chapter first.

    Raises:
        ValueError: if ``alt`` is empty, or ``name`` is of another form or stands without a caption.
    """
    require_alt(alt)
    svg = _svg(figure)
    letters = min(map(float, _LETTERS.findall(svg)), default=72.0)
    # On a narrow screen a picture keeps the width at which its smallest letters can be read, and scrolls.
    least = min(SHOWN, math.ceil(72 * figure.get_figwidth() * LEGIBLE / letters))
    data = base64.b64encode(svg.encode()).decode()
    image = (
        f'<img class="cbo-figure" alt="{html.escape(alt)}" style="min-width: {least}px" '
        f'src="data:image/svg+xml;base64,{data}">'
    )
    return _figure(image, "cbo-figure", caption, name)


def _enlarge(figure: Figure) -> None:
    """Enlarge letters that would be smaller than ``LEGIBLE`` at the size shown; scripts are 0.7 of their line."""
    width = figure.get_figwidth()
    least = 72 * width * LEGIBLE / min(SHOWN, 96 * width)

    def enough(words: str) -> float:
        return least / (0.7 if _SCRIPTS.search(words) else 1)

    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        labels = axis.get_ticklabels(which="both")
        if labels:  # there may be others when all is drawn
            sizes = [max(float(label.get_fontsize()), enough(label.get_text())) for label in labels]
            axis.set_tick_params(which="both", labelsize=max(sizes))
    for text in figure.findobj(Text):
        words = text.get_text()
        if words.strip():
            text.set_fontsize(max(float(text.get_fontsize()), enough(words)))


def _svg(figure: Figure) -> str:
    content = io.StringIO()
    for drawn in figure.findobj(Line2D):
        if drawn.get_marker() != "None" and np.size(drawn.get_xdata()) > MANY:
            drawn.set_rasterized(True)
    with plt.rc_context(_STYLE):
        _enlarge(figure)
        figure.savefig(content, format="svg", dpi=200, metadata={"Date": None})
    # Words keep the spaces that they begin with.
    svg = content.getvalue().replace("<text ", '<text xml:space="preserve" ')
    svg = _FONT.sub("'DejaVu Sans', Verdana, sans-serif", svg)
    svg = _LENGTHS.sub(lambda found: _LONG.sub(lambda one: f"{float(one[0]):.1f}", found[0]), svg)
    return _OUTLINE.sub(_thinned, svg)


def _thinned(outline: re.Match[str]) -> str:
    """A path of straight lines with no more corners than the eye needs."""
    points = np.array(outline[1].replace("L", "").split(), dtype=float).reshape(-1, 2)
    corners = " ".join(f"{x:.1f} {y:.1f}" for x, y in points[simplified(points, 0.1)])
    return f"M {corners} {outline[2]}"


def slider(
    frames: Sequence[Figure],
    labels: Sequence[str],
    alts: Sequence[str],
    over: str = "Step",
    start: int = 0,
    caption: str = "",
    name: str = "",
) -> HTML:
    """Step through figures with play, step and a slider, drawn in the page as SVG; it needs no kernel.

    The frame ``start`` shows where scripts do not run.

    Args:
        frames: at least one figure; all of one layout.
        labels: what is said beside the slider at each frame.
        alts: alternative text of each frame.
        over: what the slider steps over.
        start: the frame that the picture opens with.
        caption: as of ``show``.
        name: as of ``show``.

    Raises:
        ValueError: if the lengths differ, an alternative text is empty, a figure holds what ``frames`` cannot read, or
            ``name`` is not as ``show`` asks.
    """
    if not frames or not len(frames) == len(labels) == len(alts):
        raise ValueError(
            f"frames, labels and alts must have one length of at least 1, got {len(frames)}, {len(labels)}, {len(alts)}"
        )
    first = show(frames[start], alts[start]).data
    return from_figures(frames, labels, alts, over, first, start, caption, name)


class Panel:
    """Controls and a figure that answers them, in a running notebook.

    In a published page, where no kernel answers, the figure of the first choices is shown.

    Args:
        draw: makes the figure from one value a control.
        alt: alternative text.
        caption: as of ``show``.
        name: as of ``show``.
        controls: the choices of each control, by the name of the argument; the first is shown at the start.
    """

    def __init__(
        self, draw: Callable[..., Figure], alt: str, caption: str = "", name: str = "", **controls: Sequence[object]
    ) -> None:
        if not controls or not all(controls.values()):
            raise ValueError("controls must give each argument of draw at least one choice")
        self.draw = draw
        self.alt = alt
        self.caption = caption
        self.name = name
        self.controls = controls

    def _show(self, **values: object) -> str:
        return str(show(self.draw(**values), self.alt, self.caption, self.name).data)

    def widget(self) -> Widget:
        """The controls over the figure; needs ipywidgets, which the book's extra installs."""
        import ipywidgets as widgets

        image = widgets.HTML()
        choices = {
            name: widgets.SelectionSlider(
                options=[(str(o), o) for o in options], description=name, continuous_update=False
            )
            for name, options in self.controls.items()
        }

        def answer(_: object = None) -> None:
            image.value = self._show(**{name: c.value for name, c in choices.items()})

        for choice in choices.values():
            choice.observe(answer, names="value")
        answer()
        return widgets.VBox([widgets.HBox(list(choices.values())), image])

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, object]:
        try:
            box = self.widget()
        except ImportError:  # without ipywidgets the first choices can still be shown
            first = {name: options[0] for name, options in self.controls.items()}
            return {"text/html": self._show(**first)}
        return {**box._repr_mimebundle_(**kwargs), "text/html": box.children[1].value}


def line(
    x: ArrayLike,
    curves: Mapping[str, ArrayLike | tuple[ArrayLike, str | Mapping[str, Any]]] | ArrayLike,
    alt: str,
    figsize: tuple[float, float] = (7.2, 3.4),
    caption: str = "",
    name: str = "",
    **settings: Any,
) -> HTML:
    """Draw and display curves over the same positions.

    Args:
        x: the positions, ``n``.
        curves: the values ``n`` of one curve; or by label, several, each alone or with a Matplotlib format such as
            ``"o--"`` or with a ``style``. A label gets a line in the legend, which stands below the axes if there are
            more than five.
        alt: what is seen, in a sentence.
        figsize: in inches.
        caption: as of ``show``.
        name: as of ``show``.
        settings: of the axes, such as ``xlabel``, ``ylabel`` (with units), ``yscale`` or ``ylim``.
    """
    figure, axes = subplots(figsize=figsize)
    labeled = curves if isinstance(curves, Mapping) else {"": curves}
    for label, curve in labeled.items():
        values, look = curve if isinstance(curve, tuple) else (curve, "-")
        form, own = ([look], {}) if isinstance(look, str) else ([], _spaced(look, len(np.asarray(x))))
        axes[0, 0].plot(np.asarray(x), np.asarray(values), *form, label=label or None, **own)
    axes[0, 0].set(**settings)
    if len(labeled) > 5:  # among so many curves there is no room
        figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    elif any(labeled):
        axes[0, 0].legend(fontsize="small")
    return show(figure, alt, caption, name)


def _spaced(look: Mapping[str, Any], count: int) -> dict[str, Any]:
    """A style with about eight markers along the line, small ones, if it does not say otherwise."""
    return {"markevery": max(1, count // 8), "markersize": 4, **look} if "marker" in look else dict(look)


def plot_function(axes: Axes, f: Callable[[Tensor], Tensor], bounds: Tensor, **style: Any) -> None:
    """Draw a function of one variable on an interval ``2 x 1``."""
    x = interval(bounds, 1001)
    axes.plot(_array(x[:, 0]), _array(f(x)), **{"color": COLORS[-1], "label": "f", **style})


def plot_replicates(
    axes: Axes,
    values: Tensor,
    label: str,
    x: Sequence[float] | None = None,
    spread: str = "standard deviation",
    **style: Any,
) -> None:
    """Draw the mean over replicates with a band.

    Args:
        axes: where.
        values: ``replicates x steps``.
        label: for the legend.
        x: the horizontal positions. Default 1, 2, ....
        spread: ``"standard deviation"`` of a replicate or ``"standard error"`` of the mean, one to each side.
        style: of the line, such as ``style(label)`` of a policy, whose markers are spaced.

    Raises:
        ValueError: for another spread.
    """
    if spread not in ("standard deviation", "standard error"):
        raise ValueError(f"spread must be 'standard deviation' or 'standard error', got {spread!r}")
    mean = _array(values.mean(0))
    deviation = _array(values.std(0)) if len(values) > 1 else np.zeros_like(mean)  # one replicate has no spread
    if spread == "standard error":
        deviation = deviation / len(values) ** 0.5
    steps = np.arange(1, len(mean) + 1) if x is None else np.asarray(x)
    (line,) = axes.plot(steps, mean, label=label, **_spaced(style, len(steps)))
    axes.fill_between(steps, mean - deviation, mean + deviation, color=line.get_color(), alpha=0.15, linewidth=0)


def staircase(values: Mapping[str, float], label: str) -> Figure:
    """A chain of inequalities as bars, each with the factor by which it exceeds the one before.

    Args:
        values: the expressions of the chain by name, from the smallest; positive.
        label: of the logarithmic axis.
    """
    figure, axes = subplots(figsize=(7.2, 0.5 * len(values) + 0.8))
    ax, names, numbers = axes[0, 0], list(values), list(values.values())
    colors = [COLORS[-1]] + [COLORS[0]] * (len(names) - 1)
    ax.barh(names, numbers, color=colors, height=0.6)
    for row, number in enumerate(numbers):
        factor = f"  times {number / numbers[row - 1]:.1f}" if row else ""
        written = f"{number:.0f}" if number >= 100 else f"{number:.3g}"
        ax.text(number, row, f" {written}{factor}", va="center", fontsize="small")
    ax.set(xscale="log", xlabel=label, xlim=(min(numbers) / 2, max(numbers) * 12))
    ax.invert_yaxis()
    return figure


def proof_picture(boxes: Mapping[str, tuple[float, float, str, str]], arrows: Sequence[tuple[str, str]]) -> Figure:
    """The steps of a proof as boxes, with arrows from what a step rests on.

    Args:
        boxes: by name the column, the row, the words, and what the runs say, in another color.
        arrows: from which box to which.
    """
    columns, rows = [box[0] for box in boxes.values()], [box[1] for box in boxes.values()]
    figure, axes = subplots(figsize=(9, 1.2 + 1.3 * (max(rows) - min(rows))))
    ax, width, height = axes[0, 0], 0.37, 0.34
    ax.axis("off")
    ax.set(xlim=(min(columns) - 0.42, max(columns) + 0.42), ylim=(min(rows) - 0.45, max(rows) + 0.45))
    for column, row, words, told in boxes.values():
        corner, rounded = (column - width, row - height), "round,pad=0.02"
        ax.add_patch(FancyBboxPatch(corner, 2 * width, 2 * height, rounded, facecolor="#e8f0f8", edgecolor="0.4"))
        ax.text(column, row + 0.1, words, ha="center", va="center", fontsize=10)
        ax.text(column, row - 0.24, told, ha="center", va="center", fontsize=9.5, color=COLORS[1])
    for start, end in arrows:
        (a, b, *_), (c, d, *_) = boxes[start], boxes[end]
        up = (height + 0.02) * (1 if d > b else -1)
        side = width + 0.02
        tail, head = ((a, b + up), (c, d - up)) if a == c else ((a + side, b), (c - side, d))
        ax.annotate("", head, tail, arrowprops={"arrowstyle": "-|>", "color": "0.3", "linewidth": 1.4})
    return figure


def heatmap(axes: Axes, values: Mapping[tuple[int, int], float], x_label: str, y_label: str, value_label: str) -> None:
    """Draw a table of numbers as colors, each number written in its cell.

    Args:
        axes: where.
        values: by (row, column).
        x_label: of the columns.
        y_label: of the rows.
        value_label: of the colors.
    """
    rows, columns = (sorted(set(keys)) for keys in zip(*values, strict=True))
    table = np.array([[values[row, column] for column in columns] for row in rows])
    image = axes.imshow(table, cmap="cividis", aspect="auto", origin="lower")
    axes.set(xticks=range(len(columns)), xticklabels=columns, yticks=range(len(rows)), yticklabels=rows)
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(False)
    middle = (table.min() + table.max()) / 2
    for i, j in np.ndindex(table.shape):
        color = "white" if table[i, j] < middle else "black"
        axes.text(j, i, f"{table[i, j]:.2f}", ha="center", va="center", color=color, fontsize="small")
    axes.figure.colorbar(image, ax=axes, label=value_label)


def _array(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.detach().cpu())
