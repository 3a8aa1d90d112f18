import pytest
import torch
from gpytorch.kernels import AdditiveKernel, LinearKernel, MaternKernel, ProductKernel, RQKernel
from hypothesis import given
from hypothesis import strategies as st

from cbo_lib.former.partial import PartialPosterior
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.products import (
    KERNELS,
    batched_kernel,
    close,
    expected,
    expected_ucb,
    fixed,
    gauss,
    given_points,
    mask,
    matern_on,
    own_kernel,
    pointwise_ucb,
    rbf,
    scaled,
    textbook,
    uniform,
)
from tests.toys import normal

F64 = torch.float64
NAN = float("nan")
MASKS = [(1, 1, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 0, 0)]


# Against the textbook


@pytest.mark.parametrize("controlled", MASKS, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_moments_are_the_textbook_formula(rng, name, controlled):
    """40 observations, 50 contexts: a factor of low rank pays where few or no coordinates are free."""
    make, k = KERNELS[name]
    posterior, observed, y = given_points(rng, 40, kernel=make(), mean=0.7)
    x, contexts, controlled = uniform(rng, 6, 3), uniform(rng, 50, 3), mask(*controlled)
    mean, variance = expected(k, observed, y, 0.1, x, contexts, controlled, 0.7)
    for tolerance in (1e-14, None):
        partial = PartialPosterior(posterior, contexts, controlled, tolerance)
        close(partial.mean_and_variance(x), (mean, variance))
        close([partial.mean(x)], [mean])
        close([partial.ucb(x, 1.5)], [mean + 1.5 * variance.sqrt()])
        close([partial.expected_ucb(x, -0.8)], [(mean - 0.8 * variance.sqrt()).mean(-1)])
    wanted = pointwise_ucb(posterior, x, contexts, controlled, 2.0)
    close([wanted], [mean + 2 * variance.sqrt()])
    close([expected_ucb(posterior, x, contexts, controlled, 2.0)], [wanted.mean(-1)])


@given(
    seed=st.integers(0, 2**31),
    t=st.integers(1, 60),
    count=st.integers(1, 60),
    n=st.integers(1, 4),
    controlled=st.lists(st.booleans(), min_size=1, max_size=4),
    lengthscale=st.floats(0.05, 3),
    noise_std=st.floats(0.02, 1),
    sqrt_beta=st.floats(-3, 3),
)
def test_the_pointwise_formula_for_any_sizes(seed, t, count, n, controlled, lengthscale, noise_std, sqrt_beta):
    rng, d = torch.Generator().manual_seed(seed), len(controlled)
    posterior, _, _ = given_points(rng, t, kernel=rbf(lengthscale), noise_std=noise_std, d=d)
    x, contexts, controlled = uniform(rng, n, d), uniform(rng, count, d), mask(*controlled)
    wanted = pointwise_ucb(posterior, x, contexts, controlled, sqrt_beta)
    partial = PartialPosterior(posterior, contexts, controlled)
    close([partial.ucb(x, sqrt_beta)], [wanted], 1e-7)
    close([partial.expected_ucb(x, sqrt_beta)], [wanted.mean(-1)], 1e-7)


# Replicates


@pytest.mark.parametrize("shared", ["nothing", "x", "contexts", "both"])
@pytest.mark.parametrize("nu", [None, 2.5])
@pytest.mark.parametrize("t", [5, 40])
def test_replicates_with_kernels_means_and_contexts_of_their_own(rng, t, nu, shared):
    lengthscales, outputscales = 0.2 + uniform(rng, 4, 3), 0.5 + uniform(rng, 4)
    means = normal(rng, 4, 1)
    posterior, observed, y = given_points(rng, t, 4, kernel=batched_kernel(lengthscales, outputscales, nu), mean=means)
    x = uniform(rng, 6, 3) if shared in ("x", "both") else uniform(rng, 4, 6, 3)
    contexts = uniform(rng, 30, 3) if shared in ("contexts", "both") else uniform(rng, 4, 30, 3)
    controlled = mask(1, 1, 0)
    partial = PartialPosterior(posterior, contexts, controlled)
    mean, variance = partial.mean_and_variance(x)
    assert mean.shape == variance.shape == (4, 6, 30) and partial.expected_ucb(x, 1.5).shape == (4, 6)
    for r in range(4):
        k = own_kernel(lengthscales[r], outputscales[r], nu)
        own_x, own_contexts = x.expand(4, 6, 3)[r], contexts.expand(4, 30, 3)[r]
        wanted = expected(k, observed[r], y[r], 0.1, own_x, own_contexts, controlled, means[r])
        close((mean[r], variance[r]), wanted)
        close([partial.expected_ucb(x, 1.5)[r]], [(wanted[0] + 1.5 * wanted[1].sqrt()).mean(-1)])


# Groups

GROUPS = mask([1, 1, 0], [0, 0, 1], [1, 1, 1], [0, 0, 0], [1, 0, 0])


@pytest.mark.parametrize("t", [6, 60])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_groups_are_a_loop_over_their_coordinates(rng, t, batch):
    posterior, _, _ = given_points(rng, t, *batch)
    x, contexts = uniform(rng, *batch, 5, 7, 3), uniform(rng, *batch, 5, 20, 3)
    partial = PartialPosterior(posterior, contexts, GROUPS)
    mean, variance = partial.mean_and_variance(x)
    value = expected_ucb(posterior, x, contexts, GROUPS, 1.5)
    assert mean.shape == variance.shape == (*batch, 5, 7, 20) and value.shape == (*batch, 5, 7)
    for i in range(5):
        own_x, own_contexts = x[..., i, :, :], contexts[..., i, :, :]
        alone = PartialPosterior(posterior, own_contexts, GROUPS[i])
        close((mean[..., i, :, :], variance[..., i, :, :]), alone.mean_and_variance(own_x))
        wanted = pointwise_ucb(posterior, own_x, own_contexts, GROUPS[i], 1.5)
        close([value[..., i, :]], [wanted.mean(-1)])


# Special cases


@pytest.mark.parametrize(
    "controlled", [mask(1, 1, 0), mask(1, 1, 1), mask(0, 0, 0), GROUPS], ids=lambda m: str(m.tolist())
)
@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("tolerance", [1e-14, None])
def test_without_data_it_is_the_prior(rng, batch, controlled, tolerance):
    posterior = GaussianProcess(rbf_kernel(0.5, 1.44), 0.1, 0.7).posterior(batch)
    front = ((3,) if batch else ()) + tuple(controlled.shape[:-1])
    partial = PartialPosterior(posterior, uniform(rng, 9, 3), controlled, tolerance)
    for x in (uniform(rng, 4, 3), uniform(rng, *front, 4, 3)):
        mean, variance = partial.mean_and_variance(x)
        assert mean.shape == variance.shape == partial.mean(x).shape == partial.ucb(x, 1.0).shape == (*front, 4, 9)
        close((mean, variance, partial.mean(x)), [torch.full((*front, 4, 9), v, dtype=F64) for v in (0.7, 1.44, 0.7)])
        close([partial.expected_ucb(x, 1.5)], [torch.full((*front, 4), 2.5, dtype=F64)], 1e-12)
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(partial.expected_ucb(x, 1.5).sum(), x)
        assert torch.equal(gradient, torch.zeros_like(x))


def test_with_everything_controlled_it_is_the_bound_at_the_decision(rng):
    posterior, observed, y = given_points(rng)
    x = uniform(rng, 8, 3)
    mean, variance = textbook(lambda a, b: 1.3 * gauss(a, b, 0.5), observed, y, 0.1, x)
    for contexts in (uniform(rng, 20, 3), torch.full((1, 3), NAN, dtype=F64)):
        value = expected_ucb(posterior, x, contexts, mask(1, 1, 1), 1.5)
        close([value], [mean + 1.5 * variance.sqrt()])


# Gradients


@pytest.mark.parametrize("controlled", [mask(1, 1, 0), mask(0, 0, 1), GROUPS], ids=lambda m: str(m.tolist()))
@pytest.mark.parametrize("name", ["scaled", "a lengthscale each"])
@pytest.mark.parametrize("t", [6, 40])
def test_gradients_are_those_of_finite_differences(rng, name, controlled, t):
    posterior, _, _ = given_points(rng, t, 2, kernel=KERNELS[name][0]())
    x, contexts = uniform(rng, *[1] * (controlled.dim() - 1), 3, 3).requires_grad_(), uniform(rng, 30, 3)
    partial = PartialPosterior(posterior, contexts, controlled)
    assert torch.autograd.gradcheck(lambda z: partial.expected_ucb(z, 1.5), x, nondet_tol=1e-9)
    assert torch.autograd.gradcheck(lambda z: partial.expected_ucb(z, -0.7), x, nondet_tol=1e-9)
    (gradient,) = torch.autograd.grad(partial.expected_ucb(x, 1.5).sum(), x)
    step = 1e-5
    for i in range(3):
        shift = step * torch.eye(3, dtype=F64)[i]
        with torch.no_grad():  # the textbook formula, and not the function itself
            masks = controlled.reshape(-1, 3)
            up, down = (
                sum(pointwise_ucb(posterior, x.reshape(-1, 3) + s, contexts, m, 1.5).mean(-1).sum(0) for m in masks)
                for s in (shift, -shift)
            )
        torch.testing.assert_close(gradient.reshape(-1, 3)[:, i], (up - down) / (2 * step), rtol=1e-6, atol=1e-7)


# Refusals


def refuse(message, posterior, contexts=None, controlled=None, **options):
    contexts = torch.zeros(4, 3, dtype=F64) if contexts is None else contexts
    controlled = mask(1, 1, 0) if controlled is None else controlled
    for kind in (
        lambda: PartialPosterior(posterior, contexts, controlled, **options),
        lambda: expected_ucb(posterior, torch.zeros(2, 3, dtype=F64), contexts, controlled, 1.5),
    )[: 1 if options else 2]:
        with pytest.raises(ValueError, match=message):
            kind()


@pytest.mark.parametrize(
    ("kernel", "controlled", "message"),
    [
        (lambda: MaternKernel(), (1, 1, 0), "got a MaternKernel that is not"),
        (lambda: scaled(MaternKernel(ard_num_dims=3), 2.0), (1, 1, 0), "got a MaternKernel that is not"),
        (lambda: matern_on([1, 2], 0.5), (1, 1, 0), "got a MaternKernel that is not"),
        (lambda: ProductKernel(rbf(0.5), RQKernel()), (1, 1, 0), "got a RQKernel that is not"),
        (lambda: AdditiveKernel(rbf(0.5), rbf(0.2)), (1, 1, 0), "got a AdditiveKernel that is not"),
        (
            lambda: scaled(AdditiveKernel(rbf(0.5, active_dims=[0, 1]), rbf(0.2, active_dims=[2])), 2.0),
            (1, 1, 0),
            "got a AdditiveKernel that is not",
        ),
        (
            lambda: ProductKernel(rbf(0.5), LinearKernel(active_dims=[2])),
            (1, 1, 0),
            "the kernel must be stationary, got a LinearKernel",
        ),
    ],
)
@pytest.mark.parametrize("t", [0, 5])
def test_kernels_that_are_no_product_are_refused(rng, kernel, controlled, message, t):
    process = GaussianProcess(fixed(kernel().to(F64)), 0.1)
    posterior = process.condition(Measure.dirac(uniform(rng, t, 3)), normal(rng, t)) if t else process.posterior()
    refuse(message, posterior, controlled=mask(*controlled))
