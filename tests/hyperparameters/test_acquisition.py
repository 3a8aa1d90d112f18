import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.optim import optimize_acqf

from cbo_lib.acquisition import OptimisticUpperConfidenceBound
from cbo_lib.hyperparameters import HEGPUCB
from cbo_lib.measure import Measure
from tests.hyperparameters import plain
from tests.hyperparameters.helpers import F64, SETTINGS, setting


def fitted(name, count=7, seed=3):
    """The posteriors of all candidates given the same data, and the data."""
    case, rng = setting(name), torch.Generator().manual_seed(seed)
    x = case.problem.space.points[torch.randint(len(case.problem.space.points), (count,), generator=rng)]
    y = torch.randn(count, generator=rng, dtype=F64)
    posterior = case.problem.space.candidates.prior(case.problem.noise_std).condition(Measure.dirac(x), y)
    return case, posterior.as_botorch(), x.numpy(), y.numpy()


def by_loop(case, x, y, at, multipliers, alive):
    """The bound at points ``b x d`` by the textbook formula."""
    bounds = []
    for u, prior in enumerate(case.priors):
        mean, std = plain.posterior(prior, case.problem.noise_std, x, y, at.numpy())
        if alive[u]:
            bounds.append(torch.from_numpy(mean + multipliers[u] * std))
    return torch.stack(bounds).amax(0)


def queries(case, count, seed=8):
    points = case.problem.space.points
    unit = torch.rand(count, points.shape[-1], generator=torch.Generator().manual_seed(seed), dtype=F64)
    return points.amin(0) + (points.amax(0) - points.amin(0)) * unit


@pytest.mark.parametrize("name", SETTINGS)
def test_the_bound_is_the_largest_of_the_candidates(name):
    case, model, x, y = fitted(name)
    at = queries(case, 30)
    multipliers = torch.linspace(0.3, 2.1, len(case.priors), dtype=F64)
    everything = OptimisticUpperConfidenceBound(model, multipliers)(at.unsqueeze(1))
    expected = by_loop(case, x, y, at, multipliers.tolist(), [True] * len(case.priors))
    torch.testing.assert_close(everything, expected, rtol=0, atol=1e-8)
    for u in range(len(case.priors)):  # dead candidates do not count
        alive = torch.arange(len(case.priors)) != u
        found = OptimisticUpperConfidenceBound(model, multipliers, alive)(at.unsqueeze(1))
        torch.testing.assert_close(found, by_loop(case, x, y, at, multipliers.tolist(), alive), rtol=0, atol=1e-8)
        assert bool((found <= everything + 1e-9).all())


def test_one_candidate_is_botorchs_own_bound():
    case, model, _, _ = fitted("lengthscale")
    at = queries(case, 12).unsqueeze(1)
    theirs = UpperConfidenceBound(model, beta=4.0)(at.unsqueeze(1))  # 12 |U|
    for u in range(4):
        alive = torch.arange(4) == u
        found = OptimisticUpperConfidenceBound(model, 2.0, alive)(at)
        torch.testing.assert_close(found, theirs[:, u], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_are_finite_and_those_of_differences(name):
    case, model, _, _ = fitted(name)
    acquisition = OptimisticUpperConfidenceBound(model, 1.5)
    at = queries(case, 6)
    x = at.unsqueeze(1).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(acquisition(x).sum(), x)
    assert bool(torch.isfinite(gradient).all())
    h = 1e-6
    for j in range(at.shape[-1]):
        moved = torch.zeros_like(at)
        moved[:, j] = h
        with torch.no_grad():
            slope = (acquisition((at + moved).unsqueeze(1)) - acquisition((at - moved).unsqueeze(1))) / (2 * h)
        torch.testing.assert_close(gradient[:, 0, j], slope, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Optimization failed")  # at a kink of the maximum a line search may end early
@pytest.mark.parametrize("name", ["lengthscale", "period", "mean"])
def test_optimize_acqf_finds_the_maximum_of_a_dense_grid(name):
    case, model, _, _ = fitted(name)
    acquisition = OptimisticUpperConfidenceBound(model, 1.5, torch.arange(len(case.priors)) != 1)
    points = case.problem.space.points
    bounds = torch.stack([points.amin(0), points.amax(0)])
    torch.manual_seed(0)
    best, value = optimize_acqf(acquisition, bounds, q=1, num_restarts=8, raw_samples=128)
    grid = torch.linspace(float(bounds[0]), float(bounds[1]), 8001, dtype=F64)
    with torch.no_grad():
        dense = acquisition(grid[:, None, None])
    assert float(value) >= float(dense.max()) - 1e-6
    assert float(value) == pytest.approx(float(dense.max()), abs=1e-3)
    if name != "period":  # its maximum comes twice
        assert float(best) == pytest.approx(float(grid[dense.argmax()]), abs=5e-3)


def test_the_acquisition_is_what_the_policy_maximizes():
    case = setting("lengthscale")
    policy = HEGPUCB(case.problem.space, sqrt_beta=case.sqrt_beta, initial=3, seeds=[8])
    asked, seen = [], []
    with torch.no_grad():
        for t in range(12):
            query = policy.ask()
            if t >= 3:
                data = Measure.dirac(torch.cat(asked)), torch.cat(seen)
                model = case.problem.space.candidates.prior(0.1).condition(*data).as_botorch()
                bound = OptimisticUpperConfidenceBound(model, case.sqrt_beta(t + 1), policy.alive[0])
                values = bound(case.problem.space.points.unsqueeze(1))
                assert float(bound(query)) >= float(values.max()) - 1e-8
            asked.append(query)
            seen.append(case.problem.f(query) + 0.1 * (-1) ** t)
            policy.tell(query, seen[-1])
