"""Counts, words and pictures of the map."""

import numpy as np
import pytest

from book.indirect import maps
from book.indirect.factors import Map

CELLS = ["fixed/linear/known/0.24/sd/exact", "fixed/cosine/300/0.24/raw/deviation"]


@pytest.fixture
def found():
    """In the first cell CMES is ahead by one, in the second behind; MES is as good."""
    noise = np.linspace(-0.1, 0.1, 6)[None, :, None] * np.ones((3, 1, 5))
    arrays = {}
    for cell, gap in zip(CELLS, (1.0, -1.0), strict=True):
        arrays |= {f"{cell}/CMES": noise, f"{cell}/MES on g": -noise, f"{cell}/random": gap - noise}
    return Map(arrays)


def test_a_claim_is_decided_in_every_cell(found):
    decided = maps.pairs(found, CELLS, "CMES", ["MES on g", "random"], "simple")
    assert [decided[cell, "random"].verdict for cell in CELLS] == ["holds", "fails"]
    assert maps.counted(decided) == {"holds": 1, "undecided": 2, "fails": 1}
    assert maps.counted(decided, "MES on g") == {"holds": 0, "undecided": 2, "fails": 0}


def test_counts_are_split_by_the_levels_of_each_factor(found):
    decided = maps.pairs(found, CELLS, "CMES", ["MES on g", "random"], "simple")
    rows = maps.by_level(decided)
    assert rows.loc["map linear"].to_dict() == {"holds": 1, "undecided": 1, "fails": 0}
    assert rows.loc["model deviation"].to_dict() == {"holds": 0, "undecided": 1, "fails": 1}
    assert not any(name.startswith("lengthscale") for name in rows.index)  # it has one level


def test_the_picture_has_a_number_a_pair(found):
    decided = maps.pairs(found, CELLS, "CMES", ["MES on g", "random"], "simple")
    figure = maps.verdicts({"simple": decided, "instant": decided})
    assert [ax.get_title() for ax in figure.axes] == ["simple", "instant"]
    rows = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert rows == [f"{maps.label(cell)}, n = 6" for cell in CELLS]
    for ax in figure.axes:
        assert [text.get_text() for text in ax.texts] == ["+0.00", "+1.00", "+0.00", "-1.00"]
        assert len({patch.get_facecolor() for patch in ax.patches}) == 3
        assert [label.get_text() for label in ax.get_xticklabels()] == ["MES on g", "random"]
