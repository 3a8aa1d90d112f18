"""What is stored is what the code gives, and regions of a map are what they say."""

import itertools

import pandas as pd
import pytest
import torch

from book.aggregated import experiments, regions, studies
from book.aggregated.published import CONFIGURATIONS, configured_gpoo, configured_problem
from cbo_lib.aggregated import GPOO
from cbo_lib.former.simulate import simulate


@pytest.mark.parametrize("name", [p.stem for p in studies.RESULTS.glob("*.json")])
def test_a_stored_table_says_what_made_it(name):
    frame = studies.load(name)
    assert frame.attrs["command"] == f"python -m book run aggregated.{name} --scale paper --publish"
    assert len(frame) > 0


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize(("curve", "points"), [("peaks", 1), ("periodic", 10)])
def test_the_first_seeds_of_figure_4_are_what_a_run_gives(name, curve, points):
    setting = CONFIGURATIONS[name]
    problem = configured_problem(curve, setting, points)
    policy = configured_gpoo(problem, curve, setting, experiments.delta)
    regret = studies.regret_of(problem, policy, 80, range(2))
    key = {"configuration": name, "curve": curve, "S": points, "policy": "GPOO"}
    frame = studies.load("figure_4")
    stored = studies.cell(frame, **key)[:2]
    torch.testing.assert_close(regret.mean(-1), stored, rtol=0, atol=2e-3)
    assert len(studies.cell(frame, "end", **key)) == 60
    assert len(studies.cell(frame, "by round", **key)) == 80


@pytest.mark.parametrize("name", ["figure_6", "path"])
def test_the_first_seeds_of_a_study_are_those_stored(name):
    first = next(iter(studies.STUDIES[name].values()))
    row, stored = next(first(seeds=range(2))), studies.load(name).iloc[0]
    for column, value in row.items():
        if column in ("end", "mean"):
            assert value == pytest.approx(stored[column][:2], abs=2e-3)
        elif column != "by round":  # a mean over all seeds
            assert value == stored[column]


def test_the_first_functions_of_the_prior_are_those_stored():
    frame = studies.load("prior_draws")
    found = list(itertools.islice(studies.prior_draws(1, 1, range(2)), 8))
    for row in (found[4], found[5], found[7]):  # GPOO with twice the delta, that with the code's beta, GPTree
        key = {name: row[name] for name in ("d", "S", "policy", "lengthscale", "c")}
        for column in ("end", "mean", "target 1", "target 10", "depth", "rounds a split"):
            expected = studies.cell(frame, column, **key)[:2].tolist()
            assert row[column] == pytest.approx(expected, abs=2e-3), (key, column)


def test_parts_of_a_row_are_joined_by_seed():
    parts = [pd.DataFrame([{"S": 1, "end": [0.1]}]), pd.DataFrame([{"S": 1, "end": [0.2]}])]
    assert studies.joined(parts).to_dict("records") == [{"S": 1, "end": [0.1, 0.2]}]


def test_the_first_rounds_of_the_study_of_the_exponent_are_those_stored():
    frame = studies.load("exponent")
    for row, (_, stored) in zip(studies.exponent(0.03, range(10), steps=40), frame.iterrows(), strict=False):
        assert (row["noise"], row["learns from"]) == (stored["noise"], stored["learns from"])
        assert row["depth"] == pytest.approx(stored["depth"][:40], abs=1e-3)
        assert row["regret"] == pytest.approx(stored["regret"][:40], abs=2e-3)


def test_a_key_names_one_row():
    frame = studies.load("path")
    with pytest.raises(ValueError, match="key must name one row"):
        studies.cell(frame, curve="peaks")
    pair = studies.against(frame, "uniform grid", step="text", curve="periodic", S=1)
    assert pair.n == 60
    assert pair.holds


def test_functions_of_two_variables_have_the_variance_of_their_prior():
    f = studies.drawn_functions(2, range(400))
    values = f(torch.tensor([[0.31, 0.77]], dtype=torch.float64).expand(400, 1, 2))[:, 0]
    assert float(values.var()) == pytest.approx(0.1, rel=0.25)


def test_a_region_answers_with_its_own_places_and_halves_hold_half():
    space = regions.MapSpace(points_per_cell=16)
    tree = space.partition()
    level = tree.complete(3)
    boxes = tree.boxes[level]
    points = space.representatives(boxes)
    assert points.shape == (8, 16, 2)
    per = len(space.points) // 8
    for i, mine in enumerate(points):
        own = space.points[i * per : (i + 1) * per]
        assert bool((mine[:, None] == own[None]).all(-1).any(-1).all())
    delta = regions.smoothness(space)
    assert all(a > b > 0 for a, b in itertools.pairwise(delta))


def test_a_policy_searches_a_map_as_it_is():
    problem = regions.map_problem(range(3))
    values = torch.tensor(regions.smoothness(problem.space))
    policy = GPOO(problem.space, prior=regions.PRIOR, delta=lambda h: values[h], max_depth=6)
    history = simulate(problem, policy, 30, range(3))
    assert bool((history["recommended_value"] <= problem.optimum[:, None]).all())
    figure = regions.plot_map(problem, policy, 1)
    assert len(figure.axes) == 4


def test_the_draws_of_the_prior_are_joined_by_policy(monkeypatch):
    def drawn(problem, dim, steps):
        for lengthscale, c in ((1.0, 0.05), (1.0, 1.0), (2.0, 1.0)):
            label = {"policy": "GPOO", "lengthscale": lengthscale, "c": c}
            yield label, GPOO(problem.space, prior=experiments.prior("peaks"), delta=14.0 * c)

    monkeypatch.setattr(studies, "drawn_policies", drawn)
    joined = studies.joined([pd.DataFrame(list(studies.prior_draws(2, 10, s, 3))) for s in (range(2), range(2, 4))])
    assert len(joined) == 3
    for row in joined.to_dict("records"):
        assert len(row["end"]) == len(row["depth"]) == 4


def test_the_stored_draws_are_as_many_as_the_page_says():
    assert {len(end) for end in studies.load("prior_draws")["end"]} == {200}
