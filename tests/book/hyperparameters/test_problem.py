import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from book.hyperparameters.problems import (
    additive_kernel,
    decomposition_candidates,
    lengthscale_candidates,
    periodic_kernel,
)
from cbo_lib.hyperparameters import Candidates
from cbo_lib.kernels import StackedKernel, rbf_kernel
from cbo_lib.measure import Measure
from cbo_lib.random import ReplicateGenerators
from tests.hyperparameters import plain
from tests.hyperparameters.helpers import (
    F64,
    GROUPS,
    SETTINGS,
    Mounds,
    changed,
    line,
    mixed,
    noise_draws,
    own_mounds,
    problem_of,
    setting,
)

TWO = lengthscale_candidates((0.1, 0.3))
BOX = torch.tensor([[0.0, -1.0], [1.0, 2.0]], dtype=F64)


def sine(x):
    return torch.sin(9 * x[..., 0]) + 0.5 * x.sum(-1)


# ---- candidates


def test_lengthscale_candidates_are_rbf_kernels_of_variance_one(rng):
    x, z = torch.rand(6, 2, generator=rng, dtype=F64), torch.rand(4, 2, generator=rng, dtype=F64)
    candidates = lengthscale_candidates((0.3, 1.0, 0.05))
    assert candidates.names == ("lengthscale 0.3", "lengthscale 1", "lengthscale 0.05")
    assert candidates.means == (0.0, 0.0, 0.0)
    for kernel, lengthscale in zip(candidates.kernels, (0.3, 1.0, 0.05), strict=True):
        np.testing.assert_allclose(kernel(x, z).to_dense(), plain.rbf(lengthscale)(x.numpy(), z.numpy()), atol=1e-14)


@pytest.mark.parametrize(("period", "lengthscale"), [(1.0, 0.6), (0.25, 2.0), (3.0, 0.1)])
def test_the_periodic_kernel_squares_its_lengthscale(rng, period, lengthscale):
    x, z = (3 * torch.rand(n, 1, generator=rng, dtype=F64) for n in (6, 4))
    found = periodic_kernel(period, lengthscale)(x, z).to_dense()
    np.testing.assert_allclose(found, plain.periodic(period, lengthscale)(x.numpy(), z.numpy()), atol=1e-12)
    again = periodic_kernel(period, lengthscale)(x, z + 5 * period).to_dense()
    torch.testing.assert_close(found, again, rtol=0, atol=1e-11)


@pytest.mark.parametrize("groups", [*GROUPS, ((0, 1, 2),), ((0, 1), (1, 2))])
def test_the_additive_kernel_is_the_mean_over_groups_of_variance_one(rng, groups):
    x, z = torch.rand(6, 3, generator=rng, dtype=F64), torch.rand(4, 3, generator=rng, dtype=F64)
    kernel = additive_kernel(groups, 0.4)
    np.testing.assert_allclose(kernel(x, z).to_dense(), plain.additive(groups, 0.4)(x.numpy(), z.numpy()), atol=1e-14)
    torch.testing.assert_close(kernel(x, x).to_dense().diagonal(), torch.ones(6, dtype=F64))


def test_decompositions_are_named_from_one():
    candidates = decomposition_candidates(GROUPS, 0.4)
    assert candidates.names == ("(x1) + (x2) + (x3)", "(x1, x2) + (x3)", "(x1) + (x2, x3)")


def test_kernels_have_no_hyperparameters_to_fit():
    for kernel in (periodic_kernel(1.0, 0.5), additive_kernel(GROUPS[1], 0.3), *TWO.kernels):
        assert not any(parameter.requires_grad for parameter in kernel.parameters())


def test_kernels_have_the_dtype_that_is_asked_for():
    single = torch.float32
    for kernel in (
        periodic_kernel(1.0, 0.5, single),
        additive_kernel(GROUPS[1], 0.3, single),
        *lengthscale_candidates((0.2,), single).kernels,
        *decomposition_candidates(GROUPS, 0.3, single).kernels,
    ):
        assert {parameter.dtype for parameter in kernel.parameters()} == {single}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_priors_of_all_candidates_are_one_batch(rng, name):
    case = setting(name)
    prior = case.problem.space.candidates.prior(0.2)
    assert isinstance(prior.kernel, StackedKernel) and prior.noise_std == 0.2
    points = case.problem.space.points[torch.randint(len(case.problem.space.points), (9,), generator=rng)]
    measure = Measure.dirac(points)
    posterior = prior.posterior()
    for u, own in enumerate(case.priors):
        np.testing.assert_allclose(posterior.mean(measure)[u], own.m(points.numpy()), atol=1e-14)
        covariance = posterior.covariance(measure, measure)[u]
        np.testing.assert_allclose(covariance, own.k(points.numpy(), points.numpy()), atol=1e-12)


def test_candidates_with_one_kernel_may_share_it():
    one = setting("shared kernel").problem.space.candidates
    assert one.prior(0.1).kernel.batch_shape == (3,)
    assert one.prior(0.1, share=True).kernel.batch_shape == (1,)
    equal = dataclasses.replace(one, kernels=tuple(rbf_kernel(0.15) for _ in range(3)))  # but not the same
    assert equal.prior(0.1, share=True).kernel.batch_shape == (3,)
    points = Measure.dirac(line(7))
    seen, y = Measure.dirac(line(4)), torch.tensor([0.3, -0.2, 0.9, 0.1], dtype=F64)
    apart, together = (one.prior(0.1, share).condition(seen, y) for share in (False, True))
    torch.testing.assert_close(apart.mean(points), together.mean(points), rtol=0, atol=1e-12)
    shared = together.variance(points).expand(3, -1)
    torch.testing.assert_close(apart.variance(points), shared, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 1), (5, 3)])
def test_means_are_numbers_and_functions_side_by_side(rng, shape):
    candidates = Candidates(("a", "b", "c"), (rbf_kernel(0.3),) * 3, (1.5, Mounds(2), lambda x: x.sum(-1)))
    points = torch.rand(*shape, 4, 2, 1, generator=rng, dtype=F64)  # measures of two points
    measure = Measure(points, torch.rand(*shape, 4, 2, generator=rng, dtype=F64))
    found = candidates.prior(0.1).prior_mean(measure)
    batch = torch.broadcast_shapes(shape, (3,))
    assert found.shape == (*batch, 4)
    everywhere = points.expand(*batch, 4, 2, 1)
    weights = measure.weights.expand(*batch, 4, 2)
    for u, mean in enumerate((lambda x: torch.full_like(x[..., 0], 1.5), Mounds(2), lambda x: x.sum(-1))):
        expected = (weights * mean(everywhere)).sum(-1)[..., u, :]
        torch.testing.assert_close(found[..., u, :], expected)


def test_candidates_can_be_selected_in_any_order():
    candidates = Candidates(("a", "b", "c"), tuple(rbf_kernel(s) for s in (0.1, 0.2, 0.3)), (0.0, 1.0, Mounds(1)))
    chosen = candidates.select([2, 0])
    assert len(candidates) == 3 and len(chosen) == 2
    assert chosen.names == ("c", "a") and chosen.means == (Mounds(1), 0.0)
    assert chosen.kernels == (candidates.kernels[2], candidates.kernels[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Candidates((), ()), r"names must be one or more different labels, got \[\]"),
        (lambda: lengthscale_candidates(()), r"names must be one or more different labels, got \[\]"),
        (lambda: Candidates(("a", "a"), TWO.kernels), r"names must be one or more different labels, got \['a', 'a'\]"),
        (lambda: lengthscale_candidates((0.3, 0.3)), "names must be one or more different labels, got"),
        (lambda: Candidates(("a", "b"), TWO.kernels[:1]), "kernels must have one entry a candidate, 2, got 1"),
        (lambda: Candidates(("a", "b"), TWO.kernels, (0.0,)), "means must have one entry a candidate, 2, got 1"),
        (lambda: Candidates(("a",), TWO.kernels, (0.0, 1.0)), "kernels must have one entry a candidate, 1, got 2"),
        (lambda: lengthscale_candidates((0.3, 0.0)), "lengthscale must be positive and finite, got"),
        (lambda: periodic_kernel(0.0, 0.3), "period must be positive, got 0.0"),
        (lambda: periodic_kernel(1.0, -0.3), "lengthscale must be positive, got -0.3"),
        (lambda: periodic_kernel(math.nan, 0.3), "period must be positive, got nan"),
        (lambda: TWO.prior(0.0), "noise_std must be positive and finite, got"),
    ],
)
def test_candidates_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_additive_kernel_of_no_positive_lengthscale_is_refused_by_name():
    with pytest.raises(ValueError, match=r"lengthscale must be positive, got -0\.4"):
        additive_kernel(GROUPS[0], -0.4)


def test_an_additive_kernel_of_no_groups_is_refused():
    with pytest.raises(ValueError, match="groups"):
        additive_kernel((), 0.4)


# ---- the problem


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"points": None}, r"either points \(a finite domain\) or bounds \(a box\) must be given, got"),
        ({"bounds": BOX[:, :1]}, r"either points \(a finite domain\) or bounds \(a box\) must be given, got"),
        ({"points": line(5)[:, 0]}, r"points must have shape \(n, d\) with n >= 1 and d >= 1, got"),
        ({"points": line(5)[:0]}, r"points must have shape \(n, d\) with n >= 1 and d >= 1, got"),
        ({"points": line(5)[None]}, r"points must have shape \(n, d\) with n >= 1 and d >= 1, got"),
        ({"points": None, "bounds": BOX[0]}, r"bounds must have shape \(2, d\) with d >= 1, got"),
        ({"points": None, "bounds": BOX.flip(0)}, "bounds must have each lower bound below the upper, got"),
        ({"points": None, "bounds": BOX[[0, 0]]}, "bounds must have each lower bound below the upper, got"),
        ({"points": None, "bounds": BOX[[0, 1, 1]]}, r"bounds must have shape \(2, d\) with d >= 1, got"),
        ({"points": None, "bounds": BOX * math.nan}, "bounds must be finite, got"),
        ({"noise_std": 0.0}, "noise_std must be positive and finite, got"),
        ({"noise_std": -0.1}, "noise_std must be positive and finite, got -0.1"),
        ({"noise_std": math.inf}, "noise_std must be positive and finite, got inf"),
        ({"noise_std": math.nan}, "noise_std must be positive and finite, got nan"),
        ({"epsilon": -0.1}, "epsilon must be nonnegative and finite, got"),
        ({"epsilon": math.inf}, "epsilon must be nonnegative and finite, got"),
        ({"epsilon": math.nan}, "epsilon must be nonnegative and finite, got"),
        ({"replicates": 0}, "replicates must be an integer of at least 1, got 0"),
        ({"truth": 2}, r"truth must lie in \[0, 2\), got 2"),
        ({"truth": -1}, r"truth must lie in \[0, 2\), got -1"),
        ({"truth": torch.tensor([0, 1])}, r"truth must be an index or one a replicate, got shape \(2,\)"),
        (
            {"truth": torch.tensor([0, 1]), "replicates": 3},
            r"truth must be an index or one a replicate, got shape \(2,\)",
        ),
        ({"truth": torch.tensor([0, 1, 4]), "replicates": 3}, r"truth must lie in \[0, 2\), got \[0, 1, 4\]"),
        ({"truth": torch.tensor([[0]]), "replicates": 1}, r"truth must be .* got shape \(1, 1\)"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        problem_of(**{"f": sine, "candidates": TWO, "points": line(5), **changes})


def test_a_box_has_no_points_to_list():
    problem = problem_of(sine, TWO, bounds=BOX)
    for read in (lambda: problem.values, lambda: problem.space.neighbors):
        with pytest.raises(ValueError, match="points must be given, the domain of this space is a box"):
            read()


def test_the_dimension_is_that_of_the_domain():
    assert problem_of(sine, TWO, line(5)).space.dim == 1
    assert problem_of(sine, TWO, bounds=BOX).space.dim == 2


def test_an_observation_is_the_value_and_the_noise_of_each_replicate():
    problem = problem_of(sine, TWO, line(9), noise_std=0.3)
    query = problem.space.points[[2, 5]]
    generators = ReplicateGenerators([4, 7])
    seen = torch.stack([problem.observe(query, generators.at(t)) for t in (1, 2, 3)], 1)
    expected = np.array([noise_draws(seed, 3) for seed in (4, 7)]) * 0.3
    np.testing.assert_allclose(seen - problem.value(query)[:, None], expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(problem.value(query), sine(query))


def test_the_noise_does_not_depend_on_epsilon_and_f_is_seen_where_it_is_asked():
    query = line(9)[[2, 5]]
    plainly = problem_of(sine, TWO, line(9)).observe(query, ReplicateGenerators([4, 7]).at(1))
    robust = problem_of(sine, TWO, line(9), epsilon=0.2)
    assert torch.equal(plainly, robust.observe(query, ReplicateGenerators([4, 7]).at(1)))
    assert bool((robust.value(query) < sine(query)).any())


def test_one_function_a_replicate_has_values_and_optima_of_its_own():
    problem = setting("mean").problem
    assert problem.values.shape == (3, 45) and problem.optimum.shape == (3,)
    for r in range(3):
        values = own_mounds(problem.space.points.expand(3, -1, -1))[r]
        assert torch.equal(problem.values[r], values)
        assert float(problem.optimum[r]) == max(values.tolist())
    assert len(set(problem.optimum.tolist())) == 3
    with pytest.raises(ValueError, match="query must hold one point for each of 3 replicates, got 2"):
        problem.observe(problem.space.points[:2], ReplicateGenerators([0, 1]).at(1))


def test_the_optimum_of_points_is_their_largest_value():
    problem = setting("decomposition").problem
    assert problem.values.shape == (90,) and problem.optimum.shape == ()
    assert float(problem.optimum) == max(float(mixed(x)) for x in problem.space.points)


def test_the_optimum_of_a_box_is_that_of_a_fine_grid():
    problem = problem_of(lambda x: torch.sin(5 * x[..., 0]) - (x[..., 1] - 0.3) ** 2, TWO, bounds=BOX)
    axes = [torch.linspace(low, high, 1501, dtype=F64) for low, high in BOX.T.tolist()]
    best = float(problem.f(torch.cartesian_prod(*axes)).max())
    assert best - 1e-9 <= float(problem.optimum) <= best + 1e-4
    assert float(problem.optimum) == pytest.approx(1.0, abs=1e-9)


def test_the_optimum_of_a_box_with_a_function_a_replicate():
    bounds = torch.tensor([[0.0], [1.0]], dtype=F64)
    problem = changed(setting("mean").problem, points=None, bounds=bounds)
    fine = own_mounds(line(20_001).expand(3, -1, -1)).amax(-1)
    torch.testing.assert_close(problem.optimum, fine, rtol=0, atol=1e-5)


# ---- perturbations


def near_by_hand(points, epsilon):
    return [[j for j, z in enumerate(points) if math.dist(x, z) <= epsilon * (1 + 1e-9)] for x in points]


def robust_problem(points, epsilon, **options):
    kernels = tuple(copy.deepcopy(kernel).to(points) for kernel in TWO.kernels)
    return problem_of(sine, dataclasses.replace(TWO, kernels=kernels), points, epsilon=epsilon, **options)


@given(st.integers(0, 10_000), st.integers(1, 45), st.integers(1, 3), st.floats(0.0, 0.6))
def test_neighbors_are_the_points_within_epsilon(seed, n, dim, epsilon):
    points = torch.rand(n, dim, generator=torch.Generator().manual_seed(seed), dtype=F64)
    problem = robust_problem(points, epsilon)
    by_hand = near_by_hand(points.tolist(), epsilon)
    assert problem.space.neighbors.shape == (n, max(map(len, by_hand)))
    for i, (row, expected) in enumerate(zip(problem.space.neighbors.tolist(), by_hand, strict=True)):
        assert set(row) == set(expected)
        assert row[: len(expected)] == expected  # in order,
        assert set(row[len(expected) :]) <= {i}  # then the point itself
    values = torch.randn(3, 2, n, generator=torch.Generator().manual_seed(seed), dtype=F64)
    worst = problem.space.worst(values)
    assert worst.shape == values.shape
    for i, near in enumerate(by_hand):
        assert torch.equal(worst[..., i], values[..., near].amin(-1))
    expected = max(min(float(problem.values[j]) for j in near) for near in by_hand)
    assert float(problem.optimum) == expected


def test_grid_points_exactly_at_epsilon_count_as_near():
    problem = robust_problem(line(101), 0.05)
    counts = (problem.space.neighbors != torch.arange(101)[:, None]).sum(-1) + 1
    assert counts[5:96].unique().tolist() == [11]
    assert counts[[0, 1, 100]].tolist() == [6, 7, 6]


def test_neighbors_do_not_depend_on_where_the_origin_is():
    here, there = robust_problem(line(101), 0.05), robust_problem(line(101) + 1000, 0.05)
    assert torch.equal(here.space.neighbors, there.space.neighbors)


@pytest.mark.parametrize(("count", "epsilon"), [(11, 0.2), (41, 0.1), (101, 0.05)])
def test_neighbors_on_a_grid_do_not_depend_on_the_precision(count, epsilon):
    double, single = robust_problem(line(count), epsilon), robust_problem(line(count).float(), epsilon)
    assert torch.equal(double.space.neighbors, single.space.neighbors)


def test_without_perturbation_the_worst_value_is_the_value():
    problem = robust_problem(line(40), 0.0)
    values = torch.randn(2, 40, dtype=F64)
    assert torch.equal(problem.space.worst(values), values)
    assert torch.equal(problem.space.neighbors, torch.arange(40)[:, None])


@pytest.mark.parametrize("shape", [(4,), (4, 6), (4, 2, 3)])
def test_the_value_of_a_point_is_its_worst_neighbor(rng, shape):
    points = torch.rand(30, 2, generator=rng, dtype=F64)
    problem = robust_problem(points, 0.25)
    index = torch.randint(30, shape, generator=rng)
    found = problem.value(points[index])
    assert found.shape == shape
    by_hand = near_by_hand(points.tolist(), 0.25)
    for at in np.ndindex(shape):
        expected = min(float(sine(points[j])) for j in by_hand[int(index[at])])
        assert float(found[at]) == pytest.approx(expected, abs=1e-14)


def test_the_value_with_a_function_a_replicate(rng):
    problem = changed(setting("mean").problem, epsilon=0.07)
    index = torch.randint(45, (3, 5), generator=rng)
    found = problem.value(problem.space.points[index])
    by_hand = near_by_hand(problem.space.points.tolist(), 0.07)
    for r in range(3):
        values = problem.values[r].tolist()
        expected = [min(values[j] for j in by_hand[i]) for i in index[r].tolist()]
        np.testing.assert_allclose(found[r], expected)
        assert float(problem.optimum[r]) == max(min(values[j] for j in near) for near in by_hand)


def test_a_value_that_counts_is_never_above_the_value(rng):
    points = torch.rand(30, 2, generator=rng, dtype=F64)
    values = [robust_problem(points, epsilon).value(points[None])[0] for epsilon in (0.0, 0.1, 0.3, 2.0)]
    for less, more in zip(values[1:], values[:-1], strict=True):
        assert bool((less <= more).all())
    assert values[-1].unique().numel() == 1


def test_the_worst_value_in_a_box_is_that_of_a_dense_grid():
    unit = torch.tensor([[0.0], [1.0]], dtype=F64)
    problem = problem_of(f=sine, candidates=TWO, bounds=unit, epsilon=0.1)
    at = torch.tensor([[[0.0], [0.03], [0.4], [0.77], [1.0]]], dtype=F64)
    dense = torch.linspace(-1, 1, 20_001, dtype=F64)
    expected = sine((at + 0.1 * dense).clamp(0, 1).unsqueeze(-1)).amin(-1)
    torch.testing.assert_close(problem.value(at), expected, rtol=0, atol=1e-3)
    everywhere = torch.linspace(0, 1, 20_001, dtype=F64)[:, None]
    best = sine((everywhere + 0.1 * dense[::100]).clamp(0, 1).unsqueeze(-1)).amin(-1).amax()
    assert float(problem.optimum) == pytest.approx(float(best), abs=1e-3)
    assert bool((problem.value(at) <= problem.optimum + 1e-9).all())
