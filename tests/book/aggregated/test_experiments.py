"""The experiments run what the paper ran, and their figures show what was run."""

import math
import re

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from book import figures
from book.aggregated import drawing, experiments
from book.aggregated.controls import UniformGrid
from book.aggregated.problems import LENGTHSCALES, VARIANCE, aggregated_reward_curve, curve_problem
from cbo_lib.aggregated import GPOO, AveStoOO, GPTree, StoOO
from cbo_lib.former.simulate import simulate
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.aggregated.helpers import F64, cell_problem, made, nodes_of

NAMES = ["GPOO", "StoOO", "AVE-StoOO", "GPTree", "GPTree, small V", "uniform grid"]


def regret_of(history, problem):
    return (float(problem.optimum) - history["recommended_value"]).numpy()


def test_delta_halves_with_every_level():
    assert experiments.delta(torch.arange(4)).tolist() == [14, 7, 3.5, 1.75]


@pytest.mark.parametrize("curve", ["peaks", "periodic", "spike"])
def test_the_canonical_metric_is_that_of_the_kernel(curve):
    kernel = rbf_kernel(LENGTHSCALES[curve], VARIANCE)
    metric = experiments.canonical_metric(curve)
    for r in (1e-2, 0.03, 0.2, 1.0):
        dense = kernel(torch.tensor([[0.0], [r]], dtype=F64)).to_dense()
        expected = (dense[0, 0] + dense[1, 1] - 2 * dense[0, 1]).sqrt()
        assert metric(r) == pytest.approx(float(expected), rel=1e-9)
    # Where subtracting would cancel, the metric is linear.
    slope = math.sqrt(VARIANCE) / LENGTHSCALES[curve]
    assert metric(1e-10) == pytest.approx(slope * 1e-10, rel=1e-9)


@pytest.mark.parametrize("curve", ["peaks", "periodic", "spike"])
def test_a_problem_is_the_papers_curve_with_its_noise(curve):
    problem = curve_problem(curve, 7, 3)
    x = torch.linspace(0, 1, 11, dtype=F64)[:, None]
    assert torch.equal(problem.f(x), aggregated_reward_curve(curve)(x))
    assert (problem.space.points_per_cell, problem.space.branching, problem.noise_std, problem.space.dim) == (
        7,
        3,
        0.1,
        1,
    )
    assert problem.space.feedback == "points"
    assert problem.space.bounds.tolist() == [[0.0], [1.0]]


@pytest.mark.parametrize(("curve", "lengthscale"), [("peaks", 0.05), ("periodic", 0.05), ("spike", 0.01)])
def test_policies_have_the_papers_names_and_settings(curve, lengthscale):
    problem = curve_problem(curve)
    policies = experiments.policies(problem, curve, 50)
    assert list(policies) == NAMES
    assert [type(p) for p in policies.values()] == [GPOO, StoOO, AveStoOO, GPTree, GPTree, UniformGrid]
    depth = torch.arange(5)
    for name, policy in policies.items():
        assert policy.space is problem.space
        if hasattr(policy, "delta"):
            assert policy.delta(depth).tolist() == [14, 7, 3.5, 1.75, 0.875]
        if policy.prior is not None:
            assert float(policy.prior.kernel.base_kernel.lengthscale) == pytest.approx(lengthscale)
            assert float(policy.prior.kernel.outputscale) == pytest.approx(0.1)
            assert policy.prior.noise_std == 0.1
        if name not in ("GPOO", "AVE-StoOO"):
            assert policy.budget == 50
    assert [name for name in NAMES if hasattr(policies[name], "delta")] == NAMES[:3]
    assert [name for name in NAMES if policies[name].prior is not None] == [NAMES[0], *NAMES[3:]]
    assert policies["GPOO"].follows_lemma_1
    assert policies["GPOO"].max_depth == 10
    assert {float(policies[name].given_span) for name in NAMES[1:3]} == {1.0}
    assert [policies[name].failure for name in NAMES[:3]] == [0.1] * 3
    assert policies["uniform grid"].level == 5


def variation(g, h, budget):
    c4 = 1 + 2 * math.log(budget**2 * math.pi**2 / 6)
    return 4 * g * (math.sqrt(4 + c4 + h * math.log(2) + 4 * math.log(1 / g)) + 1)


def test_one_gptree_knows_the_kernel_and_the_other_follows_the_published_code():
    found = experiments.policies(curve_problem("peaks"), "peaks", 80)
    metric = experiments.canonical_metric("peaks")
    theory, code = found["GPTree"], found["GPTree, small V"]
    assert theory.sqrt_beta == pytest.approx(math.sqrt(math.log(80) + 2))
    assert code.sqrt_beta == pytest.approx(0.25 * theory.sqrt_beta)
    assert theory.max_depth == pytest.approx(math.log2(80))
    assert code.max_depth == pytest.approx(3 * math.log2(80))
    for h in range(6):
        assert float(theory.variation[h]) == pytest.approx(variation(metric(2.0**-h), h, 80))
        assert float(code.variation[h]) == pytest.approx(variation(0.1 * 2.0**-h, h, 80))


STEPS = 24


@pytest.fixture(scope="module")
def spike():
    """GPOO on the spike with 1 and with 10 points a cell, as in Figure 5."""
    result = {}
    for points in (1, 10):
        problem = curve_problem("spike", points)
        policy = experiments.gpoo(problem, "spike")
        result[points] = problem, policy, simulate(problem, policy, STEPS, range(10))
    return result


def test_gpoo_runs_on_the_spike_of_the_paper(spike):
    assert list(spike) == [1, 10]
    for points, (problem, policy, history) in spike.items():
        assert policy.space is problem.space
        assert (problem.space.points_per_cell, problem.space.branching) == (points, 2)
        x = torch.linspace(0.9, 1, 7, dtype=F64)[:, None]
        assert torch.equal(problem.f(x), aggregated_reward_curve("spike")(x))
        assert float(policy.prior.kernel.base_kernel.lengthscale) == pytest.approx(0.01)
        assert (history.replicates, history.steps) == (10, STEPS)
        assert policy.draws.sum(-1).tolist() == [STEPS] * 10
        for replicate in (0, 7):
            drawn = nodes_of(policy.tree, history["query"][replicate])
            nodes = list(zip(policy.tree.depth.tolist(), policy.tree.index.tolist(), strict=True))
            assert policy.draws[replicate].tolist() == [drawn.count(node) for node in nodes]


@pytest.mark.parametrize("replicate", [0, 3])
def test_a_tree_is_drawn_with_its_nodes_edges_and_draws(spike, replicate):
    _, policy, history = spike[10]
    figure, axes = figures.subplots()
    drawing.plot_tree(axes[0, 0], policy, replicate)
    figures.show(figure, "A tree.")
    counts = {}
    for box in history["query"][replicate].squeeze(-1).tolist():
        counts[tuple(box)] = counts.get(tuple(box), 0) + 1
    cells = {(0.0, 1.0): 0}
    for box, expanded in zip(history["query"][replicate], history["expanded"][replicate], strict=True):
        if expanded:
            low, high = box.squeeze(-1).tolist()
            cells |= {(low, (low + high) / 2): 0, ((low + high) / 2, high): 0}
    cells |= counts
    expected = {"never drawn": set(), "drawn once": set(), "drawn more often": set()}
    for (low, high), count in cells.items():
        kind = list(expected)[min(count, 2)]
        expected[kind].add(((low + high) / 2, -math.log2(high - low)))
    found = {line.get_label(): set(map(tuple, np.column_stack(line.get_data()))) for line in axes[0, 0].lines}
    assert found == expected
    assert len(expected["never drawn"]) > 0 < len(expected["drawn once"])
    assert len({line.get_marker() for line in axes[0, 0].lines}) == 3
    segments = axes[0, 0].collections[0].get_segments()
    assert len(segments) == len(cells) - 1
    for (x0, h0), (x1, h1) in segments:
        assert h1 == h0 + 1
        assert abs(x0 - x1) == 2.0 ** -(h1 + 1)
    deep, top = axes[0, 0].get_ylim()
    assert deep > max(height for kind in expected.values() for _, height in kind)
    assert top < 0
    assert (axes[0, 0].get_xlabel(), axes[0, 0].get_ylabel()) == ("x", "depth")


def test_a_posterior_is_drawn_with_its_data(spike):
    problem, policy, history = spike[10]
    figure, axes = figures.subplots()
    drawing.plot_posterior(axes[0, 0], problem, policy, history, 2)
    figures.show(figure, "A posterior.")
    lines = {line.get_label(): line for line in axes[0, 0].lines}
    assert list(lines) == ["f", "posterior mean", "observation, at its cell's center"]
    cells, seen = history["query"][2], history["observation"][2]
    points = cells[:, 0] + (cells[:, 1] - cells[:, 0]) * (torch.arange(10) + 0.5) / 10  # STEPS 10
    x = torch.tensor(lines["posterior mean"].get_xdata(), dtype=F64)

    def k(a, b):
        return 0.1 * torch.exp(-((a[:, None] - b[None]) ** 2) / (2 * 0.01**2))

    flat = points.flatten()
    gram = k(flat, flat).reshape(STEPS, 10, STEPS, 10).mean((1, 3)) + 0.01 * torch.eye(STEPS, dtype=F64)
    cross = k(x, flat).reshape(len(x), STEPS, 10).mean(-1)
    mean = cross @ torch.linalg.solve(gram, seen)
    std = (0.1 - (cross * torch.linalg.solve(gram, cross.mT).mT).sum(-1)).clamp_min(0).sqrt()
    np.testing.assert_allclose(lines["posterior mean"].get_ydata(), mean, atol=1e-8)
    (band,) = axes[0, 0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(float((mean + 2 * std).max()), abs=1e-6)
    assert heights.min() == pytest.approx(float((mean - 2 * std).min()), abs=1e-6)
    np.testing.assert_allclose(lines["observation, at its cell's center"].get_ydata(), seen)
    np.testing.assert_allclose(lines["observation, at its cell's center"].get_xdata(), cells.mean(1)[:, 0])
    np.testing.assert_allclose(lines["f"].get_ydata(), problem.f(torch.tensor(lines["f"].get_xdata())[:, None]))


def test_figure_5_is_drawn_tree_over_posterior(spike):
    figure = drawing.plot_figure_5(spike, replicate=1)
    figures.show(figure, "Trees and posteriors.")
    left, right, lower_left, lower_right = figure.axes
    assert [axis.get_title() for axis in (left, right)] == [f"S = 1, N = {STEPS}", f"S = 10, N = {STEPS}"]
    for axis, below, points in ((left, lower_left, 1), (right, lower_right, 10)):
        _, policy, history = spike[points]
        held = int((policy.leaf | policy.expanded)[1].sum())
        assert sum(len(line.get_xdata()) for line in axis.lines) == held
        np.testing.assert_allclose(below.lines[-1].get_ydata(), history["observation"][1])
        assert (axis.get_ylabel(), below.get_ylabel(), below.get_xlabel()) == ("depth", "f", "x")
        assert axis.yaxis_inverted()
    assert "posterior mean" in [text.get_text() for text in lower_right.get_legend().get_texts()]


ROUNDS, SEED = 14, 3


def shrinking(depth):
    return 1.5 * 2.0**-depth


def shrinking_gpoo(problem):
    return made(GPOO, problem, rbf_kernel(0.05, 0.1), delta=shrinking, max_depth=6)


@pytest.fixture(scope="module", params=[2, 3])
def growth(request):
    problem = curve_problem("peaks", 10, request.param)
    policy = shrinking_gpoo(problem)
    history = simulate(problem, shrinking_gpoo(problem), ROUNDS, [SEED])
    return problem, policy, history, drawing.tree_growth(problem, policy, ROUNDS, SEED, (-0.7, 2.5))


def test_a_growing_tree_tells_what_the_simulation_did(growth):
    problem, _, history, (frames, labels, alts) = growth
    assert len(frames) == len(labels) == len(alts) == ROUNDS
    leaves = 1
    for t in range(ROUNDS):
        expands = bool(history["expanded"][0, t])
        what = "then it is split" if expands else "it stays a leaf"
        depth = int(history["depth"][0, t])
        assert labels[t] == f"round {t + 1}: depth {depth}, {what}"
        low, high = history["query"][0, t, :, 0].tolist()
        assert f"Round {t + 1}." in alts[t]
        assert f"[{low:.3f}, {high:.3f}] at depth {depth}; {what}." in alts[t]
        leaves += (problem.space.branching - 1) * expands
        assert re.findall(r"holds (\d+) leaves", alts[t]) == [str(leaves)]
    assert len(set(history["expanded"][0].tolist())) == 2  # both kinds of rounds happened


def test_a_growing_tree_ends_where_the_simulation_ended(growth):
    problem, policy, history, _ = growth
    assert torch.equal(policy.draws.sum(-1), torch.tensor([ROUNDS]))
    again = shrinking_gpoo(problem)
    simulate(problem, again, ROUNDS, [SEED])
    assert torch.equal(again.draws, policy.draws)
    assert torch.equal(again.recommend(), policy.recommend())
    torch.testing.assert_close(again.tracked.mean, policy.tracked.mean)
    assert torch.equal(history["recommendation"][:, -1], policy.recommend())


def test_each_frame_shows_the_leaves_before_its_draw(growth):
    problem, policy, history, (frames, _, _) = growth
    leaves = {(0.0, 1.0)}
    for t, figure in enumerate(frames):
        above, below = figure.axes
        low, high = history["query"][0, t, :, 0].tolist()
        means = above.collections[0].get_segments()
        found = {(a, b): y for (a, y), (b, _) in means}
        assert set(found) == leaves
        cells = torch.tensor([[[a], [b]] for a, b in found], dtype=F64)
        if t > 0:
            past = problem.space.measure(history["query"][0, :t])
            posterior = policy.prior.condition(past, history["observation"][0, :t])
            mean = posterior.mean(problem.space.measure(cells))
            std = posterior.variance(problem.space.measure(cells)).sqrt()
            np.testing.assert_allclose(list(found.values()), mean, atol=1e-9)
            depth = torch.log(1 / (cells[:, 1] - cells[:, 0])[:, 0]) / math.log(problem.space.branching)
            width = policy.sqrt_beta(t + 1) * std
            b_value = dict(zip(found, (mean + width + shrinking(depth)).tolist(), strict=True))
            assert b_value[low, high] == pytest.approx(max(b_value.values()))
            count = len(leaves)
            for bar, inner in zip(above.patches[:count], above.patches[count:], strict=True):
                cell = next(c for c in found if c[0] == bar.get_x() == inner.get_x())
                assert bar.get_width() == pytest.approx(cell[1] - cell[0])
                assert bar.get_y() + bar.get_height() == pytest.approx(b_value[cell])
                assert inner.get_y() + inner.get_height() / 2 == pytest.approx(found[cell], abs=1e-9)
                color = figures.COLORS[1 if cell == (low, high) else 0]
                assert to_hex(bar.get_facecolor()) == to_hex(inner.get_facecolor()) == color.lower()
        truth = {(a, b): y for (a, y), (b, _) in above.collections[1].get_segments()}
        for (a, b), y in truth.items():
            x = a + (b - a) * (torch.arange(10, dtype=F64) + 0.5) / 10
            assert y == pytest.approx(float(problem.f(x[:, None]).mean()))
        marked = below.lines[-1].get_data()
        assert [float(np.squeeze(part)) for part in marked] == pytest.approx(
            [(low + high) / 2, int(history["depth"][0, t])]
        )
        if history["expanded"][0, t]:
            leaves.remove((low, high))
            children = policy.tree.boxes[(policy.tree.depth == history["depth"][0, t] + 1)].squeeze(-1)
            inside = (children >= low - 1e-12) & (children <= high + 1e-12)
            leaves |= {tuple(child) for child in children[inside.all(-1)].tolist()}


def test_frames_of_a_growing_tree_share_their_limits_and_go_into_a_slider(growth):
    frames, labels, alts = growth[-1]
    for figure in frames:
        above, below = figure.axes
        assert above.get_ylim() == (-0.7, 2.5)
        assert (above.get_ylabel(), below.get_xlabel(), below.get_ylabel()) == ("value (units of f)", "x", "depth")
    text = figures.slider(frames[:2], labels[:2], alts[:2], "Round").data
    assert labels[0] in text


def test_a_run_is_drawn_as_a_tree_beside_its_ledger(spike):
    problem, policy, history = spike[10]
    figure = drawing.plot_run(problem, policy, history, replicate=4)
    figures.show(figure, "A tree and regret.")
    tree, accounts = figure.axes
    held = int((policy.leaf | policy.expanded)[4].sum())
    assert sum(len(line.get_xdata()) for line in tree.lines) == held
    regret = next(line for line in accounts.lines if line.get_label() == "regret")
    np.testing.assert_allclose(regret.get_ydata(), regret_of(history, problem).mean(0))
    assert (tree.get_xlabel(), tree.get_ylabel()) == ("x", "depth")
    assert (accounts.get_xlabel(), accounts.get_ylabel()) == ("round", "regret (units of f)")


def test_a_posterior_is_drawn_over_the_whole_of_other_bounds():
    bounds = torch.tensor([[-2.0], [2.0]], dtype=F64)
    problem = cell_problem(lambda x: torch.sin(x[..., 0]), bounds=bounds)
    policy = made(GPOO, problem, rbf_kernel(0.5), delta=shrinking)
    history = simulate(problem, policy, 3, [0])
    _, axes = figures.subplots()
    drawing.plot_posterior(axes[0, 0], problem, policy, history, 0)
    drawn = next(line for line in axes[0, 0].lines if line.get_label() == "posterior mean")
    assert (min(drawn.get_xdata()), max(drawn.get_xdata())) == (-2, 2)
    x = torch.tensor([[-2.0]], dtype=F64)
    at_the_edge = policy.prior.condition(problem.space.measure(history["query"][0]), history["observation"][0])
    assert drawn.get_ydata()[0] == pytest.approx(float(at_the_edge.mean(Measure.dirac(x))))
