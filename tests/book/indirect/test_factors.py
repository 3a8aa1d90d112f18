"""The map runs what its names say, and its reader finds what was stored."""

import numpy as np
import pytest

from book import registry
from book.indirect import factors
from book.indirect.factors import Map
from book.indirect.family import Turned
from cbo_lib.former.history import pack_arrays

FIXED = ["CMES", "CMES, Appendix A", "random"]
ON_G = ["MES on g", "UCB on g", "EI on g"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(factors, "GRID", 6)


@pytest.fixture
def seen(monkeypatch):
    """What the policies of a cell are run on."""
    cells = []

    def watch(problem, policies, steps, seeds):
        cells.append((problem, policies))
        return {}

    monkeypatch.setattr(factors, "_regrets", watch)
    return cells


@pytest.mark.parametrize(
    ("name", "policies"),
    [
        ("fixed/linear/known/0.3/raw/exact", FIXED + ON_G),
        ("fixed/cosine/50/0.3/sd/exact", FIXED + ON_G),
        ("fixed/linear/50/0.3/sd/deviation", FIXED + ON_G),
        ("fixed/linear/50/0.3/sd/noise", FIXED),
        ("fixed/linear/known/online/sd/exact", FIXED + ON_G),
    ],
)
def test_a_cell_of_the_first_figure(name, policies):
    found = factors.run(name, range(2), steps=6)
    assert sorted(found) == sorted(policies)
    for table in found.values():
        assert table.shape == (3, 2, 5) and np.isfinite(table).all()
        assert (table[:2, :, :-1] >= -1e-6).all() and (np.diff(table[:2, :, :-1], axis=-1) <= 1e-9).all()


@pytest.fixture
def two_levels(monkeypatch):
    """A tree of two levels, whatever a name says."""
    budget = factors._budget
    monkeypatch.setattr(factors, "_budget", lambda *name, **more: budget(*name[:-1], "2", **more))


@pytest.mark.parametrize("width", ["one", "windows"])
def test_an_estimate_over_regions_comes_near_the_averages(width, seen, two_levels):
    factors.run(f"learned/linear/300/{width}/0.4/sd", range(3))
    factors.run(f"budget/linear/{width}/0.4/sd/2", range(3))
    grams = [policies["CMETS"].prior.kernel.gram[..., :21, 21:] for _, policies in seen]
    assert grams[0].shape == (3, 21, 36)  # an estimate of its own for every seed
    assert 0.003 < float((grams[0] - grams[1]).abs().mean()) < 0.05


@pytest.mark.parametrize("width", ["one", "windows", "tau"])
def test_a_cell_of_the_second_figure(width):
    found = factors.run(f"budget/linear/{width}/0.3/{'tau' if width == 'tau' else 'sd'}/2", range(2), budget=6.0)
    assert len(found) == 13
    for table in found.values():
        assert table.shape == (3, 2, 6) and np.isfinite(table).all()


def test_functions_and_noise_are_those_of_the_seed():
    alone, among = (factors.run("fixed/linear/known/0.3/sd/exact", seeds, steps=3) for seeds in ([4], [1, 4]))
    for name in alone:
        np.testing.assert_allclose(alone[name][:, 0], among[name][:, 1], atol=1e-6)
    assert Turned((4,)).seeds == (4,)


def test_a_map_is_read_by_cell_policy_notion_and_column(tmp_path):
    cell = "fixed/linear/known/0.24/sd/exact"
    parts = [np.full((3, 4, 5), batch, np.float32) for batch in (0, 9, 10)]
    merge = registry.load("indirect.figure_1").merge
    own = merge([{"CMES": part, "random": part + 2} for part in parts])
    (tmp_path / factors.file_of(cell).name).write_bytes(pack_arrays(own))
    (tmp_path / "fixed--another.npz").write_bytes(pack_arrays(own))  # no cell of the map
    found = Map.load(tmp_path)
    assert found.cells == [cell]
    assert found.regret(cell, "CMES", "simple", 10).tolist() == [0] * 4 + [9] * 4 + [10] * 4
    pair = found.paired(cell, "CMES", "random", "instant")
    assert (pair.mean, pair.n, pair.holds) == (pytest.approx(2), 12, True)
    for arguments, message in (
        (("fixed/other", "CMES"), "cell must be one of the map"),
        ((cell, "CEMS"), "policy must be one of CMES, random, got 'CEMS'"),
        ((cell, "CMES", "cumulative"), "notion must be one of simple, instant, recommended"),
        ((cell, "CMES", "simple", 15), "at must be one of 10, 20, 40, 60, mean, got '15'"),
    ):
        with pytest.raises(ValueError, match=message):
            found.regret(*arguments)


def test_the_stored_map_is_what_its_names_say():
    found = Map.load()
    assert len(list(factors.STORED.iterdir())) == len(found.cells)
    for name, array in found.arrays.items():
        assert array.shape[0] == 3 and 50 <= array.shape[1] <= factors.SEEDS and np.isfinite(array).all(), name
