"""Figures that Matplotlib drew, one a step, read into a picture that steps in the published page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from IPython.display import HTML
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.spines import Spine
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator

from book.steppers import PALETTE, WIDTH, View, outline, picture, places

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"


def from_figures(
    frames: Sequence[Figure],
    labels: Sequence[str],
    alts: Sequence[str],
    over: str,
    still: str,
    start: int = 0,
    caption: str = "",
    name: str = "",
) -> HTML:
    """A picture that steps through figures that Matplotlib drew, of one layout.

    What is read: lines, bars, filled areas, segments, words, images and legends. Anything else raises a ValueError.

    Args:
        frames: at least one figure.
        labels: what is said beside the slider at each frame.
        alts: alternative text of each frame.
        over: what the slider steps over.
        still: markup of the frame that the picture opens with, shown where no script runs.
        start: the frame that the picture opens with.
        caption: what the reader should take from it, in a sentence.
        name: by which text refers to the figure.
    """
    panels = [[axes for axes in figure.axes if axes.get_label() != "<colorbar>"] for figure in frames]
    views = [_view([axes[k] for axes in panels], frames[0]) for k in range(len(panels[0]))]
    for step, axes in enumerate(panels):
        for view, one in zip(views, axes, strict=True):
            _read(view, step, one)
    return picture(views, labels, alts, over, still, start, caption=caption, name=name)


def _view(panels: Sequence[Axes], figure: Figure) -> View:
    """The view that a panel of every frame shares."""
    first, last = panels[0], panels[-1]
    place: Any = first.get_subplotspec()
    grid = place.get_gridspec()
    widths = list(grid.get_width_ratios())
    heights = list(grid.get_height_ratios())
    width = sum(widths[place.colspan.start : place.colspan.stop]) / sum(widths)
    height = sum(heights[place.rowspan.start : place.rowspan.stop]) / sum(heights)
    tall = max(150, round(WIDTH * figure.get_figheight() / figure.get_figwidth() * height))
    settings: dict[str, Any] = {"x": _limits([a.get_xlim() for a in panels])}
    settings["y"] = _limits([a.get_ylim() for a in panels])
    titles = [a.get_title() for a in panels]
    if any(titles):
        settings["title"] = titles[0] if len(set(titles)) == 1 else titles
    for key, value in (("xl", first.get_xlabel()), ("yl", first.get_ylabel())):
        if value:
            settings[key] = value
    settings |= {f"{n}log": True for n in "xy" if getattr(first, f"get_{n}scale")() == "log"}
    for key, axis in (("xt", last.xaxis), ("yt", last.yaxis)):
        locator = axis.get_major_locator()
        if isinstance(locator, FixedLocator):
            marked = [float(v) for v in locator()]
            words = [_short(_words(w)) for w in axis.get_major_formatter().format_ticks(marked)]
            settings[key] = [[v, w] for v, w in zip(marked, words, strict=True)]
        elif key == "yt" and not axis.get_visible():
            settings[key] = []
    if first.get_aspect() == 1.0:
        settings["eq"] = True
    if not first.axison:
        settings["off"] = True
    bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    if bars and first is [axes for axes in figure.axes if axes.images][-1]:
        low, high = first.images[0].get_clim()
        settings["bar"] = [low, high, bars[0].get_ylabel()]
    return View(width, tall, **settings)


def _limits(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """The range that holds all ranges; it runs down if they do."""
    ends = np.array(pairs, dtype=float)
    down = bool(ends[0, 0] > ends[0, 1])
    low, high = float(ends.min()), float(ends.max())
    return [round(v, 6) for v in ((high, low) if down else (low, high))]


def _read(view: View, step: int, axes: Axes) -> None:
    """Everything that stands in a pair of axes."""
    frame = [axes.patch, axes.title, axes._left_title, axes._right_title]  # type: ignore[attr-defined]
    for artist in axes.get_children():
        if not artist.get_visible() or artist in frame or isinstance(artist, Spine | Axis | Legend):
            continue
        readers = [(kind, read) for kind, read in _READERS.items() if isinstance(artist, kind)]
        if not readers:
            raise ValueError(f"a picture that steps cannot show {type(artist).__name__}")
        readers[0][1](view, step, axes, artist)
    legend = axes.get_legend()
    if legend is not None:
        for handle, words in zip(legend.legend_handles, legend.get_texts(), strict=True):
            view.explain(step, _words(words.get_text()), *_sample(handle))


def _read_box(view: View, step: int, axes: Axes, box: Any) -> None:
    x, y, w, h = box.get_x(), box.get_y(), box.get_width(), box.get_height()
    if not w or not h:
        return
    face, edge, width = box.get_facecolor(), box.get_edgecolor(), box.get_linewidth()
    style: dict[str, Any] = {"c": _color(face), "o": round(face[3], 2) if box.get_fill() else 0}
    if edge[3] and width and not (box.get_fill() and colors.same_color(edge[:3], face[:3])):
        style |= {"e": _color(edge), "w": round(1.2 * width, 1), **({"d": "--"} if box.get_hatch() else {})}
    along = box.get_transform().contains_branch_seperately(axes.transData)
    x0, x1 = places(view, "x", [x, x + w]) if along[0] else view.settings["x"]
    y0, y1 = places(view, "y", [y, y + h]) if along[1] else view.settings["y"]
    view.add(step, "box", x0, x1, y0, y1, order=box.get_zorder(), **style)


def _read_area(view: View, step: int, axes: Axes, area: Any) -> None:
    face = area.get_facecolor()[0]
    style = {"c": _color(face), "o": round(float(face[3]), 2)}
    for path in area.get_paths():
        view.add(step, "area", outline(view, np.asarray(path.vertices)[:-1]), order=area.get_zorder(), **style)


def _read_text(view: View, step: int, axes: Axes, text: Any) -> None:
    if not text.get_text():
        return
    style = {"c": _color(text.get_color()), "a": _ANCHOR[text.get_horizontalalignment()]}
    style["size"] = max(9, round(1.05 * text.get_fontsize()))
    x, y = text.get_position()
    at = *places(view, "x", [x]), *places(view, "y", [y])
    view.add(step, "text", *at, _words(text.get_text()), order=text.get_zorder(), **style)


_ANCHOR = {"left": "start", "center": "middle", "right": "end"}


def _words(text: object) -> str:
    return str(text).replace("$", "")


def _short(name: str) -> str:
    return name if len(name) < 15 else f"{name[:7]}…{name[-4:]}"


def _color(value: Any) -> int | str:
    """A number of the book's palette, a gray, or a color as it is."""
    code = colors.to_hex(value).upper()
    if code in PALETTE:
        return PALETTE.index(code)
    red, green, blue = colors.to_rgb(value)
    if max(red, green, blue) - min(red, green, blue) < 0.02:
        return "faint" if red > 0.66 else "soft" if red > 0.2 else len(PALETTE) - 1
    return code.lower()


def _read_line(view: View, step: int, axes: Axes, line: Any) -> None:
    """A curve, its signs, or a rule across the axes."""
    points = np.asarray(line.get_xydata(), dtype=float)
    points = points[np.isfinite(points).all(1)]
    order, color, alpha = line.get_zorder(), _color(line.get_color()), line.get_alpha()
    style: dict[str, Any] = {"c": color, "w": round(1.2 * line.get_linewidth(), 1)}
    if line.get_linestyle() not in ("-", "None"):
        style["d"] = line.get_linestyle()
    if alpha is not None:
        style["o"] = alpha
    along = line.get_transform().contains_branch_seperately(axes.transData)
    if not all(along):
        at = points[0, 0] if along[0] else points[0, 1]
        name = "v" if along[0] else "h"
        view.add(step, "rule", *places(view, "x" if along[0] else "y", [at]), order=order, dir=name, **style)
        return
    if line.get_linestyle() != "None" and len(points) > 1:
        view.add(step, "line", outline(view, points), order=order, **style)
    sign = _SIGNS.get(line.get_marker())
    if sign is not None:
        hollow = line.get_fillstyle() == "none" or line.get_markerfacecolor() == "none"
        small = 0.55 if line.get_marker() == "." else 1.0
        dots: dict[str, Any] = {"c": color, "s": sign, "r": round(max(1.5, 0.62 * small * line.get_markersize()), 1)}
        dots |= {"hollow": True} if hollow else {}
        dots |= {"o": alpha} if alpha is not None else {}
        for x, y in points:
            view.add(step, "dot", *places(view, "x", [x]), *places(view, "y", [y]), order=order + 0.1, **dots)


_SIGNS = {s: s for s in ("o", "s", "^", "D", "x", "|", "_", "*")} | {".": "o"}


def _read_segments(view: View, step: int, axes: Axes, lines: Any) -> None:
    edges, widths, styles = lines.get_edgecolor(), lines.get_linewidth(), lines.get_linestyle()
    for k, segment in enumerate(lines.get_segments()):
        (x0, y0), (x1, y1) = segment[0], segment[-1]
        edge = edges[k % len(edges)]
        style: dict[str, Any] = {"c": _color(edge), "w": round(1.2 * float(widths[k % len(widths)]), 1)}
        if styles[k % len(styles)][1] is not None:
            style["d"] = "--"
        if edge[3] < 1:
            style["o"] = round(float(edge[3]), 2)
        (a, b), (c, d) = places(view, "x", [x0, x1]), places(view, "y", [y0, y1])
        view.add(step, "seg", a, c, b, d, order=lines.get_zorder(), **style)


def _read_image(view: View, step: int, axes: Axes, image: Any) -> None:
    """A table of numbers as one digit each, row by row from below."""
    values = np.asarray(image.get_array(), dtype=float)
    if image.origin == "upper":
        values = values[::-1]
    low, high = image.get_clim()
    part = np.clip((values - low) / (high - low), 0, 1)
    code = "".join(DIGITS[k] for k in np.rint(63 * part).astype(int).ravel())
    left, right, bottom, top = image.get_extent()
    corners = [*places(view, "x", [left, right]), *places(view, "y", [bottom, top])]
    view.add(step, "field", *corners, code, order=image.get_zorder(), n=values.shape[1])


_READERS: dict[type, Any] = {
    Line2D: _read_line,
    Rectangle: _read_box,
    LineCollection: _read_segments,
    PolyCollection: _read_area,
    AxesImage: _read_image,
    Text: _read_text,
}


def _sample(handle: Any) -> tuple[str, int | str, str, str, float]:
    """What stands in the legend beside the words."""
    is_line, is_segments = isinstance(handle, Line2D), isinstance(handle, LineCollection)
    if is_line:
        drawn = handle.get_linestyle() != "None"
        if drawn and handle.get_linewidth() > 4:  # what stands for bars
            return "box", _color(handle.get_color()), "", "", handle.get_alpha() or 1.0
        dash = handle.get_linestyle() if drawn and handle.get_linestyle() != "-" else ""
        sign = _SIGNS.get(handle.get_marker(), "")
        hollow = "o" * bool(sign and (handle.get_fillstyle() == "none" or handle.get_markerfacecolor() == "none"))
        return "line" if drawn else "", _color(handle.get_color()), dash, sign + hollow, handle.get_alpha() or 1.0
    if is_segments:
        edge, width = handle.get_edgecolor()[0], float(handle.get_linewidth()[0])
        dash = "" if handle.get_linestyle()[0][1] is None else "--"
        return ("box" if width > 4 else "line"), _color(edge), dash, "", round(float(edge[3]), 2)
    face, edge = handle.get_facecolor(), handle.get_edgecolor()
    if not handle.get_fill():
        return "edge", _color(edge), "--" if handle.get_hatch() else "", "", 1.0
    return "box", _color(face), "", "", round(float(face[3]), 2)
