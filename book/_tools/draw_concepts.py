"""Draw the concepts of the book in one style, one picture for light and one for dark pages.

    python book/_tools/draw_concepts.py

They stand on the first pages of the chapters, where a word is met for the first time.
"""

import math

import numpy as np

from book._tools.draw_home import STATIC, THEMES, curve, svg, text

#: By name of the picture: the page on which it stands.
PAGES = {
    "loop": "foundations",
    "measure": "foundations",
    "information": "foundations",
    "mass": "contexts",
    "sets": "subsets",
}


def path(points: list[tuple[float, float]], color: str, width: float = 2.5, extra: str = "") -> str:
    """A line through points."""
    ends = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{ends}" fill="none" stroke="{color}" stroke-width="{width}"{extra}/>'


def box(x: float, y: float, width: float, height: float, color: str, fill: float = 0.0, round_: float = 8) -> str:
    """A rectangle with an outline, shaded or not."""
    shade = f'fill="{color}" fill-opacity="{fill}"' if fill else 'fill="none"'
    size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {size} rx="{round_}" {shade} stroke="{color}" stroke-width="2"/>'


def arrow(x0: float, y0: float, x1: float, y1: float, color: str) -> str:
    """A straight arrow."""
    angle = math.atan2(y1 - y0, x1 - x0)
    head = [(x1 - 14 * math.cos(angle + turn), y1 - 14 * math.sin(angle + turn)) for turn in (0.45, -0.45)]
    return path([(x0, y0), (x1, y1)], color) + path([head[0], (x1, y1), head[1]], color)


def centered(x: float, y: float, words: str, color: str, size: int = 19, extra: str = "") -> str:
    """One line of text around a place."""
    return text(x, y, words, color, size, ' text-anchor="middle"' + extra)


def loop(theme: str) -> str:
    """The learner asks, the world answers, and what is known grows."""
    ink, _, colors = THEMES[theme]
    bold = ' font-weight="bold"'
    return svg(
        720,
        230,
        [
            box(2, 40, 216, 150, colors[1]),
            centered(110, 84, "learner", colors[1], 24, bold),
            centered(110, 120, "what is known of f:", ink),
            centered(110, 148, "the posterior", ink),
            box(502, 40, 216, 150, colors[3]),
            centered(610, 84, "world", colors[3], 24, bold),
            centered(610, 120, "turns actions into", ink),
            centered(610, 148, "weights under f", ink),
            arrow(226, 84, 494, 84, ink),
            centered(360, 70, "an action", ink, 22),
            arrow(494, 148, 226, 148, ink),
            centered(360, 180, "an average of f, or f at", ink),
            centered(360, 206, "one draw, with noise", ink),
        ],
    )


def measure(theme: str) -> str:
    """Points with weights, and the average that they give."""
    ink, soft, colors = THEMES[theme]
    points = [(0.1, 0.15), (0.3, 0.3), (0.5, 0.25), (0.72, 0.2), (0.9, 0.1)]
    mean = sum(weight * curve(x) for x, weight in points)

    def height(value: float) -> float:
        return 100 - 44 * value

    parts = [
        path([(20 + 500 * i / 150, height(curve(i / 150))) for i in range(151)], ink),
        path([(20, 270), (520, 270)], soft, 1),
        path([(20, height(mean)), (520, height(mean))], colors[1], 2.5, ' stroke-dasharray="8 6"'),
        text(532, height(mean) - 6, "what is seen:", soft),
        text(532, height(mean) + 20, "the sum of w f(x)", colors[1]),
        text(532, 244, "weights w", colors[2]),
        text(532, 270, "at points x", soft),
    ]
    for x, weight in points:
        at = 20 + 500 * x
        parts.append(path([(at, 270), (at, 270 - 220 * weight)], colors[2], 7))
        parts.append(path([(at, 270 - 220 * weight), (at, height(curve(x)))], soft, 1, ' stroke-dasharray="3 5"'))
        parts.append(f'<circle cx="{at:.1f}" cy="{height(curve(x)):.1f}" r="6" fill="{ink}"/>')
    return svg(720, 290, parts)


def gains(count: int = 8, noise: float = 0.3, lengthscale: float = 0.18) -> list[float]:
    """What each of the most telling points tells, in nats, for a squared exponential kernel on [0, 1]."""
    places = np.linspace(0, 1, 101)
    cov = np.exp(-((places[:, None] - places[None]) ** 2) / (2 * lengthscale**2))
    found = []
    for _ in range(count):
        best = int(np.argmax(np.diag(cov)))
        found.append(0.5 * math.log(1 + cov[best, best] / noise**2))
        cov = cov - np.outer(cov[best], cov[best]) / (cov[best, best] + noise**2)
    return found


def information(theme: str) -> str:
    """Every answer adds to the information, and later ones add less."""
    ink, soft, colors = THEMES[theme]
    each = gains()
    total, parts = 0.0, [path([(70, 250), (560, 250)], soft, 1)]
    scale = 210 / sum(each)
    for t, gain in enumerate(each):
        x = 80 + 60 * t
        if total:
            parts.append(box(x, 250 - scale * total, 46, scale * total, soft, 0.15, 0))
        parts.append(box(x, 250 - scale * (total + gain), 46, scale * gain, colors[1], 0.45, 0))
        parts.append(centered(x + 23, 276, str(t + 1), soft))
        total += gain
    parts += [
        text(574, 250 - scale * total + 14, "information", ink),
        text(574, 250 - scale * total + 40, "gain so far", ink),
        text(574, 150, "blue: what", colors[1]),
        text(574, 176, "this answer", colors[1]),
        text(574, 202, "adds", colors[1]),
        text(574, 276, "answer", soft),
    ]
    return svg(720, 290, parts)


def mass(theme: str) -> str:
    """The worst distribution of a ball: mass goes from where f is largest to where it is least."""
    ink, soft, colors = THEMES[theme]
    left, width, base = 20.0, 500.0, 270.0

    def density(c: float) -> float:
        return math.exp(-((c - 0.5) ** 2) / (2 * 0.2**2))

    places = [i / 150 for i in range(151)]
    cut = 0.72
    kept = [(left + width * c, base - 110 * density(c)) for c in places if c <= cut]
    gone = [(left + width * c, base - 110 * density(c)) for c in places if c >= cut]

    def area(top: list[tuple[float, float]], color: str, shade: float) -> str:
        ends = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(top[0][0], base), *top, (top[-1][0], base)])
        return f'<polygon points="{ends}" fill="{color}" fill-opacity="{shade}" stroke="{color}" stroke-width="2"/>'

    bend = [(left + width * (0.86 - 0.83 * s), 214 - 130 * math.sin(math.pi * s) * 0.45) for s in np.linspace(0, 1, 40)]
    return svg(
        720,
        300,
        [
            path([(left + width * c, 110 - 90 * c**2) for c in places], ink),
            text(532, 34, "f of a decision,", ink),
            text(532, 60, "by context", ink),
            area(kept, colors[1], 0.3),
            area(gone, colors[3], 0.12),
            path([(left + 6, base), (left + 6, base - 62)], colors[3], 9),
            path(bend, colors[3], 2, ' stroke-dasharray="7 5"'),
            arrow(*bend[-2], bend[-1][0], bend[-1][1] + 2, colors[3]),
            text(532, 176, "the estimate of", soft),
            text(532, 202, "the contexts", soft),
            text(532, 244, "a mass of δ/2", colors[3]),
            text(532, 270, "moves", colors[3]),
            centered(left + width / 2, 294, "contexts", soft),
        ],
    )


def sets(theme: str) -> str:
    """Control sets: which variables are set, which are left to vary, and what it costs."""
    _, soft, colors = THEMES[theme]
    rows = [("10000", 1), ("01100", 2), ("11100", 3), ("11111", 6)]
    parts = [text(20 + 70 * k, 26, f"x{k + 1}", soft) for k in range(5)]
    parts += [text(400, 26, "price of a play", soft)]
    for row, (pattern, price) in enumerate(rows):
        y = 44 + 56 * row
        for k, on in enumerate(pattern):
            parts.append(box(16 + 70 * k, y, 40, 40, colors[4] if on == "1" else soft, 0.45 if on == "1" else 0, 6))
            if on == "0":
                wave = [(22 + 70 * k + i, y + 20 - 7 * math.sin(i * 0.45)) for i in range(29)]
                parts.append(path(wave, soft, 2))
        parts.append(box(400, y + 10, 40 * price, 20, colors[3], 0.35, 3))
    parts += [text(16, 300, "Filled: you set it.", colors[4]), text(240, 300, "Waves: it varies on its own.", soft)]
    return svg(720, 316, parts)


DRAW = {
    "loop": loop,
    "measure": measure,
    "information": information,
    "mass": mass,
    "sets": sets,
}


def concepts() -> dict[str, str]:
    """Every picture by its file name."""
    return {f"concept-{name}-{theme}.svg": make(theme) for name, make in DRAW.items() for theme in THEMES}


if __name__ == "__main__":
    for name, content in concepts().items():
        (STATIC / name).write_text(content, encoding="utf-8")
