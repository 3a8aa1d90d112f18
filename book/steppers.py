"""Pictures that step in the published page: small data for ``stepper.js``, which draws it as SVG, without a kernel.

Whatever stays the same over several steps is written once, with the steps between which it lives. The frame that the
picture opens with stands in the page as an ordinary figure, for readers without JavaScript and for JupyterLab.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from IPython.display import HTML

#: How wide a figure is drawn in the page, in pixels.
WIDTH = 700
#: The colors that a picture names by their number; ``stepper.css`` has their variants for the dark. Okabe and Ito's,
#: which people with any color vision can tell apart, darkened until lines stand out 3:1 from white.
PALETTE = ("#0072B2", "#D55E00", "#009068", "#B8608F", "#947A00", "#3D92CC", "#000000")
Values = tuple[Any, ...]


class View:
    """One pair of axes over all steps.

    Args:
        width: its share of the picture's width.
        height: in pixels.
        settings: of the axes, see ``stepper.js``: ``x`` and ``y`` (limits), ``xl`` and ``yl`` (names), ``xt`` and
            ``yt`` (positions and labels of ticks), ``xlog``, ``ylog``, ``eq`` (equal scales), ``off``, ``title``.
    """

    def __init__(self, width: float = 1.0, height: int = 260, **settings: Any) -> None:
        self.settings = {"w": round(width, 3), "h": height, **settings}
        self._groups: dict[str, dict[int, list[Values]]] = {}
        self._orders: dict[str, float] = {}
        self._legend: dict[int, list[Values]] = {}

    def add(self, step: int, kind: str, *values: Any, order: float = 0.0, **style: Any) -> None:
        """Show a mark at one step.

        Args:
            step: when, from zero.
            kind: ``line`` or ``area`` (one flat list of coordinates), ``box`` (x0, x1, y0, y1), ``seg`` (x0, y0, x1,
                y1), ``rule`` (a position), ``dot`` (x, y), ``text`` (x, y, words) or ``field`` (x0, x1, y0, y1, code).
            values: of the mark.
            order: what is higher is drawn later.
            style: as ``stepper.js`` reads it.
        """
        group = json.dumps({"m": kind, **style}, sort_keys=True)
        self._orders[group] = order
        self._groups.setdefault(group, {}).setdefault(step, []).append(tuple(map(_plain, values)))

    def explain(self, step: int, label: str, kind: str, color: int | str, dash: str, sign: str, opacity: float) -> None:
        """Say in the legend of one step what looks how: a ``line``, ``box``, ``edge`` or nothing but a sign."""
        self._legend.setdefault(step, []).append((label, kind, color, dash, sign, opacity))

    def data(self) -> dict[str, Any]:
        """What ``stepper.js`` draws."""
        groups = sorted(self._groups, key=lambda group: self._orders[group])
        marks = [{**json.loads(group), "rows": lives(self._groups[group])} for group in groups]
        # Entries keep their order at every step: their place goes with them and is not written.
        placed = {step: [(k, *entry) for k, entry in enumerate(entries)] for step, entries in self._legend.items()}
        rows = sorted(lives(placed, keys=[None, (0,)]), key=lambda row: int(row[2]))
        return {**self.settings, "marks": marks, "legend": [[*row[:2], *row[3:]] for row in rows]}


def lives(steps: Mapping[int, Sequence[Values]], keys: Sequence[Values | None] = (None, (0, 1), (2, 3))) -> list[Any]:
    """Rows ``[from, to, value, ...]`` of what was shown at each step, as short as they can be written.

    A value that changes while its row lives is a list with one entry a step. Members are followed from step to step by
    all of their values, or by those at the places of one of the ``keys`` if that is shorter and tells them apart.
    """
    found: list[list[Any]] = []
    for key in keys:
        follow = _follow(steps, key)
        if follow is not None:
            found.append(follow)
    return min(found, key=lambda rows: len(json.dumps(rows)), default=[])


def _follow(steps: Mapping[int, Sequence[Values]], key: Values | None) -> list[Any] | None:
    members: dict[Values, list[tuple[int, Values]]] = {}
    for step in sorted(steps):
        seen = set()
        for values in steps[step]:
            if key is not None and (len(values) <= max(key) or any(isinstance(v, tuple) for v in values)):
                return None
            name = values if key is None else tuple(values[k] for k in key)
            if name in seen:
                if key is not None:
                    return None
                continue  # the same mark twice
            seen.add(name)
            members.setdefault(name, []).append((step, values))
    rows = []
    for name in members:
        run: list[tuple[int, Values]] = []
        for at in [*members[name], (-1, ())]:
            if run and at[0] != run[-1][0] + 1:
                columns = zip(*(values for _, values in run), strict=True)
                cells = [column[0] if len(set(column)) == 1 else list(column) for column in columns]
                rows.append([run[0][0], run[-1][0] + 1, *cells])
                run = []
            run.append(at)
    return rows


def _plain(value: Any) -> Any:
    """A value as JSON has it; nothing that is no number passes."""
    if isinstance(value, str):
        return value
    if np.ndim(value):
        return tuple(_plain(v) for v in value)
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"a mark needs finite values, got {number}")
    return int(number) if number == int(number) else number


def picture(
    views: Sequence[View],
    labels: Sequence[str],
    alts: Sequence[str],
    over: str,
    still: str,
    start: int = 0,
    auto: bool = False,
    caption: str = "",
    name: str = "",
) -> HTML:
    """The markup of a picture that steps.

    Args:
        views: what is drawn.
        labels: what is said beside the slider at each step.
        alts: alternative text of each step.
        over: what the slider steps over.
        still: markup of the picture at the step ``start``, shown where no script runs.
        start: the step that the picture opens with.
        auto: whether it plays once when it is first seen, except for readers who asked for less motion.
        caption: what the reader should take from it, in a sentence.
        name: by which text refers to the figure.
    """
    count = len(labels)
    if not count or len(alts) != count or not 0 <= start < count:
        raise ValueError(
            f"labels and alts must have one length, and start lie within, got {count}, {len(alts)}, {start}"
        )
    for alt in alts:
        require_alt(alt)
    data = {
        "name": over,
        "start": start,
        "ms": int(min(max(20000 / count, 300), 1500)),
        "labels": list(labels),
        "alts": list(alts),
        "views": [view.data() for view in views],
        **({"auto": True} if auto else {}),
    }
    note = f"Step {start + 1} of {count}: {labels[start]}. The other steps need JavaScript."
    return embed(data, still, note, caption=caption, name=name)


def require_alt(alt: str) -> None:
    """Raise a ValueError if a text that should say what is seen is empty."""
    if not alt.strip():
        raise ValueError("alt must say what is seen, got an empty text")


def cell(
    still: str,
    waves: Sequence[tuple[float, float, float]],
    errors: Sequence[float],
    lengthscale: float,
    variance: float,
    noise: float,
    start: tuple[float, float],
    cells: Sequence[tuple[float, float, float]] = (),
    points: int = 20,
    limits: tuple[float, float] = (-3.0, 3.0),
    caption: str = "",
    name: str = "",
) -> HTML:
    """A cell that readers drag over an unknown curve on [0, 1], with the posterior after its report; see ``cell.js``.

    Args:
        still: markup of the figure that is shown where no script runs.
        waves: amplitude, frequency and phase of the sines that add up to f.
        errors: of the reports, one after the other.
        lengthscale: of the squared exponential kernel.
        variance: of the kernel.
        noise: standard deviation that the posterior assumes of a report.
        start: center and width of the cell at first.
        cells: center, width and report of cells that have reported before.
        points: of each cell.
        limits: of the vertical axis.
        caption: what the reader should take from it, in a sentence.
        name: by which text refers to the figure.
    """
    data = {"kind": "cell", "waves": waves, "errors": errors, "lengthscale": lengthscale, "variance": variance}
    data |= {"noise": noise, "start": start, "cells": cells, "points": points, "limits": limits}
    note = "Without JavaScript the cell stays where it is."
    return embed(data, still, note, "cbo-stepper cbo-drag", caption, name)


def figure(content: str, style: str, caption: str = "", name: str = "") -> HTML:
    """A figure with its caption; the published page numbers it, and the role ``fig`` refers to it by its name.

    Args:
        content: markup of what is seen.
        style: classes.
        caption: plain text, what the reader should take from it, in a sentence.
        name: letters, digits and hyphens, the chapter first.

    Raises:
        ValueError: for another name, or a name without a caption.
    """
    if name and not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", name):
        raise ValueError(f"a figure's name is small letters, digits and hyphens, chapter first, got {name!r}")
    if name and not caption.strip():
        raise ValueError(f"a figure with a name needs a caption, got none for {name!r}")
    named = f' id="fig-{name}"' if name else ""
    said = f'<figcaption class="cbo-caption">{html.escape(caption)}</figcaption>' if caption.strip() else ""
    return HTML(f'<figure class="{style}"{named}>{content}{said}</figure>')


def embed(
    data: Mapping[str, Any], still: str, note: str, style: str = "cbo-stepper", caption: str = "", name: str = ""
) -> HTML:
    """Data for ``stepper.js`` beside the picture that is shown without it, what is said there, and the caption."""
    # "</script" would end the element early, and "<!--<script" would never end it.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    content = f'<div class="cbo-stage">{still}</div><noscript>{html.escape(note)}</noscript>'
    return figure(f'{content}<script type="application/json">{text}</script>', style, caption, name)


def places(view: View, axis: str, values: Sequence[float]) -> list[float]:
    """Coordinates to a thousandth of the axis."""
    low, high = sorted(view.settings[axis])
    if view.settings.get(f"{axis}log"):
        return [float(f"{v:.4g}") for v in values]
    digits = max(0, 3 - math.floor(math.log10(high - low)))
    # What lies far beyond an edge is drawn to it only.
    return [round(min(max(float(v), 2 * low - high), 2 * high - low), digits) for v in values]


def outline(view: View, points: np.ndarray) -> list[float]:
    """The corners of a curve that matter to the eye, flat."""
    scaled = []
    for k, axis in enumerate("xy"):
        low, high = view.settings[axis]
        if view.settings.get(f"{axis}log"):
            scaled.append((np.log(points[:, k]) - math.log(low)) / math.log(high / low))
        else:
            scaled.append((points[:, k] - low) / (high - low))
    kept = points[simplified(np.stack(scaled, 1), 0.0008)]
    xs, ys = places(view, "x", kept[:, 0].tolist()), places(view, "y", kept[:, 1].tolist())
    return [v for pair in zip(xs, ys, strict=True) for v in pair]


def simplified(points: np.ndarray, tolerance: float) -> list[int]:
    """Which of the points ``n x 2`` are needed to draw their curve within the tolerance (Douglas and Peucker)."""
    keep, stack = {0, len(points) - 1}, [(0, len(points) - 1)]
    while stack:
        first, last = stack.pop()
        if last - first < 2:
            continue
        inner = points[first + 1 : last] - points[first]
        chord = points[last] - points[first]
        length = float(np.hypot(*chord))
        away = (
            np.hypot(*inner.T) if length < 1e-12 else np.abs(inner[:, 0] * chord[1] - inner[:, 1] * chord[0]) / length
        )
        farthest = int(away.argmax())
        if away[farthest] > tolerance:
            middle = first + 1 + farthest
            keep.add(middle)
            stack += [(first, middle), (middle, last)]
    return sorted(keep)
