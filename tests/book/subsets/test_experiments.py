"""The experiments run what they say, in small, store it and find it again, and their figures show what was run."""

import functools
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from book.subsets import experiments
from book.subsets.marginals import truncated_normal
from cbo_lib.subsets.baselines import TSPSQ, UCBCVS, UCBPSQ, GroupETC
from cbo_lib.subsets.policies import CheapestGoodSubset
from cbo_lib.subsets.search import Effort
from tests.subsets.helpers import F64, flat, prior

TINY = Effort(contexts=4, candidates=8, iterations=2)
NAMES = ["proposed", "TS-PSQ", "UCB-PSQ", "ETC-50", "UCB-CVS, costs known"]


@functools.cache
def small(budget=2.0):
    return flat(cost_std=0.02).with_budget(budget)


@pytest.fixture(scope="module")
def comparison():
    """Two policies and two replicates, of which one is done earlier than the other."""
    problem = small()
    chosen = experiments.policies(problem, prior(problem), TINY)
    return experiments.compare(problem, {name: chosen[name] for name in ("proposed", "UCB-PSQ")}, [4, 7])


def by_policy(comparison, costs):
    return {name: experiments.curves(h, comparison.problem, costs) for name, h in comparison.histories.items()}


# ---- problems whose theory is known


def interpolant_norm(kernel, x, y):
    """The smallest norm of a function through the values: never above that of the function that gave them."""
    return math.sqrt(float(y @ torch.linalg.solve(kernel(x).to_dense() + 1e-7 * torch.eye(len(x), dtype=F64), y)))


@pytest.mark.parametrize(("norm", "seed"), [(2.0, 0), (2.0, 3), (0.7, 1)])
def test_the_problem_of_known_norm_is_what_it_says(norm, seed):
    costs = (0.3, 0.1, 0.2, 0.4, 0.9)
    problem, process = experiments.known_norm(norm, seed, 0.05, costs, 0.03)
    assert problem.space.control_sets == ((0,), (1,), (2,), (0, 1), (0, 1, 2))
    assert problem.cost_means.tolist() == list(costs) and problem.cost_std == pytest.approx(0.01)
    assert problem.noise_std == process.noise_std == 0.05
    assert problem.space.free == (truncated_normal(0.03),) * 3
    assert float(process.kernel.outputscale) == 1 and float(process.kernel.base_kernel.lengthscale) == pytest.approx(
        0.4
    )
    x = torch.quasirandom.SobolEngine(3).draw(400, dtype=F64)
    centered = problem.f(x) - process.mean
    assert 0.995 * norm <= interpolant_norm(process.kernel, x, centered) <= norm * (1 + 1e-9)
    # The smallest value is zero: never below, and nearly reached by some point of a fine grid.
    many = problem.f(torch.quasirandom.SobolEngine(3, scramble=True, seed=5).draw(2**13, dtype=F64))
    edge = problem.f(torch.cartesian_prod(*(torch.linspace(0, 1, 21, dtype=F64),) * 3))
    least = min(float(many.min()), float(edge.min()))
    assert -1e-9 <= least <= 0.01 * norm
    # No two draws alike, and the same draw again.
    again, other = (experiments.known_norm(norm, s, 0.05, costs, 0.03)[0].f(x) for s in (seed, seed + 1))
    assert torch.allclose(again, problem.f(x)) and not torch.allclose(other, problem.f(x))


@pytest.mark.parametrize("seed", [0, 5])
def test_two_subsets_are_equally_good(seed):
    problem, process = experiments.equally_good(seed, 0.08)
    values, costs = problem.best_values, problem.cost_means
    assert problem.space.control_sets == ((0, 1, 2), (0, 1), (0,), (1,))
    assert float(values[0]) == pytest.approx(float(values[1]), abs=1e-6)
    assert bool((values[2:] < values[0] - 0.01).all())
    assert costs[0] > costs[1] and problem.acceptable(0.0).tolist() == [True, True, False, False]
    assert problem.cheapest(0.0) == problem.best_subset == 1  # not the first of the list
    assert (problem.noise_std, process.noise_std, problem.cost_std) == (0.08, 0.08, pytest.approx(0.016))
    x = torch.rand(300, 3, generator=torch.Generator().manual_seed(seed), dtype=F64)
    moved = x.clone()
    moved[:, 2] = torch.rand(300, generator=torch.Generator().manual_seed(9), dtype=F64)
    assert torch.allclose(problem.f(x), problem.f(moved))
    torch.testing.assert_close(process.kernel(x, moved).to_dense(), process.kernel(x).to_dense(), rtol=0, atol=1e-9)
    expected = torch.exp(-(torch.cdist(x[:, :2], x[:, :2]) ** 2) / 0.32)
    torch.testing.assert_close(process.kernel(x).to_dense(), expected, rtol=0, atol=1e-9)
    assert bool((problem.f(x) >= -1e-9).all())
    assert 1.97 <= interpolant_norm(process.kernel, x, problem.f(x) - process.mean) <= 2 * (1 + 1e-9)


# ---- what is compared


def test_the_policies_of_a_comparison():
    problem, process = small(), prior(small(), variance=2.25)
    chosen = experiments.policies(problem, process, TINY)
    assert list(chosen) == NAMES
    assert [type(policy) for policy in chosen.values()] == [CheapestGoodSubset, TSPSQ, UCBPSQ, GroupETC, UCBCVS]
    for policy in chosen.values():
        assert policy.space is problem.space and policy.prior is process and policy.effort is TINY
        assert policy.sqrt_beta == 2.0
    assert chosen["ETC-50"].plays_per_group == 50
    proposed = chosen["proposed"]
    assert proposed.cost_spread == 1
    assert proposed.exploration_budget == pytest.approx(0.6 * problem.space.budget) and proposed.rounds is None
    assert [proposed.alpha(s) for s in range(5)] == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025])  # d = 2
    assert [chosen[NAMES[4]].epsilon(t) for t in (1, 4, 100)] == pytest.approx([1.5, 0.75, 0.15])
    assert all(policy.effort == Effort() for policy in experiments.policies(problem, process).values())


# ---- accounts of a comparison


def test_curves_against_cost_are_those_of_each_run(comparison):
    problem = comparison.problem
    costs = torch.linspace(0, 3, 13, dtype=F64)
    curves = by_policy(comparison, costs)
    assert list(curves) == list(comparison.histories)
    for name, curve in curves.items():
        history = comparison.histories[name]
        assert (curve.seeds, curve.config, curve.provenance) == (history.seeds, history.config, history.provenance)
        assert sorted(curve.tensors) == ["cost", "evaluations", "plays", "simple_regret"]
        assert curve["plays"].shape == (2, 13, problem.space.m)
        assert torch.equal(curve["cost"], costs.expand(2, -1))
        for r, (j, amount) in itertools.product(range(2), enumerate(costs.tolist())):
            limit = min(amount, problem.space.budget)
            paid = [t for t in range(history.steps) if float(history["spent"][r, t]) <= limit]
            losses = [float(problem.optimum - history["value"][r, t]) for t in paid]
            assert float(curve["evaluations"][r, j]) == len(paid)
            np.testing.assert_equal(float(curve["simple_regret"][r, j]), min(losses) if losses else math.nan)
            subsets = [int(history["subset"][r, t]) for t in paid]
            assert curve["plays"][r, j].tolist() == [subsets.count(i) for i in range(problem.space.m)]
        assert bool((curve["evaluations"].diff() >= 0).all()) and bool(curve["simple_regret"][:, 0].isnan().all())


def test_the_summary_counts_paid_plays_alone(comparison):
    problem = comparison.problem
    for alpha in (0.1, 0.0):
        rows = experiments.summary(comparison, alpha)
        assert list(rows) == list(comparison.histories)
        cheapest, best = problem.cheapest(alpha), float(problem.optimum)
        for name, row in rows.items():
            history = comparison.histories[name]
            for r in range(2):
                paid = [t for t in range(history.steps) if float(history["spent"][r, t]) <= problem.space.budget]
                values = [float(history["value"][r, t]) for t in paid]
                subsets = [int(history["subset"][r, t]) for t in paid]
                costs = [float(problem.cost_means[i] - problem.cost_means[cheapest]) for i in subsets]
                late = subsets[9 * len(paid) // 10 :]
                expected = {
                    "simple regret": best - max(values),
                    "evaluations": len(paid),
                    "share of i_*": late.count(cheapest) / len(late),
                    "quality regret": sum((1 - alpha) * best - v for v in values),
                    "cost regret": sum(max(c, 0) for c in costs),
                }
                assert {key: float(row[key][r]) for key in row} == pytest.approx(expected, abs=1e-9)


# ---- stored results


def test_the_stored_panels_are_those_of_the_paper():
    panels = itertools.product(experiments.OBJECTIVES, ("cheap", "moderate"), (0.02, 0.04))
    folder = Path(experiments.__file__).parent / "results"
    names = set()
    for objective, costs, variance in panels:
        found = experiments.load_results(folder, objective, costs, variance)
        assert list(found) == NAMES and all(h.seeds == [0, 1, 2, 3, 4] for h in found.values())
        assert all(float(h["cost"][0, -1]) == 100 and h["plays"].shape[-1] == 7 for h in found.values())
        names.add(f"{objective}-{costs}-{variance:g}")
    curves = [file for file in folder.iterdir() if not file.name.startswith("walk-")]
    assert names == set(experiments.EXPERIMENTS) and len(curves) == 80
