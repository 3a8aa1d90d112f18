import pytest
import torch
from gpytorch.kernels import AdditiveKernel, LinearKernel, MaternKernel, ProductKernel, RQKernel
from hypothesis import given
from hypothesis import strategies as st

import cbo_lib.former.partial as module
from cbo_lib.former.partial import PartialPosterior, PointwisePosterior
from cbo_lib.former.partial_tracked import TrackedPartial
from cbo_lib.former.split import NoProductError
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
    matern,
    matern_on,
    own_kernel,
    pairs,
    pointwise_ucb,
    rbf,
    scaled,
    textbook,
    uniform,
)
from tests.rounding import other_rounding
from tests.toys import normal, random_measure

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


@pytest.mark.parametrize(
    ("lengthscale", "controlled", "t", "count", "low"),
    [
        (0.5, (1, 1, 0), 60, 80, True),
        (0.5, (1, 1, 0), 4, 80, False),  # as many observations as columns
        (0.5, (1, 1, 0), 60, 7, False),  # as many contexts as columns
        (0.05, (1, 0, 0), 60, 80, False),  # a kernel of full rank
        (0.02, (1, 1, 1), 60, 80, True),  # nothing is free: one column
        (0.5, (0, 0, 0), 60, 80, False),  # 3 coordinates are free
        (0.5, (1, 1, 0), 1, 1, False),
        (0.5, (1, 1, 0), 2, 2, False),
    ],
)
def test_both_ways_are_taken_and_agree(rng, lengthscale, controlled, t, count, low):
    posterior, observed, y = given_points(rng, t, kernel=rbf(lengthscale), noise_std=0.05)
    x, contexts, controlled = uniform(rng, 5, 3), uniform(rng, count, 3), mask(*controlled)
    wanted = expected(lambda a, b: gauss(a, b, lengthscale), observed, y, 0.05, x, contexts, controlled)
    partial = PartialPosterior(posterior, contexts, controlled)
    assert (partial._features is not None) == low
    close(partial.mean_and_variance(x), wanted)
    direct = PartialPosterior(posterior, contexts, controlled, None)
    assert direct._features is None
    close(direct.mean_and_variance(x), wanted)


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


def test_noise_of_its_own_for_each_observation(rng):
    observed, y, noise = uniform(rng, 30, 3), normal(rng, 30), 0.05 + uniform(rng, 30)
    posterior = GaussianProcess(rbf_kernel(0.5, 1.3), 9.0).condition(Measure.dirac(observed), y, noise)
    x, contexts = uniform(rng, 4, 3), uniform(rng, 40, 3)
    wanted = expected(lambda a, b: 1.3 * gauss(a, b, 0.5), observed, y, noise, x, contexts, mask(1, 1, 0))
    close(PartialPosterior(posterior, contexts, mask(1, 1, 0)).mean_and_variance(x), wanted)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-9])
def test_a_tolerance_bounds_the_error_and_saves_columns(rng, tolerance):
    posterior, _, _ = given_points(rng, 60)
    x, contexts, controlled = uniform(rng, 5, 3), uniform(rng, 80, 3), mask(1, 1, 0)
    exact = PartialPosterior(posterior, contexts, controlled)
    rough = PartialPosterior(posterior, contexts, controlled, tolerance)
    assert rough._features.shape[-1] < exact._features.shape[-1]
    error = (rough.mean_and_variance(x)[1] - exact.mean_and_variance(x)[1]).abs().max()
    assert 0 < error < 1.3 * tolerance / 0.1**2


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


def test_replicates_with_candidate_kernels(rng):
    """A batch of two dimensions, of which the kernels and prior means know the last alone."""
    lengthscales, outputscales, means = 0.2 + uniform(rng, 2, 3), 0.5 + uniform(rng, 2), normal(rng, 2, 1)
    posterior, observed, y = given_points(
        rng, 30, 3, 1, kernel=batched_kernel(lengthscales, outputscales), mean=means
    )  # fmt: skip
    assert posterior.batch_shape == (3, 2)
    x, contexts, controlled = uniform(rng, 4, 3), uniform(rng, 3, 1, 25, 3), mask(0, 1, 1)
    mean, variance = PartialPosterior(posterior, contexts, controlled).mean_and_variance(x)
    assert mean.shape == variance.shape == (3, 2, 4, 25)
    for r in range(3):
        for u in range(2):
            k = own_kernel(lengthscales[u], outputscales[u])
            wanted = expected(k, observed[r, 0], y[r, 0], 0.1, x, contexts[r, 0], controlled, means[u])
            close((mean[r, u], variance[r, u]), wanted)


@pytest.mark.parametrize("batched", [False, True])
def test_a_replicate_is_the_same_alone_or_in_company(rng, batched):
    """Ranks differ, so that some replicates get columns of zeros and one alone prevents a factor for all."""
    for scales in ([0.3, 0.5, 2.0], [0.3, 0.5, 0.03]):
        lengthscales = torch.tensor(scales, dtype=F64).unsqueeze(-1).expand(3, 3)
        kernel = batched_kernel(lengthscales, torch.ones(3, dtype=F64)) if batched else rbf_kernel(0.4)
        observed, y = uniform(rng, 3, 50, 3), normal(rng, 3, 50)
        x, contexts = uniform(rng, 3, 7, 3), uniform(rng, 3, 60, 3)
        x.requires_grad_()
        posterior = GaussianProcess(kernel, 0.1).condition(Measure.dirac(observed), y)
        together = expected_ucb(posterior, x, contexts, mask(1, 1, 0), 1.5)
        (gradient,) = torch.autograd.grad(together.sum(), x)
        for r in range(3):
            own = batched_kernel(lengthscales[r : r + 1], torch.ones(1, dtype=F64)) if batched else kernel
            alone = GaussianProcess(own, 0.1).condition(Measure.dirac(observed[r : r + 1]), y[r : r + 1])
            mine = x[r : r + 1].detach().requires_grad_()
            value = expected_ucb(alone, mine, contexts[r : r + 1], mask(1, 1, 0), 1.5)
            close([value[0]], [together[r]], 1e-10)
            close([torch.autograd.grad(value.sum(), mine)[0][0]], [gradient[r]], 1e-9)


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


@pytest.mark.parametrize("kind", [PartialPosterior, PointwisePosterior])
@pytest.mark.parametrize("tolerance", [1e-14, None])
@pytest.mark.parametrize("front", [(), (3, 1), (3, 5)])
@pytest.mark.parametrize("t", [0, 40])
def test_some_of_the_contexts_are_those_of_a_posterior_made_with_them(rng, kind, tolerance, front, t):
    options = () if kind is PointwisePosterior else (tolerance,)
    posterior = given_points(rng, t, 3)[0] if t else GaussianProcess(rbf_kernel(0.5), 0.1).posterior(3)
    controlled = GROUPS if front else mask(1, 1, 0)
    x, contexts = uniform(rng, 3, *controlled.shape[:-1], 4, 3), uniform(rng, *front, 30, 3)
    whole, places = kind(posterior, contexts, controlled, *options), torch.randint(30, (3, 6), generator=rng)
    before, few = whole.ucb(x, 1.5), whole.among(places)
    index = places.reshape(3, *[1] * (controlled.dim() - 1), 6, 1)
    chosen = whole.contexts.take_along_dim(index, -2)
    new = kind(posterior, chosen, controlled, *options)
    close(few.mean_and_variance(x), new.mean_and_variance(x))
    close([few.expected_ucb(x, 1.5), few.mean(x)], [new.expected_ucb(x, 1.5), new.mean(x)])
    close([few.ucb(x, 1.5)], [before.take_along_dim(index.mT, -1)])
    assert torch.equal(whole.ucb(x, 1.5), before)  # it is left as it was


@pytest.mark.parametrize("front", [(), (1, 1), (1, 5), (3, 1), (5,)])
def test_groups_and_replicates_may_share_decisions_and_contexts(rng, front):
    posterior, _, _ = given_points(rng, 30, 3)
    x, contexts = uniform(rng, *front, 4, 3), uniform(rng, *front, 20, 3)
    value = expected_ucb(posterior, x, contexts, GROUPS, 1.5)
    assert value.shape == (3, 5, 4)
    full = expected_ucb(posterior, x.expand(3, 5, 4, 3), contexts.expand(3, 5, 20, 3), GROUPS, 1.5)
    close([value], [full], 1e-12)


@pytest.mark.parametrize("t", [0, 1, 30])
@pytest.mark.parametrize("controlled", [mask(1, 0, 1), GROUPS], ids=["one group", "groups"])
@pytest.mark.parametrize("own", [False, True], ids=["one kernel", "a kernel and a mean a replicate"])
def test_the_closed_gradient_is_the_automatic_one(rng, controlled, t, own):
    kernel = batched_kernel(0.2 + uniform(rng, 3, 3), 0.5 + uniform(rng, 3)) if own else None
    posterior, _, _ = given_points(rng, t, 3, kernel=kernel, mean=normal(rng, 3, 1) if own else 0.4)
    groups = controlled.shape[:-1]
    x, contexts = uniform(rng, 3, *groups, 4, 3).requires_grad_(), uniform(rng, 20, 3)
    partial = PartialPosterior(posterior, contexts, controlled, tolerance=None)
    sqrt_beta = uniform(rng, *groups, 1) - 0.5
    value = partial.expected_ucb(x, sqrt_beta)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    found, slope = partial.expected_ucb_and_slope(x, sqrt_beta)
    assert partial.closed and not slope.requires_grad and slope.shape == x.shape
    close([found, slope], [value, gradient], 1e-12)


def test_where_nothing_is_uncertain_the_closed_gradient_is_that_of_the_mean(rng):
    """Variances below the floor, at two of three decisions: their roots add no slope, automatic or not."""
    observed = torch.tensor([[0.2, 0.3], [0.7, 0.6]], dtype=F64)
    posterior = GaussianProcess(fixed(rbf(0.3)), 1e-8).condition(Measure.dirac(observed), normal(rng, 2))
    x = torch.cat([observed, uniform(rng, 1, 2)]).requires_grad_()
    partial = PartialPosterior(posterior, uniform(rng, 5, 2), mask(1, 1), tolerance=None)
    sqrt_beta = torch.tensor([2.0], dtype=F64)
    assert partial.closed and (partial.mean_and_variance(x)[1] <= 1e-12).all(-1).tolist() == [True, True, False]
    value, mean = partial.expected_ucb(x, sqrt_beta), partial.mean(x).mean(-1)
    gradient, of_mean = (torch.autograd.grad(part.sum(), x, retain_graph=True)[0] for part in (value, mean))
    found, slope = partial.expected_ucb_and_slope(x, sqrt_beta)
    close([found, slope], [value, gradient], 1e-10)
    close([slope[:2]], [of_mean[:2]], 1e-10)
    assert float((slope[2] - of_mean[2]).abs().max()) > 0.1


@pytest.mark.parametrize("name", ["scaled", "product of scaled ones"])
def test_where_a_shortcut_is_taken_no_gradient_is_in_closed_form(rng, name):
    posterior, _, _ = given_points(rng, 40, 3, kernel=KERNELS[name][0]())
    contexts = uniform(rng, 100, 3)
    assert not PartialPosterior(posterior, contexts, mask(1, 1, 0)).closed
    exact = PartialPosterior(posterior, contexts, mask(1, 1, 0), tolerance=None)
    kinds = {type(part).__name__ for part in posterior.prior.kernel.modules()}
    assert exact.closed == ("MaternKernel" not in kinds)


def test_groups_with_kernels_of_their_own_a_replicate(rng):
    lengthscales, outputscales, means = 0.2 + uniform(rng, 3, 3), 0.5 + uniform(rng, 3), normal(rng, 3, 1)
    posterior, observed, y = given_points(rng, 30, 3, kernel=batched_kernel(lengthscales, outputscales), mean=means)
    x, contexts = uniform(rng, 4, 3), uniform(rng, 20, 3)
    mean, variance = PartialPosterior(posterior, contexts, GROUPS).mean_and_variance(x)
    for r in range(3):
        for i, controlled in enumerate(GROUPS):
            k = own_kernel(lengthscales[r], outputscales[r])
            wanted = expected(k, observed[r], y[r], 0.1, x, contexts, controlled, means[r])
            close((mean[r, i], variance[r, i]), wanted)


@pytest.mark.parametrize("name", ["product of scaled ones", "nested products"])
def test_groups_may_have_a_matern_kernel_on_either_side(rng, name):
    make, k = KERNELS[name]
    posterior, observed, y = given_points(rng, 60, kernel=make())
    x, contexts = uniform(rng, 4, 3), uniform(rng, 20, 3)
    mean, variance = PartialPosterior(posterior, contexts, GROUPS).mean_and_variance(x)
    for i, controlled in enumerate(GROUPS):
        close((mean[i], variance[i]), expected(k, observed, y, 0.1, x, contexts, controlled))


def test_groups_may_share_another_kernel_on_the_same_side_of_all(rng):
    make, k = KERNELS["periodic"]
    posterior, observed, y = given_points(rng, kernel=make())
    x, contexts, groups = uniform(rng, 4, 3), uniform(rng, 20, 3), mask([1, 0, 0], [0, 1, 0], [1, 1, 0])
    mean, variance = PartialPosterior(posterior, contexts, groups).mean_and_variance(x)
    for i, controlled in enumerate(groups):
        close((mean[i], variance[i]), expected(k, observed, y, 0.1, x, contexts, controlled))
    with pytest.raises(NoProductError, match="all groups must lie on one side, got a PeriodicKernel"):
        PartialPosterior(posterior, contexts, GROUPS)


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


def test_without_data_kernels_and_means_of_a_batch_count(rng):
    lengthscales, outputscales, means = uniform(rng, 2, 3), torch.tensor([0.25, 4.0], dtype=F64), normal(rng, 2, 1)
    process = GaussianProcess(batched_kernel(lengthscales, outputscales), 0.1, means)
    x, contexts = uniform(rng, 4, 3), uniform(rng, 9, 3)
    for replicates, front in ((None, ()), (3, (3,))):
        mean, variance = PartialPosterior(process.posterior(replicates), contexts, GROUPS).mean_and_variance(x)
        assert mean.shape == variance.shape == (*front, 2, 5, 4, 9)
        for u in range(2):
            assert bool((mean.movedim(len(front), 0)[u] == means[u]).all())
            close([variance.movedim(len(front), 0)[u]], [outputscales[u].expand(*front, 5, 4, 9)], 1e-12)


def test_without_data_a_free_coordinate_may_hold_no_number(rng):
    partial = PartialPosterior(GaussianProcess(rbf_kernel(0.5), 0.1).posterior(), uniform(rng, 9, 3), mask(1, 1, 0))
    x = torch.tensor([[0.1, 0.2, NAN]], dtype=F64, requires_grad=True)
    value = partial.expected_ucb(x, 2.0)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert value.item() == pytest.approx(2.0) and gradient.tolist() == [[0.0, 0.0, 0.0]]


def test_with_everything_controlled_it_is_the_bound_at_the_decision(rng):
    posterior, observed, y = given_points(rng)
    x = uniform(rng, 8, 3)
    mean, variance = textbook(lambda a, b: 1.3 * gauss(a, b, 0.5), observed, y, 0.1, x)
    for contexts in (uniform(rng, 20, 3), torch.full((1, 3), NAN, dtype=F64)):
        value = expected_ucb(posterior, x, contexts, mask(1, 1, 1), 1.5)
        close([value], [mean + 1.5 * variance.sqrt()])


def test_with_nothing_controlled_all_decisions_are_worth_the_same(rng):
    posterior, observed, y = given_points(rng)
    contexts, x = uniform(rng, 20, 3), torch.full((8, 3), NAN, dtype=F64, requires_grad=True)
    mean, variance = textbook(lambda a, b: 1.3 * gauss(a, b, 0.5), observed, y, 0.1, contexts)
    value = expected_ucb(posterior, x, contexts, mask(0, 0, 0), 1.5)
    close([value.detach()], [(mean + 1.5 * variance.sqrt()).mean().expand(8)])
    assert torch.autograd.grad(value.sum(), x)[0].tolist() == [[0.0] * 3] * 8


@pytest.mark.parametrize("t", [6, 60])
@pytest.mark.parametrize("name", ["scaled", "product of scaled ones"])
def test_what_does_not_matter_is_not_looked_at(rng, name, t):
    posterior, _, _ = given_points(rng, t, kernel=KERNELS[name][0]())
    x, contexts, controlled = uniform(rng, 5, 3), uniform(rng, 40, 3), mask(1, 1, 0)
    results = []
    for free, own in ((0.5, 0.5), (NAN, NAN), (-7.0, float("inf"))):
        other_x = torch.where(controlled, x, free).requires_grad_()
        other_contexts = torch.where(controlled, own, contexts)
        value = expected_ucb(posterior, other_x, other_contexts, controlled, 1.5)
        (gradient,) = torch.autograd.grad(value.sum(), other_x)
        assert bool((gradient[:, 2] == 0).all())
        results.append((value.detach(), gradient))
    for result in results[1:]:
        close(result, results[0], 1e-12)
    close([results[0][0]], [pointwise_ucb(posterior, x, contexts, controlled, 1.5).mean(-1)])


def test_no_decisions(rng):
    posterior, _, _ = given_points(rng, 30, 2)
    assert expected_ucb(posterior, uniform(rng, 0, 3), uniform(rng, 20, 3), mask(1, 1, 0), 1.5).shape == (2, 0)


def test_points_far_from_the_origin(rng):
    """The expanded square of a distance would lose all digits there."""
    process, observed, y = GaussianProcess(rbf_kernel(0.5, 1.3), 0.1), uniform(rng, 40, 3), normal(rng, 40)
    x, contexts = uniform(rng, 5, 3), uniform(rng, 50, 3)
    here, there = (
        expected_ucb(
            process.condition(Measure.dirac(observed + shift), y), x + shift, contexts + shift, mask(1, 1, 0), 1.5
        )
        for shift in (0.0, 1e5)
    )
    close([there], [here], 1e-7)


@pytest.mark.parametrize("seed", [None, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("lengthscale", [0.1, 0.2, 0.5])
def test_single_precision_is_wrong_by_no_more_than_its_roundings(rng, lengthscale, seed):
    """Where a factor went on until nothing but rounding was left, it would be worse; on any processor.

    The reference is exact for what single precision made of the data: its factor ``L`` and ``w = L^{-1} y``. With
    ``v = L^{-1} k`` the mean is ``v^T w``, the reduction of the variance ``v^T v``. A kernel that is wrong by ``d`` and
    a triangular solve with the backward error ``E``, ``|E| <= t eps |L|``, move both by at most
    ``sum_j |g_j| (d_j + (E |v|)_j)``, where ``g = L^{-T} w`` for the mean and ``2 L^{-T} v`` for the variance. A factor
    with ``r`` columns leaves eight roundings over, and each column may add those of an entry: ``d = 8 (r + 1) eps``.
    """
    _, observed, y = given_points(rng, 80, kernel=rbf(lengthscale))
    x, contexts, controlled = uniform(rng, 5, 3).float(), uniform(rng, 100, 3).float(), mask(1, 1, 0)
    observed = observed.float()
    with other_rounding(seed):
        single = GaussianProcess(fixed(rbf(lengthscale)).float(), 0.1).condition(Measure.dirac(observed), y.float())
        partial = PartialPosterior(single, contexts, controlled)
        mean, variance = partial.mean_and_variance(x)
        value = partial.expected_ucb(x, 1.5)
        decisions = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(partial.expected_ucb(decisions, 1.5).sum(), decisions)
    assert partial._features.dtype == value.dtype == gradient.dtype == torch.float32
    assert bool(torch.isfinite(gradient).all())
    exact = float(fixed(rbf(lengthscale)).float().lengthscale)
    k = gauss(observed.double(), pairs(x, contexts, controlled).double(), exact)
    factor, w = single.data.factor.double(), single.data.whitened.double()
    v = torch.linalg.solve_triangular(factor, k, upper=False)
    eps = torch.finfo(torch.float32).eps
    entry = 8 * (partial._features.shape[-1] + 1) * eps
    wrong = entry + len(y) * eps * (factor.abs() @ v.abs())  # of the right-hand sides, t x n M
    for result, wanted, direction in ((mean, w @ v, w.unsqueeze(-1)), (variance, 1 - v.square().sum(0), 2 * v)):
        g = torch.linalg.solve_triangular(factor.mT, direction, upper=True).abs()
        assert bool(((result.flatten() - wanted).abs() <= (g * wrong).sum(0)).all())


# Gradients


@pytest.mark.parametrize("controlled", [mask(1, 1, 0), mask(0, 0, 1), GROUPS], ids=lambda m: str(m.tolist()))
@pytest.mark.parametrize("name", ["scaled", "a lengthscale each", "product of scaled ones"])
@pytest.mark.parametrize("t", [6, 40])
def test_gradients_are_those_of_finite_differences(rng, name, controlled, t):
    if controlled.dim() > 1 and name == "product of scaled ones":
        controlled = mask([1, 1, 0], [1, 0, 0])
    posterior, _, _ = given_points(rng, t, 2, kernel=KERNELS[name][0]())
    x, contexts = uniform(rng, *[1] * (controlled.dim() - 1), 3, 3).requires_grad_(), uniform(rng, 30, 3)
    partial = PartialPosterior(posterior, contexts, controlled)
    assert torch.autograd.gradcheck(lambda z: partial.expected_ucb(z, 1.5), x)
    assert torch.autograd.gradcheck(lambda z: partial.expected_ucb(z, -0.7), x)
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


@pytest.mark.parametrize("name", ["scaled", "product of scaled ones"])
@pytest.mark.parametrize("t", [6, 40])
def test_gradients_at_an_observed_point(rng, name, t):
    """With the context of the observation among the contexts, so that distances are zero."""
    posterior, observed, _ = given_points(rng, t, kernel=KERNELS[name][0]())
    contexts, controlled = torch.cat([observed[:3], uniform(rng, 20, 3)]), mask(1, 1, 0)
    x = observed[:3].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: expected_ucb(posterior, z, contexts, controlled, 1.5), x)


@pytest.mark.parametrize("t", [1, 6, 40])
def test_gradients_are_finite_where_nothing_is_uncertain(rng, t):
    """With next to no noise the variance at an observed point is zero to rounding, and the root has no slope there."""
    posterior, observed, _ = given_points(rng, t, noise_std=1e-9, kernel=rbf(0.05))
    x = observed[:1].clone().requires_grad_()
    value = expected_ucb(posterior, x, observed[:1], mask(1, 1, 0), 1.5)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert bool(torch.isfinite(value).all()) and bool(torch.isfinite(gradient).all())
    with torch.no_grad():
        sure = expected_ucb(posterior, x, observed[:1], mask(1, 1, 0), 0.0)
        assert abs(float(expected_ucb(posterior, x, observed[:1], mask(1, 1, 0), 1.5) - sure)) < 1e-6


def test_the_units_of_the_values_do_not_matter(rng):
    """A floor of the variance for the sake of gradients must not exceed the variance of a function of small values."""
    observed, y, x, contexts = uniform(rng, 30, 3), normal(rng, 30), uniform(rng, 5, 3), uniform(rng, 20, 3)
    results = []
    for unit in (1.0, 1e-9):
        process = GaussianProcess(fixed(scaled(rbf(0.5), 1.0)), 0.1 * unit)
        process.kernel.outputscale = torch.tensor(unit**2, dtype=F64)
        process.kernel.requires_grad_(False)
        posterior = process.condition(Measure.dirac(observed), unit * y)
        decisions = x.clone().requires_grad_()
        results.append(expected_ucb(posterior, decisions, contexts, mask(1, 1, 0), 1.5).detach() / unit)
    close([results[1]], [results[0]], 1e-8)


# Slices


@pytest.mark.parametrize("entries", [1, 50, 1000])
@pytest.mark.parametrize("t", [6, 40])
def test_slices_of_the_decisions_change_nothing(rng, monkeypatch, t, entries):
    posterior, _, _ = given_points(rng, t, 2)
    x, contexts = uniform(rng, 2, 5, 13, 3).requires_grad_(), uniform(rng, 20, 3)
    partial = PartialPosterior(posterior, contexts, GROUPS)
    results = []
    for most in (2**30, entries):
        monkeypatch.setattr(module, "_CPU_ENTRIES", most)
        value = partial.expected_ucb(x, 1.5)
        results.append((*partial.mean_and_variance(x), value, torch.autograd.grad(value.sum(), x)[0]))
    close(results[1], results[0], 1e-10)


def test_gradients_change_no_value(rng):
    posterior, _, _ = given_points(rng, 40)
    x, contexts = uniform(rng, 4, 3), uniform(rng, 20, 3)
    with torch.no_grad():
        value = expected_ucb(posterior, x, contexts, mask(1, 1, 0), 1.5)
    assert torch.equal(value, expected_ucb(posterior, x.requires_grad_(), contexts, mask(1, 1, 0), 1.5).detach())


# Refusals


def refuse(message, posterior, contexts=None, controlled=None, **options):
    contexts = torch.zeros(4, 3, dtype=F64) if contexts is None else contexts
    controlled = mask(1, 1, 0) if controlled is None else controlled
    for kind in (
        lambda: PartialPosterior(posterior, contexts, controlled, **options),
        lambda: TrackedPartial(posterior, torch.zeros(2, 3, dtype=F64), contexts, controlled),
        lambda: expected_ucb(posterior, torch.zeros(2, 3, dtype=F64), contexts, controlled, 1.5),
    )[: 1 if options else 3]:
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


def test_a_matern_kernel_on_one_side_is_fine(rng):
    posterior, observed, y = given_points(rng, kernel=matern_on([0, 1], 0.5))
    x, contexts = uniform(rng, 4, 3), uniform(rng, 9, 3)
    for controlled in (mask(1, 1, 0), mask(0, 0, 1)):
        wanted = expected(lambda a, b: matern(a[:, :2], b[:, :2], 0.5), observed, y, 0.1, x, contexts, controlled)
        close(PartialPosterior(posterior, contexts, controlled).mean_and_variance(x), wanted)


def test_observed_averages_are_refused(rng):
    process, y = GaussianProcess(rbf_kernel(0.5), 0.1), normal(rng, 4)
    for measure in (random_measure(rng, 4, p=2, d=3), random_measure(rng, 4, p=1, d=3)):
        refuse("the posterior must be given values at points, got values of averages", process.condition(measure, y))
    mixed_data = process.condition(Measure.dirac(uniform(rng, 4, 3)), y).extend(random_measure(rng, 1, p=2, d=3), y[:1])
    refuse("the posterior must be given values at points, got values of averages", mixed_data)


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize(
    ("contexts", "controlled", "message"),
    [
        (torch.zeros(4, 3), torch.ones(3), r"controlled must be boolean, ... x d with the d = 3 .* torch.float32 of"),
        (torch.zeros(4, 3), torch.ones(3, dtype=torch.long), "controlled must be boolean, .* got torch.int64 of shape"),
        (torch.zeros(4, 3), mask(1, 0), r"controlled must be boolean, .* got torch.bool of shape \(2,\)"),
        (torch.zeros(4, 3), torch.tensor(True), r"controlled must be boolean, .* got torch.bool of shape \(\)"),
        (torch.zeros(3), mask(1, 1, 0), r"contexts must have shape \(..., M, d\) with M >= 1, got \(3,\)"),
        (torch.zeros(()), mask(1, 1, 0), r"contexts must have shape \(..., M, d\) with M >= 1, got \(\)"),
        (torch.zeros(0, 3), mask(1, 1, 0), r"contexts must have shape \(..., M, d\) with M >= 1, got \(0, 3\)"),
        (torch.zeros(7, 4, 3), mask(1, 1, 0), r"contexts must broadcast to \(.*\) x n x 3, got \(7, 4, 3\)"),
        (torch.zeros(7, 4, 3), GROUPS, r"contexts must broadcast to \(.*\) x n x 3, got \(7, 4, 3\)"),
        (torch.zeros(9, 2, 5, 4, 3), GROUPS, r"contexts must broadcast to \(.*\) x n x 3, got \(9, 2, 5, 4, 3\)"),
        (
            torch.full((4, 3), NAN),
            mask(1, 1, 0),
            "contexts must be finite in the free coordinates, got a NaN or an inf",
        ),
        (
            torch.full((4, 3), -torch.inf),
            GROUPS,
            "contexts must be finite in the free coordinates, got a NaN or an inf",
        ),
    ],
)
def test_wrong_shapes_and_dtypes_are_refused(rng, batch, contexts, controlled, message):
    posterior, _, _ = given_points(rng, 4, *([] if batch is None else [batch]))
    refuse(message, posterior, contexts.to(F64), controlled)
    refuse(message, posterior.prior.posterior(batch), contexts.to(F64), controlled)


@pytest.mark.parametrize("tolerance", [0.0, -1e-3, NAN])
def test_a_tolerance_that_is_not_positive_is_refused(rng, tolerance):
    refuse("tolerance must be positive and finite, got", given_points(rng, 4)[0], tolerance=tolerance)


def test_prior_means_that_are_no_numbers_are_refused(rng):
    posterior, _, _ = given_points(rng, 4, mean=lambda x: x.sum(-1))
    refuse("the prior mean must be a number or a tensor, got a function of the points", posterior)
    posterior, _, _ = given_points(rng, 4, mean=torch.zeros(4, dtype=F64))
    refuse(r"the prior mean must have shape \(\.\.\., 1\), got", posterior)


@pytest.mark.parametrize("t", [0, 30])
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3,), r"x must have shape \(..., n, 3\), got \(3,\)"),
        ((4, 2), r"x must have shape \(..., n, 3\), got \(4, 2\)"),
        ((7, 4, 3), r"x must broadcast to \(2,\) x n x 3, got \(7, 4, 3\)"),
        ((1, 2, 4, 3), r"x must broadcast to \(2,\) x n x 3, got \(1, 2, 4, 3\)"),
    ],
)
def test_wrong_decisions_are_refused(rng, t, shape, message):
    process = GaussianProcess(rbf_kernel(0.5), 0.1)
    posterior = given_points(rng, t, 2)[0] if t else process.posterior(2)
    contexts = uniform(rng, 9, 3)
    partial = PartialPosterior(posterior, contexts, mask(1, 1, 0))
    for use in (
        partial.mean,
        partial.mean_and_variance,
        lambda x: partial.ucb(x, 1.5),
        lambda x: partial.expected_ucb(x, 1.5),
        lambda x: TrackedPartial(posterior, x, contexts, mask(1, 1, 0)),
    ):
        with pytest.raises(ValueError, match=message):
            use(torch.zeros(shape, dtype=F64))
