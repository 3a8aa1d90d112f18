import re
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from hypothesis import given
from hypothesis import strategies as st
from linear_operator.utils.warnings import NumericalWarning
from scipy.stats import multivariate_normal

from cbo_lib.former import tracked as module
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import StackedKernel, TabulatedKernel, rbf_kernel
from cbo_lib.measure import Measure
from tests.oracles import condition, condition_exactly, gram, rbf, sets
from tests.toys import normal, random_measure

F64 = torch.float64


def kernel_of(u):
    if not u:
        return rbf_kernel(0.4, 1.3)
    kernel = ScaleKernel(RBFKernel(batch_shape=u), batch_shape=u).to(F64)
    kernel.base_kernel.lengthscale = torch.linspace(0.2, 1.0, u.numel(), dtype=F64).reshape(*u, 1, 1)
    kernel.outputscale = torch.full(u, 1.3, dtype=F64)
    return kernel.requires_grad_(False)


class Anew:
    """The same observations, conditioned on from the beginning each time that somebody asks."""

    def __init__(self, start, batch):
        self.start, self.batch, self.index, self.y, self.noise = start, batch, [], [], []

    def observe(self, index, y, noise):
        for log, entry in ((self.index, index), (self.y, y), (self.noise, noise)):
            log.append(entry)

    def check(self, tracked):
        posterior, queries = self.start, tracked.queries
        if self.index:
            index, y, noise = (torch.stack(log, -1) for log in (self.index, self.y, self.noise))
            posterior = posterior.extend(Measure(queries.points[index], queries.weights[index]), y, noise)
        mean, variance = posterior.mean(queries), posterior.variance(queries)
        assert tracked.mean.shape == mean.shape == (*self.batch, tracked.n)
        torch.testing.assert_close(tracked.mean, mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(tracked.variance, variance, rtol=0, atol=1e-9)
        assert tracked.count == len(self.index)


STEPS = st.lists(st.one_of(st.just("observe"), st.integers(0, 3)), min_size=1, max_size=25)


@given(
    steps=STEPS,
    first=st.integers(1, 4),
    initial=st.sampled_from([0, 3]),
    replicates=st.sampled_from([None, 1, 3]),
    u=st.sampled_from([(), (3,), (1,)]),
    seed=st.integers(0, 2**31),
)
def test_tracking_equals_conditioning_anew(steps, first, initial, replicates, u, seed):
    rng = torch.Generator().manual_seed(seed)
    front = torch.Size([] if replicates is None else [replicates, *[1] * len(u)])
    batch = torch.broadcast_shapes(front, u)
    process = GaussianProcess(kernel_of(torch.Size(u)), 0.2, lambda x: x[..., 0] - 0.3)
    start = process.posterior()
    if initial:
        start = start.extend(random_measure(rng, *front, initial), normal(rng, *front, initial))
    elif replicates is not None and not u:
        start = process.posterior(replicates)
    elif replicates is not None:
        start = start.extend(random_measure(rng, 1), normal(rng, *front, 1))
    tracked, anew = start.track(random_measure(rng, first)), Anew(start, batch)
    anew.check(tracked)
    for step in steps:
        if step == "observe":
            index = torch.randint(tracked.n, batch, generator=rng)
            y, noise = normal(rng, *batch), 0.05 + torch.rand(batch, generator=rng, dtype=F64)
            tracked.observe(index, y, noise)
            anew.observe(index, y, noise)
        else:
            n = tracked.n
            added = tracked.add(random_measure(rng, step, p=1 + step))
            assert added.tolist() == list(range(n, n + step)) and tracked.n == n + step
    anew.check(tracked)


@pytest.mark.parametrize("replicates", [None, 2])
@pytest.mark.parametrize("u", [(), (3,)])
def test_buffers_grow_past_many_observations_and_many_observed_queries(rng, replicates, u):
    front = torch.Size([] if replicates is None else [replicates, *[1] * len(u)])
    batch = torch.broadcast_shapes(front, u)
    process = GaussianProcess(kernel_of(torch.Size(u)), 0.3)
    start = process.condition(random_measure(rng, 2), normal(rng, *front, 2))
    tracked, anew = start.track(random_measure(rng, 20)), Anew(start, batch)
    for t in range(70):
        if t == 40:
            tracked.add(random_measure(rng, 5, p=4))
        index = torch.randint(tracked.n, batch, generator=rng)
        y = normal(rng, *batch)
        tracked.observe(index, y)
        anew.observe(index, y, torch.full(batch, 0.3, dtype=F64))
        if t in (7, 8, 9, 16, 63, 64, 65, 69):
            anew.check(tracked)


def test_tracking_equals_the_textbook_formula(rng):
    queries = random_measure(rng, 5, p=3)
    tracked = GaussianProcess(rbf_kernel(0.4, 1.3), 0.2, 0.5).posterior(2).track(queries)
    index, y = torch.tensor([[0, 4, 0, 2], [1, 1, 3, 3]]), normal(rng, 2, 4)
    for t in range(4):
        tracked.observe(index[:, t], y[:, t])
    for r in range(2):
        observed = [sets(queries)[i] for i in index[r].tolist()]
        mean, cov = condition(
            lambda x, z: rbf(x, z, 0.4, 1.3),
            observed,
            y[r].numpy(),
            0.2,
            sets(queries),
            lambda x: np.full(len(x), 0.5),
        )
        np.testing.assert_allclose(tracked.mean[r], mean, rtol=0, atol=1e-9)
        np.testing.assert_allclose(tracked.variance[r], np.diag(cov), rtol=0, atol=1e-9)


SLOPES = torch.tensor([0.5, -1.0, 2.0], dtype=F64)


@pytest.mark.parametrize("initial", [0, 2])
def test_a_mean_function_for_each_kernel_of_a_batch_equals_the_loop_over_members(rng, initial):
    """Three candidate priors, each with its mean function, for four replicates."""
    scales, queries, more = torch.linspace(0.2, 1.0, 3, dtype=F64), random_measure(rng, 6), random_measure(rng, 2)
    first, values = random_measure(rng, initial), normal(rng, initial)
    means = [lambda x, u=u: SLOPES[u] * x[..., 0] + 0.3 for u in range(3)]
    priors = [GaussianProcess(rbf_kernel(float(scale), 1.3), 0.2, f) for scale, f in zip(scales, means, strict=True)]
    alone = [prior.posterior(4).extend(first, values).track(queries) for prior in priors]
    process = GaussianProcess(kernel_of(torch.Size([3])), 0.2, lambda x: SLOPES[:, None, None] * x[..., 0] + 0.3)
    together = process.posterior(4).extend(first, values).track(queries)
    for t in range(12):
        index, y = torch.randint(together.n, (4, 3), generator=rng), normal(rng, 4, 3)
        together.observe(index, y)
        for u, tracked in enumerate(alone):
            tracked.observe(index[:, u], y[:, u])
        if t == 5:
            for tracked in (together, *alone):
                tracked.add(more)
    assert together.batch_shape == (4, 3) and together.mean.shape == together.variance.shape == (4, 3, 8)
    for u, tracked in enumerate(alone):
        torch.testing.assert_close(together.mean[:, u], tracked.mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(together.variance[:, u], tracked.variance, rtol=0, atol=1e-9)
        got, expected = together.log_marginal_likelihood[:, u], tracked.log_marginal_likelihood
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("initial", [0, 3])
@pytest.mark.parametrize("replicates", [None, 2])
@pytest.mark.parametrize("u", [(), (3,)])
def test_log_marginal_likelihood_is_the_density_of_all_observations(rng, initial, replicates, u):
    process, kernel = GaussianProcess(kernel_of(torch.Size(u)), 0.2, lambda x: x[..., 0] - 0.3), [0.2, 0.6, 1.0]
    first, values, queries = random_measure(rng, initial), normal(rng, initial), random_measure(rng, 5)
    start = process.posterior(replicates).extend(first, values)
    tracked, batch = start.track(queries), start.batch_shape
    index = torch.randint(5, (*batch, 10), generator=rng)
    y, noise = normal(rng, *batch, 10), 0.05 + torch.rand(*batch, 10, generator=rng, dtype=F64)
    for t in range(10):
        if t in (0, 1, 8):
            observed = Measure(queries.points[index[..., :t]], queries.weights[index[..., :t]])
            anew = start.extend(observed, y[..., :t], noise[..., :t]).log_marginal_likelihood
            assert tracked.log_marginal_likelihood.shape == anew.shape == batch
            torch.testing.assert_close(tracked.log_marginal_likelihood, anew, rtol=0, atol=1e-9)
        tracked.observe(index[..., t], y[..., t], noise[..., t])
        if t == 4:
            tracked.add(random_measure(rng, 2))
    for at in np.ndindex(*batch):
        observed = sets(first) + [sets(queries)[i] for i in index[at].tolist()]
        std = np.concatenate([np.full(initial, 0.2), noise[at]])
        scale = kernel[at[-1]] if u else 0.4
        dense = gram(lambda x, z, scale=scale: rbf(x, z, scale, 1.3), observed, observed) + np.diag(std**2)
        prior = [w @ (x[:, 0] - 0.3) for x, w in observed]
        expected = multivariate_normal(prior, dense).logpdf(torch.cat([values, y[at]]))
        assert float(tracked.log_marginal_likelihood[at]) == pytest.approx(expected, abs=1e-8)


@pytest.fixture
def calls(monkeypatch):
    """How many rows of kernel sums were computed, call by call."""
    made, original = [], module.covariance
    monkeypatch.setattr(module, "covariance", lambda kernel, a, b: made.append((a.n, b.n)) or original(kernel, a, b))
    return made


def test_the_kernel_is_evaluated_once_for_each_query_that_anyone_observes(rng, calls):
    tracked = GaussianProcess(rbf_kernel(0.4), 0.2).posterior(3).track(random_measure(rng, 6))
    observed = set()
    for _ in range(20):
        index = torch.randint(4, (3,), generator=rng)
        observed |= set(index.tolist())
        tracked.observe(index, normal(rng, 3))
    assert sum(a for a, _ in calls) == len(observed) == 4
    assert {b for _, b in calls} == {6}


def test_new_queries_cost_one_column_for_each_observed_query(rng, calls):
    tracked = GaussianProcess(rbf_kernel(0.4), 0.2).posterior(2).track(random_measure(rng, 6))
    for index in ([0, 1], [1, 0], [0, 5]):
        tracked.observe(torch.tensor(index), normal(rng, 2))
    calls.clear()
    tracked.add(random_measure(rng, 4))
    assert calls == [(3, 4)]


@pytest.mark.parametrize("initial", [0, 2])
@pytest.mark.parametrize("u", [(), (3,)])
def test_the_last_row_and_scale_are_those_before_the_observation(rng, initial, u):
    process, batch = GaussianProcess(kernel_of(torch.Size(u)), 0.2), (2, *u)
    start = process.posterior(2).extend(random_measure(rng, initial), normal(rng, initial))
    queries = random_measure(rng, 5)
    tracked, posterior = start.track(queries), start
    for t in range(10):
        index, y, noise = torch.randint(5, batch, generator=rng), normal(rng, *batch), 0.1 + 0.05 * t
        tracked.observe(index, y, noise)
        asked = Measure(queries.points[index.unsqueeze(-1)], queries.weights[index.unsqueeze(-1)])
        scale = (posterior.variance(asked).squeeze(-1) + noise**2).sqrt()
        row = posterior.covariance(asked, queries).squeeze(-2) / scale.unsqueeze(-1)
        torch.testing.assert_close(tracked.last_scale, scale, rtol=0, atol=1e-9)
        torch.testing.assert_close(tracked.last_row, row, rtol=0, atol=1e-9)
        posterior = posterior.extend(asked, y.unsqueeze(-1), torch.full_like(y, noise).unsqueeze(-1))
    tracked.add(random_measure(rng, 2))
    assert tracked.last_row.shape == (*batch, 7)
    torch.testing.assert_close(tracked.last_row[..., :5], row, rtol=0, atol=1e-9)


@pytest.mark.parametrize("initial", [0, 2])
def test_before_an_observation_there_is_no_last_one(rng, initial):
    start = GaussianProcess(rbf_kernel(0.4), 0.2).condition(random_measure(rng, initial), normal(rng, initial))
    tracked = start.track(random_measure(rng, 3))
    for read in (lambda: tracked.last_row, lambda: tracked.last_scale):
        with pytest.raises(ValueError, match="observe must come first, got"):
            read()


def test_variance_never_turns_negative(rng):
    x = torch.linspace(0, 1, 30, dtype=F64).unsqueeze(-1)
    tracked = GaussianProcess(rbf_kernel(0.5), 1e-4).posterior(1).track(Measure.dirac(x))
    for i in range(30):
        tracked.observe(torch.tensor([i]), x[i])
    tracked.add(Measure.dirac(x + 0.01))
    assert float(tracked.variance.min()) >= 0


def test_adding_nothing_changes_nothing(rng):
    tracked = GaussianProcess(rbf_kernel(0.4), 0.2).posterior(2).track(random_measure(rng, 3))
    assert tracked.add(random_measure(rng, 0)).numel() == 0 and tracked.n == 3


def test_tracked_posterior_leaves_the_posterior_as_it_was(rng):
    queries = random_measure(rng, 3)
    posterior = GaussianProcess(rbf_kernel(0.4), 0.2).condition(random_measure(rng, 2), normal(rng, 2))
    before, tracked = posterior.mean(queries).clone(), posterior.track(queries)
    tracked.observe(torch.tensor(1), torch.tensor(3.0, dtype=F64))
    assert torch.equal(posterior.mean(queries), before) and not torch.allclose(tracked.mean, before)


@pytest.fixture
def started(rng):
    tracked = GaussianProcess(rbf_kernel(0.4), 0.2).posterior(2).track(random_measure(rng, 3))
    tracked.observe(torch.tensor([0, 1]), normal(rng, 2))
    return tracked


def refused_without_a_trace(tracked, action, message):
    mean, variance, n, count = tracked.mean.clone(), tracked.variance.clone(), tracked.n, tracked.count
    with pytest.raises(ValueError, match=message):
        action()
    assert torch.equal(tracked.mean, mean) and torch.equal(tracked.variance, variance)
    assert (tracked.n, tracked.count, tracked.queries.n) == (n, count, n)
    tracked.observe(torch.tensor([2, 2]), torch.zeros(2, dtype=F64))  # and it still works
    tracked.add(Measure.dirac(torch.zeros(1, 2, dtype=F64)))
    assert tracked.n == n + 1


@pytest.mark.parametrize(
    ("index", "y", "message"),
    [
        ([0, 1, 2], [0.0, 0.0], r"index and y must have the batch shape \(2,\), got \(3,\) and \(2,\)"),
        ([0, 1], [0.0], r"index and y must have the batch shape \(2,\), got \(2,\) and \(1,\)"),
        ([0, 3], [0.0, 0.0], r"index must lie in \[0, 3\), got"),
        ([-1, 0], [0.0, 0.0], r"index must lie in \[0, 3\), got"),
        ([0, 1], [0.0, float("nan")], "y must be finite, got"),
        ([0, 1], [float("inf"), 0.0], "y must be finite, got"),
    ],
)
def test_bad_observations_are_refused_and_change_nothing(started, index, y, message):
    refused_without_a_trace(started, lambda: started.observe(torch.tensor(index), torch.tensor(y, dtype=F64)), message)


def test_a_mask_of_another_kind_is_refused(started):
    for active in (torch.ones(3, dtype=torch.bool), torch.ones(2)):
        refused_without_a_trace(
            started,
            lambda a=active: started.observe(torch.tensor([0, 1]), torch.zeros(2, dtype=F64), active=a),
            r"active must be boolean of shape \(2,\), got",
        )


@pytest.mark.parametrize("count", [3, 200])  # the second is tracked by coefficients
def test_an_inactive_replicate_learns_exactly_nothing(rng, count):
    process = GaussianProcess(rbf_kernel(0.4, 1.3), 0.2, 0.3)
    queries = Measure.dirac(torch.rand(count, 2, generator=rng, dtype=F64))
    whole = process.posterior(3).track(queries)
    alone = [process.posterior(1).track(queries) for _ in range(3)]
    for t in range(12):
        active = torch.tensor([True, t % 3 == 0, t > 5])
        index, y = torch.randint(count, (3,), generator=rng), normal(rng, 3)
        noise = torch.where(active, torch.tensor(0.2, dtype=F64), torch.nan)
        before = whole.mean.clone(), whole.variance.clone()
        whole.observe(index, torch.where(active, y, torch.nan), noise, active)
        for r in range(3):
            if active[r]:
                alone[r].observe(index[[r]], y[[r]], noise[[r]])
            else:
                assert torch.equal(whole.mean[r], before[0][r]) and torch.equal(whole.variance[r], before[1][r])
                assert float(whole.last_row[r].abs().max()) == 0 and float(whole.last_scale[r]) == 1
        if t == 8:
            more = random_measure(rng, 4)
            for tracked in (whole, *alone):
                tracked.add(more)
    for r in range(3):
        torch.testing.assert_close(whole.mean[[r]], alone[r].mean, rtol=0, atol=1e-10)
        torch.testing.assert_close(whole.variance[[r]], alone[r].variance, rtol=0, atol=1e-10)
        expected = alone[r].log_marginal_likelihood
        torch.testing.assert_close(whole.log_marginal_likelihood[[r]], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("noise", [0.0, -0.2, float("nan"), torch.tensor([0.1, 0.0], dtype=F64)])
def test_noise_that_is_not_positive_is_refused(started, noise):
    y = torch.zeros(2, dtype=F64)
    refused_without_a_trace(
        started, lambda: started.observe(torch.tensor([0, 1]), y, noise), "noise_std must be positive"
    )


def test_queries_of_a_batch_are_refused(rng):
    posterior = GaussianProcess(rbf_kernel(0.4), 0.2).posterior(2)
    with pytest.raises(
        ValueError, match=r"queries must be shared by all replicates.*got points of shape \(2, 3, 3, 2\)"
    ):
        posterior.track(random_measure(rng, 2, 3))


def test_added_queries_of_a_batch_are_refused_and_change_nothing(rng, started):
    queries = random_measure(rng, 2, 3)
    refused_without_a_trace(started, lambda: started.add(queries), "queries must be shared by all replicates")


def on_a_line(count, weight=1.0, dtype=F64):
    x = torch.linspace(0, 1, count, dtype=dtype)[:, None, None]
    return Measure(x, torch.full((count, 1), weight, dtype=dtype))


def observed_in_turn(tracked, rng, steps, noise=None):
    """Random queries, their values, and the same observations conditioned on from the beginning."""
    anew = Anew(tracked.posterior, tracked.batch_shape)
    for _ in range(steps):
        index, y = torch.randint(tracked.n, tracked.batch_shape, generator=rng), normal(rng, *tracked.batch_shape)
        tracked.observe(index, y, noise)
        anew.observe(index, y, torch.full_like(y, noise or tracked.posterior.prior.noise_std))
    return anew


@pytest.mark.parametrize("weight", [1.0, -0.7])
@pytest.mark.parametrize("u", [(), (3,), (2, 2)])
def test_points_of_a_smooth_kernel_are_tracked_by_few_coefficients(rng, u, weight):
    process = GaussianProcess(kernel_of(torch.Size(u)), 0.2, lambda x: x[..., 0] - 0.3)
    tracked = process.posterior(3).track(on_a_line(100, weight))
    assert tracked._rows.shape[-1] < 25
    anew = observed_in_turn(tracked, rng, 40)
    anew.check(tracked)
    before = tracked.last_row
    tracked.add(random_measure(rng, 4, p=1, d=1))
    anew.check(tracked)
    torch.testing.assert_close(tracked.last_row[..., :100], before, rtol=0, atol=1e-12)
    for _ in range(5):
        index, y = torch.randint(104, tracked.batch_shape, generator=rng), normal(rng, *tracked.batch_shape)
        tracked.observe(index, y)
        anew.observe(index, y, torch.full_like(y, 0.2))
    anew.check(tracked)


@pytest.mark.parametrize("noise", [1e-1, 1e-3])
def test_coefficients_give_what_whole_rows_give(rng, monkeypatch, noise):
    process, queries = GaussianProcess(rbf_kernel(0.3), noise), on_a_line(300)
    few = process.posterior(2).track(queries)
    monkeypatch.setattr(module, "_RANK", 0)
    whole = process.posterior(2).track(queries)
    assert few._rows.shape[-1] < 30 < whole._rows.shape[-1] == 300
    for _ in range(60):
        index, y = torch.randint(300, (2,), generator=rng), normal(rng, 2)
        for tracked in (few, whole):
            tracked.observe(index, y)
        scale = 1 + float(whole.mean.abs().max())
        torch.testing.assert_close(few.mean, whole.mean, rtol=0, atol=1e-8 * scale)
        torch.testing.assert_close(few.variance, whole.variance, rtol=0, atol=1e-11)
        torch.testing.assert_close(few.last_row, whole.last_row, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kernel", [MaternKernel(0.5), MaternKernel(1.5, batch_shape=torch.Size([2]))])
def test_points_of_a_rough_kernel_are_tracked_by_whole_rows(rng, kernel):
    process = GaussianProcess(kernel.to(F64).requires_grad_(False), 0.2)
    tracked = process.posterior(3).track(on_a_line(200))
    assert tracked._rows.shape[-1] == 200
    observed_in_turn(tracked, rng, 20).check(tracked)


@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_few_points_are_tracked_by_whole_rows(rng, count):
    tracked = GaussianProcess(rbf_kernel(0.3), 0.2).posterior(3).track(on_a_line(count))
    observed_in_turn(tracked, rng, 10).check(tracked)


def test_coefficients_in_single_precision(rng):
    process, queries = GaussianProcess(rbf_kernel(0.3, dtype=torch.float32), 0.2), on_a_line(200, dtype=torch.float32)
    tracked, double = process.posterior(2).track(queries), GaussianProcess(rbf_kernel(0.3), 0.2).posterior(2)
    assert tracked._rows.shape[-1] < 50
    double = double.track(on_a_line(200))
    for _ in range(30):
        index, y = torch.randint(200, (2,), generator=rng), normal(rng, 2)
        tracked.observe(index, y.float())
        double.observe(index, y)
    torch.testing.assert_close(tracked.mean.double(), double.mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(tracked.variance.double(), double.variance, rtol=0, atol=1e-4)


def test_each_kernel_of_a_batch_is_evaluated_where_its_own_replicate_asks(rng, calls):
    tracked = GaussianProcess(kernel_of(torch.Size([3])), 0.2).posterior().track(random_measure(rng, 6))
    anew = observed_in_turn(tracked, rng, 10, 0.3)
    assert calls == [(1, 6)] * 10
    anew.check(tracked)


# Noise that drowns in rounding


def reported(caught, count):
    """The warnings say how much jitter there was and where."""
    assert caught
    for warning in caught:
        assert issubclass(warning.category, NumericalWarning)
        assert re.search(
            rf"jitter of up to [1-9]\.\de-1\d of the variance .* in [1-3] of {count} rep", str(warning.message)
        )


PAIRS = torch.cat([torch.linspace(0, 1, 20, dtype=F64), torch.linspace(0, 1, 20, dtype=F64) + 1e-9])
ASKED = [0, 7, 19, 20, 27, *range(40, 46)]


@pytest.mark.parametrize(("noise", "tolerance"), [(1e-9, 1e-4), (1e-7, 1e-5), (1e-5, 1e-6)])
@pytest.mark.parametrize("initial", [0, 30])
@pytest.mark.parametrize("replicates", [1, 3])
def test_500_observations_of_near_duplicates_equal_80_digits(rng, replicates, initial, noise, tolerance):
    """Whole rows for one replicate and for old data, coefficients for three."""
    points = torch.cat([PAIRS, torch.rand(160, generator=rng, dtype=F64)])
    index = torch.randint(40, (replicates, 500), generator=rng)
    y = torch.sin(7 * points[index]) + noise * normal(rng, replicates, 500)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = GaussianProcess(rbf_kernel(0.2), noise).posterior(replicates)
        start = start.extend(Measure.dirac(points[index[:, :initial], None]), y[:, :initial]) if initial else start
        tracked = start.track(Measure.dirac(points[:, None]))
        assert (tracked._basis is None) == (replicates == 1 or initial > 0)
        for t in range(initial, 500):
            tracked.observe(index[:, t], y[:, t])
    if noise == 1e-9:
        reported(caught, replicates)
        assert len(caught) <= 2 * replicates  # not again and again
    if noise == 1e-5:
        assert not caught
    exact = partial(condition_exactly, points.tolist(), lengthscale=0.2, noise_std=noise)
    mean, variance = exact(index[0].tolist(), y=y[0].tolist(), queries=points[ASKED].tolist())
    np.testing.assert_allclose(tracked.mean[0, ASKED], mean, rtol=0, atol=tolerance)
    np.testing.assert_allclose(tracked.variance[0, ASKED], variance, rtol=0, atol=1e-8)
    # The likelihood, and queries that come later, go with the mended factor.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        whole = GaussianProcess(rbf_kernel(0.2), noise).condition(Measure.dirac(points[index, None]), y)
    before = tracked.mean.clone(), tracked.variance.clone()
    added = tracked.add(Measure.dirac(points[:, None]))
    torch.testing.assert_close(tracked.mean[:, added], before[0], rtol=0, atol=tolerance)
    torch.testing.assert_close(tracked.variance[:, added], before[1], rtol=0, atol=1e-8)
    if noise == 1e-5:
        got, expected = tracked.log_marginal_likelihood, whole.log_marginal_likelihood
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=0)


def test_only_the_replicate_that_drowns_is_computed_anew(rng):
    """The others are, bit by bit, what they are in company that is well."""
    points = torch.linspace(0, 1, 50, dtype=F64)[:, None]
    index = torch.randint(50, (3, 60), generator=rng)
    index[0], index[2] = torch.arange(60) % 4 * 16, torch.arange(60) % 3 * 20
    noise, y = torch.tensor([1e-2, 1e-10, 1e-2], dtype=F64), torch.sin(7 * points[index, 0])
    well, ill = (GaussianProcess(rbf_kernel(0.3), 1e-2).posterior(3).track(Measure.dirac(points)) for _ in range(2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for t in range(60):
            active = torch.tensor([True, True, t % 2 == 0])
            well.observe(index[:, t], y[:, t], 1e-2, active)
            ill.observe(index[:, t], y[:, t], noise, active)
    reported(caught, 3)
    for name in ("mean", "variance", "last_row", "last_scale", "log_marginal_likelihood"):
        one, other = getattr(ill, name), getattr(well, name)
        assert torch.equal(one[[0, 2]], other[[0, 2]]) and not torch.equal(one[1], other[1]), name
    assert float((ill.mean[1] - torch.sin(7 * points[:, 0])).abs().max()) < 1e-4


def test_noise_that_drowns_with_a_mean_of_its_own_for_each_of_a_batch(rng):
    points, level = torch.linspace(0, 1, 20, dtype=F64)[:, None], torch.tensor([0.0, 1.0, -3.0], dtype=F64)
    tracked = GaussianProcess(rbf_kernel(0.5), 1e-9, lambda x: level[:, None, None] + 0 * x[..., 0]).posterior()
    tracked, index = tracked.track(Measure.dirac(points)), torch.randint(20, (200,), generator=rng)
    y, before = torch.sin(7 * points[:, 0]), tracked.mean_shape
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in index:
            tracked.observe(i, y[i])
    reported(caught, 1)
    assert before == tracked.mean_shape == (3,) and tracked.variance.shape == (20,)
    torch.testing.assert_close(tracked.mean, y.expand(3, 20), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore::linear_operator.utils.warnings.NumericalWarning")
def test_a_kernel_that_is_none_is_refused_and_nothing_is_learned(rng):
    x = torch.arange(3, dtype=F64)[:, None]
    gram = torch.tensor([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]], dtype=F64)
    tracked = GaussianProcess(TabulatedKernel(gram), 1e-2).posterior(1).track(Measure.dirac(x))
    for _ in range(2):
        tracked.observe(torch.tensor([0]), normal(rng, 1))
    tracked.variance[:, 2] = tracked.variance[:, 1] = 0.1  # what the table has, but for its sign
    with pytest.raises(ValueError, match="kernel must give positive definite covariances of the observations"):
        tracked.observe(torch.tensor([1]), normal(rng, 1))
    assert tracked.count == 2 and tracked.mean.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_long_run_stays_at_the_textbook_formula(rng, dtype):
    """3,000 observations; the oracle takes repeats at a point for one observation with less noise."""
    x, index = torch.linspace(0, 1, 30, dtype=F64), torch.randint(30, (3000,), generator=rng)
    noise = 0.05 if dtype == torch.float32 else 1e-3
    y = torch.sin(7 * x[index]) + noise * normal(rng, 3000)
    process = GaussianProcess(rbf_kernel(0.2, dtype=dtype), noise)
    tracked = process.posterior().track(Measure.dirac(x[:, None].to(dtype)))
    for t in range(3000):
        tracked.observe(index[t], y[t].to(dtype))
    mean, variance = condition_exactly(x.tolist(), index.tolist(), y.tolist(), noise, x.tolist(), 0.2)
    tolerance = 3e-3 if dtype == torch.float32 else 1e-8
    np.testing.assert_allclose(tracked.mean, mean, rtol=0, atol=tolerance)
    np.testing.assert_allclose(tracked.variance, variance, rtol=0, atol=tolerance)


@pytest.mark.parametrize("replicates", [2, 3])  # as many as kernels, and another number
def test_noise_that_drowns_in_replicates_of_several_kernels(rng, replicates):
    """Their rows are those of a factor of each kernel, which no replicate may take from another."""
    points = torch.linspace(0, 1, 200, dtype=F64)[:, None]
    kernel = StackedKernel([rbf_kernel(0.1), rbf_kernel(0.3)])
    index, process = torch.randint(80, 120, (60,), generator=rng), GaussianProcess(kernel, 1e-8)
    tracked, single = (process.posterior(count).track(Measure.dirac(points)) for count in (replicates, 1))
    y = torch.sin(6 * points[index, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, value in zip(index, y, strict=True):
            for one in (tracked, single):
                one.observe(i.expand(one.batch_shape), value.expand(one.batch_shape))
    assert tracked._basis is not None and bool((tracked._jitter > 0).any())
    seen = torch.sin(6 * points[80:120, 0])
    torch.testing.assert_close(tracked.mean[..., 80:120], seen.expand(replicates, 2, 40), rtol=0, atol=1e-5)
    torch.testing.assert_close(tracked.mean, single.mean.expand_as(tracked.mean), rtol=0, atol=1e-3)
