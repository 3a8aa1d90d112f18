"""Every policy has one look, legible on white, and no two of a chapter can be mistaken for each other."""

import itertools
import re
from pathlib import Path

import pytest
from matplotlib.colors import to_hex

from book import figures, looks
from book.looks import POLICIES, Look, style
from book.steppers import PALETTE
from tests.book.colors import contrast

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted({chapter for look in POLICIES.values() for chapter in look.chapters})


def alike(one: Look, other: Look) -> bool:
    """Whether neither color nor line and marker together tell two apart."""
    return one.color == other.color and (one.line == other.line or one.marker == other.marker)


def test_lines_stand_out_from_white() -> None:
    assert {name for name, look in POLICIES.items() if contrast(look.color, "white") < 3} == set()
    assert all(contrast(color, "white") >= 3 for color in PALETTE)


def test_the_page_draws_the_palette_in_the_same_colors() -> None:
    css = (ROOT / "book" / "_static" / "stepper.css").read_text(encoding="utf-8")
    light = [re.findall(rf"--cbo-{k}: (#\w+);", css)[0] for k in range(len(PALETTE) - 1)]
    assert light == [color.lower() for color in PALETTE[:-1]]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_no_two_policies_of_a_chapter_look_alike(chapter: str) -> None:
    members = {name: look for name, look in POLICIES.items() if chapter in look.chapters}
    pairs = itertools.combinations(members.items(), 2)
    assert [(a, b) for (a, one), (b, other) in pairs if chapter != "synthesis" and alike(one, other)] == []


def test_markers_and_lines_are_those_that_a_picture_that_steps_can_draw() -> None:
    assert {look.marker for look in POLICIES.values()} <= set("os^Dx|_*.")
    assert {look.line for look in POLICIES.values()} <= {"-", "--", "-.", ":"}


def test_a_style_is_what_matplotlib_plots() -> None:
    _, axes = figures.subplots()
    for name in [*POLICIES, *looks._ALIASES]:
        (line,) = axes[0, 0].plot([0, 1], **figures.style(name))
        look = POLICIES[looks._ALIASES.get(name, name)]
        assert (to_hex(line.get_color()).upper(), line.get_linestyle(), line.get_marker()) == (
            look.color,
            look.line,
            look.marker,
        )


@pytest.mark.parametrize(("name", "near"), [("SBO-KED", "SBO-KDE"), ("he-gp-ucb", "HE-GP-UCB"), ("GPO", "GPOO")])
def test_an_unknown_name_is_refused_with_near_ones(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"no policy is named '{name}'; near are .*'{near}'"):
        style(name)
