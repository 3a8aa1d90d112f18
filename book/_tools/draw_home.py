"""Draw the pictures of the home page and of the chapters' first pages, one for light and one for dark pages.

    python book/_tools/draw_home.py

Plain SVG with text as text, so that they stay small and legible at any size.
"""

import functools
import itertools
import math
from html import escape
from pathlib import Path
from urllib.parse import quote

import numpy as np

from book.steppers import View, outline, picture

STATIC = Path(__file__).resolve().parents[1] / "_static"
#: Ink, paper, and a color for each setting, by theme; all have a contrast of at least 3:1 on the theme's background.
THEMES = {
    "light": ("#1f2933", "#5b6770", ["#5b6770", "#0072B2", "#007a57", "#b04a00", "#9a3f78"]),
    "dark": ("#e6eaee", "#a9b4bd", ["#a9b4bd", "#56B4E9", "#2fc59a", "#ff9a4d", "#e79bc8"]),
}
LANES = [
    ("point", "the ordinary question", "f(x)"),
    ("cell", "aggregated feedback", "the average"),
    ("blur", "indirect queries", "the average"),
    ("context", "unknown contexts", "one draw of f"),
    ("subset", "variable subsets", "one draw, a price"),
]
#: By chapter: the lane of its query, what is chosen (two lines), what is seen (two lines), and what is looked for.
CHAPTERS = {
    "aggregated": ("cell", "a cell of", "the domain", "the mean of f", "in the cell", "the best single point"),
    "indirect": ("blur", "an action,", "the world blurs", "the mean of f", "in the blur", "the input of largest f"),
    "contexts": (
        "context",
        "a decision, the",
        "world a context",
        "f at one draw",
        "and the draw",
        "the decision that is best on average",
    ),
    "subsets": (
        "subset",
        "variables to set,",
        "the rest varies",
        "f at one draw",
        "and a price",
        "the cheapest subset that is good enough",
    ),
    "hyperparameters": (
        "doubt",
        "a point, under",
        "priors in doubt",
        "f at the point,",
        "not the prior",
        "the largest f, whichever prior is true",
    ),
}
LEFT, RIGHT, TOP, LANE = 218.0, 510.0, 40.0, 66.0


def curve(x: float) -> float:
    """The curve of the picture, on [0, 1]."""
    return math.sin(9 * x) + 0.5 * math.cos(23 * x)


def weight(lane: str, x: float) -> float:
    """How much a query of each kind weighs the place x, at most 1."""
    if lane == "cell":
        return float(0.12 <= x <= 0.36)
    if lane == "blur":
        return math.exp(-((x - 0.45) ** 2) / (2 * 0.1**2))
    if lane == "context":
        seen = (0.22, 0.3, 0.34, 0.6, 0.66, 0.7, 0.74, 0.86)
        return min(1.0, sum(math.exp(-((x - c) ** 2) / (2 * 0.05**2)) for c in seen) / 2.6)
    return 1.0


def across(x: float) -> float:
    """Where a place stands in the picture."""
    return LEFT + (RIGHT - LEFT) * x


def text(x: float, y: float, words: str, color: str, size: int = 19, extra: str = "") -> str:
    """One line of text."""
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{color}"{extra}>{escape(words)}</text>'


def settings(theme: str) -> str:
    """One curve, and under it what a query of each setting weighs."""
    ink, soft, colors = THEMES[theme]
    places = [i / 150 for i in range(151)]
    path = " ".join(f"{across(x):.1f},{TOP + 62 - 38 * curve(x):.1f}" for x in places)
    parts = [
        text(0, 30, "a query", soft),
        text(RIGHT + 24, 30, "what is seen", soft),
        text(LEFT, 18, "the unknown f", soft),
        f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="2.5"/>',
    ]
    for row, ((name, setting, seen), color) in enumerate(zip(LANES, colors, strict=True)):
        base = TOP + 172 + LANE * row
        parts += [text(0, base - 20, name, color, 22, ' font-weight="bold"'), text(0, base + 3, setting, soft, 19)]
        parts.append(f'<path d="M{LEFT:.0f} {base:.0f}H{RIGHT:.0f}" stroke="{soft}" stroke-width="1"/>')
        if name == "point":
            x = across(0.18)
            parts.append(f'<path d="M{x:.1f} {base:.0f}V{base - 38:.0f}" stroke="{color}" stroke-width="5"/>')
        else:
            top = " ".join(f"L{across(x):.1f} {base - 38 * weight(name, x):.1f}" for x in places)
            area = f"M{LEFT:.0f} {base:.0f} {top} L{RIGHT:.0f} {base:.0f}Z"
            parts.append(f'<path d="{area}" fill="{color}" fill-opacity="0.35" stroke="{color}" stroke-width="2"/>')
        if "draw" in seen:
            x = across(0.66 if name == "context" else 0.4)
            parts.append(f'<circle cx="{x:.1f}" cy="{base:.0f}" r="7" fill="{color}"/>')
        parts.append(text(RIGHT + 24, base - 10, seen, ink))
    return svg(720, TOP + 200 + LANE * (len(LANES) - 1), parts)


def dependencies(theme: str) -> str:
    """What has to be read before what."""
    ink, soft, colors = THEMES[theme]
    chapters = ["Aggregated", "Indirect", "Contexts", "Subsets", "Hyperparameters"]
    columns = [["Gaussian process", "Optimism", "Measures", "Your own problem"], chapters, ["Synthesis"]]
    boxes, parts = {}, []
    for column, (names, x) in enumerate(zip(columns, (2, 254, 506), strict=True)):
        for row, name in enumerate(names):
            y = 16 + 62 * row + 62 * (5 - len(names)) / 2
            boxes[name] = (x, y + 21)
            parts.append(
                f'<rect x="{x}" y="{y:.0f}" width="212" height="42" rx="8" fill="none" '
                f'stroke="{colors[1 + column]}" stroke-width="2"/>' + text(x + 12, y + 27, name, ink)
            )
    links = [("Measures", name) for name in chapters[:4]] + [("Optimism", chapters[4])]
    links += [(name, "Synthesis") for name in chapters]
    for start, end in links:
        (x0, y0), (x1, y1) = boxes[start], boxes[end]
        line = f"M{x0 + 212} {y0:.0f}L{x1} {y1:.0f}"
        parts.append(f'<path d="{line}" stroke="{soft}" stroke-width="1.5"/>')
    for first, second in itertools.pairwise(columns[0]):
        (x, y0), (_, y1) = boxes[first], boxes[second]
        parts.append(f'<path d="M{x + 106} {y0 + 21:.0f}V{y1 - 21:.0f}" stroke="{soft}" stroke-width="1.5"/>')
    return svg(720, 330, parts)


def opener(chapter: str, theme: str) -> str:
    """What is chosen, what it weighs under f, what is seen, and what is looked for."""
    ink, soft, colors = THEMES[theme]
    name, *words, aim = CHAPTERS[chapter]
    color = colors[[lane[0] for lane in LANES].index(name)] if name != "doubt" else colors[0]
    places, base = [i / 150 for i in range(151)], TOP + 190
    path = " ".join(f"{across(x):.1f},{TOP + 72 - 38 * curve(x):.1f}" for x in places)
    parts = [
        text(0, 80, "you choose", soft),
        text(0, 112, words[0], ink, 22),
        text(0, 140, words[1], ink, 22),
        text(RIGHT + 24, 80, "you see", soft),
        text(RIGHT + 24, 112, words[2], ink, 22),
        text(RIGHT + 24, 140, words[3], ink, 22),
        text(LEFT, 20, "the unknown f", soft),
        text(0, base + 42, f"you look for {aim}", soft),
        f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="2.5"/>',
        f'<path d="M{LEFT:.0f} {base:.0f}H{RIGHT:.0f}" stroke="{soft}" stroke-width="1"/>',
    ]
    if name == "doubt":  # how far f may lie from what each prior expects, given three values
        seen = (0.12, 0.5, 0.86)
        for height, reach, shade in ((44, 0.05, colors[3]), (16, 0.18, colors[1])):
            near = [min(abs(x - c) for c in seen) for x in places]
            band = " ".join(
                f"L{across(x):.1f} {base - height * (1 - math.exp(-((d / reach) ** 2))):.1f}"
                for x, d in zip(places, near, strict=True)
            )
            area = f"M{LEFT:.0f} {base:.0f} {band} L{RIGHT:.0f} {base:.0f}Z"
            parts.append(f'<path d="{area}" fill="{shade}" fill-opacity="0.3" stroke="{shade}" stroke-width="2"/>')
        dots = ((across(x), TOP + 72 - 38 * curve(x)) for x in seen)
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="{ink}"/>' for x, y in dots]
        return svg(720, base + 60, parts)
    top = " ".join(f"L{across(x):.1f} {base - 44 * weight(name, x):.1f}" for x in places)
    area = f"M{LEFT:.0f} {base:.0f} {top} L{RIGHT:.0f} {base:.0f}Z"
    parts.append(f'<path d="{area}" fill="{color}" fill-opacity="0.35" stroke="{color}" stroke-width="2"/>')
    if "draw" in " ".join(words):
        parts.append(f'<circle cx="{across(0.66):.1f}" cy="{base:.0f}" r="7" fill="{color}"/>')
    return svg(720, base + 60, parts)


def svg(width: float, height: float, parts: list[str]) -> str:
    """A whole picture."""
    font = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-family="{font}">'
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def pictures() -> dict[str, str]:
    """Every picture by its file name."""
    draw = {"settings": settings, "dependencies": dependencies}
    draw |= {f"opener-{chapter}": functools.partial(opener, chapter) for chapter in CHAPTERS}
    return {f"{name}-{theme}.svg": make(theme) for name, make in draw.items() for theme in THEMES}


def moving() -> str:
    """One curve, and a query of each setting that moves over it, as a picture that steps."""
    ends, base, height = (0.0, 1.0), -2.6, 0.9
    view = View(1.0, 320, x=list(ends), y=[base, 1.8], xl="x", yl="f")
    labels, alts, places = [], [], [i / 150 for i in range(151)]
    for lane, (name, setting, _) in enumerate(LANES):
        count = 1 if name == "subset" else 9
        track = [(i + 0.5) / count for i in range(count)]
        trace: list[tuple[float, float]] = []
        for turn, x in enumerate(track if name != "subset" else track * 5):
            weights = [moved(name, x, p) for p in places]
            total = sum(weights)
            mean = sum(w * curve(p) for w, p in zip(weights, places, strict=True)) / total
            drawn = quantile(weights, (0.5 + 0.618 * turn) % 1) / 150
            value = curve(drawn) if name in ("context", "subset") else mean
            at = drawn if name in ("context", "subset") else x
            step = len(labels)
            view.add(step, "line", outline(view, np.array([[p, curve(p)] for p in places])), c=6, w=2, order=1)
            top = [[p, base + height * w / max(weights)] for p, w in zip(places, weights, strict=True)]
            area = outline(view, np.array([[0.0, base], *top, [1.0, base]]))
            view.add(step, "area", area, c=lane, o=0.35, e=lane, w=1.5)
            for before in trace:
                view.add(step, "dot", *before, c=lane, s="o", r=2.5, o=0.6, order=2)
            support = [p for p, w in zip(places, weights, strict=True) if w > 0.1 * max(weights)]
            if name != "point":
                view.add(step, "seg", support[0], round(mean, 3), support[-1], round(mean, 3), c=lane, w=3, order=2)
            view.add(step, "dot", round(at, 3), round(value, 3), c=lane, s="o", r=6, order=3)
            view.explain(step, "the unknown f", "line", 6, "", "", 1.0)
            view.explain(step, f"what a {name} weighs", "box", lane, "", "", 0.35)
            view.explain(step, "what is seen", "", lane, "", "o", 1.0)
            if name != "point":
                view.explain(step, "the average", "line", lane, "", "", 1.0)
            trace.append((round(at, 3), round(value, 3)))
            seen = f"f at one draw, {drawn:.2f}, is {value:.2f}; the average is {mean:.2f}"
            what = {"point": f"f at {x:.2f} is {value:.2f}"}.get(name, f"the average around {x:.2f} is {mean:.2f}")
            what = seen if name in ("context", "subset") else what
            labels.append(f"{name} ({setting}): {what}")
            alts.append(f"One unknown curve f on the interval from 0 to 1. The query is a {name}: {what}.")
    line = " ".join(f"{720 * p:.0f},{110 - 55 * curve(p):.0f}" for p in places)
    stroke = f'<polyline points="{line}" fill="none" stroke="#5b6770" stroke-width="2.5"/>'
    mark = f'<circle cx="{720 * track_start():.0f}" cy="{110 - 55 * curve(track_start()):.0f}" r="8" fill="#0072B2"/>'
    source = "data:image/svg+xml," + quote(svg(720, 220, [stroke, mark]))
    still = f'<img alt="{escape(alts[0])}" src="{source}">'
    caption = "The same curve answers with a value or with an average, depending on what the query weighs."
    return str(picture([view], labels, alts, "Query", still, auto=True, caption=caption).data) + "\n"


def track_start() -> float:
    """Where the first query of the moving picture stands."""
    return 0.5 / 9


def moved(name: str, x: float, place: float) -> float:
    """How much a query of each kind weighs a place when it stands at ``x``."""
    if name == "point":
        return float(abs(place - x) < 0.004)
    if name == "cell":
        return float(abs(place - x) <= 0.12)
    if name == "blur":
        return math.exp(-((place - x) ** 2) / (2 * 0.08**2))
    if name == "context":
        return weight(name, place - x + 0.5)
    return 1.0


def quantile(weights: list[float], part: float) -> int:
    """The first place at which so much of the weight lies to the left."""
    total = sum(weights)
    return next(i for i, mass in enumerate(itertools.accumulate(weights)) if mass >= part * total)


if __name__ == "__main__":
    (STATIC / "moving.html").write_text(moving(), encoding="utf-8")
    for name, content in pictures().items():
        (STATIC / name).write_text(content, encoding="utf-8")
