"""Policies in the hands of a user: own data in own units, ask and tell, and files."""

import numpy as np
import pandas as pd
import pytest
import torch

from book.indirect.controls import RandomQueries
from book.indirect.problem import IndirectProblem
from book.indirect.problems import draw_inputs, unit_grid
from cbo_lib import GaussianProcess, Measure
from cbo_lib.former.fit import fit_gaussian_process
from cbo_lib.indirect import (
    CMES,
    CMETS,
    ActionPolicy,
    ClippedGaussian,
    ConditionalMeanEmbedding,
    Nodes,
    Point,
    Space,
)
from cbo_lib.kernels import GaussianMeasureKernel, matern_kernel
from tests.indirect.helpers import F64, UNIT, identity, ripple, run

SEED, T = 7, 6
SCALE, SHIFT = torch.tensor([40.0, 5.0], dtype=F64), torch.tensor([150.0, -2.0], dtype=F64)


def oven(x):
    """In degrees and bars."""
    return 30 + 10 * ripple((x - SHIFT) / SCALE)


def dial(a):
    return SHIFT + SCALE * a


TRUE = ClippedGaussian(dial, lambda a: 0.5 + 0 * a[..., 0])
ACTIONS = unit_grid(3)


@pytest.fixture(scope="module")
def samples():
    generator = torch.Generator().manual_seed(3)
    taken = torch.rand(40, 2, generator=generator, dtype=F64)
    return draw_inputs(TRUE, taken[None], [generator])[0], taken


@pytest.fixture(scope="module")
def space(samples):
    return Space(ACTIONS, samples=samples)


PRIOR = GaussianProcess(matern_kernel([10.0, 1.5], 100.0), 0.5, 30.0)


def nodes():
    return Nodes.complete(UNIT, 2)


MAKERS = {
    "fitted": lambda space: CMES(space, seed=SEED, initial=2),
    "fitted, thompson": lambda space: CMES(space, seed=SEED, initial=2, sampling="thompson", noisy=True),
    "fitted, rbf": lambda space: CMES(space, seed=SEED, initial=2, kernel="rbf"),
    "given": lambda space: CMES(space, seed=SEED, prior=PRIOR),
    "thompson": lambda space: CMES(space, seed=SEED, prior=PRIOR, initial=1, sampling="thompson", noisy=True),
    "table": lambda space: CMES(space, seed=SEED, prior=space.tabulate(PRIOR)),
    "random": lambda space: RandomQueries(space, seed=SEED, prior=PRIOR),
    "ei": lambda space: ActionPolicy(space, seed=SEED, acquisition="ei", initial=2),
    "mes": lambda space: ActionPolicy(
        space, seed=SEED, acquisition="mes", prior=PRIOR, action_prior=GaussianProcess(matern_kernel(0.3, 100.0), 0.5)
    ),
    "tree": lambda space: CMETS(space, nodes=nodes(), seed=SEED),
}


def space_of(name, space):
    """The tree has actions of its own, whose windows are known."""
    if name != "tree":
        return space
    windows = ClippedGaussian(lambda a: dial(a[..., :2]), lambda a: a[..., 2])
    return Space(nodes().actions, conditional=windows, points=space.points, cost=nodes().cost())


def by_hand(policy, problem, seed, steps):
    """Asked and told by a user, who takes the same noise."""
    noise = run(problem, RandomQueries(problem.space, prior=PRIOR), steps, [seed])
    draws = (noise["observation"] - noise["value"])[0]
    asked, seen = [], []
    for t in range(steps):
        action = policy.ask()
        at = int((problem.space.actions - action).abs().sum(-1).argmin())
        y = float(problem.value(torch.tensor(at)) + draws[t])
        policy.tell(action, y)
        asked.append(at)
        seen.append(y)
    return asked, seen


@pytest.mark.parametrize("name", MAKERS)
def test_a_loop_by_hand_is_the_simulated_run(name, space):
    here = space_of(name, space)
    problem = IndirectProblem(here, oven, TRUE if name != "tree" else None, 0.5)
    history = run(problem, MAKERS[name](here), T, [SEED])
    policy = MAKERS[name](here)
    asked, seen = by_hand(policy, problem, SEED, T)
    assert asked == history["query"][0].tolist()
    np.testing.assert_allclose(seen, history["observation"][0], rtol=0, atol=1e-9)
    assert torch.equal(policy.recommend(), here.points[history["recommendation"][0, -1] - here.n])
    assert policy.count == T and not policy.finished
    for key, value in policy.trace().items():
        torch.testing.assert_close(value, history[key][0, -1], rtol=1e-9, atol=1e-9, equal_nan=True, msg=key)


@pytest.mark.parametrize("name", MAKERS)
def test_a_saved_policy_asks_the_same(name, space, tmp_path):
    if name == "tree":
        here = Space(nodes().actions, samples=(dial(nodes().actions[:, :2]), nodes().actions), points=space.points)
    else:
        here = space
    policy = MAKERS[name](here)
    for _ in range(3):
        action = policy.ask()
        policy.tell(action, 30 + float(action.sum()) % 3)
    policy.save(tmp_path / "policy.npz")
    again = type(policy).load(tmp_path / "policy.npz")
    for one in (policy, again):
        one.tell(policy.space.actions[4], 31.5)
    for _ in range(2):
        action = policy.ask()
        assert torch.equal(again.ask(), action) and torch.equal(again.recommend(), policy.recommend())
        for one in (policy, again):
            one.tell(action, 29.0)


def test_a_policy_whose_space_holds_a_closure_says_so(tmp_path):
    space = Space(ACTIONS, conditional=ClippedGaussian(lambda a: a, 0.1), points=ACTIONS)
    with pytest.raises(ValueError, match="can't be stored"):
        CMES(space, prior=PRIOR).save(tmp_path / "policy.npz")


FORMS = {
    "tensor": lambda t: t,
    "array": lambda t: t.numpy(),
    "list": lambda t: t.tolist(),
    "frame": lambda t: pd.DataFrame(t.numpy()),
}


@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_data_is_taken(form, samples):
    convert = FORMS[form]
    old, y = torch.tensor([[0.2, 0.9], [0.5, 0.5]], dtype=F64), torch.tensor([[31.0], [28.0]], dtype=F64)
    plain = CMES(Space(ACTIONS, samples=samples), prior=PRIOR)
    other = CMES(Space(convert(ACTIONS), samples=tuple(map(convert, samples))), prior=PRIOR)
    plain.tell(old, y[:, 0])
    other.tell(convert(old), convert(y))
    asked = plain.ask()
    assert torch.equal(other.ask(), asked)
    for policy, action in ((plain, asked), (other, asked.tolist())):
        policy.tell(action, 30.0)
    assert torch.equal(plain.recommend(), other.recommend()) and plain.count == other.count == 3


def test_actions_of_one_number_are_taken_as_such(samples):
    x, taken = samples
    policy = CMES(
        Space([0.1, 0.5, 0.9], samples=(x[:, 0], taken[:, 0])), prior=GaussianProcess(matern_kernel(9.0), 0.5)
    )
    policy.tell([0.1, 0.7, 0.3], [1.0, 2.0, 1.5])
    policy.tell(0.5, 1.7)
    assert policy.count == 4 and policy.ask().shape == (1,) and policy.recommend().shape == (1,)


def test_actions_of_two_numbers_are_not_mistaken_for_two_actions(space):
    policy = CMES(space, prior=PRIOR)
    policy.tell([0.2, 0.9], 31.0)
    policy.tell([[0.2, 0.9], [0.1, 0.4]], [31.0, 30.0])
    assert policy.count == 3


@pytest.mark.parametrize("kind", ["learned", "known", "closed form"])
@pytest.mark.parametrize("many", [True, False])
def test_the_posterior_is_that_of_all_that_was_told(kind, many, samples):
    """Old data, actions that the space does not hold, and what the operator did instead."""
    x, a = samples
    embedding = ConditionalMeanEmbedding(x, a, 0.4, 1e-3)
    normal = ClippedGaussian(identity, 0.1)
    if kind != "learned":
        x = unit_grid(5)
    space = Space(ACTIONS, conditional=embedding if kind == "learned" else normal, points=x, noise_std=0.5)
    closed, known = GaussianMeasureKernel(0.4, 9.0), matern_kernel(0.4, 9.0)
    prior = PRIOR if kind == "learned" else GaussianProcess(closed if kind == "closed form" else known, 0.5)
    policy = CMES(space, prior=prior, samples=3)
    old = torch.tensor([[0.15, 0.95], [0.5, 0.5], [0.33, 0.2]], dtype=F64)
    y = torch.tensor([31.0, 28.0, 29.0], dtype=F64)
    for rows in [slice(0, 3)] if many else [slice(0, 1), slice(1, 2), slice(2, 3)]:
        policy.tell(old[rows], y[rows])
    policy.ask()
    policy.tell([0.71, 0.02], 33.0)
    done = torch.cat([old, torch.tensor([[0.71, 0.02]], dtype=F64)])
    seen = torch.cat([y, torch.tensor([33.0], dtype=F64)])
    if kind == "closed form":
        measure, at = Measure.dirac(normal.gaussian(done)), Measure.dirac(torch.cat([x, 0 * x[:, :1]], -1))
    else:
        measure, at = (embedding.measure(done) if kind == "learned" else normal.measure(done, 8)), Measure.dirac(x)
    expected = prior.condition(measure, seen)
    torch.testing.assert_close(policy.posterior.mean(at), expected.mean(at), rtol=0, atol=1e-7)
    torch.testing.assert_close(policy.posterior.variance(at), expected.variance(at), rtol=0, atol=1e-7)
    torch.testing.assert_close(policy.mean[0, space.n :], expected.mean(at), rtol=0, atol=1e-7)
    assert torch.equal(policy.recommend(), x[expected.mean(at).argmax()])


def test_a_fitted_policy_learns_noise_and_scale(samples):
    x, a = samples
    policy = CMES(Space(ACTIONS, samples=samples), initial=0)
    rule = ConditionalMeanEmbedding(x, a).measure(a)
    noise = 0.8 * torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=F64)
    policy.tell(a, rule.expectation(oven) + noise)
    policy.ask()
    policy.tell(a[0], 30.0)
    trace = policy.trace()
    assert bool(trace["converged"]) and 0.3 < float(trace["noise_std"]) < 1.6
    assert 2 < float(trace["scale"]) < 60 and trace["lengthscale"].shape == (2,)
    best = oven(policy.recommend())
    assert float(best) > float(oven(x).quantile(0.8))


def test_known_noise_is_known_to_the_fit_too(samples):
    noise = torch.linspace(0.3, 9.0, 9, dtype=F64)
    policy = CMES(Space(ACTIONS, samples=samples, noise_std=noise), initial=0)
    learned = ConditionalMeanEmbedding(*samples).measure(ACTIONS)
    rule = Measure(learned.points, learned.weights / learned.weights.sum(-1, keepdim=True))
    y = rule.expectation(oven) + noise * torch.randn(9, generator=torch.Generator().manual_seed(1), dtype=F64)
    policy.tell(ACTIONS, y)
    posterior, at = policy.posterior, Measure.dirac(policy.space.points)
    fit = fit_gaussian_process(rule.expand(1), y[None], policy.space.bounds, noise_std=noise[None])
    torch.testing.assert_close(policy.trace()["lengthscale"], fit.lengthscale[0])
    torch.testing.assert_close(policy.trace()["noise_std"], noise.square().mean().sqrt())
    expected = fit.process.condition(rule.expand(1), y[None], noise)
    torch.testing.assert_close(posterior.mean(at), expected.mean(at)[0], rtol=0, atol=1e-7)


def test_a_fitted_baseline_sees_the_box_of_its_actions(samples):
    actions = ACTIONS * 100
    x, taken = samples
    policy = ActionPolicy(Space(actions, samples=(x, 100 * taken)), acquisition="ucb", initial=0)
    policy.tell(actions, 30 + actions[:, 0] / 10)
    policy.ask()
    low, high = policy.on_actions.space.bounds
    assert torch.equal(low, actions.amin(0)) and torch.equal(high, actions.amax(0))
    assert float(policy.on_actions.surrogate.fit.lengthscale.min()) > 10


def test_a_budget_ends_a_run_and_what_was_not_asked_is_free(samples):
    policy = CMES(Space(ACTIONS, samples=samples, cost=2.0), prior=PRIOR, budget=5.0)
    policy.tell(ACTIONS[:4], [30.0, 31.0, 29.0, 30.5])
    policy.ask()
    policy.tell([0.4, 0.4], 30.0)  # something else was done
    for _ in range(2):
        assert not policy.finished
        policy.tell(policy.ask(), 30.0)
    assert policy.finished
    with pytest.raises(ValueError, match="the run is over"):
        policy.ask()
    before = policy.posterior.mean(Measure.dirac(policy.space.points))
    policy.tell(ACTIONS[0], 35.0)
    assert not torch.allclose(policy.posterior.mean(Measure.dirac(policy.space.points)), before)


@pytest.mark.parametrize(
    ("cost", "budget", "plays"),
    [(0.1, 0.7, 7), (0.7, 1.4, 2), (1.1, 3.3, 3), (1e-10, 5e-10, 5), (1e9 / 7, 1e9, 7), (0.3, 1.0, 3)],
)
def test_a_budget_pays_for_what_it_pays_for_but_for_rounding(cost, budget, plays):
    line = [0.0, 0.5, 1.0]
    space = Space(line, conditional=Point(), points=line, cost=cost, noise_std=0.1)
    prior = GaussianProcess(matern_kernel(0.3), 0.1)
    for initial in (0, 5):
        policy, asked = CMES(space, budget=budget, initial=initial, prior=prior), 0
        while not policy.finished and asked < 20:
            policy.tell(policy.ask(), 0.0)
            asked += 1
        assert asked == plays


def test_a_number_of_any_library_is_an_action():
    line = [0.0, 5.0, 10.0]
    space = Space(line, conditional=Point(), points=line, noise_std=0.1)
    for one in (5, 5.0, np.int64(5), np.float32(5), torch.tensor(5.0), np.array(5.0), [5], [[5.0]]):
        policy = CMES(space, prior=GaussianProcess(matern_kernel(3.0), 0.1))
        policy.tell(one, 1.0)
        assert policy.observations()["query"].tolist() == [[5.0]]


def test_what_is_refused_adds_no_action():
    """It would make a policy that keeps draws of the posterior draw them anew."""
    rng = np.random.default_rng(0)
    taken = rng.uniform(0, 10, (200, 1))
    space = Space(np.linspace(0, 10, 60), samples=(taken + rng.normal(size=(200, 1)), taken))
    asked = []
    for wrong in (None, ([[3.33], [4.44]], [1.0]), ([[3.33]], [np.nan])):
        policy = CMES(space, prior=GaussianProcess(matern_kernel(1.0), 0.3), sampling="thompson", samples=1, seed=0)
        for t in range(6):
            if t == 2 and wrong is not None:
                with pytest.raises(ValueError, match=r"^y must"):
                    policy.tell(*wrong)
                assert len(policy.belief.told) == space.n
            query = policy.ask()
            policy.tell(query, float(torch.sin(query)))
        asked.append([float(x) for x in policy.observations()["query"]])
    assert all(other == asked[0] for other in asked)


def test_an_action_far_from_all_samples_is_named():
    rng = np.random.default_rng(0)
    taken = rng.uniform(0, 10, (200, 1))
    space = Space(np.linspace(0, 10, 60), samples=(taken + rng.normal(size=(200, 1)), taken))
    policy = CMES(space, prior=None)
    with pytest.raises(ValueError, match=r"near all that are asked or told, got \[\[400.0\]\]"):
        policy.tell([[5.0], [400.0], [3.0]], [1.0, 2.0, 3.0])


@pytest.mark.parametrize("unit", [1.0, 1e6, 1e-9])
def test_the_noise_of_the_nearest_action_knows_no_unit(unit):
    actions = np.array([[0.0, 0.0], [1.0, 1.0]]) * [1, unit]
    space = Space(actions, conditional=Point(), points=actions, noise_std=[0.01, 10.0])
    prior = GaussianProcess(matern_kernel([0.3, 0.3 * unit]), 0.1)
    policy = CMES(space, prior=prior)
    policy.tell([[0.9, 0.4 * unit]], [1.0])
    mean = policy.posterior.mean(Measure.dirac([[0.9, 0.4 * unit]]))
    assert float(mean) == pytest.approx(1 / (1 + 10.0**2), rel=1e-6)


def test_a_design_costs_what_it_may(samples):
    cost = torch.arange(1.0, 10.0, dtype=F64)
    problem = IndirectProblem(Space(ACTIONS, samples=samples, cost=cost), oven, TRUE, 0.5)
    seeds = range(20)
    history = run(problem, RandomQueries(problem.space, prior=PRIOR, initial=4, budget=9.0), 6, seeds)
    assert bool((history["cost"].sum(-1) <= 9.0 + 1e-9).all()) and bool((history["cost"].sum(-1) > 8.0 - 1e-9).all())
    torch.testing.assert_close(history["cost"], cost[history["query"]] * history["active"])


def test_an_exhausted_replicate_recommends_no_more_where_the_prior_is_fitted(samples):
    cost = torch.tensor([1.0, 4.0, 2.0] * 3, dtype=F64)
    problem = IndirectProblem(Space(ACTIONS, samples=samples, cost=cost), oven, TRUE, 0.5)
    history = run(problem, RandomQueries(problem.space, initial=2, budget=7.0), 8, range(4))
    active, recommended = history["active"], history["recommendation"]
    assert not bool(active[:, -1].any())
    for r in range(4):
        last = int(active[r].sum()) - 1
        assert bool((recommended[r, last:] == recommended[r, last]).all())


def test_what_was_done_nearly_as_asked_counts_as_asked(space):
    policy = CMES(space, prior=PRIOR, budget=1.0)
    policy.tell(policy.ask() + 1e-12, 30.0)
    assert policy.finished and policy.belief.told.shape == (9, 2)


def test_unequal_noise_of_actions_that_the_space_does_not_hold_is_that_of_the_nearest(samples):
    noise = torch.linspace(0.1, 0.9, 9, dtype=F64)
    policy = CMES(Space(ACTIONS, samples=samples, noise_std=noise), prior=PRIOR)
    policy.tell(ACTIONS[4] + 0.01, 30.0)
    assert policy.belief.noise_at(policy.data["query"]).tolist() == [[float(noise[4])]]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (([0.1, 0.2, 0.3], 1.0), r"query must have shape \(2,\), or \(n, 2\) for several, got"),
        ((0.1, 1.0), r"query must have shape \(2,\), or \(n, 2\) for several, got"),
        (([[0.1, 0.2], [0.3, 0.4]], [1.0]), "y must hold as many rows as query, 2, got 1"),
        (([0.1, float("nan")], 1.0), "query must be finite"),
        (([0.1, 0.2], float("inf")), "y must be finite"),
        (("north", 1.0), "query must be numbers"),
        (([0.1, 0.2], "warm"), "y must be numbers"),
    ],
)
def test_bad_data_are_refused_and_change_nothing(told, message, space):
    policy = CMES(space, prior=PRIOR)
    policy.tell([0.1, 0.2], 30.0)
    asked = policy.ask()
    with pytest.raises(ValueError, match=message):
        policy.tell(*told)
    assert policy.count == 1 and torch.equal(policy.ask(), asked)


def test_actions_that_a_table_does_not_hold_are_refused(space):
    policy = CMES(space, prior=space.tabulate(PRIOR))
    with pytest.raises(ValueError, match="query must be one of the space, as the prior is a table"):
        policy.tell([0.123, 0.2], 30.0)
    policy.tell(ACTIONS[3], 30.0)
    assert policy.count == 1


@pytest.mark.parametrize("place", [-1, 9, 400])
def test_places_that_are_no_actions_are_refused(place, space):
    policy = CMES(space, prior=PRIOR)
    policy.start([1, 2])
    with pytest.raises(ValueError, match="query must hold places of actions, see Space"):
        policy.tell(torch.tensor([0, place]), torch.zeros(2, dtype=F64))
    with pytest.raises(ValueError, match="query must hold places of actions, see Space"):
        policy.tell(torch.tensor([0.0, 1.0]), torch.zeros(2, dtype=F64))


def test_nothing_can_be_recommended_or_traced_before_the_first_observation(space):
    policy = CMES(space, prior=PRIOR)
    for call, message in ((policy.recommend, "recommend must follow"), (policy.trace, "trace must follow")):
        with pytest.raises(ValueError, match=message):
            call()
    policy.tell([0.2, 0.3], 30.0)
    assert bool(policy.trace()["mean"].isnan()) and bool(policy.trace()["max_samples"].isnan().all())


def test_samples_of_another_number_of_replicates_are_refused(samples):
    x, a = (torch.stack([part] * 3) for part in samples)
    with pytest.raises(ValueError, match=r"prior and samples must have no batch or one of 1 replicates, got \(3,\)"):
        CMES(Space(ACTIONS, samples=(x, a), points=samples[0]), prior=PRIOR).ask()
