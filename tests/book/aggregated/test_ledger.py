"""The claims of the ledger, recomputed by a loop over the plain algorithm."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from book.aggregated import regret, theory
from book.aggregated.regret import ledger
from book.functions import prior_samples
from cbo_lib.aggregated import GPOO
from cbo_lib.confidence import union_bound_sqrt_beta
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.aggregated import plain
from tests.aggregated.helpers import F64, UNIT, both, cell_problem, made, noise_draws

STEPS, SEEDS, DEPTH, FAILURE = 24, [0, 5, 9], 4, 0.1


def shrinking(h):
    return 1.5 * 2.0**-h


class Recomputed:
    """Everything that the ledger claims about one replicate, from the paper's definitions."""

    def __init__(self, problem, world, lengthscale, seed):
        optimum, best_x = float(problem.optimum), problem.maximizer.numpy()
        process = plain.Process(world, lengthscale, 0.1, world.noise_std)
        noise = noise_draws(seed, STEPS)
        tree, rounds = plain.gpoo(world, process, shrinking, noise, DEPTH, FAILURE)
        levels = [[((0, 0), world.root())]]
        for h in range(DEPTH + 1):
            levels.append(
                [
                    ((h + 1, world.branching * i + j), part)
                    for (_, i), cell in levels[-1]
                    for j, part in enumerate(plain.cut(cell, world.branching))
                ]
            )
        lipschitz = math.inf
        for h, level in enumerate(levels):
            for _, cell in level:
                for x in plain.representatives(cell, world.points):
                    reach = np.maximum(x - cell[0], cell[1] - x).sum()
                    lipschitz = min(lipschitz, shrinking(h) / reach)
        checked = dict(pair for level in levels[: DEPTH + 1] for pair in level)
        values = {node: world.value(cell) for node, cell in checked.items()}
        self.drop, self.reach, self.interval, self.std = [], [], [], []
        self.draws, self.draws_bound, self.may_expand = [], [], []
        self.expanded, self.lemma_3, self.three_delta, self.not_expanded = [], [], [], []
        replay = plain.Process(world, lengthscale, 0.1, world.noise_std)
        leaves, count, expanded = {(0, 0)}, {}, []
        for t, r in enumerate(rounds, start=1):
            beta = plain.lemma_1_beta(world.branching, DEPTH, FAILURE, t)
            holder = [leaf for leaf in leaves if np.all(tree.cells[leaf][0] <= best_x)]
            holder = [leaf for leaf in holder if np.all(best_x <= tree.cells[leaf][1])]
            assert len(holder) == 1
            points = plain.representatives(tree.cells[holder[0]], world.points)
            self.drop.append([optimum - float(world.f(x[None])[0]) for x in points])
            self.reach.append([lipschitz * float(np.abs(x - best_x).sum()) for x in points])
            mean, std = replay({**checked, **{node: tree.cells[node] for node in count}})
            self.interval.append(max(abs(mean[n] - values[n]) / (math.sqrt(beta) * std[n]) for n in checked))
            self.std.append(max((std[n] * math.sqrt(c) / world.noise_std for n, c in count.items()), default=0.0))
            count[r.node] = count.get(r.node, 0) + 1
            h = r.node[0]
            self.draws.append(count[r.node])
            self.draws_bound.append(beta * world.noise_std**2 / shrinking(h) ** 2)
            self.may_expand.append(h <= DEPTH)
            self.expanded.append(r.expanded)
            self.lemma_3.append(world.value(tree.cells[r.node]) + 3 * shrinking(h))
            replay.learn(tree.cells[r.node], r.observation)
            if r.expanded:
                leaves.remove(r.node)
                leaves |= {(h + 1, world.branching * r.node[1] + j) for j in range(world.branching)}
                expanded.append(r.node)
            deepest = max((d for d, _ in expanded), default=-1)
            self.three_delta.append(3 * shrinking(deepest) if deepest >= 0 else math.inf)
            self.not_expanded.append(float(r.recommended not in expanded))


SETTINGS = {"peaks": (2, 10, 0.05), "spike": (3, 1, 0.05), "hills": (2, 4, 0.2)}


@pytest.fixture(scope="module", params=SETTINGS)
def accounts(request):
    branching, points, lengthscale = SETTINGS[request.param]
    problem, world = both(request.param, branching, points)
    policy = made(GPOO, problem, rbf_kernel(lengthscale, 0.1), delta=shrinking, max_depth=DEPTH, failure=FAILURE)
    history = simulate(problem, policy, STEPS, SEEDS, progress=False)
    return (
        ledger(history, problem, policy),
        [Recomputed(problem, world, lengthscale, s) for s in SEEDS],
        history,
    )


def same(found, expected, tolerance=1e-8):
    expected = torch.tensor(expected, dtype=F64)
    torch.testing.assert_close(found.to(F64), expected, rtol=tolerance, atol=tolerance)


def test_event_xi_1_compares_the_drop_of_f_with_the_distance(accounts):
    claim, recomputed = accounts[0].claims["xi_1"], accounts[1]
    same(claim.left, [r.drop for r in recomputed])
    same(claim.right, [r.reach for r in recomputed])
    assert math.isnan(claim.probability)


def test_event_xi_2_is_the_worst_interval_of_all_nodes_before_each_round(accounts):
    claim, recomputed = accounts[0].claims["xi_2"], accounts[1]
    same(claim.left, [r.interval for r in recomputed], 1e-7)
    assert bool((claim.right == 1).all())
    assert claim.probability == pytest.approx(1 - FAILURE)


def test_proposition_2_is_the_worst_standard_deviation_of_the_drawn_nodes(accounts):
    claim, recomputed = accounts[0].claims["std <= sigma/sqrt(T)"], accounts[1]
    same(claim.left, [r.std for r in recomputed], 1e-7)
    assert claim.violations == 0
    assert bool((claim.left > 0.5).any())


def test_lemma_3_is_checked_where_a_node_was_expanded(accounts):
    claim, recomputed = accounts[0].claims["expanded in I_h"], accounts[1]
    same(claim.right, [r.lemma_3 for r in recomputed])
    assert claim.applies.tolist() == [r.expanded for r in recomputed]
    assert claim.checked == sum(sum(r.expanded) for r in recomputed) > 0


def test_lemma_4_counts_the_draws_of_the_drawn_node(accounts):
    claims, recomputed = accounts[0].claims, accounts[1]
    for name, more in (("draws, printed", 0), ("draws, derived", 2)):
        same(claims[name].left, [r.draws for r in recomputed])
        same(claims[name].right, [[more + b for b in r.draws_bound] for r in recomputed])
        assert claims[name].applies.tolist() == [r.may_expand for r in recomputed]


def test_theorem_1_is_three_times_delta_at_the_deepest_expanded_node(accounts):
    claims, bounds, recomputed = accounts[0].claims, accounts[0].bounds, accounts[1]
    same(bounds["3 delta(deepest expanded)"], [r.three_delta for r in recomputed])
    same(claims["regret <= 3 delta"].right, [r.three_delta for r in recomputed])
    assert torch.equal(claims["regret <= 3 delta"].left, accounts[0].regret)
    expanded = torch.tensor([[x < math.inf for x in r.three_delta] for r in recomputed])
    assert torch.equal(claims["regret <= 3 delta"].applies, expanded)


def test_recommended_leaves_are_counted_against_the_papers_remark(accounts):
    claim, recomputed = accounts[0].claims["recommended node was expanded"], accounts[1]
    same(claim.left, [r.not_expanded for r in recomputed])


def test_where_both_events_hold_lemma_3_holds(accounts):
    claims = accounts[0].claims
    both_hold = claims["xi_1"].held & claims["xi_2"].held
    assert bool(claims["expanded in I_h"].held[both_hold].all())


def test_the_frame_lists_every_claim(accounts):
    frame = accounts[0].claims_frame()
    assert set(frame.index) == {
        "simple <= aggregated",
        "xi_1",
        "xi_2",
        "std <= sigma/sqrt(T)",
        "expanded in I_h",
        "draws, printed",
        "draws, derived",
        "regret <= 3 delta",
        "recommended node was expanded",
    }
    assert frame.loc["xi_1", "checked"] == accounts[2]["depth"].numel() * accounts[0].claims["xi_1"].left.shape[-1]


def test_lemma_4_fails_as_printed_and_holds_as_derived_in_the_papers_setting():
    problem, _ = both("peaks")
    policy = made(GPOO, problem, rbf_kernel(0.05, 0.1), delta=lambda h: 14 * 2.0**-h)
    claims = ledger(simulate(problem, policy, 40, range(5), progress=False), problem, policy).claims
    assert claims["draws, printed"].frequency == 0.0  # the very first draw is more than beta sigma^2 / delta^2
    assert claims["draws, derived"].violations == 0


def test_fewer_than_two_draws_on_top_would_not_do():
    # With almost no noise one draw makes the width small, but the node is drawn with the width before that.
    problem = cell_problem(lambda x: x[..., 0], noise_std=1e-4)
    policy = made(GPOO, problem, rbf_kernel(1.0, 1.0), delta=lambda h: 2.0**-h)
    claims = ledger(simulate(problem, policy, 6, [0], progress=False), problem, policy).claims
    derived = claims["draws, derived"]
    assert derived.violations == 0
    assert bool((derived.left > derived.right - 0.01).any())


@pytest.mark.parametrize("kind", [GPOO, theory.WidthAfter])
def test_the_derived_draws_hold_for_either_width_of_line_6(kind):
    problem, _ = both("periodic")
    policy = made(kind, problem, rbf_kernel(0.05, 0.1), delta=lambda h: 0.8 * 2.0**-h)
    claims = ledger(simulate(problem, policy, 60, range(4), progress=False), problem, policy).claims
    assert claims["draws, derived"].violations == 0
    assert int(claims["draws, derived"].left.max()) > 3


def test_on_draws_from_the_prior_xi_2_holds_as_often_as_lemma_1_promises():
    kernel, replicates = rbf_kernel(0.15, 0.3), 60
    f = prior_samples(kernel, UNIT, range(replicates))
    problem = cell_problem(f, noise_std=0.1, replicates=replicates)
    policy = made(GPOO, problem, kernel, delta=lambda h: 3 * 2.0**-h, max_depth=5, failure=0.3)
    history = simulate(problem, policy, 40, range(100, 100 + replicates), progress=False)
    claim = ledger(history, problem, policy).claims["xi_2"]
    assert claim.frequency >= claim.probability == pytest.approx(0.7)
    # The claim can fail: with a twentieth of the width it does in every replicate.
    options = {"delta": lambda h: 3 * 2.0**-h, "max_depth": 5, "sqrt_beta": lambda t: 0.05 * policy.sqrt_beta(t)}
    narrow = made(GPOO, problem, kernel, **options)
    history = simulate(problem, narrow, 40, range(100, 100 + replicates), progress=False)
    assert ledger(history, problem, narrow).claims["xi_2"].frequency == 0.0


def test_nodes_deeper_than_the_levels_that_are_laid_out_are_followed_too(monkeypatch):
    monkeypatch.setattr(regret, "_NODE_LIMIT", 40)  # the root, 5 and 25 nodes: two levels
    problem, world = both("peaks", branching=5, noise_std=1e-2)
    policy = made(GPOO, problem, rbf_kernel(0.05, 0.1), delta=lambda h: 5 * 4.0**-h, max_depth=6)
    history = simulate(problem, policy, 40, [0, 1], progress=False)
    claims = ledger(history, problem, policy).claims
    deep = history["depth"] > 2
    nodes = zip(history["depth"][deep].tolist(), history["index"][deep].tolist(), strict=True)
    assert len(set(nodes)) > 3
    for r in range(2):
        count = {}
        for t in range(40):
            node = (int(history["depth"][r, t]), int(history["index"][r, t]))
            count[node] = count.get(node, 0) + 1
            assert int(claims["draws, derived"].left[r, t]) == count[node]
    replay = plain.Process(world, 0.05, 0.1, 1e-2)
    for t in range(39):
        replay.learn(history["query"][1, t].numpy(), float(history["observation"][1, t]))
    cells = {tuple(c.flatten().tolist()): c.numpy() for c in history["query"][1, :39]}
    _, std = replay(cells)
    times = [tuple(c.flatten().tolist()) for c in history["query"][1, :39]]
    worst = max(std[c] * math.sqrt(times.count(c)) / 1e-2 for c in cells)
    found = float(claims["std <= sigma/sqrt(T)"].left[1, 39])
    assert found == pytest.approx(worst, abs=1e-7)
    assert claims["std <= sigma/sqrt(T)"].violations == 0


def test_theorem_1_fails_where_both_events_hold_because_children_draw_at_their_own_depth():
    # The root is expanded at once, and the best of its ten children need dozens of draws each. Eq. 8 counts the draws
    # of a leaf that was not expanded with the delta of its parent. Assumption 3 holds with L = 2, Assumption 4 with
    # nu = 1/2, and [1 - e, 1] holds the centers of at most four disjoint balls of radius e / 6: d = 0 and C = 4.
    problem = cell_problem(lambda x: x[..., 0], branching=10, points_per_cell=1)
    policy = made(GPOO, problem, rbf_kernel(0.3, 0.3), delta=lambda h: 0.1**h, max_depth=3)
    steps, delta = 40, torch.tensor([0.1**h for h in range(4)], dtype=F64)
    accounts = ledger(simulate(problem, policy, steps, range(5), progress=False), problem, policy)
    assert regret.lipschitz_constant(problem, delta) == pytest.approx(2)
    for epsilon in (10.0, 3.0, 0.3, 0.07, 1e-3):
        near = theory.near_optimality(problem.f, problem.space.bounds, 1.0, 1 / 6, [epsilon, epsilon])
        assert int(near.packing.max()) <= 4
    assert all(accounts.claims[name].frequency == 1.0 for name in ("xi_1", "xi_2", "expanded in I_h"))
    beta = policy.sqrt_beta(steps) ** 2
    printed = theory.printed_depth(steps, beta, [4] * 3, delta, 10, 0.1)
    corrected = theory.theorem_depth(steps, beta, [4] * 3, delta, 10, 0.1)
    assert (printed, corrected) == (1, 0)
    assert bool((accounts.regret[:, -1] > 3 * delta[printed]).all())
    assert bool((accounts.regret[:, -1] <= 3 * delta[corrected]).all())


@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(1, 12),
    st.integers(0, 5),
    st.floats(0.05, 1.0),
    st.floats(0.05, 2.0),
)
def test_repeated_draws_bound_the_standard_deviation(seed, points, draws, others, noise, lengthscale):
    """Proposition 2, and the sharper bound inside its proof, for any measure and whatever else was seen."""
    rng = torch.Generator().manual_seed(seed)

    def measure(n):
        weights = torch.rand(n, points, generator=rng, dtype=F64)
        return Measure(torch.rand(n, points, 2, generator=rng, dtype=F64), weights / weights.sum(-1, keepdim=True))

    own, rest = measure(1), measure(others)
    process = GaussianProcess(rbf_kernel(lengthscale), noise)
    observed = Measure.cat([own[[0] * draws], rest])
    posterior = process.condition(observed, torch.randn(observed.n, generator=rng, dtype=F64))
    std = float(posterior.variance(own).sqrt())
    prior = float(process.posterior().variance(own))
    assert std <= noise / math.sqrt(draws) + 1e-9
    assert std <= 1 / math.sqrt(draws / noise**2 + 1 / prior) + 1e-9
    if others == 0:
        assert std == pytest.approx(1 / math.sqrt(draws / noise**2 + 1 / prior), rel=1e-6)


def test_the_failures_of_all_rounds_stay_below_theta():
    # The proof of Lemma 1 spends theta / pi_t in round t; the sum of 1 / pi_t over all rounds is 1.
    nodes, failure = 2047, 0.1
    spent = [nodes * math.exp(-(union_bound_sqrt_beta(nodes, t, failure) ** 2) / 2) for t in range(1, 20_001)]
    assert spent[0] == pytest.approx(failure * 6 / math.pi**2, rel=1e-12)
    totals = np.cumsum(spent) / failure
    assert bool((totals < 1).all())
    assert totals[-1] == pytest.approx(1 - 6 / math.pi**2 / 20_000.5, abs=1e-8)


def test_a_history_without_steps_has_no_ledger():
    problem = cell_problem(lambda x: x[..., 0])
    policy = made(GPOO, problem, rbf_kernel(0.2), delta=lambda h: 2 * 0.5**h)
    with pytest.raises(ValueError, match="history must hold at least one step, got none"):
        ledger(simulate(problem, policy, 0, [0]), problem)


def test_only_the_multiplier_of_lemma_1_promises_xi_2_and_point_feedback_the_order_of_regrets():
    for settings, promised in (({}, 0.9), ({"sqrt_beta": lambda t: 1.0}, None), ({"noise_std": 0.2}, None)):
        problem = cell_problem(lambda x: x[..., 0], feedback="continuous")
        policy = made(GPOO, problem, rbf_kernel(0.2), delta=lambda h: 2 * 0.5**h, max_depth=4, **settings)
        claims = ledger(simulate(problem, policy, 2, [0]), problem, policy).claims
        assert claims["xi_2"].probability == promised or (promised is None and math.isnan(claims["xi_2"].probability))
        assert "simple <= aggregated" not in claims


def test_a_fitted_prior_has_no_claims():
    problem = cell_problem(lambda x: x[..., 0])
    policy = GPOO(problem.space)
    history = simulate(problem, policy, 3, [0], progress=False)
    ledger(history, problem).check_identity()
    with pytest.raises(ValueError, match="policy must have a prior, what it fits differs from round to round"):
        ledger(history, problem, policy)
