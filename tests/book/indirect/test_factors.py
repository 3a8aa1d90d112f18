"""The map runs what its names say, and its reader finds what was stored."""

import numpy as np
import pytest
import torch

from book import registry
from book.indirect import factors, regret
from book.indirect.factors import Map
from book.indirect.family import Turned
from cbo_lib.former.history import History, pack_arrays
from cbo_lib.indirect import ClippedGaussian, Nodes
from tests.indirect.helpers import F64, UNIT

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


def test_names_are_unique_and_the_cheap_questions_come_first():
    names = list(factors.names())
    assert len(set(names)) == len(names) and all(len(name.split("/")) == 6 for name in names)
    assert names[0] == "fixed/linear/known/0.24/sd/exact"


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


@pytest.mark.parametrize("slices", [25, 1])
def test_a_few_functions_at_a_time_are_all_functions(monkeypatch, slices):
    monkeypatch.setattr(factors, "_SLICE", slices)
    found = factors.run("fixed/linear/50/online/sd/exact", range(3), steps=4)
    for table in found.values():
        assert table.shape == (3, 3, 5) and np.isfinite(table).all()
    alone = factors.run("fixed/linear/50/online/sd/exact", [2], steps=4)
    np.testing.assert_allclose(found["CMES"][:, 2], alone["CMES"][:, 0], atol=1e-6)


@pytest.fixture
def two_levels(monkeypatch):
    """A tree of two levels, whatever a name says."""
    budget = factors._budget
    monkeypatch.setattr(factors, "_budget", lambda *name, **more: budget(*name[:-1], "2", **more))


@pytest.mark.parametrize("width", ["one", "windows"])
def test_a_cell_of_the_second_figure_with_an_estimate(width, two_levels):
    found = factors.run(f"learned/cosine/300/{width}/0.3/sd", range(2), budget=6.0)
    assert len(found) == 13
    for table in found.values():
        assert table.shape == (3, 2, 6) and np.isfinite(table).all()


@pytest.mark.parametrize("width", ["one", "windows"])
def test_an_estimate_over_regions_comes_near_the_averages(width, seen, two_levels):
    factors.run(f"learned/linear/300/{width}/0.4/sd", range(3))
    factors.run(f"budget/linear/{width}/0.4/sd/2", range(3))
    grams = [policies["CMETS"].prior.kernel.gram[..., :21, 21:] for _, policies in seen]
    assert grams[0].shape == (3, 21, 36)  # an estimate of its own for every seed
    assert 0.003 < float((grams[0] - grams[1]).abs().mean()) < 0.05


def test_pairs_of_regions_have_all_levels_and_their_widths():
    conditional = ClippedGaussian(lambda a: a[..., :2], factors.SPREADS["windows"], UNIT)
    x, a = factors.tree_pairs(conditional, 3000, [0, 1])
    level = factors.by_log_radius(a)[0, :, 2] - 1
    assert sorted(level.unique().tolist()) == [0, 1, 2, 3, 4, 5]
    inner = (a[0, :, :2] > 0.3).all(-1) & (a[0, :, :2] < 0.7).all(-1)
    spread = [float((x - a[..., :2])[0, inner & (level == some)].std()) for some in (2, 4)]
    np.testing.assert_allclose(spread, [1 / 16, 1 / 64], rtol=0.2)
    assert not torch.equal(x[0], x[1])


@pytest.mark.parametrize("width", ["one", "windows", "tau"])
def test_a_cell_of_the_second_figure(width):
    found = factors.run(f"budget/linear/{width}/0.3/{'tau' if width == 'tau' else 'sd'}/2", range(2), budget=6.0)
    assert len(found) == 13
    for table in found.values():
        assert table.shape == (3, 2, 6) and np.isfinite(table).all()


def test_noise_and_widths_are_read_as_named(seen):
    for width, noise in (("one", "sd"), ("windows", "raw"), ("tau", "tau")):
        factors.run(f"budget/linear/{width}/0.3/{noise}/2", range(1))
    nodes = Nodes.complete(UNIT, 2)
    level = nodes.level.double()
    cost = (level + 1) / 2
    for (problems, policies), width, noise in zip(
        seen,
        (torch.full_like(cost, 0.5**0.5 / 15), 0.5 ** (level + 2), 0.5 / cost / 15),
        (0.5 / cost, 0.5 / cost / 51.3, torch.full_like(cost, 0.1)),
        strict=True,
    ):
        whole, leaves = problems["CMETS"], problems["UCB on g"]
        np.testing.assert_allclose(whole.space.cost, cost)
        np.testing.assert_allclose(whole.conditional.scale(nodes.actions), width, rtol=1e-6)
        np.testing.assert_allclose(whole.noise[:21], noise, rtol=5e-3)  # Branin's deviation is 51
        assert leaves.n == 16 and bool((leaves.space.cost == 1.5).all())
        assert torch.equal(leaves.table, whole.table[:, 5:]) and "CMES" in policies


def test_the_learner_of_the_noise_model_expects_more_noise_than_there_is(seen):
    factors.run("fixed/linear/50/0.3/sd/noise", range(2))
    problem, policies = seen[0]
    assert bool((policies["CMES"].space.noise_std > 0.1).all()) and bool((problem.noise == 0.1).all())


def test_functions_and_noise_are_those_of_the_seed():
    alone, among = (factors.run("fixed/linear/known/0.3/sd/exact", seeds, steps=3) for seeds in ([4], [1, 4]))
    for name in alone:
        np.testing.assert_allclose(alone[name][:, 0], among[name][:, 1], atol=1e-6)
    assert Turned((4,)).seeds == (4,)


@pytest.mark.parametrize("name", ["fixed/linear", "figure/a/b/c/d/e", ""])
def test_another_name_is_refused(name):
    with pytest.raises(ValueError, match=r"name must be fixed/\.\.\., budget/\.\.\. or learned/\.\.\."):
        factors.run(name)


def test_another_reading_of_the_noise_is_refused():
    with pytest.raises(ValueError, match="noise must be one of sd, raw and tau, got 'db'"):
        factors.run("fixed/linear/known/0.3/db/exact", range(1))


class Problem:
    optimum = torch.tensor([[2.0], [5.0]], dtype=F64)


def test_what_is_kept_of_a_run():
    generator = torch.Generator().manual_seed(0)
    names = ("value", "recommended_value")
    tensors = {name: torch.rand(2, 60, generator=generator, dtype=F64) for name in names}
    tensors |= {"active": torch.ones(2, 60, dtype=torch.bool), "cost": torch.full((2, 60), 1.5, dtype=F64)}
    history = History(tensors, [0, 1])
    kept = factors.keep(history, Problem)
    for row, notion in enumerate((regret.simple_regret, regret.instantaneous_regret, regret.recommendation_regret)):
        values = notion(history, Problem).numpy()
        np.testing.assert_allclose(kept[row, :, :4], values[:, [9, 19, 39, 59]], rtol=1e-6)
        np.testing.assert_allclose(kept[row, :, 4], values.mean(-1), rtol=1e-6)
        paid = factors.keep(history, Problem, 60.0)
        np.testing.assert_allclose(paid[row, :, :5], values[:, [2, 5, 9, 19, 39]], rtol=1e-6)
        found = Map({"budget/cell/CMES": paid})
        later = [int(cost / 1.5) - 1 for cost in range(6, 61)]  # plays are paid at 1.5, 3.0, ...
        name = ("simple", "instant", "recommended")[row]
        own = found.regret("budget/cell", "CMES", name, "later").numpy()
        np.testing.assert_allclose(own, values[:, later].mean(-1), rtol=1e-5)


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
    assert (pair.mean, pair.n, pair.holds) == (2, 12, True)
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


def test_the_cross_has_every_combination_once():
    cells = list(factors.cross())
    assert len(set(cells)) == len(cells) == 2 * 4 * 4 * (2 + 5)
    assert set(cells) < set(factors.names())
