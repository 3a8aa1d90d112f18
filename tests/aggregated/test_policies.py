import math

import numpy as np
import pytest
import torch

from book.aggregated.controls import UniformGrid
from book.aggregated.problems import aggregated_reward_curve
from book.aggregated.theory import WidthAfter
from cbo_lib.aggregated import GPOO, AveStoOO, GPTree, StoOO
from cbo_lib.aggregated.tree_policy import check_smoothness
from cbo_lib.former.simulate import ObservationError, simulate
from cbo_lib.kernels import rbf_kernel
from cbo_lib.random import ReplicateGenerators
from tests.aggregated import plain
from tests.aggregated.helpers import F64, both, cell_problem, made, nodes_of, noise_draws

PEAKS = aggregated_reward_curve("peaks")
LENGTHSCALE, VARIANCE = 0.05, 0.1


def kernel(lengthscale=LENGTHSCALE):
    return rbf_kernel(lengthscale, VARIANCE)


def steep(h):
    return 14 * 2.0**-h


def gentle(h):
    return 0.8 * 2.0**-h


def noted(policy):
    """Also record the estimated value of the recommended cell at every round."""
    record = policy.record

    def with_mean():
        return {**record(), "recommended_mean": policy.estimates()[policy.rows, policy.recommended()]}

    policy.record = with_mean
    return policy


def run(problem, policy, steps, seeds):
    return simulate(problem, policy, steps, seeds, progress=False)


def assert_same_run(history, replicate, policy, tree, rounds, tolerance=1e-9):
    """Queries, expansions, recommendations and means of one replicate against the plain policy."""
    pairs = list(zip(history["depth"][replicate].tolist(), history["index"][replicate].tolist(), strict=True))
    assert pairs == [r.node for r in rounds]
    assert history["expanded"][replicate].tolist() == [r.expanded for r in rounds]
    cells = torch.stack([torch.from_numpy(tree.cells[r.recommended]) for r in rounds])
    torch.testing.assert_close(history["recommendation"][replicate], cells, rtol=0, atol=1e-12)
    observed = torch.tensor([r.observation for r in rounds], dtype=F64)
    torch.testing.assert_close(history["observation"][replicate], observed, rtol=0, atol=1e-12)
    means = torch.tensor([r.means[r.recommended] for r in rounds], dtype=F64)
    torch.testing.assert_close(history["recommended_mean"][replicate], means, rtol=0, atol=tolerance)
    # Every node of the replicate, after the last round.
    mine = (policy.leaf | policy.expanded)[replicate]
    found = nodes_of(policy.tree, policy.tree.boxes[mine])
    assert set(found) == set(tree.cells)
    last = torch.tensor([rounds[-1].means[node] for node in found], dtype=F64)
    torch.testing.assert_close(policy.estimates()[replicate, mine], last, rtol=0, atol=tolerance)


def assert_gpoo_is_plain(name, branching, points, delta, steps, seeds, max_depth=10, model_noise=None, after=False):
    problem, world = both(name, branching, points)
    lengthscale = 0.2 if name == "hills" else LENGTHSCALE
    kind, options = WidthAfter if after else GPOO, {"delta": delta, "max_depth": max_depth}
    policy = noted(made(kind, problem, kernel(lengthscale), model_noise, **options))
    history = run(problem, policy, steps, seeds)
    for replicate, seed in enumerate(seeds):
        process = plain.Process(world, lengthscale, VARIANCE, model_noise or world.noise_std)
        noise = noise_draws(seed, steps)
        tree, rounds = plain.gpoo(world, process, delta, noise, expand_after=after)
        assert_same_run(history, replicate, policy, tree, rounds)
        widths = torch.tensor([r.width for r in rounds], dtype=F64)
        torch.testing.assert_close(history["width"][replicate], widths, rtol=0, atol=1e-7)
        for rule in ("best_expanded", "line_11"):
            best = torch.stack([torch.from_numpy(tree.cells[getattr(r, rule)]) for r in rounds])
            torch.testing.assert_close(history[rule][replicate], best, rtol=0, atol=1e-12)
    return history


def test_the_plain_averages_are_equation_4():
    process = plain.Process(plain.World(None, points=3), 0.3, 1.0, 0.1)
    x = np.random.default_rng(0).random((12, 1))
    z = np.random.default_rng(1).random((6, 1))
    left, right = (np.kron(np.eye(m), np.full((1, 3), 1 / 3)) for m in (4, 2))
    expected = left @ process.k(x, z) @ right.T
    np.testing.assert_allclose(process.averages(process.k(x, z), 4, 2), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["peaks", "periodic", "spike"])
@pytest.mark.parametrize("branching", [2, 3])
@pytest.mark.parametrize("points", [1, 10])
def test_gpoo_is_the_plain_algorithm_on_the_papers_curves(name, branching, points):
    history = assert_gpoo_is_plain(name, branching, points, steep, 22, [0, 3])
    assert history["expanded"].any()


@pytest.mark.parametrize("points", [1, 6])
def test_gpoo_is_the_plain_algorithm_in_two_dimensions(points):
    history = assert_gpoo_is_plain("hills", 2, points, gentle, 30, [1, 5])
    assert int(history["depth"].max()) >= 3


def test_gpoo_is_the_plain_algorithm_where_leaves_are_drawn_again_and_again():
    history = assert_gpoo_is_plain("peaks", 2, 10, gentle, 40, [2, 4])
    assert not history["expanded"][:, 5:].all()


def test_gpoo_is_the_plain_algorithm_when_the_model_knows_less_noise_than_there_is():
    assert_gpoo_is_plain("periodic", 2, 10, steep, 30, [0, 7], model_noise=0.005)


def test_gpoo_may_expand_by_the_width_after_the_observation():
    after = assert_gpoo_is_plain("peaks", 2, 10, gentle, 30, [0, 1, 2], after=True)
    before = assert_gpoo_is_plain("peaks", 2, 10, gentle, 30, [0, 1, 2], after=False)
    # The width has shrunk by then, so the first expansion comes sooner or at the same round.
    first = [h["expanded"].to(torch.uint8).argmax(-1) for h in (after, before)]
    assert bool((first[0] <= first[1]).all())
    assert not torch.equal(after["expanded"], before["expanded"])


@pytest.mark.parametrize("name", ["peaks", "periodic"])
def test_stooo_is_the_plain_algorithm(name):
    problem, world = both(name)
    policy = noted(StoOO(problem.space, delta=steep, budget=40, span=1.0))
    history = run(problem, policy, 40, [0, 6])
    for replicate, seed in enumerate([0, 6]):
        tree, rounds = plain.stooo(world, steep, noise_draws(seed, 40), budget=40)
        assert_same_run(history, replicate, policy, tree, rounds)
    assert int(history["recommended_depth"].max()) >= 2


@pytest.mark.parametrize(("name", "branching", "points"), [("peaks", 2, 10), ("spike", 3, 1), ("hills", 2, 6)])
def test_ave_stooo_is_the_plain_algorithm(name, branching, points):
    problem, world = both(name, branching, points)
    policy = noted(AveStoOO(problem.space, delta=steep, span=1.0))
    history = run(problem, policy, 40, [0, 6])
    for replicate, seed in enumerate([0, 6]):
        tree, rounds = plain.ave_stooo(world, steep, noise_draws(seed, 40))
        assert_same_run(history, replicate, policy, tree, rounds)
    assert history["expanded"].any()


def metric(r, scale=0.02):
    """The standard deviation of f(x) - f(x'), scaled so that some nodes are drawn and some expanded."""
    return scale * math.sqrt(2 * VARIANCE * (1 - math.exp(-((r / LENGTHSCALE) ** 2) / 2)))


@pytest.mark.parametrize(
    ("name", "branching", "points", "noise_std", "scale"),
    [
        ("peaks", 2, 10, 0.1, 0.02),
        ("periodic", 3, 1, 0.1, 0.02),
        ("peaks", 2, 10, 0.01, 0.004),  # the bound from the parent is the smaller one
        ("peaks", 2, 10, 0.03, 0.01),
        ("spike", 3, 1, 0.03, 0.01),
    ],
)
def test_gp_tree_is_the_plain_algorithm(name, branching, points, noise_std, scale):
    def bound(r):
        return metric(r, scale)

    problem, world = both(name, branching, points, noise_std)
    policy = noted(made(GPTree, problem, kernel(), budget=40, metric_bound=bound))
    history = run(problem, policy, 40, [0, 6])
    for replicate, seed in enumerate([0, 6]):
        process = plain.Process(world, LENGTHSCALE, VARIANCE, noise_std)
        tree, rounds = plain.gp_tree(world, process, noise_draws(seed, 40), 40, bound)
        assert_same_run(history, replicate, policy, tree, rounds)
    assert int(history["depth"].max()) > int(history["depth"].min())
    assert int(policy.draws.max()) > 1


def test_gp_tree_expands_no_node_below_its_deepest_level():
    problem, _ = both("peaks")
    policy = made(GPTree, problem, kernel(), budget=5, metric_bound=lambda r: 0.9)  # so wide that it always expands
    run(problem, policy, 5, [0])
    assert math.floor(policy.max_depth) == 2
    assert int(policy.tree.depth.max()) == 3


POLICIES = {
    "gpoo": lambda p: made(GPOO, p, kernel(), delta=gentle),
    "stooo": lambda p: StoOO(p.space, delta=steep, budget=20),
    "ave-stooo": lambda p: AveStoOO(p.space, delta=steep),
    "gp-tree": lambda p: made(GPTree, p, kernel(), budget=20, metric_bound=metric),
    "uniform": lambda p: made(UniformGrid, p, kernel(), budget=20),
}


@pytest.mark.parametrize("name", POLICIES)
def test_replicate_seven_is_the_same_alone_and_among_thirty(name):
    problem, _ = both("peaks")
    many = run(problem, POLICIES[name](problem), 20, range(30))
    alone = run(problem, POLICIES[name](problem), 20, [7])
    for what in ("query", "recommendation", "depth", "index", "expanded"):
        assert torch.equal(many[what][7], alone[what][0]), what
    torch.testing.assert_close(many["observation"][7], alone["observation"][0], rtol=0, atol=1e-12)
    if name != "uniform":
        assert len({tuple(row) for row in many["observation"].tolist()}) == 30


@pytest.mark.parametrize("max_depth", [0, 1, 3])
def test_nodes_reach_one_level_below_max_depth_and_no_deeper(max_depth):
    problem, _ = both("peaks")
    policy = made(GPOO, problem, kernel(), delta=steep, max_depth=max_depth)
    history = run(problem, policy, 2 ** (max_depth + 1) + 6, [0, 1])
    assert int(policy.tree.depth.max()) == max_depth + 1
    assert int(history["depth"].max()) == max_depth + 1
    assert not history["expanded"][history["depth"] == max_depth + 1].any()
    assert int(history["recommended_depth"].max()) == max_depth


@pytest.mark.parametrize(("branching", "budget", "cells"), [(2, 16, 16), (2, 31, 16), (3, 30, 27), (2, 1, 1)])
def test_uniform_grid_visits_every_cell_once_before_any_again(branching, budget, cells):
    problem = cell_problem(PEAKS, branching=branching)
    history = run(problem, made(UniformGrid, problem, kernel(), budget=budget), 2 * cells, [0])
    first, second = history["index"][0].split(cells)
    assert sorted(first.tolist()) == list(range(cells))
    assert torch.equal(first, second)
    assert history["depth"].unique().tolist() == [round(math.log(cells, branching))]


def test_every_prefix_of_the_uniform_grid_is_spread_out():
    problem = cell_problem(PEAKS, branching=3)
    history = run(problem, made(UniformGrid, problem, kernel(), budget=81), 81, [0])
    for level in range(5):
        coarse = history["index"][0, : 3**level] // 3 ** (4 - level)
        assert sorted(coarse.tolist()) == list(range(3**level))


def test_the_uniform_grid_recommends_the_best_mean_among_visited_cells():
    problem = cell_problem(PEAKS)
    policy = made(UniformGrid, problem, kernel(), budget=16)
    for steps in (1, 5, 16):
        history = run(problem, policy, steps, [0, 1])
        for replicate in range(2):
            visited = policy.draws[replicate] > 0
            assert int(visited.sum()) == steps
            means = policy.tracked.mean[replicate].masked_fill(~visited, -torch.inf)
            best = policy.tree.boxes[means.argmax()]
            assert torch.equal(history["recommendation"][replicate, -1], best)


def test_before_any_expansion_everyone_recommends_the_root():
    problem, _ = both("peaks")
    never = {  # one draw is never enough
        "gpoo": made(GPOO, problem, kernel(), delta=lambda h: 1e-3 * 2.0**-h),
        "stooo": StoOO(problem.space, delta=lambda h: 1e-3 * 2.0**-h, budget=10),
        "gp-tree": made(GPTree, problem, kernel(), budget=10, metric_bound=lambda r: 1e-9),
    }
    for policy in never.values():
        history = run(problem, policy, 3, [0, 1])
        assert torch.equal(history["recommendation"], problem.space.bounds.expand(2, 3, 2, 1))
        assert not history["recommended_was_expanded"].any()
        assert history["recommended_depth"].tolist() == [[0] * 3] * 2


def test_the_covered_rule_looks_at_the_deepest_expanded_nodes_and_the_papers_rules_at_more():
    problem, _ = both("peaks")
    policy = made(GPOO, problem, kernel(), delta=steep)
    policy.start(range(20))
    generators = ReplicateGenerators(range(20))
    differs, from_a_leaf = False, False
    for t in range(1, 31):
        query = policy.ask()
        policy.tell(query, problem.observe(query, generators.at(t)))
        recommendation, trace = policy.recommend(), policy.trace()
        mean, depth = policy.tracked.mean, policy.tree.depth
        for r in range(20):
            expanded, leaf = policy.expanded[r], policy.leaf[r]
            if not bool(expanded.any()):
                continue
            deepest = int(depth[expanded].max())
            level = mean[r].masked_fill(~((expanded | leaf) & (depth == deepest)), -torch.inf)
            torch.testing.assert_close(trace["line_11"][r], policy.tree.boxes[level.argmax()])
            covered = mean[r].masked_fill(~(expanded & (depth == deepest)), -torch.inf)
            torch.testing.assert_close(recommendation[r], policy.tree.boxes[covered.argmax()])
            variant = mean[r].masked_fill(~expanded, -torch.inf)
            torch.testing.assert_close(trace["best_expanded"][r], policy.tree.boxes[variant.argmax()])
            assert int(trace["recommended_depth"][r]) == deepest
            assert bool(trace["recommended_was_expanded"][r])
            from_a_leaf |= not bool(expanded[level.argmax()])
            differs |= not torch.equal(trace["best_expanded"][r], recommendation[r])
    assert differs
    assert from_a_leaf


def test_a_started_policy_has_forgotten_its_last_run():
    problem, _ = both("peaks")
    for make in POLICIES.values():
        policy = make(problem)
        first = run(problem, policy, 12, [0, 1])
        run(problem, policy, 5, [3])
        again = run(problem, policy, 12, [0, 1])
        for name, tensor in first.tensors.items():
            assert torch.equal(tensor, again[name]), name


def test_a_custom_multiplier_is_used_at_every_round():
    problem, _ = both("peaks")
    asked = []

    def sqrt_beta(t):
        asked.append(t)
        return 3.0 + t

    policy = made(GPOO, problem, kernel(), delta=gentle, sqrt_beta=sqrt_beta)
    history = run(problem, policy, 4, [0])
    assert set(asked) == {1, 2, 3, 4}
    first = (
        history["width"][0, 0]
        / policy.prior.posterior().variance(problem.space.measure(problem.space.bounds[None])).sqrt()
    )
    assert float(first) == pytest.approx(4.0, abs=1e-9)


def test_the_widths_are_those_of_lemma_1():
    problem, _ = both("peaks", branching=3)
    policy = made(GPOO, problem, kernel(), delta=steep, max_depth=4, failure=0.05)
    for t in (1, 2, 80):
        assert policy.sqrt_beta(t) == pytest.approx(math.sqrt(plain.lemma_1_beta(3, 4, 0.05, t)), rel=1e-14)


@pytest.mark.parametrize(
    "delta",
    [
        lambda h: h * 1.0 - 3,  # negative at the root
        lambda h: 1.0 + h,  # increasing
        lambda h: torch.ones(len(h)),  # constant
        lambda h: (3.0 - h).clamp_min(0),  # zero from depth 3 on
        lambda h: 2.0,  # not one value a depth
        lambda h: torch.where(h > 1, torch.nan, 2.0**-h),
    ],
)
def test_a_smoothness_function_must_be_positive_and_decreasing(delta):
    with pytest.raises(ValueError, match="delta must be positive and decreasing in the depth, got"):
        check_smoothness(delta, 4, cell_problem(PEAKS).space)
    with pytest.raises(ValueError, match="delta must be positive and decreasing"):
        GPOO(cell_problem(PEAKS).space, delta=delta)


def test_a_smoothness_function_is_checked_down_to_the_last_level_and_no_deeper():
    def delta(h):
        return 5.0 - h

    assert check_smoothness(delta, 4, cell_problem(PEAKS).space) is delta
    GPOO(cell_problem(PEAKS).space, delta=delta, max_depth=3)  # nodes reach depth 4
    with pytest.raises(ValueError, match="delta must be positive"):
        GPOO(cell_problem(PEAKS).space, delta=delta, max_depth=4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: GPOO(s, max_depth=-1), "max_depth must be an integer from 0 to 47, got"),
        (lambda s: GPOO(s, max_depth=200), "max_depth must be an integer from 0 to 47, got"),
        (lambda s: GPOO(s, failure=0.0), r"failure must lie in \(0, 1\), got 0.0"),
        (lambda s: GPOO(s, failure=1.0), r"failure must lie in \(0, 1\), got 1.0"),
        (lambda s: GPOO(s, kernel="linear"), "kernel must be 'matern', 'rbf' or a GPyTorch kernel, got 'linear'"),
        (lambda s: StoOO(s, budget=0), r"budget must be .*at least 1, got"),
        (lambda s: StoOO(s, failure=1.5), r"failure must lie in \(0, 1\), got 1.5"),
        (lambda s: StoOO(s, span=0.0), "span must be positive and finite, got 0.0"),
        (lambda s: StoOO(s, delta=lambda h: h + 1.0), "delta must be positive and decreasing"),
        (lambda s: AveStoOO(s, failure=0.0), r"failure must lie in \(0, 1\), got 0.0"),
        (lambda s: GPTree(s, budget=0), r"budget must be .*at least 1, got"),
        (lambda s: GPTree(s, rho=1.0), r"rho must lie in \(0, 1\), got 1.0"),
        (lambda s: GPTree(s, alpha=1.2), r"alpha must lie in \(0, 1\], got 1.2"),
        (lambda s: GPTree(s, metric_bound=lambda r: 1.0), r"metric_bound must lie .* got 1.0 at distance 1.0"),
        (lambda s: GPTree(s, metric_bound=lambda r: 0.0), r"metric_bound must lie in \(0, 1\), got 0.0"),
        (lambda s: UniformGrid(s, budget=0), r"budget must be .*at least 1, got"),
        (lambda s: GPOO([[0.0], [1.0]]), r"space must be an aggregated.Space, got \[\[0.0\], \[1.0\]\]"),
    ],
)
def test_an_argument_out_of_range_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make(cell_problem(PEAKS).space)


@pytest.mark.parametrize("name", ["gpoo", "gp-tree", "uniform"])
def test_a_kernel_of_another_dtype_is_reported_with_the_remedy(name):
    problem, _ = both("peaks")
    policy = POLICIES[name](problem)
    policy.prior.kernel.to(torch.float32)
    with pytest.raises(ValueError, match=r"kernel must have the dtype .* points \(torch.float64"):
        run(problem, policy, 2, [0])


def test_everything_runs_in_single_precision_if_the_bounds_say_so():
    bounds = torch.tensor([[0.0], [1.0]])
    problem = cell_problem(aggregated_reward_curve("peaks", torch.float32), bounds=bounds)
    single = rbf_kernel(LENGTHSCALE, VARIANCE, torch.float32)
    policies = (
        made(GPOO, problem, single, delta=steep),
        StoOO(problem.space, delta=steep, budget=8),
        made(UniformGrid, problem, single, budget=8),
    )
    for policy in policies:
        history = run(problem, policy, 8, [0])
        assert history["observation"].dtype == history["query"].dtype == torch.float32


def test_an_objective_that_returns_nan_stops_the_run_and_keeps_the_history():
    def f(x):
        return torch.where(x[..., 0] > 0.9, torch.nan, PEAKS(x))

    problem = cell_problem(f, points_per_cell=1)  # the first centers lie below 0.9
    policy = made(GPOO, problem, kernel(), delta=steep)
    with pytest.raises(
        ObservationError, match=r"observations must be finite, got a NaN .* for seeds \[0, 4\]"
    ) as error:
        run(problem, policy, 40, [0, 4])
    kept = error.value.history
    healthy = run(cell_problem(PEAKS, points_per_cell=1), policy, kept.steps, [0, 4])
    assert kept.steps > 3
    for name in ("query", "observation", "recommendation", "value"):
        assert torch.equal(kept[name], healthy[name]), name
