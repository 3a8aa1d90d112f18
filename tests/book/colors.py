"""How far two colors stand apart."""

from matplotlib.colors import to_rgb


def contrast(a: str | tuple[float, ...], b: str | tuple[float, ...]) -> float:
    """The contrast ratio (WCAG 2) of two colors that Matplotlib knows."""
    low, high = sorted(map(_luminance, (a, b)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str | tuple[float, ...]) -> float:
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(color)]
    return sum(part * v for part, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
