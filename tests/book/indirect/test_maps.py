"""Counts, words and pictures of the map."""

import numpy as np
import pytest
import torch

from book.indirect import maps
from book.indirect.factors import Map, cross, names
from book.verdict import paired, table

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


def test_pooling_averages_each_function_over_cells(found):
    pair = maps.pooled(found, CELLS, "CMES", "random", "simple")
    own, other = (torch.stack([found.regret(cell, policy) for cell in CELLS]).mean(0) for policy in ("CMES", "random"))
    assert pair == paired(own, other) and abs(pair.mean) < 1e-12 and pair.n == 6


def test_labels_name_every_cell_differently():
    labels = [f"{name.split('/')[0]} {maps.label(name)}" for name in names()]
    assert len(set(labels)) == len(labels)
    assert maps.label("budget/linear/tau/0.24/tau/5") == "linear, width 0.5 / cost, length 0.24"
    assert maps.label("budget/cosine/windows/0.12/raw/6") == "cosine, windows, raw, length 0.12, level 6"
    name = "learned/cosine/300/windows/0.24/sd"
    assert maps.label(name) == "cosine, windows, sd, length 0.24, N = 300"
    assert maps.label(CELLS[1]) == "cosine, N = 300, length 0.24, raw, deviation"


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


def test_a_shown_table_counts_failures_and_has_no_negative_zero():
    own = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    rows = maps.shown({"a": paired(own, own - 1e-9), "b": paired(own, own + 0.5)}, 2)
    assert rows["failures"].tolist() == [1, 1] and rows["verdict"].tolist() == ["fails", "holds"]
    assert rows["mean difference, 95 %"].tolist() == ["0.00 (0.00, 0.00)", "0.50 (0.50, 0.50)"]
    assert rows["median"].tolist() == ["0.00", "0.50"]


@pytest.mark.parametrize("figure", [1, 2])
def test_the_cross_of_a_figure_is_that_of_the_names(figure):
    cells = maps.cross(figure)
    kinds = ("fixed",) if figure == 1 else ("budget", "learned")
    assert sorted(cells.values()) == sorted(name for name in cross() if name.startswith(kinds))
    assert len(cells) == len(set(cells.values()))


def test_a_cell_that_was_not_run_has_no_box(found):
    found = Map({name: array for name, array in found.arrays.items() if name.startswith(CELLS[0])})
    figure = maps.crossed(found, 1, {"both": ("CMES", ["MES on g", "random"], "simple", "mean")})
    ax = figure.axes[0]
    assert [text.get_text() for text in ax.texts] == ["1 0"] and len(ax.patches) == 1
    assert [tick.get_text() for tick in ax.get_yticklabels()][:2] == ["p known, sd", "p known, raw"]
    assert ax.get_xticklabels()[0].get_text() == "linear, 0.24"


def test_a_table_of_verdicts_hides_no_row():
    pair = paired(torch.ones(5) * 2, torch.arange(5.0))
    assert len(table({f"panel {n}": pair for n in range(100)})._repr_html_().split("panel ")) == 101
